"""Every closed window arrives at real receivers, whatever the interval of exports and however the process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import hubs
import servers
from collectors import CONFIG
from programs import environment, events, requests, run, write
from receivers import Receiver, grpc_receiving, receiving

# Windows of 20 ms, exported once a second: fifty between two exports, every third one empty.
PROGRAM = """
import os, signal, sys, time
import tachograph
from tachograph.monitor import Aggregation, Stat
tachograph.start(metrics=sys.argv[1], logs="jsonl", traces="none", jsonl="out.jsonl", interval=1, endpoint=sys.argv[2],
                 protocol=sys.argv[3])
load = Stat("load", [Aggregation.MEAN, Aggregation.SUM], 0.02)
open_to_the_end = Stat("open", [Aggregation.SUM], 3600.0)
open_to_the_end.add(7)
end = time.monotonic() + 2.5
number = 0
while time.monotonic() < end:
    number += 1
    if time.time_ns() // 20_000_000 % 3:
        load.add(number)
    time.sleep(0.002)
"""
ENDS = {
    "exit": "",
    "exception": "raise ValueError",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
}


def points(messages: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the points of a gauge that are windows, from OTLP's JSON."""
    return [
        point
        for message in messages
        for resource in message.get("resourceMetrics", [])
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == name
        for point in metric["gauge"]["dataPoints"]
        if int(point.get("startTimeUnixNano", 0))
    ]


def values(messages: list[dict[str, Any]], name: str) -> list[float]:
    """Return a gauge's values, one a window."""
    return [float(point["asInt"] if "asInt" in point else point["asDouble"]) for point in points(messages, name)]


def check(messages: list[dict[str, Any]], folder: Path) -> None:
    """Compare what a receiver got with the events, of which each window has one."""
    logged = [event["attributes"] for event in events(folder / "out.jsonl")]
    expected = [found for found in logged if "load.mean" in found]
    assert len(expected) > 20
    assert values(messages, "load.mean") == [found["load.mean"] for found in expected]
    assert values(messages, "load.window.sum") == [found["load.sum"] for found in expected]
    times = [
        (int(point["startTimeUnixNano"]), int(point["timeUnixNano"])) for point in points(messages, "load.window.end")
    ]
    assert all(start < end for start, end in times)
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
    sizes = {end - start for start, end in times[1:-1]}  # of a machine that is busy, several at once
    assert min(sizes) == 20_000_000
    assert all(size % 20_000_000 == 0 for size in sizes)
    assert values(messages, "load.window.end") == [end / 1e9 for _, end in times]
    assert values(messages, "open.window.sum") == [7]


@contextmanager
def over_http() -> Iterator[tuple[str, Callable[[], list[bytes]]]]:
    """Receive over HTTP: yields the endpoint, and what returns the bodies."""
    with receiving() as server:
        yield server.url.removesuffix("/v1/metrics"), lambda: bodies(server)


@contextmanager
def over_grpc() -> Iterator[tuple[str, Callable[[], list[bytes]]]]:
    """Receive over gRPC."""
    found: list[bytes] = []

    def take(body: bytes, _: object) -> bytes:
        found.append(body)
        return b""

    with grpc_receiving(take) as port:
        yield f"http://127.0.0.1:{port}", lambda: found


def bodies(server: Receiver) -> list[bytes]:
    """Return the bodies of the metrics' requests."""
    return [body for path, _, body in server.requests if path.endswith("/v1/metrics")]


def decoded(found: list[bytes]) -> list[dict[str, Any]]:
    """Return requests in OTLP's JSON."""
    return [MessageToDict(ExportMetricsServiceRequest.FromString(body)) for body in found]


@pytest.mark.parametrize("end", ENDS)
def test_every_window_is_in_the_file(tmp_path: Path, end: str) -> None:
    """JSON lines: each window once, the one that is open at the end of the process, too."""
    run(tmp_path, PROGRAM + ENDS[end], "jsonl", "", "http/protobuf")
    check(requests(tmp_path / "out.jsonl"), tmp_path)


@pytest.mark.parametrize(("protocol", "end"), [("http/protobuf", "SIGTERM"), ("grpc", "exit")])
def test_every_window_arrives_over_otlp(tmp_path: Path, protocol: str, end: str) -> None:
    """A receiver that is asked once a second gets every window of 20 ms, and what SIGTERM has closed."""
    with (over_grpc if protocol == "grpc" else over_http)() as (endpoint, found):
        run(tmp_path, PROGRAM + ENDS[end], "otlp", endpoint, protocol)
        check(decoded(found()), tmp_path)


def test_a_request_that_is_sent_again_has_the_same_windows(tmp_path: Path) -> None:
    """A receiver that was busy gets each window with the next attempt, and none twice."""
    busy = (503, {"Retry-After": "0"}, b"")
    with receiving(busy, busy, (200, {}, b""), busy) as server:
        run(tmp_path, PROGRAM, "otlp", server.url.removesuffix("/v1/metrics"), "http/protobuf")
        found = bodies(server)
    assert found[0] == found[1] == found[2]
    check(decoded([body for number, body in enumerate(found) if number not in (0, 1, 3)]), tmp_path)


def test_a_real_collector_passes_every_window_on(tmp_path: Path) -> None:
    """What the OpenTelemetry Collector writes into a file is one point a window."""
    (tmp_path / "more.yaml").write_text("service: {pipelines: {metrics: {exporters: [file]}}}\n")
    http, file = servers.free_port(), tmp_path / "telemetry.jsonl"
    env = {
        "OTLP_HTTP": f"127.0.0.1:{http}",
        "OTLP_GRPC": f"127.0.0.1:{servers.free_port()}",
        "PROMETHEUS": f"127.0.0.1:{servers.free_port()}",
        "TELEMETRY_FILE": str(file),
    }
    with servers.otelcol(CONFIG, env, arguments=[f"--config={tmp_path / 'more.yaml'}"]):
        run(tmp_path, PROGRAM, "otlp", f"http://127.0.0.1:{http}", "http/protobuf")
        servers.wait_until(lambda: file.exists() and "open.window.end" in file.read_text())
    check([json.loads(line) for line in file.read_text().splitlines()], tmp_path)


TWO_OF_A_NAME = """
import sys, time
import tachograph
from tachograph.monitor import Aggregation, Stat
tachograph.start(metrics="otlp", traces="none", logs="none", interval=0.05)
stats = [Stat("load", [Aggregation.MEAN], 0.01) for _ in range(3)]
end = time.monotonic() + 2
while time.monotonic() < end:
    for number, stat in enumerate(stats):
        stat.add(number)
    tachograph.put_metric("beside", 1.0, "g")
    time.sleep(0.001)
tachograph.shutdown()
collected = tachograph.recording.registry.default.collect()
print([point for metric in collected if metric.name == "tachograph.dropped" for point in metric.points])
"""


def test_prometheus_refuses_nothing(tmp_path: Path) -> None:
    """Windows of Stats of one name that close together, in many exports: none costs the request that it is in."""
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1s}\n")
    with servers.prometheus(tmp_path / "prometheus.yml", arguments=["--web.enable-otlp-receiver"]) as base:
        done = run(
            tmp_path,
            TWO_OF_A_NAME,
            "http://unused",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{base}/api/v1/otlp/v1/metrics",
        )
        ((_, windows),) = servers.instant(base, "count_over_time(load_mean[1m])")
    assert done.stdout == "[]\n", done.stderr
    assert windows > 300


def test_the_hub_shows_the_last_window_until_there_is_another(tmp_path: Path) -> None:
    """On a hub's page a gauge stays through windows without values, and its sample lies at a window's end."""
    program = """
        import sys, time
        import tachograph
        from tachograph.monitor import Aggregation, Stat
        tachograph.start(metrics="otlp", traces="none", logs="none", interval=0.2, endpoint=sys.argv[1], run_id="r")
        load = Stat("load", [Aggregation.MEAN], 0.02)
        for value in range(20):
            load.add(value)
            time.sleep(0.02)
        del load
        print("quiet", flush=True)
        sys.stdin.read()
    """
    with (
        hubs.serving(tmp_path / "store") as hub,
        subprocess.Popen(
            [sys.executable, str(write(tmp_path, program)), hub.url],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None
        assert job.stdout.readline() == "quiet\n"
        time.sleep(1)
        before = hubs.points(hub.url)
        servers.wait_until(lambda: hubs.points(hub.url) > before)
        page = hubs.ask(hub.url, "/metrics").body.decode()
        assert job.stdin is not None
        job.stdin.close()
        job.wait(20)
    (line,) = [line for line in page.splitlines() if line.startswith("load_mean{")]
    assert line.endswith(" 19.0")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("untraced")
def test_a_forked_child_sends_its_own_windows(tmp_path: Path) -> None:
    """A child that delivers sends what closes in it; the parent's windows leave once, from the parent."""
    program = """
        import os, sys, time
        import tachograph
        from tachograph.monitor import Aggregation, Stat
        def begin(file):
            tachograph.start(metrics="jsonl", logs="jsonl", traces="none", jsonl=file, interval=60)
        begin("parent.jsonl")
        stat = Stat("load", [Aggregation.SUM], 0.02)
        for _ in range(3):
            stat.add(1)
            time.sleep(0.05)
        child = os.fork()
        if not child:
            begin("child.jsonl")
            stat = Stat("load", [Aggregation.SUM], 0.02)
        for _ in range(3):
            stat.add(1 if child else 10)
            time.sleep(0.05)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            tachograph.shutdown()
            os._exit(0)
    """
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    for name, value in (("parent", 1.0), ("child", 10.0)):
        file = tmp_path / f"{name}.jsonl"
        sums = [event["attributes"]["load.sum"] for event in events(file)]
        assert values(requests(file), "load.window.sum") == sums
        assert set(sums) == {value}, sums
