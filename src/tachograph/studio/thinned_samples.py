"""Samples of gauges and counters for a chart: all of them where they are few, and else an even choice.

A week of a machine is sixty thousand samples a series. Of a gauge each stretch of time is its mean, with the least and
the greatest value; of a counter its last value, from which rates follow exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from tachograph.runs.file import Look

MOST = 200  # stretches of a series, unless asked otherwise
FEW = 2  # so many times as many samples are all sent
_DIGITS = 6  # of means and extremes: more than a chart shows

Row = Sequence[Any]
_EDGES = "SELECT (SELECT {} FROM sample WHERE series = ?1 AND time >= ?2 AND time <= ?3 ORDER BY time {} LIMIT 1)"
_GAUGE = "SELECT max(time), avg(value), min(value), max(value) FROM sample WHERE series = ? AND time >= ? AND time < ?"
_COUNTER = "SELECT time, value FROM sample WHERE series = ? AND time >= ? AND time < ? ORDER BY time DESC LIMIT 1"
_BEFORE = "SELECT max(time) FROM sample WHERE series = ? AND time < ?"
_MANY = "SELECT count(*) FROM (SELECT 1 FROM sample WHERE series = ? AND time >= ? AND time <= ? LIMIT ?)"


def thinned(look: Look, number: int, shape: str, span: tuple[int, int], most: int) -> dict[str, Any] | None:
    """Return the samples of a series between two times; None where they are few enough to be sent as they are.

    Args:
        look: at the file.
        number: of the series.
        shape: of the series: ``counter``, or another one without buckets.
        span: the first and the last time; a counter has one sample before it.
        most: stretches of time.
    """
    low, high = span
    limit = FEW * most
    many = next((row[0] for row in look.rows(_MANY, number, low, high, limit + 1)), 0)
    if many <= limit:
        return None
    first, last = (next(look.rows(_EDGES.format("time", order), number, low, high))[0] for order in ("", "DESC"))
    if first is None or last is None:  # the file is damaged
        return None
    before = next(look.rows(_BEFORE, number, first))[0] if shape == "counter" else None
    first = first if before is None else before
    step = -(-(last - first + 1) // most)
    edges = [(first + place * step, first + (place + 1) * step) for place in range(most)]
    read = _counter if shape == "counter" else _gauge
    found = {"series": number, **read(lambda statement, *span: next(look.rows(statement, number, *span), None), edges)}
    return {**found, "joined": max(2, round((last - first) / max(1, _usual(look, number, first))) // most)}


def _usual(look: Look, number: int, first: int) -> int:
    """Return the usual time between two samples, by the first few."""
    query = "SELECT time FROM sample WHERE series = ? AND time >= ? ORDER BY time LIMIT 20"
    times = [time for (time,) in look.rows(query, number, first)]
    gaps = sorted(after - before for before, after in pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 1


def _gauge(read: Callable[..., Row | None], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    rows = [row for begin, end in edges if (row := read(_GAUGE, begin, end)) is not None and row[0] is not None]
    columns = {name: [_rounded(row[place]) for row in rows] for place, name in enumerate(("value", "min", "max"), 1)}
    return {"time": [row[0] for row in rows], **columns}


def _counter(read: Callable[..., Row | None], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    rows = [row for begin, end in edges if (row := read(_COUNTER, begin, end)) is not None]
    return {"time": [row[0] for row in rows], "value": [row[1] if _is_finite(row[1]) else None for row in rows]}


def _is_finite(value: Any) -> bool:
    return value is not None and isfinite(value)


def _rounded(value: Any) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if _is_finite(value) else None
