"""Our OTLP against that of OpenTelemetry's own encoder: the same data, decoded equal.

What differs on purpose is undone by name, in :func:`without_differences`; nothing else may.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from examples import examples
from tachograph.exporters._deltas import Deltas
from tachograph.exporters.batch import Batch
from tachograph.exporters.log_emitter import log_record
from tachograph.exporters.otlp._spans import span_requests
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.otlp.settings import Temporality
from tachograph.exporters.producer import sdk_metrics
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.recording.accumulators import Distribution
from tachograph.recording.journal import SCOPE, LogEvent
from tachograph.recording.own_metrics import scope_origin
from tachograph.recording.points import MetricPoints
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

RESOURCE: dict[str, Any] = {"service.name": "s", "dl.rank": 3, "dl.world_size": 2**62, "share": 0.5, "on": True}
LATEST = 2**64 - 1

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])
NUMBERS = st.one_of(INT64, st.integers(-(2**70), 2**70), st.floats(), st.booleans())
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)  # lone surrogates included
KEYS = TEXTS.filter(bool)
SCALARS = st.one_of(TEXTS, st.booleans(), INT64, st.floats())
LISTS = st.one_of(*(st.lists(of, max_size=3) for of in (TEXTS, st.booleans(), INT64, st.floats())))
ATTRIBUTES = st.dictionaries(KEYS, SCALARS | LISTS, max_size=3)
IDS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
EXEMPLARS = st.builds(Exemplar, st.floats(0, 100), st.integers(0, LATEST), *IDS)


def without_differences(request: Message) -> Message:
    """Return a request without what differs on purpose.

    A histogram without boundaries: the SDK's classes give it one bucket, which holds every value; we give it none, as
    the protocol allows ("may be empty, in which case explicit_bounds must also be empty"): its count says the same.

    The body of an event: it has none, and the official encoder sends an empty value for it.
    """
    for metric in each_metric(request):
        for point in metric.histogram.data_points:
            if not point.explicit_bounds:
                del point.bucket_counts[:]
    for resource in getattr(request, "resource_logs", ()):
        for event in (event for scope in resource.scope_logs for event in scope.log_records):
            if event.body.WhichOneof("value") is None:
                event.ClearField("body")
    return request


def each_metric(request: Any) -> list[Metric]:
    """Return the metrics in a request."""
    resources = getattr(request, "resource_metrics", ())
    return [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]


def plain(message: Any) -> Any:
    """Return a message as plain values that can be compared, NaN with itself, too; attributes in any order."""
    if isinstance(message, Message):
        found = {field.name: plain(value) for field, value in message.ListFields()}
        one_of = next((name for name in ("value", "data") if name in message.DESCRIPTOR.oneofs_by_name), None)
        return {**found, "is": message.WhichOneof(one_of) if one_of else ""}
    if isinstance(message, float):
        return "NaN" if math.isnan(message) else repr(message)
    if isinstance(message, str | bytes | int):
        return message
    parts = [plain(part) for part in message]
    return (
        sorted(parts, key=lambda part: part["key"]) if all(isinstance(p, dict) and "key" in p for p in parts) else parts
    )


def decoded(request: Message) -> Any:
    """Return a request as its receiver reads it."""
    return plain(without_differences(type(request).FromString(request.SerializeToString())))


Recorded = list[tuple[str, str, Any, dict[str, Any], list[Exemplar]]]
RECORDED = st.lists(
    st.tuples(
        st.sampled_from(["train", "eval", "tachograph.hardware", ""]),
        st.sampled_from(["loss", "saved.success", "step.duration.ms", "bare"]),
        NUMBERS,
        ATTRIBUTES,
        st.lists(EXEMPLARS, max_size=2),
    ),
    max_size=10,
)


def record(registry: Registry, recorded: Recorded) -> None:
    """Record: a gauge, a counter, a histogram, and a histogram without boundaries."""
    for scope, name, value, attributes, exemplars in recorded:
        group = registry.group(scope)
        if name == "bare":
            instrument = group.declare("bare", kind="histogram", unit="By", description="No boundaries.", boundaries=())
        else:
            instrument = group.instrument(name)
        instrument.record(value, attributes)
        series = instrument.series(attributes)
        if isinstance(series, Distribution):
            for exemplar in exemplars:
                series.note(exemplar)


@pytest.mark.parametrize("collect", [Registry.collect, Registry.columns])
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@settings(max_examples=examples(150), deadline=None)
@given(rounds=st.lists(RECORDED, min_size=1, max_size=3))
def test_metrics_are_those_of_the_official_encoder(
    temporality: Temporality, collect: Callable[[Registry], Sequence[MetricPoints]], rounds: list[Recorded]
) -> None:
    """Gauges, counters and histograms with whatever values, attributes and exemplars, in several scopes.

    One by one, and in columns.
    """
    registry = Registry(enabled=True)
    encoder = MetricsEncoder("there", registry, temporality=temporality, points_per_request=10**6, pace=lambda: None)
    deltas = None if temporality == "cumulative" else Deltas(frozenset({"counter", "histogram"}))
    for recorded in rounds:
        record(registry, recorded)
        metrics, now = collect(registry), time.time_ns()
        found = list(encoder.messages(Batch(metrics, None, [], RESOURCE, now)))
        theirs = encode_metrics(sdk_metrics(metrics, RESOURCE, now, deltas=deltas))
        wanted = [theirs] if each_metric(theirs) else []
        assert [decoded(request) for request, _ in found] == [decoded(request) for request in wanted]
        registry.count_dropped("no_number", "there")  # the rounds after the first have a scope of ours, with a counter


@settings(max_examples=examples(50), deadline=None)
@given(
    rounds=st.lists(
        st.lists(st.floats(), min_size=3, max_size=5) | st.lists(NUMBERS, min_size=3, max_size=5),
        min_size=3,
        max_size=5,
    )
)
def test_gauges_that_come_together_again_are_those_of_the_official_encoder(rounds: list[list[Any]]) -> None:
    """They are packed at once from the second collection on; fewer of them come together, or more, in the next."""
    registry = Registry(enabled=True)
    encoder = MetricsEncoder("there", registry, points_per_request=10**6, pace=lambda: None)
    for values in rounds:
        for _ in range(2):
            for number, value in enumerate(values):
                registry.group("train").instrument(f"loss.{number}").record(value)
            metrics, now = registry.columns(), time.time_ns()
            found = list(encoder.messages(Batch(metrics, None, [], RESOURCE, now)))
            wanted = encode_metrics(sdk_metrics(metrics, RESOURCE, now))
            assert [decoded(request) for request, _ in found] == [decoded(wanted)] * bool(each_metric(wanted))


def test_values_that_are_hard_to_carry_are_those_of_the_official_encoder() -> None:
    """NaN, both infinities, the bounds of 64 bits, and a sum that no float holds exactly."""
    registry = Registry(enabled=True)
    for at, value in enumerate([math.nan, math.inf, -math.inf, 2**63 - 1, -(2**63), 2**63, True, 0.1]):
        registry.group("g").instrument("loss").record(value, {"n": at})
        registry.group("g").instrument("step.duration.ms").record(value, {"n": at})
        registry.group("g").instrument("saved.success").record(value, {"n": at})
    metrics = registry.collect()
    ((request, _),) = MetricsEncoder("there", registry).messages(Batch(metrics, None, [], RESOURCE, 7))
    assert decoded(request) == decoded(encode_metrics(sdk_metrics(metrics, RESOURCE, 7)))


def test_a_difference_is_seen() -> None:
    """The comparison tells two requests apart that differ in one bit of one value, and NaN from its absence."""
    first, second = Metric(name="n"), Metric(name="n")
    for metric, value in ((first, 0.1), (second, math.nextafter(0.1, 1))):
        metric.gauge.data_points.add(as_double=value)
    assert plain(first) != plain(second)
    first.gauge.data_points[0].as_double = math.nan
    second.gauge.data_points[0].ClearField("as_double")
    assert plain(first) != plain(second)
    second.gauge.data_points[0].as_double = -math.nan
    assert plain(first) == plain(second)


EVENTS = st.lists(
    st.builds(
        LogEvent,
        TEXTS,
        st.integers(-5, 2**70),
        st.integers(0, LATEST),
        st.dictionaries(KEYS, st.one_of(SCALARS, LISTS, st.integers(-(2**70), 2**70), st.none()), max_size=4),
        st.integers(1, 2**40),
        *IDS,
        st.integers(0, 1),
        st.just("stream"),
        st.just(1),
    )
    | st.builds(lambda name: LogEvent(name, 1, 2, {}, 3, 0, 0, 0, "stream"), TEXTS),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(150), deadline=None)
@given(EVENTS)
def test_log_records_are_those_of_the_official_encoder(events: list[LogEvent]) -> None:
    """Events by our OTLP are, field by field, what the official exporter makes of the same records of the Logs API."""
    ((request, count),) = log_requests(events, RESOURCE, lost_nothing, lambda: None)
    assert count == len(events)
    resource, scope = Resource(RESOURCE), InstrumentationScope(SCOPE, *scope_origin(SCOPE))
    theirs = encode_logs([ReadableLogRecord(log_record(event), resource, scope) for event in events])
    assert decoded(request) == decoded(theirs)


def lost_nothing(_items: int, why: str) -> None:
    """Fail: everything can be encoded."""
    raise AssertionError(why)


SPAN_TEXTS = st.text(max_size=8)
SPAN_ATTRIBUTES = st.dictionaries(
    SPAN_TEXTS.filter(bool),
    st.one_of(SPAN_TEXTS, st.booleans(), INT64, st.floats(), st.lists(INT64, max_size=3)),
    max_size=3,
)
SPANS = st.lists(
    st.tuples(
        st.sampled_from(["train", "tachograph.task"]),
        SPAN_TEXTS,
        st.sampled_from(SpanKind),
        SPAN_ATTRIBUTES,
        st.lists(st.tuples(SPAN_TEXTS, SPAN_ATTRIBUTES, st.integers(1, LATEST)), max_size=2),
        st.lists(st.tuples(*IDS, SPAN_ATTRIBUTES), max_size=2),
        st.sampled_from([None, Status(StatusCode.OK), Status(StatusCode.ERROR, "why")]),
    ),
    min_size=1,
    max_size=40,
)


def ended(made: Sequence[Any]) -> Sequence[ReadableSpan]:
    """Return ended spans, each the child of the one before in its scope."""
    queue = SpanQueue(Registry(enabled=True))
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=Resource(RESOURCE), id_generator=IdGenerator(), shutdown_on_exit=False
    )
    provider.add_span_processor(queue)
    for scope, name, kind, attributes, events, links, status in made:
        tracer = provider.get_tracer(scope, *scope_origin(scope))
        linked = [Link(SpanContext(trace, span, True, TraceFlags(1)), of) for trace, span, of in links]
        with tracer.start_as_current_span(name, kind=kind, attributes=attributes, links=linked) as span:
            for said, of, at in events:
                span.add_event(said, of, at)
            if status is not None:
                span.set_status(status)
    return queue.drain()


@settings(max_examples=examples(60), deadline=None)
@given(SPANS)
def test_spans_are_those_of_the_official_encoder(made: Sequence[Any]) -> None:
    """Spans that we encode in slices are those that the official encoder makes of all at once, in the same scopes."""
    spans = ended(made)
    ((request, count),) = span_requests(spans, lost_nothing, lambda: None)
    assert count == len(spans)
    assert by_scope(request) == by_scope(encode_spans(spans))


def by_scope(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return the spans by their scope: it may come several times, once a slice."""
    again = ExportTraceServiceRequest.FromString(request.SerializeToString())
    found: dict[str, list[Any]] = {}
    for resource in again.resource_spans:
        for scope in resource.scope_spans:
            key = repr((plain(resource.resource), resource.schema_url, plain(scope.scope), scope.schema_url))
            found.setdefault(key, []).extend(plain(span) for span in scope.spans)
    return found
