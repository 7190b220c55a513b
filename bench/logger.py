"""The cost of ``MetricsLogger.log``: ``python bench/logger.py``.

A point of two fields and three tags, one of which counts up, beside the same point built and queued with
influxdb-client's batching WriteApi. That writes to a port of this process that takes everything, as ours does: nothing
waits for a server. Also measured, in processes of their own: the memory of 600,000 points that wait for a server, and
the time to the end of a process that logs three points and ends.
"""

from __future__ import annotations

import gc
import http.server
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from race import Goal, finish, medians, report

CALLS = 1000
REPETITIONS = 21
POINTS = 600_000
MEGABYTES = 400.0
ENDS = 7
POINTS_AT_THE_END = 3

ENDING = """
import sys, time
import tachograph.pipeline.lifecycle
from tachograph.logger import MetricsLogger
logger = MetricsLogger(host="127.0.0.1", port=int(sys.argv[1]), token="t", role="miner")
for step in range(3):
    logger.log("train", {"step": step}, {"loss": 0.5})
print(time.time(), flush=True)
"""


class Taking(http.server.BaseHTTPRequestHandler):
    """Takes every write, and notes when."""

    protocol_version = "HTTP/1.1"
    lines = 0
    last = 0.0

    def do_POST(self) -> None:
        """Take a write."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        Taking.lines += len(body.splitlines())
        Taking.last = time.time()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serve() -> int:
    """Run a server in the background; return its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)


def calls(port: int) -> list[Goal]:
    """Measure a call."""
    from influxdb_client import InfluxDBClient, Point, WriteOptions

    from tachograph.logger import MetricsLogger
    from tachograph.recording import journal

    # Its timer's thread keeps the process alive until the interval is over.
    client = InfluxDBClient(url=f"http://127.0.0.1:{port}", token="t", org="o")  # noqa: S106 - no real token
    api = client.write_api(WriteOptions(batch_size=10 * CALLS, flush_interval=60_000))
    logger = MetricsLogger(prefix="miner", role="miner")

    def theirs() -> None:
        for step in range(CALLS):
            point = Point("train").tag("step", step).tag("split", "a").tag("host", "node-7")
            api.write("b", "o", point.field("loss", 0.5 * step).field("accuracy", 0.25 * step))

    def ours() -> None:
        log = logger.log
        for step in range(CALLS):
            log(
                "train",
                {"step": step, "split": "a", "host": "node-7"},
                {"loss": 0.5 * step, "accuracy": 0.25 * step},
            )

    def left() -> None:  # events leave in another thread
        journal.default._events.clear()  # noqa: SLF001

    def and_drained() -> None:
        for step in range(CALLS):
            logger.log(
                "train",
                {"step": step, "split": "a", "host": "node-7"},
                {"loss": 0.5 * step, "accuracy": 0.25 * step},
            )
        journal.default.drain()

    cost = medians(
        {"theirs": theirs, "ours": ours, "left": left, "drained": and_drained}, calls=CALLS, repetitions=REPETITIONS
    )
    api.close()
    client.close()
    logger.close()
    return [
        Goal("log / Point and write_api.write", cost["ours"], cost["theirs"], 1 / 8),
        Goal("log, and drained in the same thread / the same", cost["drained"], cost["theirs"], 1),
    ]


def resident() -> float:
    """Return the megabytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def fill() -> None:
    """Print the megabytes of waiting points."""
    from tachograph.logger import MetricsLogger
    from tachograph.recording import journal

    logger = MetricsLogger(prefix="miner", role="miner")
    before = resident()
    for step in range(POINTS):
        logger.log(
            "train",
            {"step": step, "split": "train", "host": "node-7"},
            {"loss": 0.5 * step, "accuracy": 0.25 * step},
        )
    if len(journal.default) != POINTS:
        raise RuntimeError(f"{len(journal.default)} points wait, not {POINTS}")
    print(resident() - before)


def waiting() -> list[Goal]:
    """Measure the memory."""
    command = [sys.executable, __file__, "--fill"]
    taken = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - our own
    return [Goal(f"{POINTS:,} points that wait", taken, MEGABYTES, 1, "MB")]


def ending(port: int) -> list[Goal]:
    """Measure the end of a process."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ENDS):
            before = Taking.lines
            command = [sys.executable, "-c", ENDING, str(port)]
            environ = {**os.environ, "TACHOGRAPH_STORE": folder}
            ended = subprocess.run(  # noqa: S603 - our own
                command, check=True, stdout=subprocess.PIPE, text=True, env=environ, cwd=folder
            )
            gone = time.time()
            arrived = Taking.lines - before == POINTS_AT_THE_END  # else they wait on the disk for the next process
            seconds.append(max(gone, Taking.last) - float(ended.stdout) if arrived else math.inf)
    return [
        Goal("three points, from the last one to the process's end", statistics.median(seconds) * 1e3, 1e3, 1, "ms")
    ]


def main() -> None:
    """Measure, print and judge."""
    if "--fill" in sys.argv:
        fill()
        return
    port = serve()
    finish(report("MetricsLogger", [*calls(port), *waiting(), *ending(port)]))


if __name__ == "__main__":
    main()
