"""Spans as OTLP requests, through the official encoder, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tachograph.otlp.points import Lose

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SPANS_PER_REQUEST = 500
_SLICE = 16


def span_requests(
    spans: Sequence[ReadableSpan], lose: Lose, pace: Callable[[], None]
) -> Iterator[tuple[ExportTraceServiceRequest, int]]:
    """Yield the requests that carry the spans, each with its number of spans.

    Args:
        spans: ended spans.
        lose: called with a number of spans and a reason for what cannot be encoded.
        pace: called between slices.
    """
    for first in range(0, len(spans), SPANS_PER_REQUEST):
        some = spans[first : first + SPANS_PER_REQUEST]
        request = ExportTraceServiceRequest()
        count = 0
        for start in range(0, len(some), _SLICE):
            for found, number in _encoded(some[start : start + _SLICE], lose):
                _add(request, found)
                count += number
            pace()
        if count:
            yield request, count


def _encoded(spans: Sequence[ReadableSpan], lose: Lose) -> Iterator[tuple[ExportTraceServiceRequest, int]]:
    try:
        yield encode_spans(spans), len(spans)
    except Exception as error:  # noqa: BLE001 - whatever one span holds, the others leave
        if len(spans) > 1:
            for span in spans:
                yield from _encoded([span], lose)
        else:
            lose(1, f"{spans[0].name}: {type(error).__name__}: {error}")


def _add(request: ExportTraceServiceRequest, more: ExportTraceServiceRequest) -> None:
    for resource_spans in more.resource_spans:
        last = request.resource_spans[-1] if request.resource_spans else None
        if last is not None and last.resource == resource_spans.resource:
            last.scope_spans.extend(resource_spans.scope_spans)
        else:
            request.resource_spans.append(resource_spans)
