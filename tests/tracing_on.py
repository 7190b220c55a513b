"""A tracer provider for the length of a test, and the spans that it has exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What has been exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def all(self) -> list[ReadableSpan]:
        """Return the spans that have ended, in that order."""
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (found,) = (span for span in self.all() if span.name == name)
        return found


@pytest.fixture(name="spans")
def program_that_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Make the process one that traces."""
    spans = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    yield spans
    spans.provider.shutdown()


@contextmanager
def tracing(on: bool) -> Iterator[None]:
    """Trace, or do not."""
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, Spans().provider if on else None
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before
