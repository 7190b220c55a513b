"""The thread of a pipeline: it looks once a second what is new, and collects once an interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tachograph.recording.registry import Registry

TICK = 1.0  # seconds between looks at what is new: spans that ended, instruments to join

_log = logging.getLogger("tachograph")


class Ticker:
    """Calls ``tick`` until it is stopped; what that raises is counted and said.

    Args:
        interval: seconds between two calls that are to collect metrics.
        tick: told whether it is to collect metrics.
        registry: where errors are counted.
    """

    def __init__(self, interval: float, tick: Callable[[bool], object], registry: Registry) -> None:
        self._interval = interval
        self._tick = tick
        self._registry = registry
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless that was done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tachograph", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Call no more; does not wait for a call that has begun."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Tell whether it was stopped."""
        return self._stop.is_set()

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stop.wait(max(0.0, min(TICK, due - time.monotonic()))):
            metrics = time.monotonic() >= due
            if metrics:
                due = max(due + self._interval, time.monotonic())
            try:
                self._tick(metrics)
            except Exception:  # noqa: BLE001 - the one guard around background work: it is counted and said
                self._registry.count_error("pipeline")
                _log.exception("a collection failed; the next one is tried in %g s", self._interval)
