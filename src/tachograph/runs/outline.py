"""The outline of a run for tables: configuration, results, and last, least and greatest value of each metric."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

from tachograph.runs.file import Look
from tachograph.runs.members import dictionary, mapping, notes, rank_of
from tachograph.runs.queries import (
    note_damaged_points,
    read_curve_extents,
    read_curves,
    read_last_block,
    read_streams,
)
from tachograph.runs.recorded import last_moment


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
    extents = read_curve_extents(look.rows)
    ranks = {stream.number: rank_of(mapping(stream.resource)) for stream in read_streams(look.rows)}
    metrics: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for curve in read_curves(look.rows):
        if curve.number in extents:
            rank = ranks.get(curve.stream)
            metrics.setdefault((curve.group, curve.metric), []).append((inf if rank is None else rank, -curve.number))
    for (group, metric), curves in metrics.items():
        name = metric if f"last.{metric}" not in found else f"{group}/{metric}"
        found[sys.intern(f"last.{name}")] = _last(look, -min(curves)[1])
        lows = [low for _, number in curves if (low := extents[-number].min) is not None]
        highs = [high for _, number in curves if (high := extents[-number].max) is not None]
        if lows and highs:
            found[sys.intern(f"min.{name}")], found[sys.intern(f"max.{name}")] = min(lows), max(highs)
    return found


def _last(look: Look, curve: int) -> float | None:
    stored = read_last_block(look.rows, curve)
    if stored is None:
        return None
    try:
        return last_moment(stored.block).value
    except (ValueError, LookupError) as error:
        note_damaged_points(look.file, stored.seq0, stored.seq1, error)
        return None
