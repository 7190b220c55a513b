"""One query for both ways: the page has the names, labels and values that the collector makes of the same data."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.parser import text_string_to_metric_families

import servers
from tachograph.exporters.prometheus.format import TEXT
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.naming import Kind
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry

COLLECTOR = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:${env:OTLP_PORT}"}}}}
exporters: {prometheus: {endpoint: "127.0.0.1:${env:PAGE_PORT}"}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {receivers: [otlp], exporters: [prometheus]}}
"""
THE_SCRAPERS = {"job", "instance", "otel_scope_version", "otel_scope_schema_url"}
INSTRUMENTS: list[tuple[str, Kind, str]] = [
    ("loss", "gauge", ""),
    ("outer.<locals>.inner", "gauge", ""),
    ("9lives", "gauge", "1"),
    ("share", "gauge", "%"),
    ("sent", "gauge", "By"),
    ("rate", "gauge", "By/s"),
    ("checkpoint.success", "counter", ""),
    ("steps", "counter", "{step}"),
    ("read", "counter", "By"),
    ("step.duration", "histogram", "s"),
    ("load", "histogram", "ms"),
]
ATTRIBUTES = {
    "plain": 'a"b\\c\nd é',
    "with.dot": "x",
    "_under": "y",
    "9": "nine",
    "flag": True,
    "whole": 1.0,
    "part": 0.25,
    "tiny": 1.5e-7,
    "big": 1e21,
    "count": 12,
    "texts": ("a<b>&", 'é"', "\t\u2028\x01\x7f"),
    "nothing": (),
    "empty": "",
    "numbers": (1.0, 2.5),
    "flags": (True, False),
}
BOUNDARIES = [0.0001, 0.1, 1.0, 10.0, 1e6, 1.5e7]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: str) -> Series:
    """Return the values of a page by name and labels, without what belongs to the scraper."""
    return {
        (
            sample.name,
            frozenset((name, value) for name, value in sample.labels.items() if value and name not in THE_SCRAPERS),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name != "target_info"
    }


def recorded() -> Registry:
    """Return a registry that holds one metric of every kind and unit."""
    registry = Registry()
    for name, kind, unit in INSTRUMENTS:
        instrument = registry.group("train").declare(
            name, kind=kind, unit=unit, description="", boundaries=BOUNDARIES if kind == "histogram" else None
        )
        instrument.record(0.5 if kind != "counter" else 3, ATTRIBUTES)
        instrument.record(2)
    return registry


def send(metrics: list[MetricPoints], port: int) -> None:
    """Send metrics as OTLP by the SDK's own exporter."""
    now = time.time_ns()
    found = []
    for metric in metrics:
        data: Gauge | Sum | Histogram
        if metric.kind == "histogram":
            data = Histogram(
                [
                    HistogramDataPoint(
                        dict(point.attributes),
                        point.start_unix_nano,
                        now,
                        point.summary.count,
                        point.summary.total.value(),
                        [
                            after - before
                            for before, after in pairwise((0, *point.summary.at_most, point.summary.count))
                        ],
                        point.boundaries,
                        point.summary.minimum,
                        point.summary.maximum,
                    )
                    for point in metric.points
                    if isinstance(point, HistogramPoint)
                ],
                AggregationTemporality.CUMULATIVE,
            )
        else:
            points = [
                NumberDataPoint(dict(point.attributes), point.start_unix_nano, now, point.value)
                for point in metric.points
                if isinstance(point, NumberPoint)
            ]
            counter = metric.kind == "counter"
            data = Sum(points, AggregationTemporality.CUMULATIVE, True) if counter else Gauge(points)
        found.append(Metric(metric.name, metric.description, metric.unit, data))
    scope = ScopeMetrics(InstrumentationScope("train"), found, "")
    exporter = OTLPMetricExporter(f"http://127.0.0.1:{port}/v1/metrics")
    exporter.export(MetricsData([ResourceMetrics(Resource({"service.name": "t"}), [scope], "")]))
    exporter.shutdown()


@pytest.mark.otelcol
def test_the_same_series_as_behind_the_collector(tmp_path: Path) -> None:
    """Names, labels, buckets and values of every kind, unit and type of attribute are the collector's."""
    ports = {"OTLP_PORT": servers.free_port(), "PAGE_PORT": servers.free_port()}
    config = tmp_path / "collector.yaml"
    config.write_text(COLLECTOR)
    with servers.otelcol(config, {name: str(port) for name, port in ports.items()}):
        registry = recorded()
        metrics = registry.collect()
        send(metrics, ports["OTLP_PORT"])

        def collectors() -> Series:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports['PAGE_PORT']}/metrics", timeout=10) as answer:
                    return series(answer.read().decode())
            except urllib.error.URLError:
                return {}

        servers.wait_until(collectors)
        assert collectors() == series(Page({}, {}, registry).render(metrics, None, TEXT).decode())
