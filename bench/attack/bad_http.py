"""An HTTP server over raw sockets that fails in a given way, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bad_accounts import Account, Item

HEARD_WITHIN = 0.3  # seconds after a request in which the client surely still listens
_LONGEST_HEAD = 2**16


class Request(NamedTuple):
    """One request, as far as it came."""

    number: int
    path: str
    headers: Mapping[str, str]
    items: Sequence[Item]
    since: float


class Exchange:
    """A request and its answer.

    Args:
        sock: the connection.
        request: as it was received.
        server: that received it.
    """

    def __init__(self, sock: socket.socket, request: Request, server: HttpServer) -> None:
        self.sock, self.request, self.server = sock, request, server
        self._account = server.account

    def take(self) -> None:
        """Take it, without an answer."""
        self._account.take(self.request.items)

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.sock.sendall(data)

    def acknowledged(self, items: Sequence[Item]) -> None:
        """Note that the client knows by now that these were taken, unless that took so long that it may have left."""
        if time.monotonic() - self.request.since < HEARD_WITHIN:
            self._account.acknowledge(items)

    def reply(
        self, status: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, takes: int | None = None
    ) -> None:
        """Answer; with a status of success, or of ``takes`` items, the first ones of the request are left out."""
        items = self.request.items
        taken: Sequence[Item] = items if status.startswith("2") else ()
        if takes is not None:
            taken = items[len(items) - takes :] if takes else ()
        self._account.take(taken)
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        length = "" if status.startswith("204") else f"Content-Length: {len(body)}\r\n"
        self.send(f"HTTP/1.1 {status}\r\n{length}{lines}\r\n".encode() + body)
        self.acknowledged(taken)

    def trickle(self, data: bytes, pause: float) -> None:
        """Send byte by byte."""
        for at in range(len(data)):
            self.send(data[at : at + 1])
            if self.server.stopped.wait(pause):
                return

    def silence(self) -> None:
        """Send nothing more, until the client gives up."""
        self.sock.settimeout(0.1)
        while not self.server.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.sock.recv(4096):
                    return

    def reset(self) -> None:
        """Break the connection off."""
        reset(self.sock)


Behaviour = Callable[[Exchange], None]


def reset(sock: socket.socket) -> None:
    """Close a connection by RST, though a file may still be read from it."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(sock.detach())


class HttpServer:
    """Answers each request by its ``behaviour``.

    Args:
        account: gets the received items.
        read: returns the items of a body, by its path.
        behaviour: answers.
        tls: how it speaks TLS; None for plain HTTP.
        listens: whether connections are taken from the beginning; else from :meth:`come_back` on.
        accepts: called with each connection in place of reading requests from it.
    """

    def __init__(
        self,
        account: Account,
        read: Callable[[str, bytes], list[Item]],
        behaviour: Behaviour,
        *,
        tls: ssl.SSLContext | None = None,
        listens: bool = True,
        accepts: Callable[[HttpServer, socket.socket], None] | None = None,
    ) -> None:
        self.account, self.behaviour = account, behaviour
        self._read, self._tls, self._accepts = read, tls, accepts
        self._lock = threading.Lock()
        self._count = 0
        self._open: set[socket.socket] = set()
        self.stopped = threading.Event()
        self.training_ended = threading.Event()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        if listens:
            self.come_back()

    def come_back(self) -> None:
        """Take connections."""
        self._listener.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self, behaviour: Behaviour) -> None:
        """Behave well from now on, on the connections to come, too."""
        self.behaviour, self._accepts = behaviour, None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stopped.is_set():
                sock, _ = self._listener.accept()
                with self._lock:
                    self._open.add(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._accepts is not None:
                self._accepts(self, sock)
                return
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with contextlib.closing(sock), sock.makefile("rb") as stream:
                while request := self._request(stream):
                    self.behaviour(Exchange(sock, request, self))

    def _request(self, stream: object) -> Request | None:
        line = stream.readline(_LONGEST_HEAD).split()  # type: ignore[attr-defined]
        since = time.monotonic()
        if len(line) < 3:
            return None
        headers = {}
        while (header := stream.readline(_LONGEST_HEAD).decode("latin-1").strip()) != "":  # type: ignore[attr-defined]
            name, _, value = header.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        body = stream.read(length)  # type: ignore[attr-defined]
        if len(body) < length:
            return None
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        items = self._read(line[1].decode(), body)
        self.account.see(items)
        with self._lock:
            self._count += 1
            return Request(self._count, line[1].decode(), headers, items, since)

    def close(self) -> None:
        """End, and break off the open connections."""
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for sock in left:
            reset(sock)


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """Yield a port on which connections are never accepted: its backlog is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


def damaged(body: bytes) -> bytes:
    """Return a body as gzip whose end is damaged."""
    compressor = zlib.compressobj(wbits=31)
    return (compressor.compress(body) + compressor.flush())[:-6] + b"\0" * 6
