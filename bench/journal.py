"""The cost of the exact history: ``python bench/journal.py [--check] [--seconds 60]``.

Goals: eight processes that record 200 points a second each, unthrottled, through a hub: nothing is missing, and each
process spends at most 2 % of a core on it, beyond the cost of the same loop with recording off. 27,000 points a second
of one process beside one that is busy: none is lost, and at most 10 % of a core goes into all but the calls themselves:
the drain, which packs, encodes and sends. A million points in the store, thinned to 2,000 pairs in at most 50 ms. Also
shown: the points a second that a hub takes on one core.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from race import Goal, finish, report

from tachograph import runs
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub.hub import Hub
from tachograph.recording.journal import LogEvent

RANKS, RATE = 8, 200
MILLION, PAIRS = 1_000_000, 2000
FULL_SPEED, FULL_SECONDS = 27_000, 10
GOAL_SHARE, GOAL_THIN, GOAL_DRAIN = 0.02, 0.05, 0.1

RANK = """
import resource, sys, time
import tachograph

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

count = int(sys.argv[1])
pipeline = tachograph.start(metrics="none", traces="none", logs="otlp", interval=1.0, run_id="job")
metric = tachograph.Metric("loss", throttle=None)
metric.record(0.5, at=-1)
time.sleep(2.5)  # the first export loads what exporting takes
before, began = cpu(), time.perf_counter()
for step in range(count):
    metric.record(1 / (step + 3), at=step)
    time.sleep(max(0.0, began + (step + 1) / 200 - time.perf_counter()))
print(cpu() - before, time.perf_counter() - began, flush=True)
sys.exit(not pipeline.flush(30))
"""

FAST = """
import sys, time
import tachograph

rate, count = int(sys.argv[1]), int(sys.argv[2])
pipeline = tachograph.start(metrics="none", traces="none", logs="otlp", interval=1.0, run_id="job")
metric = tachograph.Metric("loss", throttle=None)
metric.record(0.5, at=-1)
time.sleep(2.5)  # the first export loads what exporting takes
all_before, before, began, step = time.process_time(), time.thread_time(), time.perf_counter(), 0
while step < count:
    for step in range(step, min(int((time.perf_counter() - began) * rate) + 1, count)):
        metric.record(1 / (step + 3), at=step)
    step += 1
    time.sleep(0.0005)
used, seconds = time.thread_time() - before, time.perf_counter() - began
print(used, time.process_time() - all_before - used, seconds, flush=True)
sys.exit(not pipeline.flush(30))
"""
BUSY = "while True: pass"


def _clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_"))}


def job(folder: Path, count: int, **more: str) -> list[float]:
    """Return the share of a core that each rank used."""
    environ = {**_clean(), "TACHOGRAPH_STORE": str(folder), "WORLD_SIZE": str(RANKS), **more}
    ranks = [
        subprocess.Popen(  # noqa: S603 - the program above
            [sys.executable, "-c", RANK, str(count)],
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate()[0].split() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    return [float(used) / float(seconds) for used, seconds in said]


@contextlib.contextmanager
def served(store: str) -> Iterator[str]:
    """Yield the address of a hub, until it is ended."""
    reading, writing = os.pipe()
    line = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--quiet", "--announce", str(writing)]
    hub = subprocess.Popen([*line, "--store", store], pass_fds=[writing])  # noqa: S603 - our own command
    os.close(writing)
    try:
        with os.fdopen(reading) as announced:
            yield json.loads(announced.readline())["url"]
    finally:
        hub.terminate()
        hub.wait()


def through_a_hub(seconds: int) -> list[Goal]:
    """Run the ranks, with recording off and with a hub, and count the points in its store."""
    count = seconds * RATE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        off = statistics.mean(job(folder, min(count, 20 * RATE), OTEL_SDK_DISABLED="true"))
        with served(name) as url:
            on = job(folder, count, OTEL_EXPORTER_OTLP_ENDPOINT=url)
        run = runs.open("job", folder)
        missing = 0
        for rank in range(RANKS):
            found = [(point.x, point.value) for point in run.points("loss", rank=rank)]
            missing += found != [(-1.0, 0.5), *((float(step), 1 / (step + 3)) for step in range(count))]
        size = run.path.stat().st_size / RANKS / (count + 1)
    used = statistics.mean(on)
    print(f"{RANKS} ranks x {RATE} points/s for {seconds} s: {used:.2%} of a core each, {off:.2%} with recording off;")
    print(f"{missing} ranks whose points are not all there, {size:.0f} bytes a point")
    if missing:
        raise SystemExit("points are missing")
    return [Goal(f"time a second, {RANKS} x {RATE} points/s", (used - off) * 1e6, GOAL_SHARE * 1e6, 1.0, "us")]


def at_full_speed() -> list[Goal]:
    """Record 27,000 points a second beside a busy process, and count those in the store of the hub."""
    count = FULL_SPEED * FULL_SECONDS
    with tempfile.TemporaryDirectory() as name, served(name) as url:
        busy = subprocess.Popen([sys.executable, "-c", BUSY])  # noqa: S603 - the program above
        try:
            done = subprocess.run(  # noqa: S603 - the same
                [sys.executable, "-c", FAST, str(FULL_SPEED), str(count)],
                env={**_clean(), "TACHOGRAPH_STORE": name, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            busy.kill()
            busy.wait()
        calls, drain, seconds = map(float, done.stdout.split())
        found = sum(metric.points for metric in runs.open("job", Path(name)).metrics())
    rate = f"{count / seconds:,.0f} points/s for {seconds:.0f} s"
    print(f"\n{rate} beside a busy process: {found - 1:,} of {count:,} are there;")
    print(f"{calls / seconds:.1%} of a core records them, {drain / seconds:.1%} drains them")
    if found - 1 != count:
        raise SystemExit("points are missing")
    return [Goal(f"the drain a second, {FULL_SPEED:,} points/s", drain / seconds * 1e6, GOAL_DRAIN * 1e6, 1.0, "us")]


def thinning() -> list[Goal]:
    """Send a million points to a hub, and thin them from its store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hub = Hub(folder, run="job")
        taken = 0.0
        for first in range(0, MILLION, 500):
            request = _request(first)
            began = time.perf_counter()
            hub.receive_logs(ExportLogsServiceRequest.FromString(request))
            taken += time.perf_counter() - began
        hub.close()
        run = runs.open("job", folder)
        times = []
        for _ in range(11):
            began = time.perf_counter()
            ((_, _, buckets),) = run.thinned("loss", pairs=PAIRS)
            times.append(time.perf_counter() - began)
        if sum(bucket.points for bucket in buckets) != MILLION or len(buckets) != PAIRS:
            raise SystemExit("thinning lost points")
    print(f"\na hub takes {MILLION / taken:,.0f} points/s on one core, in requests of 500, parsing included")
    return [
        Goal(
            f"{MILLION:,} points thinned to {PAIRS:,} pairs", statistics.median(times) * 1e6, GOAL_THIN * 1e6, 1.0, "us"
        )
    ]


def _request(first: int) -> bytes:
    events = []
    for i in range(first, first + 500):
        said: dict[str, Any] = {"metric": "loss", "x": float(i), "value": math.sin(i), "branch": 0, "elapsed": i / 7}
        events.append(LogEvent("tachograph.metric", 1 + i, 1 + i, said, 1 + i, 0, 0, 0, "stream"))
    ((request, _),) = log_requests(
        events, {"dl.run.id": "job", "service.instance.id": "0"}, lambda *_: None, lambda: None
    )
    return request.SerializeToString()


def main() -> None:
    """Measure, print, and with ``--check`` fail where a goal is missed."""
    seconds = 60
    if "--seconds" in sys.argv:
        place = sys.argv.index("--seconds")
        seconds = int(sys.argv[place + 1])
        del sys.argv[place : place + 2]
    goals = [*through_a_hub(seconds), *at_full_speed(), *thinning()]
    finish(report("The exact history", goals))


if __name__ == "__main__":
    main()
