"""What the Stats of the real torch.monitor have come to: the same gauges and sums as those of our own."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tachograph.monitor.stat_series import SCOPE, UNITS, aggregate, described
from tachograph.recording.closed_windows import Windowed, WindowHistory
from tachograph.recording.naming import check_name
from tachograph.recording.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.spread import Spread, Total
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
_order = itertools.count(1)


@dataclass(slots=True)
class _Known:
    """What is known of all Stats of one name.

    Attributes:
        end: when the last window was closed, in nanoseconds since 1970: the next one begins there.
        last: what it told, or an earlier one, by the suffix of the gauge.
        spread: all windows together; None where none told enough.
    """

    history: WindowHistory
    end: int
    last: dict[str, Number] = field(default_factory=dict)
    spread: Spread | None = None


class BridgedStats:
    """All Stats whose windows came over the bridge, by name; published in the scope ``torch.monitor``.

    A gauge shows what the last window told, and ``<name>.window.end`` when it was closed: the event's time. All windows
    together are one histogram without buckets: as far as they tell their count, and their sum or their mean. The sum of
    a window that holds NaN is NaN: such a window is left out of the histogram, and its values are counted as dropped.

    Args:
        registry: where they are published.
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
        """Take one ``torch.monitor.Stat`` event; what is no aggregate of a Stat is not looked at.

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
            known.history.add((next(_order), end, 0, 0, told, min(known.end, end), end))
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
        before = known.spread or Spread(0, Total(), math.inf, -math.inf, (), 0)
        known.spread = Spread(
            before.count + int(count),
            before.total.plus(total),
            _extreme(min, before.minimum, window.get("min")),
            _extreme(max, before.maximum, window.get("max")),
            (),
            0,
        )

    def points(self) -> Iterator[MetricPoints]:
        """Yield what there is to show."""
        for name, known in self._known.copy().items():
            until = known.history.end()
            for suffix, value in known.last.copy().items():
                point, what, unit = NumberPoint((), value, self._start), described(suffix, name), UNITS.get(suffix, "")
                windows = Windowed(known.history, until, partial(aggregate, suffix)) if known.history.wanted else None
                yield MetricPoints(SCOPE, f"{name}.{suffix}", unit, "gauge", what, [point], windows)
            if known.spread is not None:
                point_of_all = HistogramPoint((), known.spread, (), self._start, ())
                what = f"All values of the Stat {name}."
                yield MetricPoints(SCOPE, name, "", "histogram", what, [point_of_all])


def _extreme(pick: Callable[[float, float], float], before: float, told: Number | None) -> float:
    """Return the extreme of all windows; NaN, unknown, where one of them did not tell its own."""
    return math.nan if told is None or math.isnan(before) else pick(before, float(told))
