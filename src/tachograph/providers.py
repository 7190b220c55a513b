"""The OpenTelemetry providers of the process: the program's own where it has made them, else ours, one of each.

A global provider cannot be replaced, so what is made here stays for the life of the process; a pipeline attaches its
readers and its queue of spans, and takes them off again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from tachograph import tracing
from tachograph.spans import IdGenerator, SpanQueue


class SpanTap(SpanProcessor):
    """The span processor of our tracer provider: hands spans to the queue of the pipeline that runs, if one does."""

    def __init__(self) -> None:
        self.queue: SpanQueue | None = None
        self.provider: TracerProvider | None = None

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on a span that has ended."""
        if self.queue is not None:
            self.queue.on_end(span)


class _Made:
    """What this process has made so far."""

    meter_provider: MeterProvider | None = None
    span_tap: SpanTap | None = None


def own_meter_provider(resource: Mapping[str, Any]) -> MeterProvider | None:
    """Return the meter provider that we made, making it where the program has none; None where it has its own."""
    if _Made.meter_provider is not None:
        return _Made.meter_provider
    # Exemplars of the SDK draw from the program's random numbers (HAZARDS 13): only where the user asks for them.
    asked = "OTEL_METRICS_EXEMPLAR_FILTER" in os.environ
    made = MeterProvider(
        resource=Resource(dict(resource)),
        exemplar_filter=None if asked else AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    metrics.set_meter_provider(made)
    if metrics.get_meter_provider() is not made:
        return None
    _Made.meter_provider = made
    return made


def owns_meter_provider() -> bool:
    """Tell whether the process's meter provider is ours."""
    return _Made.meter_provider is not None


def tap_spans(queue: SpanQueue, resource: Mapping[str, Any]) -> bool:
    """Have spans put into ``queue``; False where the program traces on its own, which stays as it is."""
    if _Made.span_tap is None:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return False
        made = TracerProvider(resource=Resource(dict(resource)), id_generator=IdGenerator(), shutdown_on_exit=False)
        tap = SpanTap()
        tap.provider = made
        made.add_span_processor(tap)
        trace.set_tracer_provider(made)
        if trace.get_tracer_provider() is not made:
            return False
        _Made.span_tap = tap
    _Made.span_tap.queue = queue
    tracing.known.idle = None
    return True


def untap_spans(queue: SpanQueue) -> None:
    """Put spans into ``queue`` no longer."""
    if _Made.span_tap is not None and _Made.span_tap.queue is queue:
        _Made.span_tap.queue = None
        tracing.known.idle = _Made.span_tap.provider
