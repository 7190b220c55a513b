"""Marks become steps: phases add up to the step, steps to the time, whatever the marks are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.diagnosis.phases import (
    BACKWARD,
    BACKWARD_END,
    CHECKPOINT,
    CHECKPOINT_END,
    COMPILE,
    COMPILE_END,
    DATA,
    DATA_END,
    EVAL_MODE,
    EXHAUSTED,
    ITERATOR,
    NO_GRAD,
    NO_GRAD_END,
    OPENED,
    OPTIMIZER,
    OPTIMIZER_END,
    PHASES,
    SCALER,
    SCALER_END,
    Mark,
    Step,
    StepMachine,
    split,
)

KINDS = range(EVAL_MODE + 1)
AFTER = {
    DATA_END: (1, 8, 0),
    OPTIMIZER: (2,),
    OPTIMIZER_END: (2,),
    ITERATOR: (1, 0),
    EXHAUSTED: (1,),
    OPENED: (1,),
    NO_GRAD: (True,),
}


def marked(kind: int, now: int) -> Mark:
    """Return a mark with what its kind needs."""
    return (kind, now, *AFTER.get(kind, ()))


class Loop:
    """A loop of training on a clock of its own: each call takes the time that it is given."""

    def __init__(self) -> None:
        self.now = 0
        self.marks: list[Mark] = []

    def call(self, begin: int, end: int, took: int, *after: int) -> None:
        """Take a call's time."""
        self.marks.append(marked(begin, self.now))
        self.now += took
        self.marks.append((end, self.now, *(after or AFTER.get(end, ()))))

    def rest(self, took: int) -> None:
        """Let time pass between two calls."""
        self.now += took


def took(step: Step) -> dict[str, int]:
    """Return the phases that a step has, by name."""
    return {name: time for name, time in zip(PHASES, step.phases, strict=True) if time}


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(-3, 1000)), max_size=80))
@example([(DATA, 0), (DATA_END, 0), (DATA, 1), (OPTIMIZER, 0), (OPTIMIZER_END, 0)])  # a batch, and a fetch with no end
@example([(DATA, 0), (DATA_END, 1), (DATA_END, 0), (OPTIMIZER, 0), (OPTIMIZER_END, 0)])
@example([(DATA, 0), (DATA_END, 1), (COMPILE, 0), (OPTIMIZER, 0), (OPTIMIZER_END, 0)])
def test_phases_add_up_whatever_comes(moves: list[tuple[int, int]]) -> None:
    """Any order of marks, one that no program makes and a clock that goes back included, loses no nanosecond."""
    machine, now, marks = StepMachine(), 10_000, list[Mark]()
    for kind, more in moves:
        now += more
        marks.append(marked(kind, now))
    steps = machine.take(marks) + machine.close()
    totals = machine.totals()
    if marks:
        assert sum(totals.phases) == totals.end - totals.begin <= max(each[1] for each in marks) - marks[0][1]
    assert all(sum(step.phases) == step.duration and min(step.phases) >= 0 for step in steps)
    assert all(one.end == other.begin for one, other in pairwise(steps))
    assert len(steps) == totals.steps


def one_step(loop: Loop, times: list[int]) -> None:
    """Take a step whose phases take the times given."""
    wait, forward, backward, gradients, optimizer, other = times
    loop.call(DATA, DATA_END, wait)
    loop.rest(forward)
    loop.call(BACKWARD, BACKWARD_END, backward)
    loop.rest(gradients)
    loop.call(OPTIMIZER, OPTIMIZER_END, optimizer)
    loop.rest(other)


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=6, max_size=6), min_size=1, max_size=20))
def test_each_phase_has_its_time(steps: list[list[int]]) -> None:
    """A plain loop's phases are exactly those of the program; what follows a step's end belongs to the next one."""
    loop, machine = Loop(), StepMachine()
    found = []
    for times in steps:
        one_step(loop, times)
        found += machine.take(loop.marks)
        loop.marks.clear()
    found += machine.close()
    before = [0, *(times[5] for times in steps)]
    names = ("data_wait", "forward", "backward", "gradients", "optimizer")
    for step, times, other in zip(found, steps, before, strict=False):
        assert took(step) == {**dict(zip(names, times, strict=False)), **({"other": other} if other else {})}
        assert step.samples == 8
    assert len(found) == len(steps)


def test_evaluation_is_told_from_training() -> None:
    """Batches that no backward follows are evaluation, with the time after them."""
    loop = Loop()
    one_step(loop, [1, 2, 3, 4, 5, 6])
    for _ in range(3):
        loop.call(DATA, DATA_END, 100, 7, 8, 0)
        loop.rest(1000)
    loop.call(DATA, EXHAUSTED, 10, 7)
    loop.rest(50)
    one_step(loop, [1, 2, 3, 4, 5, 6])
    machine = StepMachine()
    steps = machine.take(loop.marks) + machine.close()
    assert [took(step).get("evaluation", 0) for step in steps] == [0, 3360]
    assert [step.samples for step in steps] == [8, 8]
    assert took(steps[1])["other"] == 6


def test_an_id_that_is_given_again_is_another_iterator() -> None:
    """A new iterator at the address of one of training is not one of training for that."""
    loop = Loop()
    one_step(loop, [1, 2, 3, 4, 5, 6])
    loop.marks.append((ITERATOR, loop.now, 1, 2))
    loop.call(DATA, DATA_END, 100)
    loop.rest(1000)
    loop.call(CHECKPOINT, CHECKPOINT_END, 20)
    one_step(loop, [1, 2, 3, 4, 5, 6])
    machine = StepMachine()
    last = (machine.take(loop.marks) + machine.close())[-1]
    assert (took(last)["evaluation"], took(last)["checkpoint"]) == (1100, 20)


def test_batches_fetched_ahead_are_of_training() -> None:
    """Two batches before the first backward, as Trainers fetch them, both count as training's."""
    loop = Loop()
    loop.call(DATA, DATA_END, 10)
    loop.rest(1)
    one_step(loop, [10, 2, 3, 4, 5, 6])
    machine = StepMachine()
    (step,) = machine.take(loop.marks) + machine.close()
    assert (step.samples, took(step)["data_wait"], took(step)["forward"]) == (16, 20, 3)


def test_work_without_gradients_splits_a_gap() -> None:
    """After ``eval()`` it is evaluation, before a backward a rollout, and what follows each step is of no phase."""
    loop = Loop()

    def without_gradients(took: int, *, is_evaluating: bool = False) -> None:
        loop.marks.append((NO_GRAD, loop.now, is_evaluating))
        loop.rest(took)
        loop.marks.append((NO_GRAD_END, loop.now))

    for number in range(5):
        loop.call(DATA, DATA_END, 1)
        without_gradients(100)  # a teacher
        loop.rest(7)
        loop.call(BACKWARD, BACKWARD_END, 3)
        without_gradients(50)  # clipping
        loop.call(OPTIMIZER, OPTIMIZER_END, 5)
        without_gradients(60)  # an average of the weights
        if number == 3:
            loop.marks.append(marked(EVAL_MODE, loop.now))
            loop.rest(20)
            without_gradients(1000, is_evaluating=True)
            loop.rest(2)
            without_gradients(1000, is_evaluating=True)
            loop.rest(9)
    machine = StepMachine()
    steps = machine.take(loop.marks) + machine.close()
    usual = {"data_wait": 1, "forward": 7, "backward": 3, "gradients": 50, "optimizer": 5, "rollout": 100}
    assert took(steps[2]) == {**usual, "other": 60}
    assert took(steps[4]) == {**usual, "other": 69, "evaluation": 2022}
    assert machine.totals().unsure == 60  # after the first step nothing says yet that each one has it


def test_many_regions_without_gradients_are_a_loop() -> None:
    """The time between them belongs to it: an environment takes its step."""
    loop = Loop()
    for _ in range(3):
        for _ in range(10):
            loop.marks.append((NO_GRAD, loop.now, False))
            loop.rest(20)
            loop.marks.append((NO_GRAD_END, loop.now))
            loop.rest(30)
        loop.call(BACKWARD, BACKWARD_END, 3)
        loop.call(OPTIMIZER, OPTIMIZER_END, 5)
    machine = StepMachine()
    step = (machine.take(loop.marks) + machine.close())[-1]
    assert took(step) == {"rollout": 470, "forward": 30, "backward": 3, "optimizer": 5}


def test_files_one_after_the_other_are_one_checkpoint() -> None:
    """From the begin of the first to the end of the last, until the program trains again."""
    loop, machine = Loop(), StepMachine()
    for _ in range(2):
        one_step(loop, [1, 2, 3, 4, 5, 6])
        for _ in range(3):
            loop.call(CHECKPOINT, CHECKPOINT_END, 100)
            loop.rest(10)
    machine.take(loop.marks)
    assert (machine.checkpoints, machine.totals().checkpoints) == ([320], 2)
    machine.close()
    assert (machine.checkpoints, machine.totals().checkpoints) == ([320, 320], 2)


def test_compilation_is_no_boundary() -> None:
    """The first forward's compilation counts for itself, and the batch before it stays one of training."""
    loop = Loop()
    loop.call(DATA, DATA_END, 10)
    loop.rest(1)
    loop.call(COMPILE, COMPILE_END, 1000)
    loop.rest(2)
    loop.call(BACKWARD, BACKWARD_END, 3)
    loop.call(OPTIMIZER, OPTIMIZER_END, 4)
    machine = StepMachine()
    (step,) = machine.take(loop.marks) + machine.close()
    assert took(step) == {"data_wait": 10, "forward": 3, "compile": 1000, "backward": 3, "optimizer": 4}
    assert (machine.totals().compiled, machine.compilations) == (1, [1000])


def test_a_workers_start_is_waiting_for_data() -> None:
    """The time in which a loader starts its workers is data wait of the first step that they serve."""
    loop = Loop()
    loop.call(DATA, OPENED, 500, 1)
    one_step(loop, [1, 2, 3, 4, 5, 6])
    machine = StepMachine()
    (step,) = machine.take(loop.marks) + machine.close()
    assert took(step)["data_wait"] == 501


def test_a_step_left_out_by_a_scaler_is_counted() -> None:
    """A scaler whose optimizer did not step is a skipped step, and its time is the next one's."""
    loop = Loop()
    for skips in (False, True, False):
        loop.call(DATA, DATA_END, 1)
        loop.call(BACKWARD, BACKWARD_END, 1)
        loop.marks.append((SCALER, loop.now))
        if not skips:
            loop.call(OPTIMIZER, OPTIMIZER_END, 1)
        loop.marks.append((SCALER_END, loop.now))
    machine = StepMachine()
    steps = machine.take(loop.marks) + machine.close()
    assert (len(steps), machine.totals().skipped) == (2, 1)


def test_a_batch_without_a_first_dimension_leaves_samples_out() -> None:
    """Where one batch has no size, the step has no number of samples rather than a wrong one."""
    loop = Loop()
    loop.call(DATA, DATA_END, 1, 1, -1, 0)
    one_step(loop, [1, 1, 1, 1, 1, 1])
    machine = StepMachine()
    (step,) = machine.take(loop.marks) + machine.close()
    assert (step.samples, machine.totals().unsized) == (None, 1)


def test_a_call_that_raised_past_its_end_spoils_nothing() -> None:
    """An optimizer's step that raised has no end: the step after it is split as ever."""
    loop = Loop()
    one_step(loop, [1, 2, 3, 4, 5, 6])
    loop.marks.append(marked(OPTIMIZER, loop.now))
    loop.rest(100)
    for _ in range(2):
        one_step(loop, [1, 2, 3, 4, 5, 6])
    machine = StepMachine()
    steps = machine.take(loop.marks) + machine.close()
    assert took(steps[-1]) == {"data_wait": 1, "forward": 2, "backward": 3, "gradients": 4, "optimizer": 5, "other": 6}


def test_lost_marks_begin_anew() -> None:
    """After a loss no step spans it, and the totals leave out the time in between."""
    loop, machine = Loop(), StepMachine()
    one_step(loop, [1, 2, 3, 4, 5, 6])
    machine.take(loop.marks)
    machine.lose()
    loop.marks.clear()
    loop.rest(10**6)
    one_step(loop, [1, 2, 3, 4, 5, 6])
    (step,) = machine.take(loop.marks) + machine.close()
    assert (step.duration, sum(machine.totals().phases)) == (15, 30)


def rounds() -> Iterator[tuple[str, Callable[[Loop], None], int]]:
    """Yield loops with several optimizers or backwards in a step, and how many steps each has."""

    def both(loop: Loop) -> None:
        for who in (1, 2):
            loop.call(BACKWARD, BACKWARD_END, 1)
            loop.marks.append((OPTIMIZER, loop.now, who))
            loop.marks.append((OPTIMIZER_END, loop.now + 1, who))
            loop.now += 1

    def accumulated(loop: Loop) -> None:
        for _ in range(5):
            loop.call(BACKWARD, BACKWARD_END, 1)
        loop.call(OPTIMIZER, OPTIMIZER_END, 1)

    yield "two optimizers", both, 10
    yield "accumulation", accumulated, 10


def test_a_round_of_optimizers_is_one_step() -> None:
    """Optimizers that take turns step once in a round, and backwards are accumulated, without a setting."""
    for name, turn, wanted in rounds():
        loop, machine = Loop(), StepMachine()
        for _ in range(10):
            turn(loop)
        assert len(machine.take(loop.marks) + machine.close()) == wanted, name


def test_a_few_marks_are_split() -> None:
    """The marks of one step, timed elsewhere, have the same phases."""
    loop = Loop()
    loop.call(OPTIMIZER, OPTIMIZER_END, 0)
    loop.rest(6)
    one_step(loop, [1, 2, 3, 4, 5, 0])
    phases = dict(zip(PHASES, split(loop.marks), strict=True))
    assert {name: time for name, time in phases.items() if time} == {
        "data_wait": 1,
        "forward": 2,
        "backward": 3,
        "gradients": 4,
        "optimizer": 5,
        "other": 6,
    }
    assert sum(split([])) == 0
    assert SCALER < SCALER_END


def test_two_trainings_one_after_the_other_share_no_step() -> None:
    """The first step of a second model is not joined with the last one of the first."""
    loop = Loop()
    for who in (1, 2, 3):
        for _ in range(10):
            loop.call(BACKWARD, BACKWARD_END, 1)
            loop.marks.append((OPTIMIZER, loop.now, who))
            loop.rest(1)
            loop.marks.append((OPTIMIZER_END, loop.now, who))
    machine = StepMachine()
    steps = machine.take(loop.marks) + machine.close()
    assert len(steps) == 30
    assert {step.duration for step in steps} == {2}
