"""The newest points of curves, for readers that show the end of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tachograph.runs.blocks import PAIR
from tachograph.runs.file import Look
from tachograph.runs.queries import read_blocks


class NewestPoints(NamedTuple):
    """The last points of a curve's newest branch, in recording order.

    Attributes:
        curve: its number in the file.
        branch: its newest branch.
        x: of each point.
        y: the values; NaN and infinities where they were recorded.
    """

    curve: int
    branch: int
    x: list[float]
    y: list[float]


def newest_points(look: Look, curves: Iterable[int], most: int) -> list[NewestPoints]:
    """Return up to ``most`` points of each curve; curves without points are left out."""
    return [points for curve in curves if (points := _points_of(look, curve, most)).x]


def _points_of(look: Look, curve: int, most: int) -> NewestPoints:
    newest_branch = 0
    points: list[tuple[float, float]] = []
    for stored in read_blocks(look.rows, curve, newest_first=True):
        if points and stored.branch != newest_branch:
            break
        newest_branch = stored.branch
        points = [*PAIR.iter_unpack(stored.block.pairs[-PAIR.size * most :]), *points]
        if len(points) >= most:
            break
    newest = points[-most:]
    return NewestPoints(curve, newest_branch, [x for x, _ in newest], [y for _, y in newest])
