"""Columns: the plain series of a group, with one value each, as a collection takes them: all at once, not one by one.

Most metrics have one series. Their constant parts are rows that stay the same from one collection to the next; a
collection adds their values. Readers of points get them made of both; the OTLP encoder, which runs most often, does
without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Generic, TypeVar, overload

from tachograph.recording.accumulators import FOLD_WAIT, Distribution, LastValue, summaries_of, to_be_folded, unread
from tachograph.recording.exponential import ExponentialCounts, ExponentialHistogram, histograms_of
from tachograph.recording.instrument import Instrument
from tachograph.recording.intervals import NOTHING, IntervalReader
from tachograph.recording.points import (
    HistogramPoint,
    MetricPoints,
    NumberPoint,
    SeriesKey,
    number_point,
    series_key_of,
)
from tachograph.recording.summary import ValueSummary
from tachograph.recording.values import Number

_SLICE = 4  # histograms between two rests
_SLICE_GAUGES = 64
_LOOKED_AT = 512  # histograms of which most have nothing new
_SLICE_ENDED = 16  # intervals of histograms, which end together

_Series = TypeVar("_Series", LastValue, Distribution)


class Rows(Generic[_Series]):
    """The constant parts of series: one a metric, all gauges or all histograms of one group.

    Attributes:
        scope: the metric group.
        metrics: the instruments.
        series: their accumulators, in the same order, as all the following.
        attributes: of the series.
        starts: when they began, in nanoseconds since the epoch.
    """

    __slots__ = ("_keys", "attributes", "metrics", "scope", "series", "starts")

    def __init__(self, scope: str, instruments: Sequence[Instrument], series: Sequence[_Series]) -> None:
        self.scope = scope
        self.metrics = instruments
        self.series: Sequence[_Series] = series
        self.attributes = [instrument.all_series()[0][0] for instrument in instruments]
        self.starts = [each.start_unix_nano for each in series]
        self._keys: list[SeriesKey] | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.series)

    def key(self, place: int) -> SeriesKey:
        """Return the key of a series among all of a collection: see :func:`tachograph.recording.points.series_key`."""
        if self._keys is None:
            known = zip(self.metrics, self.attributes, self.starts, strict=True)
            self._keys = [
                series_key_of((self.scope, metric.name, metric.unit, metric.kind), attributes, start)
                for metric, attributes, start in known
            ]
        return self._keys[place]

    def metric(self, place: int, point: NumberPoint | HistogramPoint) -> MetricPoints:
        """Return a metric with its point."""
        of = self.metrics[place]
        return MetricPoints(self.scope, of.name, of.unit, of.kind, of.description or of.recorded, [point])


class GaugeColumn:
    """The values of gauges at a collection; None where there was none yet."""

    __slots__ = ("rows", "values")

    def __init__(self, rows: Rows[LastValue], pace: Callable[[], None]) -> None:
        self.rows: Rows[LastValue] = rows
        for start in range(0, len(rows), _SLICE_GAUGES):
            for gauge in rows.series[start : start + _SLICE_GAUGES]:
                if gauge.followed or gauge.waiting:
                    gauge.fold()
                elif gauge.curve is not None:  # as a fold does, which a call of it would double
                    gauge.curve.show_newest()
            pace()
        self.values: list[Number | None] = [gauge.current for gauge in rows.series]

    def points(self) -> Iterator[MetricPoints]:
        """Yield each metric that has a value."""
        rows = self.rows
        made = map(number_point, zip(rows.attributes, self.values, rows.starts, repeat(0), strict=False))  # type: ignore[arg-type]
        for place, point in enumerate(made):
            if point.value is not None:
                yield rows.metric(place, point)


class HistogramColumn:
    """The summaries of histograms at a collection.

    Attributes:
        rows: the histograms.
        summaries: of all of their values.
        intervals: of their values since the last collection of the same reader, by place: of those that have some, or
            None where the values come with the next one.
        is_read: a reader has asked for intervals.
    """

    __slots__ = ("intervals", "is_read", "rows", "summaries")

    def __init__(
        self, rows: Rows[Distribution], reader: IntervalReader | None, pace: Callable[[], None], *, folds: bool = True
    ) -> None:
        self.rows = rows
        self.is_read = reader is not None
        self.intervals: dict[int, ExponentialHistogram | None] = {}
        for first in range(0, len(rows) if folds else 0, _LOOKED_AT):
            some = rows.series[first : first + _LOOKED_AT]
            for number, series in enumerate(to_be_folded(some), 1):
                series.fold(FOLD_WAIT)
                if number % _SLICE == 0:
                    pace()
            pace()
            if reader is None:
                continue
            ended = unread(some, reader)
            for start in range(0, len(ended), _SLICE_ENDED):
                self._read(reader, first, ended[start : start + _SLICE_ENDED])
                pace()
        self.summaries: list[ValueSummary] = summaries_of(rows.series)

    def _read(self, reader: IntervalReader, first: int, ended: Sequence[tuple[int, ExponentialCounts]]) -> None:
        """Read the intervals of some series, by their place from the first one on, which end here."""
        series, intervals = self.rows.series, self.intervals
        found = histograms_of([counts for _, counts in ended])
        for (place, counts), histogram in zip(ended, found, strict=True):
            intervals[first + place] = series[first + place].read(reader, FOLD_WAIT, (counts, histogram))[1]

    def points(self) -> Iterator[MetricPoints]:
        """Yield each metric that has a value."""
        for place, summary in enumerate(self.summaries):
            if summary.added:
                yield self.rows.metric(place, self.point(place))

    def point(self, place: int) -> HistogramPoint:
        """Return the point of a series."""
        rows = self.rows
        interval = self.intervals.get(place, NOTHING) if self.is_read else None
        series, seen = rows.series[place], rows.series[place].exemplars or {}
        exemplars = tuple([seen[key] for key in sorted(seen)])
        return HistogramPoint(
            rows.attributes[place], self.summaries[place], series.boundaries, rows.starts[place], exemplars, interval
        )


Column = GaugeColumn | HistogramColumn


class Collected(Sequence[MetricPoints]):
    """All metrics of a collection.

    Attributes:
        columns: plain gauges and histograms.
        others: all other metrics.
    """

    def __init__(self, columns: Sequence[Column], others: Sequence[MetricPoints]) -> None:
        self.columns, self.others = columns, others
        self._all: list[MetricPoints] | None = None

    def _listed(self) -> list[MetricPoints]:
        if self._all is None:
            self._all = [*(metric for column in self.columns for metric in column.points()), *self.others]
        return self._all

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self.columns or self.others)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._listed())

    @property
    def series(self) -> int:
        """The number of their series."""
        found = 0
        for column in self.columns:
            found += len(column.rows.series)
        for metric in self.others:
            found += len(metric.points)
        return found

    def __iter__(self) -> Iterator[MetricPoints]:
        """Yield them, those of columns first."""
        return iter(self._listed())

    @overload
    def __getitem__(self, index: int) -> MetricPoints: ...

    @overload
    def __getitem__(self, index: slice) -> list[MetricPoints]: ...

    def __getitem__(self, index: int | slice) -> MetricPoints | list[MetricPoints]:
        """Return one or some of them."""
        return self._listed()[index]


def others_of(metrics: Sequence[MetricPoints]) -> tuple[Sequence[Column], Sequence[MetricPoints]]:
    """Return the columns of a collection's metrics, where there are any, and all other metrics."""
    return (metrics.columns, metrics.others) if isinstance(metrics, Collected) else ((), metrics)
