"""Run the processes of the table: one per destination for all rows that exit normally, and one per other row."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent import futures
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import hubs
from arrived import Arrived, Distribution, Emitted, Logged, Page, from_otlp
from kept import EMITTED, HANDED, LOGGED, lines
from programs import environment
from receivers import receiving
from rows import Row
from tachograph import runs
from tachograph.hub._series import HubInstrument, HubSeries
from tachograph.logger.point import FIELDS, TAGS
from tachograph.runs.buckets import Buckets
from tachograph.runs.file import RunFile
from ways import WayName

JOB = Path(__file__).parent / "job.py"
TIMEOUT = 90
RUN = "conformance"
ENDS = {"exit": 0, "exception": 1, "sigterm": -signal.SIGTERM}
METRICS, LOGS = "metrics.v1.MetricsService", "logs.v1.LogsService"


class FailedError(Exception):
    """A process did not end as expected."""


def arrived(way: WayName, row: Row) -> Arrived:
    """Return the data of a row's process that arrived at a destination."""
    return _arrived(way, "" if row.ends == "exit" else row.name, row.ends)


@cache
def _arrived(way: WayName, name: str, ends: str) -> Arrived:
    with TemporaryDirectory() as made:
        folder = Path(made)
        try:
            found = {"http": _http, "grpc": _grpc, "hub": _hub}.get(way, _here)(folder, way, name, ends)
        except (FailedError, subprocess.TimeoutExpired) as error:
            return Arrived(failed=str(error))
        handed = found.handed if isinstance(found, Emitted) else _handed(lines(folder / HANDED))
        found.handed = handed
        if way == "handler":
            found.events = [Logged(*event) for event in lines(folder / LOGGED)]
        return found


def _run(folder: Path, way: WayName, name: str, ends: str, address: str = "") -> str:
    """Run the process to its end, and return its page if the destination is fetched."""
    more = {"CONFORMANCE_ADDRESS": address, "CONFORMANCE_FOLDER": str(folder), "TACHOGRAPH_RUN": RUN}
    command = [sys.executable, str(JOB), way, *([name] if name else [])]
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, **more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        text = ""
        try:
            if way == "page" and process.stdout is not None:
                url = process.stdout.readline().strip()
                text = urllib.request.urlopen(url, timeout=30).read().decode() if url else ""
            process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    if process.returncode != ENDS[ends]:
        raise FailedError(f"it ended with {process.returncode}: {(folder / 'stderr').read_text()[-4000:]}")
    return text


def _here(folder: Path, way: WayName, name: str, ends: str) -> Arrived:
    """Run a process whose metrics are fetched, or that writes its exports to its folder."""
    text = _run(folder, way, name, ends)
    if way == "page":
        return Page.read(text)
    if way == "registry":
        return Page.read((folder / "page.txt").read_text())
    if way == "exporter":
        return Emitted(handed=_handed(lines(folder / EMITTED)))
    return from_otlp(
        [ExportMetricsServiceRequest.FromString(path.read_bytes()) for path in sorted(folder.glob("metrics-*.pb"))],
        [ExportLogsServiceRequest.FromString(path.read_bytes()) for path in sorted(folder.glob("logs-*.pb"))],
    )


def _http(folder: Path, way: WayName, name: str, ends: str) -> Arrived:
    with receiving() as server:
        _run(folder, way, name, ends, f"http://127.0.0.1:{server.server_port}")
        bodies = {signal: [body for path, _, body in server.requests if path == f"/v1/{signal}"] for signal in _SIGNALS}
    return from_otlp(
        map(ExportMetricsServiceRequest.FromString, bodies["metrics"]),
        map(ExportLogsServiceRequest.FromString, bodies["logs"]),
    )


_SIGNALS = ("metrics", "logs")


def _grpc(folder: Path, way: WayName, name: str, ends: str) -> Arrived:
    with _grpc_receiving() as (port, bodies):
        _run(folder, way, name, ends, f"http://127.0.0.1:{port}")
    return from_otlp(
        map(ExportMetricsServiceRequest.FromString, bodies[METRICS]),
        map(ExportLogsServiceRequest.FromString, bodies[LOGS]),
    )


@contextlib.contextmanager
def _grpc_receiving() -> Iterator[tuple[int, dict[str, list[bytes]]]]:
    """Run a gRPC server with both services; yield its port and the requests that it receives."""
    bodies: dict[str, list[bytes]] = {METRICS: [], LOGS: []}
    server = grpc.server(futures.ThreadPoolExecutor(2))

    def service(name: str) -> Any:
        def export(body: bytes, _: grpc.ServicerContext) -> bytes:
            bodies[name].append(body)
            return b""

        return grpc.method_handlers_generic_handler(
            f"opentelemetry.proto.collector.{name}", {"Export": grpc.unary_unary_rpc_method_handler(export)}
        )

    server.add_generic_rpc_handlers(tuple(map(service, bodies)))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, bodies
    finally:
        server.stop(0).wait(5)


def _hub(folder: Path, way: WayName, name: str, ends: str) -> Arrived:
    with hubs.command(folder / "hub") as hub:
        _run(folder, way, name, ends, hub.url)
        hub.process.terminate()
        hub.end()
    return _stored(folder / "hub" / "store")


def _stored(store: Path) -> Arrived:
    """Return the content of a run's file: series, and points and events through ``tachograph.runs``."""
    run = runs.open(RUN, store)
    found = Arrived()
    for scope, name, unit, shape, attributes, state in RunFile(run.path).rows(
        "SELECT scope, name, unit, shape, attributes, data FROM series JOIN state ON series = id"
    ):
        pairs = tuple(
            (key, tuple(value) if isinstance(value, list) else value) for key, value in json.loads(attributes)
        )
        series = HubSeries(HubInstrument(scope, name, unit, "gauge", ""), shape, ())
        series.restore(state)
        if shape == "histogram":
            found.distributions[scope, name, pairs] = _of_buckets(series.shown())
        else:
            found.numbers[scope, name, pairs] = series.shown()
    found.events = [Logged(event.name, _maps(event.attributes), event.time_unix_nano) for event in run.events()]
    found.events += [Logged("tachograph.definition", each, 0) for each in run.definitions()]
    for point in run.points():
        about = {"metric": point.metric, "group": point.group, "execution": point.execution, "branch": point.branch}
        values = {"x": point.x, "value": point.value, **point.more}
        found.events.append(Logged("tachograph.metric", {**about, **values}, point.time_unix_nano))
    return found


def _maps(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as they were logged; mappings are stored as JSON."""
    maps = {key: json.loads(str(attributes[key])) for key in (TAGS, FIELDS) if key in attributes}
    return {**attributes, **maps}


def _of_buckets(buckets: Buckets) -> Distribution:
    bounds = [*buckets.bounds, math.inf] if buckets.counts else []
    at_most = dict(zip(bounds, accumulate(buckets.counts), strict=True))
    return Distribution(buckets.count, buckets.total, at_most=at_most)


def _handed(kept: list[Any]) -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for group, name, value in kept:
        found.setdefault((group, name), []).append(value)
    return found
