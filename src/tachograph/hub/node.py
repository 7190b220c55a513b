"""What the machine of a hub does: a process of the hub's own making, with the role ``node``."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.hardware import SHARED_MEMORY, observe
from tachograph.identity.resource import instance_id
from tachograph.recording.pace import Pace
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.runs.liveness import NODE

EVERY = 5.0  # seconds between two looks


class Node:
    """Observes the machine, and says it as a process does: in OTLP, so that it is kept and passed on like one's.

    Args:
        run: the run it belongs to.
        store: its file system is observed, beside the working directory's.
    """

    def __init__(self, run: str, store: Path) -> None:
        self._registry = Registry(enabled=True)
        self._encoder = MetricsEncoder("hub", self._registry)
        found: dict[str, AttributeValue] = {
            "service.name": "tachograph",
            "host.name": socket.gethostname(),
            "dl.run.id": run,
            "dl.role": NODE,
        }
        self._resource = {**found, "service.instance.id": instance_id(found)}
        self._hardware = observe(self._registry, node=True, process=False, folders=(".", str(store), SHARED_MEMORY))

    def requests(self) -> list[ExportMetricsServiceRequest]:
        """Return what the machine does now; it takes some milliseconds."""
        batch = Batch(self._registry.collect(Pace()), None, (), self._resource, time.time_ns())
        return [request for request, _ in self._encoder.requests(batch)]

    def close(self) -> None:
        """Observe no more."""
        self._hardware.close()
