"""A real OpenTelemetry Collector with ``collector-config/local.yaml``, and what it shows."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from servers import Server, free_port, otelcol
from tachograph.otlp.settings import OtlpSettings, Protocol, Signal, Temporality

CONFIG = Path(__file__).resolve().parents[1] / "collector-config" / "local.yaml"


@dataclass
class Collector:
    """A running collector and where to reach it."""

    server: Server
    http: int
    grpc: int
    prometheus: int
    file: Path

    def settings(self, signal: Signal, protocol: Protocol, temporality: Temporality = "cumulative") -> OtlpSettings:
        """Return settings to send a signal to it."""
        if protocol == "grpc":
            return OtlpSettings(signal, protocol, f"http://127.0.0.1:{self.grpc}", temporality=temporality)
        return OtlpSettings(
            signal, protocol, f"http://127.0.0.1:{self.http}/v1/{signal}", compression="gzip", temporality=temporality
        )

    def page(self, accept: str = "text/plain") -> str:
        """Return what its Prometheus exporter shows."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.prometheus}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as response:
            return str(response.read().decode())

    def samples(self, job: str) -> list[tuple[str, dict[str, str], float]]:
        """Return the samples of one service."""
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
            if sample.labels.get("job") == job
        ]

    def values(self, job: str, scope: str = "g") -> dict[str, float]:
        """Return the samples of one service and scope that have no ``le``."""
        found = [sample for sample in self.samples(job) if "le" not in sample[1]]
        return {name: value for name, labels, value in found if labels.get("otel_scope_name") == scope}


@contextmanager
def running(folder: Path) -> Iterator[Collector]:
    """Run a collector that writes spans and logs into the folder."""
    http, grpc, prometheus = free_port(), free_port(), free_port()
    file = folder / "telemetry.jsonl"
    env = {
        "OTLP_HTTP": f"127.0.0.1:{http}",
        "OTLP_GRPC": f"127.0.0.1:{grpc}",
        "PROMETHEUS": f"127.0.0.1:{prometheus}",
        "TELEMETRY_FILE": str(file),
    }
    with otelcol(CONFIG, env) as server:
        yield Collector(server, http, grpc, prometheus, file)
