"""The registry: (group, name, attributes) to the accumulator that holds the series.

Look-ups that the hot path repeats are done once and kept by the caller; this file runs when a series is new, and in
collections.
"""

from __future__ import annotations

import copyreg
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tachograph.recording.accumulators import Accumulator
from tachograph.recording.closed_windows import ClosedWindows
from tachograph.recording.columns import Collected, Column
from tachograph.recording.forking import at_fork, helpers_record
from tachograph.recording.gauge_curve import GaugeCurves
from tachograph.recording.group import Group, NameLimit
from tachograph.recording.instrument import CARDINALITY_LIMIT, Instrument, Record, bound_records, creation
from tachograph.recording.intervals import IntervalReader, Intervals
from tachograph.recording.log import LogOnce
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.naming import Kind, check_name
from tachograph.recording.own_metrics import (
    DROPPED,
    ERRORS,
    EXPORT_DURATION,
    NONFINITE,
    OWN_GROUP,
    RESENT,
    TASK_GROUP,
    Reason,
)
from tachograph.recording.packed_points import PointSources
from tachograph.recording.points import AttributeValue, MetricPoints, NumberPoint
from tachograph.recording.switch import switch

MOST_NAMES = 16_384


class Registry:
    """All groups of a process, and the counts of their losses.

    Args:
        cardinality_limit: series a metric may have; beyond it, values go into one series with the attribute
            ``otel.metric.overflow``.
        enabled: record at all; by default unless ``OTEL_SDK_DISABLED`` is ``true``.
        begun: called with each new group but that of our own metrics.
        most_names: metric names that there may be; values of further ones are dropped, and counted.

    Attributes:
        collected: anything has read the values.
        closed_windows: those of Stats, for readers that want each of them.
        curves: of gauges whose values are kept.
        early: called with a pace before groups are read, see :meth:`settle`.
        has_own_news: a loss, a repetition or an error was counted since :meth:`columns` has asked our own metrics.
        intervals: the readers that want the distributions' exponential histograms.
        points: the packed points of curves, for destinations that take them.
        told: called with the name of each new group; to change it, put another sequence in its place.
        silenced: tells of a group whether it shall leave by no way out; see :meth:`silence`.
    """

    def __init__(
        self,
        *,
        cardinality_limit: int = CARDINALITY_LIMIT,
        enabled: bool | None = None,
        begun: Callable[[], object] | None = None,
        most_names: int = MOST_NAMES,
    ) -> None:
        if enabled is None:
            enabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        self.enabled = enabled
        self.collected = False
        self.groups: dict[str, Group] = {}
        self.closed_windows = ClosedWindows()
        self.intervals = Intervals()
        self.points = PointSources(self._point_source_failed)
        self.curves = GaugeCurves(self.points)
        self.early: list[Callable[[Callable[[], None] | None], object]] = []
        self.told: Sequence[Callable[[str], object]] = ()
        self.silenced: Callable[[str], bool] = lambda _group: False
        self._limit, self._begun = cardinality_limit, begun
        self._names = NameLimit(most_names, self.drop)
        self._log_once = LogOnce()
        self._start_unix_nano = time.time_ns()
        self._ours: list[MetricPoints] | None = None  # as they stood when last asked
        self.has_own_news = False
        self._own = own = self.group(OWN_GROUP)
        self._dropped, self._errors, self._resent = own.own(DROPPED), own.own(ERRORS), own.own(RESENT)
        self.export_duration = own.own(EXPORT_DURATION)

    def silence(self, silenced: Callable[[str], bool]) -> None:
        """Let the groups leave by no way out for which ``silenced`` is true of their name: it is asked each time."""
        self.silenced = silenced

    def group(self, name: str) -> Group:
        """Return the group of this name, new where there was none; the empty string names one, too."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups.setdefault(name, self._new_group(name))
            if self._begun is not None and self.enabled and name != OWN_GROUP:
                self._begun()
            for told in self.told:
                told(name)
        return found

    def _new_group(self, name: str) -> Group:
        check_name(name, "metric group")
        return Group(name, self._limit, self.intervals, self._names, enabled=self.enabled)

    def group_for(self, name: str, recorded: str) -> Group:
        """Return the group for a metric of the program; a new one is kept unless the metric's name is one too many."""
        if name not in self.groups and self._names.is_reached(recorded, name):
            return self._new_group(name)
        return self.group(name)

    def has_room_for(self, group: str, recorded: str) -> bool:
        """Tell whether values of a metric are recorded: its name is known, or not one too many."""
        found = self.groups.get(group)
        return (found is not None and recorded in found.instruments) or not self._names.is_reached(recorded, group)

    def settle(self, pace: Callable[[], None] | None = None) -> None:
        """Have calls become values whose values were left for later: each collection does it first."""
        for settle in self.early:
            settle(pace)

    def series(self, *, tasks: bool = True) -> Iterator[Accumulator]:
        """Yield every series of a metric or a profiled function, but our own metrics' and those of silenced groups.

        Args:
            tasks: the durations of tasks, too.
        """
        without = {OWN_GROUP} if tasks else {OWN_GROUP, TASK_GROUP}
        for name, group in list(self.groups.items()):
            if name in without or self.silenced(name):
                continue
            for instrument in dict.fromkeys(list(group.instruments.values())):
                yield from (series for _, series in instrument.all_series())
            for function in list(group.functions.values()):
                yield from (series for _, series in function.distributions())

    def has_sources(self) -> bool:
        """Tell whether a collection asks for points that no instrument holds: of drivers, or of the program's code."""
        return bool(self.early) or any(group.sources for group in list(self.groups.values()))

    def count_dropped(self, reason: Reason, destination: str, count: int = 1) -> None:
        """Count losses: exported as ``tachograph.dropped``."""
        self._dropped.record(count, {"reason": reason, "destination": destination})
        self.has_own_news = True

    def drop(self, _value: object) -> None:
        """Count a value of a name that is one too many, in place of recording it."""
        self.count_dropped("cardinality", "registry")

    def count_resent(self, destination: str, count: int) -> None:
        """Count items that were sent again though they may have arrived: exported as ``tachograph.resent``."""
        self._resent.record(count, {"destination": destination})
        self.has_own_news = True

    def count_error(self, where: str) -> None:
        """Count an exception that was kept away from the program: exported as ``tachograph.errors``."""
        self._errors.record(1, {"where": where})
        self.has_own_news = True

    def _point_source_failed(self, error: Exception) -> None:
        self.count_error("curves")
        self._log_once("curves", "lost points of a curve: %r", error, level=logging.ERROR, exc_info=error)

    def collect(
        self, pace: Callable[[], None] | None = None, reader: IntervalReader | None = None
    ) -> list[MetricPoints]:
        """Fold everything and return it, cumulative since the process began to record.

        Args:
            pace: called between slices; a background thread sleeps in it, to let others run.
            reader: whose intervals end here: the points of histograms have them, too.
        """
        found: list[MetricPoints] = []
        for group in [*self._told(pace), self._own]:
            for metric in group.points(reader, plain=True):
                found.append(metric)
                if pace is not None:
                    pace()
        return self._with_losses(found)

    def columns(
        self,
        pace: Callable[[], None] | None = None,
        reader: IntervalReader | None = None,
        *,
        folds: bool = True,
        own: bool = True,
    ) -> Collected:
        """Fold everything and return it as :meth:`collect` does, plain series in columns.

        Args:
            pace: see above.
            reader: see above.
            folds: fold the histograms, too; else plain ones stand as they stood at the last collection.
            own: ask our own metrics, too, and the losses of series; else they stand as they stood when last asked.
        """
        rests = pace or _at_once
        columns: list[Column] = []
        found: list[MetricPoints] = []
        for group in self._told(pace):
            columns += group.columns(reader, rests, folds=folds)
            for metric in group.points(reader, plain=False):
                found.append(metric)
                rests()
        ours = self._ours
        if own or ours is None:
            self.has_own_news = False
            ours = self._with_losses(list(self._own.points(reader, plain=True)))
            self._ours = [metric.without_intervals() for metric in ours]
        rests()
        return Collected(columns, [*found, *ours])

    def _told(self, pace: Callable[[], None] | None) -> list[Group]:
        """Return the groups of a collection, as it asks them, without our own.

        That one comes last: the sources of others count their losses while they are asked.
        """
        self.collected = True
        self.settle(pace)
        silenced = self.silenced
        return [group for name, group in list(self.groups.items()) if name != OWN_GROUP and not silenced(name)]

    def _with_losses(self, found: list[MetricPoints]) -> list[MetricPoints]:
        lost_by = [group.losses() for group in list(self.groups.values())]
        if any(map(any, lost_by)) or self._dropped.all_series():
            return self._joined(found, lost_by)
        return found

    def _joined(
        self, found: list[MetricPoints], lost_by: Sequence[tuple[list[SeriesLosses], list[SeriesLosses]]]
    ) -> list[MetricPoints]:
        """Return the metrics of a collection with the losses of series, by group."""
        reasons = dict.fromkeys(("no_number", "attribute", "overflow", "negative"), 0)
        nonfinite: dict[str, int] = {}
        for of_instruments, of_functions in lost_by:
            for losses in of_instruments:
                if losses.nonfinite:
                    nonfinite[losses.name] = nonfinite.get(losses.name, 0) + losses.nonfinite
            for losses in of_instruments + of_functions:
                for reason in reasons:
                    reasons[reason] += getattr(losses, reason)
        lost = [
            NumberPoint((("destination", "registry"), ("reason", reason)), count, self._start_unix_nano)
            for reason, count in reasons.items()
            if count
        ]
        others = next((m for m in found if m.scope == OWN_GROUP and m.name == self._dropped.name), None)
        if others is not None:
            found = [metric for metric in found if metric is not others]
            counted = {point.attributes: point for point in others.points if isinstance(point, NumberPoint)}
            for point in lost:  # one series of a reason: such values of Metrics are counted elsewhere
                value = point.value + (counted[point.attributes].value if point.attributes in counted else 0)
                counted[point.attributes] = point._replace(value=value)
            # One start, whichever of both is there first: another one would be a restart of the series.
            lost = [point._replace(start_unix_nano=self._start_unix_nano) for point in counted.values()]
        if lost:
            found.append(MetricPoints(*DROPPED[:5], lost))
        if nonfinite:
            points = [NumberPoint((("metric", name),), n, self._start_unix_nano) for name, n in nonfinite.items()]
            found.append(MetricPoints(*NONFINITE[:5], points))
        return found

    def reset(self) -> None:
        """Forget every value and free every lock, as a forked child does before it records on its own account."""
        creation.lock = threading.RLock()
        self._start_unix_nano = time.time_ns()
        self.intervals.reset()
        self.collected = False
        self._ours = None
        self.points.reset()  # first: a curve that gives up what it holds has its gauge show it
        for group in list(self.groups.values()):
            group.reset()
        switch.on = True


def _at_once() -> None:
    """Do not rest."""


default = Registry(begun=switch.begin)


def _after_fork_in_child() -> None:
    default.closed_windows.reset_in_child()
    # A forked data-loader worker inherits copies of every value: it records nothing unless it is asked to.
    if helpers_record():
        default.reset()
    else:
        switch.on = False


at_fork("registry", in_child=_after_fork_in_child)


def _declared_again(group: str, recorded: str, declaration: dict[str, Any] | None) -> Instrument:
    """Return the instrument of this process for one of another, or for a copy: each process has one of a name."""
    if declaration is not None:
        return declare(recorded, group=group, **declaration)
    instrument = default.group(group).instrument(recorded)
    instrument.keep_curves(default.curves)
    return instrument


def _bound_again(
    group: str, recorded: str, declaration: dict[str, Any] | None, attributes: dict[str, AttributeValue]
) -> Record:
    return _declared_again(group, recorded, declaration).bind(**attributes)


copyreg.pickle(Instrument, lambda instrument: (_declared_again, instrument.definition()))
bound_records.make = _bound_again


def declare(
    name: str,
    group: str = "torchelastic",
    *,
    kind: Kind | None = None,
    unit: str | None = None,
    description: str = "",
    boundaries: Sequence[float] | None = None,
) -> Instrument:
    """Declare a metric with a kind, a unit and histogram boundaries, and return its instrument.

    Arguments that you omit follow from the name, as without a declaration: ``step.duration.ms`` is a histogram in
    milliseconds. If you pass a unit, the name keeps its suffix. Values recorded through the instrument reach exporters
    only. To call handlers as well, use :func:`tachograph.put_metric`, which records into the same instrument.

    Args:
        name: the metric's name, 1 to 1,024 characters.
        group: the metric group.
        kind: ``"gauge"`` (the last value), ``"counter"`` (a sum) or ``"histogram"``.
        unit: a UCUM unit, such as ``s``, ``By`` or ``{token}``; ``""`` for none.
        description: one sentence for people, shown as HELP in Prometheus.
        boundaries: upper bounds of a histogram's buckets, finite and ascending, in the unit of the values.

    Raises:
        TypeError: the name, unit, description or group is not a string, or a boundary is not a number.
        ValueError: the kind is unknown, the boundaries do not ascend or the kind is not a histogram, the name is empty
            or too long, or the same name was recorded or declared differently before.
    """
    if not isinstance(description, str):
        raise TypeError(f"the description of {name!r:.100} must be a string, not {type(description).__name__}")
    of = default.group_for(group, name)
    found = of.declare(name, kind=kind, unit=unit, description=description, boundaries=boundaries)
    found.keep_curves(default.curves)
    return found
