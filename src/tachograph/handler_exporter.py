"""A torchelastic handler as an exporter of the OpenTelemetry SDK, for a periodic reader of the SDK or for ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from tachograph import registry as registries
from tachograph.console import series_name
from tachograph.elastic.handlers import Emits, MetricData
from tachograph.registry import Registry

_NANOS = 1_000_000_000

_log = logging.getLogger("tachograph")


class HandlerExporter(MetricExporter):
    """Gives a handler every data point of every collection, as ``MetricData(timestamp, group_name, name, value)``.

    The timestamp is that of the collection, in seconds since the epoch; the group is the instrumentation scope's name.
    A point with attributes carries them in its name, since MetricData has no other place and series must not be mixed
    up: ``loss{rank=0}``. A gauge or a counter is one point. A histogram is ``<name>.count`` and ``<name>.sum``, and,
    where they are known, ``<name>.min`` and ``<name>.max``; a handler has no use for buckets.

    A handler that raises loses that point: it is counted (``tachograph.errors``) and logged once.

    Args:
        handler: whatever has ``emit(metric_data)``.
        registry: where its errors are counted.
    """

    def __init__(self, handler: Emits, *, registry: Registry = registries.default) -> None:
        super().__init__()
        self._handler = handler
        self._registry = registry
        self._said = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Emit every point, in the calling thread; errors of the handler are no failure of the export."""
        del timeout_millis, kwargs
        for point in _points(metrics_data):
            self._emit(point)
        return MetricExportResult.SUCCESS

    def _emit(self, point: MetricData) -> None:
        try:
            self._handler.emit(point)
        except Exception:  # noqa: BLE001 - the border to the user's handler
            self._registry.count_error("handler")
            if not self._said:
                self._said = True
                _log.warning("%r raised (further errors are counted)", self._handler, exc_info=True)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return True: nothing waits here."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Do nothing: a handler has no end of its own."""
        del timeout_millis, kwargs


def _points(metrics_data: MetricsData) -> Iterator[MetricData]:
    for resource in metrics_data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    timestamp = point.time_unix_nano / _NANOS
                    for suffix, value in _values(point):
                        name = series_name(metric.name + suffix, dict(point.attributes or {}))
                        yield MetricData(timestamp, scope.scope.name, name, value)


def _values(point: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(point, "value"):
        yield "", point.value
        return
    yield ".count", point.count
    yield ".sum", point.sum
    for suffix, value in ((".min", point.min), (".max", point.max)):
        if point.count and value is not None:
            yield suffix, value
