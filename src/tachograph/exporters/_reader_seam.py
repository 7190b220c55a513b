"""The seam between a reader of OpenTelemetry's SDK and its provider: the private names that feeding relies on.

They are looked up here and nowhere else, each time anew; where one of them is missing or is no longer what it was
(1.43 to 1.45), the provider or the reader is unknown.

A provider's views are applied to distributions that are added up already (specification, "Metrics SDK", "View"): name,
description, attribute keys, drop, sum, a limit of series and those explicit boundaries that ours contain can be had
from buckets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.recording.points import OVERFLOW, Attributes, HistogramPoint, identity
from tachograph.recording.summary import Exemplar, ValueSummary, buckets_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import ExemplarFilter, Histogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
    from opentelemetry.sdk.metrics.view import Aggregation
    from opentelemetry.sdk.resources import Resource

Collect = Callable[..., "MetricsData | None"]

_SDK = "opentelemetry.sdk.metrics"
_CRITERIA = ("instrument_type", "instrument_name", "instrument_unit", "meter_name", "meter_version", "meter_schema_url")


class UnknownError(Exception):
    """Reason for which a reader cannot be fed: its message is the name of a class."""


class View(NamedTuple):
    """A view: the instruments that it matches, and its changes to them; None for each that it leaves as it is.

    Attributes:
        criteria: as the program wrote them.
    """

    matches: Callable[[Any], bool]
    name: str | None
    description: str | None
    keys: frozenset[str] | None
    aggregation: Aggregation
    limit: int | None
    criteria: str


class Preferences(NamedTuple):
    """Aggregation of a histogram, as a reader wants it."""

    temporality: AggregationTemporality
    aggregation: Aggregation
    limit: int | None


class Provider(NamedTuple):
    """Views, readers and resource of a provider.

    Attributes:
        collect: the callable that each of them has for its points.
    """

    collect: Collect
    readers: list[MetricReader]
    views: list[View]
    resource: Resource
    exemplar_filter: ExemplarFilter


def provider_of(provider: object, ours: Callable[[MetricReader], object]) -> Provider:
    """Return a provider's views, readers and resource.

    Args:
        provider: the program's own.
        ours: returns the callable that we may have put in a reader's place to collect.

    Raises:
        UnknownError: it, or one of its readers, is of another make.
    """
    metrics = sys.modules.get(_SDK)
    if metrics is None or not isinstance(provider, metrics.MeterProvider):
        raise UnknownError(type(provider).__name__)
    from opentelemetry.sdk.resources import Resource

    try:
        consumer: Any = provider._measurement_consumer
        config: Any = provider._sdk_config
        found = Provider(
            consumer.collect,
            list(consumer._reader_storages),
            [_view(view) for view in config.views],
            config.resource,
            config.exemplar_filter,
        )
        known = callable(found.collect) and callable(found.exemplar_filter.should_sample)
    except (AttributeError, TypeError):
        known = False
    if not known or not isinstance(found.resource, Resource) or not isinstance(consumer._reader_storages, Mapping):
        raise UnknownError(type(provider).__name__)
    for reader in found.readers:
        if not _is_known(reader, (None, found.collect, ours(reader))):
            raise UnknownError(type(reader).__name__)
    return found


def _view(view: Any) -> View:
    """Return a view's parts.

    Raises:
        AttributeError: it lacks one.
        TypeError: one is of another type.
    """
    criteria = {name: getattr(view, f"_{name}", None) for name in _CRITERIA}
    said = [
        f"{name}={getattr(value, '__name__', value)!r:.100}" for name, value in criteria.items() if value is not None
    ]
    keys = view._attribute_keys
    if not callable(view._match):
        raise TypeError(type(view).__name__)
    return View(
        view._match,
        view._name,
        view._description,
        None if keys is None else frozenset(keys),
        view._aggregation,
        getattr(view, "_aggregation_cardinality_limit", None),
        ", ".join(said),
    )


def _is_known(reader: Any, callables: Sequence[object]) -> bool:
    """Tell whether a reader collects as ``MetricReader`` does, and calls one of these for its points."""
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.export import MetricReader

    own = type(reader)
    try:
        return (
            isinstance(reader, MetricReader)
            and "collect" not in vars(reader)
            and own.collect is MetricReader.collect
            and own._set_collect_callback is MetricReader._set_collect_callback
            and any(issubclass(made, Histogram) for made in reader._instrument_class_temporality)
            and any(issubclass(made, Histogram) for made in reader._instrument_class_aggregation)
            and any(reader._collect is known or reader._collect == known for known in callables)
        )
    except (AttributeError, TypeError):
        return False


def readers_of(provider: object) -> list[MetricReader]:
    """Return the readers that a provider has now, as far as it shows them."""
    return list(getattr(getattr(provider, "_measurement_consumer", None), "_reader_storages", ()))


def late_readers_of(provider: object) -> list[MetricReader]:
    """Return the periodic readers that the provider's ``force_flush`` does not reach: those added to it later."""
    if _SDK not in sys.modules:
        return []
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reached = list(getattr(provider, "_metric_readers", ()))
    periodic = [reader for reader in readers_of(provider) if isinstance(reader, PeriodicExportingMetricReader)]
    return [reader for reader in periodic if reader not in reached]


def preferences_of(reader: MetricReader, instrument: Histogram) -> Preferences:
    """Return the aggregation that a reader wants of this histogram."""
    made: Any = type(instrument)
    limits = getattr(reader, "_instrument_class_cardinality_limit", {})
    return Preferences(
        reader._instrument_class_temporality[made], reader._instrument_class_aggregation[made], limits.get(made)
    )


def collect_of(reader: MetricReader) -> Any:
    """Return the callable that a reader has for its points; None while it has no provider."""
    return getattr(reader, "_collect", None)


def set_collect(reader: MetricReader, collect: Collect) -> None:
    """Have a reader call this for its points."""
    reader._set_collect_callback(collect)  # type: ignore[arg-type]  # the SDK passes other things than it declares


def is_enabled(instrument: object) -> bool:
    """Tell whether the SDK takes this histogram's values: not where its meter is disabled."""
    metrics = sys.modules.get(_SDK)
    if metrics is None or not isinstance(instrument, metrics.Histogram):
        return False
    enabled = getattr(instrument, "_is_enabled", None)
    return enabled is None or bool(enabled())


def wanted_boundaries(aggregation: Aggregation) -> tuple[float, ...] | None:
    """Return the boundaries that an explicit bucket aggregation asks for; None for those of the instrument."""
    boundaries = getattr(aggregation, "_boundaries", None)
    return None if boundaries is None else tuple(map(float, boundaries))


def wants_extremes(aggregation: Aggregation) -> bool:
    """Tell whether an aggregation asks for the minimum and the maximum."""
    return getattr(aggregation, "_record_min_max", True) is not False


if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.export import MetricReader


class StreamPoint(NamedTuple):
    """One series of a stream; each exemplar has the attributes that the view took off."""

    point: HistogramPoint
    exemplars: list[tuple[Exemplar, Attributes]]


class Stream:
    """One histogram for one reader, as one view, or none, has it.

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
            summary=ValueSummary(spread.count, spread.total, nan, nan, spread.buckets, spread.nonfinite)
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
            f"{asks} requests {refused}, which Tachograph cannot compute from its buckets: "
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
    kept = buckets_of([at_most[bound] for bound in boundaries], spread.count)
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
