"""Feeding: distributions join the collections of a program's own readers, exact at any rate, whatever the reader."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    ExemplarFilter,
    Histogram,
    MeterProvider,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from examples import examples
from metric_programs import Collector, OtherReader, Program, dropped, series
from programs import run
from receivers import receiving
from tachograph.exporters.external_provider import ExternalProvider
from tachograph.instrumentation._bridge import Bridge, BridgedStats
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.monitor.stat import Stat
from tachograph.monitor.stat_window import Aggregation
from tachograph.recording.accumulators import Distribution
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

DELTA, CUMULATIVE = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE
EXACT = 1e-12


def delta_reader() -> InMemoryMetricReader:
    """Return a reader that wants histograms as differences."""
    return InMemoryMetricReader(preferred_temporality={Histogram: DELTA})


def errors(registry: Registry) -> float:
    """Return how many errors were counted."""
    return sum(
        point.value for found in registry.collect() if found.name == "tachograph.errors" for point in found.points
    )


def stat_of(registry: Registry, name: str) -> Stat:
    """Return a Stat whose windows are closed by hand."""
    windows = Windows(EventLog(Journal(registry), registry), registry, threaded=False)
    return Stat(name, (Aggregation.MEAN,), timedelta(hours=1), boundaries=[1, 10, 100], unit="s", windows=windows)


@pytest.mark.process
@pytest.mark.parametrize("temporality", [CUMULATIVE, DELTA])
def test_a_hundred_thousand_values_a_second_arrive_exactly(temporality: AggregationTemporality) -> None:
    """While a periodic reader exports: counts, buckets and sums are exact, and nothing is dropped or stands beside."""
    collector = Collector(preferred_temporality={Histogram: temporality})
    reader = PeriodicExportingMetricReader(collector, export_interval_millis=100)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    registry = Registry(enabled=True)
    external = ExternalProvider(provider, registry)
    record = registry.group("train").instrument("fetch_seconds").bind()
    values = [(number * 7919 % 100_003) / 977 for number in range(100_000)]

    def train() -> None:
        began = time.perf_counter()
        for start in range(0, 100_000, 1_000):
            for value in values[start : start + 1_000]:
                record(value)
            time.sleep(max(0.0, began + start / 100_000 - time.perf_counter()))

    training = threading.Thread(target=train)
    training.start()
    while training.is_alive():
        external.refresh()
        time.sleep(0.05)
    training.join()
    provider.shutdown()
    points = [found["train", "fetch"] for found in collector.received if ("train", "fetch") in found]
    if temporality is CUMULATIVE:
        assert [point.count for point in points] == sorted(point.count for point in points)
        assert len({point.start_time_unix_nano for point in points}) == 1
        points = points[-1:]
    else:
        for before, after in pairwise(points):
            assert before.time_unix_nano == after.start_time_unix_nano
    assert len(collector.received) > 3, "it exported meanwhile"
    assert sum(point.count for point in points) == 100_000
    assert math.fsum(point.sum for point in points) == pytest.approx(math.fsum(values), rel=EXACT)
    buckets = [sum(counts) for counts in zip(*(point.bucket_counts for point in points), strict=True)]
    bounds = (-math.inf, *points[0].explicit_bounds, math.inf)
    assert buckets == [sum(low < v <= high for v in values) for low, high in pairwise(bounds)]
    names = {key[1] for found in collector.received for key in found}
    assert not names & {"fetch.count", "fetch.sum", "tachograph.dropped"}
    external.close()


def test_every_kind_of_distribution_is_fed() -> None:
    """An instrument's, a profiled function's, a Stat's and a bridged Stat's arrive with count, sum and buckets."""
    program = Program(resource=Resource({"service.name": "theirs"}))
    group = program.registry.group("train")
    stat = stat_of(program.registry, "load")
    bridged = BridgedStats(program.registry)
    program.join()
    for number in range(1_000):
        stat.add(number % 50)
    bridged.add({"fetch.count": 10, "fetch.sum": 20, "fetch.min": 1, "fetch.max": 3}, time.time_ns())
    group.function("f").success.record(0.1)
    group.instrument("step.duration.ms").record(7, {"rank": 1})
    data = program.reader.get_metrics_data()
    (resource,) = data.resource_metrics
    assert resource.resource.attributes["service.name"] == "theirs"
    scopes = [scope.scope.name for scope in resource.scope_metrics]
    assert len(scopes) == len(set(scopes)), "gauges and distributions of a scope come under it together"
    points = series(data)
    load = points["torch.monitor", "load"]
    assert (load.count, load.sum, load.min, load.max) == (1_000, 24_500, 0, 49)
    assert load.bucket_counts == (40, 180, 780, 0)
    fetch = points["torch.monitor", "fetch"]
    assert (fetch.count, fetch.sum, fetch.min, fetch.max, fetch.bucket_counts) == (10, 20, 1, 3, (10,))
    assert points["train", "function.duration", ("code.function.name", "f"), ("outcome", "success")].count == 1
    assert points["train", "step.duration", ("rank", 1)].sum == 7
    del stat
    program.end()


@pytest.mark.process
@pytest.mark.torch
def test_the_real_torch_monitor_arrives_as_ours_does() -> None:
    """A Stat of torch's own, in C++: its windows come over the bridge, and add up to one histogram in their reader."""
    monitor = pytest.importorskip("torch.monitor")
    program = Program()
    bridge = Bridge(monitor, Journal(program.registry), program.registry, limit=1_000)
    program.join()
    asked = [getattr(monitor.Aggregation, name) for name in ("COUNT", "SUM", "MIN", "MAX", "MEAN")]
    stat = monitor.Stat("load", asked, timedelta(hours=1), 100)
    try:
        for number in range(1_000):
            stat.add(number)
            if number % 100 == 99:  # the window is full; the next one is made at the hour only
                del stat
                stat = monitor.Stat("load", asked, timedelta(hours=1), 100)
        assert bridge.drain()
        load = program.collected()["torch.monitor", "load"]
        assert (load.count, load.sum, load.min, load.max) == (1_000, 499_500, 0, 999)
    finally:
        bridge.close()
        program.end()


def test_a_stat_that_cannot_be_replayed_is_exact_beside_and_counted() -> None:
    """Under replay a Stat has no values to hand on: exact count and sum are there, and the lack is counted, once."""
    program = Program(OtherReader())
    stat = stat_of(program.registry, "load")
    external = program.join()
    for _ in range(3):
        for number in range(1_000):
            stat.add(number)
        external.refresh()
        external.refresh()
    points = program.collected()
    assert points["torch.monitor", "load.count"].value == 3_000
    assert points["torch.monitor", "load.sum"].value == 3 * sum(range(1_000))
    assert dropped(points, "replay_aggregated") == 3_000
    external.close()
    program.join().refresh()
    assert dropped(program.collected(), "replay_aggregated") == 3_000
    program.end()


DOCUMENTED = """
import sys, time
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
reader = PeriodicExportingMetricReader(
    ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n"), export_interval_millis=3_600_000
)
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
import tachograph
from tachograph.monitor import Aggregation, Stat
from datetime import timedelta
from itertools import pairwise
if sys.argv[1] != "again":
    tachograph.start()
stat = Stat("load", [Aggregation.MEAN], timedelta(seconds=60))
fetch = tachograph.declare("fetch_seconds")
for number in range(1_000):
    stat.add(number)
    fetch.record(number)
if sys.argv[1] == "again":
    for _ in range(2):
        tachograph.start().shutdown()
        fetch.record(1)
    tachograph.start()
if sys.argv[1] == "shutdown":
    time.sleep(1.5)  # our next look at what is new
    for number in range(1_000):
        stat.add(number)
        fetch.record(number)
    metrics.get_meter_provider().shutdown()
"""


def console(output: str, metric: str) -> list[dict[str, Any]]:
    """Return the only point of a metric in each export of a ConsoleMetricExporter that has it."""
    return [
        found["data"]["data_points"][0]
        for line in output.splitlines()
        for resource in json.loads(line)["resource_metrics"]
        for scope in resource["scope_metrics"]
        for found in scope["metrics"]
        if found["name"] == metric
    ]


@pytest.mark.process
@pytest.mark.parametrize("way", ["exit", "shutdown", "again"])
def test_a_program_as_opentelemetry_teaches_it(tmp_path: Path, way: str) -> None:
    """Its console shows the Stat and the distribution, whole: at exit, at its own shutdown, after several starts."""
    done = run(tmp_path, DOCUMENTED, way)
    assert done.returncode == 0, done.stderr
    load, fetch = console(done.stdout, "load"), console(done.stdout, "fetch")
    times = 2 if way == "shutdown" else 1
    assert (load[-1]["count"], load[-1]["sum"]) == (times * 1_000, times * 499_500), done.stderr
    assert fetch[-1]["count"] == times * 1_000 + (2 if way == "again" else 0)
    assert len({point["start_time_unix_nano"] for point in fetch}) == 1
    assert console(done.stdout, "tachograph.dropped") == []


@pytest.mark.process
def test_an_official_otlp_exporter_of_theirs_delivers_it() -> None:
    """A periodic reader with OpenTelemetry's own OTLP exporter sends our histogram, in its resource, to a receiver."""
    with receiving() as server:
        exporter = OTLPMetricExporter(server.url, preferred_temporality={Histogram: DELTA})
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
        provider = MeterProvider([reader], Resource({"service.name": "theirs"}), shutdown_on_exit=False)
        registry = Registry(enabled=True)
        external = ExternalProvider(provider, registry)
        fetch = registry.group("train").instrument("fetch_seconds")
        for count in (3_000, 5_000):
            for _ in range(count):
                fetch.record(0.25, {"split": "eval"})
            assert external.drain(5)
            assert external.force_flush(5)
        provider.shutdown()
        external.close()
    points = [
        (resource.resource.attributes[0].value.string_value, metric.histogram.aggregation_temporality, point)
        for _, _, body in server.requests
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.histogram.data_points
        if metric.name == "fetch"
    ]
    assert [(service, temporality) for service, temporality, _ in points] == [("theirs", 1)] * 2
    assert [point.count for *_, point in points] == [3_000, 5_000]
    assert [point.sum for *_, point in points] == [750, 1_250]
    assert points[0][2].min == points[0][2].max == 0.25
    assert not points[1][2].HasField("min"), "the extremes of a difference are told only where they are known"


def test_a_prometheus_reader_of_theirs_shows_it() -> None:
    """Each scrape has the whole histogram once, however many values came, beside what the program itself has."""
    page = CollectorRegistry()
    program = Program(PrometheusMetricReader(registry=page))
    theirs = program.provider.get_meter("theirs").create_counter("requests")
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    for number in range(1, 4):
        for _ in range(5_000):
            fetch.record(0.5, {"split": "eval"})
        fetch.record(0.5)
        theirs.add(1)
        external.refresh()
        families = {found.name: found for found in text_string_to_metric_families(generate_latest(page).decode())}
        counts = {
            sample.labels["split"]: sample.value
            for sample in families["fetch_seconds"].samples
            if sample.name == "fetch_seconds_count"
        }
        assert counts == {"eval": 5_000 * number, "": number}
        assert families["requests"].samples[0].value == number
    program.end()


def test_the_reader_collects_when_it_did_and_has_its_own_callable_back() -> None:
    """We cause no collection, and nothing of the reader is ours after close()."""
    collections: list[float] = []

    class Counting(InMemoryMetricReader):
        def _receive_metrics(self, *args: Any, **more: Any) -> None:
            collections.append(1)
            super()._receive_metrics(*args, **more)

    program = Program(Counting())
    before = dict(vars(program.reader))
    external = program.join()
    program.registry.group("train").instrument("fetch_seconds").record(1)
    for _ in range(5):
        external.refresh()
        external.drain(1)
    assert not collections
    program.collected()
    assert len(collections) == 1
    external.close()
    assert vars(program.reader)["_collect"] == before["_collect"]
    assert vars(program.reader).keys() == before.keys()
    program.end()


def test_a_collection_in_which_the_sdk_has_nothing_is_ours_alone() -> None:
    """Where only a distribution has values the reader gets it; where nothing has it gets nothing, as without us."""
    program = Program(delta_reader())
    fetch = program.registry.group("train").instrument("fetch_seconds")
    program.join()
    assert program.reader.get_metrics_data() is None
    fetch.record(1)
    assert list(program.collected()) == [("train", "fetch")]
    assert program.reader.get_metrics_data() is None
    program.end()


def test_views_that_drop_everything_drop_it() -> None:
    """The documented "disable default views" disables ours, and a further view lets one distribution through."""
    from opentelemetry.sdk.metrics.view import DropAggregation

    views = [View(instrument_name="*", aggregation=DropAggregation()), View(instrument_name="fetch")]
    program = Program(views=views)
    for name in ("fetch_seconds", "wait_seconds", "loss"):
        program.registry.group("train").instrument(name).record(1)
    program.join()
    assert list(program.collected()) == [("train", "fetch")]
    program.end()


def test_negative_values_are_in_a_fed_histogram() -> None:
    """Nothing is refused: minimum and sum are what they are, as on our own ways out, and no sum stands beside."""
    program = Program()
    change = program.registry.group("train").declare(
        "change", kind="histogram", unit="", description="", boundaries=[0]
    )
    program.join()
    for value in (1, -3, 1):
        change.record(value)
    points = program.collected()
    point = points["train", "change"]
    assert (point.count, point.sum, point.min, point.bucket_counts) == (3, -1, -3, (1, 2))
    assert [key[1] for key in points] == ["change"]
    program.end()


def test_a_late_reader_is_fed_and_one_that_is_removed_is_let_go() -> None:
    """``add_metric_reader`` after joining: it has everything in its next collection. A removed one stays as it is."""
    program = Program()
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    fetch.record(1)
    late = delta_reader()
    program.provider.add_metric_reader(late)
    program.collected()  # a collection of any reader finds it
    fetch.record(2)
    assert series(late.get_metrics_data())["train", "fetch"].sum == 3
    program.provider.remove_metric_reader(late)
    fetch.record(3)
    external.refresh()
    assert late.get_metrics_data() is None
    program.provider.add_metric_reader(late)
    external.refresh()
    assert series(late.get_metrics_data())["train", "fetch"].sum == 3, "what it had is not sent twice"
    assert program.collected()["train", "fetch"].sum == 6
    program.end()


def test_flushing_reaches_a_late_periodic_reader() -> None:
    """The SDK's own ``force_flush`` does not: a flush of ours leaves nothing behind in it."""
    program = Program()
    collector = Collector()
    late = PeriodicExportingMetricReader(collector, export_interval_millis=3_600_000)
    program.provider.add_metric_reader(late)
    external = program.join()
    program.registry.group("train").instrument("fetch_seconds").record(1)
    assert external.drain(5)
    assert external.force_flush(5)
    assert collector.received[-1]["train", "fetch"].count == 1
    program.end()
    late.shutdown()


class Course:
    """What happens to a program that is joined, and what of its values has arrived in its reader, as differences."""

    def __init__(self) -> None:
        self.program = Program(delta_reader())
        self._values = {
            "fetch": self.program.registry.group("train").instrument("fetch_seconds").bind(),
            "load": stat_of(self.program.registry, "load").add,
        }
        self._external = self.program.join()
        self.recorded: Counter[str] = Counter()
        self.arrived: Counter[str] = Counter()
        self.is_replayed = False

    def record(self, name: str, count: int) -> None:
        """Record ones."""
        self.recorded[name] += count
        for _ in range(count):
            self._values[name](1)

    def fold(self) -> None:
        """Let others read the registry."""
        self.program.registry.collect()

    def refresh(self) -> None:
        """Let our tick come, a second later."""
        self.program.clock.now += 1
        self._external.refresh()

    def collect(self) -> Any:
        """Let the reader collect."""
        points = self.program.collected()
        for key, point in points.items():
            if key[1] in self.recorded:
                self.arrived[key[1]] += point.count
        return points

    def rejoin(self) -> None:
        """Shut down and start again."""
        self._external.close()
        self._external = self.program.join()

    def late(self) -> None:
        """Add a reader that is known."""
        self.program.provider.add_metric_reader(delta_reader())

    def unknown(self) -> None:
        """Add a reader that is not."""
        self.is_replayed = True
        self.program.provider.add_metric_reader(OtherReader())


@pytest.mark.process
@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("fetch"), st.integers(1, 3000)),
            st.tuples(st.just("load"), st.integers(1, 9)),
            st.sampled_from(["fold", "refresh", "collect", "rejoin", "late", "unknown"]),
        ),
        max_size=30,
    )
)
def test_nothing_arrives_twice_and_nothing_is_lost_uncounted(steps: list[str | tuple[str, int]]) -> None:
    """Fed, then replayed from the first unknown reader on, joined anew at any time: arrived + counted = recorded."""
    course = Course()
    for step in [*steps, "collect", "refresh", "refresh"]:
        if isinstance(step, tuple):
            course.record(*step)
        else:
            getattr(course, step)()
    course.collect()
    points = course.collect()
    lost = sum(dropped(points, reason) for reason in ("replay_rate", "replay_late", "replay_negative"))
    assert course.arrived["fetch"] + lost == course.recorded["fetch"]
    assert course.arrived["load"] + dropped(points, "replay_aggregated") == course.recorded["load"]
    assert course.is_replayed or not lost
    if lost:
        assert points["train", "fetch.count"].value == course.recorded["fetch"]
    course.program.end()


def test_an_unknown_reader_ends_the_feeding_of_all(caplog: pytest.LogCaptureFixture) -> None:
    """From then on all get what the SDK holds; what they had is not sent again; one line names the reader."""
    program = Program()
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    for _ in range(50):
        fetch.record(1)
    assert program.collected()["train", "fetch"].count == 50
    other = OtherReader()
    program.provider.add_metric_reader(other)
    external.refresh()
    for _ in range(2):
        fetch.record(2)
        for points in (program.collected(), series(other.get_metrics_data())):
            found = points["train", "fetch"]
            assert found.sum == 2 * found.count
    external.refresh()
    points = program.collected()
    assert points["train", "fetch"].count == 2
    assert (points["train", "fetch.count"].value, points["train", "fetch.sum"].value) == (52, 54)
    assert dropped(points, "replay_late") == 0
    (said,) = [record for record in caplog.records if record.name == "tachograph"]
    assert said.levelno == logging.WARNING
    assert "OtherReader" in said.getMessage()
    program.end()


def test_a_provider_of_another_make_is_replayed_into() -> None:
    """An SDK that keeps its parts elsewhere is not known: nothing of its reader is touched, and values are replayed."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    del provider._sdk_config  # as another release that keeps it elsewhere
    registry = Registry(enabled=True)
    external = ExternalProvider(provider, registry)
    fetch = registry.group("train").instrument("fetch_seconds")
    fetch.record(1)
    external.refresh()
    assert series(reader.get_metrics_data())["train", "fetch"].count == 1
    assert reader._collect == provider._measurement_consumer.collect
    external.close()
    provider.shutdown()


def test_another_callable_in_the_seam_is_left_alone() -> None:
    """What others have put in a reader's place to collect is not known, nor taken away when we leave."""
    program = Program()
    collect = program.reader._collect
    calls: list[int] = []

    def others(reader: MetricReader, timeout_millis: float = 10_000) -> MetricsData | None:
        calls.append(1)
        found: MetricsData | None = collect(reader, timeout_millis=timeout_millis)
        return found

    program.reader._set_collect_callback(others)
    external = program.join()
    program.registry.group("train").instrument("fetch_seconds").record(1)
    external.refresh()
    assert program.collected()["train", "fetch"].count == 1
    external.close()
    assert program.reader._collect is others
    assert calls
    program.end()


def test_a_reader_that_raises_is_counted_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """One reader's failure is one line; the other one has everything, and so has a later flush."""

    class Broken(InMemoryMetricReader):
        def _receive_metrics(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken on purpose")

    program = Program()
    program.provider._metric_readers = [program.reader, broken := Broken()]
    program.provider.add_metric_reader(broken)
    external = program.join()
    program.registry.group("train").instrument("fetch_seconds").record(1)
    for number in range(1, 4):
        assert not external.force_flush(5)
        assert errors(program.registry) == number
        assert program.collected()["train", "fetch"].count == 1
    assert len([record for record in caplog.records if record.name == "tachograph"]) == 1
    program.end()


def test_an_exemplar_filter_that_raises_costs_a_collection_of_ours_not_theirs(caplog: pytest.LogCaptureFixture) -> None:
    """The program's filter fails on spans: counted, said once; its own metrics and ours without exemplars go on."""

    class Broken(ExemplarFilter):
        def should_sample(self, _value: Any, _time: int, _attributes: Any, context: Any) -> bool:
            if trace.get_current_span(context).get_span_context().is_valid:
                raise RuntimeError("broken on purpose")
            return False

    program = Program(exemplar_filter=Broken())
    noted = program.registry.group("train").instrument("fetch_seconds")
    noted.record(1)
    program.join()
    assert program.collected()["train", "fetch"].count == 1
    accumulator = noted.all_series()[0][1]
    assert isinstance(accumulator, Distribution)
    accumulator.note(Exemplar(1, time.time_ns(), 0xABC, 0xDEF))
    for _ in range(2):
        points = program.collected()
        assert points["train", "fetch"].count == 1
        assert points["train", "fetch"].exemplars == []
    assert errors(program.registry) == 2
    assert len(caplog.records) == 1
    program.end()


def test_a_provider_without_a_reader_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line and one counted error, after ten seconds or at the first flush; a reader that comes has everything."""
    provider = MeterProvider(shutdown_on_exit=False)
    registry = Registry(enabled=True)
    now = [0.0]
    external = ExternalProvider(provider, registry, clock=lambda: now[0])
    registry.group("train").instrument("fetch_seconds").record(1)
    external.refresh()
    assert not caplog.records
    now[0] = 11.0
    for _ in range(3):
        external.refresh()
        external.drain(1)
    assert [record.getMessage() for record in caplog.records] == [
        "the program's MeterProvider has no reader, so it exports nothing; give it a MetricReader"
    ]
    assert errors(registry) == 1
    reader = delta_reader()
    provider.add_metric_reader(reader)
    external.refresh()
    assert series(reader.get_metrics_data())["train", "fetch"].count == 1
    external.close()
    provider.shutdown()


def test_joining_again_goes_on_where_it_was() -> None:
    """Between two starts nothing leaves, nothing is lost and nothing comes twice, in either temporality."""
    program = Program(delta_reader())
    second = InMemoryMetricReader()
    program.provider.add_metric_reader(second)
    fetch = program.registry.group("train").instrument("fetch_seconds")
    first = program.join()
    fetch.record(1)
    assert program.collected()["train", "fetch"].sum == 1
    started = series(second.get_metrics_data())["train", "fetch"].start_time_unix_nano
    first.close()
    fetch.record(2)
    assert program.reader.get_metrics_data() is None
    assert second.get_metrics_data() is None
    program.join()
    fetch.record(4)
    assert program.collected()["train", "fetch"].sum == 6
    again = series(second.get_metrics_data())["train", "fetch"]
    assert (again.sum, again.start_time_unix_nano) == (7, started)
    assert program.reader.get_metrics_data() is None
    program.end()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(AlwaysOffExemplarFilter(), 0), (TraceBasedExemplarFilter(), 1), (AlwaysOnExemplarFilter(), 1)],
)
def test_exemplars_come_along_where_the_filter_allows_it(chosen: ExemplarFilter, expected: int) -> None:
    """The span that @prof has noted is with the histogram; attributes that a view took off are with the exemplar."""
    views = [View(instrument_name="function.duration", attribute_keys={"outcome"})]
    program = Program(exemplar_filter=chosen, views=views)
    function = program.registry.group("train").function("f")
    program.join()
    function.success.record(0.5)
    function.success.note(Exemplar(0.5, time.time_ns(), 0xABC, 0xDEF))
    point = program.collected()["train", "function.duration", ("outcome", "success")]
    assert len(point.exemplars) == expected
    for exemplar in point.exemplars:
        assert (exemplar.value, exemplar.trace_id, exemplar.span_id) == (0.5, 0xABC, 0xDEF)
        assert exemplar.filtered_attributes == {"code.function.name": "f"}
    assert trace.get_current_span() is trace.INVALID_SPAN
    program.end()


def test_a_histogram_of_theirs_with_our_name_stays_theirs() -> None:
    """The same meter, name, unit and description: each keeps its own values, ours under another name."""
    program = Program()
    theirs = program.provider.get_meter("train").create_histogram("fetch", "s", "fetch_seconds")
    theirs.record(9)
    program.registry.group("train").instrument("fetch_seconds").record(1)
    program.join()
    points = program.collected()
    assert (points["train", "fetch"].sum, points["train", "fetch_2"].sum) == (9, 1)
    program.end()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("helpers", [False, True])
def test_a_forked_child_is_fed_nothing_of_its_parent(helpers: bool) -> None:
    """A child's readers get no value that it has inherited, and where it records for itself only its own."""
    program = Program(delta_reader())
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    fetch.record(1)
    program.collected()
    fetch.record(2)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        external.reset_in_child()
        program.registry.reset()
        from tachograph.recording.switch import switch

        switch.on = helpers
        fetch.record(8)
        found = series(program.reader.get_metrics_data())
        os.write(write_end, repr([point.sum for key, point in found.items() if key[1] == "fetch"]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        assert answer.read() == ("[8]" if helpers else "[]")
    assert program.collected()["train", "fetch"].sum == 2
    program.end()


@pytest.mark.process
def test_one_reader_that_is_collected_by_two_threads_has_each_value_once() -> None:
    """A flush beside the reader's own timer: the deltas of both add up to what was recorded."""
    arrived: list[int] = []

    class Adding(InMemoryMetricReader):
        def _receive_metrics(self, metrics_data: MetricsData, *_: Any, **__: Any) -> None:
            arrived.extend(point.count for key, point in series(metrics_data).items() if key[1] == "fetch")

    program = Program(Adding(preferred_temporality={Histogram: DELTA}))
    record = program.registry.group("train").instrument("fetch_seconds").bind()
    external = program.join()
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            program.reader.collect()

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(30_000):
        record(number)
        if number % 5_000 == 0:
            external.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    program.reader.collect()
    assert sum(arrived) == 30_000
    assert min(arrived) > 0
    program.end()
