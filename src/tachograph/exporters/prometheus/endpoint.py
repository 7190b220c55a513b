"""The endpoint that Prometheus scrapes: a small HTTP server of ``/metrics`` on threads of its own."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tachograph.exporters._http import gzipped
from tachograph.exporters.prometheus.format import accepts_gzip, negotiate
from tachograph.exporters.prometheus.page import Page
from tachograph.exporters.prometheus.target_file import TargetFile, authority
from tachograph.recording.gil_yield import REST
from tachograph.recording.log import LogOnce, log
from tachograph.recording.points import MetricPoints
from tachograph.recording.registry import Registry
from tachograph.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

Read = Callable[[], "tuple[Sequence[MetricPoints], MetricsData | None]"]

NEXT_PORTS = 64  # ports that are tried after the one asked for, before any free one is taken
CLIENT_TIMEOUT = 10.0  # seconds that a client may take for each read and write
MOST_CLIENTS = 32  # served at once; further ones are turned away
_OUT_OF_FILES_REST = 0.1
_rest = partial(time.sleep, REST)


class Endpoint:
    """The page's HTTP server, from its making until it is closed.

    Args:
        read: collects the page's metrics; called for each scrape, from several threads at once.
        page: renders it.
        host: address or name to listen on; empty for all addresses.
        port: the port; where it is taken the next free one, and for 0 any free one.
        registry: where errors are counted (``prometheus``).
        store: folder of the store, in which a target file for Prometheus is kept; None for no such file.
        pace: called between slices of the rendering.

    Raises:
        OSError: the host is none of this machine's.
    """

    def __init__(
        self,
        read: Read,
        page: Page,
        host: str,
        port: int,
        registry: Registry,
        *,
        store: Path | None = None,
        pace: Callable[[], None] = _rest,
    ) -> None:
        self._read = read
        self._page = page
        self._registry = registry
        self._pace = pace
        self._log_once = LogOnce()
        self._server = _listen(host, port, self)
        self._address = self._server.server_address
        if port not in (0, self.port):
            log.warning("port %d is in use: /metrics is at %s", port, self.url)
        try:
            self._waking, self._wake = socket.socketpair()
            self._selector = selectors.DefaultSelector()
        except OSError:  # no descriptor is left: then no port is held, either
            self._server.server_close()
            raise
        self._target = None if store is None else TargetFile(store, self._address, registry)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._waking, selectors.EVENT_READ)
        self._thread: threading.Thread | None = threading.Thread(
            target=self._serve, name="tachograph /metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._address[1])

    @property
    def url(self) -> str:
        """The page's address, as a program on this machine reaches it."""
        this_machine = "[::1]" if ":" in str(self._address[0]) else "127.0.0.1"
        return f"http://{authority(self._address, this_machine)}/metrics"

    def _serve(self) -> None:
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._waking in ready:
                return
            self._server.handle_request()

    def answer(self, accept: str, escaping: str | None) -> tuple[str, bytes]:
        """Return the content type and the page for a scraper's wishes; see :func:`negotiate`."""
        form = negotiate(accept, escaping)
        metrics, sdk = self._read()
        return form.content_type, self._page.render(metrics, sdk, form, self._pace)

    def failed(self) -> None:
        """Count an error that a scrape ran into; call it while the exception is handled."""
        self._registry.count_error("prometheus")
        self._log_once(
            "scrape",
            "a scrape of /metrics failed (further warnings are suppressed; see tachograph_errors_total on /metrics)",
            exc_info=True,
        )

    def close(self, timeout: float) -> None:
        """Stop to listen; scrapes under way may end within ``timeout`` seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        deadline = time.monotonic() + timeout
        if self._target is not None:
            self._target.remove()
        self._wake.send(b"x")
        thread.join(timeout)
        self._server.server_close()
        if not thread.is_alive():
            self._close_waking()
        for client in list(self._server.clients):
            client.join(max(0.0, deadline - time.monotonic()))

    def _close_waking(self) -> None:
        self._selector.close()
        self._waking.close()
        self._wake.close()

    def reset_in_child(self) -> None:
        """Close this process's copies of the sockets; the parent process goes on serving."""
        self._thread = None
        self._target = None
        self._server.server_close()
        self._close_waking()


def _listen(host: str, port: int, endpoint: Endpoint) -> _Server:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    for candidate in _candidates(port):
        try:
            return _Server(family, (address[0], candidate, *address[2:]), endpoint)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not candidate:
                raise
    raise AssertionError  # the last candidate is any free port


def _candidates(port: int) -> Iterator[int]:
    if port:
        yield from range(port, min(port + NEXT_PORTS, 65_535) + 1)
    yield 0


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_port = False  # another process's port is taken, not shared
    request_queue_size = 16
    timeout = 0

    def __init__(self, family: socket.AddressFamily | int, address: tuple[Any, ...], endpoint: Endpoint) -> None:
        self.address_family = socket.AddressFamily(family)
        self.endpoint = endpoint
        self.clients: set[threading.Thread] = set()
        super().__init__(address, _Handler)
        self.socket.setblocking(False)  # a connection that is gone before it is accepted must not hold up the others

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the name service who we are

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except BlockingIOError:
            raise
        except OSError:
            time.sleep(_OUT_OF_FILES_REST)  # the connection waits still: asking at once again would be a busy loop
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the signature is given
        return len(self.clients) < MOST_CLIENTS

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        client = threading.current_thread()
        self.clients.add(client)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.clients.discard(client)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away, or is too slow, is no error of ours; others were counted."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_TIMEOUT
    server_version = f"tachograph/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", b"400: this is no address\n")
            return
        if url.path == "/metrics":
            self._metrics(parse_qs(url.query).get("escaping", [None])[-1])
        elif url.path == "/":
            self._send(HTTPStatus.OK, "text/plain; charset=utf-8", b"Tachograph: the metrics are at /metrics\n")
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"404: the metrics are at /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - the names are given

    def _metrics(self, escaping: str | None) -> None:
        accept = ",".join(self.headers.get_all("Accept", []))
        try:
            content_type, body = self.server.endpoint.answer(accept, escaping)
        except Exception:  # noqa: BLE001 - one scrape must not end the server; the scraper is told
            self.server.endpoint.failed()
            body = b"500: collecting the metrics failed; see the program's log\n"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", body)
            return
        headers = {"Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(",".join(self.headers.get_all("Accept-Encoding", []))):
            headers["Content-Encoding"] = "gzip"
            body = gzipped(body)
        self._send(HTTPStatus.OK, content_type, body, headers)

    def _send(self, status: HTTPStatus, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the client has gone
                self.wfile.write(body)

    def _not_allowed(self) -> None:
        body = b"405: only GET and HEAD\n"
        headers = {"Allow": "GET, HEAD"}
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", body, headers)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _not_allowed  # noqa: N815 - the names are given

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is given
        """Write nothing to stderr."""
