"""Base-2 exponential histograms: counts of values in buckets whose width is a share of the value.

At scale ``s`` the bucket ``i`` holds the values in ``(base**i, base**(i + 1)]``, where ``base`` is ``2 ** 2 ** -s``;
negative values have buckets of their own by their magnitude, and zero is counted apart. Each coarser scale joins two
neighbours. Source: OpenTelemetry specification, "Metrics Data Model", ExponentialHistogram.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, repeat
from operator import sub
from struct import pack
from typing import Any, NamedTuple

from tachograph.recording.sketch import interpolated
from tachograph.recording.values import numpy

FINEST = 8  # the finest scale that is used: 256 buckets between a power of two and the next
BUCKETS = 324  # of an interval for our own hub: 20 powers of two at scale 4, and two buckets more at each end
SDK_BUCKETS = 160  # the default of the specification's aggregation
_SMALLEST = sys.float_info.min
_PARTS = 2**FINEST  # buckets between a power of two and the next
_COARSEST = -10  # all floats of a sign are in two buckets
_FEW = 127  # values that are kept as they are: a KiB instead of 5, and most series have no more in an interval
_MARGIN = 8  # keys beyond the values so far
_ROUNDED = 1e-6  # of a bucket: so far from its bounds a logarithm is right, whatever its rounding
_EXACT = 2**53  # a float holds each smaller integer
_made: Any = tuple.__new__  # a named tuple in half of the time: each fold makes one
_ALIKE = 64  # bounds of a side begin at a multiple of it, where there is room


class ExponentialBuckets(NamedTuple):
    """Counts of neighbouring buckets, the first of which has the index ``offset``; no counts where there is none."""

    offset: int = 0
    counts: tuple[int, ...] = ()

    def coarser(self, steps: int) -> ExponentialBuckets:
        """Return the buckets of a scale that is lower by ``steps``."""
        if not steps or not self.counts:
            return self
        offset = self.offset >> steps
        counts = [0] * (((self.offset + len(self.counts) - 1) >> steps) - offset + 1)
        for index, count in enumerate(self.counts, self.offset):
            counts[(index >> steps) - offset] += count
        return ExponentialBuckets(offset, tuple(counts))

    def plus(self, more: ExponentialBuckets) -> ExponentialBuckets:
        """Return the buckets of both, which have the same scale."""
        if not self.counts or not more.counts:
            return self if self.counts else more
        offset = min(self.offset, more.offset)
        counts = [0] * (max(self.offset + len(self.counts), more.offset + len(more.counts)) - offset)
        for one in (self, more):
            for index, count in enumerate(one.counts, one.offset - offset):
                counts[index] += count
        return ExponentialBuckets(offset, tuple(counts))


_NO_BUCKETS = ExponentialBuckets()


class ExponentialHistogram(NamedTuple):
    """Counts of finite values by base-2 buckets.

    Attributes:
        scale: of both sides.
        zeros: how many values are zero.
        positive: the buckets of values above zero.
        negative: the buckets of values below zero, by their magnitude.
        minimum: the least value; NaN where it is not known.
        maximum: the greatest value; NaN where it is not known.
    """

    scale: int = FINEST
    zeros: int = 0
    positive: ExponentialBuckets = _NO_BUCKETS
    negative: ExponentialBuckets = _NO_BUCKETS
    minimum: float = math.nan
    maximum: float = math.nan

    @property
    def total(self) -> int:
        """The number of values."""
        return self.zeros + sum(self.positive.counts) + sum(self.negative.counts)

    @property
    def is_empty(self) -> bool:
        """Whether there is no value: quicker than :attr:`total`."""
        return not (self.zeros or any(self.positive.counts) or any(self.negative.counts))

    def at_scale(self, scale: int) -> ExponentialHistogram:
        """Return the same values at a scale that is as coarse, or coarser."""
        steps = self.scale - scale
        return self._replace(scale=scale, positive=self.positive.coarser(steps), negative=self.negative.coarser(steps))

    def plus(self, more: ExponentialHistogram, most: int = BUCKETS) -> ExponentialHistogram:
        """Return the values of both, at the finest scale of both that needs at most ``most`` buckets a side.

        An extreme that one of them does not know is NaN.
        """
        if self.is_empty or more.is_empty:
            return (more if self.is_empty else self).within(most)
        scale = min(self.scale, more.scale)
        one, two = self.at_scale(scale), more.at_scale(scale)
        found = ExponentialHistogram(
            scale,
            one.zeros + two.zeros,
            one.positive.plus(two.positive),
            one.negative.plus(two.negative),
            one.minimum if one.minimum <= two.minimum or math.isnan(one.minimum) else two.minimum,
            one.maximum if one.maximum >= two.maximum or math.isnan(one.maximum) else two.maximum,
        )
        return found.within(most)

    def within(self, most: int) -> ExponentialHistogram:
        """Return the same values at the finest scale of theirs that needs at most ``most`` buckets a side."""
        found = self
        while max(len(found.positive.counts), len(found.negative.counts)) > most:
            found = found.at_scale(found.scale - 1)
        return found

    def at_most(self, bound: float) -> int:
        """Return how many values are at most ``bound``, those in its bucket by the bucket's middle."""
        below = sum(count for index, count in _listed(self.negative) if -_middle(index, self.scale) <= bound)
        above = sum(count for index, count in _listed(self.positive) if _middle(index, self.scale) <= bound)
        return below + above + (self.zeros if bound >= 0 else 0)

    def quantiles(self, parts: Sequence[float]) -> list[float]:
        """Return the values below which these parts (0 to 1) of all lie; NaN where there is no value.

        A value counts as the middle of its bucket, by ratio, so that the error is at most half a bucket's width:
        2.2 % at scale 4. None lies outside of the extremes.

        """
        minimum, maximum = self.minimum, self.maximum
        below = [(-_middle(index, self.scale), count) for index, count in _listed(self.negative)]
        above = [(_middle(index, self.scale), count) for index, count in _listed(self.positive)]
        ordered = [*reversed(below), *([(0.0, self.zeros)] if self.zeros else ()), *above]
        ends = list(accumulate(count for _, count in ordered))
        if not ends:
            return [math.nan] * len(parts)
        low = -math.inf if math.isnan(minimum) else minimum
        high = math.inf if math.isnan(maximum) else maximum
        middles = [min(max(middle, low), high) for middle, _ in ordered]
        found = [interpolated(middles, ends, part) for part in parts]
        known = {0.0: minimum, 1.0: maximum}  # exactly
        return [
            value if math.isnan(known.get(part, math.nan)) else known[part]
            for part, value in zip(parts, found, strict=True)
        ]

    def error(self) -> float:
        """Return how far a quantile may be from the value, as a share of it: half a bucket's width, by ratio."""
        return math.expm1(math.ldexp(math.log(2) / 2, -self.scale)) if self.scale > _COARSEST else math.inf


class _Side(NamedTuple):
    """The values of one sign, by magnitude: how many are at most each bound. Never changed once made.

    There are bounds for ``most`` neighbouring buckets; those around the values so far are the keys, with a few more at
    both ends, so that the next values rarely need others. They are arrays of NumPy where the program has it.
    """

    scale: int
    first: int  # the index of the lowest bucket
    bounds: Any
    start: int  # of the keys among the bounds
    keys: Any
    at_most: Any  # of the keys
    floor: float  # all values are above the first key
    ceiling: float  # and at most the last one
    number: int
    least: float
    greatest: float

    def plus(self, ordered: Any, low: float, high: float, most: int) -> _Side:
        """Return the side with more values, which are above zero and ascending: an array of NumPy, or a list.

        Values with fewer than all digits count as the smallest one that has them all, as the SDK has it.
        """
        least = low if low < self.least else self.least  # noqa: FURB136 - half the time of min()
        greatest = high if high > self.greatest else self.greatest  # noqa: FURB136
        is_list = ordered.__class__ is list
        if low < _SMALLEST:
            ordered = [max(value, _SMALLEST) for value in ordered] if is_list else ordered.clip(_SMALLEST)
            low, high = max(low, _SMALLEST), max(high, _SMALLEST)
        side = self
        if low <= side.floor or high > side.ceiling or (side.at_most.__class__ is list) is not is_list:
            side = side._wider(None if is_list else numpy(), max(least, _SMALLEST), max(greatest, _SMALLEST), most)
        scale, first, bounds, start, keys, at_most, floor, ceiling, number, _, _ = side
        if is_list:
            at_most = [count + bisect_right(ordered, key) for count, key in zip(at_most, keys, strict=True)]
        else:
            at_most = at_most + ordered.searchsorted(keys, "right")
        number += len(ordered)
        return _Side(scale, first, bounds, start, keys, at_most, floor, ceiling, number, least, greatest)

    def _wider(self, np: Any, low: float, high: float, most: int) -> _Side:
        """Return the side with keys that hold ``low`` to ``high``, at the finest scale for which there are enough."""
        scale, first = self.scale, self.first
        last, lowest = _index(high, scale) + 1, _index(low, scale) - 1  # log2 is rounded
        if not self.number or lowest < first or last >= first + most:
            while last - lowest >= most:
                scale -= 1
                last, lowest = _index(high, scale) + 1, _index(low, scale) - 1
            spare = most - (last - lowest + 1)
            first = lowest - spare // 2
            first -= first % min(_ALIKE, spare - spare // 2 + 1)
        start, end = max(lowest - first - _MARGIN, 0), min(last - first + 2 + _MARGIN, most + 1)
        at_most = [self._below(((first + place) << (self.scale - scale)) - self.first) for place in range(start, end)]
        bounds = _bounds(first, most, scale) if np is None else _packed_bounds(np, first, most, scale)
        return self._replace(
            scale=scale,
            first=first,
            bounds=bounds,
            start=start,
            keys=bounds[start:end],
            at_most=at_most if np is None else np.array(at_most, dtype=np.int64),
            floor=float(bounds[start]),
            ceiling=float(bounds[end - 1]),
        )

    def _below(self, place: int) -> int:
        """Return how many values are at most a bound, by its place among the bounds, or beyond them."""
        place -= self.start
        return 0 if place < 0 else int(self.at_most[place]) if place < len(self.at_most) else self.number

    def buckets(self) -> ExponentialBuckets:
        """Return the counts of its buckets, without the empty ones at both ends."""
        if not self.number:
            return ExponentialBuckets()
        ends = self.at_most if self.at_most.__class__ is list else self.at_most.tolist()
        start, end = bisect_right(ends, 0), bisect_left(ends, self.number)
        counts = tuple(map(int.__sub__, ends[start : end + 1], ends[start - 1 : end]))
        return ExponentialBuckets(self.first + self.start + start - 1, counts)


_NONE = _Side(FINEST, 0, (), 0, (), (), math.inf, 0.0, 0, math.inf, 0.0)


class ExponentialCounts(NamedTuple):
    """Values, counted so far. Never changed once made: a fold makes a new one.

    Attributes:
        most: buckets of a side, at most.
        few: the values themselves as they came, as long as they are few: then nothing is in the last three.
        number: of those few.
        zeros: how many values are zero.
        positive: the values above zero.
        negative: the values below zero.
    """

    most: int = BUCKETS
    few: tuple[Any, ...] = ()
    number: int = 0
    zeros: int = 0
    positive: _Side = _NONE
    negative: _Side = _NONE

    def plus(self, ordered: Any) -> ExponentialCounts:
        """Return the counts with more values.

        Args:
            ordered: finite values, ascending, at least one: an array of NumPy, or a list.
        """
        most, few, number, zeros, positive, negative = self
        if few or len(ordered) <= _FEW:
            if not (zeros or positive.number or negative.number):
                number += len(ordered)
                few = *few, ordered
                if number <= _FEW:
                    kept: ExponentialCounts = _made(ExponentialCounts, (most, few, number, 0, _NONE, _NONE))
                    return kept
            else:
                few = (ordered,)
            np = numpy()
            ordered = sorted(map(float, chain.from_iterable(few)))
            ordered = ordered if np is None else np.array(ordered)
        low, high = float(ordered[0]), float(ordered[-1])
        if low > 0:
            return ExponentialCounts(self.most, (), 0, zeros, positive.plus(ordered, low, high, self.most), negative)
        is_list = ordered.__class__ is list
        if is_list:
            below, upto = bisect_left(ordered, 0.0), bisect_right(ordered, 0.0)
        else:
            below = int(ordered.searchsorted(0.0)) if low < 0 else 0
            upto = int(ordered.searchsorted(0.0, "right"))
        if upto < len(ordered):
            positive = positive.plus(ordered[upto:], float(ordered[upto]), high, self.most)
        if below:
            magnitudes = [-value for value in reversed(ordered[:below])] if is_list else -ordered[:below][::-1]
            negative = negative.plus(magnitudes, float(magnitudes[0]), -low, self.most)
        return ExponentialCounts(self.most, (), 0, zeros + upto - below, positive, negative)

    def extremes(self) -> tuple[float, float]:
        """Return the least and the greatest of the few."""
        few = self.few
        return float(min([part[0] for part in few])), float(max([part[-1] for part in few]))

    def histogram(self) -> ExponentialHistogram:
        """Return the histogram of the values, at the finest scale that both sides have."""
        if self.few:
            low, high = self.extremes()
            few = list(chain.from_iterable(self.few))
            if high >= _EXACT or low < _SMALLEST:
                few = list(map(float, few))
            return _of_few(few, low, high, self.most) if low >= _SMALLEST else histogram_of(Counter(few), self.most)
        positive, negative = self.positive, self.negative
        scale = min(positive.scale, negative.scale)
        low, high = math.nan, math.nan
        if positive.number or negative.number or self.zeros:
            low = -negative.greatest if negative.number else 0.0 if self.zeros else positive.least
            high = positive.greatest if positive.number else 0.0 if self.zeros else -negative.least
        return ExponentialHistogram(
            scale,
            self.zeros,
            positive.buckets().coarser(positive.scale - scale),
            negative.buckets().coarser(negative.scale - scale),
            low,
            high,
        )


def histograms_of(counts: Sequence[ExponentialCounts]) -> list[ExponentialHistogram]:
    """Return the histogram of each, those of a few values above zero together: in half of the time, by NumPy."""
    np = numpy()
    if np is None:
        return [of.histogram() for of in counts]
    extremes = [of.extremes() if of.few else (0.0, 0.0) for of in counts]
    is_plain = [low >= _SMALLEST for low, _ in extremes]
    if not any(is_plain):
        return [of.histogram() for of in counts]
    made = iter(_of_few_each(np, list(compress(counts, is_plain)), list(compress(extremes, is_plain))))
    return [next(made) if plain else of.histogram() for of, plain in zip(counts, is_plain, strict=True)]


def _of_few_each(
    np: Any, counts: Sequence[ExponentialCounts], extremes: Sequence[tuple[float, float]]
) -> list[ExponentialHistogram]:
    """Return the histogram of each, as :func:`_of_few` does; all their values are above zero."""
    together = list(chain.from_iterable(chain.from_iterable([of.few for of in counts])))
    values = np.frombuffer(pack(f"{len(together)}d", *together))
    widths, shifts, begins = [], [], [0]
    made = []
    for of, (low, high) in zip(counts, extremes, strict=True):
        steps, first, last = _reach(low, high, of.most)
        made.append((steps, first, low, high))
        widths.append(_PARTS / 2**steps)
        shifts.append(begins[-1] - first)
        begins.append(begins[-1] + last - first + 1)
    numbers = [of.number for of in counts]
    places = np.log2(values) * np.repeat(widths, numbers)
    indices = np.floor(places)
    apart = places - indices
    for place in np.flatnonzero((apart < _ROUNDED) | (apart > 1 - _ROUNDED)).tolist():
        steps = made[bisect_right(list(accumulate(numbers)), place)][0]
        indices[place] = _finest(float(values[place])) >> steps
    indices += np.repeat(shifts, numbers)
    every = np.bincount(indices.astype(np.int64), minlength=begins[-1]).tolist()
    return [
        _above_zero(FINEST - steps, first, tuple(every[begin:end]), low, high)
        for (steps, first, low, high), begin, end in zip(made, begins, begins[1:], strict=False)
    ]


def _reach(low: float, high: float, most: int) -> tuple[int, int, int]:
    """Return how many steps coarser than the finest scale values above zero are, their first and their last bucket."""
    first, last = _finest(low), _finest(high)
    steps = 0
    while (last >> steps) - (first >> steps) >= most:
        steps += 1
    return steps, first >> steps, last >> steps


def histogram_of(values: Mapping[float, int], most: int = BUCKETS) -> ExponentialHistogram:
    """Return the histogram of a few finite values: at the finest scale that needs at most ``most`` buckets a side.

    Args:
        values: how many there are of each.
        most: buckets of a side.
    """
    positive: dict[int, int] = {}
    negative: dict[int, int] = {}
    for value, count in values.items():
        if not value:
            continue
        side, magnitude = (positive, value) if value > 0 else (negative, -value)
        if magnitude < _SMALLEST:  # noqa: PLR1730 - max() takes three times as long
            magnitude = _SMALLEST
        index = _finest(magnitude)
        side[index] = side.get(index, 0) + count
    low, high = (min(values) + 0.0, max(values) + 0.0) if values else (math.nan, math.nan)  # no negative zero
    steps = 0
    for side in (positive, negative):
        if side:
            first, last = min(side), max(side)
            while (last >> steps) - (first >> steps) >= most:
                steps += 1
    sides = _joined(positive, steps), _joined(negative, steps)
    return ExponentialHistogram(FINEST - steps, values.get(0.0, 0), *sides, low, high)


def _of_few(values: Sequence[float], low: float, high: float, most: int) -> ExponentialHistogram:
    """Return :func:`histogram_of` values above zero, from the least to the greatest one, in half of its time.

    Values in few buckets are counted by these.
    """
    steps, first, last = _reach(low, high, most)
    counts: Sequence[int]
    if 2 * (last - first) < len(values):
        at_most = [*map(bisect_right, repeat(sorted(values)), _ends(first, last, FINEST - steps))]
        counts = tuple(map(sub, [*at_most, len(values)], [0, *at_most]))
    else:
        counts = _counted(values, steps, first, last)
    return _above_zero(FINEST - steps, first, tuple(counts), low, high)


def _above_zero(scale: int, first: int, counts: tuple[int, ...], low: float, high: float) -> ExponentialHistogram:
    """Return the histogram of values above zero."""
    buckets = _made(ExponentialBuckets, (first, counts))
    found: ExponentialHistogram = _made(ExponentialHistogram, (scale, 0, buckets, _NO_BUCKETS, low, high))
    return found


def _counted(values: Sequence[float], steps: int, first: int, last: int) -> list[int]:
    """Return the counts of buckets, by the logarithm of each value."""
    counts = [0] * (last - first + 1)
    width = _PARTS / 2**steps
    places = [place * width for place in map(math.log2, values)]
    indices = list(map(math.floor, places))
    apart = list(map(sub, places, indices))
    if min(apart) < _ROUNDED or max(apart) > 1 - _ROUNDED:
        for number, part in enumerate(apart):
            if not _ROUNDED < part < 1 - _ROUNDED:
                indices[number] = _finest(values[number]) >> steps
    for index in indices:
        counts[index - first] += 1
    return counts


def _joined(side: Mapping[int, int], steps: int) -> ExponentialBuckets:
    """Return the buckets of some indices with their counts, at a scale that is lower by ``steps``."""
    if not side:
        return ExponentialBuckets()
    first = min(side) >> steps
    counts = [0] * ((max(side) >> steps) - first + 1)
    for index, count in side.items():
        counts[(index >> steps) - first] += count
    return ExponentialBuckets(first, tuple(counts))


def _finest(value: float) -> int:
    """Return the bucket of a value above zero at the finest scale."""
    place = math.log2(value) * _PARTS
    index: int = math.ceil(place) - 1
    if _ROUNDED < place - index < 1 - _ROUNDED:
        return index
    if value <= _power(math.ldexp(index, -FINEST)):
        return index - 1
    return index + 1 if value > _power(math.ldexp(index + 1, -FINEST)) else index


def _index(value: float, scale: int) -> int:
    """Return the bucket of a value above zero, or one beside it: the logarithm is rounded."""
    return math.ceil(math.ldexp(math.log2(value), scale)) - 1


@lru_cache(maxsize=256)
def _packed_bounds(np: Any, first: int, most: int, scale: int) -> Any:
    return np.array(_bounds(first, most, scale))


@lru_cache(maxsize=64)
def _bounds(first: int, most: int, scale: int) -> list[float]:
    """Return the lower bound of ``most`` buckets, and the upper one of the last."""
    return _ends(first - 1, first + most, scale)


def _ends(first: int, last: int, scale: int) -> list[float]:
    """Return the upper bounds of neighbouring buckets but the last one."""
    if scale <= 0:
        return [_power(math.ldexp(index, -scale)) for index in range(first + 1, last + 1)]
    parts, found, index = _octave(scale), list[float](), first + 1
    while index <= last:
        octave, place = divmod(index, len(parts))
        factor = _power(octave)
        more = parts[place : place + last + 1 - index]
        found += [part * factor for part in more]
        index += len(more)
    return found


@lru_cache(maxsize=FINEST)
def _octave(scale: int) -> list[float]:
    """Return the bounds from 1 to 2, without 2."""
    return [_power(math.ldexp(place, -scale)) for place in range(2**scale)]


def _power(exponent: float) -> float:
    octave = math.floor(exponent)
    return math.inf if octave >= sys.float_info.max_exp else math.ldexp(2.0 ** (exponent - octave), octave)


def _listed(buckets: ExponentialBuckets) -> list[tuple[int, int]]:
    return [(index, count) for index, count in enumerate(buckets.counts, buckets.offset) if count]


def _middle(index: int, scale: int) -> float:
    exponent = math.ldexp(index + 0.5, -scale)
    return float(2.0 ** min(max(exponent, -1074.0), 1023.9999999999999))
