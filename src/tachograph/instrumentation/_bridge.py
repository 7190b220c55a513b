"""The bridge from the real torch.monitor: its events reach the journal, its Stats the metrics as well.

torch holds a C++ mutex while it calls a handler, and a thread that logs waits for that mutex without releasing the GIL:
a handler in Python, which may lose the GIL, blocks the process for good as soon as two threads log. So the handlers
here are bound functions of C that never release the GIL: one counts, one queues. The process's timer reads the queue.
"""

from __future__ import annotations

import atexit
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakSet

from tachograph.monitor.stat_series import SCOPE, UNITS, aggregate, described
from tachograph.recording import timer
from tachograph.recording.closed_windows import Windowed, WindowHistory
from tachograph.recording.forking import at_fork, helpers_record
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.ids import NumberSequence
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import Journal
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import ValueSummary
from tachograph.recording.switch import switch
from tachograph.recording.values import Number, is_finite

STAT_EVENT = "torch.monitor.Stat"
_END = "window.end"
_GAUGES = {
    "value": "value",
    "mean": "mean",
    "min": "min",
    "max": "max",
    "count": "window.count",
    "sum": "window.sum",
}
_order = NumberSequence()


@dataclass(slots=True)
class _Known:
    """The Stats of one name, together.

    Attributes:
        end: of the last window, in nanoseconds since 1970: the next one begins there.
        last: the latest value of each gauge, by its suffix.
        summary: all windows together; None where none had the values for it.
    """

    history: WindowHistory
    end: int
    last: dict[str, Number] = field(default_factory=dict)
    summary: ValueSummary | None = None


class BridgedStats:
    """All Stats whose windows arrived over the bridge, by name; published in the scope ``torch.monitor``.

    A gauge shows the last window's value, and ``<name>.window.end`` its end: the event's time. Windows whose events
    have the count, and the sum or the mean, are together one histogram without buckets. The sum of a window that holds
    NaN is NaN: such a window is left out of the histogram, and its values are counted as dropped.

    Args:
        registry: publishes them.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.reset_in_child()
        if registry.enabled:
            registry.group(SCOPE).sources.append(self.points)

    def reset_in_child(self) -> None:
        """Forget everything, after a fork."""
        self._start = time.time_ns()
        self._known: dict[str, _Known] = {}

    def add(self, data: Mapping[str, AttributeValue], time_unix_nano: int) -> None:
        """Take one ``torch.monitor.Stat`` event; values that are no aggregates of a Stat are ignored.

        Args:
            data: the event's.
            time_unix_nano: the event's; 0 where it is not known.
        """
        windows: dict[str, dict[str, Number]] = {}
        for key, value in data.items():
            name, _, asked = key.rpartition(".")
            if name and asked in _GAUGES and isinstance(value, int | float):
                windows.setdefault(check_name(name), {})[asked] = value
        for name, window in windows.items():
            known = self._known.get(name)
            if known is None:
                history = self._registry.closed_windows.history()
                known = self._known.setdefault(name, _Known(history, self._start))
            self._close(known, window, time_unix_nano)
            self._add_up(known, window)

    def _close(self, known: _Known, window: Mapping[str, Number], end: int) -> None:
        told: dict[str, Number] = {_GAUGES[asked]: value for asked, value in window.items()}
        if end:
            told[_END] = end / 1e9
        known.last.update(told)
        if end and known.history.wanted:
            known.history.add((_order.next(), end, 0, 0, told, min(known.end, end), end))
        known.end = end or known.end

    def _add_up(self, known: _Known, window: Mapping[str, Number]) -> None:
        count = window.get("count", 0)
        if not is_finite(count) or count <= 0:
            return
        total = window.get("sum", window.get("mean", math.nan) * count)
        if "sum" not in window and "mean" not in window:
            return
        if not is_finite(total):
            self._registry.count_dropped("nonfinite", SCOPE, int(count))
            return
        before = known.summary or ValueSummary()
        known.summary = ValueSummary(
            before.count + int(count),
            before.total.plus(total),
            _extreme(min, before.minimum, window.get("min")),
            _extreme(max, before.maximum, window.get("max")),
            (),
            0,
        )

    def points(self) -> Iterator[MetricPoints]:
        """Yield the metrics."""
        for name, known in self._known.copy().items():
            until = known.history.end()
            for suffix, value in known.last.copy().items():
                point, what, unit = NumberPoint((), value, self._start), described(suffix, name), UNITS.get(suffix, "")
                windows = Windowed(known.history, until, partial(aggregate, suffix)) if known.history.wanted else None
                yield MetricPoints(SCOPE, f"{name}.{suffix}", unit, "gauge", what, [point], windows)
            if known.summary is not None:
                point_of_all = HistogramPoint((), known.summary, (), self._start, ())
                what = f"All values of the Stat {name}."
                yield MetricPoints(SCOPE, name, "", "histogram", what, [point_of_all])


def _extreme(pick: Callable[[float, float], float], before: float, told: Number | None) -> float:
    """Return the extreme of all windows; NaN, for unknown, where the event of one of them has none."""
    return math.nan if told is None or math.isnan(before) else pick(before, float(told))


LIMIT = 65_536
EVERY = 0.25  # seconds between looks at the queue: a handler that woke a thread would cost every log_event
_SOME = 0.05  # seconds of reading at one look
_SLICE = 16
_CLOSING = 1.0


_open: WeakSet[Bridge] = WeakSet()


class Bridge:
    """Receives the events of torch.monitor until it is closed, at the latest with the interpreter.

    An event is read at most a quarter of a second after it was logged, where the process is not busy. An event that the
    program changes meanwhile arrives changed, and the span in which it was logged is not known. At most 65,536 events
    wait: beyond them the oldest is dropped and counted.

    Args:
        monitor: the module ``torch.monitor``.
        journal: takes all events.
        registry: publishes Stats, and counts losses.
        stats: the Stats of an earlier bridge.
        limit: the number of events that may wait.
    """

    def __init__(
        self,
        monitor: ModuleType | Any,
        journal: Journal,
        registry: Registry,
        stats: BridgedStats | None = None,
        *,
        limit: int = LIMIT,
    ) -> None:
        self._monitor = monitor
        self._journal = journal
        self._registry = registry
        self._stats = stats or BridgedStats(registry)
        self._limit = limit
        self._waiting: deque[Any] = deque(maxlen=limit)
        self._numbers = itertools.count()
        self._looked = 0  # how often we have taken a number ourselves
        self._taken = 0
        self._dropped = 0
        self._log_once = LogOnce()
        self._free()
        # In this order the count is never behind the queue.
        handlers: tuple[Callable[[Any], object], ...] = (partial(next, self._numbers), self._waiting.append)
        self._handles = [monitor.register_event_handler(handler) for handler in handlers]
        registry.group(SCOPE).sources.insert(0, self._before_collection)
        journal.holders.add(self)
        _open.add(self)
        atexit.register(self.close)
        self._start()

    def _free(self) -> None:
        self._lock = threading.Lock()
        self._task: timer.Task | None = None

    def _start(self) -> None:
        self._task = timer.default.every(SCOPE, self._until_next, self._look, registry=self._registry)

    def _until_next(self) -> float:
        return EVERY if len(self._waiting) < self._limit // 2 else 0.0

    def _look(self) -> None:
        if self._waiting:
            self.drain(_SOME)

    def _before_collection(self) -> Iterator[MetricPoints]:
        self.drain(_CLOSING)
        if self._task is None and self._handles:  # a forked child that records on its own account
            self._start()
        return iter(())

    def hand_in(self, timeout: float, *, everything: bool, pace: Callable[[], None]) -> bool:  # noqa: ARG002 - as below
        """Read everything that waits, at a pace of its own: see :class:`tachograph.recording.holders.Holder`."""
        return self.drain(timeout)

    def give_up(self, reason: Reason) -> None:
        """Do nothing: :meth:`close` counts the values that could not be read."""

    def drain(self, timeout: float = _CLOSING) -> bool:
        """Read the events that wait at the call; False where that took longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if not self._lock.acquire(timeout=max(timeout, 0)):
            return False
        try:
            return self._drain(deadline)
        finally:
            self._lock.release()

    def _drain(self, deadline: float) -> bool:
        waiting = self._waiting
        left = len(waiting)
        if left >= self._limit:  # only a full queue has dropped anything since it was last read
            self._count_dropped()
        pace = GilYield()
        for number in range(left):
            if number % _SLICE == 0:
                pace()
                if time.monotonic() > deadline:
                    return False
            try:
                event = waiting.popleft()
            except IndexError:  # emptied by a fork
                break
            self._taken += 1
            self._take(event)
        return True

    def _take(self, event: Any) -> None:
        if not switch.on:
            return
        try:
            name, data = event.name, event.data
            self._journal.append(name, _unix_nano(event.timestamp), data)
            if name == STAT_EVENT:
                self._stats.add(data, _unix_nano(event.timestamp))
        except Exception as error:  # noqa: BLE001 - the border to torch's event, any of whose values may fail
            pass_on(error)
            self._registry.count_error(SCOPE)
            message = (
                "could not record an event of torch.monitor: %r "
                "(further warnings are suppressed; see tachograph_errors_total on /metrics)"
            )
            self._log_once("event", message, error)

    def _logged(self) -> int:
        """Return the number of logged events; each call of this counts as one, too."""
        self._looked += 1
        return next(self._numbers) - (self._looked - 1)

    def _count_dropped(self) -> None:
        # Between the two looks more may be logged: that is counted at the next look.
        dropped = self._logged() - self._taken - len(self._waiting)
        if dropped > self._dropped:
            self._registry.count_dropped("queue_full", SCOPE, dropped - self._dropped)
            self._dropped = dropped

    def close(self) -> None:
        """Restore torch.monitor, then read the events that wait. Does nothing the second time."""
        handles, self._handles = self._handles, []
        if not handles:
            return
        atexit.unregister(self.close)
        for handle in reversed(handles):
            self._monitor.unregister_event_handler(handle)
        task, self._task = self._task, None
        if task is not None:
            task.close(_CLOSING)
        self.drain(_CLOSING)
        self._count_dropped()
        if self._waiting:
            self._registry.count_dropped("shutdown", SCOPE, len(self._waiting))
        self._journal.holders.remove(self)
        self._registry.group(SCOPE).sources.remove(self._before_collection)
        _open.discard(self)

    def reset_in_child(self) -> None:
        """Forget the parent process's events, after a fork; torch's list of handlers was copied, and ours with it."""
        self._free()
        self._waiting.clear()
        self._taken, self._dropped = self._logged(), 0
        self._stats.reset_in_child()
        if helpers_record():
            self._start()


def _unix_nano(timestamp: datetime) -> int:
    """Return a time in nanoseconds since 1970; 0 for an earlier time, which OTLP cannot carry."""
    try:
        return max(0, round(timestamp.timestamp() * 1e6) * 1000)
    except (OverflowError, ValueError, OSError):  # years that the platform's C library cannot do
        return 0


def _after_fork_in_child() -> None:
    for bridge in list(_open):
        bridge.reset_in_child()


at_fork("bridges", in_child=_after_fork_in_child)
