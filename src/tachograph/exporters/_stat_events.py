"""Windows of the OpenTelemetry SDK's instruments as the events that a ``Stat`` logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from opentelemetry.sdk.metrics.export import AggregationTemporality, Metric, MetricExportResult, MetricsData

from tachograph.exporters.console import series_name
from tachograph.exporters.handler_exporter import each_point, summary
from tachograph.monitor.event import Event, made
from tachograph.monitor.stat_window import STAT_EVENT
from tachograph.recording.registry import Registry
from tachograph.recording.values import as_float

_log = logging.getLogger("tachograph")


class StatEvents:
    """An exporter that calls a function with an event for each series of a window.

    Args:
        callback: takes the event; an error of it is counted, and logged once.
        registry: where its errors are counted.
    """

    def __init__(self, callback: Callable[[Event], Any], registry: Registry) -> None:
        self._callback = callback
        self._registry = registry
        self._said = False

    def export(self, metrics_data: MetricsData, **_: Any) -> MetricExportResult:
        """Call it with every event."""
        for _scope, metric, point in each_point(metrics_data):
            end = point.time_unix_nano
            timestamp = datetime.fromtimestamp(end / 1e9)  # noqa: DTZ006 - local, as torch.monitor's
            try:
                self._callback(made(STAT_EVENT, end, timestamp, _event_data(metric, point)))
            except Exception:  # noqa: BLE001 - the border to the user's function
                self._registry.count_error("handler")
                if not self._said:
                    self._said = True
                    _log.warning("%r raised (further errors are counted)", self._callback, exc_info=True)
        return MetricExportResult.SUCCESS


def _event_data(metric: Metric, point: Any) -> dict[str, Any]:
    attributes = dict(point.attributes or {})
    if hasattr(point, "value"):
        delta = getattr(metric.data, "aggregation_temporality", None) is AggregationTemporality.DELTA
        found = [(".sum" if delta else ".value", point.value)]
    else:
        found = list(summary(point))
        if point.count:
            found.append((".mean", as_float(point.sum) / point.count))
    return {series_name(metric.name + suffix, attributes): as_float(value) for suffix, value in found}
