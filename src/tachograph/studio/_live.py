"""Live runs: one watcher a run looks at its file, and sends news to all of its listeners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from tachograph.recording.ids import random_hex
from tachograph.studio._api import Unanswered, text
from tachograph.studio._news import Message, News

MOST_LISTENERS = 64
EVERY = 1.0  # seconds between two looks
_REMEMBERED = 300  # messages, for listeners that reconnect
_REMEMBERED_CHARACTERS = 16 * 2**20
_QUEUE = 64  # messages that wait for a slow listener; then it has to reconnect
_STAYS = 15.0  # seconds that a watcher goes on without a listener

Read = Callable[[Callable[[], Any]], Awaitable[Any]]


class Numbered(NamedTuple):
    """A message, and its number among those of its watcher."""

    number: int
    message: Message


class Listener:
    """A listener: messages as text, until it ends."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | None] = asyncio.Queue(_QUEUE)

    def put(self, message: str) -> None:
        """Pass a message on; a listener whose queue is full is ended, and has to reconnect."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """End the listener; messages that wait are lost to it."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


class Watcher:
    """Looks at one run as long as it has listeners.

    Args:
        news: of the run.
        read: calls a function on another thread.
    """

    def __init__(self, news: News, read: Read) -> None:
        self._news = news
        self._read = read
        self._name = random_hex(4)
        self._number = 0
        self._remembered: deque[Numbered] = deque()
        self._characters = 0
        self.listeners: set[Listener] = set()
        self._beginning: asyncio.Task[Any] | None = None

    async def ready(self) -> None:
        """Wait for the first look.

        Raises:
            Unanswered: there is no such run, or it cannot be read.
        """
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._read(self._news.begin))
        await asyncio.shield(self._beginning)

    def add(self, listener: Listener, cursor: str) -> None:
        """Add a listener to messages after ``cursor``, the id of a message; from now on where that is unknown."""
        name, _, number = cursor.partition("-")
        known = name == self._name and number.isascii() and number.isdecimal() and len(number) < 16  # noqa: PLR2004
        oldest = self._remembered[0].number if self._remembered else self._number + 1
        resumed = known and oldest - 1 <= int(number) <= self._number
        missed = [each for each in self._remembered if each.number > int(number)] if resumed else []
        news = self._news
        hello = {"heads": news.heads, "events": news.last_event, "progress": news.bars, "resumed": resumed}
        listener.put("retry: 1000\n" + self._text(self._number, Message("hello", text(hello))))
        if missed:  # as one text
            listener.put("".join(self._text(*each) for each in missed))
        self.listeners.add(listener)

    def _text(self, number: int, message: Message) -> str:
        return f"id: {self._name}-{number}\nevent: {message.event}\ndata: {message.data}\n\n"

    async def watch(self) -> None:
        """Look again and again, until there was no listener for some time."""
        heard = time.monotonic()
        while time.monotonic() - heard < _STAYS:
            began = time.monotonic()
            with contextlib.suppress(Unanswered):  # too many requests at once: the next look finds the news
                for message in await self._read(self._news.look):
                    self._publish(message)
            now = time.monotonic()
            heard = now if self.listeners else heard
            await asyncio.sleep(max(EVERY / 4, EVERY - (now - began)))

    def _publish(self, message: Message) -> None:
        self._number += 1
        self._remembered.append(Numbered(self._number, message))
        self._characters += len(message.data)
        while len(self._remembered) > _REMEMBERED or self._characters > _REMEMBERED_CHARACTERS:
            self._characters -= len(self._remembered.popleft().message.data)
        said = self._text(self._number, message)
        for listener in list(self.listeners):
            listener.put(said)


class Live:
    """The watchers of a hub; everything on its event loop's thread, but :meth:`close`.

    Args:
        read: calls a function on another thread.
        news: makes the News of a run, which its watcher reads.
    """

    def __init__(self, read: Read, news: Callable[[str], News]) -> None:
        self._read = read
        self._news = news
        self._watchers: dict[str, tuple[Watcher, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._listening = 0

    @contextlib.asynccontextmanager
    async def listening(self, run: str, cursor: str) -> Any:
        """Lend a listener to a run.

        Raises:
            Unanswered: there is no such run, it cannot be read, or too many listen.
        """
        self._loop = asyncio.get_running_loop()
        if self._closed or self._listening >= MOST_LISTENERS:
            why = (
                "the hub is shutting down"
                if self._closed
                else f"{MOST_LISTENERS} live pages are open already; close one"
            )
            raise Unanswered(HTTPStatus.SERVICE_UNAVAILABLE, why)
        self._listening += 1
        listener = Listener()
        try:
            watcher = await self._watcher(run)
            watcher.add(listener, cursor)
            try:
                yield listener
            finally:
                watcher.listeners.discard(listener)
        finally:
            self._listening -= 1

    async def _watcher(self, run: str) -> Watcher:
        known = self._watchers.get(run)
        if known is not None and not known[1].done():
            await known[0].ready()
            return known[0]
        watcher = Watcher(self._news(run), self._read)
        task = asyncio.create_task(self._watch(run, watcher))
        self._watchers[run] = watcher, task
        await watcher.ready()
        return watcher

    async def _watch(self, run: str, watcher: Watcher) -> None:
        try:
            await watcher.ready()
            await watcher.watch()
        except Unanswered:  # ready() raises it, too
            pass
        finally:
            for listener in watcher.listeners:
                listener.end()
            if self._watchers.get(run, (None,))[0] is watcher:
                del self._watchers[run]

    def close(self) -> None:
        """End every listener and watcher; from any thread."""
        self._closed = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and they with it
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for watcher, task in list(self._watchers.values()):
            for listener in list(watcher.listeners):
                listener.end()
            task.cancel()


HEARTBEAT = 5.0  # seconds
_TAKES_AT_MOST = 20.0  # seconds in which a client has to take a message

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx
]


async def stream(listener: Listener, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a listener's messages, until it ends, or the client has gone or does not take them."""
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
    gone = asyncio.create_task(_gone(listener, receive))
    try:
        while scope["method"] != "HEAD" and (said := await _next(listener)) is not None:
            await asyncio.wait_for(send(_body(said, more=True)), _TAKES_AT_MOST)
        await asyncio.wait_for(send(_body("", more=False)), _TAKES_AT_MOST)
    except TimeoutError:
        pass
    finally:
        gone.cancel()


async def _next(listener: Listener) -> str | None:
    """Return all messages that wait, or a heartbeat; None at the end."""
    try:
        found = await asyncio.wait_for(listener.queue.get(), HEARTBEAT)
    except TimeoutError:
        return ":\n\n"
    while found is not None and not listener.queue.empty():
        more = listener.queue.get_nowait()
        found = None if more is None else found + more
    return found


def _body(text: str, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": more}


async def _gone(listener: Listener, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.end()
