"""Spans on their way out: identifiers that leave the program's random numbers alone, and a bounded queue."""

from __future__ import annotations

from collections import deque

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import id_generator as sdk

from tachograph.recording import ids
from tachograph.recording.registry import Registry

QUEUE_LIMIT = 8192


class IdGenerator(sdk.IdGenerator):
    """Random identifiers from the operating system.

    The SDK's own takes them from :mod:`random`: seeded ranks would share their trace ids, and a seeded program would
    compute something else once spans are recorded.
    """

    def generate_span_id(self) -> int:
        """Return 64 random bits, not all of them zero."""
        return ids.span_id()

    def generate_trace_id(self) -> int:
        """Return 128 random bits, not all of them zero."""
        return ids.trace_id()

    def is_trace_id_random(self) -> bool:
        """Tell that every bit is random."""
        return True


class SpanQueue(SpanProcessor):
    """Holds sampled spans that have ended, until a collection drains them.

    Args:
        registry: where losses are counted.
        limit: spans that it holds; beyond it the oldest is dropped, and counted (``queue_full``).
    """

    def __init__(self, registry: Registry, *, limit: int = QUEUE_LIMIT) -> None:
        self._registry = registry
        self._limit = limit
        self._spans: deque[ReadableSpan] = deque()

    def __len__(self) -> int:
        return len(self._spans)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span, if it is sampled."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        self._spans.append(span)
        if len(self._spans) > self._limit:
            try:
                self._spans.popleft()
            except IndexError:  # another thread has drained it
                return
            self._registry.count_dropped("queue_full", "spans")

    def drain(self) -> list[ReadableSpan]:
        """Return the spans that ended since the call before, in the order of their ends."""
        spans = self._spans
        return [spans.popleft() for _ in range(len(spans))]

    def reset_in_child(self) -> None:
        """Forget the parent process's spans, after a fork."""
        self._spans = deque()
