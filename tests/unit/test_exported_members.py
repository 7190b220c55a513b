"""The names that users import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import tachograph

PUBLIC = {
    "tachograph": [
        "Metric",
        "MetricGroup",
        "MetricScale",
        "MetricsLogger",
        "__version__",
        "config",
        "configure",
        "declare",
        "elastic",
        "log",
        "logger",
        "metric",
        "monitor",
        "otel",
        "prof",
        "progress",
        "put_metric",
        "runs",
        "shutdown",
        "start",
        "summary",
        "task",
        "testing",
        "workflow",
    ],
    "tachograph.elastic": [
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
    ],
    "tachograph.logger": [
        "MertricsLoggerWriteOptions",
        "MetricsLogger",
        "MetricsLoggerWriteOptions",
        "get_gpu_metrics",
        "get_system_metrics",
        "process_value",
    ],
    "tachograph.metric": [
        "Instrument",
        "Metric",
        "MetricGroup",
        "MetricScale",
        "config",
        "log",
        "progress",
        "summary",
        "task",
        "workflow",
    ],
    "tachograph.monitor": [
        "Aggregation",
        "COUNT",
        "Event",
        "EventHandlerHandle",
        "MAX",
        "MEAN",
        "MIN",
        "P50",
        "P90",
        "P99",
        "STAT_EVENT",
        "STDDEV",
        "SUM",
        "Stat",
        "TensorboardEventHandler",
        "VALUE",
        "_WaitCounter",
        "_WaitCounterTracker",
        "data_value_t",
        "log_event",
        "register_event_handler",
        "unregister_event_handler",
    ],
    "tachograph.otel": [
        "HandlerExporter",
        "PrometheusCollector",
        "WindowedMetricReader",
        "stat_views",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_all_names(module: str) -> None:
    """Every public name is there, is listed, and no other one is."""
    found = import_module(module)
    assert sorted(found.__all__) == PUBLIC[module]
    assert all(getattr(found, name) is not None for name in PUBLIC[module])
    assert set(PUBLIC[module]) <= set(dir(found))


def test_the_root_shows_only_what_users_type() -> None:
    """``dir(tachograph)`` is the list above, whatever else of the package is loaded."""
    import_module("tachograph.exporters")
    assert dir(tachograph) == PUBLIC["tachograph"]


@pytest.mark.parametrize("name", ["MetricHandler", "Stat", "PrometheusCollector", "Pipeline", "Instrument"])
def test_the_root_has_no_alias(name: str) -> None:
    """A name that belongs to a module is not at the root, too."""
    assert not hasattr(tachograph, name)


def test_root_functions_are_those_of_elastic() -> None:
    """The root has the very functions of tachograph.elastic."""
    assert tachograph.prof is tachograph.elastic.prof
    assert tachograph.put_metric is tachograph.elastic.put_metric
    assert tachograph.configure is tachograph.elastic.configure


def test_api_is_the_same_module() -> None:
    """tachograph.elastic.api can be imported in every way, and shares its state."""
    from tachograph.elastic import api

    assert api is tachograph.elastic
    assert import_module("tachograph.elastic.api") is api
    assert api.api is api


def test_no_such_name() -> None:
    """A wrong name is an AttributeError that names it."""
    with pytest.raises(AttributeError, match="'speed'"):
        tachograph.speed  # noqa: B018 - the access is the test


@pytest.mark.process
@pytest.mark.parametrize(
    "statement",
    [
        "import tachograph",
        "from tachograph import prof, put_metric, configure, declare; put_metric('a', 1)",
        "from tachograph.monitor import *; Stat('a', [MEAN, P99], 60.0).add(1)",
        "from tachograph.logger import *; MetricsLogger().log('a', {'b': 1}, {'c': [1.0]})",
        "from tachograph.otel import PrometheusCollector; PrometheusCollector().describe()",
        "from tachograph.metric import *; Metric('a').record(1); list(progress([1])); task(print)()",
    ],
)
def test_import_loads_nothing_heavy(statement: str) -> None:
    """Importing and recording load neither OpenTelemetry, NumPy, nor torch."""
    program = f"{statement}; import sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "tachograph" in loaded
    assert not {"opentelemetry", "numpy", "torch", "prometheus_client", "grpc", "tqdm"} & set(loaded)
