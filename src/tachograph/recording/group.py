"""A metric group: an instrumentation scope with its instruments, by name, and how a collection takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tachograph.recording.accumulators import Distribution, LastValue
from tachograph.recording.columns import Column, GaugeColumn, HistogramColumn, Rows
from tachograph.recording.instrument import FunctionCalls, Instrument, creation
from tachograph.recording.intervals import IntervalReader, Intervals
from tachograph.recording.log import LogOnce
from tachograph.recording.losses import SeriesLosses, losses_of
from tachograph.recording.naming import KINDS, Kind, Meaning, check_boundaries, check_name, meaning
from tachograph.recording.own_metrics import FUNCTION_CALLS, FUNCTION_DURATION, OWN_GROUP, OwnMetric
from tachograph.recording.points import OVERFLOW, Attributes, HistogramPoint, MetricPoints, NumberPoint, encodable


class NameLimit:
    """The number of metric names that a process may have: each takes some kilobytes for as long as it lives.

    Args:
        most: names of all groups.
        drop: counts a value of a name that is one too many.

    Attributes:
        left: how many there may still be.
        drop: see above.
    """

    __slots__ = ("_log_once", "drop", "left", "most")

    def __init__(self, most: int, drop: Callable[[object], None]) -> None:
        self.most = most
        self.left = most
        self.drop = drop
        self._log_once = LogOnce()

    def is_reached(self, name: str, group: str) -> bool:
        """Tell whether a new name is one too many, which is logged the first time."""
        if self.left > 0:
            return False
        self._log_once(
            "names",
            "dropped metric %r of group %r because this process already has %d metric names: pass changing numbers, "
            "such as the step, as x or as an attribute, not in the name "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)",
            name,
            group,
            self.most,
        )
        return True


class Group:
    """A metric group: an instrumentation scope, with its instruments and its profiled functions.

    Attributes:
        sources: called in each collection, for points that no instrument of the group holds; a source folds its
            values while its points are taken.
    """

    __slots__ = (
        *("_enabled", "_intervals", "_limit", "_names", "_parts", "_taken"),
        *("functions", "instruments", "name", "sources"),
    )

    def __init__(self, name: str, limit: int, intervals: Intervals, names: NameLimit, *, enabled: bool = True) -> None:
        self.name = name
        self._names = names
        self._enabled, self._intervals = enabled, intervals
        self.instruments: dict[str, Instrument] = {}
        self.functions: dict[str, FunctionCalls] = {}
        self.sources: list[Callable[[], Iterator[MetricPoints]]] = []
        self._limit = limit
        self._taken: dict[str, tuple[Kind, str, str]] = {}
        self._parts: _Parts | None = None

    def instrument(self, recorded: str) -> Instrument:
        """Return the instrument for a recorded name, which says its kind and unit unless it was declared."""
        found = self.instruments.get(recorded)
        return found if found is not None else self._add(check_name(recorded), meaning(recorded))

    def own(self, metric: OwnMetric) -> Instrument:
        """Return the instrument for a metric of Tachograph's own."""
        _, name, unit, kind, description, _ = metric
        found = self.instruments.get(name)
        if found is not None:
            return found
        with creation.lock:
            self._names.left += 1  # those of the program are bounded, not ours
            return self.declare(name, kind=kind, unit=unit, description=description, boundaries=None)

    def declare(
        self,
        recorded: str,
        *,
        kind: Kind | None,
        unit: str | None,
        description: str,
        boundaries: Sequence[float] | None,
    ) -> Instrument:
        """Return the instrument for a recorded name, as declared; see :func:`tachograph.declare`."""
        said = meaning(check_name(recorded))
        kind = said.kind if kind is None and unit in (None, said.unit) else kind or "gauge"
        if kind not in KINDS:
            raise ValueError(f"{recorded!r} cannot be a {kind!r}: kind must be one of {', '.join(KINDS)}")
        if unit is not None and not isinstance(unit, str):
            raise TypeError(f"the unit of {recorded!r} must be a string, not {type(unit).__name__}: {unit!r:.100}")
        if boundaries is not None and kind != "histogram":
            raise ValueError(f"{recorded!r} is a {kind}: only histograms have boundaries")
        bounds = None if boundaries is None else check_boundaries(boundaries, repr(recorded))
        description = encodable(description)
        name = said.name if unit in (None, said.unit) else recorded
        wanted = Meaning(name, encodable(said.unit if unit is None else unit), kind)
        with creation.lock:
            found = self.instruments.get(recorded)
            if found is None:
                return self._add(recorded, wanted, description=description, boundaries=bounds, declared=True)
            _check_same(found, wanted, description, bounds)
            found.description = found.description or description
            found.declared = True
            creation.changes += 1
            return found

    def _add(self, recorded: str, named: Meaning, **definition: Any) -> Instrument:
        with creation.lock:
            kind, unit, owner = self._taken.get(named.name, (named.kind, named.unit, ""))
            owned = self.instruments.get(owner)  # None where an interrupt came before it was there
            if (kind, unit) != (named.kind, named.unit):
                named = named._replace(name=recorded)
            elif owned is not None and not definition and not owned.declared and self._names.left > 0:
                self._names.left -= 1
                return self.instruments.setdefault(recorded, owned)
            definition |= {"limit": self._limit, "enabled": self._enabled, "intervals": self._intervals}
            if self._names.is_reached(recorded, self.name):
                return Instrument(self.name, recorded, named, drop=self._names.drop, **definition)
            self._names.left -= 1
            self._taken.setdefault(named.name, (named.kind, named.unit, recorded))
            made = self.instruments.setdefault(recorded, Instrument(self.name, recorded, named, **definition))
            creation.changes += 1  # once it is there: who sees the number finds it
            return made

    def function(self, name: str) -> FunctionCalls:
        """Return the record of the calls of one profiled function."""
        found = self.functions.get(name)
        if found is not None:
            return found
        with creation.lock:
            attributes: Attributes = (("code.function.name", name),)
            if name not in self.functions and len(self.functions) >= self._limit - 1:
                name, attributes = "", OVERFLOW
            return self.functions.setdefault(name, FunctionCalls(attributes, self._limit, self._intervals))

    def columns(self, reader: IntervalReader | None, pace: Callable[[], None], *, folds: bool) -> Iterator[Column]:
        """Fold the plain series of the group, and yield them; a reader's intervals end here: see the registry's."""
        parts = self._parted()
        if parts.gauges is not None:
            gauges = GaugeColumn(parts.gauges, pace)
            if any(value is not None for value in gauges.values):
                yield gauges
        if parts.histograms is not None:
            histograms = HistogramColumn(parts.histograms, reader, pace, folds=folds)
            if any(summary.added for summary in histograms.summaries):
                yield histograms

    def _parted(self) -> _Parts:
        parts = self._parts
        if parts is None or parts.changes != creation.changes:
            parts = self._parts = _Parts(self, creation.changes)
        return parts

    def points(self, reader: IntervalReader | None, *, plain: bool) -> Iterator[MetricPoints]:
        """Fold, and yield the points of instruments, functions and sources; a reader's intervals end here.

        Args:
            reader: see above.
            plain: of the plain series, too, which :meth:`columns` yields.
        """
        parts = self._parted()
        for instrument in parts.instruments if plain else parts.others:
            found = instrument.collect(reader)
            if found is not None:
                yield found
        if not (self.functions or self.sources):
            return
        durations: list[HistogramPoint] = []
        calls: list[NumberPoint] = []
        for function in list(self.functions.values()):
            more_durations, more_calls = function.points(reader)
            durations += more_durations
            calls += more_calls
        if durations:
            yield MetricPoints(self.name, *FUNCTION_DURATION[1:5], durations)
            yield MetricPoints(self.name, *FUNCTION_CALLS[1:5], calls)
        for source in list(self.sources):
            yield from source()

    def losses(self) -> tuple[list[SeriesLosses], list[SeriesLosses]]:
        """Return the losses that there are, a record each: of the instruments, and of the functions."""
        functions = [owner.losses for owner in list(self.functions.values())]
        return losses_of(self._parted().losses), losses_of(functions)

    def reset(self) -> None:
        """Forget every value, as a forked child does."""
        for instrument in list(self.instruments.values()):
            instrument.reset()
        for function in list(self.functions.values()):
            function.reset()


class _Parts:
    """The instruments of a group as a collection takes them, until one more comes, or a series.

    Attributes:
        changes: how many there had been.
        instruments: all of them.
        gauges: plain ones.
        histograms: plain ones.
        others: those that are not plain.
        losses: of all of them.
    """

    def __init__(self, group: Group, changes: int) -> None:
        self.changes = changes
        self.instruments = instruments = list(dict.fromkeys(list(group.instruments.values())))
        is_own = group.name == OWN_GROUP  # few, and one of them is joined with losses that are counted elsewhere
        series = [(instrument, None if is_own else instrument.plain()) for instrument in instruments]
        gauges = {instrument: found for instrument, found in series if isinstance(found, LastValue)}
        histograms = {instrument: found for instrument, found in series if isinstance(found, Distribution)}
        self.gauges = Rows(group.name, list(gauges), list(gauges.values())) if gauges else None
        self.histograms = Rows(group.name, list(histograms), list(histograms.values())) if histograms else None
        self.others = [instrument for instrument, found in series if found is None and instrument.all_series()]
        self.losses = [instrument.losses for instrument in instruments]


def _check_same(found: Instrument, wanted: Meaning, description: str, bounds: tuple[float, ...] | None) -> None:
    differences = [
        f"{what} {is_!r} (now {new!r})"
        for what, is_, new in (
            ("kind", found.kind, wanted.kind),
            ("unit", found.unit, wanted.unit),
            ("boundaries", found.boundaries, found.boundaries if bounds is None else bounds),
            ("description", found.description or description, description or found.description),
        )
        if is_ != new
    ]
    if differences:
        how = "declared" if found.declared else "recorded"
        raise ValueError(
            f"{found.recorded!r} of group {found.group!r} was already {how} with {', '.join(differences)}: "
            "declare it once, before the first value"
        )
