"""What tests of the front doors share: a handler that keeps its points, and what the exporters would get."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tachograph import elastic
from tachograph.elastic import MetricData, MetricHandler
from tachograph.recording import registry
from tachograph.recording.points import HistogramPoint
from tachograph.recording.wishes import wishes


class Kept(MetricHandler):
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.points: list[MetricData] = []

    def emit(self, metric_data: MetricData) -> None:
        """Keep one point."""
        self.points.append(metric_data)

    def plain(self) -> list[tuple[str, str, Any]]:
        """Return group, name and value of each point."""
        return [tuple(point[1:]) for point in self.points]


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Leave no handler behind."""
    default, fulfils = elastic._default_metrics_handler, wishes.fulfils
    yield
    elastic._default_metrics_handler, wishes.fulfils = default, fulfils
    elastic._metrics_map.clear()
    elastic.exporters.clear()


@pytest.fixture(name="group")
def fresh_group(request: pytest.FixtureRequest) -> str:
    """Return a group that no other test uses."""
    return f"{request.node.nodeid}@{time.monotonic_ns()}"


def recorded(group: str) -> dict[str, Any]:
    """Return what exporters get of a group: name to value or (count, sum); the series' attributes follow the name."""
    found: dict[str, Any] = {}
    for metric in registry.default.collect():
        if metric.scope != group:
            continue
        for point in metric.points:
            key = " ".join([metric.name, *(f"{k}={v}" for k, v in point.attributes)])
            if isinstance(point, HistogramPoint):
                found[key] = (point.summary.count, point.summary.total.value())
            else:
                found[key] = point.value
    return found


def errors(where: str) -> float:
    """Return how often we kept an error away from the program."""
    return recorded("tachograph").get(f"tachograph.errors where={where}", 0)


def calls(group: str) -> dict[str, int]:
    """Return function.calls of a group: "name outcome" or "name error.type" to the count; durations must agree."""
    found: dict[str, int] = {}
    durations = calls_counted = 0
    for key, value in recorded(group).items():
        metric, _, attributes = key.partition(" code.function.name=")
        if metric == "function.calls":
            found[attributes.replace(" outcome=failure", "").replace("outcome=", "").replace("error.type=", "")] = value
            calls_counted += value
        elif metric == "function.duration":
            durations += value[0]
    assert durations == calls_counted
    return found
