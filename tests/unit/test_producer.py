"""The registry as the SDK's own classes, and OpenTelemetry exporters and torchelastic handlers as destinations."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.resources import Resource

from tachograph.elastic.handlers import MetricData, MetricHandler
from tachograph.exporters._deltas import Deltas
from tachograph.exporters.batch import Batch
from tachograph.exporters.handler_exporter import HandlerExporter
from tachograph.exporters.producer import SdkExporter, merge, sdk_metrics
from tachograph.recording.accumulators import Distribution
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

NOW = 1_800_000_000_000_000_000
RESOURCE = {"service.name": "trainer", "dl.rank": 0}
DELTA = AggregationTemporality.DELTA


def batch(registry: Registry, sdk: MetricsData | None = None, now: int = NOW) -> Batch:
    """Return what the registry holds as a batch."""
    return Batch(registry.collect(), sdk, [], RESOURCE, now)


def metrics_of(data: MetricsData) -> dict[tuple[str, str], Any]:
    """Return every metric by scope and name; none may be there twice."""
    found: dict[tuple[str, str], Any] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                assert (scope.scope.name, metric.name) not in found
                found[scope.scope.name, metric.name] = metric
    return found


class Kept(MetricExporter):
    """An exporter that keeps what it was given, and says what it is told to."""

    def __init__(self, result: MetricExportResult = MetricExportResult.SUCCESS, **preferred: Any) -> None:
        super().__init__(**preferred)
        self.received: list[MetricsData] = []
        self.threads: set[int] = set()
        self.calls: list[str] = []
        self._result = result

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Keep it."""
        del kwargs
        assert timeout_millis > 0
        self.threads.add(threading.get_ident())
        self.received.append(metrics_data)
        return self._result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Say that it was asked."""
        assert timeout_millis > 0
        self.calls.append("flush")
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Say that it was asked."""
        del kwargs
        assert timeout_millis > 0
        self.calls.append("shutdown")


def test_every_kind_becomes_the_sdks_own_class() -> None:
    """Gauges, sums and histograms have the resource, scope, unit, description, attributes and times of the batch."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    group.instrument("loss").record(0.5, {"split": "eval"})
    group.instrument("done.success").record(3)
    fetch = group.declare("fetch_seconds", kind=None, unit=None, description="Loading.", boundaries=[1, 2])
    for value in (0.5, 1, 1.5, 7):
        fetch.record(value)
    data = sdk_metrics(registry.collect(), RESOURCE, NOW)
    assert dict(data.resource_metrics[0].resource.attributes) == RESOURCE
    found = metrics_of(data)
    loss = found["train", "loss"].data.data_points[0]
    assert (loss.value, dict(loss.attributes), loss.time_unix_nano) == (0.5, {"split": "eval"}, NOW)
    done = found["train", "done.success"].data
    assert (done.is_monotonic, done.data_points[0].value) == (True, 3)
    assert done.aggregation_temporality is AggregationTemporality.CUMULATIVE
    assert (found["train", "fetch"].unit, found["train", "fetch"].description) == ("s", "Loading.")
    point = found["train", "fetch"].data.data_points[0]
    assert (point.count, point.sum, point.min, point.max) == (4, 10.0, 0.5, 7)
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([2, 1, 1], [1, 2])
    assert point.start_time_unix_nano == fetch.all_series()[0][1].start_unix_nano
    assert encode_metrics(data).resource_metrics, "the official encoder takes it"


def test_exemplars_keep_their_span() -> None:
    """An exemplar arrives with its value, time, trace and span."""
    registry = Registry(enabled=True)
    fetch = registry.group("train").instrument("fetch_seconds")
    fetch.record(0.5)
    accumulator = fetch.all_series()[0][1]
    assert isinstance(accumulator, Distribution)
    accumulator.note(Exemplar(0.5, NOW, 0xABC, 0xDEF))
    point = metrics_of(sdk_metrics(registry.collect(), RESOURCE, NOW))["train", "fetch"].data.data_points[0]
    (seen,) = point.exemplars
    assert (seen.value, seen.time_unix_nano, seen.trace_id, seen.span_id) == (0.5, NOW, 0xABC, 0xDEF)


def test_no_value_loses_the_batch() -> None:
    """NaN, infinities and integers beyond 64 bits are encoded by the official encoder, each as what it is."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    for name, value in (("nan", math.nan), ("inf", math.inf), ("huge", 2**80), ("flag", True), ("h_seconds", math.nan)):
        group.instrument(name).record(value)
    group.instrument("total.success").record(2**62)
    group.instrument("total.success").record(2**62)
    group.instrument("total.success").record(2**62)
    data = sdk_metrics(registry.collect(), RESOURCE, NOW)
    encode_metrics(data)
    found = {name: metric.data.data_points[0] for (_, name), metric in metrics_of(data).items()}
    assert math.isnan(found["nan"].value)
    assert found["inf"].value == math.inf
    assert found["huge"].value == float(2**80)
    assert found["flag"].value == 1
    assert found["total.success"].value == float(3 * 2**62)
    assert (found["h"].count, found["h"].min, found["h"].max) == (0, None, None)


@given(st.lists(st.lists(st.integers(min_value=0, max_value=10**12), max_size=20), max_size=8))
def test_deltas_add_up_to_the_whole(rounds: Sequence[Sequence[int]]) -> None:
    """However collections fall, the differences add up to everything recorded, and their intervals join."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    deltas = Deltas(frozenset({"counter", "histogram"}))
    counts = total = added = 0
    last_end: int | None = None
    for number, values in enumerate(rounds):
        for value in values:
            group.instrument("fetch_seconds").record(value)
            group.instrument("sent.success").record(value)
        found = metrics_of(sdk_metrics(registry.collect(), RESOURCE, NOW + number, deltas=deltas))
        if not values:
            assert ("train", "fetch") not in found, "nothing new, no point"
            continue
        point = found["train", "fetch"].data.data_points[0]
        assert found["train", "fetch"].data.aggregation_temporality is DELTA
        assert point.count == len(values)
        assert sum(point.bucket_counts) == point.count
        assert point.min in (None, min(values))
        assert point.max in (None, max(values))
        assert last_end in (None, point.start_time_unix_nano)
        last_end = point.time_unix_nano
        counts += point.count
        total += point.sum
        if ("train", "sent.success") in found:
            added += found["train", "sent.success"].data.data_points[0].value
    everything = [value for values in rounds for value in values]
    assert (counts, total, added) == (len(everything), sum(everything), sum(everything))


def test_deltas_of_one_reader_take_nothing_from_another() -> None:
    """Two readers with differences and one without all see everything."""
    registry = Registry(enabled=True)
    one, two = (Deltas(frozenset({"counter"})) for _ in range(2))
    name = ("train", "done.success")
    for expected in (1, 1, 1):
        registry.group("train").instrument("done.success").record(1)
        for deltas in (one, two):
            metric = metrics_of(sdk_metrics(registry.collect(), RESOURCE, NOW, deltas=deltas))[name]
            assert metric.data.data_points[0].value == expected
    assert metrics_of(sdk_metrics(registry.collect(), RESOURCE, NOW))[name].data.data_points[0].value == 3


def test_a_series_that_starts_again_is_whole() -> None:
    """After a reset, the first difference is all that the new series holds, never a negative one."""
    registry = Registry(enabled=True)
    deltas = Deltas(frozenset({"counter"}))
    done = registry.group("train").instrument("done.success")
    done.record(5)
    sdk_metrics(registry.collect(), RESOURCE, NOW, deltas=deltas)
    registry.reset()
    done.record(2)
    found = metrics_of(sdk_metrics(registry.collect(), RESOURCE, NOW + 1, deltas=deltas))
    assert found["train", "done.success"].data.data_points[0].value == 2


@pytest.mark.parametrize(("theirs", "resources"), [(RESOURCE, 1), ({"service.name": "other"}, 2)])
def test_other_libraries_metrics_are_added(theirs: dict[str, Any], resources: int) -> None:
    """What the SDK holds comes beside ours: under the same resource where it is the same, else under its own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=Resource(theirs), shutdown_on_exit=False)
    provider.get_meter("library").create_counter("requests").add(2)
    registry = Registry(enabled=True)
    registry.group("train").instrument("loss").record(1)
    ours = sdk_metrics(registry.collect(), RESOURCE, NOW)
    merged = merge(ours, reader.get_metrics_data())
    assert len(merged.resource_metrics) == resources
    assert set(metrics_of(merged)) >= {("train", "loss"), ("library", "requests")}
    assert merge(ours, None) is ours
    provider.shutdown()


def test_any_exporter_is_a_destination() -> None:
    """An exporter gets each batch in one thread, is flushed and, at the end, shut down."""
    registry = Registry(enabled=True)
    registry.group("train").instrument("loss").record(1)
    exporter = Kept()
    destination = SdkExporter(exporter, registry)
    destination(batch(registry))
    destination(batch(registry))
    assert destination.flush(5)
    assert len(exporter.received) == 2
    assert len(exporter.threads) == 1
    destination.close(5)
    assert exporter.calls == ["flush", "shutdown"]


def test_an_exporter_gets_its_groups_and_its_temporality() -> None:
    """With groups, only those leave; counters and histograms come in the temporality that the exporter prefers."""
    registry = Registry(enabled=True)
    exporter = Kept(preferred_temporality={Counter: DELTA, Histogram: AggregationTemporality.CUMULATIVE})
    destination = SdkExporter(exporter, registry, {"eval"})
    for _ in range(2):
        for group in ("train", "eval"):
            registry.group(group).instrument("done.success").record(2)
            registry.group(group).instrument("fetch_seconds").record(2)
        destination(batch(registry))
    destination.close(5)
    last = metrics_of(exporter.received[-1])
    assert {scope for scope, _ in last} == {"eval"}
    assert last["eval", "done.success"].data.data_points[0].value == 2
    assert last["eval", "fetch"].data.data_points[0].count == 2


def test_a_failing_export_is_counted() -> None:
    """What the exporter did not take is counted by its name, in points."""
    registry = Registry(enabled=True)
    registry.group("train").instrument("loss").record(1)
    destination = SdkExporter(Kept(MetricExportResult.FAILURE), registry)
    destination(batch(registry))
    assert not destination.flush(5)
    destination.close(5)
    dropped = next(found for found in registry.collect() if found.name == "tachograph.dropped")
    assert dropped.points[0].attributes == (("destination", "Kept"), ("reason", "rejected"))
    assert dropped.points[0].value == 1


def test_a_forked_child_exports_nothing_of_its_parent() -> None:
    """After a fork the queue is empty, and the child's first difference is counted from its own start."""
    registry = Registry(enabled=True)
    registry.group("train").instrument("done.success").record(1)
    exporter = Kept(preferred_temporality={Counter: DELTA})
    destination = SdkExporter(exporter, registry)
    destination(batch(registry))
    assert destination.flush(5)
    destination.reset_in_child()
    destination(batch(registry))
    destination.close(5)
    values = [metrics_of(data)["train", "done.success"].data.data_points[0].value for data in exporter.received]
    assert values == [1, 1]


def test_an_object_that_only_exports_is_enough() -> None:
    """A destination needs ``export`` alone: without ``force_flush`` and ``shutdown`` it is flushed and closed, too."""

    class Plain:
        def __init__(self) -> None:
            self.received: list[MetricsData] = []

        def export(self, metrics_data: MetricsData, timeout_millis: float) -> None:
            assert timeout_millis > 0
            self.received.append(metrics_data)

    exporter: Any = Plain()
    registry = Registry(enabled=True)
    for number in range(130):
        registry.group("train").instrument(f"metric{number}").record(1)
    rests: list[int] = []
    destination = SdkExporter(exporter, registry, pace=lambda: rests.append(1))
    destination(batch(registry))
    assert destination.flush(5)
    destination.close(5)
    assert len(metrics_of(exporter.received[0])) == 130
    assert len(rests) >= 2


class Recorder(MetricHandler):
    """A handler that keeps its points, or raises."""

    def __init__(self, *, fails: bool = False) -> None:
        self.points: list[MetricData] = []
        self._fails = fails

    def emit(self, metric_data: MetricData) -> None:
        """Take one point."""
        if self._fails:
            raise RuntimeError("broken on purpose")
        self.points.append(metric_data)


def test_a_handler_is_an_exporter() -> None:
    """Each data point becomes a point of the handler; a histogram is its count, sum, minimum and maximum."""
    registry = Registry(enabled=True)
    group = registry.group("train")
    group.instrument("loss").record(0.5, {"split": "eval", "rank": 0})
    group.instrument("fetch_seconds").record(2)
    group.instrument("fetch_seconds").record(4)
    handler = Recorder()
    exporter = HandlerExporter(handler, registry=registry)
    assert exporter.export(sdk_metrics(registry.collect(), RESOURCE, NOW)) is MetricExportResult.SUCCESS
    assert exporter.force_flush()
    exporter.shutdown()
    train = {(point.name, point.value, point.timestamp) for point in handler.points if point.group_name == "train"}
    seconds = NOW / 1e9
    assert train == {
        ('loss{rank=0,split="eval"}', 0.5, seconds),
        ("fetch.count", 2, seconds),
        ("fetch.sum", 6, seconds),
        ("fetch.min", 2, seconds),
        ("fetch.max", 4, seconds),
    }


def test_a_raising_handler_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A handler's error reaches nobody: each is counted, the first is logged."""
    registry = Registry(enabled=True)
    registry.group("train").instrument("loss").record(1)
    registry.group("train").instrument("accuracy").record(1)
    exporter = HandlerExporter(Recorder(fails=True), registry=registry)
    exporter.export(sdk_metrics(registry.collect(), RESOURCE, NOW))
    errors = next(found for found in registry.collect() if found.name == "tachograph.errors")
    assert errors.points[0].attributes == (("where", "handler"),)
    assert errors.points[0].value == 2
    assert len(caplog.records) == 1


def test_a_handler_behind_the_sdks_own_reader() -> None:
    """The wrapped handler serves a reader of the SDK as well."""
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    handler = Recorder()
    reader = PeriodicExportingMetricReader(HandlerExporter(handler), export_interval_millis=3_600_000)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("library").create_counter("requests").add(2, {"code": 200})
    provider.force_flush()
    provider.shutdown()
    assert ("library", "requests{code=200}", 2) in {point[1:] for point in handler.points}
