"""HTTP/1.1 as bytes: a client that may send any bytes, and reads any answer."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Mapping
from typing import NamedTuple

_AT_ONCE = 2**16


class Answer(NamedTuple):
    """A server's answer; status 0 where it closed the connection without one."""

    status: int
    content_type: str
    body: bytes


def request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request as bytes; ``Host`` and ``Content-Length`` are added where the headers have none."""
    lines = [f"{method} {target} HTTP/1.1"]
    if "Host" not in headers:
        lines.append("Host: 127.0.0.1")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if (body or method == "POST") and not {"Content-Length", "Transfer-Encoding"} & headers.keys():
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Wire:
    """One connection to a server, kept as long as it lives.

    Args:
        address: host and port.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, address: tuple[str, int], timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._left = b""

    def ask(self, sent: bytes, timeout: float | None = None) -> Answer:
        """Send bytes and return the answer; where the connection that was kept has gone, on a new one.

        Args:
            sent: the request.
            timeout: seconds to wait for it, where that is not as usual.

        Raises:
            TimeoutError: none came in time.
            OSError: there is no server.
        """
        kept = self._socket is not None
        if self._socket is None:
            self._left = b""
            self._socket = socket.create_connection(self._address, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout or self._timeout)
        answer = Answer(0, "", b"")
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before
                self._socket.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                answer = self._answer(self._socket, without_body=sent.startswith(b"HEAD"))
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"no answer in {timeout or self._timeout:g} s") from error
        if answer.status == 0:
            self.close()
            if kept:
                return self.ask(sent, timeout)
        return answer

    def _answer(self, connection: socket.socket, *, without_body: bool) -> Answer:
        data = self._left
        while b"\r\n\r\n" not in data:
            more = connection.recv(_AT_ONCE)
            if not more:
                return Answer(0, "", data)
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if status < 200:
            self._left = rest
            return self._answer(connection, without_body=without_body)
        content_type = headers.get("content-type", "")
        if content_type.startswith("text/event-stream"):  # it never ends
            self.close()
            return Answer(status, content_type, b"")
        length = 0 if without_body or status in (204, 304) else int(headers.get("content-length", "-1"))
        parts, had = [rest], len(rest)
        while length < 0 or had < length:
            more = connection.recv(_AT_ONCE)
            if not more:
                break
            parts.append(more)
            had += len(more)
        body = b"".join(parts)
        if length >= 0:
            body, self._left = body[:length], body[length:]
        if length < 0 or headers.get("connection", "").lower() == "close" or self._left:
            self.close()  # the rest answers bytes behind a wrong request that looked like another one
        if headers.get("content-encoding") == "gzip" and body:
            body = gzip.decompress(body)
        return Answer(status, content_type, body)

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
