"""The OpenTelemetry providers of the process: the program's own where it has made them, else ours, one of each.

A global provider cannot be replaced, so what is made here stays for the life of the process; a pipeline attaches its
readers and its queue of spans, and takes them off again.
"""

from __future__ import annotations

# In a forked child the SDK's providers use a thread pool (``_handle_fork``, to detect the resource anew). Fork hooks
# run in the order of their registration: that of this module, which frees the pool's lock, has to come before theirs,
# or a program that imports it later, as torch does, has children that hang.
import concurrent.futures.thread  # noqa: F401
import logging
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.profiling import tracing

_log = logging.getLogger("tachograph")


class SpanTap(SpanProcessor):
    """The span processor of our tracer provider: hands spans to the queue of the pipeline that runs, if one does."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        self.queue: SpanQueue | None = None
        self.provider = TracerProvider(
            resource=Resource(dict(resource)), id_generator=IdGenerator(), shutdown_on_exit=False
        )
        self.provider.add_span_processor(self)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on a span that has ended."""
        if self.queue is not None:
            self.queue.on_end(span)


class _Made:
    """What this process has made so far."""

    meter_provider: MeterProvider | None = None
    span_tap: SpanTap | None = None


class _Refusal(logging.Filter):
    """Explains, once, OpenTelemetry's own warning that it has refused a provider because ours is there.

    The warning is all that tells of it: ``set_meter_provider`` returns nothing and raises nothing.
    """

    def __init__(self, setter: str) -> None:
        super().__init__()
        self._setter = setter
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: the warning itself stays."""
        if not self._said and "Overriding of current" in str(record.msg):
            self._said = True
            _log.warning(
                "%s() came after tachograph.start(), which had set a provider of its own: call it before start(), "
                "or write start(set_global=False), and Tachograph joins yours",
                self._setter,
            )
        return True


def own_meter_provider(resource: Mapping[str, Any], *, make: bool = True) -> MeterProvider | None:
    """Return the meter provider that we made, making it where the program has none; None where it has its own.

    Args:
        resource: attributes of the process.
        make: else None, too, where none was made before.
    """
    if _Made.meter_provider is not None or not make:
        return _Made.meter_provider
    # Exemplars of the SDK draw from the program's random numbers (HAZARDS 13): only where the user asks for them.
    asked = "OTEL_METRICS_EXEMPLAR_FILTER" in os.environ
    made = MeterProvider(
        resource=Resource(dict(resource)),
        exemplar_filter=None if asked else AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    _Made.meter_provider = made  # before it is set, so that nobody takes it for the program's
    metrics.set_meter_provider(made)
    if metrics.get_meter_provider() is not made:
        _Made.meter_provider = None
        return None
    logging.getLogger("opentelemetry.metrics._internal").addFilter(_Refusal("set_meter_provider"))
    return made


def owns_meter_provider() -> bool:
    """Tell whether the process's meter provider is ours."""
    return _Made.meter_provider is not None


def tap_spans(queue: SpanQueue, resource: Mapping[str, Any], *, set_global: bool = True) -> bool:
    """Have spans put into ``queue``; False where the program traces on its own, which stays as it is.

    Args:
        queue: of the pipeline that runs.
        resource: attributes of the process.
        set_global: have every tracer of the process make such spans; else only the spans of ``@prof`` are.
    """
    tap = _Made.span_tap
    if tap is None:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return False
        tap = SpanTap(resource)
    if set_global and trace.get_tracer_provider() is not tap.provider:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return False
        trace.set_tracer_provider(tap.provider)
        if trace.get_tracer_provider() is not tap.provider:
            return False
        logging.getLogger("opentelemetry.trace").addFilter(_Refusal("set_tracer_provider"))
    _Made.span_tap = tap
    tap.queue = queue
    tracing.known.idle = None
    tracing.known.own = tap.provider  # looked at only where there is no global one
    return True


def untap_spans(queue: SpanQueue) -> None:
    """Put spans into ``queue`` no longer."""
    if _Made.span_tap is not None and _Made.span_tap.queue is queue:
        _Made.span_tap.queue = None
        tracing.known.idle = _Made.span_tap.provider
        tracing.known.own = None
