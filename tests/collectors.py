"""Real OpenTelemetry Collectors with the files of ``collector-config``, and what they show."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from places import ROOT
from programs import events, requests
from servers import Server, free_port, otelcol
from tachograph.exporters.otlp.settings import OtlpSettings, Protocol, Signal, Temporality

CONFIGS = ROOT / "collector-config"
CONFIG = CONFIGS / "local.yaml"
# What gateway-remote-write.yaml asks of a Prometheus, and a scrape each second.
PROMETHEUS = "global: {scrape_interval: 1s}\nstorage: {tsdb: {out_of_order_time_window: 1h}}\n"
TOKEN = "a-t0ken-of-the-gateway"  # noqa: S105 - of a gateway on loopback that lives as long as a test


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


class Ports(NamedTuple):
    """Where a collector listens on 127.0.0.1; a new one on the same ports is found by whoever knew the old one."""

    http: int
    grpc: int
    prometheus: int
    health: int
    own: int

    @classmethod
    def free(cls) -> Ports:
        """Return ports on which nothing listens now."""
        return cls(*(free_port() for _ in cls._fields))

    def environment(self) -> dict[str, str]:
        """Return them as the variables that the files read."""
        names = ("OTLP_HTTP", "OTLP_GRPC", "PROMETHEUS", "HEALTH")
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, self, strict=False)}
        return {**addresses, "OWN_METRICS_PORT": str(self.own)}


def files(*names: str) -> list[str]:
    """Return the options that name these files of ``collector-config``."""
    return [f"--config={CONFIGS / name}.yaml" for name in names]


@contextmanager
def gateway(folder: Path, *layers: str, ports: Ports | None = None, **more: str) -> Iterator[Collector]:
    """Run a gateway that keeps its files in the folder.

    Args:
        folder: of this gateway alone; one that is started again there finds its queue.
        layers: such as ``gateway-remote-write``.
        ports: by default free ones.
        more: variables that the layers read.
    """
    at = ports or Ports.free()
    file = folder / "telemetry.jsonl"
    env = {**at.environment(), "GATEWAY_TOKEN": TOKEN, "TELEMETRY_FILE": str(file), "QUEUE": str(folder / "queue")}
    with otelcol(CONFIGS / "gateway.yaml", {**env, **more}, arguments=files(*layers)) as server:
        yield Collector(server, at.http, at.grpc, at.prometheus, file)


@contextmanager
def agent(folder: Path, to: int, *layers: str, ports: Ports | None = None, **more: str) -> Iterator[Collector]:
    """Run an agent that keeps its queue in the folder; it shows no metrics itself.

    Args:
        folder: of this agent alone; one that is started again there finds its queue.
        to: port of the gateway.
        layers: such as ``agent-scrape``.
        ports: by default free ones.
        more: variables that the layers read.
    """
    at = ports or Ports.free()
    env = {"GATEWAY": f"http://127.0.0.1:{to}", "GATEWAY_TOKEN": TOKEN, "QUEUE": str(folder / "queue")}
    with otelcol(CONFIGS / "agent.yaml", {**at.environment(), **env, **more}, arguments=files(*layers)) as server:
        yield Collector(server, at.http, at.grpc, at.prometheus, folder / "none")


JOB = """
import os, sys, time
import torch
import torch.distributed as dist
import tachograph
from tachograph import monitor

rank = int(os.environ["RANK"])
tachograph.start(interval=0.5, jsonl=f"rank-{rank}.jsonl", run_id="job", service_name="train")
steps = tachograph.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10], group="g")

@tachograph.prof(group="g")
def step(number):
    total = torch.ones(1)
    dist.all_reduce(total)
    tachograph.put_metric("loss", 1 / (number + 3) + rank, "g")
    tachograph.put_metric("checkpoint.success", rank + 1, "g")
    steps.record((0.05, 0.1, 5.0, 50.0)[number % 4])
    monitor.log_event(monitor.Event("stepped", time_of_day, {"number": number}))
    return total

import datetime
time_of_day = datetime.datetime.now()
dist.init_process_group("gloo")
end = time.monotonic() + float(sys.argv[1])
number, go = 0, torch.ones(1)
while go.item():
    step(number)
    number += 1
    time.sleep(0.02)
    go.fill_(float(time.monotonic() < end))
    dist.broadcast(go, 0)
os.write(1, f"{rank} {number}\\n".encode())  # one write: the lines of two ranks do not mix
dist.destroy_process_group()
"""


class Recorded(NamedTuple):
    """What the ranks of a job exported by themselves, beside what they sent.

    Args:
        numbers: of each gauge and counter, by name and rank, each export's time in milliseconds and value.
        counts: of each histogram, by name and rank, the last count and sum.
        events: how many events there are.
    """

    numbers: dict[tuple[str, str], dict[int, float]]
    counts: dict[tuple[str, str], tuple[int, float]]
    events: int


def recorded(folder: Path, scope: str = "g") -> Recorded:
    """Return what a job in this folder left in the files ``rank-*.jsonl``."""
    numbers: dict[tuple[str, str], dict[int, float]] = {}
    counts: dict[tuple[str, str], tuple[int, float]] = {}
    seen = 0
    for rank, path in ((path.stem.rpartition("-")[2], path) for path in sorted(folder.glob("rank-*.jsonl"))):
        seen += len(events(path))
        listed = (
            metric
            for request in requests(path)
            for resource in request.get("resourceMetrics", [])
            for of_scope in resource["scopeMetrics"]
            if of_scope["scope"].get("name") == scope
            for metric in of_scope["metrics"]
        )
        for metric in listed:
            for point in (metric.get("gauge") or metric.get("sum") or {"dataPoints": []})["dataPoints"]:
                at = int(point["timeUnixNano"]) // 1_000_000
                numbers.setdefault((metric["name"], rank), {})[at] = float(point.get("asInt", point.get("asDouble")))
            for point in metric.get("histogram", {"dataPoints": []})["dataPoints"]:
                counts[metric["name"], rank] = (int(point["count"]), float(point["sum"]))
    return Recorded(numbers, counts, seen)
