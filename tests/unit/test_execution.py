"""Tasks and workflows: each call is an execution with its own clock and definitions, and the function stays itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import tachograph
from front_door import calls, fresh_group
from programs import complaints, run, spans
from tachograph.metric import Metric, MetricGroup, task, workflow
from tachograph.recording import journal

__all__ = ["fresh_group"]


@pytest.fixture(autouse=True)
def empty_journal() -> Iterator[None]:
    """Begin and end with an empty journal, and with no task under way."""
    journal.default.drain()
    yield
    assert journal.default.holders.passing == {}
    journal.default.drain()


def points() -> list[dict[str, Any]]:
    """Return the points that were logged since the last look."""
    return [dict(event.attributes) for event in journal.default.drain() if event.name == "tachograph.metric"]


def key(request: pytest.FixtureRequest) -> str:
    """Return a key that no other test uses."""
    return request.node.name


def test_each_call_has_its_own_clock_and_definitions(request: pytest.FixtureRequest) -> None:
    """Two calls and the process record under one key; x begins at 0 in each, and their definitions may differ."""

    @task
    def train(units: str) -> None:
        Metric(key(request), group=MetricGroup("g", units=units), throttle=None).record(1)

    train("epoch")
    train("step")
    Metric(key(request), group=MetricGroup("g", units="batch"), throttle=None).record(1)
    logged = [(event.name, event.attributes) for event in journal.default.drain()]
    units = [found["x_units"] for name, found in logged if name == "tachograph.definition"]
    found = [attributes for name, attributes in logged if name == "tachograph.metric"]
    assert units == ["epoch", "step", "batch"]
    assert found[0]["x"] < 1
    assert found[1]["x"] < 1
    assert found[1]["execution"] == found[0]["execution"] + 1
    assert "execution" not in found[2]


def test_a_metric_made_outside_records_in_whoever_runs(request: pytest.FixtureRequest) -> None:
    """One Metric follows the task: nested calls, the one after it, and the process again, each with its last value."""
    metric = Metric(key(request), throttle=0.01)

    @task()
    def inner() -> None:
        metric.record(10, at=0)
        metric.record(11, at=1)

    @workflow()
    def outer() -> None:
        metric.record(1, at=0)
        inner()
        metric.record(2, at=1)

    outer()
    found = [(point["execution"], point["value"]) for point in points()]
    (first, _), (second, _) = found[0], found[1]
    assert second == first + 1
    assert found == [(first, 1), (second, 10), (second, 11), (first, 2)]


@pytest.mark.process
def test_all_kinds_of_functions_stay_what_they_are(request: pytest.FixtureRequest) -> None:
    """Functions, methods, coroutines, generators and async generators keep kind, name, signature and results."""
    metric = Metric(key(request), throttle=None)

    class Model:
        @task
        def fit(self, rate: float) -> float:
            """Fit."""
            metric.record(rate)
            return rate * 2

        @task
        @staticmethod
        def default() -> int:
            metric.record(0)
            return 3

        @classmethod
        @task(name="made")
        def make(cls) -> str:
            metric.record(0)
            return cls.__name__

    @task
    async def fetch(number: int) -> int:
        metric.record(number)
        await asyncio.sleep(0)
        metric.record(number)
        return number

    @task
    def count(upto: int) -> Iterator[int]:
        for number in range(upto):
            metric.record(number)
            yield number

    @task
    async def stream(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            metric.record(number)
            yield number

    assert (Model().fit(0.5), Model.default(), Model.make()) == (1.0, 3, "Model")
    assert len({point["execution"] for point in points()}) == 3
    assert (Model.fit.__doc__, Model.fit.__qualname__.endswith("Model.fit")) == ("Fit.", True)
    assert list(inspect.signature(Model.fit).parameters) == ["self", "rate"]
    assert inspect.iscoroutinefunction(fetch)
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(stream)

    async def both() -> list[int]:
        return [*(await asyncio.gather(fetch(1), fetch(2))), *[number async for number in stream(2)]]

    assert asyncio.run(both()) == [1, 2, 0, 1]
    found = [(point["execution"], point["value"]) for point in points()]
    first = found[0][0]
    assert found == [(first, 1), (first + 1, 2), (first, 1), (first + 1, 2), (first + 2, 0), (first + 2, 1)]


def test_a_generator_is_current_only_while_it_runs(request: pytest.FixtureRequest) -> None:
    """Between two steps of a task that is a generator, values belong to whoever asks it for the next item."""
    metric = Metric(key(request), throttle=None)

    @task
    def numbers() -> Iterator[int]:
        for number in range(3):
            metric.record(number)
            yield number

    for number in numbers():
        metric.record(-number)
    assert [("execution" in point) for point in points()] == [True, False] * 3


def test_one_that_fails_fails_as_before(request: pytest.FixtureRequest) -> None:
    """An exception is passed on, the last value still leaves, and the call is counted as a failure."""
    metric = Metric(key(request), throttle=0.01)

    @task(name="failing")
    def failing() -> None:
        metric.record(1)
        metric.record(2)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        failing()
    assert [point["value"] for point in points()] == [1, 2]
    counted = {name: count for name, count in calls("tachograph.task").items() if "failing" in name}
    assert list(counted.values()) == [1]
    assert next(iter(counted)).endswith(" KeyError")


@pytest.mark.process
def test_orchestration_is_ignored_and_said_once(tmp_path: Path) -> None:
    """What other systems are told of retries and caching changes nothing, and is said in one line."""
    done = run(
        tmp_path,
        """
from tachograph import task, workflow
@task(retries=3, memo=True)
def one():
    return 1
@task(cache=60)
def two():
    return 2
print(one() + two())
""",
    )
    assert (done.returncode, done.stdout) == (0, "3\n")
    (line,) = complaints(done.stderr).splitlines()
    assert line.startswith("tachograph: task: ignoring retries, memo:")


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: task(3), "task decorates functions and methods, not int"),
        (lambda: workflow(dict), "workflow decorates functions and methods, not type"),
        (lambda: task(name=3), "the name of a task must be a string"),
    ],
)
def test_what_cannot_be_a_task(decorate: Any, message: str) -> None:
    """Decorating what is no function is a TypeError that says so."""
    with pytest.raises(TypeError, match=message):
        decorate()


def test_a_conflict_is_one_within_an_execution_only(request: pytest.FixtureRequest) -> None:
    """What the process has recorded does not bind a task, and the other way round."""
    Metric(key(request), group="one").record(1)

    @tachograph.task
    def other() -> None:
        Metric(key(request), group="two").record(1)
        with pytest.raises(ValueError, match="already has the group 'two', not 'one'"):
            Metric(key(request), group="one")

    other()
    with pytest.raises(ValueError, match="already has the group 'one', not 'two'"):
        Metric(key(request), group="two")


@pytest.mark.process
def test_a_task_has_a_span_where_tracing_is_on(tmp_path: Path) -> None:
    """With traces on, each call is a span, nested as the calls are; nothing else of it changes."""
    done = run(
        tmp_path,
        """
import tachograph as cf
cf.start(metrics="none", logs="jsonl", traces="jsonl", jsonl="out.jsonl")
metric = cf.Metric("m")
@cf.task
def inner():
    metric.record(1)
@cf.workflow
def outer():
    inner()
    inner()
outer()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = spans(tmp_path / "out.jsonl")
    assert sorted(span["name"] for span in found) == ["__main__.inner", "__main__.inner", "__main__.outer"]
    (root,) = [span for span in found if span["name"] == "__main__.outer"]
    assert {span["parentSpanId"] for span in found if span is not root} == {root["spanId"]}
