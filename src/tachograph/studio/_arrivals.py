"""The points of a run that have come since the last look, curve by curve."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from tachograph.runs.blocks import Block, Sample, unpack
from tachograph.runs.look import Look
from tachograph.studio._answer import spelled

MOST_POINTS = 500  # of a curve in one message; of more it says only that they are there
_MOST_READ = 4 * MOST_POINTS

# Of each curve the last number that it has come to: the block that begins last has it.
_HEADS = (
    "SELECT id, (SELECT seq1 FROM block INDEXED BY block_order WHERE curve = curve.id ORDER BY seq0 DESC LIMIT 1)"
    " FROM curve"
)
_BLOCKS = "SELECT branch, seq0, seq1, n, form, pairs, rest FROM block WHERE curve = ? ORDER BY seq0 DESC"


class Arrivals(NamedTuple):
    """What has come.

    Attributes:
        curves: of each branch its new points, and between which numbers they lie: ``after`` is the last one before.
        new: curves that were not there.
        stale: curves of which too much has come.
    """

    curves: list[dict[str, Any]]
    new: list[int]
    stale: list[int]

    def __bool__(self) -> bool:
        return any(self)


class Heads:
    """How far each curve of a run was read."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def begin(self, look: Look) -> None:
        """Begin with what there is now."""
        self.known = _heads(look)

    def arrived(self, look: Look) -> Arrivals:
        """Return what has come since the last call."""
        before, self.known = self.known, _heads(look)
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


def _heads(look: Look) -> dict[int, int]:
    return {curve: head or 0 for curve, head in look.rows(_HEADS)}


def _entries(look: Look, curve: int, after: int) -> list[dict[str, Any]] | None:
    """Return the new points of a curve by branch, in order; None where there are too many."""
    fresh: list[tuple[int, Sample]] = []
    read = 0
    for branch, seq0, seq1, n, form, pairs, rest in look.rows(_BLOCKS, curve):
        if seq1 <= after:
            break
        read += n
        if read > _MOST_READ:
            return None
        try:
            fresh += [(branch, sample) for sample in unpack(Block(form, pairs, rest)) if sample.seq > after]
        except ValueError as error:
            look.file.note(f"points {seq0} to {seq1} of a stream: {error}")
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
    """Return a point as it is drawn, that of a throttled interval with its extremes before it."""
    x, value, more = sample.x, sample.value, sample.more
    found: list[list[Any]] = []
    if "min" in more and "max" in more:
        ends = {(more.get("min_x", x), more["min"]), (more.get("max_x", x), more["max"])}
        found += [[at, extreme] for at, extreme in sorted(ends) if (at, extreme) != (x, value)]
    if more.get("nonfinite", 0) > (not isfinite(value)):
        found.append([x, None, "NaN"])
    found.append([x, value] if isfinite(value) else [x, None, spelled(value)])
    return found
