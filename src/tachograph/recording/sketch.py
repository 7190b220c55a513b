"""A sketch: the values of a window, as far as quantiles need them, in bounded memory."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from tachograph.recording.values import numpy

EXACT = 4096
_PER_OCTAVE = 64  # buckets of equal width between two powers of two: the middle is at most 1/128 away


class Sketch:
    """The finite values of a window. Never changed once made.

    Beyond :data:`EXACT` values, each is kept as the middle of its bucket: 64 buckets of equal width an octave, so that
    no value is further than 1/128 of itself from where it was.
    """

    __slots__ = ("_buckets", "_exact")

    def __init__(self, exact: array[float] | None = None, buckets: dict[float, int] | None = None) -> None:
        self._exact = array("d") if exact is None else exact
        self._buckets = buckets

    def plus(self, finite: Sequence[float]) -> Sketch:
        """Return this sketch with more values."""
        if self._buckets is None and len(self._exact) + len(finite) <= EXACT:
            return Sketch(self._exact + array("d", finite))
        buckets = Counter(self._buckets or {})
        if self._buckets is None:
            buckets.update(_middles(self._exact))
        buckets.update(_middles(finite))
        return Sketch(array("d"), buckets)

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Return the values below which these parts (0 to 1) of all lie, NaN where there are none."""
        if self._buckets is None:
            ordered = sorted(self._exact)
            ends: Sequence[int] = range(1, len(ordered) + 1)
        else:
            ordered = sorted(self._buckets)
            ends = list(accumulate(self._buckets[middle] for middle in ordered))
        if not ordered:
            return [math.nan] * len(wanted)
        return [interpolated(ordered, ends, part) for part in wanted]


def interpolated(ordered: Sequence[float], ends: Sequence[int], part: float) -> float:
    """Return the value below which a part (0 to 1) of all lies, between two of them where it falls between.

    Args:
        ordered: the values, ascending, each once.
        ends: how many there are up to each.
        part: see above.
    """
    rank = part * (ends[-1] - 1)
    below = math.floor(rank)
    low = ordered[bisect_right(ends, below)]
    high = ordered[bisect_right(ends, min(below + 1, ends[-1] - 1))]
    share = rank - below
    between = low * (1 - share) + high * share  # not low + (high - low) * share: the difference may overflow
    return min(max(between, low), high)  # rounding leads outside of them, and one part below a smaller one


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
    if abs(value) < sys.float_info.min:  # zero, and subnormal numbers, which have not all their digits
        return float(value)
    mantissa, exponent = math.frexp(abs(value))
    step = math.floor((mantissa - 0.5) * 2 * _PER_OCTAVE)
    return math.copysign(math.ldexp(0.5 + (step + 0.5) / (2 * _PER_OCTAVE), exponent), value)
