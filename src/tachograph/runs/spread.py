"""How values spread: exponential histograms as a hub joins and keeps them, and their packed form in the run's file.

The packed form is a byte for the version (1), the scale, the number of zeros, the extremes, and for each side the index
of the first bucket, how many there are, and their counts. Numbers are varints (seven bits a byte, the lowest first),
those that may be negative zigzag; the extremes are little-endian float64. Of empty buckets in a row the number follows
a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import add
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class

from tachograph.recording.exponential import BUCKETS, ExponentialBuckets, ExponentialHistogram

MOST_BUCKETS = 1000  # of a side
MOST_BYTES = 32 * 2**10  # of a packed histogram: a thousand buckets a side of 64 bits each take less
COARSEST, FINEST_KNOWN = -10, 20  # OpenTelemetry specification, "Base2 Exponential Bucket Histogram Aggregation"
FEW = 64  # buckets of a side up to which the finest scale that came is kept
FINE_ENOUGH = 5  # the scale that is kept whatever it takes, up to BUCKETS: quantiles within 1.1 %
_VERSION = 1
_MOST_BITS = 140  # of a number: counts of 64 bits, however often added up
_EXTREMES = Struct("<dd")
_EXPONENTS = -1075, 1024  # of two, between which all floats above zero are


def joined(parts: Iterable[ExponentialHistogram]) -> ExponentialHistogram:
    """Return the values of all parts, at a scale that is worth its room.

    That is the finest one that all have and at which a side has at most ``FEW`` buckets, or else ``FINE_ENOUGH``, or
    else the finest one at which it has at most ``BUCKETS``. An extreme that one of them does not know is NaN.
    """
    found = [part for part in parts if part.total]
    if not found:
        return ExponentialHistogram()
    scale = min(part.scale for part in found)
    positive = [(part.scale, part.positive) for part in found if part.positive.counts]
    negative = [(part.scale, part.negative) for part in found if part.negative.counts]
    while (width := max(_width(positive, scale), _width(negative, scale))) > BUCKETS or (
        width > FEW and scale > FINE_ENOUGH
    ):
        scale -= 1
    lows, highs = [part.minimum for part in found], [part.maximum for part in found]
    return ExponentialHistogram(
        scale,
        sum(part.zeros for part in found),
        _together(positive, scale),
        _together(negative, scale),
        math.nan if any(map(math.isnan, lows)) else min(lows),
        math.nan if any(map(math.isnan, highs)) else max(highs),
    )


def _width(sides: Sequence[tuple[int, ExponentialBuckets]], scale: int) -> int:
    """Return how many buckets hold all of a side at a scale."""
    if not sides:
        return 0
    first = min(side.offset >> finer - scale for finer, side in sides)
    return max((side.offset + len(side.counts) - 1) >> finer - scale for finer, side in sides) - first + 1


def _together(sides: Sequence[tuple[int, ExponentialBuckets]], scale: int) -> ExponentialBuckets:
    if len(sides) < 2:  # noqa: PLR2004 - nothing to add
        return sides[0][1].coarser(sides[0][0] - scale) if sides else ExponentialBuckets()
    first = min(side.offset >> finer - scale for finer, side in sides)
    counts = [0] * _width(sides, scale)
    for finer, side in sides:
        buckets = side.coarser(finer - scale)
        start = buckets.offset - first
        end = start + len(buckets.counts)
        counts[start:end] = map(add, counts[start:end], buckets.counts)
    return ExponentialBuckets(first, tuple(counts))


def since(state: ExponentialHistogram, earlier: ExponentialHistogram) -> ExponentialHistogram:
    """Return the values that have come since an earlier state of the same values; no bucket is negative.

    An extreme is known only where it was not that of the earlier state.
    """
    scale = min(state.scale, earlier.scale)
    now, before = state.at_scale(scale), earlier.at_scale(scale)
    return ExponentialHistogram(
        scale,
        max(0, now.zeros - before.zeros),
        _less(now.positive, before.positive),
        _less(now.negative, before.negative),
        now.minimum if now.minimum < before.minimum else math.nan,
        now.maximum if now.maximum > before.maximum else math.nan,
    )


def _less(now: ExponentialBuckets, before: ExponentialBuckets) -> ExponentialBuckets:
    known = dict(enumerate(before.counts, before.offset))
    return trimmed(
        ExponentialBuckets(
            now.offset, tuple(max(0, count - known.get(index, 0)) for index, count in enumerate(now.counts, now.offset))
        )
    )


def trimmed(side: ExponentialBuckets) -> ExponentialBuckets:
    """Return a side without the empty buckets at both ends."""
    counts = side.counts
    if not counts or (counts[0] and counts[-1]):
        return side
    filled = [place for place, count in enumerate(counts) if count]
    return (
        ExponentialBuckets(side.offset + filled[0], counts[filled[0] : filled[-1] + 1])
        if filled
        else ExponentialBuckets()
    )


def packed(histogram: ExponentialHistogram) -> bytes:
    """Return a histogram as bytes, as :func:`unpacked` reads them."""
    found = bytearray((_VERSION,))
    found += _varints((_zigzag(histogram.scale), histogram.zeros))
    found += _EXTREMES.pack(histogram.minimum, histogram.maximum)
    for side in (histogram.positive, histogram.negative):
        found += _varints((_zigzag(side.offset), len(side.counts)))
        if side.counts and min(side.counts) > 0 and max(side.counts) < 128:  # noqa: PLR2004 - a byte each
            found += bytes(side.counts)
        else:
            for count, row in groupby(side.counts):
                same = list(row)
                found += _varints(same if count else (0, len(same)))
    return bytes(found)


def unpacked(data: bytes) -> ExponentialHistogram:
    """Return the histogram of :func:`packed` bytes.

    Raises:
        ValueError: they are none, or more than ``MOST_BYTES``.
    """
    reader = _Bytes(data)
    try:
        scale, zeros, minimum, maximum = reader.head()
        histogram = ExponentialHistogram(scale, zeros, reader.side(), reader.side(), minimum, maximum)
    except (IndexError, StructError) as error:
        raise ValueError(f"an exponential histogram of {len(data)} bytes ends too early") from error
    if reader.place != len(data):
        raise ValueError(f"{len(data) - reader.place} bytes follow an exponential histogram")
    check(histogram)
    return histogram


def extremes(data: bytes) -> tuple[float, float]:
    """Return the extremes of :func:`packed` bytes, without the rest.

    Raises:
        ValueError: they are none.
    """
    try:
        _, _, minimum, maximum = _Bytes(data).head()
    except (IndexError, StructError) as error:
        raise ValueError(f"an exponential histogram of {len(data)} bytes ends too early") from error
    return minimum, maximum


class _Bytes:
    """The bytes of a packed histogram from ``place`` on.

    Raises:
        ValueError: they are none, or more than ``MOST_BYTES``.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > MOST_BYTES or data[:1] != bytes((_VERSION,)):
            raise ValueError(
                f"{len(data)} bytes that begin with {data[:1]!r} are no exponential histogram of version 1"
            )
        self.data = data
        self.place = 1

    def head(self) -> tuple[int, int, float, float]:
        """Read the scale, the number of zeros, and the extremes."""
        scale, zeros = self.signed(), self.number()
        minimum, maximum = _EXTREMES.unpack_from(self.data, self.place)
        self.place += _EXTREMES.size
        return scale, zeros, minimum, maximum

    def number(self) -> int:
        found = shift = 0
        while (byte := self.data[self.place]) >= 128:  # noqa: PLR2004 - more follows
            found |= (byte & 127) << shift
            self.place, shift = self.place + 1, shift + 7
            if shift > _MOST_BITS:
                raise ValueError("a number of an exponential histogram is too long")
        self.place += 1
        return found | byte << shift

    def signed(self) -> int:
        number = self.number()
        return -((number + 1) >> 1) if number & 1 else number >> 1

    def side(self) -> ExponentialBuckets:
        offset, left = self.signed(), self.number()
        if left > MOST_BUCKETS:
            raise ValueError(f"{left} buckets of an exponential histogram: at most {MOST_BUCKETS} are read")
        counts: list[int] = []
        while len(counts) < left:
            count = self.number()
            empty = 0 if count else self.number()
            if not count and not 0 < empty <= left - len(counts):
                raise ValueError(f"{empty} empty buckets of an exponential histogram of {left}")
            counts += [0] * empty or [count]
        return ExponentialBuckets(offset, tuple(counts))


def check(histogram: ExponentialHistogram) -> None:
    """Raise where a histogram cannot be one of floats.

    Raises:
        ValueError: its scale is none of -10 to 20, a bucket is beyond all floats, or an extreme cannot be.
    """
    scale = histogram.scale
    if not COARSEST <= scale <= FINEST_KNOWN:
        raise ValueError(f"the scale {scale} of an exponential histogram: {COARSEST} to {FINEST_KNOWN} are read")
    least, most = (math.floor(math.ldexp(exponent, scale)) for exponent in _EXPONENTS)
    for side in (histogram.positive, histogram.negative):
        if side.counts and not (least <= side.offset and side.offset + len(side.counts) - 1 <= most):
            raise ValueError(f"the buckets from {side.offset} on of scale {scale} are beyond all floats")
    low, high = histogram.minimum, histogram.maximum
    if math.isinf(low) or math.isinf(high) or low > high:
        raise ValueError(f"the extremes {low} and {high} of an exponential histogram")


def _varints(numbers: Iterable[int]) -> bytearray:
    found = bytearray()
    for number in numbers:
        left = number
        while left >= 128:  # noqa: PLR2004 - more than seven bits
            found.append(left & 127 | 128)
            left >>= 7
        found.append(left)
    return found


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1
