"""Metric and values of a device: they are waited for in the background, and one that fails costs only itself."""

from __future__ import annotations

from typing import Any

import pytest

from curves import Bench, Tensor, copied
from tachograph.metric import Metric
from tachograph.metric.execution import Execution
from tachograph.recording import values
from tachograph.recording.accumulators import LastValue
from tachograph.recording.curve import CurveRecorder
from tachograph.recording.losses import SeriesLosses


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the tests leave their device."""
    monkeypatch.setattr(values, "leave_device", copied)


def arriving(*tensors: Tensor) -> None:
    """Let copies arrive."""
    for tensor in tensors:
        tensor.there = True


def shown(bench: Bench) -> Any:
    """Return what the gauge of the metric shows."""
    bench.pass_on(everything=False)
    return bench.gauges()["tachograph.metric", "m"][1]


def test_values_wait_for_nobody() -> None:
    """A value that has not arrived is waited for in the background, and the order of the curve is kept."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    metric.record(0, at=0)
    tensor = Tensor(1.5)
    metric.record(tensor, at=1)
    metric.record(2, at=2)
    assert bench.pairs() == [(0, 0)]
    assert not bench.pass_on(everything=True)
    arriving(tensor)
    assert bench.pass_on(everything=True)
    assert bench.pairs() == [(1, 1.5), (2, 2)]
    metric.record(Tensor(1), at=3)
    for _ in range(2):
        bench.give_up()
        assert (bench.pairs(), bench.dropped()) == ([], {"shutdown": 1})


def test_one_that_cannot_be_read_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The device has failed: its values are counted and said once; others of the curve and other curves leave."""
    bench = Bench()
    metric, other = (Metric(key, throttle=None, execution=bench) for key in ("m", "other"))
    tensors = [Tensor(number) for number in range(4)]
    for number, tensor in enumerate(tensors):
        metric.record(tensor, at=number)
    metric.record(4, at=4)
    other.record(5)
    arriving(*tensors)
    tensors[1].failed = tensors[2].failed = True
    metric.record(6, at=6)
    assert bench.pass_on(everything=True)
    found = [(point["metric"], point["value"]) for point in bench.logged()]
    assert found == [("other", 5), ("m", 0), ("m", 3), ("m", 4), ("m", 6)]
    assert bench.dropped() == {"no_number": 2}
    assert [record.getMessage() for record in caplog.records] == [
        (
            "m: dropped a value: an illegal memory access was encountered "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
        )
    ]


class Broken(CurveRecorder):
    """A curve whose points never leave."""

    __slots__ = ()

    def pass_on(self, *, everything: bool = False) -> bool:  # noqa: ARG002 - as of any curve
        """Fail."""
        raise MemoryError


def test_a_curve_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with one curve: the others' points leave, that is said once, and at the end it is counted."""
    bench = Bench()
    broken = Broken(
        {"metric": "broken"},
        LastValue(SeriesLosses("broken")),
        journal=bench.journal,
        registry=bench.registry,
        clock=bench.clock,
        start=bench.start,
    )
    bench.curves["broken"] = broken
    for key in ("broken", "m"):
        metric = Metric(key, execution=bench)
        metric.record(1.0)
        metric.record(2.0)
    bench.logged()
    bench.pass_on(everything=True)
    bench.pass_on(everything=True)
    assert [(point["metric"], point["value"]) for point in bench.logged()] == [("m", 2.0)]
    assert [record.getMessage().split("(")[0] for record in caplog.records] == [
        "could not export points of Metric 'broken' "
    ]
    bench.give_up()
    assert bench.dropped() == {"shutdown": 1}


def test_the_gauge_follows_a_device_that_lags() -> None:
    """The gauge shows the last value that has arrived, while others are on their way."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    before = Tensor(-1)
    metric.record(before)
    found = []
    for number in range(5):
        tensor = Tensor(number)
        metric.record(tensor)
        arriving(before)
        before = tensor
        found.append(shown(bench))
    assert found == [-1, 0, 1, 2, 3]


def test_a_later_plain_value_wins_in_the_gauge() -> None:
    """What arrives late does not replace what was recorded after it; held back or not, and in any execution."""
    bench = Bench()
    metric = Metric("m", throttle=0.1, execution=bench)
    metric.record(1.0)
    metric.record(2.0)  # held back
    tensors = [Tensor(number) for number in range(10, 15)]
    for tensor in tensors[:2]:
        metric.record(tensor)
    arriving(tensors[0])
    assert shown(bench) == 10
    metric.record(3.0)
    metric.record(tensors[2])
    arriving(tensors[1])
    assert shown(bench) == 3.0
    arriving(tensors[2])
    assert shown(bench) == 12
    waiting = [Tensor(20), Tensor(21)]
    for value in (*waiting, 5.0):
        metric.record(value)
    arriving(waiting[0])
    assert shown(bench) == 5.0
    arriving(waiting[1])
    assert shown(bench) == 5.0
    metric.record(tensors[3])
    bench.now += 1
    later = Execution(journal=bench.journal, registry=bench.registry, clock=bench.clock)
    Metric("m", execution=later).record(4.0)
    arriving(tensors[3])
    assert shown(bench) == 4.0
    bench.now += 1
    metric.record(tensors[4])
    arriving(tensors[4])
    assert shown(bench) == 14


class Failing:
    """A number of the program's own whose reading fails."""

    def __float__(self) -> float:
        """Fail."""
        raise RuntimeError("no")


def test_an_object_that_fails_is_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once and exported, and costs the other values nothing."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    for _ in range(3):
        metric.record(Failing())
    metric.record(1.0)
    assert bench.pass_on(everything=True)
    assert [point["value"] for point in bench.logged()] == [1.0]
    assert bench.dropped() == {"no_number": 3}
    assert len(caplog.records) == 1
