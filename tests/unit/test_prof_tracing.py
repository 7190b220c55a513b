"""Whose tracing @prof uses: the program's, if it has any; and what happens where that fails."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from front_door import fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import prof
from tachograph.profiling.tracing import tracer_for
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture


def ids() -> tuple[int, int]:
    """Return the ids of the current span."""
    found = trace.get_current_span().get_span_context()
    return found.trace_id, found.span_id


def test_tracing_may_come_and_go(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that is set later is found at the next call, and a new one replaces the old one."""

    @prof(group=group)
    def work() -> None:
        pass

    work()
    first, second = Spans(), Spans()
    for spans in (first, second, first):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        work()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    work()
    assert (len(first.all()), len(second.all())) == (2, 1)
    assert recorded(group)[f"function.calls code.function.name={work.__qualname__} outcome=success"] == 5


def test_a_tracer_that_does_nothing_is_never_called(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Providers without an SDK, or with it switched off, count as tracing being off."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    for provider in (trace.NoOpTracerProvider(), TracerProvider(shutdown_on_exit=False)):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert tracer_for(group) is None


def test_an_api_without_the_private_attribute_still_works(
    spans: Spans, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should OpenTelemetry rename where it keeps its provider, the public getter is asked."""
    monkeypatch.delattr(trace, "_TRACER_PROVIDER")
    for provider, on in ((spans.provider, True), (trace.ProxyTracerProvider(), False)):
        monkeypatch.setattr(trace, "get_tracer_provider", lambda provider=provider: provider)
        assert (tracer_for(group) is not None) is on


def test_spans_leave_the_programs_random_numbers_alone(spans: Spans, group: str) -> None:
    """A seeded program draws the same numbers, and two equally seeded ones have different ids."""

    @prof(group=group)
    def work() -> tuple[int, int]:
        return ids()

    work()
    found = []
    for _ in range(2):
        random.seed(5)
        state = random.getstate()
        found.append(work())
        assert random.getstate() == state
    assert found[0][0] != found[1][0]
    assert spans.provider.get_tracer(group).id_generator is spans.provider.id_generator


def test_the_programs_own_id_generator_is_used(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider made with another id generator than the SDK's default keeps it."""

    class Counting(IdGenerator):
        def generate_span_id(self) -> int:
            return 7

        def generate_trace_id(self) -> int:
            return 8

    provider = TracerProvider(id_generator=Counting(), shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert prof(ids, group)() == (8, 7)


class Broken(SpanProcessor):
    """Fails when a span starts or ends."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002 - as the base class has it
        """Fail, or not."""
        if self.when == "start":
            raise RuntimeError("start")

    def on_end(self, span: ReadableSpan) -> None:  # noqa: ARG002 - as the base class has it
        """Fail, or not."""
        if self.when == "end":
            raise RuntimeError("end")


@pytest.mark.parametrize("when", ["start", "end"])
def test_tracing_that_fails_is_kept_away_from_the_program(when: str, spans: Spans, group: str) -> None:
    """A span processor that raises is counted; the function's result and the current span survive."""
    spans.provider.add_span_processor(Broken(when))
    before = recorded("tachograph").get("tachograph.errors where=tracing", 0)

    @prof(group=group)
    def work(value: int) -> int:
        return value

    @prof(group=group)
    def steps() -> Generator[int, None, None]:
        yield 1

    assert work(3) == 3
    assert list(steps()) == [1]
    assert ids() == (0, 0)
    assert recorded("tachograph")["tachograph.errors where=tracing"] == before + 2
    assert len([key for key in recorded(group) if key.startswith("function.calls")]) == 2


def test_a_provider_that_fails_is_no_tracing(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that gives no tracer is asked once, and the program goes on untraced."""

    class NoTracer(trace.TracerProvider):
        asked = 0

        def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
            NoTracer.asked += 1
            raise OSError("gone")

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", NoTracer())
    profiled = prof(ids, group)
    assert profiled() == profiled() == (0, 0)
    assert NoTracer.asked == 1


def test_an_exception_that_cannot_be_shown(spans: Spans, group: str, caplog: pytest.LogCaptureFixture) -> None:
    """An exception whose text raises is passed on as it was, and the span ends."""

    class Silent(Exception):  # noqa: N818 - it says nothing
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @prof(group=group)
    def failing() -> None:
        raise Silent

    with caplog.at_level(logging.CRITICAL), pytest.raises(Silent):
        failing()
    assert spans.named(failing.__qualname__).end_time is not None


@pytest.mark.process
@pytest.mark.parametrize("loads", ["", "import opentelemetry.metrics"])
def test_tracing_is_never_switched_on_by_us(loads: str) -> None:
    """A program without tracing is not made to load it."""
    program = f"""
{loads}
import sys, tachograph
@tachograph.prof
def work(): return 3
before = set(sys.modules)
assert work() == 3
assert "opentelemetry.trace" not in set(sys.modules) - before
assert "opentelemetry.sdk" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_ids_of_its_own(spans: Spans, group: str) -> None:
    """Two children forked at the same moment do not share trace ids."""
    profiled: Callable[[], tuple[int, int]] = prof(ids, group)
    found = {profiled()}
    for _ in range(2):
        ours, childs = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(childs, repr(profiled()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(childs)
        with os.fdopen(ours) as told:
            found.add(told.read())
    assert len(found) == 3
    assert len(spans.all()) == 1
