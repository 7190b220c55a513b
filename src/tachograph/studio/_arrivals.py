"""The points of a run's curves that have come since they were read."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tachograph.runs.blocks import Sample, kind_of, told
from tachograph.runs.file import Look
from tachograph.runs.queries import read_blocks, read_last_numbers, read_samples_of_block
from tachograph.studio.charts import curves

MOST_POINTS = 500  # of a curve in one message; beyond them the curve is only named, as stale
_MOST_READ = 4 * MOST_POINTS


class Arrivals(NamedTuple):
    """Arrivals since the last look.

    Attributes:
        curves: the new points of each branch, and the numbers between which they lie: ``after`` is the last one before.
        new: curves that are new.
        stale: curves with too many new points for a message.
    """

    curves: list[dict[str, Any]]
    new: list[int]
    stale: list[int]

    def __bool__(self) -> bool:
        return any(self)


class Heads:
    """The position to which each curve of a run was read.

    Args:
        known: the last number of each curve that was.
    """

    def __init__(self, known: Mapping[int, int] = MappingProxyType({})) -> None:
        self.known = dict(known)

    def begin(self, look: Look) -> None:
        """Begin at the present state."""
        self.known = read_last_numbers(look.rows)

    def arrived(self, look: Look) -> Arrivals:
        """Return the arrivals since the last call."""
        before, self.known = self.known, read_last_numbers(look.rows)
        found = Arrivals([], [], [])
        for curve, head in self.known.items():
            after = before.get(curve)
            if after is None:
                found.new.append(curve)
            elif head > after:
                entries = _entries(look, curve, after)
                if entries is None:
                    found.stale.append(curve)
                else:
                    found.curves.extend(entries)
        return found


def since(look: Look, known: Mapping[int, int], newer: int) -> dict[str, Any]:
    """Return the points that have come since, as a live page gets them, and the metrics that have new curves.

    Args:
        look: at the file.
        known: the last number of each curve that was read.
        newer: the number of the newest curve that was known.
    """
    heads = Heads(known)
    arrived = heads.arrived(look)
    new = {curve for curve in arrived.new if curve > newer}
    named = {(each.group, each.named) for each in curves(look) if each.number in new} if new else set()
    newest = max(heads.known, default=0)
    return {"curves": arrived.curves, "stale": arrived.stale, "new": sorted(named), "newest": newest}


def _entries(look: Look, curve: int, after: int) -> list[dict[str, Any]] | None:
    """Return the new points of a curve by branch, in order; None where there are too many."""
    fresh: list[tuple[int, Sample]] = []
    read = 0
    for block in read_blocks(look.rows, curve, newest_first=True):
        if block.seq1 <= after:
            break
        read += block.points
        if read > _MOST_READ:
            return None
        samples = read_samples_of_block(look.file, block)
        fresh += [(block.branch, sample) for sample in samples if sample.seq > after]
    if len(fresh) > MOST_POINTS:
        return None
    fresh.sort(key=lambda each: each[1].seq)
    entries: list[dict[str, Any]] = []
    for branch, sample in fresh:
        if not entries or entries[-1]["branch"] != branch:
            entries.append({"curve": curve, "branch": branch, "after": after, "seq": after, "points": []})
        entries[-1]["seq"] = after = sample.seq
        entries[-1]["points"] += _points(sample)
    return entries


def _points(sample: Sample) -> list[list[Any]]:
    """Return a point ready to draw; that of a throttled interval has its extremes before it."""
    own = sample.x, sample.value
    points: list[list[Any]] = [
        [x, value] if isfinite(value) else [x, None, kind_of(value)]
        for x, value in [*sorted(told(sample), key=itemgetter(0)), own]
    ]
    before = [each for place, each in enumerate(points[:-1]) if each not in points[:place] and each != points[-1]]
    return [*before, points[-1]]
