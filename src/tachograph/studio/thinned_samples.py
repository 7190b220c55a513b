"""Samples of gauges and counters for a chart: all of them where they are few, and else an even choice.

A week of a machine is sixty thousand samples a series. Of a gauge each stretch of time is its mean, with the least and
the greatest value; of a counter its last value, from which rates follow exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import isfinite
from typing import Any

from tachograph.runs.file import Look
from tachograph.runs.queries import (
    count_samples,
    read_gauge_stretch,
    read_last_sample,
    read_sample_span,
    read_sample_time_before,
    read_samples,
)

MOST = 200  # stretches of a series, unless asked otherwise
FEW = 2  # so many times as many samples are all sent
_DIGITS = 6  # of means and extremes: more than a chart shows


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
    if count_samples(look.rows, number, low, high, limit=limit + 1) <= limit:
        return None
    ends = read_sample_span(look.rows, number, low, high)
    if ends is None:  # the file is damaged
        return None
    first, last = ends
    before = read_sample_time_before(look.rows, number, first) if shape == "counter" else None
    first = first if before is None else before
    step = -(-(last - first + 1) // most)
    edges = [(first + place * step, first + (place + 1) * step) for place in range(most)]
    columns = _thin_counter(look, number, edges) if shape == "counter" else _thin_gauge(look, number, edges)
    joined = max(2, round((last - first) / max(1, _usual_interval(look, number, first))) // most)
    return {"series": number, **columns, "joined": joined}


def _usual_interval(look: Look, number: int, first: int) -> int:
    """Return the usual time between two samples, by the first few."""
    times = [sample.time for sample in read_samples(look.rows, number, low=first, limit=20)]
    gaps = sorted(after - before for before, after in pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 1


def _thin_gauge(look: Look, number: int, edges: Iterable[tuple[int, int]]) -> dict[str, Any]:
    means = [each for begin, end in edges if (each := read_gauge_stretch(look.rows, number, begin, end)) is not None]
    return {
        "time": [each.time for each in means],
        "value": [_rounded(each.mean) for each in means],
        "min": [_rounded(each.min) for each in means],
        "max": [_rounded(each.max) for each in means],
    }


def _thin_counter(look: Look, number: int, edges: Iterable[tuple[int, int]]) -> dict[str, Any]:
    samples = [each for begin, end in edges if (each := read_last_sample(look.rows, number, begin, end)) is not None]
    values = [each.value if _is_finite(each.value) else None for each in samples]
    return {"time": [each.time for each in samples], "value": values}


def _is_finite(value: Any) -> bool:
    return value is not None and isfinite(value)


def _rounded(value: Any) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if _is_finite(value) else None
