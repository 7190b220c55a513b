"""What a signal handler of the program raises in the middle of our code reaches the program, whatever it interrupts."""

from __future__ import annotations

import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

import tachograph
from programs import events, number, requests, run
from tachograph.elastic._stream import guarded
from tachograph.logger import MetricsLogger
from tachograph.metric import Metric, MetricScale
from tachograph.metric.execution import Execution
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.monitor.event import Event
from tachograph.monitor.stat import Stat
from tachograph.monitor.stat_window import Aggregation
from tachograph.profiling.tracing import Span
from tachograph.recording.cuda_captures import Captures
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import Journal
from tachograph.recording.logged_points import POINT
from tachograph.recording.registry import Registry

NOW = datetime.now(UTC)


class ExpiredError(Exception):
    """A time-out of the program's."""


def expire(*_: object) -> None:
    """Handle a signal, as a function."""
    raise ExpiredError


class Watchdog:
    """Handles a signal, as a method or as an object that can be called."""

    def bark(self, *_: object) -> None:
        """Handle it."""
        raise ExpiredError

    __call__ = bark


class Interrupted:
    """An object of the program's that a signal interrupts while it is read."""

    def __float__(self) -> float:
        """Be interrupted."""
        signal.raise_signal(signal.SIGUSR1)
        return 1.0

    def item(self) -> float:
        """Be interrupted, too."""
        return float(self)

    __str__ = __repr__ = lambda self: str(float(self))


class InterruptedOnce(Interrupted):
    """An object that a signal interrupts the first time only: a second look at it would succeed."""

    interrupted = False

    def __float__(self) -> float:
        """Be interrupted, once."""
        if self.interrupted:
            return 1.0
        self.interrupted = True
        return super().__float__()


@pytest.fixture(autouse=True)
def handler() -> Iterator[Callable[[Any], None]]:
    """Have SIGUSR1 raise; the function that is returned sets another handler."""
    before = signal.signal(signal.SIGUSR1, expire)
    yield lambda wanted: signal.signal(signal.SIGUSR1, wanted) and None
    signal.signal(signal.SIGUSR1, before)


def interrupted_sampler() -> Sampler:
    """Return a sampler that a signal interrupts."""

    class Slow(type(ALWAYS_ON)):  # type: ignore[misc]
        def should_sample(self, *arguments: Any, **more: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return super().should_sample(*arguments, **more)

    return Slow(True)  # type: ignore[no-any-return]


def log_to_an_interrupted_handler() -> None:
    """Log an event to a handler that a signal interrupts; another one gets the next event all the same."""
    registry = Registry()
    log = EventLog(Journal(registry), registry)
    log.register(lambda _event: signal.raise_signal(signal.SIGUSR1))
    log.log_event(Event("epoch", datetime.now(UTC), {}))


def add_to_a_stat() -> None:
    """Add a number that a signal interrupts."""
    registry = Registry()
    windows = Windows(EventLog(Journal(registry), registry), registry, threaded=False)
    Stat("load", [], 60.0, windows=windows).add(Interrupted())  # type: ignore[arg-type]


DOORS: dict[str, Callable[[], object]] = {
    "a value": lambda: Registry().group("g").instrument("loss").record(Interrupted()),
    "an attribute": lambda: Registry().group("g").instrument("loss").record(1, {"phase": Interrupted()}),
    "a Stat": add_to_a_stat,
    "an event's handler": log_to_an_interrupted_handler,
    "a metric's handler": lambda: guarded(lambda: signal.raise_signal(signal.SIGUSR1)),
    "a field": lambda: MetricsLogger(registry=Registry()).log("m", {}, {"loss": Interrupted()}),
    "a Metric": lambda: Metric("loss", execution=Execution(registry=Registry())).record(InterruptedOnce()),
    "an x": lambda: Metric("loss", execution=Execution(registry=Registry())).record(1, at=Interrupted()),
    "a bound": lambda: MetricScale("loss", upper=Interrupted()),  # type: ignore[arg-type]
    "a tag": lambda: MetricsLogger(registry=Registry()).log("m", {"phase": Interrupted()}, {"loss": 1}),
    "a sampler": lambda: Span(TracerProvider(sampler=interrupted_sampler()).get_tracer("t"), "f", {}),
}


@pytest.mark.parametrize("door", DOORS)
def test_it_comes_out_of_every_door(door: str) -> None:
    """A guard around an object of the program's does not take it for an error of that object."""
    with pytest.raises(ExpiredError):
        DOORS[door]()


@pytest.mark.parametrize(
    "handles",
    [expire, Watchdog().bark, Watchdog(), partial(expire, 1), lambda *_: expire()],
    ids=["function", "method", "object", "partial", "lambda"],
)
def test_handlers_of_every_kind_are_known(handles: Any, handler: Callable[[Any], None]) -> None:
    """Functions, methods, partials and objects that can be called."""
    handler(handles)
    with pytest.raises(ExpiredError):
        DOORS["a value"]()


def test_any_other_exception_stays_with_the_guard() -> None:
    """An exception that no handler has raised, or one of another thread's, is not passed on."""
    found: list[str] = []

    def guard(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as our guards do
            pass_on(error)
            found.append(type(error).__name__)

    guard(lambda: 1 / 0)
    thread = threading.Thread(target=guard, args=(expire,))
    thread.start()
    thread.join()
    assert found == ["ZeroDivisionError", "ExpiredError"]


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("raised", [ExpiredError, KeyboardInterrupt])
def test_an_interrupt_after_any_call_holds_up_no_event(raised: type[BaseException]) -> None:
    """Wherever a signal handler raises while an event is handed out, the next one is, by whichever thread logs it."""

    def interrupt(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        interrupted = []
        while (name := _next_interrupted(len(interrupted), raised)) is not None:
            interrupted.append(name)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert {"pop", "append"} <= set(interrupted)  # a handler is taken, and put back


def _next_interrupted(number_: int, raised: type[BaseException]) -> str | None:
    """Interrupt the end of one of the calls of built-ins that logging an event makes, and return what was called."""
    events, found, called = EventLog(Journal(Registry()), Registry()), threading.Event(), list[str]()
    events.register(lambda event: found.set() if event.name == "next" else None)

    def profile(frame: FrameType, what: str, of: Any) -> None:
        if what == "c_return" and frame.f_code.co_filename.endswith("_event_log.py"):
            called.append(of.__name__)
            if len(called) > number_:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(profile)
    try:
        events.log_event(Event("first", NOW, {}))
    except raised:
        threading.Thread(target=events.log_event, args=(Event("next", NOW, {}),), daemon=True).start()
        assert found.wait(20), called[-1]
        return called[-1]
    finally:
        sys.setprofile(None)
    return None


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("closed_by", ["del", "max_samples"])
@pytest.mark.parametrize("raised", [ExpiredError, KeyboardInterrupt])
def test_an_interrupt_anywhere_leaves_a_window_s_event_one_event(raised: type[BaseException], closed_by: str) -> None:
    """However a window closes: the journal and each handler get its event once, wherever a signal handler raises."""

    def interrupt(*_: object) -> None:
        raise raised

    before, hook = signal.signal(signal.SIGUSR1, interrupt), sys.unraisablehook
    sys.unraisablehook = lambda _: None  # CPython says it itself, where a Stat is destroyed
    try:
        places, wrong = 0, []
        while (found := _window_interrupted(places, raised, closed_by)) is not None:
            places += 1
            wrong += [found] if found[1:] != ([3.0], [[3.0], [3.0]]) else []
    finally:
        signal.signal(signal.SIGUSR1, before)
        sys.unraisablehook = hook
    assert (wrong, places > 20) == ([], True)


def _window_interrupted(
    number_: int, raised: type[BaseException], closed_by: str
) -> tuple[str, list[float], list[list[float]]] | None:
    """Interrupt a closing window at a call; return where, and the sums in the journal and at two handlers then."""
    registry, heard = Registry(), tuple[list[Event], list[Event]](([], []))
    journal = Journal(registry)
    log = EventLog(journal, registry)
    windows = Windows(log, registry, threaded=False)
    for each in heard:
        log.register(each.append)
    stats = [Stat("load", [Aggregation.SUM], 3600.0, *([2] if closed_by == "max_samples" else []), windows=windows)]
    stats[0].add(1.0)
    if closed_by != "max_samples":
        stats[0].add(2.0)
    closes: dict[str, Callable[[], object]] = {
        "del": stats.clear,
        "max_samples": lambda: stats[0].add(2.0),
    }
    at = list[str]()

    def profile(frame: FrameType, what: str, of: Any) -> None:
        code = frame.f_code
        if what in {"call", "c_return"} and "tachograph" in code.co_filename and code.co_name != "add":
            at.append(f"{what} {getattr(of, '__name__', '')} in {code.co_name}")
            if len(at) > number_:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(profile)
    try:
        closes[closed_by]()
    except raised:
        pass
    finally:
        sys.setprofile(None)
    if len(at) <= number_:
        return None
    windows.finish()
    logged = [float(str(event.attributes["load.sum"])) for event in journal.drain()]
    return at[-1], logged, [[float(event.data["load.sum"]) for event in each] for each in heard]


@pytest.mark.process
@pytest.mark.usefixtures("untraced")
def test_each_point_leaves_once_whatever_interrupts_its_recording(tmp_path: Path) -> None:
    """Time-outs in the middle of folds: no point is logged twice, and none that was recorded is missing."""
    done = run(
        tmp_path,
        """
        import signal, time
        from tachograph import Metric
        from tachograph.metric.execution import Execution
        from tachograph.recording.journal import Journal
        from tachograph.recording.registry import Registry

        class Expired(Exception):
            pass

        def expire(*_):
            raise Expired

        signal.signal(signal.SIGALRM, expire)
        registry = Registry()
        journal = Journal(registry, limit=10_000_000)
        record = Metric("loss", throttle=None, execution=Execution(journal=journal, registry=registry)).record
        step, recorded = 0, []
        for _ in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                for _ in range(100_000):
                    step += 1
                    record(0.5, at=step)
                    recorded.append(step)
            except Expired:
                pass
        record(0.5, at=step + 1)
        found = [event.attributes["x"] for event in journal.drain() if event.name == "tachograph.metric"]
        print(len(found) - len(set(found)), len(set(recorded) - set(found)))
        """,
    )
    assert (done.stdout, done.stderr) == ("0 0\n", "")


@pytest.mark.process
@pytest.mark.usefixtures("untraced")
def test_each_exception_of_a_handler_arrives_once_whatever_it_interrupts(tmp_path: Path) -> None:
    """Time-outs at any moment of any door: each comes out of it; CPython itself says those of weak references."""
    done = run(
        tmp_path,
        """
        import logging, random, signal, sys, time
        from datetime import datetime, timedelta, timezone
        import tachograph
        from tachograph.monitor import Aggregation, Event, Stat, log_event

        class Expired(Exception):
            pass

        class Odd:
            def __float__(self):
                return 1.0

        logging.getLogger("tachograph").setLevel(logging.CRITICAL)  # a log handler keeps what is raised in it
        raised = ignored = arrived = 0
        armed = False

        def expire(*_):
            global raised
            if armed:
                raised += 1
                raise Expired

        def ignore(_):  # in a callback of a weak reference, whoever has made it
            global ignored
            ignored += 1

        signal.signal(signal.SIGALRM, expire)
        sys.unraisablehook = ignore
        tachograph.start(metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl", interval=1)
        throttled, exact = tachograph.Metric("throttled"), tachograph.Metric("exact", throttle=None)
        stat = Stat("load", [Aggregation.COUNT], timedelta(seconds=0.05))
        count = tachograph.declare("steps", kind="counter").bind(who="me")
        logger = tachograph.MetricsLogger(role="me")
        doors = {
            "put": lambda n: tachograph.put_metric("loss", float(n)),
            "labels": lambda n: tachograph.put_metric("a.success", 1, "g", attributes={"who": n % 7}),
            "odd": lambda n: tachograph.put_metric("odd", Odd()),
            "counter": lambda n: count(1),
            "throttled": lambda n: throttled.record(n, at=n),
            "exact": lambda n: exact.record(n, at=n),
            "stat": lambda n: stat.add(1.0),
            "prof": tachograph.prof(lambda n: n),
            "event": lambda n: log_event(Event("e", datetime.now(timezone.utc), {"n": n})),
            "point": lambda n: logger.log("m", {"who": "x"}, {"n": n}),
            "log": lambda n: tachograph.log({"loss": 0.5, "a": {"b": n}}, step=n),
            "config": lambda n: tachograph.config({"a": n, "p": object()}),
            "task": tachograph.task(lambda n: throttled.record(n)),
            "progress": lambda n: list(tachograph.progress(range(20), "p")),
        }
        def call_until_raised(door, before, late):  # the jump back of a loop is in no "try" of its function: 3.13
            global armed, n
            armed = True
            while raised == before and time.monotonic() < late:
                n += 1
                door(n)
            armed = False
        chance, swallowed, end, n = random.Random(1), {}, time.monotonic() + 8, 0
        while time.monotonic() < end and raised < 3000:
            for name, door in doors.items():
                before = raised, arrived + ignored
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.0015))
                late = time.monotonic() + 1
                try:
                    call_until_raised(door, before[0], late)
                except Expired:
                    armed = False
                    arrived += 1
                if raised - before[0] != arrived + ignored - before[1]:
                    swallowed[name] = swallowed.get(name, 0) + 1
        print(raised > 200, ignored <= raised // 50, swallowed)
        """,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True True {}\n"), done.stderr[-2000:]


@pytest.mark.process
@pytest.mark.usefixtures("untraced")
def test_an_interrupted_flush_holds_up_no_later_one(tmp_path: Path) -> None:
    """Time-outs in the middle of flushes: the next one delivers, and what did not arrive is counted."""
    done = run(
        tmp_path,
        """
        import logging, random, signal, time
        import tachograph

        class Expired(Exception):
            pass

        def expire(*_):
            raise Expired

        logging.getLogger("tachograph").setLevel(logging.CRITICAL)
        signal.signal(signal.SIGALRM, expire)
        pipeline = tachograph.start(metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl", interval=0.05)
        metric, count = tachograph.Metric("loss", throttle=None), tachograph.declare("steps", kind="counter").bind()
        chance, steps = random.Random(2), 0
        pipeline.flush(5)  # its threads are there: CPython itself says it where their start is interrupted
        for _ in range(1500):
            count(1)
            metric.record(0.5, at=steps)
            steps += 1
            try:
                late = time.monotonic() + 1
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.002))
                while time.monotonic() < late:
                    pipeline.flush(0.5)
            except Expired:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        begun = time.monotonic()
        print(pipeline.flush(20), time.monotonic() - begun < 10)
        """,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr[-2000:]
    written = [event["attributes"] for event in events(tmp_path / "out.jsonl") if event["eventName"] == POINT]
    arrived = {point["x"] for point in written if "x" in point}
    lost = [
        number(metric)
        for request in requests(tmp_path / "out.jsonl")
        for resource in request.get("resourceMetrics", [])
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == "tachograph.dropped"
    ]
    assert len(arrived) + max(lost, default=0) >= 1500


@pytest.mark.usefixtures("untraced")
def test_an_interrupt_of_a_query_leaves_no_lock_held() -> None:
    """Wherever it comes: else the program's next capture of a CUDA graph, which takes the lock, would never begin."""
    for number_ in range(10):
        captures, called = Captures(), list[str]()

        def profile(frame: FrameType, what: str, of: Any, called: list[str] = called, number_: int = number_) -> None:
            if what == "c_return" and "tachograph" in frame.f_code.co_filename:
                called.append(of.__name__)
                if len(called) > number_:
                    sys.setprofile(None)
                    raise ExpiredError

        sys.setprofile(profile)
        try:
            captures.has_passed(lambda: True)
        except ExpiredError:
            assert captures.has_passed(lambda: True), called[-1]
        finally:
            sys.setprofile(None)
        if len(called) <= number_:
            break
    assert number_ > 1


PACKAGE = Path(tachograph.__file__).parent
# Locks that the main thread takes, where a program is interrupted.
LOCKING = [
    *(
        path
        for room in ("elastic", "logger", "metric", "monitor", "profiling", "recording")
        for path in (PACKAGE / room).glob("*.py")
    ),
    *(PACKAGE / path for path in ("exporters/_workers.py", "exporters/delivery_queue.py", "pipeline/_collection.py")),
]


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def uncovered(code: CodeType) -> Iterator[str]:
    """Yield the jumps back to a with statement that an exception in them would not leave."""
    table = dis.Bytecode(code).exception_entries
    found = list(dis.get_instructions(code))
    ends = {each.offset: after.opname for each, after in pairwise(found)}
    withs = [entry for entry in table if ends.get(entry.target) == "WITH_EXCEPT_START"]
    for each in found:
        if each.opname == "JUMP_BACKWARD":
            covers = {entry.target for entry in table if entry.start <= each.offset < entry.end}
            for entry in withs:
                if entry.start <= each.argval < entry.end and entry.target not in covers:
                    yield f"{code.co_filename}: {code.co_qualname}, offset {each.offset}"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="earlier ones have no gap there")
def test_no_loop_is_in_a_gap_of_the_table_of_exceptions() -> None:
    """An interrupt at a loop's jump back would leave a lock of ours held, and all that is recorded later be lost."""
    loops = [
        place
        for path in LOCKING
        for code in codes(compile(path.read_text(), str(path), "exec"))
        for place in uncovered(code)
    ]
    assert loops == []
