"""The x axis of a chart: a curve's own x, the number of each value, or its time; blocks go on it before thinning."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from tachograph.runs.blocks import HEAD_CELLS, PAIR, Block, PointColumns, Sample, pack, row_of_block, unpack

_SECOND = 1e9  # nanoseconds
_INTERVAL_X = tuple(f"d{name}_x" for name in ("min", "max", "nan", "posinf", "neginf"))  # columns that are an x


class XAxis(NamedTuple):
    """An x axis.

    Attributes:
        kind: ``own`` for the recorded x, ``number`` for that of the value in its branch, from 0, those that a throttle
            held back included, ``time`` for seconds.
        origin: of times, in nanoseconds since the epoch.
    """

    kind: str = "own"
    origin: int = 0

    @property
    def columns(self) -> tuple[str, str]:
        """The columns of a block's ends by which it is found."""
        return ("t0", "t1") if self.kind == "time" else ("x0", "x1")

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of a window as these columns have them; all where they do not tell."""
        if self.kind == "number":
            return float("-inf"), float("inf")
        if self.kind == "time":
            return self.origin + low * _SECOND, self.origin + high * _SECOND
        return low, high


class Placed:
    """The blocks of a branch, one after the other, put on an axis.

    Args:
        axis: not that of the recorded x.
    """

    def __init__(self, axis: XAxis) -> None:
        self._axis = axis
        self._before = 0  # values of the blocks before

    def block(self, block: Block) -> Block:
        """Return a block whose points, and the ends of their intervals, are on the axis.

        Raises:
            ValueError: it is damaged.
        """
        try:
            import numpy as np
        except ImportError:
            return self._slowly(block)
        points = PointColumns(block)
        if self._axis.kind == "time":
            places = (points.cells[:, 1] - self._axis.origin) / _SECOND
        else:
            ends = self._before + np.cumsum(points.column("qcount", 1)[0])
            places = (ends - 1).astype(float)
            self._before = int(ends[-1]) if len(ends) else self._before
        rest = points.cells.copy()
        floats = rest.view("<f8")
        order = np.argsort(points.x, kind="stable")
        for place, name in enumerate(points.names, HEAD_CELLS):
            if name in _INTERVAL_X:  # a NaN, which says that there is none, stays one
                floats[:, place] = np.interp(floats[:, place], points.x[order], places[order])
        return Block(block.form, np.stack([places, points.value], axis=1).tobytes(), rest.tobytes())

    def _slowly(self, block: Block) -> Block:
        samples = list(unpack(block))
        if self._axis.kind == "time":
            places = [(each.time_unix_nano - self._axis.origin) / _SECOND for each in samples]
        else:
            ends = list(accumulate(int(each.more.get("count", 1)) for each in samples))
            places = [float(self._before + end - 1) for end in ends]
            self._before += ends[-1] if ends else 0
        known = sorted(zip((each.x for each in samples), places, strict=True), key=lambda pair: pair[0])
        return pack([_moved(each, place, known) for each, place in zip(samples, places, strict=True)])


def _moved(sample: Sample, place: float, known: list[tuple[float, float]]) -> Sample:
    more = {name: _between(value, known) if f"d{name}" in _INTERVAL_X else value for name, value in sample.more.items()}
    return sample._replace(x=place, more=more)


def _between(x: float, known: list[tuple[float, float]]) -> float:
    """Return the place of an x on the straight line between its neighbours."""
    at = bisect_left(known, x, key=lambda pair: pair[0])
    if at == 0 or at == len(known):
        return known[min(at, len(known) - 1)][1]
    (low, before), (high, behind) = known[at - 1], known[at]
    return before + (behind - before) * (x - low) / (high - low)


_KNOTS = 64  # of a block; and of a branch of many blocks
FEW, FEW_POINTS = 8, 20_000  # blocks, and points of theirs, that are looked at one by one


def knots(blocks: list[tuple[int, int, float, float]], points: list[Block]) -> list[list[float]]:
    """Return pairs of time, in seconds since the epoch, and x by which an event is found on a curve.

    Args:
        blocks: their ends: ``t0``, ``t1``, ``x0``, ``x1``.
        points: the blocks, where they are few.
    """
    found: list[tuple[float, float]] = []
    for block in points:
        _, row = row_of_block(block)
        many = len(block.rest) // row.size
        for place in {*range(0, many, -(-many // _KNOTS) or 1), many - 1}:
            _, time, *_ = row.unpack_from(block.rest, place * row.size)
            found.append((time / _SECOND, PAIR.unpack_from(block.pairs, place * PAIR.size)[0]))
    if not points:
        stride = -(-len(blocks) // _KNOTS) or 1
        for t0, t1, x0, x1 in blocks[::stride] + blocks[-1:]:
            found += [(t0 / _SECOND, x0), (t1 / _SECOND, x1)]
    return [list(each) for each in sorted(set(found))]
