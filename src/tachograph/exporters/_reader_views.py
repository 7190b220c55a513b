"""The views of a program's MeterProvider, applied to distributions that are added up already.

A view of the SDK chooses and shapes what instruments measure (specification, "Metrics SDK", "View"). Name, description,
attribute keys, drop, sum, a limit of series and those explicit boundaries that ours contain can be had from buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tachograph.exporters._reader_seam import View, preferences_of, wanted_boundaries, wants_extremes
from tachograph.recording.points import OVERFLOW, Attributes, HistogramPoint, identity
from tachograph.recording.summary import Exemplar, ValueSummary

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.export import MetricReader


class StreamPoint(NamedTuple):
    """One series of a stream; each exemplar has the attributes that the view took off."""

    point: HistogramPoint
    exemplars: list[tuple[Exemplar, Attributes]]


class Stream:
    """What one view, or none, makes of one histogram for one reader.

    Args:
        name: under which it leaves.
        description: with which it leaves.
        keys: of the attributes that stay; None for all.
        boundaries: of its buckets; None for ours.
        sums: it is a sum, not a histogram.
        extremes: it has the minimum and the maximum.
        limit: series that it may have; further ones are added up in one that says so. None for no limit.
    """

    def __init__(
        self,
        name: str,
        description: str,
        *,
        keys: frozenset[str] | None = None,
        boundaries: tuple[float, ...] | None = None,
        sums: bool = False,
        extremes: bool = True,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.sums = sums
        self._keys = keys
        self._boundaries = boundaries
        self._extremes = extremes
        self._limit = limit
        self._starts: dict[tuple[object, ...], int] = {}

    def points(self, points: Iterable[HistogramPoint], *, is_delta: bool) -> list[StreamPoint]:
        """Return the series of the stream; those whose remaining attributes agree are added up.

        Args:
            points: of one collection.
            is_delta: they are differences; else a series keeps the start that it had at first.
        """
        known = {} if is_delta else self._starts
        starts: dict[tuple[object, ...], int] = {}
        found: dict[tuple[object, ...], StreamPoint] = {}
        for point in points:
            kept, dropped = self._split(point.attributes)
            key = identity(kept)
            new = key not in known and key not in starts
            if new and self._limit is not None and len(known) + len(starts) >= self._limit:
                kept, key = OVERFLOW, identity(OVERFLOW)
            if key not in known:
                starts[key] = min(starts.get(key, point.start_unix_nano), point.start_unix_nano)
            exemplars = [(seen, dropped) for seen in point.exemplars]
            shaped = self._shaped(point)._replace(attributes=kept)
            before = found.get(key)
            if before is not None:
                shaped, exemplars = _together(before.point, shaped), before.exemplars + exemplars
            found[key] = StreamPoint(shaped, exemplars)
        known.update(starts)
        return [
            StreamPoint(each.point._replace(start_unix_nano=known[key]), each.exemplars) for key, each in found.items()
        ]

    def _split(self, attributes: Attributes) -> tuple[Attributes, Attributes]:
        keys = self._keys
        if keys is None:
            return attributes, ()
        return (
            tuple(pair for pair in attributes if pair[0] in keys),
            tuple(pair for pair in attributes if pair[0] not in keys),
        )

    def _shaped(self, point: HistogramPoint) -> HistogramPoint:
        if self._boundaries is not None and set(self._boundaries) <= set(point.boundaries):
            point = _rebucketed(point, self._boundaries)
        if self._extremes:
            return point
        spread, nan = point.summary, float("nan")
        return point._replace(
            summary=ValueSummary(spread.count, spread.total, nan, nan, spread.at_most, spread.nonfinite)
        )


def streams_of(
    instrument: Histogram,
    views: Iterable[View],
    reader: MetricReader,
    boundaries: tuple[float, ...],
    unable: Callable[[str], object],
) -> list[Stream]:
    """Return the streams of one histogram: one for each view that matches it, else that of the reader's preference.

    Args:
        instrument: the histogram.
        views: of its provider.
        reader: the one that is fed.
        boundaries: of our buckets.
        unable: told of each wish that our buckets do not allow for; its stream keeps them.
    """
    matching: list[View | None] = [view for view in views if view.matches(instrument)]
    found = [_stream(instrument, view, reader, boundaries, unable) for view in matching or [None]]
    return [stream for stream in found if stream is not None]


def _stream(
    instrument: Histogram,
    view: View | None,
    reader: MetricReader,
    boundaries: tuple[float, ...],
    unable: Callable[[str], object],
) -> Stream | None:
    from opentelemetry.sdk.metrics.view import (
        DefaultAggregation,
        DropAggregation,
        ExplicitBucketHistogramAggregation,
        SumAggregation,
    )

    _, aggregation, limit = preferences_of(reader, instrument)
    asks = f"the reader {type(reader).__name__}"
    if view is not None and not isinstance(view.aggregation, DefaultAggregation):
        aggregation, asks = view.aggregation, f"the view for {view.criteria}"
    if isinstance(aggregation, DropAggregation):
        return None
    wanted: tuple[float, ...] | None = None
    refused = "" if isinstance(aggregation, DefaultAggregation | SumAggregation) else type(aggregation).__name__
    if isinstance(aggregation, ExplicitBucketHistogramAggregation):
        wanted = wanted_boundaries(aggregation)
        refused = "" if wanted is None or set(wanted) <= set(boundaries) else f"the boundaries {wanted!r:.200}"
    if refused:
        unable(
            f"{asks} asks for {refused}, which cannot be had from Tachograph's buckets: "
            f"{instrument.name!r:.100} keeps the boundaries {boundaries!r:.200}"
        )
    return Stream(
        (view and view.name) or instrument.name,
        (view and view.description) or instrument.description,
        keys=view.keys if view is not None else None,
        boundaries=None if refused else wanted,
        sums=isinstance(aggregation, SumAggregation),
        extremes=wants_extremes(aggregation),
        limit=limit if view is None or view.limit is None else view.limit,
    )


def _rebucketed(point: HistogramPoint, boundaries: tuple[float, ...]) -> HistogramPoint:
    """Return the point with only these of its boundaries."""
    spread = point.summary
    at_most = dict(zip(point.boundaries, spread.at_most, strict=True))
    kept = tuple(at_most[bound] for bound in boundaries)
    return point._replace(
        summary=ValueSummary(spread.count, spread.total, spread.minimum, spread.maximum, kept, spread.nonfinite),
        boundaries=boundaries,
    )


def _together(one: HistogramPoint, more: HistogramPoint) -> HistogramPoint:
    """Return both in one, with the boundaries that both have."""
    if one.boundaries != more.boundaries:
        common = tuple(bound for bound in one.boundaries if bound in more.boundaries)
        one, more = _rebucketed(one, common), _rebucketed(more, common)
    return one._replace(summary=one.summary.plus(more.summary))
