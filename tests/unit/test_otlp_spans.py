"""Spans as OTLP requests: each of them leaves once, in requests that a receiver takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tachograph.exporters.otlp._message import BYTES_PER_REQUEST
from tachograph.exporters.otlp._spans import SPANS_PER_REQUEST, span_requests
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.recording.registry import Registry


def ended(texts: Sequence[str]) -> Sequence[ReadableSpan]:
    """Return an ended span for each text, which it has as an attribute; its name is its number."""
    queue = SpanQueue(Registry())
    provider = TracerProvider(sampler=ALWAYS_ON, id_generator=IdGenerator(), shutdown_on_exit=False)
    provider.add_span_processor(queue)
    for number, text in enumerate(texts):
        provider.get_tracer("t").start_span(str(number), attributes={"text": text}).end()
    return queue.drain()


def requests(spans: Sequence[ReadableSpan]) -> list[ExportTraceServiceRequest]:
    """Return the requests as their serialised form holds them, once it is sure that nothing is missing."""
    lost: list[str] = []
    found = []
    for request, count in span_requests(spans, lambda _, why: lost.append(why), lambda: None):
        again = ExportTraceServiceRequest.FromString(request.SerializeToString())
        assert len(names(again)) == count
        found.append(again)
    assert [name for request in found for name in names(request)] == [span.name for span in spans]
    assert lost == []
    return found


def names(request: ExportTraceServiceRequest) -> list[str]:
    """Return the names of a request's spans."""
    return [span.name for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_no_spans_are_no_request() -> None:
    """Nothing is sent where there is nothing to send."""
    assert requests([]) == []


def test_requests_have_a_bounded_number_of_spans() -> None:
    """Small spans travel by the hundreds, under one resource."""
    found = requests(ended([""] * 1200))
    assert len(found) == 3
    assert all(len(names(request)) <= SPANS_PER_REQUEST for request in found)
    assert all(len(request.resource_spans) == 1 for request in found)


@pytest.mark.parametrize("size", [10_000, 100_000, 600_000])
def test_requests_have_a_bounded_number_of_bytes(size: int) -> None:
    """Spans with long texts travel by the MiB: receivers take 4 MiB over gRPC, and refuse what is larger for good."""
    found = requests(ended(["x" * size] * (5_000_000 // size)))
    assert all(request.ByteSize() <= BYTES_PER_REQUEST for request in found)
    assert len(found) < 20


def test_a_span_that_is_too_long_travels_alone() -> None:
    """A receiver that refuses it takes those beside it."""
    found = requests(ended(["a", "b", "x" * (BYTES_PER_REQUEST + 1), "c"]))
    assert [names(request) for request in found if request.ByteSize() > BYTES_PER_REQUEST] == [["2"]]
