"""The registry as the OpenTelemetry SDK's own classes, and any ``MetricExporter`` of the SDK as a destination.

The SDK is imported when the first batch is converted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tachograph.batch import Batch
from tachograph.deltas import Deltas
from tachograph.naming import Kind
from tachograph.outbox import Outbox
from tachograph.own_metrics import TORCH_MONITOR
from tachograph.points import AttributeValue, HistogramPoint, MetricPoints, NumberPoint
from tachograph.registry import Registry
from tachograph.values import Number, as_float, fits_int64
from tachograph.window_reader import WindowReader

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData

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
        metrics: what the registry returned.
        resource: attributes of the process.
        time_unix_nano: when it was collected: the time of the points that have none of their own.
        deltas: what this reader has seen; without it, points are cumulative.
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
    scope_metrics = [ScopeMetrics(InstrumentationScope(name), found, "") for name, found in scopes.items()]
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
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

    attributes = dict(point.attributes)
    if isinstance(point, NumberPoint):
        return NumberDataPoint(attributes, point.start_unix_nano, point.time_unix_nano or now, _encodable(point.value))
    spread = point.spread
    at_most = (0, *spread.at_most, spread.count)
    return HistogramDataPoint(
        attributes,
        point.start_unix_nano,
        now,
        spread.count,
        _encodable(spread.total.value()),
        [upper - lower for lower, upper in pairwise(at_most)],
        point.boundaries,
        _known(spread.minimum),
        _known(spread.maximum),
        [Exemplar({}, seen.value, seen.time_unix_nano, seen.span_id, seen.trace_id) for seen in point.exemplars],
    )


def _encodable(value: Number) -> Number:
    """Return what OTLP can carry: an integer beyond 64 bits would lose the whole batch of whoever encodes it."""
    return value if fits_int64(value) else as_float(value)


def _known(extreme: float) -> Any:
    """Return an extreme, or None where it is not known: OTLP leaves it out then, though the SDK's class says float."""
    return extreme if extreme - extreme == 0 else None


def merge(ours: MetricsData, sdk: MetricsData | None) -> MetricsData:
    """Return both in one; scopes of equal resources come under one resource."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics

    if sdk is None:
        return ours
    merged = list(ours.resource_metrics)
    for theirs in sdk.resource_metrics:
        for index, found in enumerate(merged):
            if found.resource.attributes == theirs.resource.attributes:
                scopes = [*found.scope_metrics, *theirs.scope_metrics]
                merged[index] = ResourceMetrics(found.resource, scopes, found.schema_url)
                break
        else:
            merged.append(theirs)
    return MetricsData(merged)


class SdkExporter:
    """Hands each batch to an exporter as ``MetricsData``, in the temporality that it prefers for counters, histograms.

    Histograms keep their explicit buckets, whatever aggregation it prefers. Each closed window of a Stat is a point of
    its gauges. What the SDK instruments of other libraries hold is passed on as it was collected. All calls of the
    exporter come from one thread, one at a time.

    Args:
        exporter: any exporter; this destination shuts it down at the end.
        registry: where losses are counted, under the name of the exporter's class.
        groups: the metric groups that it gets; None for all, and for what other libraries' instruments hold.
        pace: called between slices of the conversion.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        registry: Registry,
        groups: AbstractSet[str] | None = None,
        *,
        pace: Callable[[], None] | None = None,
    ) -> None:
        self._exporter = exporter
        self._groups = groups
        self._pace = pace
        self._deltas = Deltas(_delta_kinds(exporter))
        name = type(exporter).__name__
        self._outbox = Outbox(name, registry)
        takes_stats = groups is None or TORCH_MONITOR in groups
        self._windows = WindowReader(registry, name) if takes_stats else None

    def __call__(self, batch: Batch) -> None:
        """Queue one collection."""
        groups = self._groups
        metrics = batch.metrics if groups is None else [found for found in batch.metrics if found.scope in groups]
        if self._windows is not None:
            metrics = list(self._windows.read(metrics, batch.time_unix_nano, self._pace or _at_once))
        data = sdk_metrics(metrics, batch.resource, batch.time_unix_nano, deltas=self._deltas, pace=self._pace)
        if groups is None:
            data = merge(data, batch.sdk)
        points = sum(len(metric.points) for metric in metrics)
        if data.resource_metrics:
            self._outbox.put(lambda timeout: self._export(data, timeout), points * _POINT_BYTES, items=points)

    def _export(self, data: MetricsData, timeout: float) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        result = self._exporter.export(data, timeout_millis=timeout * 1000)
        if result is MetricExportResult.FAILURE:
            raise RuntimeError(f"{type(self._exporter).__name__} could not export")

    def flush(self, timeout: float) -> bool:
        """Export what is queued, and ask the exporter to flush; True where both were done in time."""
        deadline = time.monotonic() + timeout
        flushed = self._outbox.flush(timeout)
        self._outbox.put(
            lambda left: self._flush_exporter(min(left, max(deadline - time.monotonic(), 0.001))), 0, items=0
        )
        return self._outbox.flush(max(deadline - time.monotonic(), 0.0)) and flushed

    def _flush_exporter(self, timeout: float) -> None:
        force_flush = getattr(self._exporter, "force_flush", None)
        if force_flush is not None and not force_flush(timeout_millis=timeout * 1000):
            raise RuntimeError(f"{type(self._exporter).__name__} could not flush")

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._outbox.delivered

    def close(self, timeout: float) -> None:
        """Export what is queued and shut the exporter down, within ``timeout`` seconds."""
        if self._windows is not None:
            self._windows.close()
        shutdown = getattr(self._exporter, "shutdown", None)
        if shutdown is not None:
            self._outbox.put(lambda left: shutdown(timeout_millis=min(left, timeout) * 1000), 0, items=0)
        self._outbox.close(timeout)

    def reset_in_child(self) -> None:
        """Forget what the parent process has queued and seen, after a fork."""
        self._deltas.forget()
        if self._windows is not None:
            self._windows.forget()
        self._outbox.reset_in_child()


def _at_once() -> None:
    """Do not rest."""


def _delta_kinds(exporter: MetricExporter) -> frozenset[Kind]:
    from opentelemetry.sdk.metrics import Counter, Histogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    # The periodic reader of the SDK asks the same attribute; there is no public one.
    preferred = getattr(exporter, "_preferred_temporality", None) or {}
    kinds: dict[Kind, type] = {"counter": Counter, "histogram": Histogram}
    return frozenset(kind for kind, made in kinds.items() if preferred.get(made) is AggregationTemporality.DELTA)
