"""The series of a run, and their samples: what the system, the GPUs, Stats and everything else has told over time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from tachograph.runs.look import Look
from tachograph.runs.members import mapping, rank_of

MOST_SERIES = 20_000  # that are listed
_KINDS = {"sum": "gauge"}


def series(look: Look) -> list[dict[str, Any]]:
    """Return what series there are, in the order in which they came; at most :data:`MOST_SERIES`."""
    found = []
    for number, scope, name, unit, shape, attributes, resource in look.rows(
        "SELECT series.id, scope, name, unit, shape, attributes, resource FROM series"
        " JOIN process ON process.id = process ORDER BY series.id LIMIT ?",
        MOST_SERIES,
    ):
        try:
            told = dict(json.loads(attributes))
        except (ValueError, TypeError) as error:
            look.file.note(f"the attributes of a series {name!r}: {error}")
            continue
        who = mapping(resource)
        about = {"series": number, "scope": scope, "name": name, "unit": unit, "kind": _KINDS.get(shape, shape)}
        found.append({**about, "attributes": told, "rank": rank_of(who), "role": str(who.get("dl.role", ""))})
    return found


def samples(look: Look, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the samples of series: times in nanoseconds, and values, or of histograms counts and sums between."""
    found = []
    for number in numbers:
        shape = next((row[0] for row in look.rows("SELECT shape FROM series WHERE id = ?", number)), None)
        if shape is not None:
            rows = list(look.rows("SELECT time, value, total FROM sample WHERE series = ? ORDER BY time", number))
            found.append(sampled(number, rows, histogram=shape == "histogram"))
    return found


def news(look: Look, since: int, known: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the samples that have come.

    Args:
        look: at the file.
        since: nanoseconds since the epoch: what is not newer is not looked at.
        known: the time of each series' newest sample that was seen.
    """
    by_series: dict[int, tuple[str, list[tuple[Any, ...]]]] = {}
    for number, shape, *row in look.rows(
        "SELECT id, shape, time, value, total FROM series CROSS JOIN sample ON series = id AND time > ?"
        " ORDER BY id, time",
        since,
    ):
        if row[0] > known.get(number, 0):
            by_series.setdefault(number, (shape, []))[1].append(tuple(row))
    return [sampled(number, rows, histogram=shape == "histogram") for number, (shape, rows) in by_series.items()]


def sampled(number: int, rows: Sequence[tuple[Any, ...]], *, histogram: bool) -> dict[str, Any]:
    """Return a series' samples as the API has them."""
    found: dict[str, Any] = {"series": number, "time": [row[0] for row in rows]}
    if histogram:
        return {**found, "count": [row[1] for row in rows], "total": [_finite(row[2]) for row in rows]}
    return {**found, "value": [_finite(row[1]) for row in rows]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
