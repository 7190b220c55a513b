"""The hub's lifetime: until a signal or its parent's end, then for the last exports, and for a last scrape."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.hardware import SHARED_MEMORY, observe
from tachograph.hub.doctors import LOOK
from tachograph.hub.hub import Hub
from tachograph.hub.processes import is_running, node_resource
from tachograph.hub.server import HubServer
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

if TYPE_CHECKING:  # else each hub would load the libraries with which few of them send
    from tachograph.hub.forwarding import Forwarding

EVERY = 5.0  # seconds between two looks
SCRAPED_LINGER = 30.0  # seconds that the page stays where a Prometheus has scraped it
_PARENT_POLL = 0.5
_TICK = 1.0
_QUIET, _LONGEST_GRACE = 0.3, 2.0  # seconds for the last exports: until none came for the first, at most for the second
_LAST_FORWARDS = 3.0
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # for which asyncio waits with accept(2)
_log = logging.getLogger("tachograph")


class Node:
    """Observes the machine, and reports it in OTLP, like a process: so it is stored and forwarded in the same way.

    Args:
        run: the run it belongs to; None for none.
        store: its file system is observed, beside the working directory's.
    """

    def __init__(self, run: str | None, store: Path) -> None:
        self._registry = Registry(enabled=True)
        self._encoder = MetricsEncoder("hub", self._registry, sdk=False)
        self._resource = node_resource(run)
        self._hardware = observe(self._registry, node=True, process=False, folders=(".", str(store), SHARED_MEMORY))

    def requests(self) -> list[ExportMetricsServiceRequest]:
        """Return the machine's metrics now; it takes some milliseconds."""
        batch = Batch(self._registry.collect(GilYield()), None, (), self._resource, time.time_ns())
        return [request for request, _ in self._encoder.messages(batch)]

    def close(self) -> None:
        """End the observation."""
        self._hardware.close()


class Lifetime:
    """Serves a hub until SIGTERM or SIGINT (a second one ends it at once), or until its parent is gone.

    Args:
        hub: kept up each second.
        server: serves it.
        forwarding: closed at the end; None where there is none.
        node: reports the machine; None for no such metrics.
        parent: pid of the process with which it ends; None for none.
        linger: seconds that the page stays after that; None for 30 where a Prometheus has scraped it, else none.
        on_linger: called with these seconds when the wait begins, if there is one.
    """

    def __init__(
        self,
        hub: Hub,
        server: HubServer,
        forwarding: Forwarding | None = None,
        *,
        node: Node | None = None,
        parent: int | None = None,
        linger: float | None = None,
        on_linger: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._hub = hub
        self._server = server
        self._forwarding = forwarding
        self._node = node
        self._parent = parent
        self._linger = linger
        self._on_linger = on_linger
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closing = threading.Event()
        self._full = False
        self._log_once = LogOnce()

    async def live(self, started: asyncio.Event) -> None:
        """Serve to the end; ``started`` is set when connections are taken."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed_in_loop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.end)
        ticking = threading.Thread(target=self._tick, name="tachograph hub", daemon=True)
        ticking.start()
        threading.Thread(target=self._look, name="tachograph hangs", daemon=True).start()
        serving = asyncio.create_task(self._server.serve(started))
        watching = asyncio.create_task(self._watch())
        observing = asyncio.create_task(self._observe())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._last_exports()
                await asyncio.to_thread(self._hub.job_ended)
                await self._last_scrapes()
            self._server.stop()
            await serving
        finally:
            for task in (watching, observing, ending):
                task.cancel()
            self._closing.set()
            await asyncio.to_thread(self._close, ticking)

    def _close(self, ticking: threading.Thread) -> None:
        ticking.join(_LONGEST_GRACE)
        if self._node is not None:
            self._node.close()
        if self._forwarding is not None:
            self._forwarding.close(_LAST_FORWARDS)

    def _failed_in_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log once that no connection can be accepted; asyncio tries again each second."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_MORE:
            self._hub.count("tachograph.hub.failed", 1, signal="connection")
            if not self._full:
                self._full = True
                _log.warning(
                    "the hub cannot accept more connections (counted in tachograph_hub_failed_total on /metrics): %s",
                    error.strerror,
                )
        elif not self._closing.is_set():  # asyncio's next try may come after the end
            loop.default_exception_handler(context)

    def end(self) -> None:
        """End, after the last exports and scrapes; at once where it was asked to end already. In its loop's thread."""
        if self._ending.is_set():
            self._hurry.set()
        self._ending.set()

    async def _watch(self) -> None:
        if self._parent is None:
            return
        lives = _watch(self._parent)
        while lives():  # noqa: ASYNC110 - asyncio has no event for it
            await asyncio.sleep(_PARENT_POLL)
        self._ending.set()

    async def _observe(self) -> None:
        while self._node is not None:
            try:
                requests = await asyncio.to_thread(self._node.requests)
            except Exception:  # noqa: BLE001 - the border to the machine's libraries: they must not end the hub
                self._fail("node")
                requests = []
            for request in requests:
                await asyncio.to_thread(self._hub.receive_metrics, request, own=True)
                if self._forwarding is not None:
                    self._forwarding("metrics", request.SerializeToString(), request)
            await asyncio.sleep(EVERY)

    async def _last_exports(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _LONGEST_GRACE and not self._hurry.is_set():
            if min(self._server.quiet_for, time.monotonic() - began) >= _QUIET:
                return
            await asyncio.sleep(0.02)

    async def _last_scrapes(self) -> None:
        seconds = self._linger
        if seconds is None:
            seconds = SCRAPED_LINGER if self._server.scraped else 0.0
        if seconds and not self._hurry.is_set():
            self._on_linger(seconds)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)

    def _tick(self) -> None:
        while not self._closing.wait(_TICK):
            try:
                self._hub.tick()
            except Exception:  # noqa: BLE001 - the border to the store: a full disk must not end the upkeep
                self._fail("maintenance")

    def _look(self) -> None:
        while not self._closing.wait(LOOK):
            self._hub.doctors.look()

    def _fail(self, work: str) -> None:
        self._hub.count("tachograph.hub.failed", 1, signal=work)
        self._log_once(
            "upkeep",
            "the hub's maintenance failed (further warnings are suppressed; see tachograph_hub_failed_total on "
            "/metrics)",
            exc_info=True,
        )


def _watch(pid: int) -> Callable[[], bool]:
    """Return a function that tells whether a process lives: not one that has its pid after it."""
    if os.getppid() == pid:
        return lambda: os.getppid() == pid
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # pidfd_open(2) came with Linux 5.3; or the process has ended
            ended = select.poll()
            ended.register(os.pidfd_open(pid), select.POLLIN)
            return lambda: not ended.poll(0)
    return lambda: is_running(pid)
