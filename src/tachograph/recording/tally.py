"""What values add up to: of a chunk, of a window, of all windows. Two tallies make one."""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from tachograph.recording.spread import Sample, Spread, Total
from tachograph.recording.values import Number, Pending, as_float, fits_int64, is_finite, numpy

CHUNK = 2048  # values that a Stat adds up at once
_WORTH_PACKING = 64  # values from which on NumPy is quicker
_pack_chunk = struct.Struct(f"{CHUNK}d").pack


class Tally(NamedTuple):
    """What a number of values add up to. Never changed once made.

    ``added`` and ``last`` are of all values, the rest is of the finite ones. ``at_most[i]`` counts those up
    to the i-th boundary, ``squares`` adds up their squared distances from their mean, where that was asked for.
    """

    added: int
    nonfinite: int
    total: Total
    low: Number
    high: Number
    last: Number
    at_most: tuple[int, ...]
    squares: float
    sample: Sample | None

    def mean(self) -> float:
        """Return the mean, NaN where nothing was finite."""
        finite = self.added - self.nonfinite
        return as_float(self.total.value()) / finite if finite else math.nan

    def deviation(self) -> float:
        """Return the standard deviation of the values as a population, NaN where nothing was finite."""
        finite = self.added - self.nonfinite
        return math.sqrt(self.squares / finite) if finite else math.nan

    def spread(self) -> Spread:
        """Return it as what a histogram shows."""
        low, high = as_float(self.low), as_float(self.high)
        return Spread(self.added - self.nonfinite, self.total, low, high, self.at_most, self.nonfinite)


class Wanted(NamedTuple):
    """What is to be tallied besides count, sum, minimum and maximum."""

    boundaries: tuple[float, ...] = ()
    squares: bool = False
    sample: bool = False


_ONLY_SUMS = Wanted()


def tally_of(chunk: list[Any], wanted: Wanted, sample: Sample | None) -> tuple[Tally | None, tuple[Pending, ...]]:
    """Return what recorded values come to, and those that have not arrived. Plain finite numbers are quick.

    Args:
        chunk: what was recorded.
        wanted: what to tally.
        sample: that of the window so far.
    """
    try:
        total: Number = sum(chunk)
        if total - total == 0:
            return tally(chunk, total, chunk[-1], 0, wanted, sample=sample), ()
    except (TypeError, OverflowError):  # a device value, an integer beyond the range of floats
        pass
    late = tuple(item for item in chunk if isinstance(item, Pending))
    numbers = [
        item if isinstance(item, float) or fits_int64(item) else as_float(item)
        for item in chunk
        if not isinstance(item, Pending)
    ]
    if not numbers:
        return None, late
    finite = [number for number in numbers if is_finite(number)]
    nonfinite = len(numbers) - len(finite)
    return tally(finite, sum_of(finite), numbers[-1], nonfinite, wanted, sample=sample), late


def tally(
    finite: Sequence[Number], total: Number, last: Number, nonfinite: int, wanted: Wanted, *, sample: Sample | None
) -> Tally:
    """Return what some values add up to.

    Args:
        finite: the finite ones.
        total: their sum.
        last: the last of all.
        nonfinite: how many others there are.
        wanted: what else to tally.
        sample: that of the window so far.
    """
    sums = Total(total) if isinstance(total, int) else Total(0, total)
    if not finite:
        none = (0,) * len(wanted.boundaries)
        return Tally(nonfinite, nonfinite, sums, math.inf, -math.inf, last, none, 0.0, sample)
    np = numpy() if len(finite) >= _WORTH_PACKING else None
    low, high, at_most, squares = _described(finite, wanted) if np is None else _described_by_numpy(np, finite, wanted)
    if wanted.sample:
        sample = (sample or Sample()).plus(finite)
    return Tally(len(finite) + nonfinite, nonfinite, sums, low, high, last, at_most, squares, sample)


_Description = tuple[Number, Number, tuple[int, ...], float]


def _described(finite: Sequence[Number], wanted: Wanted) -> _Description:
    at_most: tuple[int, ...] = ()
    squares = 0.0
    if wanted.boundaries:
        ordered = sorted(finite)
        at_most = tuple([bisect_right(ordered, bound) for bound in wanted.boundaries])
    if wanted.squares:
        mean = as_float(sum_of(finite)) / len(finite)
        squares = math.fsum((value - mean) ** 2 for value in finite)
    return min(finite), max(finite), at_most, squares


def _described_by_numpy(np: Any, finite: Sequence[Number], wanted: Wanted) -> _Description:
    first = finite[0]
    if first == finite[-1] == finite[len(finite) // 2] and wanted == _ONLY_SUMS and finite.count(first) == len(finite):
        return first, first, (), 0.0  # a constant: a batch's size, a learning rate
    data = _pack_chunk(*finite) if len(finite) == CHUNK else struct.pack(f"{len(finite)}d", *finite)
    packed = np.frombuffer(data)
    at_most: tuple[int, ...] = ()
    squares = 0.0
    if wanted.boundaries:
        at_most = tuple(np.sort(packed).searchsorted(wanted.boundaries, side="right").tolist())
    if wanted.squares:
        apart = packed - packed.mean()
        squares = float(apart @ apart)
    # The methods min() and max() are wrappers in Python around these.
    return float(np.minimum.reduce(packed)), float(np.maximum.reduce(packed)), at_most, squares


def together(one: Tally, more: Tally, *, squares: bool = False) -> Tally:
    """Return what the values of two tallies add up to; ``more`` came later, and its sample holds that of ``one``."""
    here, there = one.total, more.total
    floats = here.floats + there.floats
    if abs(here.floats) >= abs(there.floats):  # Neumaier, as in Total
        lost = (here.floats - floats) + there.floats
    else:
        lost = (there.floats - floats) + here.floats
    lost += here.lost + there.lost
    return Tally(
        one.added + more.added,
        one.nonfinite + more.nonfinite,
        Total(here.integers + there.integers, floats, lost if math.isfinite(lost) else 0.0),
        min(one.low, more.low),
        max(one.high, more.high),
        more.last,
        tuple(map(int.__add__, one.at_most, more.at_most)) if more.at_most else (),
        _squares_together(one, more) if squares else 0.0,
        more.sample,
    )


def sum_of(finite: Sequence[Number]) -> Number:
    """Return the sum, an infinity where it is beyond the range of floats."""
    try:
        return math.fsum(finite) if any(isinstance(number, float) for number in finite) else sum(finite)
    except OverflowError:
        return math.copysign(math.inf, sum(number / 2**64 for number in finite))


def _squares_together(one: Tally, more: Tally) -> float:
    """Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979."""
    here, there = one.added - one.nonfinite, more.added - more.nonfinite
    if not here or not there:
        return one.squares + more.squares
    apart = more.mean() - one.mean()
    return one.squares + more.squares + apart * apart * (here * there / (here + there))
