"""The timer: one thread for what is due every so often, which nothing holds up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from programs import run
from tachograph.recording.registry import ERRORS, OWN_GROUP, Registry
from tachograph.recording.timer import Timer


@pytest.fixture
def timer() -> Iterator[Timer]:
    """Return a timer of its own, whose thread ends with the test."""
    made = Timer()
    yield made
    for task in made.tasks():
        task.close()


def errors(registry: Registry, where: str) -> float:
    """Return how many errors were counted."""
    series = registry.group(OWN_GROUP).own(ERRORS).series({"where": where})
    series.fold()
    return float(series.value() or 0)  # type: ignore[attr-defined]


def wait_for(condition: Callable[[], object], seconds: float = 10) -> bool:
    """Tell whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_an_interval_of_a_minute_delays_no_other(timer: Timer) -> None:
    """Tasks of different intervals are called each in its own time, in one thread."""
    seldom, often = list[int](), list[int]()
    timer.every("seldom", 60, lambda: seldom.append(threading.get_ident()))
    timer.every("often", 0.02, lambda: often.append(threading.get_ident()))
    assert wait_for(lambda: len(often) >= 5)
    assert seldom == []
    assert len(set(often)) == 1


def test_a_task_that_raises_is_counted_and_costs_the_others_nothing(
    timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure counts, the first of its type is said, and the task is tried again."""
    registry, others = Registry(), list[int]()

    def fail() -> None:
        raise ValueError("not today") if errors(registry, "failing") < 3 else KeyError("nor then")

    timer.every("failing", 0.01, fail, registry=registry)
    timer.every("other", 0.01, lambda: others.append(1))
    assert wait_for(lambda: errors(registry, "failing") >= 6)
    assert wait_for(lambda: len(others) >= 3)
    said = [record for record in caplog.records if record.getMessage().startswith("failing: background task failed")]
    assert [str(record.exc_info[1]) for record in said if record.exc_info] == ["not today", "'nor then'"]


def test_what_may_block_holds_nothing_up(timer: Timer) -> None:
    """A task beside the timer that hangs is called once at a time; the timer's others go on."""
    leave, entered, others = threading.Event(), list[str](), list[int]()

    def hang() -> None:
        entered.append(threading.current_thread().name)
        leave.wait(30)

    task = timer.every("hanging", 0.01, hang, beside=True)
    timer.every("other", 0.01, lambda: others.append(1))
    assert wait_for(lambda: entered)
    others.clear()
    assert wait_for(lambda: len(others) >= 5)
    assert entered == ["tachograph hanging"]
    assert not task.close(0.01)
    leave.set()
    assert task.close(5)


def test_a_thread_for_what_may_block_stays_for_the_next_such_call(timer: Timer) -> None:
    """Each further call has that thread, not a new one; it ends with the last task."""
    runners = list[threading.Thread]()
    task = timer.every("slow", 0.01, lambda: runners.append(threading.current_thread()), beside=True)
    assert wait_for(lambda: len(runners) >= 5)
    assert len(set(runners)) == 1
    task.close(5)
    assert wait_for(lambda: not runners[0].is_alive())


def test_a_task_that_is_woken_comes_at_once_and_one_that_is_closed_no_more(timer: Timer) -> None:
    """``wake`` waits for no interval; after ``close`` nothing is called; without tasks no thread is there."""
    called = list[int]()
    task = timer.every("minutely", 60, lambda: called.append(1))
    task.wake()
    assert wait_for(lambda: called == [1])
    assert task.close(5)
    task.wake()
    other = timer.every("other", 0.01, lambda: None)
    time.sleep(0.05)
    assert called == [1]
    other.close(5)
    assert wait_for(lambda: not timer.running)


def test_a_call_beside_the_timer_delays_the_next_ones_by_little(timer: Timer) -> None:
    """The timer expects the next call when the one before tells; one that comes sooner, or at once, comes all the same.

    It may rest until then while the call is made in the other thread, and is woken only where that is too late.
    """
    came: list[float] = []
    waits = iter([0.05, 1.5, 0.05, 0.05, 0.0, *[60.0] * 9])

    def call() -> None:
        came.append(time.monotonic())
        time.sleep(0.2 if len(came) == 4 else 0.005)  # longer than the call after it is expected

    timer.every("beside", lambda: next(waits), call, beside=True)
    assert wait_for(lambda: len(came) >= 5)
    between = [after - before for before, after in pairwise(came)]
    assert between[0] >= 1.5
    assert 0.05 <= between[1] < 1.4  # not when it was expected
    assert between[3] >= 0.2  # never twice at once
    assert not wait_for(lambda: len(came) > 5, 0.3)


def test_a_task_that_is_hurried_all_the_time_comes_twenty_times_a_second(timer: Timer) -> None:
    """It comes at once, and again soon; what hurries it at each of very many events costs the machine no more."""
    came: list[float] = []
    task = timer.every("hurried", 60.0, lambda: came.append(time.monotonic()))
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        task.hurry()
    task.close(30)
    assert came[0] - began < 0.5
    assert 2 <= len(came) <= 21


def test_a_task_that_may_come_early_comes_with_another_one(timer: Timer) -> None:
    """One wake-up for both; alone it comes in its own time."""
    came: list[tuple[str, float]] = []
    timer.every("early", 0.5, lambda: came.append(("early", time.monotonic())), early=0.45)
    time.sleep(0.2)
    other = timer.every("other", 0.5, lambda: came.append(("other", time.monotonic())))
    assert wait_for(lambda: len(came) >= 9)
    other.close(10)
    met = [name for name, _ in came].index("other")
    assert [name for name, _ in came[met:9]] == (["other", "early"] * 5)[: 9 - met]
    left = len(came)
    assert wait_for(lambda: len(came) >= left + 2)
    assert came[left + 1][1] - came[left][1] >= 0.49


def test_the_next_call_follows_what_the_task_says(timer: Timer) -> None:
    """The seconds to wait are asked for after each call."""
    waits, called = iter([0.01, 0.01, 60, 60]), list[int]()
    timer.every("changing", lambda: next(waits), lambda: called.append(1))
    assert wait_for(lambda: len(called) == 2)
    time.sleep(0.1)
    assert len(called) == 2


def test_a_pipe_is_read_at_once_and_closed_with_its_watch(timer: Timer) -> None:
    """What is written to it arrives without the zero bytes that only wake; both ends are closed by the timer."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    found = list[bytes]()
    watch = timer.watch(read, write, found.append)
    timer.every("often", 0.01, lambda: None)
    os.write(write, b"\0")
    os.write(write, bytes([signal.SIGUSR1]))
    assert wait_for(lambda: found == [bytes([signal.SIGUSR1])])
    watch.close()

    def closed() -> bool:
        try:
            os.fstat(write)
        except OSError:
            return True
        return False

    assert wait_for(closed)


def test_a_program_that_closes_every_descriptor_keeps_its_timer(tmp_path: Path) -> None:
    """As a daemon does: tasks go on at their pace, no error is logged, and files opened since are left alone."""
    program = """
import os, time
from tachograph.recording.timer import default
calls = []
read, write = os.pipe()
os.set_blocking(write, False)
default.watch(read, write, print)
default.every("often", 0.01, lambda: calls.append(time.process_time()))
while not calls:
    time.sleep(0.001)
os.closerange(3, 256)
time.sleep(0.2)
files = [open(f"opened.{number}", "wb") for number in range(4)]
calls.clear()
while len(calls) < 10:
    time.sleep(0.001)
for file in files:
    file.write(b"x")
    file.close()
print([os.path.getsize(file.name) for file in files], calls[-1] - calls[0] < 0.5)
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 1, 1, 1] True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    """None of the parent's tasks is called in the child, whose own are."""
    program = """
import os, time
from tachograph.recording.timer import default
called = []
default.every("inherited", 0.01, lambda: called.append("inherited"))
while not called:
    time.sleep(0.001)
child = os.fork()
if not child:
    called.clear()
    default.every("own", 0.01, lambda: called.append("own"))
    time.sleep(0.3)
    os.write(1, (" ".join(sorted(set(called))) + "\\n").encode())
    os._exit(0)
os.waitpid(child, 0)
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "own\n"), done.stderr


@pytest.mark.parametrize(
    "interval", [pytest.param("0.1", id="ticks"), pytest.param("60", id="flush", marks=pytest.mark.long)]
)
def test_sigterm_ends_a_program_whose_collection_hangs(tmp_path: Path, interval: str) -> None:
    """An instrument's callback that never returns delays the end by SIGTERM by no more than its budget."""
    program = """
import os, signal, sys, threading, time
import tachograph
from opentelemetry import metrics
from tachograph.recording import journal
pipeline = tachograph.start(metrics="jsonl", logs="jsonl", jsonl="out.jsonl", interval=float(sys.argv[1]))
entered = threading.Event()
def hang(_options):
    entered.set()
    time.sleep(60)
    return []
tachograph.put_metric("loss", 0.5)
metrics.get_meter("m").create_observable_gauge("g", callbacks=[hang])
if sys.argv[1] == "60":
    threading.Thread(target=pipeline.flush, daemon=True).start()
assert entered.wait(20)
journal.default.append("e", time.time_ns(), {})
time.sleep(1.5)  # a tick comes by
print(time.time(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(40)
"""
    done = run(tmp_path, program, interval)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert time.time() - float(done.stdout) < 12
