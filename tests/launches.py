"""Jobs under ``tachograph run``, and what their processes sent to a receiver of OTLP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from programs import environment, write
from receivers import Receiver

RUN = (sys.executable, "-m", "tachograph", "run")


class Arrived(NamedTuple):
    """One metric or one event, and the process that it came from."""

    resource: dict[str, Any]
    name: str
    attributes: dict[str, Any]
    value: float


def base(receiver: Receiver) -> str:
    """Return what to give as ``--endpoint``."""
    return receiver.url.removesuffix("/v1/metrics")


def run(
    folder: Path, *command: str, options: tuple[str, ...] = (), timeout: float = 60, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; it may fail, which the test is to look at."""
    return subprocess.run(
        [*RUN, *options, "--", *command],
        cwd=folder,
        env=environment(folder, **more),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_program(
    folder: Path, program: str, *arguments: str, options: tuple[str, ...] = (), timeout: float = 60, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program of a test as a job."""
    path = write(folder, program)
    return run(folder, sys.executable, str(path), *arguments, options=options, timeout=timeout, **more)


def metrics(receiver: Receiver) -> list[Arrived]:
    """Return every point of every gauge and counter that has arrived, in order."""
    return [
        Arrived(
            _plain(resource.resource.attributes),
            metric.name,
            _plain(point.attributes),
            point.as_double or float(point.as_int),
        )
        for path, _, body in list(receiver.requests)
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in [*metric.gauge.data_points, *metric.sum.data_points]
    ]


def events(receiver: Receiver) -> list[Arrived]:
    """Return every event that has arrived, in order."""
    return [
        Arrived(_plain(resource.resource.attributes), record.event_name, _plain(record.attributes), 0.0)
        for path, _, body in list(receiver.requests)
        if path == "/v1/logs"
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def ends(receiver: Receiver) -> list[str]:
    """Return the reasons of the processes that said that they end."""
    return [event.attributes["reason"] for event in events(receiver) if event.name == "tachograph.process.end"]


def _plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in attributes}
