"""The cost of the exact history: ``python bench/journal.py [--check] [--seconds 60]``.

Goals: eight processes that record 200 points a second each, unthrottled, through a hub: nothing is missing, and each
process spends at most 2 % of a core on it, beyond the cost of the same loop with recording off. A million points in the
store, thinned to 2,000 pairs in at most 50 ms. Also shown: the points a second that a hub takes on one core.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
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
GOAL_SHARE, GOAL_THIN = 0.02, 0.05

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


def job(folder: Path, count: int, **more: str) -> list[float]:
    """Return the share of a core that each rank used."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_"))}
    environ = {**kept, "TACHOGRAPH_STORE": str(folder), "WORLD_SIZE": str(RANKS), **more}
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


def through_a_hub(seconds: int) -> list[Goal]:
    """Run the ranks, with recording off and with a hub, and count the points in its store."""
    count = seconds * RATE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        off = statistics.mean(job(folder, min(count, 20 * RATE), OTEL_SDK_DISABLED="true"))
        reading, writing = os.pipe()
        line = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--quiet", "--announce", str(writing)]
        hub = subprocess.Popen([*line, "--store", name], pass_fds=[writing])  # noqa: S603 - our own command
        os.close(writing)
        try:
            with os.fdopen(reading) as announced:
                url = json.loads(announced.readline())["url"]
                on = job(folder, count, OTEL_EXPORTER_OTLP_ENDPOINT=url)
        finally:
            hub.terminate()
            hub.wait()
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
    goals = [*through_a_hub(seconds), *thinning()]
    finish(report("The exact history", goals))


if __name__ == "__main__":
    main()
