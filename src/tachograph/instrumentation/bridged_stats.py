"""What the Stats of the real torch.monitor have come to: the same gauges and sums as those of our own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tachograph.naming import check_name
from tachograph.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.registry import Registry
from tachograph.spread import Spread, Total
from tachograph.stat_series import SCOPE
from tachograph.values import Number, is_finite

STAT_EVENT = "torch.monitor.Stat"
_GAUGES = {
    "value": ("value", ""),
    "mean": ("mean", ""),
    "min": ("min", ""),
    "max": ("max", ""),
    "count": ("window.count", "{value}"),
    "sum": ("window.sum", ""),
}


class BridgedStats:
    """All Stats whose windows came over the bridge, by name; published in the scope ``torch.monitor``.

    A gauge shows what the last window told. All windows together are one histogram without buckets: as far as they
    tell their count, and their sum or their mean. The sum of a window that holds NaN is NaN: such a window is left out
    of the histogram, and its values are counted as dropped.

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
        self._last: dict[tuple[str, str], Number] = {}
        self._spreads: dict[str, Spread] = {}

    def add(self, data: Mapping[str, AttributeValue]) -> None:
        """Take the data of one ``torch.monitor.Stat`` event; what is no aggregate of a Stat is not looked at."""
        windows: dict[str, dict[str, Number]] = {}
        for key, value in data.items():
            name, _, asked = key.rpartition(".")
            if name and asked in _GAUGES and isinstance(value, int | float):
                windows.setdefault(check_name(name), {})[asked] = value
        for name, window in windows.items():
            self._last.update({(name, asked): value for asked, value in window.items()})
            self._add_up(name, window)

    def _add_up(self, name: str, window: Mapping[str, Number]) -> None:
        count = window.get("count", 0)
        if not is_finite(count) or count <= 0:
            return
        total = window.get("sum", window.get("mean", math.nan) * count)
        if "sum" not in window and "mean" not in window:
            return
        if not is_finite(total):
            self._registry.count_dropped("nonfinite", SCOPE, int(count))
            return
        before = self._spreads.get(name, Spread(0, Total(), math.inf, -math.inf, (), 0))
        self._spreads[name] = Spread(
            before.count + int(count),
            before.total.plus(total),
            _extreme(min, before.minimum, window.get("min")),
            _extreme(max, before.maximum, window.get("max")),
            (),
            0,
        )

    def points(self) -> Iterator[MetricPoints]:
        """Yield what there is to show."""
        gauge = partial(MetricPoints, SCOPE, kind="gauge")
        for (name, asked), value in self._last.copy().items():
            suffix, unit = _GAUGES[asked]
            what = f"{asked.upper()} of the last window of the Stat {name} that was closed."
            point = NumberPoint((), value, self._start)
            yield gauge(name=f"{name}.{suffix}", unit=unit, description=what, points=[point])
        for name, spread in self._spreads.copy().items():
            what = f"All values of the Stat {name}."
            yield MetricPoints(SCOPE, name, "", "histogram", what, [HistogramPoint((), spread, (), self._start, ())])


def _extreme(pick: Callable[[float, float], float], before: float, told: Number | None) -> float:
    """Return the extreme of all windows; NaN, unknown, where one of them did not tell its own."""
    return math.nan if told is None or math.isnan(before) else pick(before, float(told))
