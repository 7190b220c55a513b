"""Handlers: each once, in order, in one thread at a time, and never in a deadlock."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from programs import run
from receivers import dropped
from tachograph.monitor import Event
from tachograph.monitor._event_log import CHAIN, EventHandlerHandle, EventLog
from tachograph.monitor.event import unix_nano
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

NOW = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)


def log() -> EventLog:
    """Return a log of the test's own."""
    registry = Registry(enabled=True)
    return EventLog(Journal(registry), registry)


def event(name: str) -> Event:
    """Return an event without data."""
    return Event(name, NOW, {})


def together(*work: Callable[[], object]) -> None:
    """Run it in threads at once, and fail where one does not end."""
    threads = [threading.Thread(target=run_it, daemon=True) for run_it in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("untraced")  # 80,000 events
def test_every_event_of_every_thread_reaches_every_handler_and_the_journal() -> None:
    """Four threads log 20,000 events each: two handlers have each of them once, in each thread's order."""
    events = log()
    seen: list[list[str]] = [[], []]
    for found in seen:
        events.register(lambda one, found=found: found.append(one.name))

    def work(thread: int) -> None:
        for number in range(20_000):
            events.log_event(event(f"{thread}.{number}"))

    together(*(lambda thread=thread: work(thread) for thread in range(4)))  # type: ignore[misc]
    for found in seen:
        assert len(found) == len(set(found)) == 80_000
        for thread in range(4):
            mine = [name for name in found if name.startswith(f"{thread}.")]
            assert mine == [f"{thread}.{number}" for number in range(20_000)]
    dropped = events._registry.group("tachograph").instrument("tachograph.dropped")
    lost = dropped.series({"reason": "queue_full", "destination": "journal"})
    lost.fold()
    assert abs(len(events.journal) - 65_536) <= 4
    assert len(events.journal) + (lost.value() or 0) == 80_000  # type: ignore[union-attr]


def test_two_handlers_that_unregister_each_other_do_not_wait_for_ever() -> None:
    """In two threads at once, each inside one handler and unregistering the other."""
    events = log()
    both, b_entered = threading.Barrier(2, timeout=20), threading.Event()
    handles: dict[str, EventHandlerHandle] = {}

    def handler(mine: str, others: str) -> Callable[[Event], None]:
        def handle(found: Event) -> None:
            if found.name == mine:
                if mine == "b":
                    b_entered.set()
                both.wait()
                events.unregister(handles[others])

        return handle

    handles["a"] = events.register(handler("a", "b"))
    handles["b"] = events.register(handler("b", "a"))
    together(lambda: events.log_event(event("b")), lambda: (b_entered.wait(20), events.log_event(event("a"))))
    assert events._handles == ()


def test_equal_callbacks_are_never_in_two_threads() -> None:
    """A callable that was registered twice has each event twice, still in one thread at a time."""
    events = log()
    inside: list[int] = []
    most: list[int] = []

    class Sink:
        def take(self, _: Event) -> None:
            inside.append(1)
            most.append(len(inside))
            random.random()  # noqa: S311 - takes a moment
            inside.pop()

    sink = Sink()
    events.register(sink.take)
    events.register(sink.take)
    together(*[lambda: [events.log_event(event("e")) for _ in range(5_000)]] * 3)
    assert len(most) == 30_000
    assert max(most) == 1


def test_an_exception_that_ends_the_program_passes_and_leaves_nothing_locked() -> None:
    """KeyboardInterrupt or SystemExit in a handler reaches who logs; the next event is handled as ever."""
    events = log()
    seen: list[str] = []

    def handler(found: Event) -> None:
        seen.append(found.name)
        if found.name == "stop":
            events.log_event(event("left over"))
            raise KeyboardInterrupt

    events.register(handler)
    with pytest.raises(KeyboardInterrupt):
        events.log_event(event("stop"))
    events.log_event(event("next"))
    together(lambda: events.log_event(event("elsewhere")))
    assert sorted(seen) == ["elsewhere", "left over", "next", "stop"]


def test_a_handler_that_registers_another_gives_it_the_next_event() -> None:
    """Handlers may register handlers."""
    events = log()
    seen: list[str] = []

    def first(found: Event) -> None:
        if found.name == "a":
            events.register(lambda later: seen.append(later.name))

    events.register(first)
    events.log_event(event("a"))
    events.log_event(event("b"))
    assert seen == ["b"]


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (NOW, 1_795_262_400_123_456_000),
        (NOW.astimezone(timezone(timedelta(hours=5, minutes=30))), 1_795_262_400_123_456_000),
        (datetime(1960, 1, 1, tzinfo=UTC), 0),
        (datetime(1, 1, 1), 0),  # noqa: DTZ001 - local time, which the platform may not know that far back
        (NOW.astimezone().replace(tzinfo=None), 1_795_262_400_123_456_000),
    ],
)
def test_the_instant_of_an_event_is_exact(timestamp: datetime, expected: int) -> None:
    """With a time zone, with another one, without one: the same instant, to the microsecond."""
    assert unix_nano(Event("e", timestamp, {})) == expected


@pytest.mark.process
def test_the_current_span_is_attached() -> None:
    """An event that is logged in a sampled span carries its ids; outside, and in an unsampled one, none."""
    program = """
        from datetime import datetime
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
        import tachograph.monitor as monitor
        from tachograph.recording import journal
        tracer = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(tracer)
        event = monitor.Event("e", datetime.now(), {})
        monitor.log_event(event)
        with tracer.get_tracer("t").start_as_current_span("s") as span:
            monitor.log_event(event)
        with TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("t").start_as_current_span("off"):
            monitor.log_event(event)
        outside, inside, unsampled = journal.default.drain()
        context = span.get_span_context()
        assert inside[5:8] == (context.trace_id, context.span_id, context.trace_flags)
        assert outside[5:8] == unsampled[5:8] == (0, 0, 0)
    """
    import textwrap

    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("untraced")
def test_a_fork_while_others_log_leaves_no_lock_behind(tmp_path: Path) -> None:
    """A child that is forked while other threads are inside a handler can log, register and unregister."""
    program = """
        import os, threading
        from datetime import datetime
        import tachograph.monitor as monitor
        handle = monitor.register_event_handler(lambda event: sum(range(50)))
        event = monitor.Event("e", datetime.now(), {})
        def work():
            while True:
                monitor.log_event(event)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                stop = threading.Timer(20, os._exit, [7]); stop.daemon = True; stop.start()
                monitor.log_event(event)
                monitor.unregister_event_handler(handle)
                monitor.register_event_handler(print)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("done")
    """
    ran = run(tmp_path, program, timeout=120)
    assert ran.stdout == "done\n", ran.stderr


@pytest.mark.parametrize("each", [1, 3])
def test_a_handler_that_logs_at_each_event_ends(each: int, caplog: pytest.LogCaptureFixture) -> None:
    """Handlers get a bounded number of the events that they make themselves; the rest is counted, and exporters get it.

    That is said once, and what is logged later reaches the handlers again.
    """
    registry = Registry(enabled=True)
    journal = Journal(registry)
    made = EventLog(journal, registry)
    got: list[str] = []

    def handler(found: Event) -> None:
        got.append(found.name)
        for _ in range(each):
            made.log_event(event("again"))

    handle = made.register(handler)
    for name in ("first", "second"):
        made.log_event(event(name))
    at_once = 1 + each + CHAIN
    assert len(got) == 2 * at_once
    assert [got[0], got[at_once]] == ["first", "second"]
    logged = 2 * (1 + at_once * each)
    assert len(journal) == logged
    assert dropped(registry) == {"feedback": logged - len(got)}
    assert sum("keep logging events" in record.message for record in caplog.records) == 1
    made.unregister(handle)
    made.register(lambda found: got.append(found.name))
    made.log_event(event("last"))
    assert got[-1] == "last"


def test_a_burst_that_a_handler_logs_arrives() -> None:
    """Thousands of events that a handler logs at once reach it and the others, where they make no further ones."""
    made = log()
    got: list[str] = []

    def handler(found: Event) -> None:
        got.append(found.name)
        if found.name == "first":
            for number in range(CHAIN):
                made.log_event(event(str(number)))

    made.register(handler)
    made.log_event(event("first"))
    assert got == ["first", *map(str, range(CHAIN))]


@pytest.mark.process
def test_a_span_that_cannot_be_read_costs_the_event_nothing() -> None:
    """Where the program's tracing raises, an event leaves without its span, and the error is counted."""
    program = """
        from datetime import datetime
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        import tachograph.monitor as monitor
        from tachograph.recording import journal, registry

        class Broken(trace.NonRecordingSpan):
            def get_span_context(self):
                raise OSError("no context")

        trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
        with trace.use_span(Broken(trace.INVALID_SPAN_CONTEXT)):
            monitor.log_event(monitor.Event("e", datetime.now(), {}))
        (event,) = journal.default.drain()
        assert event[5:8] == (0, 0, 0)
        errors = [metric for metric in registry.default.collect() if metric.name == "tachograph.errors"]
        assert {dict(point.attributes)["where"]: point.value for point in errors[0].points}["tracing"] == 1
    """
    import textwrap

    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
