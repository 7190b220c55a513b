"""The series ``dl.step.*`` of this process, and its events ``tachograph.steps``, made of marks on the timer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.diagnosis.anatomy import Anatomy, Lane
from tachograph.diagnosis.phases import PHASES, Mark, Step, StepMachine, Totals

# Not first at the end: named tuples evaluate text, and then CPython forgets that an interrupt ends the program.
from tachograph.diagnosis.verdict import CRITICAL, Verdict, verdicts
from tachograph.diagnosis.window import windows_of
from tachograph.recording import timer
from tachograph.recording.accumulators import Distribution
from tachograph.recording.forking import at_fork
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import free_within
from tachograph.recording.journal import Journal
from tachograph.recording.log import LogOnce
from tachograph.recording.logged_points import RUN_START
from tachograph.recording.logged_tokens import logged_tokens
from tachograph.recording.own_metrics import (
    CHECKPOINT_DURATION,
    COMPILE_DURATION,
    DEVICE_PHASE_DURATION,
    DEVICE_STEP_DURATION,
    MEMORY_ALLOCATED,
    MEMORY_RSS,
    OWN_GROUP,
    SAMPLES,
    STEP_COUNT,
    STEP_DURATION,
    STEP_PHASE_DURATION,
    STEP_SKIPPED,
    STEPS,
    TOKENS,
    VERDICT,
    OwnMetric,
)
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar
from tachograph.recording.switch import switch

EVENT, VERDICT_EVENT = "tachograph.steps", "tachograph.verdict"
_TICK = 1.0  # seconds
_CLOSING = 1.0  # seconds
_OFTEN, _SELDOM = 1, 10  # seconds between two events, at first and later
_AT_FIRST = 120  # seconds
_LOOK_EVERY, _JUDGE_EVERY, _MOST_LOOKS = 5.0, 10.0, 60  # seconds; looks of five minutes, or of ten later
_HUNDRED = 100  # steps, of which the slowest one is an exemplar
_SLICE = 256  # marks between two rests
_SECOND = 1e9
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_WORKERS = 256

_NO_STEP = Step(0, 0, (), None, 0)

Pace = Callable[[], None]


class _Record(NamedTuple):
    """The bound functions that record a lane's steps."""

    duration: Callable[[object], None]
    phases: tuple[Callable[[object], None], ...]
    counted: Callable[[object], None]
    samples: Callable[[object], None]
    tokens: Callable[[object], None]


class _Followed:
    """A lane, as it is folded."""

    def __init__(self, lane: Lane, registry: Registry, now: int) -> None:
        self.lane, self.machine = lane, StepMachine()
        self.more: dict[str, str] = {}
        # One difference of the two clocks for good: a wall clock that is set moves nothing.
        self.epoch = now - time.perf_counter_ns()
        self.told = -1.0  # when its last event was logged, in seconds on the monotonic clock
        self.steps_told = -1
        self.saved = 0  # checkpoints that were told
        self.skipped = 0
        self.device_steps = 0
        self.device, self.host = [0] * len(PHASES), [0] * len(PHASES)
        self._steps, self._slowest = 0, _NO_STEP
        self.tokens = 0
        self._logged: int | None = None  # tokens that the program has logged
        self._uncounted = 0  # tokens of batches until that was seen first
        self._registry = registry
        self._record: _Record | None = None

    def metric(self, metric: OwnMetric, **attributes: str) -> Callable[[object], None]:
        """Return the function that records a value of this lane."""
        return self._registry.group(STEPS).own(metric).bind(**attributes, **self.more)

    def record(self, steps: Sequence[Step]) -> None:
        """Record steps that have ended."""
        to = self._record
        if to is None:
            to = self._record = _Record(
                self.metric(STEP_DURATION),
                tuple(self.metric(STEP_PHASE_DURATION, **{"dl.step.phase": name}) for name in PHASES),
                *(self.metric(STEP_COUNT), self.metric(SAMPLES), self.metric(TOKENS)),
            )
        for step in steps:
            to.duration(step.duration / _SECOND)
            for phase, record in zip(step.phases, to.phases, strict=True):
                if phase:
                    record(phase / _SECOND)
            self._steps += 1
            if step.span and step.duration > self._slowest.duration:
                self._slowest = step
            if self._steps % _HUNDRED == 0:
                self.note_slowest()
                self._slowest = _NO_STEP
        to.counted(len(steps))
        if self.machine.totals().unsized == 0:
            if samples := sum(step.samples or 0 for step in steps):
                to.samples(samples)
            if self._logged is None and (tokens := sum(step.tokens for step in steps)):
                self._record_tokens(tokens)

    def _record_tokens(self, tokens: int) -> None:
        """Count tokens of batches, unless the program logs its own."""
        if logged_tokens.total() is not None:
            self._uncounted += tokens
        elif self._record is not None:
            self._record.tokens(tokens)
            self.tokens += tokens

    def record_logged_tokens(self) -> None:
        """Count the tokens that the program logs.

        The first ones are all so far, but for those of batches that were counted; or, where they are fewer than these,
        those of a program that has begun to log late: until then batches tell.
        """
        total = logged_tokens.total()
        if total is None:
            return
        if self._logged is not None:
            more = total - self._logged
        else:
            more = total - self.tokens if total >= self.tokens else self._uncounted
        self._logged = total
        if more > 0:
            self.metric(TOKENS)(more)
            self.tokens += more

    def note_slowest(self) -> None:
        """Leave an exemplar of the slowest step of this hundred: its trace, where it had a sampled span at its end."""
        step = self._slowest
        series = self._registry.group(STEPS).own(STEP_DURATION).series(self.more)
        if step.span and isinstance(series, Distribution):
            series.note(Exemplar(step.duration / _SECOND, step.end + self.epoch, *step.span))


class StepSeries:
    """Folds the marks of an anatomy into series and events, until it is closed.

    A thread is of no interest before it has ended a step. The first one that does is the training thread; others have
    the attribute ``thread.name``, and no events.

    Args:
        anatomy: has the marks.
        registry: takes the series.
        journal: takes the events.
        clock: seconds, monotonic.
        wall_clock: nanoseconds since the epoch.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        registry: Registry,
        journal: Journal,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], int],
    ) -> None:
        self._anatomy, self._registry, self._journal = anatomy, registry, journal
        self._clock, self._wall_clock = clock, wall_clock
        self._followed: dict[int, _Followed] = {}
        self._main: _Followed | None = None
        self._folding = threading.Lock()
        self._task: timer.Task | None = None
        self._looks: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MOST_LOOKS)
        self._verdicts: dict[str, int] = {}
        self._judged = clock()
        journal.last_words.append(self._last_words)
        anatomy.stepping = self._begin
        at_fork("anatomy", in_child=self._reset_in_child)

    def _begin(self) -> None:
        """Fold each second from now on, where this process trains: one that does not costs nothing."""
        if self._task is None and switch.on:
            self._task = timer.default.every("anatomy", _TICK, self.tick, registry=self._registry)

    def _reset_in_child(self) -> None:
        """Forget the parent's steps; a child that trains has its own."""
        self._anatomy.reset_in_child()
        self._followed, self._main, self._task = {}, None, None
        self._folding = threading.Lock()
        self._looks.clear()
        self._verdicts = {}

    def close(self) -> None:
        """Record the steps that have ended, and none after them."""
        self._last_words(_CLOSING)
        at_fork("anatomy")
        if self._task is not None:
            self._task.close(_CLOSING)
        self._journal.last_words.remove(self._last_words)

    def tick(self) -> None:
        """Fold the marks that wait, and log new totals, once a second."""
        self.fold(GilYield())
        self._tell()

    def fold(self, pace: Pace | None = None) -> None:
        """Make steps of the marks that wait; does nothing while another thread does it."""
        if not self._folding.acquire(blocking=False):
            return
        try:
            for key, lane in list(self._anatomy.lanes.items()):
                followed = self._followed.get(key)
                if followed is None or followed.lane is not lane:
                    followed = self._followed[key] = _Followed(lane, self._registry, self._wall_clock())
                self._fold_lane(followed, pace or _at_once)
        finally:
            self._folding.release()

    def _fold_lane(self, followed: _Followed, pace: Pace) -> None:
        marks, lost = followed.lane.take()
        machine = followed.machine
        if lost:
            machine.lose()
        for some in _slices(marks):
            steps = machine.take(some)
            if steps:
                self._record(followed, steps)
            pace()
        self._record_device(followed)
        if followed is self._main:
            followed.record_logged_tokens()
            self._record_rare(followed)

    def _record(self, followed: _Followed, steps: Sequence[Step]) -> None:
        if self._main is None:
            self._main = followed
        elif followed is not self._main:
            followed.more = {"thread.name": followed.lane.thread}
        followed.record(steps)

    def _record_rare(self, followed: _Followed) -> None:
        machine = followed.machine
        for durations, metric in (
            (machine.checkpoints, CHECKPOINT_DURATION),
            (machine.compilations, COMPILE_DURATION),
        ):
            if durations:
                record = followed.metric(metric)
                for duration in durations:
                    record(duration / _SECOND)
                durations.clear()
        skipped = machine.totals().skipped
        if skipped > followed.skipped:
            followed.metric(STEP_SKIPPED)(skipped - followed.skipped)
            followed.skipped = skipped

    def _record_device(self, followed: _Followed) -> None:
        timed = followed.lane.device.steps
        while timed and followed is self._main:
            step = timed.popleft()
            followed.device_steps += 1
            followed.metric(DEVICE_STEP_DURATION)(sum(step.device) / _SECOND)
            for place, name in enumerate(PHASES):
                followed.device[place] += step.device[place]
                followed.host[place] += step.host[place]
                if step.device[place]:
                    followed.metric(DEVICE_PHASE_DURATION, **{"dl.step.phase": name})(step.device[place] / _SECOND)

    def _tell(self, *, last: bool = False) -> None:
        """Log the totals of the training thread, where they are due."""
        main = self._main
        if main is None:
            return
        now = self._clock()
        totals = main.machine.totals()
        begun = (totals.end - main.machine.first) / _SECOND
        every = _OFTEN if begun < _AT_FIRST else _SELDOM
        # A checkpoint is told at once: what comes after it is lost, should the process be killed.
        saved, main.saved = totals.checkpoints > main.saved, totals.checkpoints
        if not (last or saved) and (now - main.told < every * 0.9 or totals.end == main.steps_told):
            return
        main.told, main.steps_told = now, totals.end
        memory = dict(_memory())
        allocated = main.lane.device.allocated
        for whose, size in memory.items():
            main.metric(MEMORY_RSS, **{"dl.memory.of": whose})(size)
        if allocated is not None:
            main.metric(MEMORY_ALLOCATED)(allocated)
        said = self._attributes(main, totals, memory, allocated)
        self._journal.append(EVENT, self._wall_clock(), said)
        self._judge(said, now, last=last)

    def _judge(self, said: dict[str, Any], now: float, *, last: bool) -> None:
        """Show the verdicts that this process can tell by itself, and log those that are new."""
        looks = self._looks
        if not looks or now - looks[-1][0] >= _LOOK_EVERY:
            looks.append((now, said))
        if not (last or now - self._judged >= _JUDGE_EVERY):
            return
        self._judged = now
        told = [*(each for _, each in looks if each is not said), said]
        found = {each.name: each for each in verdicts(windows_of([(None, told)], recent=True))}
        for name in {*self._verdicts, *found}:
            level = 0 if name not in found else 2 if found[name].severity == CRITICAL else 1
            if level != self._verdicts.get(name, 0):
                self._registry.group(OWN_GROUP).own(VERDICT).record(level, {"verdict": name})
                if level:
                    self._journal.append(VERDICT_EVENT, self._wall_clock(), _told(found[name]))
            self._verdicts[name] = level

    @staticmethod
    def _attributes(main: _Followed, totals: Totals, memory: dict[str, int], allocated: int | None) -> dict[str, Any]:
        ended = main.machine.ended()
        found: dict[str, Any] = {
            **totals._asdict(),
            "run_start": RUN_START,
            "memory.limit": _memory_limit(),
            "begin": main.machine.first + main.epoch,
            "end": ended.end + main.epoch,
            "last": totals.end + main.epoch,
            "phases": list(ended.phases),
            "rest": [all_ - of_steps for all_, of_steps in zip(totals.phases, ended.phases, strict=True)],
            "samples": ended.samples,
            "tokens": main.tokens,
            **{f"rss.{whose}": size for whose, size in memory.items()},
        }
        if main.machine.warm is not None:
            found |= {"warm.phases": list(main.machine.warm[0]), "warm.compiled": main.machine.warm[1]}
        if main.device_steps:
            found |= {"device.steps": main.device_steps, "device": main.device[:], "host": main.host[:]}
        if main.lane.communication.samples:
            found["communication"] = [main.lane.communication.samples, main.lane.communication.waited]
        if allocated is not None:
            found["allocated"] = allocated
        return {key: value for key, value in found.items() if value is not None}

    def _last_words(self, timeout: float) -> None:
        """Record the last step, which no other one has ended, and log the last totals."""
        free_within(self._folding, timeout)  # the timer may have taken the last marks, and not made steps of them yet
        self.fold()
        main = self._main
        if main is None:
            return
        ends_one = False  # which a tick may have told as the rest, with the same end
        for followed in list(self._followed.values()):
            steps = followed.machine.close()
            if steps:
                self._record(followed, steps)
                ends_one = ends_one or followed is main
            followed.note_slowest()
        self._record_rare(main)  # a checkpoint after the last step, which no other call has ended
        if ends_one or main.machine.totals().end != main.steps_told or main.told < 0:
            self._tell(last=True)


def _told(verdict: Verdict) -> dict[str, AttributeValue]:
    return {
        "verdict": verdict.name,
        "severity": verdict.severity,
        "share": verdict.share,
        "cost": verdict.cost,
        "title": verdict.title,
        "evidence": verdict.evidence,
        "advice": verdict.advice,
    }


def _slices(marks: Sequence[Mark]) -> Iterator[Sequence[Mark]]:
    for place in range(0, len(marks), _SLICE):
        yield marks[place : place + _SLICE]


def _at_once() -> None:
    """Do not rest."""


def _memory() -> Iterator[tuple[str, int]]:
    """Yield the resident memory of this process and of its children, the workers of DataLoaders: Linux only."""
    pid = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield "rank", _resident(pid)
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[:_MOST_WORKERS]
        if workers:
            sizes = []
            for worker in workers:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    sizes.append(_resident(int(worker)))
            yield "workers", sum(sizes)


@cache
def _memory_limit() -> int | None:
    """Return the bytes that the machine has, or that the control group may use; None where neither says so."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * _PAGE)
    return min(found, default=None)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


class AnatomyOfSteps:
    """Hooks and series together, as an instrumentor begins and ends them.

    Args:
        registry: takes the series, and counts errors of ours.
        journal: takes the events.
        clock: seconds, monotonic.
        wall_clock: nanoseconds since the epoch.
    """

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._registry, self._log_once = registry, LogOnce()
        self.anatomy = Anatomy(self._failed)
        self.series = StepSeries(self.anatomy, registry, journal, clock=clock, wall_clock=wall_clock)

    def _failed(self, error: Exception) -> None:
        self._registry.count_error("anatomy")
        self._log_once(
            "anatomy",
            "cannot record a training step (further warnings are suppressed; see tachograph_errors_total on "
            "/metrics): %r",
            error,
        )

    def close(self) -> None:
        """Restore torch; recorded steps stay."""
        self.series.close()
        self.anatomy.close()
