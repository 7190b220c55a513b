"""The end of a task: what is still on its way leaves later, and what comes too late goes elsewhere; or is counted."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from curves import Bench, Tensor, copied, dropped
from tachograph.metric import Metric, task
from tachograph.metric.execution import Execution, current, process
from tachograph.pipeline.event_feed import EventFeed
from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording import values
from tachograph.recording.holders import LEAVING, no_rest


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end with an empty journal, nothing under way, and a device whose tensors may leave it."""
    monkeypatch.setattr(values, "leave_device", copied)
    hand_in()
    journals.default.drain()
    yield
    hand_in()
    assert tasks() == []
    journals.default.drain()


def tasks() -> list[Execution]:
    """Return the tasks that the feed asks, whether they are over or under way."""
    return [holder for holder in journals.default.holders if isinstance(holder, Execution) and holder.number]


def hand_in(*, everything: bool = True) -> bool:
    """Have the points logged, as the feed does; False where something is still to come."""
    found = [holder.hand_in(0, everything=everything, pace=no_rest) for holder in [*tasks(), process]]
    return all(found)


def end_process() -> None:
    """Have the last points logged or counted, as at the end of the process, with no time for it."""
    EventFeed(journals.default, registries.default).hear_last_words(0)


def is_gone(execution: weakref.ref[Execution]) -> bool:
    """Tell whether nothing keeps an execution that is over."""
    gc.collect()
    return execution() is None


def recorded() -> list[tuple[bool, float]]:
    """Return whether it is a task's, and the value, of each point that was logged since the last look."""
    found = [event.attributes for event in journals.default.drain() if event.name == "tachograph.metric"]
    return [("execution" in point, float(str(point["value"]))) for point in found]


def key(request: pytest.FixtureRequest) -> str:
    """Return a key that no other test uses."""
    return request.node.name


def test_values_that_arrive_after_the_end_leave(request: pytest.FixtureRequest) -> None:
    """A task's values that are on their way from a device when it ends are points once they have arrived."""
    metric = Metric(key(request), throttle=None)
    tensors = [Tensor(number) for number in range(5)]
    executions = []

    @task
    def job() -> None:
        executions.append(weakref.ref(current.get()))
        for tensor in tensors:
            metric.record(tensor)

    job()
    hand_in()
    assert recorded() == []
    for tensor in tensors:
        tensor.there = True
    hand_in(everything=False)
    assert recorded() == [(True, number) for number in range(5)]
    assert is_gone(executions[0])


def test_values_that_never_arrive_are_counted(request: pytest.FixtureRequest) -> None:
    """At the end of the process; or, where nobody takes events out, beyond what may wait."""
    metric = Metric(key(request), throttle=None)

    @task
    def job() -> None:
        metric.record(Tensor(1))
        metric.record(Tensor(2))

    before = dropped(registries.default)
    job()
    end_process()
    assert dropped(registries.default)["shutdown"] == before.get("shutdown", 0) + 2
    hand_in()
    for _ in range(LEAVING + 3):
        job()
    assert len(tasks()) == LEAVING
    assert dropped(registries.default)["overflow"] == before.get("overflow", 0) + 6
    end_process()


def test_without_a_pipeline_nothing_piles_up(request: pytest.FixtureRequest) -> None:
    """A program that never takes events out keeps no task whose values have arrived."""
    metric = Metric(key(request), throttle=None)
    tensors = []

    @task
    def job() -> None:
        tensors.append(Tensor(1))
        metric.record(tensors[-1])

    for _ in range(10):
        job()
        for tensor in tensors:
            tensor.there = True
    assert len(tasks()) == 1


def test_the_end_while_another_thread_folds(request: pytest.FixtureRequest) -> None:
    """The task's last points leave although another thread is in the middle of a fold while it ends."""
    metric = Metric(key(request))
    folding, ended = threading.Event(), threading.Event()

    class Slow(Tensor):
        def query(self) -> bool:
            folding.set()
            return ended.wait(30) and super().query()

    tensor = Slow(4.0)
    tensor.there = True

    @task
    def job() -> None:
        for number in range(4):
            metric.record(float(number))
        metric.record(tensor)
        collector = threading.Thread(target=current.get().pass_on, kwargs={"everything": False})
        collector.start()
        collectors.append(collector)
        folding.wait()

    collectors: list[threading.Thread] = []
    job()
    assert recorded() == [(True, 0)]
    assert not hand_in()
    ended.set()
    collectors[0].join()
    assert hand_in()
    assert recorded() == [(True, 4)]


def test_what_comes_after_the_end_is_the_process(request: pytest.FixtureRequest) -> None:
    """A copied context that outlives its task records in the process, and keeps nothing of the task alive."""
    metric = Metric(key(request), throttle=None)
    contexts: list[contextvars.Context] = []
    refs = []

    @task
    def job() -> None:
        contexts.append(contextvars.copy_context())
        refs.append(weakref.ref(current.get()))
        metric.record(1.0)

    @task
    def other() -> None:
        contexts[-1].run(metric.record, 3.0)

    for _ in range(3):
        job()
        contexts[-1].run(metric.record, 2.0)
        other()
        contexts.clear()
    assert recorded() == [(True, 1), (False, 2), (False, 3)] * 3
    assert all(map(is_gone, refs))
    assert len(process.curves[metric.key].gauge.followed) == 1


def test_what_comes_after_the_end_and_fits_nowhere_is_counted(request: pytest.FixtureRequest) -> None:
    """Where the process has another definition, or the metric belongs to the execution that is over."""
    Metric(key(request), group=f"{key(request)} one").record(0)
    contexts: list[contextvars.Context] = []
    metric = []

    @task
    def job() -> None:
        contexts.append(contextvars.copy_context())
        metric.append(Metric(key(request), group="h"))
        metric[0].record(1.0)

    before = dropped(registries.default).get("closed", 0)
    job()
    contexts[0].run(metric[0].record, 2.0)
    assert recorded() == [(False, 0), (True, 1)]
    assert dropped(registries.default)["closed"] == before + 1
    bench = Bench()
    mine = Metric("m", execution=bench)
    mine.record(1.0)
    bench.end()
    mine.record(2.0)
    assert (bench.pairs(), bench.dropped()) == ([(0, 1)], {"closed": 1})


@pytest.mark.parametrize("value", [2.0, 2])
def test_the_end_in_the_middle_of_recording(value: float) -> None:
    """The execution ends right after a thread has found where to record: its value leaves all the same."""
    ends: list[Execution] = []

    def clock() -> float:
        if ends:
            ends.pop().end()
        return 100.0

    bench = Bench()
    execution = Execution(journal=bench.journal, registry=bench.registry, clock=clock)
    metric = Metric("m", execution=execution)
    metric.record(1.0)
    ends.append(execution)
    metric.record(value)
    assert [value for _, value in bench.pairs()] == [1.0, value]


def test_who_is_recording_at_the_end_loses_nothing() -> None:
    """Threads in copied contexts record while their tasks end: each value is in a point, of the task or the process."""
    bench = Bench()
    count, rounds = 0, 150
    kept: weakref.WeakSet[Execution] = weakref.WeakSet()
    for _ in range(rounds):
        execution = Execution(journal=bench.journal, registry=bench.registry, clock=time.perf_counter)
        metric = Metric("m", execution=execution)
        metric.record(0.0)
        kept.add(execution)
        going = threading.Event()

        def record(metric: Metric = metric, going: threading.Event = going) -> None:
            for number in range(400):
                metric.record(float(number))
                if number == 20:
                    going.set()

        thread = threading.Thread(target=record)
        thread.start()
        going.wait()
        execution.end()
        thread.join()
        count += 401
    found = sum(point.get("count", 1) for point in bench.logged())
    assert found + bench.dropped().get("closed", 0) == count
    del metric, execution, record, thread
    gc.collect()
    assert not kept
