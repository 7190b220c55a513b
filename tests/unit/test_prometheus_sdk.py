"""Other libraries' SDK instruments are on our page, each series once, and none of them can spoil it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    Gauge,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    NumberDataPoint,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.naming import Kind
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

CLASSIC = Format()
OPENMETRICS = Format(openmetrics=True, version="1.0.0", utf8=True)
RANK = {"dl_rank": "0"}


def collected(provider: MeterProvider, reader: InMemoryMetricReader) -> MetricsData:
    """Return what a provider's instruments hold, and end it."""
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return data


def rendered(data: MetricsData, registry: Registry, form: Format = CLASSIC) -> dict[tuple[str, str], float]:
    """Return the page's values by name and labels, the registry's own metrics left out."""
    metrics = [metric for metric in registry.collect() if metric.scope != "tachograph"]
    text = Page(RANK, {}, registry).render(metrics, data, form).decode()
    families = list((parse_openmetrics if form.openmetrics else parse_classic)(text))
    assert len({family.name for family in families}) == text.count("# TYPE") == text.count("# HELP")
    return {
        (sample.name, ",".join(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
        if family.name not in ("target", "target_info")
    }


def dropped(registry: Registry) -> dict[str, float]:
    """Return what was counted as dropped, by reason."""
    points = [point for metric in registry.collect() if metric.name == "tachograph.dropped" for point in metric.points]
    return {str(dict(point.attributes)["reason"]): point.value for point in points if isinstance(point, NumberPoint)}


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
def test_every_kind(form: Format) -> None:
    """Counters, gauges, up-down counters and histograms are shown with scope, rank and their own labels."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("library", "1.2")
    meter.create_counter("requests", "{request}", "Requests\nin all.").add(3, {"code": 200, "empty": ""})
    meter.create_up_down_counter("open.connections").add(-1)
    meter.create_observable_gauge("load", [lambda _: [Observation(0.5)]])
    histogram = meter.create_histogram("latency", "s", explicit_bucket_boundaries_advisory=[0.5, 10.0])
    histogram.record(0.5)
    ten = "10.0" if form.openmetrics else "10"
    scope = "dl_rank=0,otel_scope_name=library,otel_scope_version=1.2"
    assert rendered(collected(provider, reader), Registry(), form) == {
        ("requests_total", f"code=200,{scope}"): 3,
        ("open_connections", scope): -1,
        ("load", scope): 0.5,
        ("latency_seconds_bucket", f"dl_rank=0,le=0.5,{scope[10:]}"): 1,
        ("latency_seconds_bucket", f"dl_rank=0,le={ten},{scope[10:]}"): 1,
        ("latency_seconds_bucket", f"dl_rank=0,le=+Inf,{scope[10:]}"): 1,
        ("latency_seconds_sum", scope): 0.5,
        ("latency_seconds_count", scope): 1,
    }


def test_scopes_keep_their_labels() -> None:
    """One name in two scopes with different attributes keeps each its own, in one family, ours included."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("one").create_counter("calls", description="One.").add(1, {"first": "x", "other": "y"})
    provider.get_meter("two").create_counter("calls", description="Two.").add(2, {"second": "z"})
    registry = Registry()
    registry.group("train").declare("calls", kind="counter", unit="", description="", boundaries=None).record(4)
    assert rendered(collected(provider, reader), registry) == {
        ("calls_total", "dl_rank=0,otel_scope_name=train"): 4,
        ("calls_total", "dl_rank=0,first=x,otel_scope_name=one,other=y"): 1,
        ("calls_total", "dl_rank=0,otel_scope_name=two,second=z"): 2,
    }


def test_conflicts(caplog: pytest.LogCaptureFixture) -> None:
    """A series that is ours already, and a name that is another kind of metric, are left out and counted once."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("train")
    meter.create_gauge("loss").set(9)
    meter.create_counter("step").add(9)
    meter.create_histogram("time").record(9)
    registry = Registry()
    kinds: dict[str, Kind] = {"loss": "gauge", "step_total": "gauge", "time": "histogram"}
    for name, kind in kinds.items():
        registry.group("train").declare(name, kind=kind, unit="", description="", boundaries=None).record(0)
    data = collected(provider, reader)
    shared = Page({}, {}, registry)
    metrics = registry.collect()
    with caplog.at_level(logging.WARNING, "tachograph"):
        pages = {shared.render(metrics, data, CLASSIC) for _ in range(3)}
    [text] = pages
    assert b" 9" not in text
    assert len([record for record in caplog.records if "loss" in record.message]) == 1
    once = dropped(registry)
    shared.render(metrics, data, CLASSIC)
    assert dropped(registry) == once
    assert once == {"name_conflict": 3}


def test_exponential_histogram(caplog: pytest.LogCaptureFixture) -> None:
    """An exponential histogram, which fails the official exporter's whole page, is left out, counted and said once."""
    reader = InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("library")
    meter.create_histogram("size").record(1)
    meter.create_counter("calls").add(1)
    data = collected(provider, reader)
    registry = Registry()
    with caplog.at_level(logging.WARNING, "tachograph"):
        assert rendered(data, registry) == {("calls_total", "dl_rank=0,otel_scope_name=library"): 1}
    assert dropped(registry) == {"exponential_histogram": 1}
    assert ["size" in record.message for record in caplog.records] == [True]


def test_a_metric_that_cannot_be_exported() -> None:
    """A metric on which the official exporter fails is left out and counted; the others are shown."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("library").create_counter("calls").add(1)
    data = collected(provider, reader)
    broken = Metric("broken", "", "", Gauge([NumberDataPoint(None, 0, 0, 1)]))
    data.resource_metrics[0].scope_metrics.insert(0, ScopeMetrics(InstrumentationScope("odd"), [broken], ""))  # type: ignore[attr-defined]
    registry = Registry()
    assert rendered(data, registry) == {("calls_total", "dl_rank=0,otel_scope_name=library"): 1}
    assert dropped(registry) == {"not_exportable": 1}


@pytest.mark.process
def test_without_sdk_instruments_nothing_is_loaded() -> None:
    """A page of our own metrics loads neither the SDK nor prometheus_client."""
    program = (
        "import sys\n"
        "from tachograph.recording.registry import Registry\n"
        "from tachograph.exporters.prometheus.endpoint import Endpoint\n"
        "from tachograph.exporters.prometheus.page import Page\n"
        "from tachograph.exporters.prometheus.format import TEXT\n"
        "assert Page({'a': 'b'}, {}, Registry()).render([], None, TEXT)\n"
        "print(*(name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'prometheus_client', 'numpy'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
def test_an_attribute_that_utf8_cannot_carry_costs_no_page(form: Format) -> None:
    """A lone surrogate in an instrument's attribute is a question mark in its label, and all else is shown."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("library")
    meter.create_counter("odd").add(1, {"a": "\ud800"})
    meter.create_counter("good").add(2)
    found = rendered(collected(provider, reader), Registry(), form)
    assert {name: value for (name, _), value in found.items()} == {"odd_total": 1, "good_total": 2}
    assert any("a=?" in labels for _, labels in found)


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
def test_an_attribute_named_as_the_label_of_buckets(form: Format) -> None:
    """A histogram's own attribute ``le`` is ``exported_le``, as on ours: all buckets, sums and counts are there."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    made = provider.get_meter("library").create_histogram("theirs", explicit_bucket_boundaries_advisory=[1.0])
    for value, attributes in (
        (0.5, {"le": "x"}),
        (1.5, {"le": "y"}),
        (2.5, {"le": "y", "exported_le": "z"}),
        (4.0, {}),
    ):
        made.record(value, attributes)
    registry = Registry()
    found = rendered(collected(provider, reader), registry, form)
    scope = "dl_rank=0"
    more = {",exported_le=x": 0.5, ",exported_le=y": 1.5, ",exported_exported_le=y,exported_le=z": 2.5, "": 4.0}
    for labels, value in more.items():
        own = f"{scope}{labels},otel_scope_name=library"
        assert found["theirs_sum", own] == value
        assert found["theirs_count", own] == 1
        infinite = f"{scope}{labels},le=+Inf,otel_scope_name=library"
        assert found["theirs_bucket", infinite] == 1
    assert dropped(registry) == {}
