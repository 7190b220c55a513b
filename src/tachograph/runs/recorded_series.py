"""The series of a run, read back: counters, histograms and gauges, with their samples of every ten seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tachograph.recording.points import AttributeValue
from tachograph.runs.buckets import HistogramValues, shown
from tachograph.runs.file import RunFile
from tachograph.runs.members import mapping, pairs, rank_of
from tachograph.runs.queries import read_curves, read_samples, read_series
from tachograph.runs.spread import unpacked

SeriesKind = Literal["histogram", "counter", "gauge"]
Kind = Literal["curve", "histogram", "counter", "gauge"]
KINDS: tuple[Kind, ...] = ("curve", "histogram", "counter", "gauge")
PARTS = (0.5, 0.9, 0.99)
_NANO = 1e9
_KINDS: Mapping[str, SeriesKind] = {"histogram": "histogram", "counter": "counter"}  # a sum may fall: a gauge
_UNGROUPED = "tachograph.metric"  # the scope of the gauges of metrics without a group
_LOGGER = "tachograph.logger"  # whose gauges are curves by another name
_NAMED = ("metric", "group", "units", "rank", "time_unix_nano")
HEADERS: Mapping[SeriesKind, tuple[str, ...]] = {
    "histogram": (*_NAMED, "count", "sum", "min", "max", "p50", "p90", "p99", "attributes"),
    "counter": (*_NAMED, "total", "rate", "attributes"),
    "gauge": (*_NAMED, "value", "attributes"),
}


class RecordedSeries(NamedTuple):
    """A counter, a histogram, or a gauge without a curve, of one process and set of attributes.

    Attributes:
        group: its instrumentation scope.
        units: UCUM, as OpenTelemetry has them; empty for none.
        rank: the rank of the process; None if it has none.
        role: the role of the process; ``node`` for the machine metrics of a hub.
        value: all values of a histogram, the total of a counter, or the last value of a gauge; None without values.
        number: in the file.
    """

    name: str
    group: str
    units: str
    kind: SeriesKind
    attributes: Mapping[str, AttributeValue]
    rank: int | None
    role: str
    value: HistogramValues | float | None
    number: int


@dataclass(slots=True, frozen=True)
class Interval:
    """The values recorded in a histogram between two samples.

    Attributes:
        time_unix_nano: the end of the interval.
        values: the values.
    """

    series: RecordedSeries
    time_unix_nano: int
    values: HistogramValues

    @property
    def count(self) -> int:
        """The number of values."""
        return self.values.count

    @property
    def total(self) -> float:
        """The sum of the values."""
        return self.values.total

    @property
    def minimum(self) -> float:
        """The smallest value; NaN if it is not known."""
        return self.values.minimum

    @property
    def maximum(self) -> float:
        """The largest value; NaN if it is not known."""
        return self.values.maximum

    def quantile(self, part: float) -> float:
        """Return a quantile (0 to 1) of the values; NaN if it is not known.

        The error is at most 2.2 % if the largest magnitude is at most 2²⁰ times the smallest.
        """
        return self.values.quantile(part)


class Reading(NamedTuple):
    """A sample of a counter or a gauge.

    Attributes:
        value: the total of a counter or the value of a gauge; NaN if it was not a number.
        rate: the increase of a counter per second since the previous sample; None for the first sample and for gauges.
    """

    series: RecordedSeries
    time_unix_nano: int
    value: float
    rate: float | None


def series_of(file: RunFile, named: str | None) -> list[RecordedSeries]:
    """Return the series of a run, by name, kind and rank; gauges that have curves are left out.

    Args:
        file: the run's.
        named: only those with this name; None for all.
    """
    found = []
    curves = {(curve.group, curve.metric) for curve in read_curves(file.rows, named)}
    names = () if named is None else (named,)
    series = read_series(file.rows, *names, with_state=True)
    for number, scope, name, units, shape, attributes, resource, state in series:
        kind = _KINDS.get(shape, "gauge")
        group = "" if scope == _UNGROUPED else scope
        if kind == "gauge" and ((group, name) in curves or scope == _LOGGER):
            continue
        value = None
        try:
            value = shown(state) if state else None
        except (ValueError, TypeError, LookupError) as error:
            file.note(f"a state of {name}: {error}")
        who = mapping(resource)
        about = (pairs(attributes), rank_of(who), str(who.get("dl.role", "")), value, number)
        found.append(RecordedSeries(name, group, units, kind, *about))
    return sorted(found, key=lambda each: (each.name, each.kind, each.rank is None, each.rank or 0))


def intervals_of(file: RunFile, series: RecordedSeries) -> Iterator[Interval]:
    """Yield the intervals of a histogram, the oldest first."""
    for time, count, total, data in read_samples(file.rows, series.number):
        spread = None
        try:
            spread = unpacked(data) if data else None
        except ValueError as error:
            file.note(f"a sample of {series.name}: {error}")
        yield Interval(series, time, HistogramValues(int(count or 0), math.nan if total is None else total, spread))


def readings_of(file: RunFile, series: RecordedSeries) -> Iterator[Reading]:
    """Yield the samples of a counter or a gauge, the oldest first."""
    before: tuple[int, float] | None = None
    for time, value, _, _ in read_samples(file.rows, series.number):
        now = math.nan if value is None else value
        rate = None
        if series.kind == "counter" and before is not None and time > before[0]:
            risen = now - before[1] if now >= before[1] else now  # it began anew
            rate = risen / ((time - before[0]) / _NANO)
        before = time, now
        yield Reading(series, time, now, rate)


def rows_of(file: RunFile, series: RecordedSeries) -> Iterator[list[Any]]:
    """Yield the samples of a series as rows with the columns of its kind, see :data:`HEADERS`; None for no value."""
    named = [series.name, series.group, series.units, series.rank]
    attributes = json.dumps(dict(series.attributes)) if series.attributes else None
    if series.kind == "histogram":
        for each in intervals_of(file, series):
            told = [each.minimum, each.maximum, *each.values.quantiles(PARTS)]
            known = [None if math.isnan(value) else value for value in told]
            yield [*named, each.time_unix_nano, each.count, each.total, *known, attributes]
        return
    for reading in readings_of(file, series):
        rate = [reading.rate] if series.kind == "counter" else []
        yield [*named, reading.time_unix_nano, reading.value, *rate, attributes]


def kinds_of(found: Sequence[RecordedSeries], name: str) -> list[SeriesKind]:
    """Return the kinds of series that have a name, histograms before counters and gauges."""
    return [kind for kind in HEADERS if any(each.kind == kind and each.name == name for each in found)]
