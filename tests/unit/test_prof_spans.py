"""@prof in a program that traces: a span a call, current only while the body runs; none, and no cost, elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from front_door import fresh_group, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, prof
from tachograph.recording import registry
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture


def ids() -> tuple[int, int]:
    """Return the ids of the current span."""
    found = trace.get_current_span().get_span_context()
    return found.trace_id, found.span_id


def test_a_call_is_a_span(spans: Spans, group: str) -> None:
    """The span has the metric's name, the function's name as attribute and the group as scope, and nests."""

    @prof(group=group)
    def inner() -> tuple[int, int]:
        return ids()

    @prof(group=group)
    def outer() -> tuple[int, int]:
        assert inner() != ids()
        return ids()

    trace_id, span_id = outer()
    assert ids() == (0, 0)
    child, parent = spans.all()
    assert (parent.name, child.name) == (outer.__qualname__, inner.__qualname__)
    assert dict(parent.attributes or {}) == {"code.function.name": outer.__qualname__}
    assert (parent.instrumentation_scope.name, parent.status.status_code) == (group, StatusCode.UNSET)
    assert (parent.context.trace_id, parent.context.span_id) == (trace_id, span_id)
    assert (child.parent.span_id, child.context.trace_id) == (span_id, trace_id)


@pytest.mark.parametrize("error", [ValueError("v"), KeyboardInterrupt("k")])
def test_a_failure_is_noted_on_the_span(spans: Spans, group: str, error: BaseException) -> None:
    """An exception of any kind is recorded once on the span, whose status is then ERROR."""

    @prof(group=group)
    def failing() -> None:
        raise error

    with pytest.raises(type(error)):
        failing()
    span = spans.named(failing.__qualname__)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{type(error).__name__}: {error}"
    assert [event.attributes["exception.type"] for event in span.events] == [type(error).__name__]


def test_a_sampled_span_leaves_an_exemplar(spans: Spans, group: str) -> None:
    """The histogram points at the spans in which its durations were measured, the latest for each bucket."""

    @prof(group=group)
    def work() -> tuple[int, int]:
        return ids()

    measured_in = [work(), work()]
    exemplars = [
        exemplar
        for metric in registry.default.collect()
        if metric.scope == group and metric.name == "function.duration"
        for exemplar in metric.points[0].exemplars
    ]
    left = {(exemplar.trace_id, exemplar.span_id): exemplar.value for exemplar in exemplars}
    assert measured_in[-1] in left
    assert set(left) <= set(measured_in)
    assert all(0 < value < 10 for value in left.values())
    assert spans.all()[-1].context.span_id == measured_in[-1][1]


def test_an_unsampled_program_records_calls_all_the_same(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sampler says no, calls and failures are counted, and there is no exemplar."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))

    @prof(group=group)
    def work(divisor: int) -> None:
        assert ids() != (0, 0)
        1 // divisor

    work(1)
    with pytest.raises(ZeroDivisionError):
        work(0)
    found = [metric for metric in registry.default.collect() if metric.scope == group]
    assert [point.exemplars for point in found[0].points] == [(), ()]
    assert len(found[1].points) == 2


def test_a_generators_span_is_current_only_inside(spans: Spans, group: str) -> None:
    """Between two steps the caller's span is current; spans that the body keeps open come back with its next step."""
    tracer = spans.provider.get_tracer("own")

    @prof(group=group)
    def steps() -> Generator[tuple[int, int], Any, None]:
        yield ids()
        with tracer.start_as_current_span("held"):
            yield ids()
            yield ids()
        try:
            yield ids()
        except KeyError:
            yield ids()

    with tracer.start_as_current_span("caller"):
        own = ids()
        run = steps()
        seen = []
        for step in (lambda: next(run),) * 4 + (lambda: run.throw(KeyError()),):
            seen.append(step())
            assert ids() == own
        run.close()
        assert ids() == own
    first, held, same, again, last = seen
    assert held == same != first == again == last
    span = spans.named(steps.__qualname__)
    assert (span.parent.span_id, span.context.span_id) == (own[1], first[1])
    assert spans.named("held").parent.span_id == first[1]
    assert span.status.status_code is StatusCode.UNSET


def test_spans_of_interleaved_runs_do_not_mix(spans: Spans, group: str) -> None:
    """Coroutines that take turns, and async generators, each see their own span alone."""

    @prof(group=group)
    async def work() -> set[tuple[int, int]]:
        seen = set()
        for _ in range(3):
            seen.add(ids())
            await asyncio.sleep(0)
        return seen

    @prof(group=group)
    async def stream() -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
            yield ids()

    async def main() -> None:
        one, two = await asyncio.gather(work(), work())
        assert len(one) == len(two) == 1
        assert one != two
        streamed = set()
        async for inside in stream():
            streamed.add(inside)
            assert ids() == (0, 0)
        assert len(streamed) == 1

    asyncio.run(main())
    by_hand = [work(), work()]
    for coroutine in by_hand * 2:
        coroutine.send(None)
        assert ids() == (0, 0)
    for coroutine in by_hand:
        coroutine.close()
    assert [span.name for span in spans.all()].count(work.__qualname__) == 4
    assert {span.status.status_code for span in spans.all()} == {StatusCode.UNSET}


def test_a_silenced_group_has_no_spans(spans: Spans, group: str) -> None:
    """An explicit NullMetricHandler silences the spans of its group, too."""
    elastic.configure(elastic.NullMetricHandler(), group)
    assert prof(ids, group)() == (0, 0)
    assert not spans.all()


def test_baggage_set_by_a_body_does_not_leak(spans: Spans, group: str) -> None:
    """What a generator attaches to the context is its own, as its span is."""
    assert spans.all() == []

    @prof(group=group)
    def steps() -> Generator[object, None, None]:
        context.attach(context.set_value("key", "value"))
        yield
        yield context.get_value("key")

    run = steps()
    next(run)
    assert context.get_value("key") is None
    assert next(run) == "value"
    run.close()
