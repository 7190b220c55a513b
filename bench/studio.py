"""The time of the Studio's server for a million points, and the cost of a live page for the hub.

Run: ``python bench/studio.py [--check]``. Goals: a metric of a million points is answered in a second, JSON included,
and a zoom into a hundredth of it in 0.2 s; the table of 1,000 runs, of which one goes on, in 0.05 s (``--runs N``
measures that alone, for N runs); 10 ranks that each record 50 points a second on 100 charts, watched live, cost the hub
a tenth of a core; a week of a node's samples is answered in 0.3 s and 300 kB; ten points a second on each of the 1,000
curves are measured beside it.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from race import Goal, finish, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from many_runs import sweep
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub.hub import Hub
from tachograph.recording.journal import LogEvent
from tachograph.runs.store import run_path

MILLION = 1_000_000
RANKS, CHARTS, SECONDS = 10, 100, 12
GOAL_WHOLE, GOAL_ZOOM, GOAL_SHARE, GOAL_POLL = 1.0, 0.2, 0.1, 0.05
NODE_SERIES, GOAL_WEEK, GOAL_WEEK_BYTES = 64, 0.3, 300_000


def requests(rank: int, first: int, said: list[dict[str, Any]]) -> list[bytes]:
    """Return the points of a rank as it sends them, numbered from ``first`` on."""
    now = time.time_ns()
    events = [
        LogEvent("tachograph.metric", now, now, each, first + place, 0, 0, 0, f"stream-{rank}")
        for place, each in enumerate(said)
    ]
    who: dict[str, Any] = {"dl.run.id": "job", "service.instance.id": str(rank), "dl.rank": rank}
    return [message.SerializeToString() for message, _ in log_requests(events, who, lambda *_: None, lambda: None)]


@contextmanager
def hub(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a hub over a store; lend its address and pid."""
    reading, writing = os.pipe()
    line = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--quiet", "--announce", str(writing)]
    process = subprocess.Popen([*line, "--store", str(folder)], pass_fds=[writing])  # noqa: S603 - our own command
    os.close(writing)
    try:
        with os.fdopen(reading) as announced:
            yield json.loads(announced.readline())["url"].partition("://")[2], process.pid
            process.terminate()
            process.wait()
    finally:
        process.kill()


def asked(address: str, path: str) -> tuple[float, Any]:
    """Return the seconds of an answer to a browser's question, and the number of its points."""
    connection = http.client.HTTPConnection(address)
    began = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    answer.read()
    taken = time.perf_counter() - began
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status}")
    return taken, answer


def million() -> list[Goal]:
    """Record a million points, and a million that are throttled; ask for whole curves, a zoom, and the run."""
    paths = {
        "a million points": "/api/runs/job/curves?metric=loss",
        "a million throttled points": "/api/runs/job/curves?metric=throttled",
        "a zoom into a hundredth": "/api/runs/job/curves?metric=loss&low=500000&high=510000",
        "the run": "/api/runs/job",
        "the list of runs": "/api/runs",
    }
    limits = [GOAL_WHOLE, GOAL_WHOLE, GOAL_ZOOM, GOAL_WHOLE, GOAL_ZOOM]
    with tempfile.TemporaryDirectory() as name:
        made = Hub(Path(name), run="job")
        for first in range(0, MILLION, 500):
            said = [
                {"metric": "loss", "x": float(x), "value": math.sin(x), "branch": 0, "elapsed": x / 7}
                for x in range(first, first + 500)
            ]
            more = [{**each, "metric": "throttled", "count": 3, **_told(each["x"])} for each in said]
            for rank, listed in enumerate((said, more)):
                for body in requests(rank, 1 + first, listed):
                    made.receive_logs(ExportLogsServiceRequest.FromString(body))
        made.close()
        with hub(Path(name)) as (address, _):
            goals = []
            for (what, path), limit in zip(paths.items(), limits, strict=True):
                taken = [asked(address, path)[0] for _ in range(9)]
                goals.append(Goal(what, statistics.median(taken) * 1e3, limit * 1e3, 1.0, "ms"))
    return goals


def _told(x: float) -> dict[str, float]:
    return {"min": -2.0, "min_x": x - 0.5, "max": 2.0, "max_x": x - 0.25}


def used(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(points_a_second: int, *, watched: bool) -> tuple[float, int]:
    """Return the share of a core that a hub needs, while each rank records so many points, and the bytes streamed."""
    with tempfile.TemporaryDirectory() as name, hub(Path(name)) as (address, pid):
        streamed = [0]
        sender = http.client.HTTPConnection(address)
        numbers = [1] * RANKS

        def second(at: int) -> None:
            for rank in range(RANKS):
                said = [
                    {"metric": f"m{place % CHARTS}", "x": at + place / points_a_second, "value": 0.5, "branch": 0}
                    for place in range(points_a_second)
                ]
                for body in requests(rank, numbers[rank], said):
                    sender.request("POST", "/v1/logs", body, _HEADERS)
                    sender.getresponse().read()
                numbers[rank] += points_a_second

        second(0)
        if watched:
            threading.Thread(target=listen, args=(address, streamed), daemon=True).start()
        second(1)
        before, began = used(pid), time.monotonic()
        for at in range(2, SECONDS + 2):
            second(at)
            time.sleep(max(0, began + at - 1 - time.monotonic()))
        return (used(pid) - before) / (time.monotonic() - began), streamed[0]


_HEADERS = {"Content-Type": "application/x-protobuf"}


def listen(address: str, streamed: list[int]) -> None:
    """Read the stream as a live page does."""
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/api/runs/job/live")
    answer = connection.getresponse()
    while taken := answer.read1(2**16):
        streamed[0] += len(taken)


def watching(points_a_second: int) -> float:
    """Return the share of a core that a watched page adds."""
    (alone, _), (together, streamed) = (live(points_a_second, watched=watched) for watched in (False, True))
    print(
        f"{RANKS} ranks x {points_a_second} points/s on {CHARTS} charts: the hub takes {alone:.1%} of a core,"
        f" watched {together:.1%}; {streamed / SECONDS / 1024:,.0f} KiB/s streamed"
    )
    return together - alone


def week() -> list[Goal]:
    """Put a week of a node's samples, one each ten seconds, into a file; ask for those of all of its series."""
    many, begin = 7 * 86_400 // 10, time.time_ns() - 7 * 86_400 * 10**9
    with tempfile.TemporaryDirectory() as name:
        made = Hub(Path(name), run="job")
        with closing(sqlite3.connect(run_path(Path(name), "job"))) as connection:
            connection.execute("INSERT INTO process (instance, resource) VALUES ('node', '{}')")
            for number in range(NODE_SERIES):
                kind = "gauge" if number % 2 else "counter"
                about = (number + 1, "tachograph.hardware", f"system.{number}", kind)
                connection.execute("INSERT INTO series VALUES (?, 1, ?, ?, '1', ?, '[]', '')", about)
                values = (math.sin(at / 999) if number % 2 else 7.0 * at for at in range(many))
                rows = ((about[0], begin + at * 10**10, value) for at, value in enumerate(values))
                connection.executemany("INSERT INTO sample (series, time, value) VALUES (?, ?, ?)", rows)
            connection.commit()
        made.close()
        path = f"/api/runs/job/samples?{'&'.join(f'series={one + 1}' for one in range(NODE_SERIES))}"
        with hub(Path(name)) as (address, _):
            taken = [asked(address, path) for _ in range(9)]
    size = int(taken[0][1].headers["Content-Length"])
    seconds = statistics.median(each for each, _ in taken)
    return [
        Goal(f"a week of a node: {NODE_SERIES} series", seconds * 1e3, GOAL_WEEK * 1e3, 1.0, "ms"),
        Goal("the same, on the wire", size / 1e3, GOAL_WEEK_BYTES / 1e3, 1.0, "kB"),
    ]


def unread(address: str) -> int:
    """Return how many runs a table does not have yet."""
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/api/table?limit=1")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return int(found["unread"])


def many_runs(many: int) -> list[Goal]:
    """Ask for the table of a store with many runs, as the page does every two seconds; a run beside them goes on."""
    paths = {
        f"the table of {many:,} runs": "/api/table?limit=80&column=state&column=last.loss",
        f"filtered, sorted, grouped, of {many:,}": "/api/table?limit=80&filter=loss%3E1&sort=-lr&group=model&column=lr",
    }
    with tempfile.TemporaryDirectory() as name:
        sweep(Path(name), many)
        with hub(Path(name)) as (address, _):
            began = time.perf_counter()
            while unread(address):
                pass
            print(f"{many:,} runs are read in {time.perf_counter() - began:.1f} s, once")
            taken: dict[str, list[float]] = {}
            sender = http.client.HTTPConnection(address)
            for number, (_, (what, path)) in enumerate(product(range(15), paths.items())):
                said = [{"metric": "loss", "x": float(number), "value": 0.5, "branch": 0}]
                for body in requests(0, 1 + number, said):
                    sender.request("POST", "/v1/logs", body, _HEADERS)
                    sender.getresponse().read()
                time.sleep(1.2)  # the page waits for two; a run that goes on is read again after one
                taken.setdefault(what, []).append(asked(address, path)[0])
    return [Goal(what, statistics.median(some) * 1e3, GOAL_POLL * 1e3, 1.0, "ms") for what, some in taken.items()]


def main() -> None:
    """Measure, and print."""
    if "--runs" in sys.argv:
        at = sys.argv.index("--runs")
        goals = many_runs(int(sys.argv[at + 1]))
        del sys.argv[at : at + 2]
        finish(report("The table of runs", goals))
        return
    goals = million() + many_runs(1000) + week()
    share = watching(50)
    watching(10 * CHARTS)  # ten a second on each curve: the usual throttle
    goals.append(Goal("a second of 10 ranks x 50 points/s, watched", share * 1e3, GOAL_SHARE * 1e3, 1.0, "ms"))
    finish(report("The Studio's server", goals))


if __name__ == "__main__":
    main()
