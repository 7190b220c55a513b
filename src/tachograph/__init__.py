"""Training telemetry on OpenTelemetry: recorded in a hundred nanoseconds a value, scraped by Prometheus or shipped.

Importing this package loads no more than itself: each name is loaded at its first use, the OpenTelemetry SDK only by
:func:`start`.
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tachograph.identity.torch_compile import hide_recording_functions
from tachograph.recording.pulse_source import pulse_source
from tachograph.recording.switch import switch
from tachograph.recording.wishes import wishes
from tachograph.version import __version__

if TYPE_CHECKING:
    from tachograph import elastic, logger, metric, monitor, runs, testing
    from tachograph.elastic import (
        ConsoleMetricHandler,
        MetricData,
        MetricHandler,
        NullMetricHandler,
        configure,
        prof,
        put_metric,
    )
    from tachograph.exporters.handler_exporter import HandlerExporter
    from tachograph.exporters.prometheus.collector import PrometheusCollector
    from tachograph.exporters.windowed_reader import WindowedMetricReader, stat_views
    from tachograph.logger import MetricsLogger
    from tachograph.metric import Metric, MetricGroup, MetricScale, config, log, progress, summary, task, workflow
    from tachograph.pipeline import Pipeline, shutdown, start
    from tachograph.recording.instrument import Instrument
    from tachograph.recording.registry import declare

__all__ = [
    "ConsoleMetricHandler",
    "HandlerExporter",
    "Instrument",
    "Metric",
    "MetricData",
    "MetricGroup",
    "MetricHandler",
    "MetricScale",
    "MetricsLogger",
    "NullMetricHandler",
    "Pipeline",
    "PrometheusCollector",
    "WindowedMetricReader",
    "__version__",
    "config",
    "configure",
    "declare",
    "elastic",
    "log",
    "logger",
    "metric",
    "monitor",
    "prof",
    "progress",
    "put_metric",
    "runs",
    "shutdown",
    "start",
    "stat_views",
    "summary",
    "task",
    "testing",
    "workflow",
]

_HOME = {
    "ConsoleMetricHandler": "elastic",
    "HandlerExporter": "exporters.handler_exporter",
    "Instrument": "recording.instrument",
    "Metric": "metric",
    "MetricData": "elastic",
    "MetricGroup": "metric",
    "MetricHandler": "elastic",
    "MetricScale": "metric",
    "MetricsLogger": "logger",
    "NullMetricHandler": "elastic",
    "Pipeline": "pipeline",
    "PrometheusCollector": "exporters.prometheus.collector",
    "WindowedMetricReader": "exporters.windowed_reader",
    "config": "metric",
    "configure": "elastic",
    "declare": "recording.registry",
    "log": "metric",
    "prof": "elastic",
    "progress": "metric",
    "put_metric": "elastic",
    "shutdown": "pipeline",
    "start": "pipeline",
    "stat_views": "exporters.windowed_reader",
    "summary": "metric",
    "task": "metric",
    "workflow": "metric",
}


def _watch() -> None:
    """Publish recorded values through the MeterProvider that the program has set, or sets later."""
    from tachograph.pipeline import watch

    watch(lambda: import_module("tachograph.pipeline.lifecycle").join())


hide_recording_functions()
switch.on_begin(_watch)
wishes.loaded_by(lambda: import_module("tachograph.pipeline.lifecycle"))
pulse_source.loaded_by(lambda: import_module("tachograph.diagnosis.pulse").Pulse())


def _at_last() -> None:
    """Deliver the values that exit handlers have recorded, or say that nothing does: registered first, called last."""
    lifecycle = sys.modules.get("tachograph.pipeline.lifecycle")
    if lifecycle is not None:
        lifecycle.at_last()
    elif "tachograph.recording.registry" in sys.modules:
        from tachograph.pipeline._unheard import say_undelivered

        say_undelivered()


def _at_last_of_worker() -> None:
    """Do the same in a child of multiprocessing, which may end without exit handlers."""
    if "tachograph.pipeline.lifecycle" not in sys.modules:  # else that has a handler of its own
        _at_last()


atexit.register(_at_last)
if "multiprocessing.util" in sys.modules:  # this may be such a child, which forgets its handlers before it works
    _util = sys.modules["multiprocessing.util"]
    _util.register_after_fork(switch, lambda _: _util.Finalize(None, _at_last_of_worker, exitpriority=0))


def __getattr__(name: str) -> Any:
    if name in {"elastic", "logger", "metric", "monitor", "runs", "testing"}:
        return import_module(f"tachograph.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tachograph' has no attribute {name!r}")
    found = getattr(import_module(f"tachograph.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
