"""Programs with an OpenTelemetry MeterProvider of their own, joined or fed; and what their readers collect."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
)

from tachograph.exporters.external_provider import ExternalProvider
from tachograph.recording.registry import Registry

Series = dict[tuple[Any, ...], Any]


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class OtherReader(InMemoryMetricReader):
    """A reader that collects in a way of its own: it cannot be known, and has to be replayed into."""

    def collect(self, timeout_millis: float = 10_000) -> None:  # type: ignore[misc]
        """Collect."""
        super().collect(timeout_millis)


class Program:
    """A program with OpenTelemetry of its own, and a registry."""

    def __init__(self, reader: MetricReader | None = None, **provider: Any) -> None:
        self.reader: Any = InMemoryMetricReader() if reader is None else reader
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False, **provider)
        self.registry = Registry(enabled=True)
        self.clock = Clock()
        self.external: list[ExternalProvider] = []

    def join(self) -> ExternalProvider:
        """Publish the registry through the program's provider."""
        external = ExternalProvider(self.provider, self.registry, clock=self.clock, pace=lambda: None)
        self.external.append(external)
        return external

    def collected(self) -> Series:
        """Return what the program's own reader collects now."""
        return series(self.reader.get_metrics_data())

    def end(self) -> None:
        """Leave, and shut the provider down."""
        for external in self.external:
            external.close()
        self.provider.shutdown()


def series(data: MetricsData | None) -> Series:
    """Return every point by (scope, name, attributes...)."""
    found: Series = {}
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    key = (scope.scope.name, metric.name, *sorted((point.attributes or {}).items()))
                    assert key not in found, f"{key} is there twice"
                    found[key] = point
    return found


def dropped(points: Series, reason: str) -> int:
    """Return how many values were counted as not replayed, for this reason."""
    point = points.get(("tachograph", "tachograph.dropped", ("destination", "sdk"), ("reason", reason)))
    return point.value if point is not None else 0


class Collector(MetricExporter):
    """An exporter that keeps what it was given."""

    def __init__(self, **preferred: Any) -> None:
        super().__init__(**preferred)
        self.received: list[Series] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Keep it."""
        del timeout_millis, kwargs
        self.received.append(series(metrics_data))
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return True: nothing waits."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """End."""
        del timeout_millis, kwargs
