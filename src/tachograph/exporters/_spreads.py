"""Spreads: exponential histograms of series for one reader, joined from the intervals of its collections."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tachograph.recording.exponential import ExponentialHistogram, histogram_of
from tachograph.recording.intervals import NOTHING
from tachograph.recording.points import HistogramPoint, MetricPoints, SeriesKey, series_key


class Spread(NamedTuple):
    """The values of a series as an exponential histogram, and the time from which they are, in nanoseconds."""

    start_unix_nano: int
    histogram: ExponentialHistogram


class Spreads:
    """Exponential histograms of each series for one reader, joined from the intervals of its collections.

    Args:
        whole: of all values of a series; else of those since it was read last.
        most: buckets of a side.
    """

    def __init__(self, *, whole: bool, most: int) -> None:
        self._whole, self._most = whole, most
        self._held: dict[tuple[object, ...], Spread | None] = {}
        self._ended, self._came = 0, False

    def add(self, metrics: Sequence[MetricPoints], pace: Callable[[], None]) -> None:
        """Join the intervals of a collection to those that are held: none is lost where encoding fails.

        Args:
            metrics: as the registry returned them.
            pace: called between slices of points.
        """
        joined = 0
        for metric in metrics:
            for point in metric.points if metric.kind == "histogram" else ():
                if not isinstance(point, HistogramPoint) or point.interval is None:
                    continue
                joined += 1
                if joined % _SLICE == 0:
                    pace()
                self.join(series_key(metric, point), point.start_unix_nano, point.interval)

    def begin(self, *, came: bool) -> None:
        """Begin with a collection's intervals: each that is added says that some have come, as ``came`` does."""
        self._came = came

    def join(self, key: SeriesKey, start_unix_nano: int, interval: ExponentialHistogram) -> None:
        """Join the interval of a series to those that are held.

        Args:
            key: of the series.
            start_unix_nano: of the series.
            interval: the values of a collection, or :data:`NOTHING`.
        """
        self._came = True
        held = self._held.setdefault(key, None)
        if interval is not NOTHING:
            self._held[key] = self.joined(held, start_unix_nano, interval)

    def joined(self, held: Spread | None, start_unix_nano: int, interval: ExponentialHistogram) -> Spread:
        """Return the interval of a series, joined to the one that is held of it elsewhere: see :meth:`join`."""
        if held is None:
            since = start_unix_nano if self._whole or start_unix_nano > self._ended else self._ended
            return Spread(since, interval.within(self._most))
        return Spread(held.start_unix_nano, held.histogram.plus(interval, self._most))

    def give_back(self, key: SeriesKey, spread: Spread) -> None:
        """Hold an interval again that was held elsewhere, before any that has come since."""
        held = self._held.get(key)
        more = spread.histogram if held is None else spread.histogram.plus(held.histogram, self._most)
        self._held[key] = Spread(spread.start_unix_nano, more)

    def end(self, now: int) -> None:
        """Take the time of the last collection for the end of its intervals: the next ones begin there."""
        if self._came:
            self._ended = now

    def knows(self, metric: MetricPoints, point: HistogramPoint) -> bool:
        """Tell whether a series has ever come with an interval."""
        return series_key(metric, point) in self._held

    def read(self, metric: MetricPoints, point: HistogramPoint) -> Spread | None:
        """Return the histogram of a series; None where it has no new value."""
        return self.take(series_key(metric, point))

    def is_empty(self) -> bool:
        """Tell whether no value is held."""
        return not any(self._held.values())

    def take(self, key: SeriesKey) -> Spread | None:
        """Return :meth:`read` of a series by its key."""
        found = self._held.get(key)
        if not self._whole and key in self._held:
            self._held[key] = None
        return found if found is not None and not found.histogram.is_empty else None


_SLICE = 16


def completed(histogram: ExponentialHistogram, point: HistogramPoint, most: int) -> ExponentialHistogram:
    """Return a histogram of all values of a point: those that it lacks are in the middle of their explicit buckets.

    It lacks those that were folded before exponential buckets were asked for, and those of an interval that is still
    being folded.

    Args:
        histogram: of most of them.
        point: how many there are, by explicit buckets.
        most: buckets of a side.
    """
    summary = point.summary
    lacks = summary.count - histogram.total
    if lacks <= 0:
        return histogram
    mean = summary.mean()  # of a difference the extremes are not always known
    minimum, maximum = (mean if math.isnan(extreme) else extreme for extreme in (summary.minimum, summary.maximum))
    edges = minimum, *point.boundaries, maximum
    found: Counter[float] = Counter()
    before = 0
    for place, at_most in enumerate((*summary.at_most, summary.count)):
        bound = edges[place + 1] if place < len(point.boundaries) else math.inf
        upto = lacks if bound == math.inf else min(max(at_most - histogram.at_most(bound), before), lacks)
        if upto > before:
            low, high = (max(minimum, min(edge, maximum)) for edge in edges[place : place + 2])
            found[math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2] += upto - before
        before = upto
    return histogram.plus(histogram_of(found, most), most)
