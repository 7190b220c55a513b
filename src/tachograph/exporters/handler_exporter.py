"""A torchelastic handler as an exporter of the OpenTelemetry SDK, for a periodic reader of the SDK or for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import Aggregation

from tachograph.elastic.handlers import Emits, MetricData
from tachograph.exporters.console import series_name
from tachograph.recording import registry as registries
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

_NANOS = 1_000_000_000


class HandlerExporter(MetricExporter):
    """Gives a handler every data point of every collection, as ``MetricData(timestamp, group_name, name, value)``.

    The timestamp is that of the collection, in seconds since the epoch; the group is the instrumentation scope's name.
    A point with attributes carries them in its name, since MetricData has no other place and series must not be mixed
    up: ``loss{rank=0}``. A gauge or a counter is one point. A histogram, explicit or exponential, is ``<name>.count``
    and ``<name>.sum``, and, where they are known, ``<name>.min`` and ``<name>.max``; a handler has no use for buckets.

    A handler that raises loses that point: it is counted (``tachograph.errors``) and logged once. A handler's
    ``flush()``, where it has one, is called at ``force_flush()`` and ``shutdown()``; the handler stays the program's,
    and is never closed.

    Args:
        handler: has ``emit(metric_data)``.
        preferred_temporality: by instrument class, as every ``MetricExporter`` has it; cumulative without it.
        preferred_aggregation: by instrument class, likewise.
        registry: where its errors are counted.

    Raises:
        TypeError: the handler has no ``emit``, or is a class.
    """

    def __init__(
        self,
        handler: Emits,
        *,
        preferred_temporality: dict[type, AggregationTemporality] | None = None,
        preferred_aggregation: dict[type, Aggregation] | None = None,
        registry: Registry = registries.default,
    ) -> None:
        if isinstance(handler, type):
            raise TypeError(f"HandlerExporter needs an instance: write {handler.__name__}(), not {handler.__name__}")
        if not callable(getattr(handler, "emit", None)):
            raise TypeError(
                "HandlerExporter needs a MetricHandler (an object with emit(metric_data)), "
                f"not {type(handler).__name__}: {handler!r:.100}"
            )
        super().__init__(preferred_temporality, preferred_aggregation)
        self._handler = handler
        self._registry = registry
        self._log_once = LogOnce()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Emit every point, in the calling thread; errors of the handler are no failure of the export."""
        del timeout_millis, kwargs
        emit = self._handler.emit
        for scope, metric, point in each_point(metrics_data):
            timestamp, attributes = point.time_unix_nano / _NANOS, dict(point.attributes or {})
            for suffix, value in (("", point.value),) if hasattr(point, "value") else summary(point):
                name = series_name(metric.name + suffix, attributes)
                self._guarded(emit, MetricData(timestamp, scope, name, value))
        return MetricExportResult.SUCCESS

    def _guarded(self, call: Callable[..., Any], *arguments: MetricData) -> bool:
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - the border to the user's handler
            self._registry.count_error("handler")
            self._log_once(
                "raised",
                "%r raised (further warnings are suppressed; see tachograph_errors_total on /metrics)",
                self._handler,
                exc_info=True,
            )
            return False
        return True

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Call the handler's ``flush()``, where it has one; False where that raised. Nothing waits here."""
        del timeout_millis
        flush = getattr(self._handler, "flush", None)
        return self._guarded(flush) if callable(flush) else True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Flush the handler; it is not closed, since the program may use it elsewhere."""
        del kwargs
        self.force_flush(timeout_millis)


def each_point(metrics_data: MetricsData) -> Iterator[tuple[str, Metric, Any]]:
    """Yield every data point of a collection, with the name of its scope and its metric."""
    for resource in metrics_data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield scope.scope.name, metric, point


def summary(point: Any) -> Iterator[tuple[str, Any]]:
    """Yield suffix and value of a histogram's count and sum, and of the extremes that are known.

    An SDK's histogram that records none has the infinities that it began with.
    """
    yield ".count", point.count
    yield ".sum", point.sum
    for suffix, value in ((".min", point.min), (".max", point.max)):
        if point.count and value is not None and value - value == 0:
            yield suffix, value
