"""Steps and their phases, from the marks of a training thread.

A mark is a tuple of a kind, a time in nanoseconds and what the kind needs. Each moment of the thread lies either within
a hooked call (data, backward, optimizer, checkpoint, compilation) or in a gap between two of them, and a gap is named
by the calls at its ends. So the phases of a step add up to it, and the steps to the time between the first and the
last of them.

A step ends where an optimizer has stepped that steps again in the next round: at the end of the round's last optimizer
step. An iterator is one of training once a backward has followed a batch of it; other fetches, and the gaps after
them, are evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

# Kinds of marks: the begin of a call is even, its end is the number after it.
DATA, BACKWARD, OPTIMIZER, CHECKPOINT, COMPILE = 0, 2, 4, 6, 8
DATA_END, BACKWARD_END, OPTIMIZER_END, CHECKPOINT_END, COMPILE_END = 1, 3, 5, 7, 9
ITERATOR = 10  # a new one: (ITERATOR, time, id, workers)
EXHAUSTED = 11  # instead of DATA_END, where there was no batch: (EXHAUSTED, time, id)
OPENED = 14  # instead of DATA_END, where an iterator was made: (OPENED, time, id)
SCALER, SCALER_END = 12, 13  # around a step of a gradient scaler, which may leave out that of the optimizer
_START = -1

PHASES = (
    *("data_wait", "forward", "backward", "gradients", "optimizer"),
    *("checkpoint", "compile", "evaluation", "other"),
)
_WAIT, _FORWARD, _BACKWARD, _GRADIENTS, _OPTIMIZER, _CHECKPOINT, _COMPILE, _EVALUATION, _OTHER = range(len(PHASES))
_OF_CALL = {
    DATA: _WAIT,
    BACKWARD: _BACKWARD,
    OPTIMIZER: _OPTIMIZER,
    CHECKPOINT: _CHECKPOINT,
    COMPILE: _COMPILE,
}
# Gaps by the call before and the one after; those that are not here are "other".
_OF_GAP = {
    (DATA, BACKWARD): _FORWARD,
    (BACKWARD, BACKWARD): _FORWARD,
    (OPTIMIZER, BACKWARD): _FORWARD,
    (CHECKPOINT, BACKWARD): _FORWARD,
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
}
_PRODUCTIVE = (_FORWARD, _BACKWARD, _GRADIENTS, _OPTIMIZER, _OTHER)
_NOTHING = (0,) * len(PHASES)
WARM_UP = 10  # steps that verdicts leave out
_MOST_HELD = 64  # batches whose iterator may still turn out to be one of training

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

    @property
    def productive(self) -> int:
        """The time that went into steps themselves."""
        return productive(self.phases)


def productive(phases: Sequence[Number]) -> Number:
    """Return the time of forward, backward, gradients, optimizer and other: without waits, checkpoints and so on."""
    return sum((phases[place] for place in _PRODUCTIVE[1:]), phases[_PRODUCTIVE[0]])


class RoundEnd(NamedTuple):
    """The state at the end of an optimizer's step."""

    end: int
    phases: Phases
    samples: int
    tokens: int
    unsized: int
    span: tuple[int, ...] = ()


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
        self._sizes: list[tuple[int, int]] = []
        self._round: dict[int, RoundEnd] = {}  # optimizers that have stepped in this round, in order
        self._closed: RoundEnd | None = None  # the end of the last step
        self._stepped: RoundEnd | None = None  # the end of the last optimizer step of this round
        self._samples = self._tokens = self._unsized = 0
        self._count = self._skipped = self._compiled = self._saves = 0
        self._saved: int | None = None
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
            if kind <= COMPILE_END:
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
        self._open.clear()
        self._round.clear()
        self._stepped = None
        self._before, self._begun = _START, False
        self._held = self._gap = 0
        self._sizes.clear()

    def close(self) -> list[Step]:
        """Return the step of the round that is under way, where its optimizer has stepped: a program's last one."""
        self._close_round(next(iter(self._round), 0))
        found, self._steps = self._steps, []
        return found

    def totals(self) -> Totals:
        """Return all so far."""
        phases = list(self._phases)
        phases[_EVALUATION] += self._held + self._gap
        return Totals(
            *(self.first, self._last, self._count, tuple(phases), self._samples, self._tokens),
            *(self._skipped, self._compiled, self._saves, self._saved, self._unsized, self._workers),
        )

    def ended(self) -> RoundEnd:
        """Return the state at the end of the last step; at the first mark, where there was none."""
        return self._closed or self._state(self._last)

    def _state(self, now: int, span: tuple[int, ...] = ()) -> RoundEnd:
        return RoundEnd(now, tuple(self._phases), self._samples, self._tokens, self._unsized, span)

    def _begin_call(self, kind: int, now: int, who: int) -> None:
        if self._open and self._is_abandoned(kind, who):
            self._abandon(now)
        past = now - self._last
        if self._open:
            within = self._open[-1][0]
            # A closure runs forward and backward in the optimizer's step.
            is_closure = kind == BACKWARD and within == OPTIMIZER
            self._phases[_FORWARD if is_closure else _OF_CALL[within]] += past
        else:
            self._end_gap(kind, past)
        if kind == OPTIMIZER:
            self._evaluated()  # no backward has followed: a call that raised, or lost marks
            self._scaling = False
            if who in self._round:
                self._close_round(who)
        self._last = now
        self._calls += 1
        self._open.append((kind, who, now, self._calls))

    def _is_abandoned(self, kind: int, who: int) -> bool:
        """Tell whether an open call raised past its end: none of these begins within that one."""
        if kind == OPTIMIZER:  # one that calls its base class's step begins again at once
            return any(
                other == DATA or (other == OPTIMIZER and one == who and number != self._calls)
                for other, one, _, number in self._open
            )
        if kind == BACKWARD:
            return any(each[0] == DATA for each in self._open)
        return kind == DATA and any(each[0] in {OPTIMIZER, BACKWARD} for each in self._open)

    def _abandon(self, now: int) -> None:
        self._phases[_OTHER] += now - self._last
        self._last = now
        self._open.clear()
        self._before = _START

    def _end_gap(self, kind: int, past: int) -> None:
        if self._before == DATA and self._iterator and not self._is_training:
            if kind == BACKWARD:  # its iterator is one of training
                self._phases[_WAIT] += self._held
                self._phases[_FORWARD] += self._gap + past
                self._training.add(self._iterator)
                self._workers = self._workers_of.get(self._iterator)
                self._is_training = True
                for samples, tokens in self._sizes:
                    self._add_batch(samples, tokens)
                self._held = self._gap = 0
                self._sizes.clear()
                return
            self._gap += past
            if kind not in {DATA, COMPILE}:
                self._evaluated()
            return
        self._phases[_OF_GAP.get((self._before, kind), _OTHER)] += past

    def _end_call(self, kind: int, now: int, mark: Mark) -> None:
        past = now - self._last
        self._last = now
        if self._open and self._open[-1][0] == kind:
            _, _, begin, _ = self._open.pop()
        else:  # its begin was lost, or a call within it has no end
            self._open.clear()
            self._phases[_OTHER] += past
            self._before = _START
            return
        if kind == DATA:
            self._fetched(past, mark)
        else:
            self._phases[_OF_CALL[kind]] += past
        if not self._open and kind != COMPILE:
            self._before = kind
        if kind == OPTIMIZER:
            self._stepped = self._round[mark[2]] = self._state(now, mark[3:])
            self._nested = bool(self._open)
        elif kind == CHECKPOINT and all(each[0] != CHECKPOINT for each in self._open):  # the whole, none of its parts
            self.checkpoints.append(now - begin)
            self._saves += 1
            self._saved = productive(self._phases)
        elif kind == COMPILE:
            self.compilations.append(now - begin)

    def _fetched(self, past: int, mark: Mark) -> None:
        if self._open:  # the data set has a loader of its own
            self._phases[_OF_CALL[self._open[-1][0]]] += past
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
        elif kind == SCALER:
            self._scaling = True
        elif self._scaling:
            self._scaling = False
            self._skipped += 1

    def _ended_without(self, kind: int, now: int, iterator: int) -> None:
        """End a call for data that brought no batch."""
        past = now - self._last
        self._last = now
        if not self._open or self._open[-1][0] != DATA:
            self._open.clear()
            self._phases[_OTHER] += past
            return
        self._open.pop()
        if self._open:
            self._phases[_OF_CALL[self._open[-1][0]]] += past
        elif iterator in self._training:
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
