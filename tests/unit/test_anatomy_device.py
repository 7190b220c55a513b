"""The clock of a CUDA device, on a stand-in that has torch.cuda's names and a time of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.diagnosis.anatomy_device import DeviceClock
from tachograph.diagnosis.phases import (
    BACKWARD,
    BACKWARD_END,
    DATA,
    DATA_END,
    OPTIMIZER,
    OPTIMIZER_END,
    PHASES,
    Mark,
)

MS = 1_000_000


class Device:
    """A device that runs behind its host: events pass when it has come as far.

    Attributes:
        reached: its time in milliseconds; events recorded later have not passed.
        now: the time at which an event that is recorded now will pass.
    """

    def __init__(self) -> None:
        self.reached = self.now = 0.0
        self.made = 0
        self.capturing = False
        self.initialized = True
        self.stream = 7
        outer = self

        class Event:
            """As torch.cuda.Event; nothing of it waits."""

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                outer.made += 1
                self.at = -1.0

            def record(self) -> None:
                """Record it into the current stream."""
                assert not outer.capturing
                self.at = outer.now

            def query(self) -> bool:
                """Tell whether it has passed."""
                assert not outer.capturing
                return self.at <= outer.reached

            def elapsed_time(self, other: Any) -> float:
                """Return the milliseconds from this one to another one, both of which must have passed."""
                assert self.query()
                assert other.query()
                return float(other.at - self.at)

        self.cuda = SimpleNamespace(
            Event=Event,
            is_initialized=lambda: self.initialized,
            is_current_stream_capturing=lambda: self.capturing,
            current_device=lambda: 0,
            current_stream=lambda: SimpleNamespace(cuda_stream=self.stream),
            memory_allocated=lambda: 4096,
        )


def never(error: Exception) -> None:
    """Fail: nothing raises."""
    raise AssertionError(error)


def step(device: Device, clock: DeviceClock, host: int) -> None:
    """Take a step that the host queues in a millisecond a call, and the device computes in ten."""
    times = ((DATA, 0, ()), (DATA_END, 1, (1, 8, 0)), (BACKWARD, 30, ()), (BACKWARD_END, 60, ()))
    marks: list[tuple[Mark, float]] = [((kind, host + n, *more), took) for n, (kind, took, more) in enumerate(times)]
    marks += [((OPTIMIZER, host + 5, 9), 0), ((OPTIMIZER_END, host + 6, 9), 10)]
    for mark, took in marks:
        device.now += took
        if not clock.mark(mark):
            break


def test_phases_are_those_of_the_device() -> None:
    """A timed step has the device's times and the host's, once the device has come so far; until then nothing waits."""
    device = Device()
    clock = DeviceClock(device, never)
    assert clock.stepped(0, 9)
    step(device, clock, 0)
    assert not clock.mark((DATA, 10))
    clock.stepped(60 * MS, 9)
    assert not clock.steps
    device.reached = device.now
    clock.stepped(120 * MS, 9)
    (found,) = clock.steps
    phases = {name: time / MS for name, time in zip(PHASES, found.device, strict=True) if time}
    assert phases == {"data_wait": 1, "forward": 30, "backward": 60, "optimizer": 10}
    assert sum(found.host) == 6
    assert clock.allocated == 4096


def test_events_come_from_a_pool() -> None:
    """A long training makes no more events than wait at once."""
    device = Device()
    clock = DeviceClock(device, never)
    for number in range(100):
        clock.stepped(number * 60 * MS, 9)
        step(device, clock, number * 60 * MS)
        device.reached = device.now
    assert device.made <= 14
    assert len(clock.steps) >= 99


def test_a_device_far_behind_costs_no_memory() -> None:
    """Where the device reads nothing back for long, no more than a few steps wait for it."""
    device = Device()
    clock = DeviceClock(device, never)
    for number in range(1, 100):
        device.now += 1
        clock.stepped(number * 60 * MS, 9)
        step(device, clock, number * 60 * MS)
    assert device.made <= 8 * 7 + 7


def test_nothing_is_called_while_a_stream_captures() -> None:
    """A capture begins in the middle of a timed step: that one is given up, and the next begins after the capture."""
    device = Device()
    clock = DeviceClock(device, never)
    assert clock.stepped(0, 9)
    device.capturing = True
    assert not clock.mark((DATA, 1))
    assert not clock.stepped(60 * MS, 9)
    device.capturing = False
    assert clock.stepped(120 * MS, 9)


def test_another_stream_gives_the_step_up() -> None:
    """Times of two streams are no difference: a step whose stream changes is not shown."""
    device = Device()
    clock = DeviceClock(device, never)
    clock.stepped(0, 9)
    device.stream = 8
    assert not clock.mark((DATA, 1))
    device.reached = device.now
    clock.stepped(60 * MS, 9)
    assert not clock.steps


def test_a_driver_that_fails_is_left_alone() -> None:
    """After an error of the device it is never called again, and the program goes on."""
    device, errors = Device(), list[Exception]()
    clock = DeviceClock(device, errors.append)
    device.cuda.Event = lambda **_: (_ for _ in ()).throw(RuntimeError("no device"))
    assert not clock.stepped(0, 9)
    assert not clock.stepped(60 * MS, 9)
    assert [str(error) for error in errors] == ["no device"]


@pytest.mark.parametrize("now", [0, 60 * MS])
def test_a_program_without_cuda_is_not_looked_at(now: int) -> None:
    """Nothing of CUDA is initialised, or called, before the program does it."""
    device = Device()
    device.initialized = False
    device.cuda.is_current_stream_capturing = lambda: never(AssertionError("called"))
    assert not DeviceClock(device, never).stepped(now, 9)
