"""Spans around profiled functions, where the program has tracing on.

The look-up of the tracer at each call costs some tens of nanoseconds: OpenTelemetry's API is never imported here, and a
tracer that does nothing is never called, as that takes 5 microseconds.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

from tachograph.recording import ids, registry
from tachograph.recording.accumulators import Distribution
from tachograph.recording.interrupts import pass_on
from tachograph.recording.own_metrics import scope_origin
from tachograph.recording.summary import Exemplar

TRACE = "opentelemetry.trace"


class _Ids:
    """Random ids from numbers of our own: the SDK's generator would advance the program's ``random``."""

    generate_span_id = staticmethod(ids.span_id)
    generate_trace_id = staticmethod(ids.trace_id)

    def __init__(self, replaced: Any) -> None:
        self.is_trace_id_random: Callable[[], bool] = getattr(replaced, "is_trace_id_random", lambda: False)


class _Known:
    """The provider seen last and its tracers by scope; None for a tracer that does nothing."""

    __slots__ = ("idle", "own", "provider", "tracers")

    def __init__(self) -> None:
        self.idle: Any = None  # our own provider, while no pipeline takes its spans
        self.own: Any = None  # the same, while it takes them, where it is not the global one
        self.forget()

    def forget(self) -> None:
        self.provider: Any = None
        self.tracers: dict[str, Any] = {}


known = _Known()


def tracer_for(scope: str) -> Any:
    """Return the tracer of the program's provider for a scope, or None where tracing is off."""
    trace = sys.modules.get(TRACE)
    if trace is None:
        return None
    try:
        # The getter would load a provider, and takes thrice as long.
        provider = trace._TRACER_PROVIDER or known.own  # noqa: SLF001
    except AttributeError:
        provider = _asked(trace)
    if provider is None or provider is known.idle:
        return None
    if provider is not known.provider:
        known.forget()
        known.provider = provider
    try:
        return known.tracers[scope]
    except KeyError:
        return _new_tracer(trace, provider, scope)


def _asked(trace: Any) -> Any:
    """Return the provider of the public API, as far as that module has been loaded."""
    provider = trace.get_tracer_provider() if hasattr(trace, "get_tracer_provider") else None
    return None if isinstance(provider, getattr(trace, "ProxyTracerProvider", ())) else provider


def _new_tracer(trace: Any, provider: Any, scope: str) -> Any:
    tracers = known.tracers
    tracer: Any = None
    try:
        tracer = provider.get_tracer(scope, *scope_origin(scope))
        if isinstance(tracer, trace.NoOpTracer):
            tracer = None
        elif type(getattr(tracer, "id_generator", None)).__name__ == "RandomIdGenerator":
            tracer = copy.copy(tracer)  # the provider hands its own to whoever asks for the same scope
            tracer.id_generator = _Ids(tracer.id_generator)
    except Exception as failure:  # noqa: BLE001 - the border to the program's tracing
        pass_on(failure)
        registry.default.count_error("tracing")
    tracers[scope] = tracer
    return tracer


class Span:
    """A span that is current only between :meth:`enter` and :meth:`leave`; a context attached in between is kept.

    Tracing that fails is counted, and the function runs on without it.
    """

    __slots__ = ("_context", "_contexts", "_span", "_token", "_trace")

    def __init__(self, tracer: Any, name: str, attributes: dict[str, str]) -> None:
        self._trace: Any = sys.modules[TRACE]
        self._contexts: Any = sys.modules["opentelemetry.context"]
        self._token: Any = None
        try:
            self._span = tracer.start_span(name, attributes=attributes)
            self._context = self._trace.set_span_in_context(self._span)
        except Exception as failure:  # noqa: BLE001 - a sampler or span processor of the program
            pass_on(failure)
            registry.default.count_error("tracing")
            self._span = None

    def enter(self) -> None:
        """Make the span current."""
        if self._span is not None:
            self._token = self._contexts.attach(self._context)

    def leave(self) -> None:
        """Make the context of before :meth:`enter` current again."""
        if self._span is not None:
            self._context = self._contexts.get_current()
            self._contexts.detach(self._token)

    @property
    def trace_id(self) -> int:
        """The id of its trace; 0 where it is not sampled."""
        try:
            context = self._span.get_span_context()
            return int(context.trace_id) if context.trace_flags.sampled else 0
        except Exception:  # noqa: BLE001 - the border to the program's tracing, which end() counts
            return 0

    def end(self, error: BaseException | None, seconds: float, into: Distribution) -> None:
        """End the span, note the exception that ended its body, and leave an exemplar if the span is sampled."""
        span = self._span
        if span is None:
            return
        try:
            if error is not None and span.is_recording():
                span.record_exception(error)
                status = f"{type(error).__name__}: {error}"
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, status))
            context = span.get_span_context()
            if context.trace_flags.sampled:
                into.note(Exemplar(seconds, time.time_ns(), context.trace_id, context.span_id))
            span.end()
        except Exception as failure:  # noqa: BLE001 - a span processor, or an exception that cannot be shown
            pass_on(failure)
            registry.default.count_error("tracing")
            if span.is_recording():
                span.end()
