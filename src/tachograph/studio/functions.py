"""The profiled functions of a run, from the last state of their series."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from tachograph.runs.buckets import Buckets
from tachograph.runs.look import Look
from tachograph.runs.members import mapping, rank_of

DURATION, CALLS = "function.duration", "function.calls"


def functions(look: Look) -> list[dict[str, Any]]:
    """Return calls, mean, median and 99th percentile (seconds), and failures by type of error, of each function.

    Percentiles are interpolated within a histogram's buckets.
    """
    durations: dict[tuple[str, int | None, str], Buckets] = {}
    failures: dict[tuple[str, int | None, str], dict[str, int]] = {}
    for name, attributes, resource, data in look.rows(
        "SELECT name, attributes, resource, data FROM series JOIN state ON series.id = state.series"
        " JOIN process ON process.id = process WHERE name IN (?, ?) ORDER BY series.id",
        *(DURATION, CALLS),
    ):
        try:
            told: dict[str, Any] = dict(json.loads(attributes))
            amount = _shown(json.loads(data))
        except (ValueError, TypeError, LookupError) as error:
            look.file.note(f"a state of {name}: {error}")
            continue
        who = mapping(resource)
        key = str(told.get("code.function.name", "")), rank_of(who), str(who.get("dl.role", ""))
        if isinstance(amount, Buckets):
            durations[key] = durations[key] + amount if key in durations else amount
        elif told.get("outcome") == "failure" and amount is not None:
            errors = failures.setdefault(key, {})
            kind = str(told.get("error.type", ""))
            errors[kind] = errors.get(kind, 0) + int(amount)
    return [_function(key, found, failures.get(key, {})) for key, found in durations.items()]


def _function(key: tuple[str, int | None, str], found: Buckets, failures: Mapping[str, int]) -> dict[str, Any]:
    name, rank, role = key
    mean = found.total / found.count if found.count else None
    middle, high = (mean if found.count == 1 else percentile(found, share) for share in (0.5, 0.99))
    about = {"function": name, "rank": rank, "role": role, "calls": found.count, "failures": failures}
    return {**about, "mean": mean, "p50": middle, "p99": high}


def percentile(of: Buckets, share: float) -> float | None:
    """Return the value that ``share`` of the values do not exceed; None where the buckets do not tell.

    Within a bucket values are taken to lie evenly, from 0 on in the first one; above the last bound that one is all
    that is known.
    """
    if not of.count or not of.bounds:
        return None
    wanted = share * of.count
    for place, reached in enumerate(accumulate(of.counts)):
        if reached >= wanted and of.counts[place]:
            if place == len(of.bounds):
                break
            upper = of.bounds[place]
            lower = of.bounds[place - 1] if place else min(0.0, upper)
            return lower + (upper - lower) * (wanted - reached + of.counts[place]) / of.counts[place]
    return of.bounds[-1]


def _shown(state: Any) -> Any:
    """Return what the page shows of a series: see :meth:`tachograph.hub._series.Series.shown`."""
    value, before = (_amount(part) for part in state[2:4])
    if before is None:
        return value
    return before if value is None else before + value


def _amount(parts: Any) -> Any:
    return Buckets(parts[0], parts[1], tuple(parts[2]), tuple(parts[3])) if isinstance(parts, list) else parts
