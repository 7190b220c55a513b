"""The windows of Stats: the process's timer closes them on time, of any size.

Their events go to the journal at once, and to handlers in a thread of their own. A window's number is the wall clock
divided by its size, so that all ranks' windows line up. Overdue windows are closed late, together as one.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from tachograph.monitor import _event_log as event_log
from tachograph.monitor._event_log import EventLog
from tachograph.monitor.stat_series import SCOPE, StatSeries
from tachograph.monitor.stat_window import StatWindow
from tachograph.recording import journal, timer
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork, helpers_record, unblock_signals
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.points import MetricPoints
from tachograph.recording.registry import MOST_NAMES, Registry

EXIT_TIMEOUT = 1.0
_LONGEST_SLEEP = 1.0  # seconds: the wall clock may be set meanwhile
_FOLD_WAIT = 0.1
_SLICE = 0.0008  # seconds of closing between two rests, which take time themselves
_NANO = 1_000_000_000

_log = logging.getLogger("tachograph")
_log_once = LogOnce()


class _Size:
    """All windows of one size, and the number of the one that is open."""

    __slots__ = ("slot", "windows")

    def __init__(self) -> None:
        self.slot = 0
        self.windows: dict[int, StatWindow] = {}


class Windows:
    """Closes windows.

    Args:
        events: takes their events.
        registry: publishes their series.
        clock: nanoseconds since 1970.
        threaded: the timer closes them; else only :meth:`tick` does, and calls the handlers.
    """

    def __init__(
        self,
        events: EventLog,
        registry: Registry,
        *,
        clock: Callable[[], int] = time.time_ns,
        threaded: bool = True,
    ) -> None:
        self.clock = clock
        self.events = events
        self._registry = registry
        self._threaded = threaded
        dropped = registry.group(OWN_GROUP).own(DROPPED)
        self.capped = dropped.bind(reason="max_samples", destination="registry")
        self.overflowed = dropped.bind(reason="overflow", destination="registry")
        self.unread = dropped.bind(reason="no_number", destination="registry")
        self._sizes: dict[int, _Size] = {}
        self._series: dict[str, StatSeries] = {}
        self._free()

    def _free(self) -> None:
        self._changing = threading.RLock()
        self._gone: deque[StatWindow] = deque()
        self._task: timer.Task | None = None
        self._ending = False
        self._ended = threading.Event()

    def series(self, name: str, unit: str | None, boundaries: tuple[float, ...] | None) -> StatSeries:
        """Return the series of the Stats with this name.

        Raises:
            ValueError: an earlier Stat of this name has another unit, or other boundaries.
        """
        with self._changing:
            found = self._series.get(name)
            if found is None:
                if not self._series and self._registry.enabled:
                    self._registry.group(SCOPE).sources.append(self.collect)
                made = StatSeries(name, unit or "", boundaries or (), self._registry.closed_windows)
                if len(self._series) >= MOST_NAMES:  # its windows are events, as ever
                    self._registry.drop(name)
                    message = "Stat %r has no metric because there are already %d Stats; its events are still logged %s"
                    _log_once(
                        "names",
                        message,
                        name,
                        MOST_NAMES,
                        "(further warnings are suppressed; see tachograph_dropped_total on /metrics)",
                    )
                    return made
                return self._series.setdefault(name, made)
        for of, has, wanted in (("unit", found.unit, unit), ("boundaries", found.boundaries, boundaries)):
            if wanted is not None and wanted != has:
                raise ValueError(f"a Stat {name!r} already exists with {of} {has!r}: use the same {of} for all of them")
        return found

    def collect(self) -> Iterator[MetricPoints]:
        """Yield the metrics of all Stats; handlers get the events of windows that close meanwhile in their thread."""
        for series in list(self._series.values()):
            yield from series.points()
            self.events.hand_over()

    def open(self, window: StatWindow, size: int, series: StatSeries) -> None:
        """Begin to close a window whenever its time is over.

        Args:
            window: the open window of a Stat.
            size: of the window, in nanoseconds.
            series: publishes it.
        """
        window.start = self.clock()
        window.slot = window.start // size
        with self._changing:
            others = self._sizes.setdefault(size, _Size()).windows
            others[id(window)] = window
            if self._registry.enabled:
                series.add(window)
            if self._threaded and self._task is None and not self._ending:
                self._start()
        if len(others) == 1:  # its end may be the next one
            self._wake()

    def _start(self) -> None:
        self._task = timer.default.every("windows", self._until_next, self._run, registry=self._registry)
        self.events.hand_out_beside()
        atexit.unregister(self.finish)
        atexit.register(self.finish)

    def _wake(self) -> None:
        task = self._task
        if task is not None:
            task.wake()

    def end(self, window: StatWindow) -> None:
        """Log the values that a destroyed Stat still holds: now where no wait is needed, else in the timer's thread.

        Never waits: it runs where the last reference is dropped, which may be anywhere.
        """
        window.ended = True
        try:
            if not window.end(self.clock()):
                self._gone.append(window)
                self._wake()
        finally:  # also where an interrupt comes, of which the program learns nothing here
            self.events.hand_out(wait=False)

    def _run(self) -> None:
        for _ in range(len(self._gone)):
            self._gone.popleft().end(self.clock(), wait=_FOLD_WAIT)
        self.tick()

    def _until_next(self) -> float:
        now = self.clock()
        waits = [size - now % size for size, found in list(self._sizes.items()) if found.windows]
        return min([_LONGEST_SLEEP, *(wait / _NANO for wait in waits)])

    def tick(self) -> None:
        """Close every window whose time is over, in slices: no other thread waits long for the interpreter."""
        now, pace, thread = self.clock(), GilYield(_SLICE), threading.get_ident()
        outgoing = self.events.outgoing()
        for size, found in list(self._sizes.items()):
            slot = now // size
            if slot == found.slot:
                continue
            found.slot = slot
            end = slot * size
            for number, window in enumerate(list(found.windows.copy().values())):
                if slot <= window.slot:
                    _set_back(window, slot, size)
                    continue
                if window.end_small(now, end, thread):
                    if not number & 7:
                        pace()
                elif window.end(now, end, wait=_FOLD_WAIT):
                    pace()
                else:
                    found.slot = -1  # try again
                    continue
                window.slot, window.start = slot, end
                if outgoing:
                    self._pass_on()
                if window.ended and window.latest is None:
                    found.windows.pop(id(window), None)
        self._pass_on()

    def _pass_on(self) -> None:
        """Hand the events to the handlers: in their thread, as the timer's waits for nothing; without a timer, here."""
        if self._threaded:
            self.events.hand_over()
        else:
            self.events.hand_out()

    def finish(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Close every window, and hand its event out, before the process ends; afterwards nothing is closed on time.

        Called again, it closes those that have values since: a thread, or a finalizer in one, may go on meanwhile.

        Args:
            timeout: seconds that handlers may take at most.
        """
        if self._ending and not self._ended.is_set():
            self._ended.wait(timeout)
            return
        windows = [window for found in list(self._sizes.values()) for window in found.windows.copy().values()]
        if self._ending and not any(window.has_values() for window in windows):
            return
        self._ending = True
        deadline = time.monotonic() + timeout
        try:
            if self._task is not None:
                self._task.close(timeout)
            now = self.clock()
            self._pass_on()  # an interrupt may have left events
            for window in windows:
                window.end(now, wait=max(deadline - time.monotonic(), _FOLD_WAIT))
                self._pass_on()
            self.events.finish(max(deadline - time.monotonic(), 0.0))
        finally:
            self._ended.set()

    def close_open(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Close every window that has values, and hand its event out before the pipeline that delivers it ends.

        The next window begins here, and ends when this one would have ended.

        Args:
            timeout: seconds that folds in other threads may take at most.
        """
        deadline = time.monotonic() + timeout
        for found in list(self._sizes.values()):
            for window in list(found.windows.copy().values()):
                if window.has_values():
                    window.end(self.clock(), wait=max(deadline - time.monotonic(), _FOLD_WAIT))
                    self._pass_on()

    def reset_in_child(self) -> None:
        """Forget the parent process's windows, after a fork; windows close again once a Stat is made here."""
        self._free()
        for found in self._sizes.values():
            for window in found.windows.copy().values():
                window.reset()
        for series in self._series.values():
            series.reset_in_child()
        if self._threaded and helpers_record() and self._sizes:
            unblock_signals()
            self._start()


def _set_back(window: StatWindow, slot: int, size: int) -> None:
    """Set a window back with the clock.

    Set back to the previous window at most, it stays open until its own time is over. Set back farther, it becomes the
    window of the new time, and closes at its end.
    """
    if slot < window.slot - 1:
        window.slot, window.start = slot, slot * size


default = Windows(event_log.default, registries.default)
journal.default.last_words.append(default.finish)
journal.default.window_closers.append(default.close_open)

at_fork("windows", in_child=default.reset_in_child)
