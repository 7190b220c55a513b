"""The Studio on a hub's server: routes for its API and its pages, static files that a browser keeps."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from tachograph.exporters.prometheus.format import accepts_gzip
from tachograph.recording.log import LogOnce
from tachograph.runs import AbandonedError
from tachograph.studio._api import Api, Question, Unanswered, answer, encoded, refusal
from tachograph.studio._comparison import Comparison
from tachograph.studio._edits import Edits, asked_of
from tachograph.studio._live import Live, stream
from tachograph.studio._news import News
from tachograph.studio._table import RunsTable
from tachograph.studio.overview import Overview

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_TYPES |= {".html": "text/html", ".json": "application/json", ".woff2": "font/woff2", ".map": "application/json"}
_TEXTUAL = ("text/", "application/json", "image/svg+xml")
READERS = 3  # questions that are answered at once; on one core they would only slow each other down
MOST_WAITING = 256


class File(NamedTuple):
    """A file, its type and its entity tag."""

    content: bytes
    media_type: str
    tag: str


class Pages:
    """The files by their path below ``static/``, read once: a new version needs a new process."""

    @cached_property
    def _files(self) -> dict[str, File]:
        return dict(_found(files("tachograph.studio").joinpath("static"), ""))

    @property
    def index(self) -> bool:
        """True where this installation has the page."""
        return "index.html" in self._files

    def answer(self, name: str, request: Request) -> Response:
        """Return a file; 304 where the browser has it, 404 where there is none."""
        found = self._files.get(name)
        if found is None:
            return Response("404: Not Found\n", 404, media_type="text/plain")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        headers["Referrer-Policy"] = "no-referrer"
        if found.tag in [
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        ]:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers={**headers, "Content-Type": found.media_type})


def _found(folder: Traversable, prefix: str) -> Iterator[tuple[str, File]]:
    if not folder.is_dir():
        return
    for each in folder.iterdir():
        if each.is_dir():
            yield from _found(each, f"{prefix}{each.name}/")
        else:
            content = each.read_bytes()
            yield prefix + each.name, File(content, _type(each.name), f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _type(name: str) -> str:
    ending = "." + name.rpartition(".")[2]
    found = _TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return found + "; charset=utf-8" if found.startswith(_TEXTUAL) else found


class Studio:
    """Answers for the pages, from the files of the store: never on the event loop's thread.

    Args:
        folder: the store.
        run: the hub's own.
        token: with which requests may change and delete runs; None where none may.
        clock: nanoseconds since the epoch.
        failed: called for each answer that failed by an error of ours.
        standing: returns the ranks of a live run as they stand; None where nothing is known of them.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        token: str | None = None,
        clock: Callable[[], int] = time.time_ns,
        failed: Callable[[], None] = lambda: None,
        standing: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    ) -> None:
        self._pages = Pages()
        self._warm = False
        self._closing = threading.Event()
        self._failed = failed
        self._log_once = LogOnce()
        self._waiting = 0
        self._pool = ThreadPoolExecutor(READERS, "tachograph studio")
        self._edits = Edits(folder, token)
        self._api = Api(folder, run, clock, self._closing.is_set, writable=self._edits.allowed, standing=standing)
        overview = Overview(folder, clock, self._closing.is_set, outlined=True)
        self._table = RunsTable(overview, run, clock, writable=self._edits.allowed)
        self._comparison = Comparison(overview, clock, self._closing.is_set)
        self._live = Live(self._read, lambda name: News(self._api, name))

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the Studio, for the server."""
        return [_Below("/api/", self._asked, self._told), _Below("/static/", self._file)]

    def index(self, request: Request) -> Response | None:
        """Return the page; None where this installation has none."""
        if not self._pages.index:
            return None
        if not self._warm:
            self._warm = True
            with contextlib.suppress(RuntimeError):  # it was closed by another thread
                self._pool.submit(_load_numpy)
        return self._pages.answer("index.html", request)

    def close(self) -> None:
        """End every stream, and stop reading; from any thread."""
        self._closing.set()
        self._live.close()
        self._edits.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _file(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._pages.answer(scope["path"].removeprefix("/static/"), Request(scope))
        await found(scope, receive, send)

    async def _asked(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            question = Question(scope)
            match question.path:
                case ["runs", run, "live"]:
                    await self._listened(run, question, scope, receive, send)
                    return
                case ["table"]:
                    answered = self._table.ask
                case ["compare"]:
                    answered = self._comparison.ask
                case _:
                    answered = self._api.ask
            headers = Request(scope).headers
            gzipped = accepts_gzip(",".join(headers.getlist("accept-encoding")))
            body, gzipped = await self._read(lambda: encoded(answered(question), gzipped=gzipped))
            found = answer(body, gzipped=gzipped)
        except Unanswered as refused:
            found = refusal(refused)
        await found(scope, receive, send)

    async def _told(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that changes a run."""
        request = Request(scope, receive)
        try:
            match scope["method"], Question(scope).path:
                case "POST", ["runs", run]:
                    self._edits.check(request)
                    asked = await asked_of(request)
                    await self._read(lambda: self._edits.change(run, asked))
                case "DELETE", ["runs", run]:
                    self._edits.check(request)
                    await self._read(lambda: self._edits.delete(run))
                case _:
                    raise _only_read()
            found = answer(encoded({"run": run}, gzipped=False)[0], gzipped=False)
        except Unanswered as refused:
            found = refusal(refused)
        await found(scope, receive, send)

    async def _listened(self, run: str, question: Question, scope: Scope, receive: Receive, send: Send) -> None:
        cursor = Request(scope).headers.get("last-event-id") or question.text("after") or ""
        async with self._live.listening(run, cursor) as listener:
            await stream(listener, scope, receive, send)

    async def _read(self, read: Callable[[], Any]) -> Any:
        """Call ``read`` on another thread, and return its answer.

        Raises:
            Unanswered: there is no answer.
        """
        if self._waiting >= MOST_WAITING:
            raise Unanswered(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once; try again in a second")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read)
        except Unanswered:
            raise
        except Exception as error:  # the border to the store: one question must not end the server; the client is told
            # The pool is shut down, or the reading was given up.
            if self._closing.is_set() and isinstance(error, AbandonedError | RuntimeError):
                raise Unanswered(HTTPStatus.SERVICE_UNAVAILABLE, "the hub is shutting down") from error
            self._failed()
            message = (
                "a request of the Studio failed (further warnings are suppressed; see "
                "tachograph_hub_failed_total on /metrics)"
            )
            self._log_once("answer", message, exc_info=True)
            why = "internal error; see the hub's log"
            raise Unanswered(HTTPStatus.INTERNAL_SERVER_ERROR, why) from error
        finally:
            self._waiting -= 1


def _load_numpy() -> None:
    """Load NumPy before it is needed: that takes longer than any answer."""
    with contextlib.suppress(ImportError):
        import_module("numpy")


def _only_read() -> Unanswered:
    return Unanswered(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed here")


class _Below(BaseRoute):
    """A route for everything below a path: a run's name may hold slashes and line breaks."""

    def __init__(self, prefix: str, app: ASGIApp, changes: ASGIApp | None = None) -> None:
        self._prefix = prefix
        self._app = app
        self._changes = changes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether a request is for this route."""
        mine = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL, {}) if mine else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD; other methods are refused, or answered as changes."""
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
        elif self._changes is not None:
            await self._changes(scope, receive, send)
        else:
            await refusal(_only_read())(scope, receive, send)
