"""The limit of metric names: a program that puts the step into a name costs no more than so many."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

import tachograph
import tachograph.elastic
from tachograph.instrumentation._given_providers import Recording
from tachograph.instrumentation.bridges._values import BridgedValues
from tachograph.metric import LoggedValues, _log
from tachograph.metric.execution import Execution
from tachograph.recording import registry as registries
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

MOST = 20


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of few names, which the program's calls record into."""
    registry = Registry(most_names=MOST)
    monkeypatch.setattr(registries, "default", registry)
    monkeypatch.setattr(_log, "logged", LoggedValues(registry, Execution(registry=registry, journal=Journal(registry))))
    registry.points.wanted = True
    tachograph.elastic._decide_again()
    yield registry
    tachograph.elastic._decide_again()


def recorded_names(registry: Registry) -> list[str]:
    """Return the names of the program's metrics."""
    return [metric.name for metric in registry.collect() if metric.scope != "tachograph"]


def dropped(registry: Registry) -> float:
    """Return how many values were dropped because there was no room for their names."""
    return sum(
        point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if dict(point.attributes) == {"destination": "registry", "reason": "cardinality"} and hasattr(point, "value")
    )


Call = Callable[[int], object]


def bridge(registry: Registry) -> Call:
    """Return a call that records by a bridge."""
    values = BridgedValues(Recording(registry, Journal(registry)))
    origin = values.origin("one", "run", "run")
    return lambda step: values.scalar(origin, f"loss.{step}", 1.0, step)


def metric(registry: Registry) -> Call:
    """Return a call that records a Metric."""
    execution = Execution(registry=registry, journal=Journal(registry))
    return lambda step: tachograph.Metric(f"loss.{step}", execution=execution).record(1.0)


def logger(registry: Registry) -> Call:
    """Return a call that records by a MetricsLogger."""
    logger = tachograph.MetricsLogger(registry=registry)
    return lambda step: logger.log("train", {}, {f"loss.{step}": 1.0})


# Each has the step in a name.
CALLS: dict[str, Callable[[Registry], Call]] = {
    "put_metric": lambda _: lambda step: tachograph.put_metric(f"loss.{step}", 1.0),
    "put_metric, a group": lambda _: lambda step: tachograph.put_metric("loss", 1.0, f"step {step}"),
    "put_metric, a histogram": lambda _: lambda step: tachograph.put_metric(f"{step}.duration.ms", 1.0),
    "declare": lambda _: lambda step: tachograph.declare(f"done.{step}", kind="counter").bind(phase="train")(1),
    "log": lambda _: lambda step: tachograph.log({f"loss.{step}": 1.0}, step=step),
    "a bridge": bridge,
    "Metric": metric,
    "MetricsLogger": logger,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_names_beyond_the_limit_are_dropped_and_counted(
    registry: Registry, call: Callable[[Registry], Call], caplog: pytest.LogCaptureFixture
) -> None:
    """The first names go on, each value of a further one is counted, and one line names the first of these."""
    record = call(registry)
    for step in (*range(50), *range(50)):
        record(step)
    assert len(recorded_names(registry)) == MOST
    assert dropped(registry) == 2 * (50 - MOST)
    lines = [each.getMessage() for each in caplog.records if "metric names" in each.getMessage()]
    assert len(lines) == 1
    assert str(MOST) in lines[0]


# The events of a logger wait in the journal, which has a bound of its own.
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("call", [pytest.param(CALLS[name], id=name) for name in CALLS if name != "MetricsLogger"])
def test_names_beyond_the_limit_take_no_memory(registry: Registry, call: Callable[[Registry], Call]) -> None:
    """Two thousand leave less than 200 bytes each, in bounded caches; a name that is recorded takes kilobytes."""
    record = call(registry)
    tracemalloc.start()
    for step in range(5000):  # caches are full then
        record(step)
    registry.collect()
    before, _ = tracemalloc.get_traced_memory()
    for step in range(5000, 7000):
        record(step)
    registry.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 2000 * 200


def test_a_dictionary_keeps_its_known_keys(registry: Registry) -> None:
    """Of a call of ``log()`` only the values are dropped whose names are one too many."""
    for step in range(100):
        tachograph.log({"loss": float(step), f"loss.{step}": 1.0, "lr": 0.1}, step=step)
    xs: dict[str, list[float]] = {}
    for _, points in registry.points.drain(everything=True):
        for name in points.packed().metrics:
            xs.setdefault(name, []).extend(points.packed().x)
    assert xs["loss"] == xs["lr"] == list(range(100))
    assert dropped(registry) == 100 - (MOST - 2)
