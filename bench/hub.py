"""The hub's speed in receiving and in rendering its page, and its memory after ten hours of changing series.

Run: ``python bench/hub.py [--check]``. Goals: 400,000 data points a second on one core, in requests of 500, parsing
included; the first page of 64 ranks with 500 series each in half a second, a later one in 50 ms, and in 100 ms where
all values are new; an answer on a kept connection within 5 ms (median); ``/healthz`` within 100 ms (99.9th percentile)
beside bodies of many small parts, one of many points and a file that is locked; less than 300 MiB, and no growth from
the second hour on, with 10,000 series that come and go for ten simulated hours, in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from race import Goal, finish, report

from tachograph.hub.hub import Hub

SECOND = 1_000_000_000
BOUNDS = [float(bound) for bound in range(1, 20)]
POINTS = 500
EVERY = 2  # simulated minutes between exports
PROMETHEUS = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
GOAL_POINTS, GOAL_FIRST, GOAL_PAGE, GOAL_NEW = 400_000, 0.5, 0.05, 0.1
GOAL_ANSWER, GOAL_WELL, GOAL_MEMORY = 0.005, 0.1, 300


def request(rank: int, run: str, time_ns: int, points: int, *, name: str = "m", gauges: bool = False) -> bytes:
    """Return a request of one rank: gauges, and as many histograms of 20 buckets unless only ``gauges`` are wanted."""
    message = ExportMetricsServiceRequest()
    of_resource = message.resource_metrics.add()
    for key, value in (("service.instance.id", f"{run}-{rank}"), ("dl.run.id", run), ("dl.role", "default")):
        of_resource.resource.attributes.add(key=key).value.string_value = value
    of_resource.resource.attributes.add(key="dl.rank").value.int_value = rank
    of_resource.resource.attributes.add(key="process.pid").value.int_value = 1000 + rank
    of_scope = of_resource.scope_metrics.add()
    of_scope.scope.name = "train"
    for start in range(0, points, 10):
        of_scope.metrics.append(metric(f"{name}{start}", start // 10, time_ns, gauges=gauges))
    return message.SerializeToString()


def metric(name: str, number: int, time_ns: int, *, gauges: bool) -> Metric:
    """Return a metric of ten points with two attributes each."""
    message = Metric(name=name, unit="" if gauges else "s")
    message.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    for index in range(10):
        if gauges or number % 2:
            point = message.gauge.data_points.add(time_unix_nano=time_ns, as_double=index + time_ns % 1000 / 7)
        else:
            point = message.histogram.data_points.add(
                time_unix_nano=time_ns,
                start_time_unix_nano=1,
                count=20 * (time_ns % SECOND),
                sum=time_ns / 3,
                bucket_counts=[time_ns % SECOND] * 20,
                explicit_bounds=BOUNDS,
            )
        point.attributes.add(key="layer.name").value.string_value = f"layer.{index}"
        point.attributes.add(key="phase").value.string_value = "forward"
    return message


def receiving(folder: Path) -> float:
    """Return the points a second of CPU time of the best of seven rounds, 8 ranks' requests one after the other."""
    hub = Hub(folder, run="receiving")
    best, now = 0.0, time.time_ns()
    for turn in range(8):
        bodies = [request(rank, "receiving", now + turn * SECOND, POINTS) for rank in range(8)]
        began = time.process_time()
        for body in bodies:
            hub.receive_metrics(hub.read_metrics(body) or ExportMetricsServiceRequest.FromString(body))
        rate = len(bodies) * POINTS / (time.process_time() - began)
        print(f"  round {turn}: {rate:9,.0f} points/s{', series new' if not turn else ''}")
        best = max(best, rate if turn else 0)
        hub.tick()
    hub.close()
    return best


def rendering(folder: Path) -> tuple[float, float, float]:
    """Return the seconds of the first page and the medians of later ones, without a new value and with new ones alone.

    64 ranks have 500 gauges each. The hub has saved its series once before the first page.
    """
    hub = Hub(folder, run="rendering")
    _send_all(hub)
    began = time.perf_counter()
    hub.tick()
    print(f"  seeing to the new series takes {time.perf_counter() - began:.3f} s, before the first page")
    first = _page(hub, "first page")
    later, new = [], []
    for _ in range(5):
        _send_all(hub)
        new.append(_page(hub, "page, all values new"))
        later.append(_page(hub, "page, no value new"))
    hub.close()
    return first, sorted(later)[2], sorted(new)[2]


def _send_all(hub: Hub) -> None:
    for rank in range(64):
        body = request(rank, "rendering", time.time_ns(), POINTS, gauges=True)
        hub.receive_metrics(hub.read_metrics(body) or ExportMetricsServiceRequest.FromString(body))


def _page(hub: Hub, what: str) -> float:
    """Return the seconds that a page takes; those of the processor are shown."""
    began, busy = time.perf_counter(), time.process_time()
    _, body = hub.page(PROMETHEUS)
    taken, cpu = time.perf_counter() - began, time.process_time() - busy
    print(f"  {what}: {taken:.3f} s, {cpu:.3f} of the processor, {body.count(b'train'):,} lines")
    return taken


def answering(folder: Path) -> float:
    """Return the median seconds of 200 answers of ``tachograph hub`` on one connection."""
    with running(folder) as url:
        taken = sorted(asking(url, 200))
    return taken[len(taken) // 2]


def busy(folder: Path) -> float:
    """Return the 99.9th percentile of the seconds of ``/healthz`` beside large bodies, and a locked file.

    One has 300,000 parts, the other one metric with 120,000 points: 9 MiB.
    """
    parts = ExportMetricsServiceRequest()
    for _ in range(600):
        metrics = parts.resource_metrics.add().scope_metrics.add().metrics
        for _ in range(500):
            metrics.add().gauge.data_points.add()
    one = ExportMetricsServiceRequest.FromString(request(0, "busy", time.time_ns(), 10, gauges=True))
    points = one.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    points.extend(list(points) * 11_999)
    bodies = parts.SerializeToString(), one.SerializeToString()
    with running(folder) as url:
        sending = threading.Thread(target=lambda: [post(url, body) for body in bodies])
        sending.start()
        with sqlite3.connect(folder / "runs" / "default.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            taken = [seconds for _ in range(20) for seconds in asking(url, 100)]
            other.execute("COMMIT")
        while sending.is_alive():
            taken += asking(url, 100)
    return sorted(taken)[len(taken) * 999 // 1000]


def post(url: str, body: bytes) -> None:
    """Post metrics."""
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=120)
    connection.request("POST", "/v1/metrics", body, {"Content-Type": "application/x-protobuf"})
    connection.getresponse().read()
    connection.close()


def asking(url: str, times: int) -> Iterator[float]:
    """Yield the seconds that each of so many looks at ``/healthz`` takes, on one connection."""
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=60)
    for _ in range(times):
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        yield time.perf_counter() - began
    connection.close()


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run ``tachograph hub`` in a process of its own, and yield its URL."""
    command = [sys.executable, "-m", "tachograph", "hub", "--announce", "1", "--port", "0", "--store", str(folder)]
    with subprocess.Popen([*command, "--quiet"], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def churning(folder: Path) -> list[float]:
    """Return the resident MiB after each simulated hour: 20 processes of 500 series, new ones every ten minutes."""
    hours = []
    now = [time.time_ns()]
    hub = Hub(folder, run="churning", clock=lambda: now[0])
    for minute in range(0, 600, EVERY):
        for rank in range(20):
            body = request(rank, f"r{minute // 10}", now[0], POINTS, name=f"n{minute // 10}.")
            hub.receive_metrics(ExportMetricsServiceRequest.FromString(body))
        now[0] += EVERY * 60 * SECOND
        hub.tick()
        if minute % 60 == 60 - EVERY:
            hours.append(resident())
            print(f"  hour {len(hours)}: {hours[-1]:.0f} MiB", flush=True)
    hub.close()
    return hours


def resident() -> float:
    """Return the MiB that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        rate = receiving(Path(where, "receiving"))
        first, page, new = rendering(Path(where, "rendering"))
        answer = answering(Path(where, "answering"))
        print(f"  an answer on a kept connection takes {answer * 1e3:.2f} ms")
        well = busy(Path(where, "busy"))
        print(f"  /healthz beside much work takes {well * 1e3:.1f} ms (99.9th percentile)")
        hours = []
        if "--short" in sys.argv:
            sys.argv.remove("--short")
        else:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:  # with no memory of all the above
                hours = alone.submit(churning, Path(where, "churning")).result()
    goals = [
        Goal("nanoseconds a point received", 1e9 / rate, 1e9 / GOAL_POINTS, 1.0),
        Goal("first page of 32,000 lines", first * 1e3, GOAL_FIRST * 1e3, 1.0, "ms"),
        Goal("later page of 32,000 lines", page * 1e3, GOAL_PAGE * 1e3, 1.0, "ms"),
        Goal("later page, all values new", new * 1e3, GOAL_NEW * 1e3, 1.0, "ms"),
        Goal("answer on a kept connection", answer * 1e3, GOAL_ANSWER * 1e3, 1.0, "ms"),
        Goal("/healthz beside much work, 99.9th percentile", well * 1e3, GOAL_WELL * 1e3, 1.0, "ms"),
    ]
    if hours:
        goals.append(Goal("memory after ten hours", hours[-1], GOAL_MEMORY, 1.0, "M"))
        goals.append(Goal("growth from the second hour on", hours[-1], hours[1], 1.1, "M"))
    finish(report("The hub", goals))
