"""The outline of a run for tables: configuration, results, and last, least and greatest value of each metric."""

from __future__ import annotations

import sys
from typing import Any

from tachograph.runs.blocks import Block
from tachograph.runs.file import Look
from tachograph.runs.members import dictionary, mapping, notes, rank_of
from tachograph.runs.recorded import last_moment

_CURVES = (
    "SELECT curve.id, curve.scope, curve.metric, resource FROM curve JOIN stream ON stream.id = curve.stream"
    " JOIN process ON process.id = process ORDER BY curve.id"
)
_EXTREMES = "SELECT curve, min(min), max(max) FROM block GROUP BY curve"
_LAST = "SELECT form, pairs, rest, seq0, seq1 FROM block WHERE curve = ? ORDER BY seq1 DESC LIMIT 1"


def outline(look: Look) -> dict[str, Any]:
    """Return columns of a run: ``config.KEY``, ``summary.KEY``, ``last.METRIC``, ``min.…``, ``max.…``, and ``notes``.

    The last value is that of the lowest rank, in its newest start; the least and the greatest are those of all ranks. A
    metric that several groups have is ``group/metric`` in all but the first.
    """
    found: dict[str, Any] = {"notes": notes(look.rows)}
    for key, value in dictionary(look.rows, "config").items():
        found[sys.intern(f"config.{key}")] = value  # one text for the same key of all runs
    for key, value in dictionary(look.rows, "summary").items():
        found[sys.intern(f"summary.{key}")] = value
    extremes = {curve: (low, high) for curve, low, high in look.rows(_EXTREMES)}
    metrics: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for number, group, metric, resource in look.rows(_CURVES):
        if number in extremes:
            rank = rank_of(mapping(resource))
            metrics.setdefault((group, metric), []).append((float("inf") if rank is None else rank, -number))
    for (group, metric), curves in metrics.items():
        name = metric if f"last.{metric}" not in found else f"{group}/{metric}"
        found[sys.intern(f"last.{name}")] = _last(look, -min(curves)[1])
        lows = [low for _, number in curves if (low := extremes[-number][0]) is not None]
        highs = [high for _, number in curves if (high := extremes[-number][1]) is not None]
        if lows and highs:
            found[sys.intern(f"min.{name}")], found[sys.intern(f"max.{name}")] = min(lows), max(highs)
    return found


def _last(look: Look, curve: int) -> float | None:
    row = next(look.rows(_LAST, curve), None)
    if row is None:
        return None
    form, pairs, rest, first, last = row
    try:
        return last_moment(Block(form, pairs, rest)).value
    except (ValueError, LookupError) as error:
        look.file.note(f"points {first} to {last} of a stream: {error}")
        return None
