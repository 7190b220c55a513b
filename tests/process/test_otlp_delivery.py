"""The OTLP destination: dead receivers, several receivers, and what it asks of the SDK."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from hubs import ask, points, serving
from receivers import SECRET, Receiver, batch, dropped, over_http, receiving, recorded, silent
from servers import free_port
from tachograph.exporters.delivery import Clock
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.hub.forwarding import Forwarding
from tachograph.recording.journal import SCHEMA
from tachograph.recording.registry import Registry


@pytest.fixture
def registry() -> Registry:
    """Return a registry in which one value was recorded."""
    return recorded()


@pytest.mark.timing
@pytest.mark.parametrize("protocol", ["http/protobuf", pytest.param("grpc", marks=pytest.mark.long)])
@pytest.mark.parametrize("dead", ["refuses", "is silent"])
def test_a_dead_receiver_costs_no_more_than_a_second(
    registry: Registry, protocol: Any, dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusing or never answering, a receiver delays the end by the time-out alone; the loss is counted and said."""
    with silent() as port:
        where = f"http://127.0.0.1:{port if dead == 'is silent' else free_port()}"
        settings = OtlpSettings(
            signal="metrics", protocol=protocol, endpoint=where, headers=(("x-key", SECRET),), timeout=10
        )
        exporter = OtlpExporter({"metrics": settings}, registry)
        exporter(batch(registry))
        time.sleep(0.2)
        began = time.monotonic()
        exporter.close(1)
        assert time.monotonic() - began < 1.3
    assert dropped(registry) == {"shutdown": 1}
    assert SECRET not in caplog.text


def test_a_dead_receiver_of_spans_holds_up_no_metrics(registry: Registry) -> None:
    """Signals that go to different receivers do not wait for each other."""
    with silent() as port, receiving() as server:
        metrics = over_http(server.url)
        traces = replace(metrics, signal="traces", endpoint=f"http://127.0.0.1:{port}/v1/traces")
        exporter = OtlpExporter({"metrics": metrics, "traces": traces}, registry)
        exporter(replace(batch(registry), spans=ended_spans()))
        exporter(batch(registry))
        deadline = time.monotonic() + 5
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(server.requests) == 2
        exporter.close(0.2)
    assert dropped(registry) == {"shutdown": 1}


def ended_spans() -> list[Any]:
    """Return one span."""
    queue = SpanQueue(Registry())
    provider = TracerProvider(
        resource=Resource({"service.name": "s"}), id_generator=IdGenerator(), shutdown_on_exit=False
    )
    provider.add_span_processor(queue)
    with provider.get_tracer("t").start_as_current_span("work"):
        pass
    provider.shutdown()
    return queue.drain()


def test_our_own_requests_are_not_traced(registry: Registry) -> None:
    """While we post, instrumentation of HTTP libraries is suppressed; else each export would cause another."""
    seen: list[object] = []
    with receiving() as server:
        by_requests = server.url.replace("http://", "http://user:word@")  # which instrumentors patch
        exporter = OtlpExporter({"metrics": over_http(by_requests)}, registry)
        sender: Any = exporter._senders["metrics"]
        sender._post._session.hooks["response"] = lambda *_, **__: seen.append(
            context.get_value("suppress_instrumentation")
        )
        exporter(batch(registry))
        assert exporter.flush(5)
        exporter.close(1)
    assert seen == [True]


@pytest.mark.parametrize(
    ("temporality", "kinds"),
    [
        ("cumulative", set()),
        ("delta", {"Counter", "Histogram", "ObservableCounter"}),
        ("lowmemory", {"Counter", "Histogram"}),
    ],
)
def test_the_temporality_preference_reaches_sdk_instruments(temporality: Any, kinds: set[str]) -> None:
    """What the specification says about each preference is what SDK readers are asked for."""
    exporter = OtlpExporter({"metrics": over_http("http://127.0.0.1:1", temporality=temporality)}, Registry())
    assert {kind.__name__ for kind in exporter.temporality or {}} == kinds
    exporter.close(0)


def test_a_later_exporter_for_the_same_receiver_repeats_no_differences() -> None:
    """After a shutdown() and a start(), differences go on where they were; another receiver is told everything."""
    registry = Registry()
    record = registry.group("g").instrument("step.success").record
    with receiving() as server, receiving() as other:
        for number, receiver in enumerate((server, server, other, server), 1):
            exporter = OtlpExporter({"metrics": over_http(receiver.url, temporality="delta")}, registry)
            record(number)
            exporter(batch(registry))
            exporter.close(5)
        assert [steps(server), steps(other)] == [[1, 2, 3 + 4], [1 + 2 + 3]]


class _Told(Clock):
    """Seconds that a test says."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


def test_our_own_hub_gets_only_what_has_changed_and_all_of_it_anew_where_it_may_have_lost_some(tmp_path: Path) -> None:
    """A series without news is sent every 30 s, after another connection, and at the end; the hub shows it always."""
    registry, port, clock = Registry(), free_port(), _Told()
    group = registry.group("g")
    for number in range(20):
        group.instrument(f"steady.{number}").record(0.5)
    group.instrument("some.success").record(2)

    def sent(exporter: OtlpExporter, url: str) -> int:
        before = points(url)
        group.instrument("loss").record(time.monotonic())
        exporter(batch(registry))
        assert exporter.flush(10)
        return points(url) - before

    endpoint = over_http(f"http://127.0.0.1:{port}/v1/metrics")
    exporter = OtlpExporter({"metrics": endpoint}, registry, reads=SCHEMA, clock=clock)
    with serving(tmp_path, port=port) as hub:
        assert (
            min(sent(exporter, hub.url) for _ in range(2)) > 20
        )  # it is not known to be a hub of ours; then it is new
        assert 1 <= sent(exporter, hub.url) < 5
        clock.now += 31
        assert sent(exporter, hub.url) > 20
        assert sent(exporter, hub.url) < 5
        page = ask(hub.url, "/metrics").body.decode()
        assert page.count("\nsteady_") == 20
    with serving(tmp_path, port=port) as hub:
        sent(exporter, hub.url)
        assert sent(exporter, hub.url) > 20
        assert sent(exporter, hub.url) < 5
        exporter.queues[0].put(bytes(2**27), 2**27, items=1, kind="metrics")
        exporter.queues[0].put(b"no protobuf", 11, items=1, kind="metrics")
        assert not exporter.flush(10)
        assert sent(exporter, hub.url) > 20
        assert sent(exporter, hub.url) < 5
        exporter.retry_now(1.0)
        assert sent(exporter, hub.url) > 20
        exporter.close(5)
    forwarding = Forwarding("http://127.0.0.1:1", Registry(), {})
    with serving(tmp_path / "forwards", forwarding=forwarding) as hub:  # whoever it hands on to gets all
        exporter = OtlpExporter({"metrics": over_http(f"{hub.url}/v1/metrics")}, registry, reads=SCHEMA)
        assert min(sent(exporter, hub.url) for _ in range(4)) > 20
        exporter.close(5)
        forwarding.close(0)


def steps(receiver: Receiver) -> list[int]:
    """Return the values of a counter, request by request."""
    return [
        point.as_int
        for _, _, body in receiver.requests
        for scope in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == "step.success"
        for point in metric.sum.data_points
    ]
