"""What values come to: an exact sum, the buckets of a distribution, and an exemplar of what was in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.recording.values import Number, as_float

_FLOATS_END = 2**1023


class Exemplar(NamedTuple):
    """One measured value and the sampled span inside which it was measured."""

    value: float
    time_unix_nano: int
    trace_id: int
    span_id: int


class Total(NamedTuple):
    """A sum that is exact for integers and compensated (Neumaier) for floats."""

    integers: int = 0
    floats: float = 0.0
    lost: float = 0.0

    def plus(self, part: Number) -> Total:
        """Return this sum with ``part`` added."""
        if isinstance(part, int):
            return Total(self.integers + part, self.floats, self.lost)
        summed = self.floats + part
        if summed - summed:  # beyond the range of floats: such large ones are integers
            return Total(self.integers + int(part), self.floats, self.lost)
        if abs(self.floats) >= abs(part):
            lost = self.lost + ((self.floats - summed) + part)
        else:
            lost = self.lost + ((part - summed) + self.floats)
        return Total(self.integers, summed, lost if math.isfinite(lost) else 0.0)

    def value(self) -> Number:
        """Return the sum: an ``int`` where only integers were added, and a float can hold it."""
        if not self.floats and not self.lost and abs(self.integers) < _FLOATS_END:
            return self.integers
        return as_float(self.integers) + (self.floats + self.lost)


@dataclass(slots=True)
class Spread:
    """What a distribution has added up.

    ``at_most[i]`` counts the values <= ``boundaries[i]``; ``count`` and the sum are over the finite values, and
    ``nonfinite`` counts the others. Never changed once made: a fold makes a new one.
    """

    count: int
    total: Total
    minimum: float
    maximum: float
    at_most: tuple[int, ...]
    nonfinite: int

    def plus(self, more: Spread) -> Spread:
        """Return both in one; they have the same boundaries. An extreme that one of them does not know is NaN."""
        no_low = math.isnan(self.minimum) or math.isnan(more.minimum)
        no_high = math.isnan(self.maximum) or math.isnan(more.maximum)
        return Spread(
            self.count + more.count,
            Total(self.total.integers + more.total.integers, self.total.floats, self.total.lost)
            .plus(more.total.floats)
            .plus(more.total.lost),
            math.nan if no_low else min(self.minimum, more.minimum),
            math.nan if no_high else max(self.maximum, more.maximum),
            tuple(map(int.__add__, self.at_most, more.at_most)),
            self.nonfinite + more.nonfinite,
        )


def no_values(boundaries: tuple[float, ...]) -> Spread:
    """Return what a distribution of these boundaries starts with."""
    return Spread(0, Total(), math.inf, -math.inf, (0,) * len(boundaries), 0)
