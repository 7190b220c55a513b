"""HTTP as every destination speaks it: which requests take a proxy, one time limit for all of an exchange, and gzip.

A proxy cannot reach this machine's loopback, and has no business between a job and its own hub. For all else the
variables ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` count as ``requests`` reads them; gRPC reads
them by itself.

A socket's time-out is one between two bytes: a server that sends ``100 Continue`` for ever, or a status line that never
ends, keeps a client for ever. Connections of :func:`limited_pools` look at a :class:`TimeLimit` before they send or
receive anything.
"""

from __future__ import annotations

import codecs
import http.client
import io
import os
import socket
import threading
import time
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from tachograph.identity.environment import JOB_HUB, text
from tachograph.logger.influx_target import is_loopback

_PORTS = {"http": 80, "https": 443}
_SENT_AT_ONCE = 2**16  # bytes: the time limit is looked at between them
# Sockets load it for their first host name: a child that is forked meanwhile can never look up one.
codecs.lookup("idna")


def goes_direct(url: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a URL never takes a proxy: it is of loopback, or of the hub that ``tachograph run`` has begun."""
    where = _origin(url)
    if is_loopback(where[1]):
        return True
    hub = text(environ, JOB_HUB)
    return bool(hub) and where == _origin(hub)


def no_proxies(url: str) -> dict[str, None]:
    """Return the ``proxies`` with which ``requests`` takes none for a URL, those of the environment included."""
    scheme, host, _ = _origin(url)
    # In these places requests looks for one: requests.utils.select_proxy.
    return dict.fromkeys((f"{scheme}://{host}", scheme, f"all://{host}", "all"))


def proxy_of(url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the proxy's URL, which may hold a password; None where the URL takes none.

    Args:
        url: where a request goes.
        environ: says which hub is the job's own; the proxies are those of the process's environment.
    """
    if goes_direct(url, environ):
        return None
    from requests.utils import get_environ_proxies, select_proxy

    return select_proxy(url, get_environ_proxies(url))


def _origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, the host and the port of a URL; empty where it is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", "", None


class TimeLimit(threading.local):
    """End of the exchange that a thread is in; each thread has its own.

    Attributes:
        until: in seconds of the monotonic clock.
    """

    until = float("inf")

    def begin(self, seconds: float) -> None:
        """Begin an exchange that may take so many seconds."""
        self.until = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: there are none.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request timed out")
        return min(left, threading.TIMEOUT_MAX)


class _Received(io.RawIOBase):
    """Bytes from a socket, as long as the time limit allows, after those that have been received already."""

    def __init__(self, sock: socket.socket, limit: TimeLimit, received: bytes = b"") -> None:
        super().__init__()
        self._sock, self._limit, self._received = sock, limit, received
        self._raw: Any = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._received:
            some = len(buffer)
            first, self._received = self._received[:some], self._received[some:]
            buffer[: len(first)] = first
            return len(first)
        self._sock.settimeout(self._limit.left())
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class LimitedResponse(http.client.HTTPResponse):
    """A response that keeps to a time limit.

    Args:
        sock: where it comes from.
        limit: see above.
        received: the bytes of it that have come already.
    """

    def __init__(
        self, sock: socket.socket, *arguments: Any, limit: TimeLimit, received: bytes = b"", **more: Any
    ) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_Received(sock, limit, received))


def limited_connection(base: Any, limit: TimeLimit) -> Any:
    """Return a subclass of a connection of ``http.client``'s whose exchanges keep to a time limit."""

    def send(connection: Any, data: Any) -> None:
        if connection.sock is None or not isinstance(data, bytes | bytearray | memoryview):
            base.send(connection, data)
            return
        for start in range(0, len(data), _SENT_AT_ONCE):
            connection.sock.settimeout(limit.left())
            base.send(connection, data[start : start + _SENT_AT_ONCE])

    response = staticmethod(partial(LimitedResponse, limit=limit))  # from CPython 3.14 on a partial would be a method
    return type(base.__name__, (base,), {"send": send, "response_class": response})


def limited_pools(limit: TimeLimit) -> dict[str, Any]:
    """Return ``pool_classes_by_scheme`` for a manager of urllib3's, whose connections keep to a time limit."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def limited(pool: Any, connection: Any) -> Any:
        return type(pool.__name__, (pool,), {"ConnectionCls": limited_connection(connection, limit)})

    return {
        "http": limited(HTTPConnectionPool, HTTPConnection),
        "https": limited(HTTPSConnectionPool, HTTPSConnection),
    }


def gzipped(body: bytes) -> bytes:
    """Return a body compressed, without the time."""
    compressor = zlib.compressobj(level=1, wbits=31)
    return compressor.compress(body) + compressor.flush()


def root(error: BaseException) -> BaseException:
    """Return the innermost reason of an error: the outer ones repeat the URL and the headers, which may be secrets.

    A context that is suppressed is none: urllib3 1.26 raises each error of a connection in that of a call for Python 2.
    """
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
    return error
