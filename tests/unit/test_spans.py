"""Spans on their way out: identifiers and the queue."""

from __future__ import annotations

import random
import threading

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Tracer

from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry


def tracer(queue: SpanQueue, sampler: Sampler = ALWAYS_ON) -> Tracer:
    """Return a tracer whose spans end up in the queue."""
    provider = TracerProvider(sampler=sampler, id_generator=IdGenerator(), shutdown_on_exit=False)
    provider.add_span_processor(queue)
    return provider.get_tracer("t")


def dropped(registry: Registry) -> float:
    """Return how many spans the queue gave up."""
    return sum(
        point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and point.attributes == (("destination", "spans"), ("reason", "queue_full"))
    )


def test_each_span_is_drained_once_in_order() -> None:
    """A span that has ended is in exactly one drain."""
    queue = SpanQueue(Registry())
    made = tracer(queue)
    for name in ("a", "b"):
        made.start_span(name).end()
    assert len(queue) == 2
    assert [span.name for span in queue.drain()] == ["a", "b"]
    made.start_span("c").end()
    assert [span.name for span in queue.drain()] == ["c"]
    assert queue.drain() == []


def test_spans_that_are_not_sampled_are_left_out() -> None:
    """Only sampled spans leave."""
    queue = SpanQueue(Registry())
    tracer(queue, ALWAYS_OFF).start_span("a").end()
    assert queue.drain() == []


def test_the_oldest_spans_are_dropped_and_counted() -> None:
    """Beyond the limit the oldest go, each of them counted, from however many threads spans come."""
    registry = Registry()
    queue = SpanQueue(registry, limit=10)
    made = tracer(queue)

    def work() -> None:
        for _ in range(50):
            made.start_span("a").end()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = queue.drain()
    assert len(kept) <= 10
    assert len(kept) + dropped(registry) == 200


def test_a_forked_child_forgets_the_parents_spans() -> None:
    """After a reset nothing is left to drain."""
    queue = SpanQueue(Registry())
    tracer(queue).start_span("a").end()
    queue.reset_in_child()
    assert queue.drain() == []


def test_spans_leave_the_programs_random_numbers_alone() -> None:
    """A seeded program draws the same numbers with and without spans, and two of them share no trace id."""
    made = tracer(SpanQueue(Registry()))
    ids = set()
    for _ in range(2):
        random.seed(7)
        before = random.getstate()
        with made.start_as_current_span("a") as span:
            ids.add(span.get_span_context().trace_id)
        assert random.getstate() == before
    assert len(ids) == 2


def test_identifiers_are_valid() -> None:
    """Trace ids have 128 bits and span ids 64, and none is zero."""
    made = IdGenerator()
    assert made.is_trace_id_random()
    assert all(0 < made.generate_trace_id() < 2**128 for _ in range(1000))
    assert all(0 < made.generate_span_id() < 2**64 for _ in range(1000))
