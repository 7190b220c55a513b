"""The summary of values: of a chunk, of a window, of all that a distribution has taken. Two summaries make one."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from operator import add, sub
from typing import Any, NamedTuple

from tachograph.recording.sketch import Sketch
from tachograph.recording.values import Number, Pending, as_float, fits_int64, is_finite, numpy

CHUNK = 2048  # values that are folded at once
WORTH_PACKING = 64  # values from which on NumPy is quicker
_FLOATS_END = 2**1023
_pack_chunk = struct.Struct(f"{CHUNK}d").pack
_made: Any = tuple.__new__  # a named tuple in half of the time: each fold makes some


class Exemplar(NamedTuple):
    """One measured value and the sampled span inside which it was measured."""

    value: float
    time_unix_nano: int
    trace_id: int
    span_id: int


class Total(NamedTuple):
    """A sum that is exact for integers and compensated for floats."""

    integers: int = 0
    floats: float = 0.0
    lost: float = 0.0

    def plus(self, part: Number | Total) -> Total:
        """Return this sum with ``part`` added, a finite number or another sum."""
        integers, floats, lost = self
        if part.__class__ is float:
            more = part
        elif isinstance(part, Total):
            integers, more, lost = integers + part.integers, part.floats, lost + part.lost
        elif isinstance(part, int):
            integers, more = integers + part, 0.0
        else:
            more = part
        summed = floats + more
        if summed - summed:  # beyond the range of floats: such large ones are integers
            return Total(integers + int(more), floats, lost)
        lost += rounding(floats, more, summed)
        found: Total = _made(Total, (integers, summed, 0.0 if lost - lost else lost))
        return found

    def value(self) -> Number:
        """Return the sum: an ``int`` where only integers were added, and a float can hold it."""
        if not self.floats and not self.lost and abs(self.integers) < _FLOATS_END:
            return self.integers
        return as_float(self.integers) + (self.floats + self.lost)


def rounding(one: float, more: float, summed: float) -> float:
    """Return the part of ``one`` and ``more`` that rounding has taken from their sum.

    Source: Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974.
    """
    if one >= more >= -one or one <= more <= -one:  # abs(one) >= abs(more)
        return (one - summed) + more
    return (more - summed) + one


class ValueSummary(NamedTuple):
    """A number of values, added up. Never changed once made: a fold makes a new one.

    Attributes:
        count: of the finite values, which all the following but ``last`` are about.
        buckets: how many are in each bucket: up to each of the boundaries that were asked for, and above them all.
        nonfinite: how many other values there were.
        last: of all values.
        squares: the sum of the squared distances from the mean, where that was asked for.
        sketch: for quantiles, where that was asked for.
    """

    count: int = 0  # type: ignore[assignment] # as in the data model; a tuple's own count() has no use here
    total: Total = Total()
    minimum: float = math.inf
    maximum: float = -math.inf
    buckets: tuple[int, ...] = ()
    nonfinite: int = 0
    last: Number = 0
    squares: float = 0.0
    sketch: Sketch | None = None

    @property
    def added(self) -> int:
        """The number of values, the non-finite ones included."""
        return self.count + self.nonfinite

    @property
    def at_most(self) -> tuple[int, ...]:
        """How many values are at most each of the boundaries."""
        return tuple(accumulate(self.buckets[:-1]))

    def mean(self) -> float:
        """Return the mean, NaN where nothing was finite."""
        return as_float(self.total.value()) / self.count if self.count else math.nan

    def deviation(self) -> float:
        """Return the standard deviation of the values as a population, NaN where nothing was finite."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan

    def plus(self, later: ValueSummary, *, squares: bool = False) -> ValueSummary:
        """Return both in one; they have the same boundaries. An extreme that one of them does not know is NaN.

        Args:
            later: of the values that came after; its sketch holds that of this one.
            squares: add up the squared distances from the mean.
        """
        no_low = math.isnan(self.minimum) or math.isnan(later.minimum)
        no_high = math.isnan(self.maximum) or math.isnan(later.maximum)
        return ValueSummary(
            self.count + later.count,
            self.total.plus(later.total),
            math.nan if no_low else min(self.minimum, later.minimum),
            math.nan if no_high else max(self.maximum, later.maximum),
            tuple(map(int.__add__, self.buckets, later.buckets)),
            self.nonfinite + later.nonfinite,
            later.last,
            _squares(self, later) if squares else 0.0,
            later.sketch,
        )

    def plus_ordered(
        self, ordered: Sequence[Number], total: Number, boundaries: tuple[float, ...], nonfinite: int
    ) -> ValueSummary:
        """Return this with a few finite values more, ascending: :meth:`plus` their summary, in a third of its time.

        Args:
            ordered: the values, at least one.
            total: their sum.
            boundaries: of both.
            nonfinite: how many values came with them that are not finite.

        Raises:
            OverflowError: an integer is beyond the range of floats.
        """
        low, high, count = float(ordered[0]), float(ordered[-1]), len(ordered)
        number, so_far, minimum, maximum, before, others, *_ = self
        buckets = before
        if boundaries:
            start, end = bisect_left(boundaries, ordered[0]), bisect_left(boundaries, ordered[-1])  # of the two values
            at_most = [*map(partial(bisect_right, ordered), boundaries[start:end]), count] if end > start else [count]
            more = map(sub, at_most, (0, *at_most))
            buckets = (*before[:start], *map(add, before[start:], more), *before[end + 1 :])
        low = low if low < minimum else minimum  # noqa: FURB136 - half the time of min()
        high = high if high > maximum else maximum  # noqa: FURB136
        whole = number + count, so_far.plus(total), low, high, buckets, others + nonfinite, 0, 0.0, None
        found: ValueSummary = _made(ValueSummary, whole)
        return found


def _squares(one: ValueSummary, more: ValueSummary) -> float:
    """Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979."""
    if not one.count or not more.count:
        return one.squares + more.squares
    apart = more.mean() - one.mean()
    return one.squares + more.squares + apart * apart * (one.count * more.count / (one.count + more.count))


# A summary of count, sum and extremes alone: how many values, the three parts of their total, the least and the
# greatest one. Stats close windows by the ten thousand, and a plain tuple is made in a tenth of a Summary's time.
Bare = tuple[int, int, float, float, Number, Number]


def bare_plus(bare: Bare | None, count: int, total: Any, low: Number, high: Number) -> Bare:
    """Return a bare summary with a few values more, which are finite."""
    if bare is None:
        return (count, total, 0.0, 0.0, low, high) if total.__class__ is int else (count, 0, total, 0.0, low, high)
    added, integers, floats, lost, lowest, highest = bare
    if total.__class__ is int:
        integers += total
    else:
        summed = floats + total
        lost += rounding(floats, total, summed)
        floats = summed
        if lost - lost:
            lost = 0.0
    return (
        added + count,
        integers,
        floats,
        lost,
        low if low < lowest else lowest,  # noqa: FURB136 - half the time of min()
        high if high > highest else highest,  # noqa: FURB136
    )


def dressed(bare: Bare) -> ValueSummary:
    """Return a bare summary as a whole one."""
    count, integers, floats, lost, low, high = bare
    return ValueSummary(count, Total(integers, floats, lost), as_float(low), as_float(high))


class Wanted:
    """The parts of a summary that are wanted besides count, sum, minimum and maximum.

    Args:
        boundaries: of the buckets; ascending.
        squares: the sum of the squared distances from the mean.
        sketch: the sketch for quantiles.
        ordered: the values in their order; with boundaries they are anyway.
    """

    __slots__ = ("_packed", "boundaries", "ordered", "sketch", "squares")

    def __init__(
        self,
        boundaries: tuple[float, ...] = (),
        *,
        squares: bool = False,
        sketch: bool = False,
        ordered: bool = False,
    ) -> None:
        self.boundaries, self.squares, self.sketch, self.ordered = boundaries, squares, sketch, ordered
        self._packed: Any = None

    def bare(self) -> bool:
        """Tell whether nothing else is wanted."""
        return not (self.boundaries or self.squares or self.sketch or self.ordered)

    def packed(self, np: Any) -> Any:
        """Return the boundaries as an array of NumPy."""
        if self._packed is None:
            self._packed = np.array(self.boundaries, dtype=np.float64)
        return self._packed


def summary_of_chunk(
    chunk: list[Any], wanted: Wanted, sketch: Sketch | None = None
) -> tuple[ValueSummary | None, tuple[Pending, ...]]:
    """Return the summary of recorded values, and those that have not arrived. Plain finite numbers are quick.

    Args:
        chunk: the values, as they were recorded.
        wanted: the parts of the summary.
        sketch: that of the window so far.
    """
    try:
        total: Number = sum(chunk)
        if total - total == 0:
            return summary_of(chunk, total, wanted, last=chunk[-1], sketch=sketch), ()
    except (TypeError, OverflowError):  # a device value, an integer beyond the range of floats
        pass
    numbers, late = sorted_out(chunk)
    if not numbers:
        return None, late
    finite = [number for number in numbers if is_finite(number)]
    nonfinite = len(numbers) - len(finite)
    return summary_of(finite, sum_of(finite), wanted, nonfinite, last=numbers[-1], sketch=sketch), late


def sorted_out(chunk: list[Any]) -> tuple[list[Number], tuple[Pending, ...]]:
    """Return the numbers of a chunk, integers beyond 64 bits as floats, and the values that have not arrived."""
    late = tuple(item for item in chunk if isinstance(item, Pending))
    plain = [item for item in chunk if not isinstance(item, Pending)] if late else chunk
    return [item if isinstance(item, float) or fits_int64(item) else as_float(item) for item in plain], late


def summary_of(
    finite: Sequence[Number],
    total: Number,
    wanted: Wanted,
    nonfinite: int = 0,
    *,
    last: Number = 0,
    sketch: Sketch | None = None,
) -> ValueSummary:
    """Return the summary of some values.

    Args:
        finite: the finite ones.
        total: their sum.
        wanted: the parts of the summary.
        nonfinite: how many others there are.
        last: the last of all.
        sketch: that of the window so far.

    Raises:
        OverflowError: an integer is beyond the range of floats.
    """
    return ordered_summary_of(finite, total, wanted, nonfinite, last=last, sketch=sketch)[0]


def ordered_summary_of(
    finite: Sequence[Number],
    total: Number,
    wanted: Wanted,
    nonfinite: int = 0,
    *,
    last: Number = 0,
    sketch: Sketch | None = None,
) -> tuple[ValueSummary, Any]:
    """Return :func:`summary_of` some values, and the finite ones in their order, where the summary needed that.

    The order is an array of NumPy or a list; None where there is no finite value, or nothing wants it.
    """
    if not finite:
        none = ValueSummary(buckets=no_buckets(wanted.boundaries), nonfinite=nonfinite, last=last, sketch=sketch)
        return none, None
    np = numpy() if len(finite) >= WORTH_PACKING else None
    described = _described(finite, wanted) if np is None else _described_by_numpy(np, finite, wanted)
    low, high, buckets, squares, ordered = described
    if wanted.sketch:
        sketch = (sketch or Sketch()).plus(finite)
    sums = Total(total) if isinstance(total, int) else Total(0, total)
    found = ValueSummary(len(finite), sums, float(low), float(high), buckets, nonfinite, last, squares, sketch)
    return found, ordered


_Description = tuple[Number, Number, tuple[int, ...], float, Any]


def _described(finite: Sequence[Number], wanted: Wanted) -> _Description:
    buckets: tuple[int, ...] = ()
    squares = 0.0
    ordered = None
    if wanted.boundaries or wanted.ordered:
        ordered = sorted(finite)
        buckets = buckets_of([bisect_right(ordered, bound) for bound in wanted.boundaries], len(ordered))
    if wanted.squares:
        mean = as_float(sum_of(finite)) / len(finite)
        squares = math.fsum((value - mean) ** 2 for value in finite)
    return min(finite), max(finite), buckets, squares, ordered


def _described_by_numpy(np: Any, finite: Sequence[Number], wanted: Wanted) -> _Description:
    first = finite[0]
    if first == finite[-1] == finite[len(finite) // 2] and wanted.bare() and finite.count(first) == len(finite):
        return first, first, (), 0.0, None  # a constant: a batch's size, a learning rate
    data = _pack_chunk(*finite) if len(finite) == CHUNK else struct.pack(f"{len(finite)}d", *finite)
    squares = 0.0
    if wanted.squares:
        packed = np.frombuffer(data)
        apart = packed - packed.mean()
        squares = float(apart @ apart)
    if wanted.boundaries or wanted.ordered:
        packed = np.frombuffer(bytearray(data))
        packed.sort()
        at_most = packed.searchsorted(wanted.packed(np), side="right").tolist()
        return packed[0], packed[-1], buckets_of(at_most, len(finite)), squares, packed
    packed = np.frombuffer(data)
    # The methods min() and max() are wrappers in Python around these.
    return np.minimum.reduce(packed), np.maximum.reduce(packed), (), squares, None


def no_buckets(boundaries: Sequence[float]) -> tuple[int, ...]:
    """Return the counts of the buckets of no value."""
    return (0,) * (len(boundaries) + 1) if boundaries else ()


def buckets_of(at_most: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the counts of buckets, by how many of the values are at most each of the boundaries."""
    return tuple(map(sub, (*at_most, count), (0, *at_most))) if at_most else ()


def sum_of(finite: Sequence[Number]) -> Number:
    """Return the sum, as an integer where it is beyond the range of floats."""
    try:
        return math.fsum(finite) if any(isinstance(number, float) for number in finite) else sum(finite)
    except OverflowError:
        return sum(map(int, finite))
