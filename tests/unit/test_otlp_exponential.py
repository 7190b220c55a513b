"""Exponential histograms as OTLP messages: beside explicit ones for our own hub, in their place for others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
)

from examples import examples
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.settings import AGGREGATIONS, Temporality
from tachograph.recording.exponential import SDK_BUCKETS, ExponentialBuckets, ExponentialHistogram
from tachograph.recording.group import Group
from tachograph.recording.intervals import IntervalReader
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar, Total, ValueSummary

finite = st.floats(-1e6, 1e6)


def no_rest() -> None:
    """Do not rest: nothing else runs in a test."""


class Program:
    """A registry with one reader of intervals, and the encoder of one destination.

    ``now`` is the time of the last collection, ``before`` that of the one before.
    """

    def __init__(self, temporality: Temporality = "cumulative", *, beside: bool = False, size: int = 1000) -> None:
        self.registry = Registry()
        self.reader = self.registry.intervals.open()
        self.before = self.now = 0
        self.temporality: Temporality = temporality
        self.beside, self.size = beside, size
        self.points: list[int] = []
        self.encoder = self.begun()

    def begun(self) -> MetricsEncoder:
        """Return a new encoder for the same receiver."""
        return MetricsEncoder(
            "there",
            self.registry,
            temporality=self.temporality,
            aggregation=AGGREGATIONS[0 if self.beside else 1],
            beside=lambda: self.beside,
            receiver="http://there",
            points_per_request=self.size,
            pace=no_rest,
        )

    def requests(self) -> list[ExportMetricsServiceRequest]:
        """Collect, and return what would be sent."""
        self.before, self.now = self.now, time.time_ns()
        batch = Batch(self.registry.columns(None, self.reader), None, [], {"service.name": "s"}, self.now)
        self.reader.finish()
        found = list(self.encoder.messages(batch))
        self.points += [points for _, points in found]
        return [type(request).FromString(request.SerializeToString()) for request, _ in found]

    def metrics(self, name: str = "t") -> list[Metric]:
        """Collect, and return the messages of a metric in their order."""
        return [metric for request in self.requests() for metric in listed(request) if metric.name == name]


def listed(request: ExportMetricsServiceRequest) -> Iterator[Metric]:
    """Yield the metrics of the user's groups."""
    for scope in request.resource_metrics[0].scope_metrics:
        if scope.scope.name != "tachograph":
            yield from scope.metrics


def recorder(registry: Registry, **attributes: str) -> Any:
    """Return the function that records into the distribution ``t``."""
    group: Group = registry.group("g")
    return group.declare("t", kind="histogram", unit="s", description="T.", boundaries=[1, 2, 4]).bind(**attributes)


def histogram(point: Any) -> ExponentialHistogram:
    """Return a data point as the histogram that it is."""
    assert point.count == point.zero_count + sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts)
    return ExponentialHistogram(
        point.scale,
        point.zero_count,
        ExponentialBuckets(point.positive.offset, tuple(point.positive.bucket_counts)),
        ExponentialBuckets(point.negative.offset, tuple(point.negative.bucket_counts)),
        point.min if point.HasField("min") else math.nan,
        point.max if point.HasField("max") else math.nan,
    )


def test_our_own_hub_gets_the_interval_beside_the_explicit_histogram() -> None:
    """After the explicit message comes one of the same name with the values of the interval, marked; it counts none."""
    program = Program(beside=True)
    record = recorder(program.registry, phase="train")
    for value in (0.5, 0.5, 3.0, 0.0, -2.0, math.nan):
        record(value)
    explicit, beside = program.metrics()
    assert explicit.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert explicit.histogram.data_points[0].count == 5
    assert not explicit.metadata
    assert (beside.name, beside.unit, beside.description) == (explicit.name, explicit.unit, explicit.description)
    assert [(pair.key, pair.value.bool_value) for pair in beside.metadata] == [("tachograph.beside", True)]
    assert beside.exponential_histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
    (point,) = beside.exponential_histogram.data_points
    assert point.attributes == explicit.histogram.data_points[0].attributes
    assert (point.count, point.zero_count, point.min, point.max) == (5, 1, -2.0, 3.0)
    assert histogram(point).quantiles([0.5])[0] == pytest.approx(0.5, rel=0.022)
    assert not point.HasField("sum")
    assert point.start_time_unix_nano == explicit.histogram.data_points[0].start_time_unix_nano
    assert point.time_unix_nano == explicit.histogram.data_points[0].time_unix_nano == program.now
    assert program.points == [2]  # and tachograph.nonfinite


def test_an_interval_that_ends_after_its_values_have_left_is_news() -> None:
    """A collection without intervals sends the explicit histogram; the next one with them sends these."""
    registry = Registry()
    reader, record = registry.intervals.open(), recorder(registry)
    made = MetricsEncoder("there", registry, beside=lambda: True, is_whole=lambda: False, pace=no_rest)

    def sent(of: IntervalReader | None) -> list[str | None]:
        batch = Batch(registry.columns(None, of), None, [], {}, time.time_ns())
        if of is not None:
            of.finish()
        return [metric.WhichOneof("data") for request, _ in made.messages(batch) for metric in listed(request)]

    record(0.5)
    assert sent(None) == ["histogram"]
    assert sent(None) == []
    assert sent(reader) == ["histogram", "exponential_histogram"]
    assert sent(reader) == []
    record(1.5)
    assert sent(reader) == ["histogram", "exponential_histogram"]


def test_each_interval_begins_where_the_last_one_ended() -> None:
    """A slow first step is in the first interval alone; an interval without a value has no point."""
    program = Program(beside=True)
    record = recorder(program.registry)
    record(230.0)
    assert len(program.metrics()) == 2
    record(0.25)
    _, beside = program.metrics()
    (point,) = beside.exponential_histogram.data_points
    assert (point.count, point.min, point.max) == (1, 0.25, 0.25)
    assert point.start_time_unix_nano == program.before
    assert [metric.WhichOneof("data") for metric in program.metrics()] == ["histogram"]
    record(0.5)
    recorder(program.registry, of="another")(1.0)
    explicit, beside = program.metrics()
    one, other = beside.exponential_histogram.data_points
    assert (one.count, one.start_time_unix_nano) == (1, program.before)
    assert other.start_time_unix_nano == explicit.histogram.data_points[1].start_time_unix_nano


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_pair_is_in_one_request_and_in_one_scope(size: int) -> None:
    """However requests are cut, each series' interval comes after the explicit histogram, in the same request."""
    program = Program(beside=True, size=size)
    for number in range(40):
        recorder(program.registry, number=str(number))(number + 1.0)
    program.registry.group("g").instrument("after").record(1)
    seen: list[str] = []
    for request in program.requests():
        found: list[list[str]] = [[], []]
        for metric in listed(request):
            if metric.name == "t":
                points = getattr(metric, metric.WhichOneof("data") or "").data_points
                kind = metric.HasField("exponential_histogram")
                assert kind or not found[1]
                found[kind] += [point.attributes[0].value.string_value for point in points]
        assert found[0] == found[1]
        seen += found[0]
    assert sorted(seen, key=int) == [str(number) for number in range(40)]
    if size == 1000:  # slices of one metric are one message
        recorder(program.registry, number="1")(1.0)
        assert [metric.WhichOneof("data") for metric in program.metrics()] == ["histogram", "exponential_histogram"]


def test_deltas_to_our_own_hub_have_their_intervals_beside_them() -> None:
    """With the temporality delta both messages are of the same interval."""
    program = Program("delta", beside=True)
    record = recorder(program.registry)
    for number in range(1, 4):
        for _ in range(number):
            record(float(number))
        explicit, beside = program.metrics()
        assert explicit.histogram.data_points[0].count == beside.exponential_histogram.data_points[0].count == number


def test_no_other_receiver_gets_them_beside() -> None:
    """As long as the receiver is no hub of ours, as far as is known, explicit histograms leave alone."""
    program = Program(beside=True)
    program.beside = False
    recorder(program.registry)(1.0)
    assert [metric.WhichOneof("data") for metric in program.metrics()] == ["histogram"]


class _Broken:
    """A value of an attribute that cannot be encoded."""

    def __str__(self) -> str:
        raise ValueError("no")


def test_a_series_that_cannot_be_encoded_is_counted_once() -> None:
    """The explicit point and the one beside it are one loss, and the series beside it arrives."""
    program = Program(beside=True)
    recorder(program.registry, of="fine")(1.0)
    recorder(program.registry, of="broken")(1.0)
    series = program.registry.group("g").instruments["t"]._series
    key = next(key for key, (attributes, _) in series.items() if ("of", "broken") in attributes)
    series[key] = ((("of", _Broken()),), series[key][1])  # type: ignore[assignment]
    explicit, beside = program.metrics()
    assert len(explicit.histogram.data_points) == len(beside.exponential_histogram.data_points) == 1
    (lost,) = [metric for metric in program.registry.collect() if metric.name == "tachograph.dropped"]
    assert [point.value for point in lost.points if isinstance(point, NumberPoint)] == [1]


@settings(max_examples=examples(60), deadline=None)
@given(
    rounds=st.lists(st.lists(st.one_of(finite, st.just(math.nan)), max_size=80), min_size=1, max_size=6),
    temporality=st.sampled_from(["cumulative", "delta"]),
)
def test_in_place_all_adds_up(rounds: list[list[float]], temporality: Temporality) -> None:
    """Cumulative or as deltas: count, sum, extremes and buckets are those of the values; no side has more than 160."""
    program = Program(temporality)
    record = recorder(program.registry)
    count, total, everything = 0, 0.0, [value for values in rounds for value in values if not math.isnan(value)]
    known: list[float] = []
    end, arrived = 0, False
    for values in rounds:
        for value in values:
            record(value)
        fresh = [value for value in values if not math.isnan(value)]
        known += fresh
        for metric in program.metrics():
            data = metric.exponential_histogram
            assert (metric.name, metric.unit, metric.description) == ("t", "s", "T.")
            (point,) = data.data_points
            whole = histogram(point)
            assert max(len(whole.positive.counts), len(whole.negative.counts)) <= SDK_BUCKETS
            if temporality == "cumulative":
                assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
                count, total = point.count, point.sum
                of_it = known
            else:
                assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
                assert end in (0, point.start_time_unix_nano)
                count, total, end = count + point.count, total + point.sum, point.time_unix_nano
                of_it = fresh
            assert not of_it or (point.min, point.max) == (min(of_it), max(of_it))
            arrived = True
    assert arrived or not everything
    assert count == len(everything)
    assert total == pytest.approx(math.fsum(everything), abs=1e-6)


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_values_from_before_are_in_the_middle_of_their_explicit_buckets(temporality: Temporality) -> None:
    """What was folded before anything asked for exponential buckets is not lost: the counts are those of the sum."""
    registry = Registry()
    record = recorder(registry)
    for value in (0.5, 1.5, 1.5, 1.5, 9.0):
        record(value)
    registry.collect()
    program = Program(temporality)
    program.registry, program.reader = registry, registry.intervals.open()
    program.encoder = program.begun()
    record(100.0)
    (metric,) = program.metrics()
    (point,) = metric.exponential_histogram.data_points
    found = histogram(point)
    assert (point.count, point.sum, point.min, point.max) == (6, 114.0, 0.5, 100.0)
    assert [found.at_most(bound) for bound in (0.4, 1, 2, 4, 110)] == [0, 1, 4, 4, 6]
    record(3.0)
    (metric,) = program.metrics()
    (point,) = metric.exponential_histogram.data_points
    assert histogram(point).total == (7 if temporality == "cumulative" else 1)


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_an_encoder_goes_on_where_the_last_one_for_its_receiver_ended(temporality: Temporality) -> None:
    """A shutdown and a start send nothing twice and leave nothing out."""
    program = Program(temporality)
    record = recorder(program.registry)
    record(1.0)
    program.metrics()
    program.encoder.close()
    program.registry.intervals.close(program.reader, goes_on=True)
    record(2.0)
    program.reader, program.encoder = program.registry.intervals.open(), program.begun()
    record(4.0)
    (metric,) = program.metrics()
    (point,) = metric.exponential_histogram.data_points
    assert (point.count, point.sum) == ((3, 7.0) if temporality == "cumulative" else (2, 6.0))
    assert histogram(point).quantiles([1.0]) == [4.0]


def test_a_childs_encoder_begins_anew() -> None:
    """After forget() nothing of the parent is in what the child sends."""
    program = Program()
    record = recorder(program.registry)
    record(1.0)
    program.metrics()
    program.registry.reset()
    program.encoder.forget()
    program.reader = program.registry.intervals.open()
    record(4.0)
    (metric,) = program.metrics()
    (point,) = metric.exponential_histogram.data_points
    assert (point.count, point.sum, point.min) == (1, 4.0, 4.0)


def test_exemplars_come_along_in_place() -> None:
    """A data point with exponential buckets has the exemplars of its series."""
    program = Program()
    recorder(program.registry)(1.5)
    series = program.registry.group("g").instruments["t"].series({})
    series.note(Exemplar(1.5, 77, 1, 2))  # type: ignore[union-attr]
    (metric,) = program.metrics()
    (exemplar,) = metric.exponential_histogram.data_points[0].exemplars
    assert (exemplar.as_double, exemplar.time_unix_nano, exemplar.span_id) == (1.5, 77, (2).to_bytes(8, "big"))


def test_what_has_no_single_values_stays_explicit() -> None:
    """The histogram of a Stat, whose windows are sums already, and gauges and counters leave as ever."""
    program = Program()
    program.registry.group("g").instrument("loss").record(0.5)
    program.registry.group("g").instrument("save.success").record(1)
    windows = HistogramPoint((), ValueSummary(3, Total(6), 1.0, 3.0, (1, 1, 1)), (1.0, 2.0), 1, ())
    metric = MetricPoints("g", "load", "s", "histogram", "All values of the Stat load.", [windows])
    program.registry.group("g").sources.append(lambda: iter([metric]))
    kinds = {metric.name: metric.WhichOneof("data") for request in program.requests() for metric in listed(request)}
    assert kinds == {"loss": "gauge", "save.success": "sum", "load": "histogram"}


DONE = st.sampled_from(["record", "record", "record", "metric", "series", "encoder", "hub", "silence"])


@settings(max_examples=examples(100), deadline=None)
@given(done=st.lists(DONE, min_size=1, max_size=12))
@example(done=["hub", "record", "silence"])
@example(done=["hub", "record", "metric"])
@example(done=["hub", "record", "encoder"])
@example(done=["hub", "record", "series"])
def test_each_value_reaches_our_own_hub_once_whatever_happens_meanwhile(done: list[str]) -> None:
    """One that waits, the receiver being no hub for a while, is not lost with the column in which it waits.

    Another metric comes, the metric gets a second series and is no column's any more, another encoder goes on, or the
    group is silenced for a while.
    """
    program = Program(beside=True)
    silenced: set[str] = set()
    program.registry.silence(silenced.__contains__)
    record, recorded, found = recorder(program.registry, of="first"), 0, 0
    group = program.registry.group("g")
    program.registry.group("other").instrument("loss").record(1.0)  # never silenced
    for number, what in enumerate([*done, "record", "end", "end"]):
        if what in {"record", "series"}:
            (record if what == "record" else recorder(program.registry, of="second"))(number + 0.5)
            recorded += 1
        elif what == "metric":
            group.declare(f"another.{number}", kind="histogram", unit="s", description="", boundaries=[1]).record(1.0)
        elif what == "encoder":
            program.encoder.close()
            is_hub, program.beside = program.beside, True
            program.encoder = program.begun()
            program.beside = is_hub
        elif what == "hub":
            program.beside = not program.beside
        elif what == "silence":
            silenced ^= {"g"}
        else:
            program.beside = True
            silenced.clear()
        for metric in program.metrics():
            found += sum(point.count for point in metric.exponential_histogram.data_points)
    assert found == recorded
