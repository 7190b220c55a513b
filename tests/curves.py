"""What tests of Metric share: an execution with a clock and a journal of its own, what it logged, and a device."""

from __future__ import annotations

from typing import Any

from tachograph.metric.execution import Execution
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


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

    def dropped(self) -> dict[str, Any]:
        """Return how much was dropped, by reason."""
        return dropped(self.registry)


def dropped(registry: Registry) -> dict[str, Any]:
    """Return how much was dropped, by reason."""
    return {
        str(dict(point.attributes)["reason"]): point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
    }


class Tensor:
    """Takes the place of a CUDA tensor of one element, and of its copy in the host's memory.

    Attributes:
        there: whether the copy has arrived.
        failed: whether the device has failed, so that the copy cannot be read.
    """

    class device:  # noqa: N801 - as torch has it
        """The device it is on."""

        type = "cuda"

    def __init__(self, value: float) -> None:
        self.there = self.failed = False
        self._value = value

    def query(self) -> bool:
        """Tell whether the copy has arrived, as an event does."""
        return self.there

    def item(self) -> float:
        """Return the copy."""
        assert self.there
        if self.failed:
            raise RuntimeError("an illegal memory access was encountered")
        return self._value


def copied(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Take the place of :func:`tachograph.recording.values.leave_device`."""
    return tensor, tensor
