"""A stretch of a curve for a chart: its branches between two x, and one point beyond on each side."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from math import inf, isfinite, nan
from typing import NamedTuple

from tachograph.runs.blocks import DRAWN_REST, INTERVALS, PAIR, Block, Bucket, Raw, kind_of, thin
from tachograph.runs.file import Look
from tachograph.runs.recorded import add_intervals
from tachograph.runs.x_axis import FEW, FEW_POINTS, Placed, XAxis, knots

AT_ONCE = 2**21  # points that are read before they are thinned
_VALUE = {"Infinity": inf, "-Infinity": -inf, "NaN": nan}

# Columns that are not drawn are not read: only intervals have more to draw than x and value, and only another axis than
# that of the recorded x takes the others.
_BLOCKS = (
    "SELECT seq0, seq1, {first} >= ?5 AND {last} <= ?6, form, pairs, {rest} FROM block"
    " WHERE curve = ?1 AND branch = ?2 AND {last} >= ?3 AND {first} <= ?4 ORDER BY seq0"
)
_BRANCHES = (
    "SELECT branch, max(seq1), max(CASE WHEN {last} < ?2 THEN {last} END),"
    " min(CASE WHEN {first} > ?3 THEN {first} END)"
    " FROM block WHERE curve = ?1 GROUP BY branch ORDER BY branch"
)
_SEEN = "FROM block WHERE curve = ? AND branch = ? AND x1 >= ? AND x0 <= ? ORDER BY seq0"
_ENDS = f"SELECT t0, t1, x0, x1, n {_SEEN}"
_WHOLE = f"SELECT form, pairs, rest {_SEEN}"


class Drawing(NamedTuple):
    """How a curve is drawn.

    Attributes:
        pairs: the most buckets of a branch.
        low: beginning of the window, on the axis.
        high: its end.
        axis: the x axis.
        knots: whether to tell the times of some points, on the axis of the recorded x.
        at_once: points that are held in memory before they are thinned.
    """

    pairs: int
    low: float = -inf
    high: float = inf
    axis: XAxis = XAxis()
    knots: bool = False
    at_once: int = AT_ONCE


class Stretch(NamedTuple):
    """A branch of a curve in a window, ready to draw.

    Attributes:
        branch: its number.
        points: the number of its points in the window.
        seq: the last number of a point of the branch, in the window or not.
        exact: ``x`` and ``y`` are the points, with the extremes of throttled intervals between them; else they are the
            smallest and the largest value of each bucket.
        x: ascending.
        y: finite values.
        nonfinite: x and ``NaN``, ``Infinity`` or ``-Infinity``, where those were recorded; of a bucket's, one of each.
        line: the mean of the recorded values around each x, where ``y`` has others: they are thinned, or extremes of
            throttled intervals are between them; None otherwise.
        knots: pairs of time, in seconds since the epoch, and x, where they were wanted.
    """

    branch: int
    points: int
    seq: int
    exact: bool
    x: list[float]
    y: list[float]
    nonfinite: list[tuple[float, str]]
    line: list[float] | None = None
    knots: list[list[float]] | None = None


def stretches(look: Look, curve: int, how: Drawing) -> Iterator[Stretch]:
    """Yield the branches of a curve that have points in a window, in order.

    Args:
        look: at the file.
        curve: its number.
        how: it is drawn.
    """
    axis, own = how.axis, how.axis.kind == "own"
    first, last = axis.columns
    named = {"first": first, "last": last, "rest": DRAWN_REST if own else "rest"}
    low, high = axis.ends(how.low, how.high)
    for branch, seq, before, behind in look.rows(_BRANCHES.format(**named), curve, low, high):
        edges = (low if before is None else before, high if behind is None else behind)
        gathered = _Gathered(how, None if own else Placed(axis))
        for seq0, seq1, *parts in look.rows(_BLOCKS.format(**named), curve, branch, *edges, low, high):
            why = gathered.add(*parts)
            if why:
                look.file.note(f"points {seq0} to {seq1} of a stream: {why}")
        found = gathered.all()
        if found.pairs[0]:
            drawn = stretch(branch, seq, found, how.pairs, count=gathered.count, whole=gathered.whole)
            if found.extremes or not drawn.exact:
                drawn = drawn._replace(line=means(found.pairs[0], how.pairs, drawn.x))
            yield drawn._replace(knots=_knots(look, curve, branch, (how.low, how.high))) if how.knots and own else drawn


def _knots(look: Look, curve: int, branch: int, window: tuple[float, float]) -> list[list[float]]:
    """Return pairs of time and x within a window of x: the nearer a reader looks, the closer they are."""
    blocks, many = [], 0
    for *ends, count in look.rows(_ENDS, curve, branch, *window):
        blocks.append((ends[0], ends[1], ends[2], ends[3]))
        many += count
    try:
        whole = look.rows(_WHOLE, curve, branch, *window) if len(blocks) <= FEW and many <= FEW_POINTS else ()
        return knots(blocks, [Block(*row) for row in whole])
    except ValueError:  # damaged, which whoever reads its points notes
        return knots(blocks, [])


class _Gathered:
    """A branch while it is read: of very many points only the extremes stay, to bound the memory.

    Attributes:
        count: the number of points in the window.
        whole: nothing was left out.
    """

    def __init__(self, how: Drawing, placed: Placed | None) -> None:
        self._window = how.low, how.high
        self._pairs, self._at_once = how.pairs, how.at_once
        self._placed = placed
        self._found = how.axis.kind != "number" or self._window == (-inf, inf)  # blocks are, by their ends
        self._new = Raw.empty()
        self._held = 0
        self._kept: list[Raw] = []
        self.count = 0
        self.whole = True

    def add(self, inside: int, form: str, xy: bytes, rest: bytes | None) -> str:
        """Take a block (``inside``: all in the window); return a description of its damage, empty for none."""
        if len(xy) % PAIR.size:
            return f"{len(xy)} bytes of x and value"
        why = ""
        try:
            if self._placed and rest is not None:
                form, xy, rest = self._placed.block(Block(form, xy, rest))
                rest = rest if INTERVALS.search(form) else None
            if rest is None:
                self._new.pairs.append(xy)
            else:
                add_intervals(self._new, Block(form, xy, rest))
        except ValueError as error:
            why = str(error)
        self.count += len(xy) // PAIR.size if inside and self._found else _inside(xy, *self._window)
        self._held += len(self._new.pairs[-1]) // PAIR.size
        if self._held >= self._at_once:
            self._fold()
        return why

    def _fold(self) -> None:
        part = self._take()
        fine = 4 * self._pairs
        if len(part.pairs[0]) // PAIR.size + len(part.extremes) // 2 > 2 * fine:
            self.whole = False
            outlined = _outline(thin(part, fine))
            extremes = array("d", chain.from_iterable(zip(*outlined, strict=True)))
            lost = array("d", chain.from_iterable((x, _VALUE[kind]) for x, kind in _nonfinite(part, fine)))
            part = Raw.empty()
            part.pairs.append(extremes.tobytes() + lost.tobytes())
        self._kept.append(part)

    def _take(self) -> Raw:
        part = windowed(self._new, *self._window)
        self._new, self._held = Raw.empty(), 0
        return part

    def all(self) -> Raw:
        self._kept.append(self._take())
        if len(self._kept) == 1:
            return self._kept[0]
        pairs, extremes, hidden = (chain.from_iterable(each) for each in zip(*self._kept, strict=True))
        return windowed(Raw([*pairs], array("d", extremes), array("d", hidden)), *self._window)


def _inside(pairs: bytes, low: float, high: float) -> int:
    """Return the number of points in a window."""
    return sum(low <= x <= high for x in memoryview(pairs).cast("d")[::2])


def windowed(raw: Raw, low: float, high: float) -> Raw:
    """Return the part of a branch in a window, and the nearest point beyond on each side, in the order of x."""
    try:
        import numpy as np
    except ImportError:
        return _windowed_slowly(raw, low, high)
    points = np.frombuffer(b"".join(raw.pairs)).reshape(-1, 2)
    xs = points[:, 0]
    if (xs[1:] < xs[:-1]).any():  # requests came out of order
        points = points[np.argsort(xs, kind="stable")]
        xs = points[:, 0]
    first, last = max(0, int(np.searchsorted(xs, low)) - 1), int(np.searchsorted(xs, high, "right")) + 1
    kept = points[first:last]
    if not len(kept):
        return Raw([b""], array("d"), array("d"))
    told = (np.array(each, dtype=float).reshape(-1, 2) for each in (raw.extremes, raw.hidden))
    extremes, hidden = (each[(each[:, 0] >= kept[0, 0]) & (each[:, 0] <= kept[-1, 0])] for each in told)
    return Raw([kept.tobytes()], array("d", extremes.tobytes()), array("d", hidden.tobytes()))


def _windowed_slowly(raw: Raw, low: float, high: float) -> Raw:
    points = sorted(PAIR.iter_unpack(b"".join(raw.pairs)), key=lambda point: point[0])
    xs = [x for x, _ in points]
    kept = points[max(0, bisect_left(xs, low) - 1) : bisect_right(xs, high) + 1]
    if not kept:
        return Raw([b""], [], [])
    told = (zip(each[0::2], each[1::2], strict=True) for each in (raw.extremes, raw.hidden))
    inside = [[number for x, y in each if kept[0][0] <= x <= kept[-1][0] for number in (x, y)] for each in told]
    return Raw([b"".join(PAIR.pack(*point) for point in kept)], *inside)


def stretch(branch: int, seq: int, raw: Raw, pairs: int, *, count: int, whole: bool = True) -> Stretch:
    """Return a branch, ready to draw.

    Args:
        branch: its number.
        seq: the last number of a point of it.
        raw: of :func:`windowed`.
        pairs: the most buckets.
        count: the number of its points.
        whole: they are all in ``raw``.
    """
    exact = whole and len(raw.pairs[0]) // PAIR.size + len(raw.extremes) // 2 <= 2 * pairs
    x, y = _drawn(raw) if exact else _outline(thin(raw, pairs))
    return Stretch(branch, count, seq, exact, x, y, _nonfinite(raw, pairs))


def _drawn(raw: Raw) -> tuple[list[float], list[float]]:
    points = [(x, value) for x, value in PAIR.iter_unpack(raw.pairs[0]) if isfinite(value)]
    if raw.extremes:
        known = set(points)
        told = dict.fromkeys(zip(raw.extremes[0::2], raw.extremes[1::2], strict=True))
        more = [each for each in told if isfinite(each[1]) and each not in known]
        points = sorted([*points, *more], key=lambda point: point[0])
    return [x for x, _ in points], [value for _, value in points]


def _outline(buckets: list[Bucket]) -> tuple[list[float], list[float]]:
    xs, ys = [], []
    for low_x, low, high_x, high, _, _ in buckets:
        if low != low:  # noqa: PLR0124 - NaN: there is no finite value in it
            continue
        ends = [(low_x, low), (high_x, high)] if low_x <= high_x else [(high_x, high), (low_x, low)]
        for x, y in ends if ends[0] != ends[1] else ends[:1]:
            xs.append(x)
            ys.append(y)
    return xs, ys


def _nonfinite(raw: Raw, pairs: int) -> list[tuple[float, str]]:
    """Return the values that are not finite, with their x; of each of ``pairs`` buckets, one of each kind."""
    found = sorted(_not_finite(raw.pairs[0] + array("d", raw.extremes).tobytes()), key=lambda point: point[0])
    if not found:
        return []
    first, width = found[0][0], (found[-1][0] - found[0][0]) / pairs or 1.0
    kept: dict[tuple[int, str], float] = {}
    for x, value in found:
        kept.setdefault((int((x - first) / width), kind_of(value)), x)
    return [(x, kind) for (_, kind), x in kept.items()]


def _not_finite(pairs: bytes) -> list[tuple[float, float]]:
    try:
        import numpy as np
    except ImportError:
        return [point for point in PAIR.iter_unpack(pairs) if not isfinite(point[1])]
    points = np.frombuffer(pairs).reshape(-1, 2)
    return [(x, value) for x, value in points[~np.isfinite(points[:, 1])].tolist()]


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
