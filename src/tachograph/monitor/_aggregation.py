"""What a window can be asked for."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from tachograph.recording.summary import Summary
from tachograph.recording.values import Number, as_float


class Aggregation(enum.Enum):
    """What a :class:`~tachograph.monitor.Stat` makes of the values of a window.

    The first six and their numbers are those of ``torch.monitor.Aggregation``; percentiles and the standard deviation
    are ours. All but ``COUNT`` and ``VALUE`` are over the finite values.
    """

    VALUE = 0
    """The last value that was added."""
    MEAN = 2
    COUNT = 3
    """How many values were added, NaN and infinities included."""
    SUM = 4
    MAX = 5
    MIN = 6
    P50 = 7
    """The median: exact to 4,096 values a window, then within 1 %; between two values it is interpolated linearly."""
    P90 = 8
    P99 = 9
    STDDEV = 10
    """The standard deviation of the window's values as a population: divided by their number, not by one less."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


QUANTILES = {Aggregation.P50: 0.5, Aggregation.P90: 0.9, Aggregation.P99: 0.99}


def aggregates(found: Summary, asked: Sequence[Aggregation]) -> list[float]:
    """Return what was asked for, of the values of a summary; NaN for what no value finite says."""
    total = found.total.value()
    mean, high, low = (found.mean(), found.maximum, found.minimum) if found.count else (math.nan,) * 3
    row: list[Number] = [found.last, 0, mean, found.added, total, high, low]  # by the aggregations' numbers
    if found.sketch is not None:
        row += [min(max(part, low), high) for part in found.sketch.quantiles(list(QUANTILES.values()))]
    else:
        row += [math.nan] * len(QUANTILES)
    row.append(found.deviation())
    return [as_float(row[one.value]) for one in asked]
