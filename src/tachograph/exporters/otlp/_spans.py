"""Spans as OTLP requests, through the official encoder, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tachograph.exporters.otlp._message import BYTES_PER_REQUEST, Lose
from tachograph.exporters.otlp.values import OUT_OF_MEMORY, has_memory
from tachograph.recording.interrupts import pass_on

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
        lose: called with a number of spans that cannot be encoded, and the reason.
        pace: called between slices.
    """
    if spans and not has_memory():
        lose(len(spans), OUT_OF_MEMORY)
        return
    request, count, size = ExportTraceServiceRequest(), 0, 0
    for start in range(0, len(spans), _SLICE):
        for found, number, added in _encoded(spans[start : start + _SLICE], lose):
            if count and (size + added > BYTES_PER_REQUEST or count + number > SPANS_PER_REQUEST):
                yield request, count
                if not has_memory():
                    lose(len(spans) - start, OUT_OF_MEMORY)
                    return
                request, count, size = ExportTraceServiceRequest(), 0, 0
            _add(request, found)
            count += number
            size += added
        pace()
    if count:
        yield request, count


def _encoded(spans: Sequence[ReadableSpan], lose: Lose) -> Iterator[tuple[ExportTraceServiceRequest, int, int]]:
    """Yield the spans as requests, all in one where that is possible, with their number and their bytes."""
    try:
        found = encode_spans(spans)
        size = found.ByteSize()
    except Exception as error:  # noqa: BLE001 - whatever one span holds, the others leave
        pass_on(error)
        if len(spans) > 1:
            for span in spans:
                yield from _encoded([span], lose)
        else:
            lose(1, f"{spans[0].name}: {type(error).__name__}: {error}")
        return
    if size > BYTES_PER_REQUEST and len(spans) > 1:
        middle = len(spans) // 2
        yield from _encoded(spans[:middle], lose)
        yield from _encoded(spans[middle:], lose)
    else:
        yield found, len(spans), size


def _add(request: ExportTraceServiceRequest, more: ExportTraceServiceRequest) -> None:
    for resource_spans in more.resource_spans:
        last = request.resource_spans[-1] if request.resource_spans else None
        if last is not None and last.resource == resource_spans.resource:
            last.scope_spans.extend(resource_spans.scope_spans)
        else:
            request.resource_spans.append(resource_spans)
