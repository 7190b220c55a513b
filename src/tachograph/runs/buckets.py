"""The counts of a histogram: a value that can be added, like a number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


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
