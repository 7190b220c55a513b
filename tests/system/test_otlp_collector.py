"""A real OpenTelemetry Collector with ``collector-config/local.yaml`` receives what was recorded."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from collectors import CONFIG, Collector, running
from programs import requests
from servers import find, free_port, otelcol, wait_until
from tachograph.exporters.batch import Batch
from tachograph.exporters.jsonl import JsonLines
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings, Protocol, Temporality
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.recording.accumulators import Distribution
from tachograph.recording.naming import Kind, prometheus_label, prometheus_name
from tachograph.recording.points import Attributes, AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar, Total, ValueSummary

pytestmark = pytest.mark.otelcol

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Run a collector for the whole file."""
    with running(tmp_path_factory.mktemp("collector")) as one:
        yield one


def batch(registry: Registry, job: str, **resource: AttributeValue) -> Batch:
    """Return a batch of what was recorded, from a service called ``job``."""
    return Batch(registry.collect(), None, [], {"service.name": job, **resource}, time.time_ns())


def deliver(exporter: OtlpExporter, *batches: Batch) -> None:
    """Send batches, all of which must arrive."""
    for one in batches:
        exporter(one)
    assert exporter.flush(20)
    exporter.close(1)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_what_was_recorded_is_what_the_collector_shows(collector: Collector, protocol: Protocol) -> None:
    """Gauges, counters and histograms arrive with exactly the recorded values, with the rank as a label."""
    registry = Registry()
    group = registry.group("g")
    job = f"values-{protocol}"
    group.instrument("loss").record(0.1 + 0.2)
    group.instrument("loss").record(float("nan"), {"phase": "eval"})
    for value in (1, 2**40, 5):
        group.instrument("save.success").record(value)
    durations = [0.3, 4.0, 700.5, 2.5, 2.5]
    for value in durations:
        group.instrument("step.duration.ms").record(value)
    resource: dict[str, AttributeValue] = {"dl.rank": 3, "dl.role": "trainer", "dl.run.id": "r", "process.pid": 7}
    deliver(
        OtlpExporter({"metrics": collector.settings("metrics", protocol)}, registry), batch(registry, job, **resource)
    )
    wait_until(lambda: collector.samples(job), 20, collector.server.log)
    found = collector.samples(job)
    own = [(name, labels, value) for name, labels, value in found if labels.get("otel_scope_name") == "g"]
    assert all(
        (labels["dl_rank"], labels["dl_role"], labels["dl_run_id"]) == ("3", "trainer", "r") for _, labels, _ in own
    )
    assert not any("process_pid" in labels for _, labels, _ in own)
    losses = {labels.get("phase", ""): value for name, labels, value in own if name == "loss"}
    assert losses[""] == 0.1 + 0.2
    assert losses["eval"] != losses["eval"]
    values = {name: value for name, labels, value in own if "le" not in labels}
    assert values["save_success_total"] == 2**40 + 6
    assert values["step_duration_milliseconds_count"] == 5
    assert values["step_duration_milliseconds_sum"] == sum(durations)
    buckets = {float(labels["le"]): value for name, labels, value in own if name == "step_duration_milliseconds_bucket"}
    assert buckets == {bound: sum(value <= bound for value in durations) for bound in buckets}
    assert len(buckets) > 10


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_deltas_add_up_in_the_collector(collector: Collector, protocol: Protocol) -> None:
    """With delta temporality the collector's totals are those that were recorded, over several exports."""
    registry = Registry()
    group = registry.group("g")
    job = f"delta-{protocol}"
    exporter = OtlpExporter({"metrics": collector.settings("metrics", protocol, "delta")}, registry)
    for _ in range(4):
        group.instrument("a.success").record(5)
        for value in (0.5, 20):
            group.instrument("a.duration.ms").record(value)
        exporter(batch(registry, job))
        assert exporter.flush(10)
    exporter.close(1)
    wanted = {"a_success_total": 20.0, "a_duration_milliseconds_count": 8.0, "a_duration_milliseconds_sum": 82.0}
    wait_until(lambda: collector.values(job) == wanted, 20, lambda: collector.values(job))


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_spans_arrive(collector: Collector, protocol: Protocol) -> None:
    """Spans end up in the collector's file with their names, identifiers and resource."""
    registry = Registry()
    queue = SpanQueue(registry)
    job = f"spans-{protocol}"
    provider = TracerProvider(
        resource=Resource({"service.name": job}), id_generator=IdGenerator(), shutdown_on_exit=False
    )
    provider.add_span_processor(queue)
    with provider.get_tracer("t").start_as_current_span("step", attributes={"code.function.name": "f"}) as span:
        trace_id = f"{span.get_span_context().trace_id:032x}"
    provider.shutdown()
    exporter = OtlpExporter({"traces": collector.settings("traces", protocol)}, registry)
    deliver(exporter, Batch([], None, queue.drain(), {}, 0))
    wait_until(lambda: collector.file.exists() and trace_id in collector.file.read_text(), 20, collector.server.log)
    (line,) = (json.loads(line) for line in collector.file.read_text().splitlines() if trace_id in line)
    (resource,) = line["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": job}}]
    assert resource["scopeSpans"][0]["spans"][0]["name"] == "step"


def test_exemplars_lead_from_a_bucket_to_its_span(collector: Collector) -> None:
    """The collector's OpenMetrics page shows the trace of an exemplar beside its bucket."""
    registry = Registry()
    histogram = registry.group("g").instrument("exemplar.duration.ms")
    histogram.record(3)
    series = histogram.series({})
    assert isinstance(series, Distribution)
    series.note(Exemplar(3, time.time_ns(), 0x0AF7651916CD43DD8448EB211C80319C, 1))
    deliver(OtlpExporter({"metrics": collector.settings("metrics", "grpc")}, registry), batch(registry, "exemplar"))
    wait_until(lambda: "0af7651916cd43dd8448eb211c80319c" in collector.page(OPEN_METRICS), 20, collector.server.log)


def test_json_lines_can_be_posted_as_they_are(collector: Collector, tmp_path: Path) -> None:
    """Each line of a JSON-lines file is a request that the collector takes, with the values that were recorded."""
    registry = Registry()
    registry.group("g").instrument("loss").record(0.25)
    registry.group("g").instrument("save.success").record(2**53 + 1)
    registry.group("g").instrument("gone").record(float("nan"))
    destination = JsonLines(tmp_path / "a.jsonl", registry)
    destination(batch(registry, "jsonl"))
    assert destination.flush(5)
    destination.close(1)
    for line in (tmp_path / "a.jsonl").read_bytes().splitlines():
        request = urllib.request.Request(
            f"http://127.0.0.1:{collector.http}/v1/metrics", data=line, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
    wait_until(lambda: "loss" in collector.values("jsonl"), 20, collector.server.log)
    assert collector.values("jsonl")["loss"] == 0.25
    assert collector.values("jsonl")["save_success_total"] == float(2**53 + 1)
    assert str(collector.values("jsonl")["gone"]) == "nan"


# Whatever may be in a name or a unit, alone and at every place.
NAMES = (
    *("loss", "a.b.c", "outer.<locals>.inner", "K.In.m", "9lives", "_private", "__dunder", "a__b", "a_", "a.", "x:y"),
    *("::", "日本.loss", "a b", "a-b/c", "total", "x_total", "x.total", "total.x", "a.total.b", "ratio", "x_ratio"),
    *("ratio.x", "seconds", "seconds_fetch", "fetch.seconds.x", "sent.bytes", "bytes", "per_second", "x_per_second"),
    *("meters.per.second", "a%b", "100%", "a._b", "_a_", "camelCase", "HTTP2", "0", "0.5", "1_total", "total_total"),
    *("count", "x_count", "x_sum", "x_bucket", "a\nb", 'a"b', "a\\b", "per", "x.per", "step time (s)", "lr/group 0"),
    *("train:loss", "x.milliseconds", "percent", "x_percent", "days", "celsius", "é.y"),
)
UNITS = (
    *("", "1", "s", "ms", "us", "ns", "By", "KiBy", "MBy", "GiBy", "%", "Hz", "Cel", "d", "h", "min", "W", "J", "kWh"),
    *("{call}", "{step}/s", "By/s", "m/s", "By/min", "1/s", "{a}/{b}", "foo", "foo bar", "s/{call}", "/s", "s/", "per"),
    *("total", "ratio", "%/s", "2", "a/b/c", " s ", "By / s", "{x}s", "tokens", "é", "°", "/", "//s", "{}", "s/wk"),
    *("1/mo", "By/y", "{a}/1", "seconds"),
)
KEYS = (
    *("a", "a.b", "a-b", "_a", "9", "9a", "a b", "a__b", "A", "le", "quantile", "a.", ".a", "key_a", "a:b", ":a", "_9"),
    *("%x", "x%", "a..b", "a___b", "aé日b", "rank", "code.function.name"),
)


def one(kind: Kind, attributes: Attributes = ()) -> NumberPoint | HistogramPoint:
    """Return a point of this kind."""
    if kind == "histogram":
        return HistogramPoint(attributes, ValueSummary(1, Total(1), 1, 1, (1, 0), 0), (5.0,), time.time_ns(), ())
    return NumberPoint(attributes, 1, time.time_ns())


@pytest.mark.parametrize("kind", ["gauge", "counter", "histogram"])
def test_names_are_the_collectors(tmp_path: Path, kind: Kind) -> None:
    """For names and units of every sort our Prometheus name is the one that the collector makes of them."""
    cases = [(name, unit) for name in ("loss", "a.b.c", "x_total", "x.ratio") for unit in UNITS]
    cases += [(name, UNITS[(number * 7 + step) % len(UNITS)]) for number, name in enumerate(NAMES) for step in (0, 5)]
    cases += [(name, unit) for name in NAMES for unit in ("", "s")]
    metrics = [
        MetricPoints(f"case {number}", name, unit, kind, "d", [one(kind)]) for number, (name, unit) in enumerate(cases)
    ]
    suffix = "_count" if kind == "histogram" else ""

    with running(tmp_path) as collector:  # one a kind: a family cannot be of two types on a page

        def found() -> dict[int, str]:
            samples = re.findall(rf'^(\S+?){suffix}\{{.*otel_scope_name="case (\d+)"', collector.page(), re.MULTILINE)
            return {int(number): name for name, number in samples}

        exporter = OtlpExporter({"metrics": collector.settings("metrics", "http/protobuf")}, Registry())
        deliver(exporter, Batch(metrics, None, [], {"service.name": "names"}, time.time_ns()))
        wait_until(lambda: len(found()) == len(cases), 20, lambda: set(range(len(cases))) - set(found()))
        names = found()
    assert {case: names[number] for number, case in enumerate(cases)} == {
        (name, unit): prometheus_name(name, unit, kind) for name, unit in cases
    }


def test_labels_are_the_collectors(collector: Collector) -> None:
    """For attribute keys of every sort our label is the one that the collector makes of them."""
    metrics = [
        MetricPoints("labels", f"label.case.{number}", "", "gauge", "d", [one("gauge", ((key, f"value {number}"),))])
        for number, key in enumerate(KEYS)
    ]
    exporter = OtlpExporter({"metrics": collector.settings("metrics", "http/protobuf")}, Registry())
    deliver(exporter, Batch(metrics, None, [], {"service.name": "labels"}, time.time_ns()))
    wait_until(lambda: len(collector.samples("labels")) >= len(KEYS), 20, lambda: collector.samples("labels"))
    found = {
        KEYS[int(value.removeprefix("value "))]: label
        for _, labels, _ in collector.samples("labels")
        for label, value in labels.items()
        if value.startswith("value ")
    }
    assert found == {key: prometheus_label(key) for key in KEYS}


def test_the_configuration_is_valid_with_its_defaults() -> None:
    """``collector-config/local.yaml`` needs no variable to be set."""
    done: Any = subprocess.run(
        [find("otelcol"), "validate", f"--config={CONFIG}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


FILE_CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "${env:OTLP_HTTP}"}}}}
exporters: {file: {path: "${env:TELEMETRY_FILE}", flush_interval: 100ms}}
service:
  pipelines: {metrics: {receivers: [otlp], exporters: [file]}}
  telemetry: {metrics: {level: none}}
"""


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_exponential_histograms_add_up_in_the_collectors_file(tmp_path: Path, temporality: Temporality) -> None:
    """In place of explicit ones: after three collections the counts, the sum and the extremes are those recorded."""
    config, file, port = tmp_path / "config.yaml", tmp_path / "metrics.jsonl", free_port()
    config.write_text(FILE_CONFIG)
    values = [[-2.5, 0.0, 0.0], [0.001 * 1.01**number for number in range(2000)], [7.0]]
    with otelcol(config, {"OTLP_HTTP": f"127.0.0.1:{port}", "TELEMETRY_FILE": str(file)}) as server:
        registry = Registry()
        reader = registry.intervals.open()
        url = f"http://127.0.0.1:{port}/v1/metrics"
        settings = OtlpSettings(
            "metrics", "http/protobuf", url, temporality=temporality, aggregation="base2_exponential_bucket_histogram"
        )
        exporter = OtlpExporter({"metrics": settings}, registry)
        for each in values:
            for value in each:
                registry.group("g").instrument("step_seconds").record(value)
            exporter(Batch(registry.collect(None, reader), None, [], {"service.name": "s"}, time.time_ns()))
            reader.finish()
            assert exporter.flush(20)
        exporter.close(1)
        wait_until(lambda: len(_exponential(file)) == 3, 20, server.log)
    points = _exponential(file)
    everything = [value for each in values for value in each]
    counts = [_counts(point) for point in points]
    assert [int(point["count"]) for point in points] == [sum(each.values()) for each in counts]
    last = points if temporality == "delta" else points[-1:]
    added = [_counts(point) for point in last]
    assert sum(int(point["count"]) for point in last) == len(everything)
    assert [sum(each[side] for each in added) for side in ("negative", "zero", "positive")] == [1, 2, 2001]
    assert sum(point["sum"] for point in last) == pytest.approx(sum(everything))
    assert (min(point["min"] for point in last), max(point["max"] for point in last)) == (-2.5, max(everything))
    assert max(len(point.get("positive", {}).get("bucketCounts", [])) for point in points) <= 160


def _exponential(file: Path) -> list[dict[str, Any]]:
    """Return the exponential data points of ``step`` in the collector's file."""
    metrics = [
        metric
        for request in requests(file)
        for resource in request["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == "step"
    ]
    assert all("exponentialHistogram" in metric for metric in metrics)
    return [point for metric in metrics for point in metric["exponentialHistogram"]["dataPoints"]]


def _counts(point: dict[str, Any]) -> dict[str, int]:
    """Return how many values a data point has below zero, of zero and above."""
    sides = {side: sum(map(int, point.get(side, {}).get("bucketCounts", []))) for side in ("negative", "positive")}
    return {**sides, "zero": int(point.get("zeroCount", 0))}
