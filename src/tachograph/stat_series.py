"""What leaves of all Stats: gauges of the last closed window, and one cumulative histogram a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tachograph.aggregation import Aggregation
from tachograph.naming import Kind
from tachograph.own_metrics import TORCH_MONITOR
from tachograph.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.stat_window import StatWindow
from tachograph.tally import Tally, together
from tachograph.values import Number

SCOPE = TORCH_MONITOR
_FOLD_WAIT = 0.2
_MANY = 16

# The sum and the count of a window have names of their own: `<stat>.count` beside a histogram `<stat>` would be two
# metrics of one name in Prometheus.
_WINDOW_NAMES = {Aggregation.COUNT: "window.count", Aggregation.SUM: "window.sum"}
_NO_UNIT = {Aggregation.COUNT: "{value}"}


class StatSeries:
    """All Stats of one name: each has its own window, gauges show the one that closed last, sums add up.

    Args:
        name: the Stats' name.
        unit: of their values, in UCUM.
        boundaries: of the histogram's buckets.
    """

    __slots__ = ("_lock", "_many", "_retired", "_start", "_windows", "boundaries", "name", "unit")

    def __init__(self, name: str, unit: str, boundaries: tuple[float, ...]) -> None:
        self.name = name
        self.unit = unit
        self.boundaries = boundaries
        self._lock = threading.RLock()
        self._start = time.time_ns()
        self._windows: list[StatWindow] = []
        self._many = _MANY
        self._retired: Tally | None = None

    def add(self, window: StatWindow) -> None:
        """Publish one more Stat of this name."""
        with self._lock:
            if len(self._windows) >= self._many:
                self._retire()
                self._many = max(_MANY, 2 * len(self._windows))
            self._windows.append(window)

    def _retire(self) -> None:
        """Keep of the Stats that are gone only what they came to."""
        kept: list[StatWindow] = []
        for window in self._windows:
            if window.ended and window.latest is None and not window.buffer:
                self._retired = _sum(self._retired, window.total())
            else:
                kept.append(window)
        self._windows = kept

    def reset_in_child(self) -> None:
        """Forget everything that the parent process has counted."""
        self._lock = threading.RLock()
        self._start = time.time_ns()
        self._retired = None
        self._windows = [window for window in self._windows if not window.ended]

    def points(self) -> Iterator[MetricPoints]:
        """Fold, then yield what there is to show."""
        with self._lock:
            self._retire()
            windows, total = list(self._windows), self._retired
        for window in windows:
            window.fold(wait=_FOLD_WAIT)
            total = _sum(total, window.total())
        if total is None:
            return
        if total.added > total.nonfinite:
            histogram = HistogramPoint((), total.spread(), self.boundaries, self._start, ())
            what = f"All values of the Stat {self.name}."
            yield MetricPoints(SCOPE, self.name, self.unit, "histogram", what, [histogram])
        if total.nonfinite:
            what = f"Values of the Stat {self.name} that were NaN or infinite."
            yield self._number("nonfinite", "{value}", "counter", what, total.nonfinite)
        yield from self._gauges(windows)

    def _gauges(self, windows: list[StatWindow]) -> Iterator[MetricPoints]:
        newest: dict[Aggregation, tuple[int, Number]] = {}
        for window in windows:
            latest = window.latest
            if latest is None:
                continue
            order, _, added, total, _ = latest
            found = {**window.aggregates_of(latest), Aggregation.COUNT: added, Aggregation.SUM: total}
            for asked, value in found.items():
                if asked not in newest or newest[asked][0] < order:
                    newest[asked] = (order, value)
        for asked, (_, value) in newest.items():
            what = f"{asked.name} of the last window of the Stat {self.name} that was closed."
            name = _WINDOW_NAMES.get(asked, asked.name.lower())
            yield self._number(name, _NO_UNIT.get(asked, self.unit), "gauge", what, value)

    def _number(self, suffix: str, unit: str, kind: Kind, what: str, value: Number) -> MetricPoints:
        point = NumberPoint((), value, self._start)
        return MetricPoints(SCOPE, f"{self.name}.{suffix}", unit, kind, what, [point])


def _sum(one: Tally | None, more: Tally | None) -> Tally | None:
    return one or more if one is None or more is None else together(one, more)
