"""Run a server until it stops, and announce it as soon as it takes connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def serve(run: Callable[[asyncio.Event], Coroutine[Any, Any, None]], announce: Callable[[], object]) -> None:
    """Run a server, which sets the event once it takes connections, to its end."""
    started = asyncio.Event()
    serving = asyncio.create_task(run(started))
    starting = asyncio.create_task(started.wait())
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    if started.is_set():
        announce()
    await serving
