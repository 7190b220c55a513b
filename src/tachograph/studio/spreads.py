"""How the values of histograms spread over time: their counts by stretches of time and by buckets, for a heat map."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.file import Look
from tachograph.runs.queries import count_spreads, read_samples
from tachograph.runs.spread import joined, unpacked

MOST_COLUMNS = 120
_MOST_ROWS = 40
_MOST_READ, _LEAST_READ = 2000, 20  # intervals of all series, each some tenths of a millisecond; of a series


def spreads(
    look: Look, numbers: Sequence[int], *, low: int = 0, high: int = 2**63 - 1, columns: int = MOST_COLUMNS
) -> dict[str, Any]:
    """Return the counts of the values of all of some series.

    ``counts`` has a list for each bucket of ``bounds``, pairs of its ends in ascending order, and in it a count for
    each of equal stretches of the time from ``begin`` to ``end``. Of very many intervals one in ``joined`` is read.

    Args:
        look: at the file.
        numbers: of the series.
        low: beginning of the window in time.
        high: end of the window.
        columns: at most so many stretches.
    """
    fair = max(_LEAST_READ, _MOST_READ // max(1, len(numbers)))
    many = {number: count_spreads(look.rows, number, low, high) for number in numbers}
    every = -(-max(many.values(), default=0) // fair) or 1
    found: list[tuple[int, ExponentialHistogram]] = []
    for number in numbers:
        samples = read_samples(look.rows, number, low=low, high=high)
        packed = ((sample.time, sample.spread) for sample in samples if sample.spread is not None)
        for time, spread in islice(packed, 0, None, every):
            try:
                found.append((time, unpacked(spread)))
            except ValueError as error:
                look.file.note(f"a sample of {time}: {error}")
    if not any(histogram.total for _, histogram in found):
        return {"begin": None, "end": None, "joined": every, "bounds": [], "counts": []}
    begin, end = min(time for time, _ in found), max(time for time, _ in found)
    columns = max(1, min(columns, max(many.values()) // every))
    by_column: list[list[ExponentialHistogram]] = [[] for _ in range(columns)]
    for time, histogram in found:
        by_column[min(columns - 1, (time - begin) * columns // max(1, end - begin))].append(histogram)
    bounds, counts = _table([joined(some) for some in by_column])
    return {"begin": begin, "end": end, "joined": every, "bounds": bounds, "counts": counts}


def _table(histograms: Sequence[ExponentialHistogram]) -> tuple[list[list[float]], list[list[int]]]:
    """Return the buckets that hold the values of all, and their counts in each, at a scale with few of them."""
    scale = min(each.scale for each in histograms if each.total)
    while len(places := _places([each.at_scale(scale) for each in histograms if each.total])) > _MOST_ROWS:
        scale -= 1
    at_scale = [each.at_scale(min(scale, each.scale)) for each in histograms]
    return [_bounds(place, scale) for place in places], [
        [_count(each, *place) for each in at_scale] for place in places
    ]


def _places(histograms: Sequence[ExponentialHistogram]) -> list[tuple[int, int]]:
    """Return the places of buckets in ascending order of values: their sign, and their index."""
    found: list[tuple[int, int]] = []
    for sign in (-1, 1):
        sides = [side for each in histograms if (side := each.negative if sign < 0 else each.positive).counts]
        if sides:
            first = min(side.offset for side in sides)
            last = max(side.offset + len(side.counts) for side in sides)
            found += [(sign, index) for index in range(first, last)][::sign]
        if sign < 0 and any(each.zeros for each in histograms):
            found.append((0, 0))
    return found


def _bounds(place: tuple[int, int], scale: int) -> list[float]:
    sign, index = place
    ends = [_power(math.ldexp(each, -scale)) for each in (index, index + 1)]
    return [sign * each for each in ends[::sign]] if sign else [0.0, 0.0]


def _power(exponent: float) -> float:
    return 2.0**exponent if exponent < sys.float_info.max_exp else sys.float_info.max


def _count(histogram: ExponentialHistogram, sign: int, index: int) -> int:
    if not sign:
        return histogram.zeros
    side = histogram.positive if sign > 0 else histogram.negative
    place = index - side.offset
    return side.counts[place] if 0 <= place < len(side.counts) else 0
