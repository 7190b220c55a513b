"""``tachograph.elastic.api`` is ``tachograph.elastic`` itself: one module, one state, so a patch of either counts."""

from __future__ import annotations

import sys

from tachograph.elastic import (
    ConsoleMetricHandler,
    ConsoleMetricsHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    NullMetricsHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    initialize_metrics,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "ConsoleMetricsHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "NullMetricsHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

sys.modules[__name__] = sys.modules["tachograph.elastic"]
