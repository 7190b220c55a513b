"""An execution: a stretch of the program with an x clock and metrics of its own; outside of tasks, the process is one.

What an execution still holds back is passed on whenever events are taken out of the journal, and at the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol

from tachograph import journal as journals
from tachograph import registry as registries
from tachograph.chart import unit_of
from tachograph.curve import Curve
from tachograph.definition import Definition, Definitions
from tachograph.journal import Journal
from tachograph.last_value import LastValue
from tachograph.losses import Losses
from tachograph.pace import Pace
from tachograph.points import AttributeValue
from tachograph.registry import Registry
from tachograph.switch import switch

DEFINITION = "tachograph.definition"
SCOPE = "tachograph.metric"  # of metrics without a group
AGAIN = 60.0  # seconds after which definitions are repeated: whoever begins to read in the middle understands
_COLLECTOR = "tachograph"  # the thread of the pipeline: it looks for what is due, all others want what there is
_POLL = 0.001

_log = logging.getLogger("tachograph")
_numbers = itertools.count(1)


class Follower(Protocol):
    """Who keeps something of an execution, or has something to say whenever its points are passed on."""

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
        self.reset()

    def reset(self) -> None:
        """Begin, or begin again in a forked child."""
        self.start = self.clock()
        self.loops: dict[str, Any] = {}
        self._changing = threading.RLock()
        self._definitions = Definitions()
        self._curves: dict[str, Curve] = {}
        self._again = inf
        for follower in list(getattr(self, "followers", ())):
            follower.forget(self)
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()

    def check(self, definition: Definition) -> None:
        """See whether a definition agrees with what has recorded here.

        Raises:
            ValueError: it does not.
        """
        with self._changing:
            self._definitions.check(definition)

    def curve(self, definition: Definition, a_second: float | None) -> Curve:
        """Return where a metric records, new where nothing has yet.

        Args:
            definition: of the metric.
            a_second: points that it may have, at most; None for all.

        Raises:
            ValueError: another definition that has recorded here says something else.
        """
        with self._changing:
            changed = self._definitions.add(definition)
            known = next(found for found in self._definitions.all() if found.key == definition.key)
            found = self._curves.get(definition.key)
            labels = self.labels(known)
            if found is None:
                _listen(self)
                found = self._curves[definition.key] = Curve(
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
                return LastValue(Losses(key))
        series = instrument.series(labels)
        return series if isinstance(series, LastValue) else LastValue(Losses(key))

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
            with self._changing:
                known = self._definitions.all()
            for definition in known:
                self.define(definition)
            for follower in list(self.followers):
                follower.define_again()

    def pass_on(self, *, everything: bool, pace: Callable[[], None] | None = None) -> bool:
        """Log what is due, or everything; False where values are still on their way from a device."""
        arrived = True
        for curve in list(self._curves.values()):
            arrived = curve.pass_on(everything=everything) and arrived
            if pace is not None:
                pace()
        for follower in list(self.followers):
            follower.pass_on(everything=everything)
        return arrived

    def give_up(self) -> None:
        """Count what has not arrived."""
        for curve in list(self._curves.values()):
            curve.give_up()

    def begin(self) -> None:
        """Begin as a task: with a number of its own, and known to whoever passes points on."""
        self.number = next(_numbers)
        tasks[self.number] = self

    def end(self) -> None:
        """Log what is held back; nothing records here any more."""
        self.pass_on(everything=True)
        self.define_again()
        tasks.pop(self.number, None)
        for curve in list(self._curves.values()):
            curve.end()
        for follower in list(self.followers):
            follower.forget(self)


class _Nowhere(Curve):
    """Takes everything, and keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.buffer = deque(maxlen=0)
        self.due = inf
        self.gauge = LastValue(Losses(""))
        self.late = False
        self.last = self.shown = 0.0
        self.start, self.until = 0.0, -inf


NOWHERE: Curve = _Nowhere()


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
tasks: dict[int, Execution] = {}  # those under way, by number


def _under_way() -> list[Execution]:
    return [process, *list(tasks.values())]


def _listen(execution: Execution) -> None:
    """Hear from now on when events are taken out of the journal, and when the process ends."""
    journal = execution.journal
    if journal is journals.default and _feed not in journal.feeders:
        journal.feeders.append(_feed)
        journal.last_words.append(_finish)


def _feed(timeout: float) -> None:
    everything = threading.current_thread().name != _COLLECTOR
    if everything:
        _pass_on_all(timeout)
        return
    pace = Pace()
    for execution in _under_way():
        execution.pass_on(everything=False, pace=pace)
        execution.define_again()


def _pass_on_all(timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    found = _under_way()
    while found:
        found = [execution for execution in found if not execution.pass_on(everything=True)]
        if not found or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    return not found


def _finish(timeout: float) -> None:
    if not _pass_on_all(timeout):
        for execution in _under_way():
            execution.give_up()


def _after_fork_in_child() -> None:
    for execution in _under_way():
        execution.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
