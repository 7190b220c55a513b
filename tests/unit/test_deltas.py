"""Differences of cumulative points: nothing negative, nothing twice."""

from __future__ import annotations

import math

from tachograph.exporters._deltas import Deltas
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.summary import Exemplar, Total, ValueSummary


def metric(kind: str, *points: NumberPoint | HistogramPoint) -> MetricPoints:
    """Return a metric with these points."""
    return MetricPoints("g", "m", "s", kind, "d", points)  # type: ignore[arg-type]


def histogram(count: int, high: float, *seen: int) -> HistogramPoint:
    """Return a histogram of ones and ``high``, with exemplars from these times."""
    spread = ValueSummary(count, Total(count), 1, high, (count, 0), 0)
    return HistogramPoint((), spread, (9.0,), 5, tuple(Exemplar(1, time, 1, 1) for time in seen))


def test_a_series_that_falls_has_begun_anew() -> None:
    """Where a sum or a count is lower than before, all of it is new, whatever its start says."""
    deltas = Deltas(frozenset({"counter", "histogram"}))
    for value, wanted in ((7, 7), (9, 2), (4, 4), (4, None)):
        point = NumberPoint((), value, 5)
        found = deltas.since(metric("counter", point), point, 10)
        assert (found.value if isinstance(found, NumberPoint) else found) == wanted
    for count, wanted in ((7, 7), (9, 2), (4, 4), (4, None)):
        spread = histogram(count, 1)
        found = deltas.since(metric("histogram", spread), spread, 10)
        assert (found.summary.count if isinstance(found, HistogramPoint) else found) == wanted


def test_an_exemplar_leaves_once_and_extremes_only_where_they_are_known() -> None:
    """The difference has the exemplars that came since, and an extreme only if it is certain to be new.

    An exemplar may come late, as that of the slowest of a hundred steps does.
    """
    deltas = Deltas(frozenset({"histogram"}))
    first, second = histogram(2, 3, 6, 7), histogram(3, 8, 6, 8, 12)
    assert deltas.since(metric("histogram", first), first, 10) == first
    found = deltas.since(metric("histogram", second), second, 20)
    assert isinstance(found, HistogramPoint)
    assert [exemplar.time_unix_nano for exemplar in found.exemplars] == [8, 12]
    assert found.start_unix_nano == 10
    assert math.isnan(found.summary.minimum)
    assert found.summary.maximum == 8
