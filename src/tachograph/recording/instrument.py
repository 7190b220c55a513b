"""An instrument: one metric of a group, with a series for each set of attributes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from tachograph.recording.accumulators import FOLD_WAIT, Accumulator, Distribution, LastValue, Sum
from tachograph.recording.gauge_curve import GaugeCurves
from tachograph.recording.intervals import NEVER, IntervalReader, Intervals
from tachograph.recording.kept_calls import KeptCalls
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.named_functions import NamedFunctions
from tachograph.recording.naming import Meaning, default_boundaries
from tachograph.recording.points import (
    OVERFLOW,
    Attributes,
    AttributeValue,
    HistogramPoint,
    MetricPoints,
    NumberPoint,
    attributes_key,
    histogram_point,
    identity,
    number_point,
)

CARDINALITY_LIMIT = 2000

Record = Callable[[object], None]


def nothing(value: object) -> None:
    """Record nothing."""


class _Creation:
    """The lock under which series come into being, reentrant since a signal handler may record; and how many did.

    Attributes:
        changes: of series and of instruments, in this process: it grows with each.
    """

    lock = threading.RLock()
    changes = 0


creation = _Creation()
bound_records = NamedFunctions("tachograph.recording.registry", "bound_records")


class Instrument:
    """A metric of a group: a gauge, counter or histogram, with one series for each set of attributes.

    Get an instrument from :func:`tachograph.declare`; recording a value under a new name creates one as well.

    Attributes:
        drop: counts a value as dropped instead of recording it, if there are too many instruments; otherwise None.
    """

    __slots__ = (
        "_curves",
        "_enabled",
        "_intervals",
        "_limit",
        "_named",
        "_series",
        "boundaries",
        "declared",
        "description",
        "drop",
        "group",
        "kind",
        "losses",
        "name",
        "recorded",
        "unit",
    )

    def __init__(
        self,
        group: str,
        recorded: str,
        named: Meaning,
        *,
        description: str = "",
        boundaries: tuple[float, ...] | None = None,
        limit: int = CARDINALITY_LIMIT,
        enabled: bool = True,
        declared: bool = False,
        intervals: Intervals = NEVER,
        drop: Record | None = None,
    ) -> None:
        self.group = group
        self.drop = drop
        self.recorded = recorded
        self.name, self.unit, self.kind = named
        self.description = description
        self.boundaries = default_boundaries(self.unit) if boundaries is None else boundaries
        self.declared = declared
        self.losses = SeriesLosses(recorded)
        self._limit = limit
        self._enabled = enabled
        self._intervals = intervals
        self._series: dict[tuple[object, ...], tuple[Attributes, Accumulator]] = {}
        self._curves: GaugeCurves | None = None
        self._named = self.name, self.group, self.unit

    def keep_curves(self, curves: GaugeCurves) -> None:
        """Keep the values of each series in a curve from now on, where it is a gauge."""
        if self._curves is not None or self.kind != "gauge" or not self._enabled or self.drop is not None:
            return
        with creation.lock:
            self._curves = curves
            for attributes, series in self.all_series():
                self._follow(attributes, series)

    def _follow(self, attributes: Attributes, series: Accumulator) -> Accumulator:
        if self._curves is not None and isinstance(series, LastValue) and series.curve is None:
            self._curves.follow(series, self._named, attributes)
        return series

    def bind(self, /, **attributes: AttributeValue) -> Record:
        """Return a function that records one value into the series with these attributes.

        Call ``bind`` once and the returned function in the loop: a value then takes about a hundred nanoseconds.
        """
        if not self._enabled:
            return nothing
        record: Record = self.series(attributes).record
        if not (bound_records.has(record) or isinstance(record, MethodType)):
            bound_records.add(record, *self.definition(), attributes)
        return record

    def record(self, value: object, attributes: Mapping[str, object] | None = None) -> None:
        """Record one value: set a gauge, add to a counter, or measure into a histogram."""
        accumulator = self.series(attributes or {})
        if self._enabled:
            accumulator.record(value)

    def series(self, attributes: Mapping[str, object]) -> Accumulator:
        """Return the accumulator of the series with these attributes, or the overflow series beyond the limit."""
        key = attributes_key(attributes, self.losses.leave_out)
        wanted = identity(key)
        found = self._series.get(wanted)
        if found is not None:
            return found[1]
        with creation.lock:
            if wanted not in self._series and len(self._series) >= self._limit - 1 and key:
                key, wanted = OVERFLOW, identity(OVERFLOW)
            if wanted not in self._series:
                self._series.setdefault(wanted, (key, self._follow(key, self._accumulator())))
                creation.changes += 1
            return self._series[wanted][1]

    def _accumulator(self) -> Accumulator:
        if self.drop is not None:
            series = LastValue(self.losses)
            series.record = self.drop
            return series
        if self.kind == "gauge":
            return LastValue(self.losses)
        if self.kind == "counter":
            return Sum(self.losses)
        return Distribution(self.losses, self.boundaries, self._intervals)

    def plain(self) -> LastValue | Distribution | None:
        """Return the only series of a gauge or a histogram; None where there are several, or none, or it is a counter.

        See :mod:`tachograph.recording.columns`.
        """
        if len(self._series) != 1:
            return None
        ((_, series),) = self.all_series()
        return None if isinstance(series, Sum) else series

    def all_series(self) -> list[tuple[Attributes, Accumulator]]:
        """Return every series with its attributes."""
        return list(self._series.values())

    def collect(self, reader: IntervalReader | None = None) -> MetricPoints | None:
        """Fold, then return the instrument's points; None where nothing was recorded.

        Args:
            reader: whose intervals end here.
        """
        points: list[NumberPoint | HistogramPoint] = []
        for attributes, accumulator in self.all_series():
            if isinstance(accumulator, LastValue):
                accumulator.fold()
                value = accumulator.current
            elif isinstance(accumulator, Distribution):
                accumulator.fold(wait=FOLD_WAIT)
                point = histogram_point(attributes, [accumulator], reader)
                if point is not None:
                    points.append(point)
                continue
            else:
                accumulator.fold(wait=FOLD_WAIT)
                value = accumulator.value()
            if value is not None:
                points.append(number_point((attributes, value, accumulator.start_unix_nano, 0)))
        if not points:
            return None
        return MetricPoints(self.group, self.name, self.unit, self.kind, self.description or self.recorded, points)

    def definition(self) -> tuple[str, str, dict[str, Any] | None]:
        """Return its group, its recorded name and, where it was declared, the other arguments of its declaration."""
        if not self.declared:
            return self.group, self.recorded, None
        boundaries = self.boundaries if self.kind == "histogram" else None
        declaration = {"kind": self.kind, "unit": self.unit, "description": self.description, "boundaries": boundaries}
        return self.group, self.recorded, declaration

    def reset(self) -> None:
        """Forget every value, as a forked child does."""
        self.losses.forget()
        for _, accumulator in self.all_series():
            accumulator.reset()
        creation.changes += 1


class FunctionCalls:
    """The calls of one profiled function: their durations, by outcome and by type of error.

    ``function.calls`` is counted from the same distributions that ``function.duration`` shows, so the two always agree.

    Attributes:
        kept: the slowest calls, and the last ones that failed.
    """

    __slots__ = ("_failures", "_intervals", "_labels", "_limit", "attributes", "kept", "losses", "success")

    def __init__(self, attributes: Attributes, limit: int, intervals: Intervals = NEVER) -> None:
        self.attributes = attributes
        self._limit = limit
        self._intervals = intervals
        self.losses = SeriesLosses("function.duration")
        self._failures: dict[str, Distribution] = {}
        self._labels: dict[tuple[tuple[str, str], ...], Attributes] = {}
        self.success = self._distribution()
        self.kept = self.success.kept = KeptCalls()

    def _distribution(self) -> Distribution:
        return Distribution(self.losses, default_boundaries("s"), self._intervals)

    def failure(self, error_type: str) -> Distribution:
        """Return the durations of the calls that ended in an exception of this type."""
        found = self._failures.get(error_type)
        if found is None:
            if len(self._failures) >= self._limit:
                error_type = "_OTHER"
            found = self._failures.setdefault(error_type, self._distribution())
        return found

    def distributions(self) -> list[tuple[str, Distribution]]:
        """Return the error type (empty for success) and the durations of each way to end."""
        return [("", self.success), *self._failures.items()]

    def points(self, reader: IntervalReader | None = None) -> tuple[list[HistogramPoint], list[NumberPoint]]:
        """Fold, then return the points of ``function.duration``, ending a reader's intervals, and of its calls."""
        durations: list[HistogramPoint] = []
        calls: list[NumberPoint] = []
        for part in (self.success, *self._failures.values()):
            part.fold(wait=FOLD_WAIT)
        failures = list(self._failures.items())
        for outcome, parts in (("success", [self.success]), ("failure", [part for _, part in failures])):
            point = histogram_point(self._with(("outcome", outcome)), parts, reader)
            if point is not None:
                durations.append(point)
        if self.success.summary().count:
            attributes = self._with(("outcome", "success"))
            calls.append(NumberPoint(attributes, self.success.summary().count, self.success.start_unix_nano))
        for error_type, part in failures:
            if part.summary().count:
                attributes = self._with(("error.type", error_type), ("outcome", "failure"))
                calls.append(NumberPoint(attributes, part.summary().count, part.start_unix_nano))
        return durations, calls

    def _with(self, *more: tuple[str, str]) -> Attributes:
        """Return the attributes of a series: the same object each time, by which an encoder knows the series."""
        found = self._labels.get(more)
        if found is None:
            found = self._labels[more] = tuple(sorted((*self.attributes, *more)))
        return found

    def reset(self) -> None:
        """Forget every call, as a forked child does."""
        self.losses.forget()
        self.kept.reset()
        for _, part in self.distributions():
            part.reset()
