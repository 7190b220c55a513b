"""A torchelastic handler as an OpenTelemetry exporter, and an OpenTelemetry exporter as a torchelastic handler."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

import tachograph
from front_door import Kept
from programs import run
from receivers import dropped, grpc_receiving, receiving, silent
from tachograph.elastic import MetricData
from tachograph.otel import HandlerExporter
from tachograph.recording.registry import Registry

DELTA = AggregationTemporality.DELTA


class Flushed(Kept):
    """A handler with the ends that a file has."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._fails = fails

    def flush(self) -> None:
        """Note it, or raise."""
        self.calls.append("flush")
        if self._fails:
            raise OSError("disk full")

    def close(self) -> None:
        """Note it."""
        self.calls.append("close")


@contextmanager
def plain_program(exporter: HandlerExporter, *views: View) -> Iterator[MeterProvider]:
    """Yield the provider of a program that exports to a handler when it is flushed."""
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def record(provider: MeterProvider, *, times: int) -> None:
    """Record the same again and again, a collection after each time."""
    meter = provider.get_meter("library")
    requests, seconds = meter.create_counter("requests"), meter.create_histogram("seconds")
    for _ in range(times):
        requests.add(2, {"code": 200})
        seconds.record(0.5)
        seconds.record(1.5)
        provider.force_flush()


@pytest.mark.parametrize("temporality", ["delta", "cumulative"])
def test_a_handler_gets_the_temporality_that_was_asked_for(temporality: str) -> None:
    """Behind the SDK's periodic reader, each collection is the whole so far, or only that since the last."""
    kept = Kept()
    preferred = {Counter: DELTA, Histogram: DELTA} if temporality == "delta" else None
    with plain_program(HandlerExporter(kept, preferred_temporality=preferred)) as provider:
        record(provider, times=2)
        found = kept.plain()
    once = [("requests{code=200}", 2), ("seconds.count", 2), ("seconds.sum", 2), ("seconds.min", 0.5)]
    twice = once if temporality == "delta" else [(name, value * 2) for name, value in once[:3]] + once[3:]
    maximum = ("seconds.max", 1.5)
    assert found == [("library", *point) for point in (*once, maximum, *twice, maximum)]


def test_a_handler_gets_the_summary_of_an_exponential_histogram() -> None:
    """With the aggregation that the exporter prefers, a histogram is count, sum, minimum and maximum as before."""
    kept = Kept()
    exponential: Any = {Histogram: ExponentialBucketHistogramAggregation()}
    with plain_program(HandlerExporter(kept, preferred_aggregation=exponential)) as provider:
        record(provider, times=1)
        found = kept.plain()[1:]
    assert found == [
        ("library", "seconds.count", 2),
        ("library", "seconds.sum", 2),
        ("library", "seconds.min", 0.5),
        ("library", "seconds.max", 1.5),
    ]


@pytest.mark.parametrize("kind", [ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation])
def test_extremes_that_were_not_recorded_are_left_out(kind: Any) -> None:
    """A histogram whose view records no extremes has none: the SDK's infinities stand for nothing."""
    if "record_min_max" not in signature(kind).parameters:
        pytest.skip("NOT TESTED: the SDK's exponential histogram before 1.44 always has its extremes")
    kept = Kept()
    view = View(instrument_name="seconds", aggregation=kind(record_min_max=False))
    with plain_program(HandlerExporter(kept), view) as provider:
        record(provider, times=1)
        found = [name for _, name, _ in kept.plain()[1:]]
    assert found == ["seconds.count", "seconds.sum"]
    assert all(math.isfinite(point.value) for point in kept.points)


def test_a_handler_is_flushed_and_stays_open() -> None:
    """The provider's flush and end flush the handler; it is the program's to close."""
    handler = Flushed()
    with plain_program(HandlerExporter(handler)) as provider:
        record(provider, times=1)
        assert handler.calls == ["flush"]
    assert handler.calls == ["flush", "flush"]


def test_a_handler_that_cannot_flush_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What flush() raises is counted and logged once, and the answer is that it failed."""
    registry = Registry(enabled=True)
    exporter = HandlerExporter(Flushed(fails=True), registry=registry)
    assert not exporter.force_flush()
    exporter.shutdown()
    errors = next(found for found in registry.collect() if found.name == "tachograph.errors")
    assert [point.value for point in errors.points] == [2]  # type: ignore[union-attr]
    assert len(caplog.records) == 1
    assert HandlerExporter(Kept()).force_flush()


@pytest.mark.parametrize(
    ("handler", "message"),
    [(Kept, r"write Kept\(\), not Kept"), (print, r"an object with emit\(metric_data\)"), (None, "not NoneType: None")],
)
def test_what_is_no_handler_is_refused(handler: Any, message: str) -> None:
    """A class, or what has no emit, is refused where it is given, not at the first export."""
    with pytest.raises(TypeError, match=message):
        HandlerExporter(handler)


def test_start_takes_a_wrapped_handler_only() -> None:
    """A handler as a destination of start() is refused with the two things to write; wrapped it gets each export."""
    kept = Kept()
    for metrics in (kept, ["console", kept]):
        with pytest.raises(TypeError, match=r"metrics= .*tachograph\.otel\.HandlerExporter\(handler\)\).*not Kept"):
            tachograph.start(metrics=metrics)
    with pytest.raises(TypeError, match="logs= must be a name, an exporter, or a sequence of them, not Kept"):
        tachograph.start(logs=kept)
    with tachograph.start(metrics=[HandlerExporter(kept)]) as pipeline:
        tachograph.put_metric("handed.over", 3, "wrapped")
        assert pipeline.flush()
    assert ("wrapped", "handed.over", 3) in kept.plain()


PROGRAM = """
    import sys
    import tachograph
    from opentelemetry.sdk.metrics import Counter, Histogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality, ConsoleMetricExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as http
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as grpc

    def preferred(name):
        return dict.fromkeys((Counter, Histogram), AggregationTemporality[name])

    def exporter(kind, where, temporality):
        if kind == "console":
            return ConsoleMetricExporter()
        more = {"insecure": True} if kind == "grpc" else {}
        return globals()[kind](endpoint=where, preferred_temporality=preferred(temporality), **more)

    tachograph.configure(exporter(*sys.argv[1:]), group="trainer")
    pipeline = tachograph.start(metrics="none")
    for _ in range(2):
        tachograph.put_metric("steps.success", 2, "trainer")
        tachograph.put_metric("step.duration.ms", 8, "trainer")
        tachograph.put_metric("steps.success", 1, "another group")
        assert pipeline.flush()
"""


def sent(bodies: list[bytes]) -> list[dict[str, Any]]:
    """Return each request that has points: value or (count, sum) by name, all in the only scope that was asked for."""
    found = []
    for body in bodies:
        request = ExportMetricsServiceRequest.FromString(body)
        scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"trainer"}
        values: dict[str, Any] = {}
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for number in metric.sum.data_points:
                values[metric.name] = number.as_int or number.as_double
            for histogram in metric.histogram.data_points:
                values[metric.name] = (histogram.count, histogram.sum)
        found += [values] if values else []
    return found


@pytest.mark.process
@pytest.mark.parametrize("temporality", ["DELTA", "CUMULATIVE"])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_an_official_exporter_as_a_handler(kind: str, temporality: str, tmp_path: Path) -> None:
    """configure(OTLPMetricExporter(), group=…) sends that group alone, in the temporality that the exporter prefers."""
    bodies: list[bytes] = []

    def export(body: bytes, _: grpc.ServicerContext) -> bytes:
        bodies.append(body)
        return b""

    with receiving() as server, grpc_receiving(export) as port:
        where = server.url if kind == "http" else f"http://127.0.0.1:{port}"
        done = run(tmp_path, PROGRAM, kind, where, temporality)
        bodies += [body for _, _, body in server.requests]
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *rest = sent(bodies)
    once, twice = ({"steps.success": 2 * n, "step.duration": (n, 8 * n)} for n in (1, 2))
    assert first == once
    assert second == (once if temporality == "DELTA" else twice)
    assert rest == ([] if temporality == "DELTA" else [twice] * len(rest))


@pytest.mark.process
def test_the_console_exporter_as_a_handler(tmp_path: Path) -> None:
    """configure(ConsoleMetricExporter(), group=…) prints that group's collections, also without a start()."""
    program = PROGRAM.split("    pipeline =", maxsplit=1)[0] + '    tachograph.put_metric("loss", 0.5, "trainer")\n'
    done = run(tmp_path, program, "console", "", "")
    assert (done.returncode, done.stderr) == (0, "")
    (scope,) = json.loads(done.stdout)["resource_metrics"][0]["scope_metrics"]
    assert scope["scope"]["name"] == "trainer"
    assert [metric["name"] for metric in scope["metrics"]] == ["loss"]
    assert scope["metrics"][0]["data"]["data_points"][0]["value"] == 0.5


@pytest.mark.process
def test_a_dead_collector_of_a_configured_exporter_is_counted(tmp_path: Path) -> None:
    """An official exporter whose collector never answers holds up neither the program nor its end."""
    program = PROGRAM.split("    pipeline =", maxsplit=1)[0] + '    tachograph.put_metric("loss", 0.5, "trainer")\n'
    with silent() as port:
        done = run(tmp_path, program, "http", f"http://127.0.0.1:{port}/v1/metrics", "DELTA", timeout=20)
    assert done.returncode == 0
    assert "OTLPMetricExporter: data was lost (shutdown" in done.stderr


@pytest.mark.process
def test_the_official_exporters_refusal_is_a_counted_loss() -> None:
    """What a real receiver refuses is counted as rejected, under the exporter's name."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    from receivers import batch, recorded
    from tachograph.exporters.producer import SdkExporter

    registry = recorded()
    with receiving((400, {}, b"")) as server:
        destination = SdkExporter(OTLPMetricExporter(endpoint=server.url), registry)
        destination(batch(registry))
        assert not destination.flush(10)
        destination.close(5)
    assert dropped(registry) == {"rejected": 1}


def test_a_point_keeps_its_time_and_scope() -> None:
    """MetricData has the collection's time in seconds and the scope's name as its group."""
    kept = Kept()
    with plain_program(HandlerExporter(kept)) as provider:
        provider.get_meter("library").create_gauge("load").set(0.25)
        provider.force_flush()
        (point, *_) = kept.points
    assert isinstance(point, MetricData)
    assert point[1:] == ("library", "load", 0.25)
    assert 1.6e9 < point.timestamp < 1e11
