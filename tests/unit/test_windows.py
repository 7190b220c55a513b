"""The windowed reader: on time, in step with the wall clock, late rather than never, and never twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import run
from tachograph.monitor import COUNT, SUM, Event, Stat
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from tachograph.recording.values import Pending

SECOND = 1_000_000_000
START = 1_000_000 * SECOND


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        """Return nanoseconds since 1970."""
        return self.now


def reader(
    clock: Callable[[], int] = time.time_ns, *, threaded: bool = False, limit: int = 65_536
) -> tuple[Windows, Journal]:
    """Return a reader of the test's own, and the journal that it logs into."""
    registry = Registry(enabled=True)
    journal = Journal(registry, limit=limit)
    return Windows(EventLog(journal, registry), registry, clock=clock, threaded=threaded), journal


def sums(journal: Journal) -> list[float]:
    """Return the sum of each window that was logged since the last look."""
    return [value for event in journal.drain() for key, value in event.attributes.items() if key.endswith(".sum")]  # type: ignore[misc]


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Tell whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def test_windows_of_different_sizes_close_each_at_its_own_boundary() -> None:
    """One reader closes windows of 1 s, 3 s and 10 ms, each at the multiples of its own size."""
    clock = Clock()
    windows, journal = reader(clock)
    stats = [Stat(f"s{size}", [SUM], timedelta(milliseconds=size), windows=windows) for size in (10, 1000, 3000)]
    closed: dict[str, list[int]] = {}
    for _ in range(700):
        for stat in stats:
            stat.add(1)
        clock.now += 10_000_000
        windows.tick()
        for event in journal.drain():
            for key in event.attributes:
                closed.setdefault(key, []).append((event.time_unix_nano - START) // 1_000_000)
    assert closed["s10.sum"] == list(range(10, 7001, 10))
    assert closed["s1000.sum"] == list(range(1000, 7001, 1000))
    first = 3000 - START // 1_000_000 % 3000
    assert closed["s3000.sum"] == list(range(first, 7001, 3000))


@pytest.mark.timing
def test_thousands_of_windows_do_not_drift() -> None:
    """A thousand windows of 4 ms close each in a slot of its own, right after its end."""
    windows, journal = reader(threaded=True)
    stat = Stat("drift", [COUNT], timedelta(milliseconds=4), windows=windows)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        stat.add(1)
        time.sleep(0.001)
    windows.finish()
    times = [event.time_unix_nano for event in journal.drain()][:-1]
    late = sorted(moment % 4_000_000 for moment in times)
    assert len(times) > 600
    assert late[len(late) // 2] < 2_000_000
    assert len({moment // 4_000_000 for moment in times}) == len(times)


def test_an_overdue_window_closes_late_and_once() -> None:
    """After a pause of many windows one event holds what was added, and the windows without values log nothing."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("s", [SUM], 1.0, windows=windows)
    stat.add(5)
    clock.now += 3600 * SECOND
    windows.tick()
    windows.tick()
    assert sums(journal) == [5.0]


@pytest.mark.parametrize("values", [1, 1000])
def test_the_event_of_a_window_that_closes_late_has_the_time_of_its_end(values: int) -> None:
    """A point of a Stat's curve lies at the end of its window, whenever that was closed."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("load", [SUM], timedelta(seconds=1), windows=windows)
    for _ in range(values):
        stat.add(1)
    clock.now += 1_400_000_000
    windows.tick()
    (event,) = journal.drain()
    assert event.attributes == {"load.sum": values}
    assert event.time_unix_nano == START + SECOND


def test_a_stat_made_late_in_a_window_keeps_it_until_its_end() -> None:
    """Making a Stat, or being late, never closes a window before its time."""
    clock = Clock()
    windows, journal = reader(clock)
    other = Stat("other", [SUM], 1.0, windows=windows)
    clock.now += 5 * SECOND + SECOND // 2
    stat = Stat("s", [SUM], 1.0, windows=windows)
    stat.add(1)
    other.add(2)
    windows.tick()
    assert sums(journal) == [2.0]
    clock.now += SECOND // 2
    windows.tick()
    assert sums(journal) == [1.0]


def test_a_clock_set_back_a_little_keeps_the_window_open() -> None:
    """A clock that is corrected by less than a window neither closes the window twice nor makes it a new one."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("s", [SUM], 1.0, windows=windows)
    clock.now += SECOND
    windows.tick()
    stat.add(1)
    clock.now -= 1000
    windows.tick()
    stat.add(2)
    clock.now += 2000
    windows.tick()
    assert sums(journal) == []
    clock.now += SECOND
    windows.tick()
    assert sums(journal) == [3.0]


def test_a_clock_set_back_far_closes_at_the_next_boundary_of_its_own() -> None:
    """An hour back, the window does not stay open for an hour."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("s", [SUM], 1.0, windows=windows)
    stat.add(1)
    clock.now -= 3600 * SECOND
    windows.tick()
    assert sums(journal) == []
    clock.now += SECOND
    windows.tick()
    assert sums(journal) == [1.0]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3), st.integers(-1000, 1000)),
            st.tuples(st.just("step"), st.just(0), st.integers(-5_000, 5_000)),
            st.tuples(st.just("fold"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("destroy"), st.integers(0, 3), st.just(0)),
        ),
        max_size=80,
    )
)
def test_nothing_is_lost_or_doubled(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is added, however the clock steps, whoever is destroyed: windows and histogram add up to all of it."""
    clock = Clock()
    windows, journal = reader(clock)
    made: list[Stat | None] = [Stat("s", [SUM, COUNT], size, windows=windows) for size in (0.5, 0.5, 1.0, 2.5)]
    total = number = 0
    counts = [0] * len(made)
    for what, which, value in steps:
        stat = made[which]
        if what == "step":
            clock.now += value * 1_000_000
            windows.tick()
        elif what == "destroy":
            made[which] = stat = None
        elif stat is not None and what == "add":
            stat.add(value)
            total, number = total + value, number + 1
            counts[which] += 1
        elif stat is not None:
            list(windows.collect())
            assert 0 <= stat.count <= counts[which]  # those of the window that is open
    spread: Any = next((points.points[0] for points in windows.collect() if points.name == "s"), None)
    assert (spread.summary.total.value() if spread else 0) == total
    windows.finish()
    logged = [event.attributes for event in journal.drain()]
    assert sum(found["s.sum"] for found in logged) == total  # type: ignore[misc]
    assert sum(found["s.count"] for found in logged) == number  # type: ignore[misc]


def test_a_window_closes_at_the_end_though_a_fold_in_another_thread_takes_long() -> None:
    """The end waits for a fold that is under way in another thread: the values after it are logged, too."""

    class Slow:
        """A device's event that takes a while to say whether it has happened."""

        def query(self) -> bool:
            """Return False, after 0.3 seconds for the other thread."""
            if threading.current_thread() is folding:
                asked.set()
                time.sleep(0.3)
            return False

    asked = threading.Event()
    windows, journal = reader(Clock())
    stat = Stat("s", [SUM], 1.0, windows=windows)
    stat._life.window.buffer.append(Pending(None, Slow()))
    assert stat.count == 1
    folding = threading.Thread(target=lambda: stat.count)
    folding.start()
    assert asked.wait(10)
    stat.add(2.0)
    windows.finish()
    folding.join()
    assert sums(journal) == [2.0]


def test_threads_that_add_while_windows_close_lose_nothing() -> None:
    """Four threads add while windows of a millisecond close, with and without ``max_samples``: every value counts."""
    windows, journal = reader(threaded=True)
    stats = [Stat("plain", [SUM], 0.001, windows=windows), Stat("few", [SUM], 0.001, 50, windows=windows)]
    refused = windows._registry

    def work() -> None:
        for _ in range(40_000):
            for stat in stats:
                stat.add(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    windows.finish()
    logged: dict[str, float] = {"plain.sum": 0.0, "few.sum": 0.0}
    for event in journal.drain():
        for key, value in event.attributes.items():
            logged[key] += value  # type: ignore[operator]
            assert key != "few.sum" or value <= 50  # type: ignore[operator]
    dropped = [
        point.value  # type: ignore[union-attr]
        for points in refused.collect()
        if points.name == "tachograph.dropped"
        for point in points.points
        if dict(point.attributes)["reason"] == "max_samples"
    ]
    assert logged["plain.sum"] == 160_000
    assert logged["few.sum"] + sum(dropped) == 160_000


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
@pytest.mark.usefixtures("untraced")
def test_an_interrupt_loses_and_doubles_no_value() -> None:
    """Ctrl-C in the middle of a fold or of closing a window leaves every value in exactly one window."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("s", [SUM], 1.0, 3000, windows=windows)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    added = interrupted = 0
    try:
        for turn in range(300):
            try:  # the outer one: the signal may come while the inner one is being left
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0001 + turn % 7 * 0.00005)
                    for _ in range(20_000):
                        stat.add(1)
                        added += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            clock.now += SECOND
            windows.tick()
    finally:
        signal.signal(signal.SIGALRM, before)
    windows.finish()
    logged = sums(journal)
    dropped = sum(
        point.value  # type: ignore[union-attr]
        for points in windows._registry.collect()
        if points.name == "tachograph.dropped"
        for point in points.points
    )
    assert interrupted > 100
    assert max(logged) <= 3000
    # An interrupt may come between adding a value and counting it here.
    assert 0 <= sum(logged) + dropped - added <= interrupted


@pytest.mark.timing
def test_ten_thousand_windows_close_in_slices() -> None:
    """While 10,000 windows close, another thread gets the interpreter within milliseconds."""
    clock = Clock()
    windows, journal = reader(clock)
    stats = [Stat(f"s{number}", [SUM], 1.0, windows=windows) for number in range(10_000)]
    for stat in stats:
        stat.add(1)
    clock.now += SECOND
    thread = threading.Thread(target=windows.tick)
    thread.start()
    waits: list[float] = []
    while thread.is_alive():
        start = time.perf_counter()
        time.sleep(0)
        waits.append(time.perf_counter() - start)
    assert sums(journal) == [1.0] * 10_000
    assert sorted(waits)[len(waits) * 95 // 100] < 0.01


def test_a_slow_handler_delays_no_add_and_no_exit() -> None:
    """A handler that never returns holds up no ``add``, and the end no longer than its timeout; all is logged."""
    windows, journal = reader(threaded=True)
    entered, leave = threading.Event(), threading.Event()

    def handler(_: Event) -> None:
        entered.set()
        leave.wait(30)

    windows.events.register(handler)
    stat, late = (Stat(name, [SUM], timedelta(milliseconds=20), windows=windows) for name in ("s", "late"))
    stat.add(1)
    assert entered.wait(10)
    start = time.perf_counter()
    for _ in range(100_000):
        stat.add(1)
    late.add(7)
    assert time.perf_counter() - start < 5
    start = time.perf_counter()
    windows.finish(0.3)
    assert time.perf_counter() - start < 2
    leave.set()
    assert sum(sums(journal)) == 100_008


def test_values_that_come_while_the_process_ends_leave_with_its_last_events() -> None:
    """A finalizer or a thread may add after the windows are closed: the pipeline's last look closes them again."""
    windows, journal = reader(threaded=True)
    stat = Stat("s", [SUM], 3600.0, windows=windows)
    for value in (1, 2):
        stat.add(value)
        windows.finish()
        windows.finish()
    assert sums(journal) == [1, 2]


def test_a_stat_destroyed_while_its_handler_is_busy_is_handed_over() -> None:
    """Destroying a Stat never waits for a handler that another thread is in; the event comes after it."""
    windows, _ = reader(threaded=True)
    entered, leave, seen = threading.Event(), threading.Event(), list[str]()

    def handler(event: Event) -> None:
        if event.name == "busy":
            entered.set()
            leave.wait(30)
        seen.extend(event.data)

    windows.events.register(handler)
    stat = Stat("gone", [SUM], 3600.0, windows=windows)
    stat.add(1)
    event = Event("busy", datetime.now().astimezone(), {"busy": 1})
    thread = threading.Thread(target=windows.events.log_event, args=(event,))
    thread.start()
    assert entered.wait(10)
    start = time.perf_counter()
    del stat
    assert time.perf_counter() - start < 1
    assert seen == []
    leave.set()
    thread.join()
    assert wait_for(lambda: seen == ["busy", "gone.sum"])
    windows.finish()


def test_only_the_function_add_keeps_a_stat_alive() -> None:
    """``add = Stat(...).add`` records until it is gone itself, and then what it holds is logged."""
    windows, journal = reader(Clock())
    add = Stat("s", [SUM], 3600.0, windows=windows).add
    add(2)
    assert sums(journal) == []
    del add
    assert sums(journal) == [2.0]


def test_a_subclass_may_override_add() -> None:
    """As with the original, ``add`` of a subclass is called, and reaches that of the Stat by ``super()``."""

    class Doubling(Stat):
        def add(self, v: float) -> None:  # type: ignore[override]
            super().add(2 * v)

    windows, _ = reader(Clock())
    stat = Doubling("s", [SUM], 1.0, windows=windows)
    stat.add(2)
    assert stat._life.window.fold()
    assert stat._life.window.summary().total.value() == 4  # type: ignore[union-attr]


@pytest.mark.process
def test_nothing_is_lost_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """A Stat in a module's global logs its open window at exit, to its handlers; the process ends with status 0."""
    program = """
        import tachograph.monitor as monitor
        stat = monitor.Stat("open", [monitor.SUM, monitor.COUNT], 3600.0)
        stat.add(4)
        handle = monitor.register_event_handler(lambda event: print(event.name, event.data))
    """
    ran = run(tmp_path, program)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "torch.monitor.Stat {'open.sum': 4.0, 'open.count': 1.0}\n"


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("untraced")
def test_a_forked_child_starts_afresh(tmp_path: Path) -> None:
    """The child logs nothing of its parent's windows, has no thread until it makes a Stat, and never hangs."""
    program = """
        import os, sys, threading, time
        import tachograph.monitor as monitor
        seen = []
        monitor.register_event_handler(lambda event: seen.append(event.data))
        stat = monitor.Stat("inherited", [monitor.SUM], 0.1)
        stat.add(1)
        busy = threading.Thread(target=lambda: [stat.add(0) for _ in range(2_000_000)], daemon=True)
        busy.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                stop = threading.Timer(20, os._exit, [7]); stop.daemon = True
                names = [thread.name for thread in threading.enumerate()]
                seen.clear()
                assert not any(name.startswith("tachograph") for name in names), names
                stat.add(2)
                assert stat.count == 1, stat.count
                mine = monitor.Stat("mine", [monitor.SUM], 0.05)
                mine.add(3)
                deadline = time.monotonic() + 10
                while not ({"mine.sum": 3.0} in seen and {"inherited.sum": 2.0} in seen):
                    if time.monotonic() > deadline:
                        os._exit(8)
                    time.sleep(0.005)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("done")
    """
    ran = run(tmp_path, program, timeout=120)
    assert ran.stdout == "done\n", ran.stderr


class Broken:
    """What stands for a CUDA scalar, and for its copy, of a device on which every call fails."""

    def query(self) -> bool:
        """Fail, as after an illegal access."""
        raise RuntimeError("CUDA error")


def test_a_device_that_fails_costs_its_own_values(caplog: pytest.LogCaptureFixture) -> None:
    """A value that never arrives is counted, and those of the window that did are there."""
    clock = Clock()
    windows, journal = reader(clock)
    stat = Stat("s", [SUM, COUNT], timedelta(seconds=1), windows=windows)
    for value in (1.0, 2.0):
        stat.add(value)
    for _ in range(2):
        stat._life.window.buffer.append(Pending(None, Broken()))
    for _ in range(2):
        clock.now += SECOND
        windows.tick()
    assert [value for value in sums(journal) if value] == [3.0]
    assert len([record for record in caplog.records if "CUDA error" in record.message]) == 1
    (dropped,) = (metric for metric in windows._registry.collect() if metric.name == "tachograph.dropped")
    assert [(dict(point.attributes)["reason"], point.value) for point in dropped.points] == [("no_number", 2)]  # type: ignore[union-attr]
    del stat
