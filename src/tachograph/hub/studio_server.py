"""The HTTP server of a Studio alone: its pages over a store. Nothing is received."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tachograph.hub.guard import Guard, is_loopback
from tachograph.hub.server import HttpServer, address_of
from tachograph.studio.studio import Studio
from tachograph.version import __version__

PORT = 4400  # neither a hub's nor one of those after it: programs send OTLP there without being asked
_FRONT = f"""Tachograph Studio {__version__}

/          every run of the store, live and finished, for browsers
/api/runs  the same as JSON
/healthz   whether it is well
"""


class StudioServer:
    """Serves the Studio of a store on a socket until :meth:`stop`; without a token for changes the store is only read.

    Args:
        store: the folder with the runs.
        listener: a socket of :func:`tachograph.hub.server.listen`.
        token: required in ``Authorization: Bearer``; None for no such rule.
        write_token: with which requests may change and delete runs; None where none may.

    Attributes:
        url: base URL, as reached from this machine.
    """

    def __init__(self, store: Path, listener: socket.socket, *, token: str | None, write_token: str | None) -> None:
        host, self.url = address_of(listener)
        self._listener = listener
        self._studio = Studio(store, "", token=write_token)
        routes = [Route("/healthz", _health), Route("/", self._index), *self._studio.routes()]
        self._http = HttpServer(routes, Middleware(Guard, loopback=is_loopback(host), token=token))

    async def serve(self, started: asyncio.Event) -> None:
        """Serve; ``started`` is set when connections are taken."""
        try:
            await self._http.serve_on(self._listener, started)
        finally:
            self._studio.close()
            self._listener.close()

    def stop(self) -> None:
        """Take no more connections; answer the requests under way, and let :meth:`serve` return."""
        self._studio.close()
        self._http.should_exit = True

    async def _index(self, request: Request) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        return (self._studio.index(request) if wants_page else None) or PlainTextResponse(_FRONT)


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})
