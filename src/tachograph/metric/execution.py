"""An execution: a stretch of the program with an x clock and metrics of its own; outside of tasks, the process is one.

It is a holder of the journal that its points go to: the feed asks it before it takes events out, and waits for it at
the end of the process. One that has ended is asked as long as something of it is still to come.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol

from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import Definition, Definitions, unit_of
from tachograph.recording.curve import CurveRecorder
from tachograph.recording.forking import at_fork
from tachograph.recording.holders import no_rest
from tachograph.recording.ids import NumberSequence
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import Journal
from tachograph.recording.log import LogOnce
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.own_metrics import Reason
from tachograph.recording.packed_points import first_branch
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch

DEFINITION = "tachograph.definition"
SCOPE = "tachograph.metric"  # of metrics without a group
AGAIN = 60.0  # seconds after which definitions are repeated: a reader that begins in the middle understands
_log = logging.getLogger("tachograph")
_numbers = NumberSequence()


class Recorded(Protocol):
    """A metric that records in executions."""

    def forget(self, execution: Execution) -> None:
        """Keep nothing of an execution: it is over, or this is a forked child."""


class Looped(Recorded, Protocol):
    """A loop under way, whose points depend on time as well."""

    def pass_on(self, *, everything: bool) -> None:
        """Log the point that is due; or how far it is now."""

    def define_again(self) -> None:
        """Log its definition once more."""


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
        curves: the curves of its metrics, by key.
        keys: the state that loops of one key share, by key.
        loops: those under way.
        metrics: those that have recorded here, as long as they live.
    """

    curves: dict[str, CurveRecorder]

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
        self.branch = first_branch() if branch is None else branch
        self.number = 0
        self.ended = False
        self._log_once = LogOnce()
        self.metrics: weakref.WeakSet[Recorded] = weakref.WeakSet()
        self.loops: weakref.WeakSet[Looped] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Begin, or begin again in a forked child."""
        self.start = self.clock()
        self.keys: dict[str, Any] = {}
        self.changing = threading.RLock()
        self._definitions = Definitions()
        self.curves = {}
        self._again = inf
        self._forget()

    def _forget(self) -> None:
        for known in (*self.metrics, *self.loops):
            known.forget(self)
        self.metrics, self.loops = weakref.WeakSet(), weakref.WeakSet()

    @property
    def records(self) -> bool:
        """Whether anything is recorded in this process."""
        return switch.on and self.registry.enabled

    def check(self, definition: Definition) -> None:
        """See whether a definition agrees with those that have recorded here.

        Raises:
            ValueError: it does not.
        """
        with self.changing:
            self._definitions.check(definition)

    def curve(self, definition: Definition, a_second: float | None) -> CurveRecorder:
        """Return the curve of a metric, new where nothing has recorded it yet.

        Args:
            definition: of the metric.
            a_second: points that it may have, at most; None for all.

        Raises:
            ValueError: another definition that has recorded here says something else.
        """
        with self.changing:
            changed = self._definitions.add(definition)
            known = self._definitions.known(definition.key)
            found = self.curves.get(definition.key)
            labels = self.labels(known)
            if found is None:
                gauge = self.gauge(known)
                where: dict[str, Any] = {"journal": self.journal, "registry": self.registry, "clock": self.clock}
                found = CurveRecorder(labels, gauge, **where, start=self.start, branch=self.branch)
                self.curves[definition.key] = found
            elif found.labels != labels:
                found.rename(labels, self.gauge(known))
            found.allow(a_second)
        for other in changed:
            self.define(other)
        return found

    def has_room_for(self, definition: Definition) -> bool:
        """Tell whether the values of a metric are recorded: its name is known, or not one too many."""
        return definition.key in self.curves or self.registry.has_room_for(_scope(definition), definition.key)

    def labels(self, definition: Definition) -> Mapping[str, AttributeValue]:
        """Return the attributes that each point of a metric has."""
        found: dict[str, AttributeValue] = {"metric": definition.key}
        if definition.group is not None:
            found["group"] = definition.group.name
        if self.number:
            found["execution"] = self.number
        return found

    def gauge(self, definition: Definition, suffix: str = "", unit: str | None = None, **labels: str) -> LastValue:
        """Return the gauge of a metric; one that leads nowhere where its group has another metric of its name."""
        group = _scope(definition)
        unit = unit_of(definition.scale.units) if definition.scale is not None and unit is None else unit
        key = definition.key + suffix
        found = self.registry.group_for(group, key)
        try:
            instrument = found.declare(key, kind="gauge", unit=unit, description="", boundaries=None)
        except ValueError as error:
            instrument = found.instrument(key)
            if instrument.kind != "gauge" or (instrument.unit and unit):
                _log.warning("recording Metric %r only as a curve, without a gauge: %s", key, error)
                return LastValue(SeriesLosses(key))
        series = instrument.series(labels)
        return series if isinstance(series, LastValue) else LastValue(SeriesLosses(key))

    def define(self, definition: Definition) -> None:
        """Log a definition, for the readers of its points; from now on the feed asks for those."""
        about: dict[str, AttributeValue] = {**definition.attributes()}
        if self.number:
            about |= {"execution": self.number, "task": self.name}
        self._again = min(self._again, self.clock() + AGAIN)
        if not self.ended:
            self.journal.holders.add(self)
        self.journal.append(DEFINITION, time.time_ns(), about)

    def define_again(self, pace: Callable[[], None] = no_rest) -> None:
        """Log all definitions once more, where a minute has passed; ``pace`` is called between them."""
        if self.clock() >= self._again:
            self._again = inf
            with self.changing:
                known = self._definitions.all()
            for definition in known:
                self.define(definition)
                pace()
            for loop in list(self.loops):
                loop.define_again()

    def hand_in(self, timeout: float = 0.0, *, everything: bool, pace: Callable[[], None] = no_rest) -> bool:  # noqa: ARG002 - nothing is waited for
        """Log points: see :class:`tachograph.recording.holders.Holder`."""
        arrived = self.pass_on(everything=everything, pace=pace)
        if not everything:
            self.define_again(pace)
        return arrived

    def pass_on(self, *, everything: bool, pace: Callable[[], None] = no_rest) -> bool:
        """Log the points that are due, or all; an execution that has ended leaves once it has nothing more.

        Returns:
            False where values are still on their way from a device, or another thread passes something on right now.
        """
        everything = everything or self.ended
        arrived = True
        for curve in list(self.curves.values()):
            arrived = self._pass_on(curve, everything) and arrived
            pace()
        for loop in list(self.loops):
            loop.pass_on(everything=everything)
        if arrived and self.ended:
            self.journal.holders.remove(self)
            for curve in list(self.curves.values()):
                curve.end()
        return arrived

    def _pass_on(self, curve: CurveRecorder, everything: bool) -> bool:
        try:
            return curve.pass_on(everything=everything)
        except Exception as error:  # noqa: BLE001 - one curve that fails costs the others nothing
            pass_on(error)
            self.registry.count_error("metric")
            message = (
                "could not export points of Metric %r (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)"
            )
            self._log_once("curve", message, curve.labels["metric"], level=logging.ERROR, exc_info=True)
            if self.ended:
                curve.give_up("shutdown")
            return True

    def give_up(self, reason: Reason = "shutdown") -> None:
        """Count the values that have not arrived."""
        for curve in list(self.curves.values()):
            curve.give_up(reason)

    def begin(self) -> None:
        """Begin as a task: with a number of its own, and known to the feed and to every recorder."""
        self.number = _numbers.next()
        self.journal.holders.passing[self] = None

    def end(self) -> None:
        """Log the values held back, and those on their way once they arrive; nothing new records here any more."""
        with self.changing:
            self.ended = True
        for loop in list(self.loops):
            loop.pass_on(everything=True)
        self.define_again()
        self._forget()
        self.journal.holders.leave(self)


def _scope(definition: Definition) -> str:
    return SCOPE if definition.group is None else definition.group.name


process = Execution()
current: ContextVar[Execution] = ContextVar("tachograph.execution", default=process)


def _reset_in_child() -> None:
    process.reset()
    process.journal.holders.reset_in_child()


at_fork("tasks", in_child=_reset_in_child)
