"""Steps and their phases, from the marks of a training thread.

A mark is a tuple of a kind, a time in nanoseconds and what the kind needs. Each moment of the thread lies either within
a hooked call (data, backward, optimizer, checkpoint, compilation) or in a gap between two of them, and a gap is named
by the calls at its ends. So the phases of a step add up to it, and the steps to the time between the first and the
last of them.

A step ends where an optimizer has stepped that steps again in the next round: at the end of the round's last optimizer
step. An iterator is one of training once a backward has followed a batch of it; other fetches, and the gaps after
them, are evaluation. A closure that an optimizer's step calls is code of the loop: it has gaps and calls of its own.

Work without gradients (``no_grad``, ``inference_mode``) splits a gap further. It is evaluation where the program called
``eval()`` for it. Before a backward it is otherwise a rollout: what the step learns from, or compares itself with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

# Kinds of marks: the begin of a call is even, its end is the number after it.
DATA, BACKWARD, OPTIMIZER, CHECKPOINT, COMPILE, EVALUATION = 0, 2, 4, 6, 8, 10
DATA_END, BACKWARD_END, OPTIMIZER_END, CHECKPOINT_END, COMPILE_END, EVALUATION_END = 1, 3, 5, 7, 9, 11
ITERATOR = 12  # a new one: (ITERATOR, time, id, workers)
EXHAUSTED = 13  # instead of DATA_END, where there was no batch: (EXHAUSTED, time, id)
SCALER, SCALER_END = 14, 15  # around a step of a gradient scaler, which may leave out that of the optimizer
OPENED = 16  # instead of DATA_END, where an iterator was made: (OPENED, time, id)
# Gradients are off and on again; is_evaluating: the module whose eval() was called last is still in that mode.
NO_GRAD = 17  # (NO_GRAD, time, is_evaluating)
NO_GRAD_END = 18
EVAL_MODE = 19  # eval() was called
_START = -1

PHASES = (
    *("data_wait", "forward", "backward", "gradients", "optimizer"),
    *("checkpoint", "compile", "evaluation", "other", "rollout"),
)
_WAIT, _FORWARD, _BACKWARD, _GRADIENTS, _OPTIMIZER, _CHECKPOINT, _COMPILE, _EVALUATION, _OTHER, _ROLLOUT = range(
    len(PHASES)
)
_OF_CALL = {
    DATA: _WAIT,
    BACKWARD: _BACKWARD,
    OPTIMIZER: _OPTIMIZER,
    CHECKPOINT: _CHECKPOINT,
    COMPILE: _COMPILE,
    EVALUATION: _EVALUATION,
}
# Gaps by the call before and the one after; those that are not here are "other".
_OF_GAP = {
    (DATA, BACKWARD): _FORWARD,
    (BACKWARD, BACKWARD): _FORWARD,
    (OPTIMIZER, BACKWARD): _FORWARD,
    (CHECKPOINT, BACKWARD): _FORWARD,
    (EVALUATION, BACKWARD): _FORWARD,
    (_START, BACKWARD): _FORWARD,
    (BACKWARD, OPTIMIZER): _GRADIENTS,
    # The last batch of an evaluation where one is fetched ahead, as Accelerate does.
    (EXHAUSTED, DATA): _EVALUATION,
    (EXHAUSTED, CHECKPOINT): _EVALUATION,
    (EXHAUSTED, BACKWARD): _FORWARD,
    # A compilation is no boundary: the next call names what lies after it.
    (DATA, COMPILE): _FORWARD,
    (OPTIMIZER, COMPILE): _FORWARD,
    (_START, COMPILE): _FORWARD,
    (BACKWARD, COMPILE): _GRADIENTS,
    # Files of one checkpoint: the model, the optimizer, the scheduler.
    (CHECKPOINT, CHECKPOINT): _CHECKPOINT,
}
_PRODUCTIVE = (_FORWARD, _BACKWARD, _GRADIENTS, _OPTIMIZER, _OTHER, _ROLLOUT)
_NOTHING = (0,) * len(PHASES)
WARM_UP = 10  # steps that verdicts leave out
_MOST_HELD = 64  # batches whose iterator may still turn out to be one of training
_FEW_REGIONS = 3  # without gradients in a gap; more are a loop, to which the time between them belongs
_LEAST_OF_GAP = 1 / 20  # that work without gradients takes; less is a metric or a buffer, and no forward

Number = TypeVar("Number", int, float)
Mark = tuple[Any, ...]
Phases = tuple[int, ...]


class Step(NamedTuple):
    """A step: nanoseconds on the clock of the marks; ``phases`` in the order of :data:`PHASES`, their sum its length.

    ``samples`` is None where a batch had no first dimension. ``span`` has the trace id and the span id at its end,
    where the program traces.
    """

    begin: int
    end: int
    phases: Phases
    samples: int | None
    tokens: int
    span: tuple[int, ...] = ()

    @property
    def duration(self) -> int:
        """Its length in nanoseconds."""
        return self.end - self.begin


class Totals(NamedTuple):
    """All that a thread did between its first mark and its last one; see :class:`Step`.

    Attributes:
        begin: the first mark.
        end: the last one.
        phases: the time in between, but for what was lost.
        saved: the productive time until the end of the last checkpoint; None where there was none.
        unsized: batches of training without a first dimension.
        workers: of the last loader of training; None where that is not known.
        unsure: nanoseconds of evaluation that only the missing gradients tell: they may be rollouts.
    """

    begin: int
    end: int
    steps: int
    phases: Phases
    samples: int
    tokens: int
    skipped: int
    compiled: int
    checkpoints: int
    saved: int | None
    unsized: int
    workers: int | None
    unsure: int

    @property
    def productive(self) -> int:
        """The time that went into steps themselves."""
        return productive(self.phases)


def productive(phases: Sequence[Number]) -> Number:
    """Return the time of forward, backward, gradients, optimizer, rollout and other: no waits, no checkpoints."""
    return sum((phases[place] for place in _PRODUCTIVE[1:]), phases[_PRODUCTIVE[0]])


class RoundEnd(NamedTuple):
    """The state at the end of an optimizer's step."""

    end: int
    phases: Phases
    samples: int
    tokens: int
    unsized: int
    span: tuple[int, ...] = ()


class _GapWork(NamedTuple):
    """The work of a gap without gradients, in nanoseconds.

    ``between`` is the time between two regions that are no evaluation, ``regions`` the number of all.
    """

    evaluation: int
    others: int
    between: int
    regions: int


class _WorkWithoutGradients:
    """Measures the work of a gap between two calls while gradients are off.

    An evaluation reaches from ``eval()``, or from the begin of the region that calls it, to the end of the last region
    that begins while the module is in that mode.
    """

    def __init__(self) -> None:
        self.is_open = False  # gradients are off
        self._gap_begin = 0
        self._until = 0  # the time before it is accounted for
        self._evaluates = False
        self._evaluation = 0
        self._others = 0
        self._between = 0
        self._regions = 0

    def mark(self, kind: int, now: int, gap_begin: int, *, is_evaluating: bool) -> None:
        """Take a mark of a gap."""
        past = self._advance(now, gap_begin)
        if kind == EVAL_MODE:
            if self.is_open:  # the program entered the region for this evaluation
                self._evaluation += past
            elif self._regions:
                self._between += past
            self._evaluates = True
        elif kind == NO_GRAD:
            self._evaluates = self._evaluates and is_evaluating
            if self._evaluates:
                self._evaluation += past
            elif self._regions:
                self._between += past
            self.is_open = True
            self._regions += 1
        elif self.is_open:
            self._add_region(past)
            self.is_open = False

    def drain(self, kind: int, now: int, gap_begin: int) -> _GapWork:
        """Return the work of the gap, which a call of a kind ends. A compilation ends no gap."""
        if now < self._until:  # a clock that goes back
            self._forget_times()
        past = self._advance(now, gap_begin)
        # A backward needs gradients: they were on again, whatever the region around it.
        if self.is_open and (self._evaluates or kind != BACKWARD):
            self._add_region(past)
        work = _GapWork(self._evaluation, self._others, self._between, self._regions)
        self._forget_times()
        if kind != COMPILE:
            self._regions = 0
            self._evaluates = self._evaluates and self.is_open
        return work

    def _forget_times(self) -> None:
        self._evaluation = 0
        self._others = 0
        self._between = 0

    def _advance(self, now: int, gap_begin: int) -> int:
        if gap_begin != self._gap_begin:
            self._gap_begin = gap_begin
            self._forget_times()  # those of a gap that ended with a call whose begin was lost
        begin = max(self._until, gap_begin)
        self._until = max(begin, now)
        return self._until - begin

    def _add_region(self, past: int) -> None:
        if self._evaluates:
            self._evaluation += past
        else:
            self._others += past


class StepMachine:
    """Makes steps of the marks of one thread.

    Attributes:
        checkpoints: the durations of checkpoints since they were taken last, in nanoseconds.
        compilations: likewise.
        first: the time of the first mark; -1 before it.
        warm: phases and compiling steps until the end of step :data:`WARM_UP`; None before it.
    """

    def __init__(self) -> None:
        self.checkpoints: list[int] = []
        self.compilations: list[int] = []
        self._steps: list[Step] = []
        self._phases = [0] * len(PHASES)
        self.first = self._last = -1
        self.warm: tuple[Phases, int] | None = None
        self._begun = False
        self._open: list[tuple[int, int, int, int]] = []  # calls under way: kind, id, begin, number
        self._calls = 0
        self._before = _START
        self._training: set[int] = set()
        self._iterator = 0  # of the last batch; 0 for none
        self._is_training = False
        self._held = self._gap = 0  # time that is of training or of evaluation: the next call tells
        self._fetching = 0  # time in a fetch that has not ended, but for the calls within it
        self._without_gradients = _WorkWithoutGradients()
        # The step whose gap before a backward had an evaluation, or that had other work without gradients after it.
        self._evaluated_step = self._ungraded_step = -2
        self._unsure = 0
        self._sizes: list[tuple[int, int]] = []
        self._round: dict[int, RoundEnd] = {}  # optimizers that have stepped in this round, in order
        self._closed: RoundEnd | None = None  # the end of the last step
        self._stepped: RoundEnd | None = None  # the end of the last optimizer step of this round
        self._samples = self._tokens = self._unsized = 0
        self._count = self._skipped = self._compiled = self._saves = 0
        self._saved: int | None = None
        self._checkpoint: tuple[int, int] | None = None  # begin and end, while further files may follow
        self._last_call_of: dict[int, int] = {}  # the number of each optimizer's last step that has ended
        self._scaling = self._nested = False
        self._workers: int | None = None
        self._workers_of: dict[int, int] = {}

    def take(self, marks: Iterable[Mark]) -> list[Step]:
        """Take marks in their order, and return the steps that have ended."""
        for mark in marks:
            kind, now = mark[0], mark[1]
            if not self._begun:
                self._begin_at(now)
            elif now < self._last:  # no clock goes back; what is behind one that does takes no time
                now = self._last
            if kind <= EVALUATION_END:
                if kind % 2:
                    self._end_call(kind - 1, now, mark)
                else:
                    self._begin_call(kind, now, mark[2] if kind == OPTIMIZER else 0)
            else:
                self._note(kind, now, mark)
        found, self._steps = self._steps, []
        return found

    def _begin_at(self, now: int) -> None:
        self._begun = True
        self.first = now if self.first < 0 else self.first
        self._last = now
        self._closed = self._state(now)

    def lose(self) -> None:
        """Begin anew with the next mark, as marks before it were lost; totals go on without the time in between."""
        self._forget_calls(0)
        self._round.clear()
        self._stepped = None
        self._before, self._begun = _START, False
        self._held = self._gap = 0
        self._without_gradients = _WorkWithoutGradients()
        self._sizes.clear()
        self._end_checkpoint()

    def close(self) -> list[Step]:
        """Return the step of the round that is under way, where its optimizer has stepped: a program's last one."""
        self._close_round(next(iter(self._round), 0))
        self._end_checkpoint()
        found, self._steps = self._steps, []
        return found

    def totals(self) -> Totals:
        """Return all so far."""
        phases = list(self._phases)
        phases[_EVALUATION] += self._held + self._gap + self._fetching
        return Totals(
            begin=self.first,
            end=self._last,
            steps=self._count,
            phases=tuple(phases),
            samples=self._samples,
            tokens=self._tokens,
            skipped=self._skipped,
            compiled=self._compiled,
            checkpoints=self._saves,
            saved=self._saved,
            unsized=self._unsized,
            workers=self._workers,
            unsure=self._unsure,
        )

    def ended(self) -> RoundEnd:
        """Return the state at the end of the last step; at the first mark, where there was none."""
        return self._closed or self._state(self._last)

    def _state(self, now: int, span: tuple[int, ...] = ()) -> RoundEnd:
        return RoundEnd(now, tuple(self._phases), self._samples, self._tokens, self._unsized, span)

    def _begin_call(self, kind: int, now: int, who: int) -> None:
        if self._open and self._is_abandoned(kind, who):
            self._abandon(now)
        if not self._open or (self._is_loop() and kind in {DATA, BACKWARD}):
            self._end_gap(kind, now)
        else:
            self._book_in_call(now - self._last)
        if kind in {DATA, BACKWARD, OPTIMIZER, EVALUATION} and not self._open:
            self._end_checkpoint()
        if kind == OPTIMIZER:
            self._scaling = False
            if who in self._round:
                self._close_round(who)
        self._last = now
        self._calls += 1
        self._open.append((kind, who, now, self._calls))

    def _book_in_call(self, past: int) -> None:
        """Book time within the open call; that of a fetch waits for its end, which says whose batch it is."""
        within = self._open[-1][0]
        if within == DATA:
            self._fetching += past
        else:
            self._phases[_OF_CALL[within]] += past

    def _forget_calls(self, past: int) -> None:
        """Forget the open calls, and book time that they leave without a name."""
        self._open.clear()
        self._phases[_OTHER] += past + self._fetching
        self._fetching = 0

    def _is_loop(self) -> bool:
        """Tell whether the program's loop runs, in the open or in a closure that an optimizer's step calls."""
        return not self._open or self._open[-1][0] == OPTIMIZER

    def _is_abandoned(self, kind: int, who: int) -> bool:
        """Tell whether an open call raised past its end: none of these begins within that one."""
        if kind == OPTIMIZER:  # one that calls its base class's step begins again at once
            last = self._last_call_of.get(who, 0)
            return any(
                other == DATA or (other == OPTIMIZER and (number < last or (one == who and number != self._calls)))
                for other, one, _, number in self._open
            )
        if kind == BACKWARD:
            return any(each[0] == DATA for each in self._open)
        return kind == DATA and any(each[0] == BACKWARD for each in self._open)

    def _abandon(self, now: int) -> None:
        if self._is_loop():  # the gap in the loop has a name, as it has without the call that raised
            self._forget_calls(0)
            return
        self._forget_calls(now - self._last)
        self._last = now
        self._before = _START

    def _is_unknown(self) -> bool:
        """Tell whether the last call fetched a batch of which the next ones tell if it is of training."""
        return self._before == DATA and self._iterator != 0 and not self._is_training

    def _end_gap(self, kind: int, now: int) -> None:
        past = now - self._last
        work = self._without_gradients.drain(kind, now, self._last)
        # Optimizers turn gradients off by themselves, and so do unscaling and clipping.
        is_of_optimizer = self._open or (self._before == BACKWARD and kind == OPTIMIZER)
        if not is_of_optimizer and (kind in {BACKWARD, OPTIMIZER} or not self._is_unknown()):
            past -= self._split_off(kind, past, work)
        if kind == BACKWARD:
            self._learned()
        if kind == OPTIMIZER and self._before != BACKWARD:
            self._gap += past  # of forward, if a closure runs a backward in the step
        elif self._is_unknown():
            self._gap += past
            if kind not in {DATA, COMPILE}:
                self._evaluated()
        else:
            self._phases[_OF_GAP.get((self._before, kind), _OTHER)] += past

    def _split_off(self, kind: int, past: int, work: _GapWork) -> int:
        """Book the work of a gap without gradients, and return its nanoseconds."""
        is_loop = work.regions > _FEW_REGIONS
        others = work.others + (work.between if is_loop else 0)
        if others < past * _LEAST_OF_GAP:
            others = 0
        evaluation = work.evaluation
        rollout = 0
        if kind in {BACKWARD, OPTIMIZER, COMPILE, EVALUATION} or is_loop:
            rollout = others
        elif others:
            # Work after each step is no evaluation: an average of the weights, for instance.
            if self._count - self._ungraded_step != 1:
                evaluation += others
                self._unsure += others
            else:
                others = 0
            self._ungraded_step = self._count
        if work.evaluation and kind == BACKWARD:
            # One in each step is probably none: the model answers in that mode, and learns from its answers.
            is_in_each_step = self._count - self._evaluated_step <= 1
            self._evaluated_step = self._count
            if is_in_each_step and self._before == DATA:
                rollout += evaluation
                evaluation = 0
            elif is_in_each_step:
                self._unsure += evaluation
        self._phases[_EVALUATION] += evaluation
        self._phases[_ROLLOUT] += rollout
        if evaluation or rollout:
            self._end_checkpoint()
        return evaluation + rollout

    def _learned(self) -> None:
        """Book the time that waited for a backward: it has come."""
        self._phases[_WAIT] += self._held
        self._phases[_FORWARD] += self._gap
        self._held = self._gap = 0
        if self._is_unknown():  # its iterator is one of training
            self._training.add(self._iterator)
            self._workers = self._workers_of.get(self._iterator)
            self._is_training = True
            for samples, tokens in self._sizes:
                self._add_batch(samples, tokens)
        self._sizes.clear()

    def _end_call(self, kind: int, now: int, mark: Mark) -> None:
        past = now - self._last
        self._last = now
        if self._open and self._open[-1][0] == kind:
            _, _, begin, number = self._open.pop()
        else:  # its begin was lost, or a call within it has no end
            self._forget_calls(past)
            self._before = _START
            return
        if kind == DATA:
            self._fetched(past, mark)
        else:
            self._phases[_OF_CALL[kind]] += past
        if kind == OPTIMIZER:
            self._end_wait_for_closure()
        if self._is_loop() and kind != COMPILE:
            self._before = kind
        if kind == OPTIMIZER:
            self._last_call_of[mark[2]] = number
            self._stepped = self._round[mark[2]] = self._state(now, mark[3:])
            self._nested = bool(self._open)
        elif kind == CHECKPOINT and all(each[0] != CHECKPOINT for each in self._open):  # the whole, none of its parts
            self._extend_checkpoint(begin, now)
        elif kind == COMPILE:
            self.compilations.append(now - begin)

    def _end_wait_for_closure(self) -> None:
        """Book the time that waited for a closure's backward: the optimizer's step has ended without one."""
        if self._held or self._is_unknown():
            self._evaluated()
        else:
            self._phases[_OTHER] += self._gap
            self._gap = 0

    def _extend_checkpoint(self, begin: int, now: int) -> None:
        """Count a file as one more of the open checkpoint, or as the first one of the next checkpoint."""
        if self._checkpoint is None:
            self._saves += 1
        else:
            begin = self._checkpoint[0]
        self._checkpoint = begin, now
        self._saved = productive(self._phases)

    def _end_checkpoint(self) -> None:
        """Record the duration of the open checkpoint: the program trains or evaluates again."""
        if self._checkpoint is not None:
            begin, end = self._checkpoint
            self.checkpoints.append(end - begin)
            self._checkpoint = None

    def _fetched(self, past: int, mark: Mark) -> None:
        past += self._fetching
        self._fetching = 0
        if not self._is_loop():  # the data set has a loader of its own
            self._book_in_call(past)
            return
        iterator, samples, tokens = mark[2:5]
        if iterator != self._iterator:
            self._evaluated()
        self._iterator = iterator
        self._is_training = iterator in self._training
        if self._is_training:
            self._phases[_WAIT] += past
            self._add_batch(samples, tokens)
            return
        self._held += past
        self._sizes.append((samples, tokens))
        del self._sizes[:-_MOST_HELD]

    def _add_batch(self, samples: int, tokens: int) -> None:
        if samples < 0:
            self._unsized += 1
        else:
            self._samples += samples
        self._tokens += tokens

    def _evaluated(self) -> None:
        """The held time was evaluation's."""
        self._phases[_EVALUATION] += self._held + self._gap
        self._held = self._gap = 0
        self._sizes.clear()

    def _note(self, kind: int, now: int, mark: Mark) -> None:
        if kind == ITERATOR:  # its id may have been another one's
            self._training.discard(mark[2])
            if len(self._workers_of) >= _MOST_HELD:
                self._workers_of.clear()
            if mark[3] >= 0:
                self._workers_of[mark[2]] = mark[3]
            if self._iterator == mark[2]:
                self._evaluated()
                self._iterator = 0
        elif kind in {EXHAUSTED, OPENED}:
            self._ended_without(kind, now, mark[2])
        elif kind >= NO_GRAD:
            self._mark_gradients(kind, now, mark)
        elif kind == SCALER:
            self._scaling = True
        elif self._scaling:
            self._scaling = False
            self._skipped += 1

    def _mark_gradients(self, kind: int, now: int, mark: Mark) -> None:
        if not self._open:
            is_evaluating = kind == NO_GRAD and mark[2]
            self._without_gradients.mark(kind, now, self._last, is_evaluating=is_evaluating)
        elif kind != EVAL_MODE:
            self._without_gradients.is_open = kind == NO_GRAD

    def _ended_without(self, kind: int, now: int, iterator: int) -> None:
        """End a call for data that brought no batch."""
        past = now - self._last
        self._last = now
        if not self._open or self._open[-1][0] != DATA:
            self._forget_calls(past)
            return
        self._open.pop()
        past += self._fetching
        self._fetching = 0
        if not self._is_loop():
            self._book_in_call(past)
            return
        if iterator in self._training:
            self._phases[_WAIT] += past
            self._before = DATA
        elif kind == OPENED:
            self._evaluated()
            self._iterator, self._is_training, self._held = iterator, False, past
            self._before = DATA
        else:
            self._evaluated()
            self._phases[_EVALUATION] += past
            self._iterator = 0
            self._before = EXHAUSTED

    def _close_round(self, again: int) -> None:
        """End the step of the round; those before the optimizer that steps again are of a training that is over.

        So two models that are trained one after the other share no step. Optimizers that step within a backward do so
        in any order.
        """
        ended = self._stepped
        if ended is None:
            return
        before = list(self._round)[: list(self._round).index(again)] if again in self._round else []
        if before and not self._nested:
            self._end_step(self._round[before[-1]])
        self._end_step(ended)
        self._stepped = None
        self._round.clear()

    def _end_step(self, ended: RoundEnd) -> None:
        begun = self._closed or ended
        phases = tuple(map(int.__sub__, ended.phases, begun.phases))
        samples = None if ended.unsized > begun.unsized else ended.samples - begun.samples
        self._steps.append(Step(begun.end, ended.end, phases, samples, ended.tokens - begun.tokens, ended.span))
        self._count += 1
        self._compiled += phases[_COMPILE] > 0
        if self._count == WARM_UP:
            self.warm = ended.phases, self._compiled
        self._closed = ended


def split(marks: Sequence[Mark]) -> Phases:
    """Return the phases between the first and the last of a few marks of one round of training, evaluation apart."""
    machine = StepMachine()
    machine.take(marks) if marks else []
    return machine.totals().phases if marks else _NOTHING
