"""Curves thinned for a chart: of each bucket the smallest and the largest value, so that no spike vanishes.

With NumPy a million points take some ten milliseconds, without it a second; the buckets are the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from typing import Any, NamedTuple

from tachograph.runs.blocks import Sample


class Bucket(NamedTuple):
    """Points whose x are close; without finite values the extremes are NaN, at the x of the first point.

    Attributes:
        low_x: x of the first of the smallest values.
        high_x: x of the first of the largest values.
        points: how many there are.
        nonfinite: how many values are NaN or infinite.
    """

    low_x: float
    low: float
    high_x: float
    high: float
    points: int
    nonfinite: int


class Raw(NamedTuple):
    """A branch of a curve.

    Attributes:
        pairs: x and value of its points, in turn, as float64.
        extremes: x and value of what intervals have as their smallest and largest values, in turn.
        hidden: x of points with a finite value whose interval had others, and how many of these; in turn.
    """

    pairs: list[bytes]
    extremes: list[float]
    hidden: list[float]

    def add(self, samples: Iterable[Sample]) -> None:
        """Add what samples say besides their own value."""
        for sample in samples:
            more = sample.more
            if "min" in more and "max" in more:
                self.extremes.extend((more.get("min_x", sample.x), more["min"]))
                self.extremes.extend((more.get("max_x", sample.x), more["max"]))
            others = int(more.get("nonfinite", 0)) - (not isfinite(sample.value))
            if others > 0:
                self.hidden.extend((sample.x, others))


def thin(raw: Raw, pairs: int) -> list[Bucket]:
    """Return at most ``pairs`` buckets, equally wide in x, in order; empty ones are left out.

    Args:
        raw: the branch; every x is finite.
        pairs: how many buckets at most.
    """
    try:
        import numpy as np
    except ImportError:
        return thin_slowly(raw, pairs)
    points = np.frombuffer(b"".join(raw.pairs)).reshape(-1, 2)
    if not len(points):
        return []
    # No array of this size is made without need: the memory for one costs more time than what is done with it.
    xs, values = np.ascontiguousarray(points[:, 0]), points[:, 1]
    finite = np.isfinite(values)
    count: Any = None
    bad: Any = None
    if raw.extremes or raw.hidden or not finite.all():
        told, hidden = (np.array(each, dtype=float).reshape(-1, 2) for each in (raw.extremes, raw.hidden))
        count = np.repeat([1, 0], [len(xs), len(told) + len(hidden)])
        bad = np.concatenate([~finite, np.zeros(len(told)), hidden[:, 1]]).astype(np.int64)
        xs = np.concatenate([xs, told[:, 0], hidden[:, 0]])
        values = np.concatenate([values, told[:, 1], np.full(len(hidden), nan)])
    if (xs[1:] < xs[:-1]).any():
        order = np.argsort(xs, kind="stable")
        xs, values = xs[order], values[order]
        count, bad = (count, bad) if count is None else (count[order], bad[order])
    starts = np.unique(np.concatenate([[0], np.searchsorted(xs, _edges(float(xs[0]), float(xs[-1]), pairs))]))
    starts = starts[starts < len(xs)]
    low = high = values
    counted = np.diff(starts, append=len(xs)), np.zeros(len(starts), dtype=np.int64)
    if count is not None:
        finite = np.isfinite(values)
        low, high = np.where(finite, values, inf), np.where(finite, values, -inf)
        counted = np.add.reduceat(count, starts), np.add.reduceat(bad, starts)
    slices = list(pairwise([*starts.tolist(), len(xs)]))
    least = [begin + low[begin:end].argmin() for begin, end in slices]
    most = [begin + high[begin:end].argmax() for begin, end in slices]
    columns = (xs[least], low[least], xs[most], high[most], *counted, xs[starts])
    return [_bucket(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def thin_slowly(raw: Raw, pairs: int) -> list[Bucket]:
    """Return what :func:`thin` does, without NumPy."""
    points = array("d", b"".join(raw.pairs))
    xs, values = points[0::2], points[1::2]
    if not xs:
        return []
    extremes, at = raw.extremes[1::2], raw.extremes[0::2]
    edges = _edges(min((*xs, *at)), max((*xs, *at)), pairs)
    found: dict[int, list[Any]] = {}

    def bucket(x: float) -> list[Any]:
        place = bisect_right(edges, x)
        known = found.get(place)
        if known is None:
            known = found[place] = [inf, inf, inf, -inf, 0, 0, x]
        return known

    for x, value in zip(at, extremes, strict=True):
        _stretch(bucket(x), x, value)
    for x, value in zip(xs, values, strict=True):
        known = bucket(x)
        known[4] += 1
        if isfinite(value):
            _stretch(known, x, value)
        else:
            known[5] += 1
            known[6] = min(known[6], x)
    for x, others in zip(raw.hidden[0::2], raw.hidden[1::2], strict=True):
        bucket(x)[5] += int(others)
    return [_bucket(found[place]) for place in sorted(found)]


def _edges(low: float, high: float, pairs: int) -> list[float]:
    """Return where each bucket but the first begins: the sum of two products cannot overflow, as a difference can."""
    return sorted(low * (1 - place / pairs) + high * (place / pairs) for place in range(1, pairs))


def _stretch(known: list[Any], x: float, value: float) -> None:
    if (value, x) < (known[1], known[0]):
        known[0], known[1] = x, value
    if value > known[3] or (value == known[3] and x < known[2]):
        known[2], known[3] = x, value


def _bucket(known: Sequence[Any]) -> Bucket:
    _, low, _, high, points, nonfinite, x = known
    return Bucket(x, nan, x, nan, points, nonfinite) if low > high else Bucket(*known[:6])
