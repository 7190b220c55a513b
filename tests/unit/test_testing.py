"""The test double that we ship."""

from __future__ import annotations

from typing import Any

import pytest

import tachograph
from tachograph.recording.summary import ValueSummary
from tachograph.testing import Captured, capture


def test_capture_shows_what_exporters_would_get() -> None:
    """Gauges, counters, histograms and profiled functions are read back, and only what came since the capture began."""

    @tachograph.prof(group="captured")
    def work() -> None:
        tachograph.put_metric("step.duration.ms", 5, "captured")

    tachograph.put_metric("loss", 9.0, "captured")
    with capture() as captured:
        work()
        tachograph.put_metric("loss", 0.5, "captured", attributes={"split": "train"})
        tachograph.put_metric("x.success", 2, "captured")
    assert captured.value("loss", "captured") is None
    assert captured.value("loss", "captured", split="train") == 0.5
    assert captured.value("x.success", "captured") == 2
    for name in ("step.duration.ms", "step.duration"):
        spread = captured.value(name, "captured")
        assert isinstance(spread, ValueSummary)
        assert (spread.count, spread.total.value()) == (1, 5)
    assert captured.names("captured") == ["function.calls", "function.duration", "loss", "step.duration", "x.success"]
    assert captured.value("no such", "no such") is None


def values(captured: Captured) -> list[Any]:
    """Return what a capture has of each kind of metric."""
    spread: Any = captured.value("wait.duration", "kept")
    calls: Any = captured.value("function.calls", "kept", **{"code.function.name": "work", "outcome": "success"})
    return [
        captured.value("loss", "kept"),
        captured.value("step.success", "kept"),
        None if spread is None else (spread.count, spread.minimum, spread.maximum),
        calls,
        captured.value("curve", "kept"),
        captured.value("logged", "kept"),
    ]


def record(number: float, calls: int) -> None:
    """Record values of each kind, so often."""
    for _ in range(calls):
        tachograph.put_metric("loss", number, "kept")
        tachograph.put_metric("step.success", 1, "kept")
        tachograph.put_metric("wait.duration", number, "kept")
        CURVE.record(number)
        tachograph.log({"logged": number}, group="kept")
        work()


def work() -> None:
    """Do nothing, measured below."""


work.__qualname__, work.__module__ = "work", ""
work = tachograph.prof(work, group="kept")
CURVE = tachograph.Metric("curve", group="kept")


def test_a_capture_leaves_the_registry_as_it_was() -> None:
    """Values from before are there again after the block, to the last loss, and those of the block are not."""
    with capture() as outer:
        record(0.5, 3)
        tachograph.put_metric("loss", "no number", "kept")
        before = values(outer)
        assert before == [0.5, 3, (3, 0.5, 0.5), 3, 0.5, 0.5]
        with capture() as inner:
            assert values(inner) == [None] * 6
            record(9.0, 2)
            tachograph.put_metric("new", 1.0, "kept")
            assert values(inner) == [9.0, 2, (2, 9.0, 9.0), 2, 9.0, 9.0]
        assert values(outer) == before
        assert "new" not in outer.names("kept")
        assert dropped(outer) == 1
        record(0.25, 1)
        assert values(outer) == [0.25, 4, (4, 0.25, 0.5), 4, 0.25, 0.25]
    assert values(inner) == [9.0, 2, (2, 9.0, 9.0), 2, 9.0, 9.0]
    assert values(outer) == [0.25, 4, (4, 0.25, 0.5), 4, 0.25, 0.25]


def dropped(captured: Captured) -> Any:
    """Return how many values that were no numbers a capture has counted."""
    return captured.value("tachograph.dropped", "tachograph", reason="no_number", destination="registry")


def test_an_exception_in_a_capture_restores_the_registry() -> None:
    """A test that fails inside its capture leaves the registry as it was, too."""
    with capture() as outer:
        record(0.5, 1)
        before = values(outer)
        with pytest.raises(ZeroDivisionError), capture():
            record(7.0, 1 // 0)
        assert values(outer) == before


def test_bound_records_and_three_levels() -> None:
    """Functions that were bound outside of a capture are captured in each of several, one in another."""
    add = tachograph.declare("bound.success", group="kept").bind()
    with capture() as first:
        add(1)
        with capture() as second:
            add(2)
            with capture() as third:
                add(4)
            add(8)
        add(16)
    found = [captured.value("bound.success", "kept") for captured in (first, second, third)]
    assert found == [17, 10, 4]
