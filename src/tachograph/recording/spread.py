"""What values come to: an exact sum, the buckets of a distribution, and an exemplar of what was in them."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from tachograph.recording.values import Number, as_float, numpy

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


EXACT = 4096
_PER_OCTAVE = 64  # buckets of equal width between two powers of two: the middle is at most 1/128 away


class Sample:
    """The finite values of a window, as far as percentiles need them. Never changed once made.

    Beyond :data:`EXACT` values, each is kept as the middle of its bucket: 64 buckets of equal width an octave, so that
    no value is further than 1/128 of itself from where it was.
    """

    __slots__ = ("_buckets", "_exact")

    def __init__(self, exact: array[float] | None = None, buckets: dict[float, int] | None = None) -> None:
        self._exact = array("d") if exact is None else exact
        self._buckets = buckets

    def plus(self, finite: Sequence[float]) -> Sample:
        """Return this sample with more values."""
        if self._buckets is None and len(self._exact) + len(finite) <= EXACT:
            return Sample(self._exact + array("d", finite))
        buckets = Counter(self._buckets or {})
        if self._buckets is None:
            buckets.update(_middles(self._exact))
        buckets.update(_middles(finite))
        return Sample(array("d"), buckets)

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Return the values below which these parts (0 to 1) of the sample lie, NaN where it is empty."""
        if self._buckets is None:
            ordered = sorted(self._exact)
            ends: Sequence[int] = range(1, len(ordered) + 1)
        else:
            ordered = sorted(self._buckets)
            ends = list(accumulate(self._buckets[middle] for middle in ordered))
        if not ordered:
            return [math.nan] * len(wanted)
        return [_interpolated(ordered, ends, part) for part in wanted]


def _interpolated(ordered: list[float], ends: Sequence[int], part: float) -> float:
    rank = part * (ends[-1] - 1)
    below = math.floor(rank)
    low = ordered[bisect_right(ends, below)]
    high = ordered[bisect_right(ends, min(below + 1, ends[-1] - 1))]
    share = rank - below
    return low * (1 - share) + high * share  # not low + (high - low) * share: the difference may overflow


def _middles(finite: Sequence[float]) -> dict[float, int]:
    """Return how many values there are in each bucket, by the bucket's middle."""
    np = numpy()
    if np is None:
        return Counter(map(_middle, finite))
    packed = np.frombuffer(struct.pack(f"{len(finite)}d", *finite))
    mantissas, exponents = np.frexp(np.abs(packed))
    steps = np.floor((mantissas - 0.5) * 2 * _PER_OCTAVE)
    middles = np.copysign(np.ldexp(0.5 + (steps + 0.5) / (2 * _PER_OCTAVE), exponents), packed)
    small = np.abs(packed) < sys.float_info.min
    middles[small] = packed[small]
    keys, counts = np.unique(middles, return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def _middle(value: float) -> float:
    if abs(value) < sys.float_info.min:  # zero, and what has not all its digits
        return float(value)
    mantissa, exponent = math.frexp(abs(value))
    step = math.floor((mantissa - 0.5) * 2 * _PER_OCTAVE)
    return math.copysign(math.ldexp(0.5 + (step + 0.5) / (2 * _PER_OCTAVE), exponent), value)
