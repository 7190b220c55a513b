"""A stream of server-sent events (HTML standard, "Server-sent events") to one client."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from tachograph.studio._live import Listener

HEARTBEAT = 5.0  # seconds
_TAKES_AT_MOST = 20.0  # seconds that a client may need to take what is sent

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx
]


async def stream(listener: Listener, scope: Scope, receive: Receive, send: Send) -> None:
    """Send what a listener hears, until it ends, or the client goes or does not take it."""
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
    gone = asyncio.create_task(_gone(listener, receive))
    try:
        while scope["method"] != "HEAD" and (said := await _next(listener)) is not None:
            await asyncio.wait_for(send(_body(said, more=True)), _TAKES_AT_MOST)
        await asyncio.wait_for(send(_body("", more=False)), _TAKES_AT_MOST)
    except asyncio.TimeoutError:
        pass
    finally:
        gone.cancel()


async def _next(listener: Listener) -> str | None:
    """Return everything that waits, or a heartbeat; None at the end."""
    try:
        found = await asyncio.wait_for(listener.queue.get(), HEARTBEAT)
    except asyncio.TimeoutError:
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
