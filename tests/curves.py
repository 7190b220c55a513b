"""What tests of Metric share: an execution with a clock and a journal of its own, and what it logged."""

from __future__ import annotations

from typing import Any

from tachograph.execution import Execution
from tachograph.journal import Journal
from tachograph.registry import Registry


class Bench(Execution):
    """An execution whose clock stands still until it is moved."""

    def __init__(self, *, branch: int = 0, limit: int = 65_536) -> None:
        self.now = 100.0
        registry = Registry(enabled=True)
        super().__init__(
            journal=Journal(registry, limit=limit), registry=registry, clock=lambda: self.now, branch=branch
        )

    def logged(self, name: str = "tachograph.metric") -> list[dict[str, Any]]:
        """Return the attributes of the points, or of other events, that were logged since the last look at any."""
        return [dict(event.attributes) for event in self.journal.drain() if event.name == name]

    def pairs(self) -> list[tuple[float, float]]:
        """Return x and value of each point that was logged since the last look."""
        return [(point["x"], point["value"]) for point in self.logged()]

    def gauges(self) -> dict[tuple[str, str], tuple[str, Any]]:
        """Return unit and value of each gauge, by scope and name."""
        return {
            (metric.scope, metric.name): (metric.unit, point.value)
            for metric in self.registry.collect()
            if metric.kind == "gauge"
            for point in metric.points
        }
