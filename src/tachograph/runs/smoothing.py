"""The line of a curve in a chart: its moving average over all points, or the mean of each stretch that was thinned."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import exp, isfinite, log
from typing import Any, NamedTuple

from tachograph.runs.blocks import PAIR

_CHUNK = 300.0  # e to this, times a value scaled to 1, is far from overflowing
_LEAST = 1e-3  # of the usual distance: of points at one time each counts


class State(NamedTuple):
    """State that a moving average is continued from.

    Attributes:
        total: the weighted sum.
        mass: the weights' sum: the average is ``total / mass``, without the pull of its start towards zero.
        spacing: the usual distance of points, where an average is over time; None where it is over points.
    """

    total: float
    mass: float
    spacing: float | None


class Average:
    """The exponential moving average of a branch, from its first point on: the same in every window of it.

    Args:
        weight: of the values before a point, in (0, 1).
        spacing: see :class:`State`: a point as far as this from the one before has the weight, one that is further off
            more.
    """

    def __init__(self, weight: float, spacing: float | None) -> None:
        self._decay = -log(weight)
        self._spacing = spacing
        self._carry, self._gone = 0.0, 0.0
        self._xs: list[Any] = []
        self._values: list[Any] = []
        self._new: list[bytes] = []
        self._kept = 0  # of them, those of which nothing more is to be forgotten
        self._last: float | None = None

    def add(self, pairs: bytes) -> None:
        """Take points: x and value of each, in turn."""
        self._new.append(pairs)

    @property
    def state(self) -> State:
        """The state after the last point."""
        self._fold()
        return State(self._carry, 1 - exp(-self._gone), self._spacing)

    def keep(self, xs: list[float]) -> None:
        """Forget of the points since the last call all but the average at these x."""
        values = self.at(xs)
        self._xs[self._kept :], self._values[self._kept :] = [list(xs)], [values]
        self._kept = len(self._xs)

    def at(self, xs: list[float]) -> list[float]:
        """Return the average at each x, which is that of the last point until there."""
        self._fold()
        try:
            import numpy as np
        except ImportError:
            places = [x for part in self._xs for x in part]
            told = [value for part in self._values for value in part]
            return [told[max(0, bisect_right(places, x) - 1)] for x in xs] if told else list(xs)
        if not self._xs:
            return list(xs)
        known, values = np.concatenate(self._xs), np.concatenate(self._values)
        found: list[float] = values[np.maximum(0, np.searchsorted(known, xs, "right") - 1)].tolist()
        return found

    def _fold(self) -> None:
        if not self._new:
            return
        pairs, self._new = b"".join(self._new), []
        try:
            import numpy as np
        except ImportError:
            self._slowly(pairs)
            return
        points = np.frombuffer(pairs, dtype="<f8").reshape(-1, 2)
        points = points[np.isfinite(points[:, 1])]
        if not len(points):
            return
        if (points[1:, 0] < points[:-1, 0]).any():
            points = points[np.argsort(points[:, 0], kind="stable")]
        xs, ys = points[:, 0], points[:, 1]
        steps = np.full(len(xs), self._decay)
        if self._spacing:
            gaps = np.diff(xs, prepend=xs[0] - self._spacing if self._last is None else self._last)
            steps *= np.maximum(gaps / self._spacing, _LEAST)
        found = np.empty(len(xs))
        gone = np.cumsum(steps)
        ends = [0, *(np.flatnonzero(np.diff(gone // _CHUNK)) + 1).tolist(), len(xs)]
        scale = max(1.0, float(np.abs(ys).max()))
        carry = self._carry / scale
        for begin, end in pairwise(ends):
            away = gone[begin:end] - gone[begin]
            grown = np.cumsum(-np.expm1(-steps[begin:end]) * (ys[begin:end] / scale) * np.exp(away))
            found[begin:end] = np.exp(-away) * (grown + exp(-steps[begin]) * carry)
            carry = float(found[end - 1])
        mass = -np.expm1(-(self._gone + gone))
        self._carry, self._gone, self._last = carry * scale, self._gone + float(gone[-1]), float(xs[-1])
        self._xs.append(xs)
        self._values.append(found / mass * scale)

    def _slowly(self, pairs: bytes) -> None:
        points = sorted((point for point in PAIR.iter_unpack(pairs) if isfinite(point[1])), key=lambda point: point[0])
        values = []
        for x, y in points:
            step = self._decay
            if self._spacing:
                gap = self._spacing if self._last is None else x - self._last
                step *= max(gap / self._spacing, _LEAST)
            old = exp(-step)
            self._carry, self._gone, self._last = old * self._carry + (1 - old) * y, self._gone + step, x
            values.append(self._carry / (1 - exp(-self._gone)))
        if points:
            self._xs.append([x for x, _ in points])
            self._values.append(values)


def means(pairs: bytes, many: int, xs: list[float]) -> list[float]:
    """Return the mean of the finite values around each x: of that of ``many`` equal stretches in which it lies.

    Args:
        pairs: x and value of points, in turn, in the order of x.
        many: stretches.
        xs: ascending, within those of the points.
    """
    try:
        import numpy as np
    except ImportError:
        return _means_slowly(pairs, many, xs)
    points = np.frombuffer(pairs, dtype="<f8").reshape(-1, 2)
    points = points[np.isfinite(points[:, 1])]
    if not len(points):
        return list(xs)
    halves, scale = points[:, 0] / 2, max(1.0, float(np.abs(points[:, 1]).max()))  # neither can overflow
    first, width = halves[0], (halves[-1] - halves[0]) / many or 1.0
    places = np.minimum(many - 1, ((halves - first) / width).astype(np.int64))
    counts = np.bincount(places, minlength=many)
    found = np.bincount(places, weights=points[:, 1] / scale, minlength=many) / np.maximum(counts, 1) * scale
    at = np.clip(((np.array(xs) / 2 - first) / width).astype(np.int64), 0, many - 1)
    nearest = np.flatnonzero(counts)
    at = nearest[np.minimum(len(nearest) - 1, np.searchsorted(nearest, at))]
    answer: list[float] = found[at].tolist()
    return answer


def _means_slowly(pairs: bytes, many: int, xs: list[float]) -> list[float]:
    points = [point for point in PAIR.iter_unpack(pairs) if isfinite(point[1])]
    if not points:
        return list(xs)
    first, scale = points[0][0] / 2, max(1.0, *(abs(y) for _, y in points))
    width = (points[-1][0] / 2 - first) / many or 1.0
    sums: dict[int, tuple[float, int]] = {}
    for x, y in points:
        place = min(many - 1, int((x / 2 - first) / width))
        total, count = sums.get(place, (0.0, 0))
        sums[place] = total + y / scale, count + 1
    nearest = sorted(sums)
    found = []
    for x in xs:
        at = max(0, min(many - 1, int((x / 2 - first) / width)))
        total, count = sums[nearest[min(len(nearest) - 1, bisect_right(nearest, at - 1))]]
        found.append(total / count * scale)
    return found
