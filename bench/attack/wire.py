"""HTTP/1.1 as bytes: a client that may send any bytes, and reads any answer."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_AT_ONCE = 2**16
_IN_FLIGHT = 2**16  # bytes of requests that wait for an answer: a system has room for them


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
        connection = self._opened()
        connection.settimeout(timeout or self._timeout)
        answer = Answer(0, "", b"")
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before
                connection.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                answer = self._answer(connection, without_body=sent.startswith(b"HEAD"))
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"no answer in {timeout or self._timeout:g} s") from error
        if answer.status == 0:
            self.close()
            if kept:
                return self.ask(sent, timeout)
        return answer

    def send(self, several: Sequence[bytes]) -> int:
        """Send requests one behind the other, as many as surely find room; return their number, at least one."""
        many, size = 1, len(several[0])
        while many < len(several) and size + len(several[many]) <= _IN_FLIGHT:
            size += len(several[many])
            many += 1
        with contextlib.suppress(OSError):  # answers that came before can be read
            connection = self._opened()
            connection.settimeout(self._timeout)
            connection.sendall(b"".join(several[:many]))
        return many

    def answers(self, many: int) -> Iterator[Answer]:
        """Yield the answers to requests that were sent, in their order, as far as the connection lasts.

        Raises:
            TimeoutError: the next one did not come in time.
        """
        try:
            while many and self._socket is not None and (answer := self._answer(self._socket, alone=False)).status:
                many -= 1
                yield answer
        except TimeoutError as error:
            raise TimeoutError(f"no answer in {self._timeout:g} s") from error
        except (OSError, ValueError):
            return
        finally:
            if many:
                self.close()

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._left = b""
            self._socket = socket.create_connection(self._address, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _answer(self, connection: socket.socket, *, without_body: bool = False, alone: bool = True) -> Answer:
        data, self._left = self._left, b""
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
            return self._answer(connection, without_body=without_body, alone=alone)
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
        if length < 0 or headers.get("connection", "").lower() == "close" or (alone and self._left):
            self.close()  # the rest answers bytes behind a wrong request that looked like another one
        if headers.get("content-encoding") == "gzip" and body:
            body = gzip.decompress(body)
        return Answer(status, content_type, body)

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
