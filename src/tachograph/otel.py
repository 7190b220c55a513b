"""Building blocks for programs that set up the OpenTelemetry SDK or ``prometheus_client`` themselves.

Importing this module loads neither of them: each name is loaded when you first use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.exporters.handler_exporter import HandlerExporter
    from tachograph.exporters.prometheus.collector import PrometheusCollector
    from tachograph.exporters.windowed_reader import WindowedMetricReader, stat_views

__all__ = ["HandlerExporter", "PrometheusCollector", "WindowedMetricReader", "stat_views"]

_MODULE_OF_NAME = {
    "HandlerExporter": "tachograph.exporters.handler_exporter",
    "PrometheusCollector": "tachograph.exporters.prometheus.collector",
    "WindowedMetricReader": "tachograph.exporters.windowed_reader",
    "stat_views": "tachograph.exporters.windowed_reader",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
