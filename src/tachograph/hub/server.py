"""The hub's HTTP server: one port for OTLP, metrics and pages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from tachograph.exporters.prometheus.format import accepts_gzip
from tachograph.hub._connections import ClientTimeouts, CloseReason, Connections
from tachograph.hub._receiver import Receiver
from tachograph.hub._request import RequestLimits
from tachograph.hub.guard import Guard, is_loopback
from tachograph.hub.hub import Hub
from tachograph.recording.log import LogOnce
from tachograph.studio import Studio
from tachograph.version import __version__

if TYPE_CHECKING:  # else each hub would load the libraries with which few of them send
    from tachograph.hub.forwarding import Forwarding

HUB_PORT = 4318
NEXT_PORTS = 64  # ports that are tried after the usual one, before any free one is taken
_LAST_PORT = 65_535
MOST_SCRAPES = 8  # waiting at once; further ones get 503 and Retry-After
KEEP_ALIVE = 75  # seconds: longer than the usual export interval of 60
_BACKLOG = 2048
_AT_ONCE = 16  # connections that asyncio accepts at once, before they are counted, and closed where there are too many
_GZIP_LEVEL = 1
_LONGEST_NAME = 100  # characters of a scraper's
_POLL = 0.02
_FRONT = f"""Tachograph hub {__version__}

/          the Studio, for browsers: every run, live and stored
/api/runs  the same as JSON
/metrics   every process of this node, for Prometheus
/sd        this hub as a target, for Prometheus's http_sd_configs
/healthz   its health, and what it has received
/v1/metrics, /v1/logs, /v1/traces   post OTLP here (protobuf or JSON, gzip)
"""


def listen(host: str, port: int | None, *, usual: int = HUB_PORT, avoided: Collection[int] = ()) -> socket.socket:
    """Return a bound socket, which no other process shares.

    Args:
        host: address or name of this machine.
        port: 0 for any free one; None for the usual one, or the next one that can be had.
        usual: the usual port.
        avoided: ports that are never chosen, even if they are free; a ``port`` that is given is not one of them.

    Raises:
        OSError: the host is none of this machine's, or the port is taken or not permitted; the message says so.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise OSError(f"--host {host!r:.100} is not an address of this machine: {error}") from None
    candidates = [port]
    if port is None:
        next_ports = range(usual, min(usual + NEXT_PORTS, _LAST_PORT) + 1)
        candidates = [*(number for number in next_ports if number not in avoided), 0]
    for candidate in candidates:
        # With the protocol left to the kernel, asyncio sets no TCP_NODELAY: on kept connections answers are 40 ms late.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT hold no port
            listener.bind((address[0], candidate, *address[2:]))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or port is not None:
                free = "; port 0 picks a free one" if error.errno == errno.EADDRINUSE else ""
                raise OSError(
                    error.errno, f"cannot listen on {host} port {candidate}: {error.strerror}{free}"
                ) from None
        else:
            if port or listener.getsockname()[1] not in avoided:
                return listener
            with listener:  # the kernel has chosen it: it cannot choose it again while this socket is open
                return listen(host, port, usual=usual, avoided=avoided)
    raise AssertionError  # the last candidate is any free port


def address_of(listener: socket.socket) -> tuple[str, str]:
    """Return the address and the base URL of a socket, as reached from this machine."""
    host, port = listener.getsockname()[:2]
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened on
    return host, f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


class HubServer:
    """Serves a hub on a socket until :meth:`stop`.

    Args:
        hub: the served hub; its ``receive_*`` are called on one thread, its page on another one.
        listener: a socket of :func:`listen`.
        token: required in ``Authorization: Bearer``; None for no such rule.
        forwarding: gets everything that is received, too.
        limits: of requests.
        timeouts: limits for slow clients.

    Attributes:
        url: base URL, as reached from this machine.
        scraped: whether a Prometheus server has scraped the page.
    """

    def __init__(
        self,
        hub: Hub,
        listener: socket.socket,
        *,
        token: str | None = None,
        forwarding: Forwarding | None = None,
        limits: RequestLimits | None = None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        host, self.url = address_of(listener)
        self.scraped = False
        self._hub = hub
        self._listener = listener
        self._receiver = Receiver(hub, forwarding, limits)
        self._pages = ThreadPoolExecutor(1, "tachograph page")
        self._studio = Studio(hub.folder, hub.name, failed=self._studio_failed, standing=hub.doctors.picture)
        self._scrapes = 0
        self._log_once = LogOnce()
        routes = [
            *self._receiver.routes(),
            Route("/metrics", self._metrics),
            Route("/sd", self._targets),
            Route("/healthz", self._health),
            Route("/", self._index),
            *self._studio.routes(),
        ]
        guard = Middleware(Guard, loopback=is_loopback(host), token=token)
        self._http = HttpServer(routes, guard, self._count_closed, timeouts)

    @property
    def quiet_for(self) -> float:
        """Seconds since the latest OTLP request."""
        return time.monotonic() - self._receiver.last

    async def serve(self, started: asyncio.Event) -> None:
        """Serve; ``started`` is set when connections are taken."""
        try:
            await self._http.serve_on(self._listener, started)
        finally:
            self._studio.close()
            await asyncio.to_thread(self._receiver.close)
            self._pages.shutdown(wait=False, cancel_futures=True)
            self._listener.close()

    def stop(self) -> None:
        """Take no more connections; answer the requests under way, and let :meth:`serve` return."""
        self._studio.close()
        self._http.should_exit = True

    async def _metrics(self, request: Request) -> Response:
        if request.headers.get("user-agent", "").startswith("Prometheus/"):
            self.scraped = True
        accept, escaping = ",".join(request.headers.getlist("accept")), request.query_params.get("escaping")
        gzipped = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        if self._scrapes >= MOST_SCRAPES:
            return PlainTextResponse("503: too many scrapes at once\n", 503, {"Retry-After": "1"})
        self._scrapes += 1
        try:
            content_type, body = await asyncio.get_running_loop().run_in_executor(
                self._pages, self._page, accept, escaping, _scraper(request), gzipped
            )
        except Exception:  # noqa: BLE001 - the border to the store: one scrape must not end the server; the scraper is told
            self._hub.count("tachograph.hub.failed", 1, signal="page")
            self._log_once(
                "page",
                "a scrape of the hub failed (further warnings are suppressed; see tachograph_hub_failed_total on "
                "/metrics)",
                exc_info=True,
            )
            return PlainTextResponse("500: internal error; see the hub's log\n", 500)
        finally:
            self._scrapes -= 1
        headers = {"Vary": "Accept, Accept-Encoding", **({"Content-Encoding": "gzip"} if gzipped else {})}
        answer = Response(body, headers=headers)
        answer.headers["Content-Type"] = content_type  # as it is: Starlette would add a charset of its own
        return answer

    def _page(self, accept: str, escaping: str | None, scraper: str, gzipped: bool) -> tuple[str, bytes]:
        content_type, body = self._hub.page(accept, escaping, scraper)
        if gzipped:
            compressor = zlib.compressobj(_GZIP_LEVEL, wbits=31)
            body = compressor.compress(body) + compressor.flush()
        return content_type, body

    async def _targets(self, request: Request) -> Response:
        """Return the hub as the one target of its node. Source: Prometheus, "Writing HTTP service discovery".

        The target is the address by which the scraper has reached the hub, so that it will reach it again. A run of
        the hub's own is in ``__meta_tachograph_run``, for relabelling: the series have ``dl_run_id``.
        """
        target = request.headers.get("host") or self.url.partition("://")[2]
        run = str(self._hub.health()["run"])
        labels = {"__meta_tachograph_run": run, "__meta_tachograph_host": socket.gethostname()}
        return _json([{"targets": [target], "labels": labels}])

    async def _health(self, _request: Request) -> Response:
        """Return ``{"status": "ok", …}`` with counts of received items; nothing that is not public."""
        summary = self._hub.health()
        counts = {name: summary[name] for name in ("data_points", "log_records", "dropped", "lost")}
        return _json({"status": "ok", **counts})

    async def _index(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            page = self._studio.index(request)
            if page is not None:
                return page
        return PlainTextResponse(_FRONT)

    def _count_closed(self, reason: CloseReason) -> None:
        self._hub.count("tachograph.hub.connections.closed", 1, reason=reason)

    def _studio_failed(self) -> None:
        self._hub.count("tachograph.hub.failed", 1, signal="studio")


class HttpServer(uvicorn.Server):
    """A uvicorn server with bounded connections and without signal handlers: signals belong to the command.

    Args:
        routes: of the application.
        guard: stands before it.
        count_closed: called with the reason for which a client's connection was closed.
        timeouts: limits for slow clients.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        guard: Middleware,
        count_closed: Callable[[CloseReason], None] = lambda _: None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        app = Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _plain})
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",  # invalid requests of unknown clients are not logged
            access_log=False,
            lifespan="off",
            # h11 reads on past a refusal, so that the client sees the answer and no broken connection.
            http=Connections(count_closed, timeouts).protocol(),
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            backlog=_AT_ONCE,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    async def serve_on(self, listener: socket.socket, started: asyncio.Event) -> None:
        """Serve until ``should_exit`` is set; ``started`` is set when connections are taken."""
        serving = asyncio.create_task(self.serve([listener]))
        while not self.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(_POLL)
        listener.listen(_BACKLOG)
        started.set()
        await serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave every signal to the command."""
        yield


def _scraper(request: Request) -> str:
    """Return a name by which a scraper is known again: its address and program."""
    host = "" if request.client is None else request.client.host
    return f"{host} {request.headers.get('user-agent', '')[:_LONGEST_NAME]}"


async def _plain(_request: Request, error: Exception) -> Response:
    """Return an error of the routing as one line of text."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for this class
    phrase = HTTPStatus(error.status_code).phrase
    return PlainTextResponse(f"{error.status_code}: {phrase}\n", error.status_code, error.headers)


def _json(content: Any) -> Response:
    return Response(json.dumps(content).encode() + b"\n", media_type="application/json")
