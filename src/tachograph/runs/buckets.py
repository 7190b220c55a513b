"""The values of a histogram, which can be added like numbers: counts by explicit bounds, and how they spread."""

from __future__ import annotations

import base64
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.spread import unpack_histogram

QUANTILE_ERROR = 0.0225  # of a spread at scale 4: what has a larger one is to say so
_ENOUGH = 0.9  # of the values: the spread of fewer is not that of all


@dataclass(slots=True, eq=True)
class Buckets:
    """Counts of a histogram; never changed once made.

    Attributes:
        count: number of values.
        total: their sum.
        counts: number of values in each bucket, the last one being that above every bound; empty without bounds.
        bounds: upper bounds of the buckets but the last, ascending.
    """

    count: int
    total: float
    counts: tuple[int, ...]
    bounds: tuple[float, ...]

    def __add__(self, later: Buckets) -> Buckets:
        """Return both together, in the buckets of the later one."""
        mine = self if self.bounds == later.bounds else self.rebucketed(later.bounds)
        counts = tuple(map(int.__add__, mine.counts, later.counts))
        return Buckets(self.count + later.count, self.total + later.total, counts, later.bounds)

    def __sub__(self, earlier: Buckets) -> Buckets:
        """Return the values since an earlier state; no bucket is negative, and all add up to the count at most."""
        theirs = earlier if earlier.bounds == self.bounds else earlier.rebucketed(self.bounds)
        counts, left = [], self.count - earlier.count
        for mine, before in zip(self.counts, theirs.counts, strict=True):
            counts.append(min(left, max(0, mine - before)))
            left -= counts[-1]
        return Buckets(self.count - earlier.count, self.total - earlier.total, tuple(counts), self.bounds)

    def __lt__(self, other: Buckets) -> bool:
        """Tell whether fewer values were counted."""
        return self.count < other.count

    def at_most(self) -> tuple[int, ...]:
        """Return the cumulative counts: the number of values at most each bound."""
        return tuple(accumulate(self.counts[:-1]))

    def rebucketed(self, bounds: Sequence[float]) -> Buckets:
        """Return the same values in other buckets.

        At a bound that both have, the cumulative count is exact; at another one it is that of the next lower bound, so
        that a shown count never goes back.
        """
        if not bounds:
            return Buckets(self.count, self.total, (), ())
        known = (0, *self.at_most())
        at_most = [known[bisect_right(self.bounds, bound)] for bound in bounds]
        ends = (*at_most, self.count)
        counts = (ends[0], *map(int.__sub__, ends[1:], ends))
        return Buckets(self.count, self.total, counts, tuple(bounds))


@dataclass(slots=True, frozen=True)
class HistogramValues:
    """The values of a histogram, over its whole lifetime or in one interval.

    Attributes:
        count: number of values.
        total: their sum.
        spread: their exponential histogram; None if there is none.
        buckets: their counts by explicit bounds; None if there are none.
    """

    count: int
    total: float
    spread: ExponentialHistogram | None = None
    buckets: Buckets | None = None

    def plus(self, more: HistogramValues) -> HistogramValues:
        """Return the values of both histograms together."""
        spread = self.spread.plus(more.spread) if self.spread and more.spread else self.spread or more.spread
        buckets = self.buckets + more.buckets if self.buckets and more.buckets else None
        return HistogramValues(self.count + more.count, self.total + more.total, spread, buckets)

    @property
    def mean(self) -> float:
        """The mean; NaN without values."""
        return self.total / self.count if self.count else math.nan

    @property
    def minimum(self) -> float:
        """The smallest value; NaN if it is not known."""
        return self.spread.minimum if self.spread else math.nan

    @property
    def maximum(self) -> float:
        """The largest value; NaN if it is not known."""
        return self.spread.maximum if self.spread else math.nan

    def quantile(self, part: float) -> float:
        """Return a quantile (0 to 1) of the values; NaN if it is not known."""
        return self.quantiles((part,))[0]

    def quantiles(self, parts: Sequence[float]) -> list[float]:
        """Return several quantiles (0 to 1) of the values; NaN for those that are not known."""
        spread = self._told()
        return spread.quantiles(parts) if spread else [self._located(part)[0] for part in parts]

    def error(self, parts: Sequence[float]) -> float:
        """Return the largest relative error of these quantiles; infinity if it is not known."""
        spread = self._told()
        if spread:
            return spread.error()
        return max((error for value, error in map(self._located, parts) if not math.isnan(value)), default=math.nan)

    def _told(self) -> ExponentialHistogram | None:
        """Return the spread where it is that of nearly all values."""
        return self.spread if self.spread and self.spread.total >= max(1.0, _ENOUGH * self.count) else None

    def _located(self, part: float) -> tuple[float, float]:
        """Return a quantile by the explicit bounds, and how far it may be off.

        Within a bucket values are assumed to lie evenly, from 0 on in the first one; above the last bound the result is
        that bound.
        """
        of = self.buckets
        if not self.count or of is None or not of.bounds:
            return math.nan, math.nan
        if self.count == 1:
            return self.total, 0.0
        wanted = part * of.count
        for place, reached in enumerate(accumulate(of.counts)):
            if reached >= wanted and of.counts[place]:
                if place == len(of.bounds):
                    break
                upper = of.bounds[place]
                lower = of.bounds[place - 1] if place else min(0.0, upper)
                value = lower + (upper - lower) * (wanted - reached + of.counts[place]) / of.counts[place]
                ends = [abs(end) for end in (lower, upper)] if lower * upper > 0 else [0.0]
                return value, max(abs(abs(value) / end - 1) if end else math.inf for end in ends)
        return of.bounds[-1], math.inf


def state_value(state: str) -> HistogramValues | float | None:
    """Return the value that a series shows, from its saved state: see :meth:`tachograph.hub._series.HubSeries.shown`.

    Raises:
        ValueError, TypeError, LookupError: it is not legible.
    """
    parts: list[Any] = json.loads(state)
    value, before = (
        Buckets(part[0], part[1], tuple(part[2]), tuple(part[3])) if isinstance(part, list) else part
        for part in parts[2:4]
    )
    found: Buckets | float | None = value if before is None else before if value is None else before + value
    if not isinstance(found, Buckets):
        return found
    spread = unpack_histogram(base64.b64decode(parts[8], validate=True)) if len(parts) > 8 and parts[8] else None  # noqa: PLR2004 - see HubSeries.snapshot
    return HistogramValues(found.count, found.total, spread, found)
