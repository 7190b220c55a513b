"""An execution: a stretch of the program with an x clock and metrics of its own; outside of tasks, the process is one.

What an execution still holds back is passed on whenever events are taken out of the journal, and at the end:
of the process, of its tasks, and of those that have ended while something of theirs is still to come.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol

from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording import timer
from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import Definition, Definitions, unit_of
from tachograph.recording.curve import CurveRecorder
from tachograph.recording.forking import at_fork
from tachograph.recording.gil_yield import Pace
from tachograph.recording.journal import Journal
from tachograph.recording.log import LogOnce
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch

LEAVING = 1024  # beyond that, the values of the oldest one are given up: nothing arrives from its device
_POLL = 0.001
always: list[UnderWay] = []  # the process
tasks: dict[int, UnderWay] = {}  # by number
leaving: dict[UnderWay, None] = {}  # the oldest first: values on their way from a device, or somebody folds right now
DEFINITION = "tachograph.definition"
SCOPE = "tachograph.metric"  # of metrics without a group
AGAIN = 60.0  # seconds after which definitions are repeated: whoever begins to read in the middle understands
_log = logging.getLogger("tachograph")
_numbers = itertools.count(1)


class UnderWay(Protocol):
    """A holder of points: an execution, see there."""

    def pass_on(self, *, everything: bool, pace: Callable[[], None] | None = None) -> bool:
        """Log what is due, or everything; False where something is still to come."""

    def define_again(self) -> None:
        """Log its definitions once more, where that is due."""

    def give_up(self, reason: Reason) -> None:
        """Count what has not arrived."""

    def reset(self) -> None:
        """Begin again in a forked child."""


def everybody() -> list[UnderWay]:
    """Return them all; what is older comes first, so that gauges show what is newer."""
    return [*list(leaving), *always, *list(tasks.values())]


def listen(journal: Journal) -> None:
    """Hear from now on when events are taken out of the journal, and when the process ends."""
    if journal is journals.default and _feed not in journal.feeders:
        journal.feeders.append(_feed)
        journal.last_words.append(_finish)


def see_off() -> None:
    """Look whether those that are leaving can go: also in a program that never takes events out."""
    for execution in list(leaving):
        if not execution.pass_on(everything=True):
            break
    for execution in list(leaving)[:-LEAVING]:
        execution.give_up("overflow")
        execution.pass_on(everything=True)


def _feed(timeout: float) -> None:
    if not timer.default.is_at_work():  # its caller waits for all that there is, and not only for what is due
        _pass_on_all(timeout)
        return
    pace = Pace()
    for execution in everybody():
        execution.pass_on(everything=False, pace=pace)
        execution.define_again()


def _pass_on_all(timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    found = everybody()
    while found:
        found = [execution for execution in found if not execution.pass_on(everything=True)]
        if not found or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    return not found


def _finish(timeout: float) -> None:
    if not _pass_on_all(timeout):
        for execution in everybody():
            execution.give_up("shutdown")


def _after_fork_in_child() -> None:
    for execution in everybody():
        execution.reset()
    leaving.clear()


at_fork("tasks", in_child=_after_fork_in_child)


class Follower(Protocol):
    """A part of an execution that is told whenever points are passed on."""

    def forget(self, execution: Execution) -> None:
        """Keep nothing of it: it is over, or this is a forked child."""

    def pass_on(self, *, everything: bool) -> None:
        """Log what there is."""

    def define_again(self) -> None:
        """Log what it has defined besides the metrics that record."""


class Execution:
    """One execution; the metrics recorded in it have nothing to do with those of others.

    Args:
        name: of the task; empty for the process.
        journal: where points and definitions go.
        registry: where gauges are, and losses are counted.
        clock: seconds; x without ``at`` is the time on it since the execution was made.
        branch: the number of each curve's first branch; by default, how often torchelastic has started this rank again.

    Attributes:
        number: of the task's call, from 1, in this process; 0 for the process.
        ended: nothing new records here any more.
        changing: held while it ends, or while a metric that is new to it is made known.
        start: when it began, on the clock.
        loops: what the loops of one key share, by key.
        followers: told when points are passed on, as long as they live.
    """

    def __init__(
        self,
        name: str = "",
        *,
        journal: Journal = journals.default,
        registry: Registry = registries.default,
        clock: Callable[[], float] = time.perf_counter,
        branch: int | None = None,
    ) -> None:
        self.name = name
        self.journal, self.registry, self.clock = journal, registry, clock
        self.branch = _restarts() if branch is None else branch
        self.number = 0
        self.ended = False
        self._log_once = LogOnce()
        self.reset()

    def reset(self) -> None:
        """Begin, or begin again in a forked child."""
        self.start = self.clock()
        self.loops: dict[str, Any] = {}
        self.changing = threading.RLock()
        self._definitions = Definitions()
        self._curves: dict[str, CurveRecorder] = {}
        self._again = inf
        for follower in list(getattr(self, "followers", ())):
            follower.forget(self)
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()

    def check(self, definition: Definition) -> None:
        """See whether a definition agrees with what has recorded here.

        Raises:
            ValueError: it does not.
        """
        with self.changing:
            self._definitions.check(definition)

    def curve(self, definition: Definition, a_second: float | None) -> CurveRecorder:
        """Return where a metric records, new where nothing has yet.

        Args:
            definition: of the metric.
            a_second: points that it may have, at most; None for all.

        Raises:
            ValueError: another definition that has recorded here says something else.
        """
        with self.changing:
            changed = self._definitions.add(definition)
            known = self._definitions.known(definition.key)
            found = self._curves.get(definition.key)
            labels = self.labels(known)
            if found is None:
                listen(self.journal)
                found = self._curves[definition.key] = CurveRecorder(
                    labels,
                    self.gauge(known),
                    journal=self.journal,
                    registry=self.registry,
                    clock=self.clock,
                    start=self.start,
                    run_start=RUN_START,
                    branch=self.branch,
                )
            elif found.labels != labels:
                found.name(labels, self.gauge(known))
            found.allow(a_second)
        for other in changed:
            self.define(other)
        return found

    def labels(self, definition: Definition) -> dict[str, AttributeValue]:
        """Return what each point of a metric says of it."""
        found: dict[str, AttributeValue] = {"metric": definition.key}
        if definition.group is not None:
            found["group"] = definition.group.name
        if self.number:
            found["execution"] = self.number
        return found

    def gauge(self, definition: Definition, suffix: str = "", unit: str | None = None, **labels: str) -> LastValue:
        """Return the gauge of a metric; one that leads nowhere where its group has another metric of its name."""
        group = SCOPE if definition.group is None else definition.group.name
        unit = unit_of(definition.scale.units) if definition.scale is not None and unit is None else unit
        key = definition.key + suffix
        found = self.registry.group(group)
        try:
            instrument = found.declare(key, kind="gauge", unit=unit, description="", boundaries=None)
        except ValueError as error:
            instrument = found.instrument(key)
            if instrument.kind != "gauge" or (instrument.unit and unit):
                _log.warning("Metric %r has no gauge, only its curve is recorded: %s", key, error)
                return LastValue(SeriesLosses(key))
        series = instrument.series(labels)
        return series if isinstance(series, LastValue) else LastValue(SeriesLosses(key))

    def define(self, definition: Definition) -> None:
        """Log a definition, for whoever reads the points."""
        about: dict[str, AttributeValue] = {**definition.attributes()}
        if self.number:
            about |= {"execution": self.number, "task": self.name}
        self._again = min(self._again, self.clock() + AGAIN)
        self.journal.append(DEFINITION, time.time_ns(), about)

    def define_again(self) -> None:
        """Log all definitions once more, where a minute has passed."""
        if self.clock() >= self._again:
            self._again = inf
            with self.changing:
                known = self._definitions.all()
            for definition in known:
                self.define(definition)
            for follower in list(self.followers):
                follower.define_again()

    def pass_on(self, *, everything: bool, pace: Callable[[], None] | None = None) -> bool:
        """Log what is due, or everything; one that has ended leaves once it has nothing more.

        Returns:
            False where values are still on their way from a device, or somebody else passes something on right now.
        """
        everything = everything or self.ended
        arrived = True
        for curve in list(self._curves.values()):
            arrived = self._pass_on(curve, everything) and arrived
            if pace is not None:
                pace()
        for follower in list(self.followers):
            follower.pass_on(everything=everything)
        if arrived and self.ended:
            leaving.pop(self, None)
            for curve in list(self._curves.values()):
                curve.end()
        return arrived

    def _pass_on(self, curve: CurveRecorder, everything: bool) -> bool:
        try:
            return curve.pass_on(everything=everything)
        except Exception:  # noqa: BLE001 - one curve that fails costs the others nothing
            self.registry.count_error("metric")
            message = "points of Metric %r do not leave (further failures are counted)"
            self._log_once("curve", message, curve.labels["metric"], level=logging.ERROR, exc_info=True)
            if self.ended:
                curve.give_up("shutdown")
            return True

    def give_up(self, reason: Reason = "shutdown") -> None:
        """Count what has not arrived."""
        for curve in list(self._curves.values()):
            curve.give_up(reason)

    def begin(self) -> None:
        """Begin as a task: with a number of its own, and known to whoever passes points on."""
        self.number = next(_numbers)
        tasks[self.number] = self

    def end(self) -> None:
        """Log what is held back, what has not arrived yet as soon as it does; nothing new records here any more."""
        with self.changing:
            self.ended = True
        leaving[self] = None
        tasks.pop(self.number, None)
        followers = list(self.followers)
        for follower in followers:
            follower.pass_on(everything=True)
        self.define_again()
        for follower in followers:
            follower.forget(self)
        self.followers.clear()
        see_off()
        if self in leaving:  # behind others that wait
            self.pass_on(everything=True)


def recording(execution: Execution) -> bool:
    """Tell whether anything is recorded in this process."""
    return switch.on and execution.registry.enabled


def _restarts() -> int:
    found = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(found) if found.isdecimal() else 0


def _run_start() -> int:
    found = os.environ.get("TACHOGRAPH_START_NS", "")
    return int(found) if found.isdecimal() else time.time_ns()


RUN_START = _run_start()
process = Execution()
current: ContextVar[Execution] = ContextVar("tachograph.execution", default=process)
always.append(process)
