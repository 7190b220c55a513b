"""The current span of the program, where it traces at all: OpenTelemetry's API is never imported here."""

from __future__ import annotations

import sys

from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on

TRACE, _CONTEXT = "opentelemetry.trace", "opentelemetry.context"
PROVIDER = "_TRACER_PROVIDER"  # of that module: None as long as no provider is set, so that no span is sampled
NO_SPAN = (0, 0, 0)


def traces() -> bool:
    """Tell whether the program has a provider of tracers: without one no span is sampled."""
    return getattr(sys.modules.get(TRACE), PROVIDER, None) is not None


def current_span() -> tuple[int, int, int]:
    """Return the trace id, the span id and the flags of the current span where it is sampled, else zeros."""
    trace = sys.modules.get(TRACE)
    if trace is None or getattr(trace, PROVIDER, None) is None:
        return NO_SPAN
    try:
        if not sys.modules[_CONTEXT].get_current():  # it holds nothing: a quarter of the time of asking for a span
            return NO_SPAN
        context = trace.get_current_span().get_span_context()
        if context.trace_flags.sampled:
            return context.trace_id, context.span_id, int(context.trace_flags)
    except Exception as error:  # noqa: BLE001 - the border to the program's tracing; an event leaves without it
        pass_on(error)
        registry.default.count_error("tracing")
    return NO_SPAN
