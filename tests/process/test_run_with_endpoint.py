"""``tachograph run`` with an OTLP endpoint: the hub and the endpoint both get what the job records."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from launches import base, run, run_program
from receivers import receiving
from servers import free_port
from tachograph import runs
from tachograph.cli._endpoint_ports import local_ports
from tachograph.hub.server import listen

PROGRAM = """
import logging
import tachograph

step = tachograph.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10], group="g")
for number in range(10):
    tachograph.log({"loss": 1 / (number + 1)}, step=number)
    tachograph.put_metric("loss", number, "g")
    tachograph.put_metric("checkpoint.success", 1, "g")
    step.record(0.05 * 4 ** number)
tachograph.config({"lr": 0.1})
logging.getLogger("mine").warning("something happened")
"""
# Values that differ between two runs of one program: when it ran, which process it was, and how long things took.
_TIMES_AND_IDS = re.compile(
    r"(?i)time.*unix.?nano|process\.pid|service\.instance\.id|tachograph\.(stream|seq)|run_start"
)
# Metrics about Tachograph itself count what each destination costs: their values differ by nature.
_OWN = re.compile(r"tachograph\.|process\.")


class Sent(NamedTuple):
    """One request: where it went, with which headers, and its body."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Recorder(grpc.GenericRpcHandler):
    """Answers every OTLP service with an empty message, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Sent] = []

    def service(self, call: Any) -> Any:
        metadata = {key: value for key, value in call.invocation_metadata if key != "user-agent"}

        def export(body: bytes, _: grpc.ServicerContext) -> bytes:
            signal = "logs" if "LogsService" in call.method else "metrics"
            self.requests.append(Sent(f"/v1/{signal}", metadata, body))
            return b""

        return grpc.unary_unary_rpc_method_handler(export)


@contextmanager
def grpc_recording() -> Iterator[tuple[str, list[Sent]]]:
    """Run a gRPC server; yields its address, and the list of what it was sent."""
    server, recorder = grpc.server(futures.ThreadPoolExecutor(2)), _Recorder()
    server.add_generic_rpc_handlers((recorder,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", recorder.requests
    finally:
        server.stop(0).wait(5)


def without_times(value: Any) -> Any:
    """Return a decoded message without times and ids."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not _TIMES_AND_IDS.search(key)}
    if isinstance(value, list):
        return [
            without_times(item)
            for item in value
            if not (isinstance(item, dict) and _TIMES_AND_IDS.search(str(item.get("key", ""))))
        ]
    return value


def items(requests: list[Sent]) -> list[str]:
    """Return each metric and each log record that was sent, with its headers, resource and scope, sorted."""
    found = []
    for path, headers, body in requests:
        sent = {key.lower(): value for key, value in headers.items()}
        decoded = gzip.decompress(body) if sent.get("content-encoding") == "gzip" else body
        kept = {key: value for key, value in sent.items() if key not in ("content-length", "host")}
        kind = ExportLogsServiceRequest if path.endswith("logs") else ExportMetricsServiceRequest
        message = without_times(MessageToDict(kind.FromString(decoded)))
        for resource in message.get("resourceMetrics", []) + message.get("resourceLogs", []):
            for scope in resource.get("scopeMetrics", []) + resource.get("scopeLogs", []):
                found += [
                    str((path, kept, resource.get("resource"), scope.get("scope"), item))
                    for item in scope.get("metrics", []) + scope.get("logRecords", [])
                    if not _OWN.match(item.get("name", ""))
                ]
    return sorted(found)


def values(folder: Path, run_id: str) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Return the last value of each series of a stored run, and all points of its curves, but for our own."""
    stored = runs.open(run_id, folder / "store")
    last = {reading.series.name: reading.value for reading in stored.readings()}
    points = [(f"{point.group}/{point.metric}", point.value) for point in stored.points()]
    return {name: value for name, value in last.items() if not _OWN.match(name)}, points


SETTINGS: list[dict[str, str]] = [
    {},
    {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cr3t",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_LOGS_EXPORTER": "otlp",
    },
    {"OTEL_METRICS_EXPORTER": "none"},
]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "headers, gzip, delta", "no metrics"])
def test_the_endpoint_gets_the_same_with_and_without_a_hub(
    tmp_path: Path, protocol: str, settings: dict[str, str]
) -> None:
    """Requests are equal apart from times and ids, and the hub's run has the same values as without an endpoint."""
    settings = {**settings, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
    arrived = []
    for options in (("--run-id", "job"), ("--run-id", "job", "--no-hub")):
        with contextlib.ExitStack() as receivers:
            if protocol == "grpc":
                endpoint, requests = receivers.enter_context(grpc_recording())
            else:
                receiver = receivers.enter_context(receiving())
                endpoint, requests = base(receiver), receiver.requests  # type: ignore[assignment]
            done = run_program(tmp_path, PROGRAM, options=options, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **settings)
            assert done.returncode == 0, done.stderr
            arrived.append(items([Sent(*request) for request in requests]))
    assert len(arrived[0]) >= 3
    assert sorted(set(arrived[0]) ^ set(arrived[1])) == []
    assert arrived[0] == arrived[1]
    done = run_program(tmp_path, PROGRAM, options=("--run-id", "alone"))
    assert ", none lost; " in done.stderr
    assert values(tmp_path, "job") == values(tmp_path, "alone")
    assert ("g/loss", 9.0) in values(tmp_path, "job")[1]


def test_the_lines_of_a_run_with_both(tmp_path: Path) -> None:
    """The page's address comes first, then where else telemetry goes; secrets of the endpoint are not printed."""
    with receiving() as receiver:
        endpoint = base(receiver).replace("http://", "http://user:hunter2@")
        done = run_program(tmp_path, PROGRAM, options=("--endpoint", endpoint, "--run-id", "job"))
    page, also, stored, *_, last = done.stderr.splitlines()
    assert page.startswith("tachograph: live at http://127.0.0.1:")
    assert also == f"tachograph: also sending telemetry to {base(receiver)}"
    assert stored.startswith(f"tachograph: run job, stored in {tmp_path}")
    assert ", none lost; " in last
    assert "hunter2" not in done.stderr


def test_endpoints_of_single_signals(tmp_path: Path) -> None:
    """A signal whose endpoint is named goes there; the hub gets every signal."""
    with receiving() as receiver:
        done = run_program(
            tmp_path, PROGRAM, options=("--run-id", "job"), OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{base(receiver)}/m"
        )
        assert {path for path, *_ in receiver.requests} == {"/m"}
    assert f"also sending telemetry to {base(receiver)}/m" in done.stderr
    assert ", none lost; " in done.stderr.splitlines()[-1]
    assert ("g/loss", 9.0) in values(tmp_path, "job")[1]


def test_an_endpoint_that_is_down_takes_nothing_from_the_hub(tmp_path: Path) -> None:
    """The job ends as usual, its run is complete, and the last lines name what the endpoint did not get."""
    done = run_program(tmp_path, PROGRAM, options=("--run-id", "job", "--endpoint", f"http://127.0.0.1:{free_port()}"))
    assert done.returncode == 0
    assert "undelivered" not in done.stderr
    assert ("g/loss", 9.0) in values(tmp_path, "job")[1]


def test_wrong_settings_of_the_endpoint_leave_the_hub(tmp_path: Path) -> None:
    """A wrong protocol is one line of the process, and telemetry goes to the hub alone."""
    wrong = {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = run_program(tmp_path, PROGRAM, options=("--run-id", "job"), **wrong)
    assert "telemetry goes to the hub alone: OTEL_EXPORTER_OTLP_PROTOCOL is 'smoke'" in done.stderr
    assert ("g/loss", 9.0) in values(tmp_path, "job")[1]


def test_no_hub_and_no_endpoint(tmp_path: Path) -> None:
    """Processes then have the settings of ``start()``, and one line says which: here a file each."""
    files = {"OTEL_METRICS_EXPORTER": "jsonl", "OTEL_LOGS_EXPORTER": "jsonl"}
    done = run_program(tmp_path, PROGRAM, options=("--run-id", "job", "--no-hub"), **files)
    assert done.returncode == 0
    as_set = "OTEL_METRICS_EXPORTER=jsonl and OTEL_LOGS_EXPORTER=jsonl says"
    said = f"tachograph: no hub and no endpoint: no run is stored; each process exports as {as_set}"
    assert said in done.stderr.splitlines()
    assert list((tmp_path / "store" / "exports" / "job").glob("*.jsonl"))
    assert not list((tmp_path / "store").glob("**/*.sqlite*"))


def test_no_hub_and_no_settings(tmp_path: Path) -> None:
    """One line says where the metrics are served, and that nothing is stored."""
    done = run(tmp_path, "true", options=("--no-hub",), OTEL_EXPORTER_PROMETHEUS_PORT="9999")
    where = "metrics are at http://127.0.0.1:9999/metrics while the job runs, and nothing is stored"
    assert done.stderr == f"tachograph: no hub and no endpoint: {where}\n"
    assert run(tmp_path, "true", options=("--no-hub", "--quiet")).stderr == ""


def test_the_hub_leaves_the_port_of_a_local_endpoint_alone(tmp_path: Path) -> None:
    """It takes another port even if nothing listens there yet, and the first line says so."""
    port = free_port()
    done = run(tmp_path, "true", options=("--port", str(port), "--endpoint", f"http://localhost:{port}"))
    remark = rf"tachograph: port {port} belongs to the endpoint, so the hub listens on port (?!{port}\b)\d+\n"
    assert re.match(remark, done.stderr)


def test_a_run_inside_a_run_sends_to_its_own_destinations(tmp_path: Path) -> None:
    """Neither the hub nor the endpoint around it gets anything of the inner one."""
    inner = ("-m", "tachograph", "run", "--no-hub", "--endpoint", "http://127.0.0.1:9", "--", "env")
    done = run(tmp_path, sys.executable, *inner, options=("--endpoint", "http://127.0.0.1:10"))
    assert "TACHOGRAPH__HUB=" not in done.stdout
    assert "TACHOGRAPH__ENDPOINT=http://127.0.0.1:9\n" in done.stdout


@pytest.mark.parametrize(
    ("endpoint", "ports"),
    [
        ("http://127.0.0.1:4318", [4318]),
        ("localhost:4317", [4317]),
        ("http://0.0.0.0:4319/v1/metrics", [4319]),
        (f"http://{socket.gethostname()}:4320", [4320]),
        ("http://localhost", [80]),
        ("http://192.0.2.1:4318", []),
        ("http://127.0.0.1:99999", []),
        ("nonsense", []),
    ],
)
def test_ports_of_endpoints_on_this_machine(endpoint: str, ports: list[int]) -> None:
    """Those of loopback, of every address, and of this machine's own addresses; a URL that is none is passed over."""
    assert local_ports([endpoint, endpoint]) == ports


def test_a_hub_never_listens_on_an_avoided_port() -> None:
    """The next free port is chosen instead."""
    port = free_port()
    with listen("127.0.0.1", None, usual=port, avoided=[port]) as listener:
        assert listener.getsockname()[1] > port
