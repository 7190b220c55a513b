"""The metrics of Stats: gauges of the last closed window, and one cumulative histogram a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tachograph.monitor.stat_window import StatWindow
from tachograph.recording.closed_windows import COUNT, DATA, END, ORDER, SUM, Closed, ClosedWindows, Windowed
from tachograph.recording.own_metrics import TORCH_MONITOR
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.summary import ValueSummary
from tachograph.recording.values import Number

SCOPE = TORCH_MONITOR
_FOLD_WAIT = 0.2
_MANY = 16

# Aggregations that every window has, asked for or not. The sum and the count have names of their own: `<stat>.count`
# beside a histogram `<stat>` would be two metrics of one name in Prometheus.
_ALWAYS: Mapping[str, Callable[[Closed], Number]] = {
    "window.count": lambda closed: closed[COUNT],
    "window.sum": lambda closed: closed[SUM],
    "window.end": lambda closed: closed[END] / 1e9,
}
_NAMED_APART = {"count", "sum"}
UNITS = {"window.count": "{value}", "window.end": "s"}  # those of other gauges are the Stat's


class StatSeries:
    """All Stats of one name: each has its own window, gauges show the one that closed last, sums add up.

    A gauge keeps its value until another window closes that is not empty, also where the Stat is gone.

    Args:
        name: the Stats' name.
        unit: of their values, in UCUM.
        boundaries: of the histogram's buckets.
        closed_windows: keeps closed windows for readers.

    Attributes:
        history: the closed windows of this name.
    """

    __slots__ = ("_last", "_lock", "_many", "_retired", "_start", "_windows", "boundaries", "history", "name", "unit")

    def __init__(self, name: str, unit: str, boundaries: tuple[float, ...], closed_windows: ClosedWindows) -> None:
        self.name = name
        self.unit = unit
        self.boundaries = boundaries
        self._lock = threading.RLock()
        self._start = time.time_ns()
        self.history = closed_windows.history()
        self._windows: dict[StatWindow, int] = {}  # to the order of its last window that was noted
        self._last: dict[str, tuple[int, Number]] = {}  # by suffix: a gauge's value, and its window's order
        self._many = _MANY
        self._retired: ValueSummary | None = None

    def add(self, window: StatWindow) -> None:
        """Publish one more Stat of this name."""
        with self._lock:
            if len(self._windows) >= self._many:
                self._retire()
                self._many = max(_MANY, 2 * len(self._windows))
            self._windows[window] = 0

    def _retire(self) -> None:
        """Replace the Stats that are gone by their totals."""
        for window in list(self._windows):
            if window.ended and window.latest is None and not window.buffer:
                self._retired = _sum(self._retired, window.summary())
                self._note(window)
                del self._windows[window]

    def reset_in_child(self) -> None:
        """Forget the counts of the parent process."""
        self._lock = threading.RLock()
        self._start = time.time_ns()
        self._retired = None
        self._last = {}
        self._windows = {window: 0 for window in self._windows if not window.ended}

    def points(self) -> Iterator[MetricPoints]:
        """Fold, then yield the metrics."""
        with self._lock:
            self._retire()
            windows, total = list(self._windows), self._retired
        for window in windows:
            window.fold(wait=_FOLD_WAIT)
            total = _sum(total, window.summary())
        if total is None:
            return
        until = self.history.end()  # before it is noted which gauges there are: each of these windows has its own
        with self._lock:
            for window in windows:
                self._note(window)
            last = list(self._last.items())
        if total.count:
            histogram = HistogramPoint((), total, self.boundaries, self._start, ())
            what = f"All values of the Stat {self.name}."
            yield MetricPoints(SCOPE, self.name, self.unit, "histogram", what, [histogram])
        if total.nonfinite:
            what = f"Values of the Stat {self.name} that were NaN or infinite."
            point = NumberPoint((), total.nonfinite, self._start)
            yield MetricPoints(SCOPE, f"{self.name}.nonfinite", "{value}", "counter", what, [point])
        for suffix, (_, value) in last:
            yield self._gauge(suffix, value, until)

    def _note(self, window: StatWindow) -> None:
        """Remember the last window of a Stat: the gauges show it, also after the Stat is gone."""
        closed = window.shown
        if closed is None or self._windows.get(window, closed[ORDER]) == closed[ORDER]:
            return
        self._windows[window] = closed[ORDER]
        found = {asked.name.lower(): value for asked, value in window.aggregates_of(closed).items()}
        found.update({suffix: value(closed) for suffix, value in _ALWAYS.items()})
        for suffix, value in found.items():
            if suffix not in _NAMED_APART and self._last.get(suffix, (0,))[0] < closed[ORDER]:
                self._last[suffix] = (closed[ORDER], value)

    def _gauge(self, suffix: str, value: Number, until: int) -> MetricPoints:
        name, windows = f"{self.name}.{suffix}", None
        if self.history.wanted:
            windows = Windowed(self.history, until, _ALWAYS.get(suffix) or partial(aggregate, name))
        point = NumberPoint((), value, self._start)
        what = described(suffix, self.name)
        return MetricPoints(SCOPE, name, UNITS.get(suffix, self.unit), "gauge", what, [point], windows)


def described(suffix: str, name: str) -> str:
    """Return the description of a gauge of windows."""
    what = "Unix time of the end" if suffix == "window.end" else suffix.removeprefix("window.").upper()
    return f"{what} of the last window of the Stat {name} that was closed."


def aggregate(key: str, closed: Closed) -> Number | None:
    """Return the value of a key in the event of a window; None where there is none."""
    data = closed[DATA]
    found: Mapping[str, Number] = data[0](*data[1:]) if isinstance(data, tuple) else data
    return found.get(key)


def _sum(one: ValueSummary | None, more: ValueSummary | None) -> ValueSummary | None:
    return one or more if one is None or more is None else one.plus(more)
