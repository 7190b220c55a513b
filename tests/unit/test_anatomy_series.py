"""Series and events of steps, from the marks of lanes: no PyTorch is needed, a lane takes the marks of any loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from tachograph.diagnosis.anatomy import Lane
from tachograph.diagnosis.anatomy_ddp import Communication
from tachograph.diagnosis.anatomy_device import DeviceClock
from tachograph.diagnosis.anatomy_series import EVENT, VERDICT_EVENT, AnatomyOfSteps
from tachograph.diagnosis.phases import (
    BACKWARD,
    BACKWARD_END,
    CHECKPOINT,
    CHECKPOINT_END,
    COMPILE,
    COMPILE_END,
    DATA,
    DATA_END,
    OPTIMIZER,
    OPTIMIZER_END,
    PHASES,
    SCALER,
    SCALER_END,
)
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from test_anatomy_device import MS, Device, never

SECOND = 1000 * MS


class Training:
    """A training whose marks stand in lanes, on a device of its own, with the journal and the registry of a process."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.device = Device()
        self.modules: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.later, self.hours = 0.0, 0  # seconds that have passed beside the real ones; how far the wall clock was set
        self.anatomy = AnatomyOfSteps(
            self.registry,
            self.journal,
            clock=lambda: time.monotonic() + self.later,
            wall_clock=lambda: time.time_ns() + self.hours * 3600 * SECOND,
        )
        self.series = self.anatomy.series
        self.now = max(time.perf_counter_ns() - 1000 * SECOND, SECOND)  # the machine may have just started

    def lane(self, key: int = 1) -> Lane:
        """Return a thread's new lane."""
        lane = Lane(DeviceClock(self.device, never), Communication(self.modules, never), lambda: None)
        self.anatomy.anatomy.lanes[key] = lane
        return lane

    def call(self, lane: Lane, begin: int, end: int, took: int, *after: int) -> None:
        """Take a call of some milliseconds."""
        about = (1,) if begin == OPTIMIZER else ()
        lane.add((begin, self.now, *about))
        self.now += took * MS
        lane.add((end, self.now, *after))

    def step(self, lane: Lane, data: int = 1) -> None:
        """Take a step of eight samples: its batch takes as long as that, all else twelve milliseconds."""
        self.call(lane, DATA, DATA_END, data, 1, 8, 0)
        self.now += 4 * MS
        self.call(lane, BACKWARD, BACKWARD_END, 6)
        self.call(lane, OPTIMIZER, OPTIMIZER_END, 2, 1)

    def values(self, name: str) -> dict[tuple[str, ...], Any]:
        """Return the points of a metric by the values of their attributes: a number, or count and total."""
        (metric,) = [each for each in self.registry.collect() if each.name == name]
        return {
            tuple(str(value) for _, value in point.attributes): (
                (point.summary.count, round(point.summary.total.value(), 9))
                if hasattr(point, "summary")
                else point.value
            )
            for point in metric.points
        }

    def events(self, name: str = EVENT) -> list[dict[str, Any]]:
        """Return the attributes of the events that wait."""
        return [dict(event.attributes) for event in self.journal.drain() if event.name == name]


@pytest.fixture
def training() -> Iterator[Training]:
    """A training that is closed at the end."""
    found = Training()
    yield found
    found.anatomy.close()


def test_what_is_rare_has_series_of_its_own(training: Training) -> None:
    """Checkpoints and compilations have their durations, and steps that a scaler has left out their number, once."""
    lane = training.lane()
    for _ in range(3):
        training.step(lane)
    training.call(lane, CHECKPOINT, CHECKPOINT_END, 500)
    training.call(lane, COMPILE, COMPILE_END, 250)
    training.step(lane)
    training.call(lane, BACKWARD, BACKWARD_END, 6)
    training.call(lane, SCALER, SCALER_END, 1)  # no optimizer has stepped in it
    training.step(lane)
    for _ in range(2):
        training.series.fold()
    assert training.values("dl.checkpoint.duration") == {(): (1, 0.5)}
    assert training.values("dl.compile.duration") == {(): (1, 0.25)}
    assert training.values("dl.step.skipped") == {(): 1}


def test_the_device_has_series_of_its_own(training: Training) -> None:
    """A step that was timed on the device has its duration and phases there, and the event has both clocks' sums."""
    lane = training.lane()
    for _ in range(3):
        training.step(lane)
        training.device.now += 15
        training.device.reached = training.device.now
        assert lane.device.stepped(training.now, 1)
        begin = training.device.now
        for mark, at in (
            ((BACKWARD, 1), 0),
            ((BACKWARD_END, 2), 30),
            ((OPTIMIZER, 3, 1), 30),
            ((OPTIMIZER_END, 4, 1), 40),
        ):
            training.device.now = begin + at
            lane.device.mark(mark)
    training.series.tick()
    (said,) = training.events()
    assert said["device.steps"] == 2
    device = dict(zip(PHASES, said["device"], strict=True))
    assert (device["backward"], device["optimizer"]) == (60 * MS, 20 * MS)
    assert sum(said["host"]) < 2 * MS
    assert said["allocated"] == 4096
    assert training.values("dl.step.device.duration") == {(): (2, 0.08)}
    assert training.values("dl.step.phase.device.duration") == {("backward",): (2, 0.06), ("optimizer",): (2, 0.02)}
    assert training.values("dl.memory.allocated") == {(): 4096}


def test_an_event_is_told_once(training: Training) -> None:
    """Totals are logged with the first steps, and again after a second, or a checkpoint, and where there is news."""
    training.series.tick()
    assert training.events() == []
    lane = training.lane()
    training.step(lane)
    training.step(lane)
    training.series.tick()
    assert [said["steps"] for said in training.events()] == [1]
    training.step(lane)
    training.series.tick()
    assert training.events() == []
    training.call(lane, CHECKPOINT, CHECKPOINT_END, 5)
    training.series.tick()
    assert [said["checkpoints"] for said in training.events()] == [1]


def test_the_end_waits_for_a_fold_that_has_taken_the_last_marks(training: Training) -> None:
    """The timer rests between slices of a fold: at the end of the process its marks are in no lane any more."""
    lane = training.lane()
    for _ in range(60):  # of six marks each: more than a slice
        training.step(lane)
    goes_on = threading.Event()
    folding = threading.Thread(target=training.series.fold, args=(lambda: goes_on.wait(10),))
    folding.start()
    while lane.marks:
        time.sleep(0.001)
    threading.Timer(0.2, goes_on.set).start()
    for say in training.journal.last_words:
        say(5.0)
    folding.join(10)
    assert [said["steps"] for said in training.events()] == [60]


def test_the_last_step_is_told_though_a_tick_has_told_its_end(training: Training) -> None:
    """A tick after the last mark tells the last step as the rest, which no other one ends; the process's end does."""
    lane = training.lane()
    for _ in range(5):
        training.step(lane)
    training.series.tick()
    assert [event["steps"] for event in training.events()] == [4]
    for _ in range(2):
        for say in training.journal.last_words:
            say(1.0)
    (told,) = training.events()
    assert told["steps"] == 5
    assert not any(told["rest"])


def test_a_wall_clock_that_is_set_moves_nothing(training: Training) -> None:
    """Begin and end of the steps stay on one clock: an hour more or less between two events is in neither."""
    lane, told = training.lane(), list[dict[str, Any]]()
    for training.hours in (0, 1, -1):
        for _ in range(20):
            training.step(lane)
        training.series.fold()
        training.series._tell(last=True)
        told += training.events()
    assert [each["steps"] for each in told] == [19, 39, 59]
    assert [each["end"] - each["begin"] for each in told] == [sum(each["phases"]) for each in told]
    assert len({each["begin"] for each in told}) == 1
    assert training.values("dl.step.duration")[()] == (59, pytest.approx(59 * 0.013, abs=0.001))


def test_marks_that_nothing_took(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more have waited than are kept, the steps around the gap are none; those after it are counted."""
    monkeypatch.setattr("tachograph.diagnosis.anatomy.MOST_MARKS", 600)
    lane = training.lane()
    for _ in range(110):  # of six marks each
        training.step(lane)
    training.series.fold()
    counted = training.values("dl.step.count")[()]
    for _ in range(5):
        training.step(lane)
    training.series.fold()
    assert 90 <= counted <= 100
    assert training.values("dl.step.count")[()] - counted == 5


def test_a_second_thread_that_trains(training: Training) -> None:
    """It has series with its name, and no events: those are the first one's."""
    for key in (1, 2):
        lane = training.lane(key)
        lane.thread = f"thread {key}"
        for _ in range(key + 1):
            training.step(lane)
    training.series.tick()
    assert training.values("dl.step.count") == {(): 1, ("thread 2",): 2}
    assert [said["steps"] for said in training.events()] == [1]


def test_a_child_begins_anew(training: Training) -> None:
    """After a fork the parent's steps are forgotten: the child's own are the first ones."""
    lane = training.lane()
    for _ in range(4):
        training.step(lane)
    training.series.tick()
    training.events()
    training.series._reset_in_child()
    assert training.anatomy.anatomy.lanes == {}
    lane = training.lane(7)
    for _ in range(3):
        training.step(lane)
    training.series.tick()
    assert [said["steps"] for said in training.events()] == [2]


def test_an_error_of_ours_is_counted(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; the program's step goes on."""
    for _ in range(2):
        training.anatomy._failed(ValueError("a batch of its own"))
    assert training.values("tachograph.errors") == {("anatomy",): 2}
    assert [record.getMessage() for record in caplog.records] == [
        (
            "cannot record a training step (further warnings are suppressed; see tachograph_errors_total on /metrics): "
            "ValueError('a batch of its own')"
        )
    ]


class Parallel:
    """A module that has the figures of DistributedDataParallel."""

    def __init__(self, **figures: int) -> None:
        self.figures = {"backward_comm_time": 7, "backward_compute_comm_overlap_time": 5, **figures}

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.figures


def test_the_wait_for_gradients(training: Training) -> None:
    """A timed step's communication beside which nothing was computed is added up, each once, not those of the start."""
    lane = training.lane()
    module, of_another_thread = Parallel(iteration=10), Parallel(iteration=100)
    training.modules[module], training.modules[of_another_thread] = lane.communication._thread, -1
    for second, iteration in enumerate((10, 100, 100, 200)):
        module.figures["iteration"] = iteration
        lane.communication.read((second + 1) * SECOND)
        lane.communication.read((second + 1) * SECOND + 1)  # once a second
    assert (lane.communication.samples, lane.communication.waited) == (2, 4)
    for _ in range(3):
        training.step(lane)
    training.series.tick()
    assert [said["communication"] for said in training.events()] == [[2, 4]]


def test_figures_that_cannot_be_read() -> None:
    """A module of another torch is told once, and not asked again."""
    module, errors = Parallel(iteration=100), list[Exception]()
    modules: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    communication = Communication(modules, errors.append)
    modules[module] = communication._thread
    del module.figures["backward_comm_time"]
    for second in range(1, 3):
        communication.read(second * SECOND)
    assert [repr(error) for error in errors] == ["KeyError('backward_comm_time')"]


def test_a_verdict_of_the_rank_itself(training: Training) -> None:
    """A starved program has the gauge and an event; once its batches have come in time, the gauge is at zero again."""
    lane = training.lane()
    for data in (20, 20, 20, *(0,) * 40):
        for _ in range(50):
            training.step(lane, data)
        training.later += 10.5
        training.series.tick()
        if data:
            assert training.values("tachograph.verdict") == {("input_bound",): 2}
    assert training.values("tachograph.verdict") == {("input_bound",): 0}
    told = training.events(VERDICT_EVENT)
    assert (told[0]["verdict"], told[0]["severity"]) == ("input_bound", "critical")
    assert len(told) <= 2  # another one, where it has become a warning
