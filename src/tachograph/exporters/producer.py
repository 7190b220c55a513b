"""The registry as the OpenTelemetry SDK's own classes, and any ``MetricExporter`` of the SDK as a destination.

The SDK is imported when the first batch is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tachograph.exporters._deltas import ClosedWindowReader, Deltas
from tachograph.exporters.batch import Batch
from tachograph.exporters.otel_exporters import ExporterQueue
from tachograph.recording.naming import Kind
from tachograph.recording.own_metrics import TORCH_MONITOR, scope_origin
from tachograph.recording.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number, as_float, fits_int64

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

_PACE_EVERY = 64
_POINT_BYTES = 512


def sdk_metrics(
    metrics: Sequence[MetricPoints],
    resource: Mapping[str, AttributeValue],
    time_unix_nano: int,
    *,
    deltas: Deltas | None = None,
    pace: Callable[[], None] | None = None,
) -> MetricsData:
    """Return the points of a collection as the SDK's ``MetricsData``: one resource, one scope a metric group.

    Args:
        metrics: as the registry returned them.
        resource: attributes of the process.
        time_unix_nano: when it was collected: the time of the points that have none of their own.
        deltas: the last points of this reader; without them, points are cumulative.
        pace: called after every 64 points.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scopes: dict[str, list[Metric]] = {}
    converted = 0
    for metric in metrics:
        wanted = metric
        if deltas is not None and metric.kind in deltas.kinds:
            found = [deltas.since(metric, point, time_unix_nano) for point in metric.points]
            wanted = metric._replace(points=[point for point in found if point is not None])
        if wanted.points:
            scopes.setdefault(metric.scope, []).append(_metric(wanted, time_unix_nano, is_delta=wanted is not metric))
        converted += len(metric.points)
        if converted >= _PACE_EVERY and pace is not None:
            converted = 0
            pace()
    scope_metrics = [
        ScopeMetrics(InstrumentationScope(name, *scope_origin(name)), found, scope_origin(name)[1] or "")
        for name, found in scopes.items()
    ]
    resource_metrics = [ResourceMetrics(Resource(dict(resource)), scope_metrics, "")] if scope_metrics else []
    return MetricsData(resource_metrics)


def _metric(metric: MetricPoints, now: int, *, is_delta: bool) -> Metric:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, Sum

    temporality = AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
    points = [_point(point, now) for point in metric.points]
    data: Gauge | Histogram | Sum
    if metric.kind == "gauge":
        data = Gauge(points)
    elif metric.kind == "counter":
        data = Sum(points, temporality, is_monotonic=True)
    else:
        data = Histogram(points, temporality)
    return Metric(metric.name, metric.description, metric.unit, data)


def _point(point: NumberPoint | HistogramPoint, now: int) -> Any:
    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    if isinstance(point, NumberPoint):
        return NumberDataPoint(
            dict(point.attributes), point.start_unix_nano, point.time_unix_nano or now, encodable_number(point.value)
        )
    exemplars = [Exemplar({}, seen.value, seen.time_unix_nano, seen.span_id, seen.trace_id) for seen in point.exemplars]
    return histogram_data_point(point, now, exemplars)


def histogram_data_point(point: HistogramPoint, now: int, exemplars: Sequence[Exemplar]) -> HistogramDataPoint:
    """Return one series of a histogram as the SDK's class; an extreme that is not known is None."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    spread = point.summary
    return HistogramDataPoint(
        dict(point.attributes),
        point.start_unix_nano,
        now,
        spread.count,
        encodable_number(spread.total.value()),
        spread.buckets or (spread.count,),
        point.boundaries,
        _known(spread.minimum),
        _known(spread.maximum),
        exemplars,
    )


def encodable_number(value: Number) -> Number:
    """Return a value that OTLP can carry: an integer beyond 64 bits would lose the whole batch."""
    return value if fits_int64(value) else as_float(value)


def _known(extreme: float) -> Any:
    """Return an extreme, or None where it is not known: OTLP leaves it out then, though the SDK's class says float."""
    return extreme if extreme - extreme == 0 else None


def into_scopes(
    data: MetricsData | None, resource: Resource, scopes: Mapping[InstrumentationScope, Sequence[Metric]]
) -> MetricsData:
    """Return ``data`` with further metrics of this resource; those of a scope that is there come under it."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics

    resources = list(data.resource_metrics) if data is not None else []
    place = next((index for index, found in enumerate(resources) if found.resource == resource), len(resources))
    if place == len(resources):
        resources.append(ResourceMetrics(resource, [], resource.schema_url))
    left = dict(scopes)
    merged = [
        ScopeMetrics(found.scope, [*found.metrics, *left.pop(found.scope, ())], found.schema_url)
        for found in resources[place].scope_metrics
    ]
    merged += [ScopeMetrics(scope, list(metrics), scope.schema_url or "") for scope, metrics in left.items()]
    resources[place] = ResourceMetrics(resources[place].resource, merged, resources[place].schema_url)
    return MetricsData(resources)


def merge(ours: MetricsData, sdk: MetricsData | None) -> MetricsData:
    """Return both in one; scopes of equal resources come under one resource."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics

    if sdk is None:
        return ours
    merged = list(ours.resource_metrics)
    for external in sdk.resource_metrics:
        for index, found in enumerate(merged):
            if found.resource.attributes == external.resource.attributes:
                scopes = [*found.scope_metrics, *external.scope_metrics]
                merged[index] = ResourceMetrics(found.resource, scopes, found.schema_url)
                break
        else:
            merged.append(external)
    return MetricsData(merged)


def with_metrics(data: MetricsData, change: Callable[[Metric], Metric]) -> MetricsData:
    """Return the data with each of its metrics changed."""
    resources = [
        replace(
            resource,
            scope_metrics=[
                replace(scope, metrics=[change(metric) for metric in scope.metrics]) for scope in resource.scope_metrics
            ],
        )
        for resource in data.resource_metrics
    ]
    return replace(data, resource_metrics=resources)


def point_count(data: MetricsData) -> int:
    """Return how many data points there are."""
    return sum(
        len(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


class SdkExporter:
    """Hands each batch to an exporter as ``MetricsData``, in the temporality that it prefers for counters, histograms.

    Histograms keep their explicit buckets, whatever aggregation it prefers. Each closed window of a Stat is a point of
    its gauges. Points of other libraries' SDK instruments are passed on as they were collected. All calls of the
    exporter come from one thread, one at a time.

    Args:
        exporter: any exporter; this destination shuts it down at the end.
        registry: where losses are counted.
        groups: the metric groups that it gets; None for all, and for what other libraries' instruments hold.
        name: of the destination, in logs and counts; by default the name of the exporter's class.
        pace: called between slices of the conversion.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        registry: Registry,
        groups: AbstractSet[str] | None = None,
        *,
        name: str | None = None,
        pace: Callable[[], None] | None = None,
    ) -> None:
        self._exporter = exporter
        self._groups = groups
        self._pace = pace
        self._deltas = Deltas(delta_kinds(exporter))
        self._queue = ExporterQueue(exporter, registry, name=name, timed_shutdown=True)
        takes_stats = groups is None or TORCH_MONITOR in groups
        self._windows = ClosedWindowReader(registry, name or type(exporter).__name__) if takes_stats else None
        self.flush = self._queue.flush

    def __call__(self, batch: Batch) -> None:
        """Queue one collection."""
        groups = self._groups
        metrics = batch.metrics if groups is None else [found for found in batch.metrics if found.scope in groups]
        now = batch.time_unix_nano
        if self._windows is not None:
            now = self._windows.time_of(metrics, now) if metrics else now
            metrics = list(self._windows.read(metrics, now, self._pace or _at_once))
        data = sdk_metrics(metrics, batch.resource, now, deltas=self._deltas, pace=self._pace)
        if groups is None:
            data = merge(data, batch.sdk)
        points = point_count(data)
        if data.resource_metrics:
            self.put(lambda: data, points)

    def put(self, collected: Callable[[], MetricsData], points: int) -> None:
        """Queue a collection that was made elsewhere, as it is.

        Args:
            collected: returns the data for the exporter; called in the thread that exports.
            points: how many data points that is.
        """

        def export(timeout: float) -> object:
            return self._exporter.export(collected(), timeout_millis=timeout * 1000)

        self._queue.put(export, points * _POINT_BYTES, items=points, kind="metrics")

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def close(self, timeout: float) -> None:
        """Export everything queued and shut the exporter down, within ``timeout`` seconds."""
        if self._windows is not None:
            self._windows.close()
        self._queue.close(timeout)

    def reset_in_child(self) -> None:
        """Forget the parent process's queue and last points, after a fork."""
        self._deltas.forget()
        if self._windows is not None:
            self._windows.forget()
        self._queue.reset_in_child()


def _at_once() -> None:
    """Do not rest."""


def delta_kinds(prefers: object) -> frozenset[Kind]:
    """Return the kinds of instruments that an exporter, or a reader, wants as differences."""
    from opentelemetry.sdk.metrics import Counter, Histogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    # The periodic reader of the SDK asks the same attribute; there is no public one.
    preferred = getattr(prefers, "_preferred_temporality", None) or {}
    kinds: dict[Kind, type] = {"counter": Counter, "histogram": Histogram}
    return frozenset(kind for kind, made in kinds.items() if preferred.get(made) is AggregationTemporality.DELTA)
