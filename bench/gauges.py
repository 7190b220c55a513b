"""The cost of gauges' curves a day: ``python bench/gauges.py [--seconds 8]``; about a minute.

For 20, 100 and 500 gauges: processor time of a rank that records each ten times a second, beyond the same loop with
recording off, and of the hub; and the size of the store. A rank of its own is measured. The hub is given the records
of its ranks as they arrive: packed, of one stream each, a record a gauge every two or ten seconds. Both are scaled to a
day. Of 64 ranks the hub's row is that of eight, in proportion, and says so. The size is that of 20 long curves a point,
for all rows: a run's file of more than 2 GiB is thinned.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from journal import served
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub.hub import Hub
from tachograph.recording.gauge_curve import FEW, FIRST, INTERVAL, LONG_INTERVAL
from tachograph.recording.journal import packed_event
from tachograph.recording.packed_points import PackedPoints

RANKS, GAUGES = (1, 8, 64), (20, 100, 500)
MEASURED = 8  # ranks of a hub
POINTS, LONG = 16_000, 60_000  # that a hub is given, about; of long curves
TOGETHER = 2.0  # seconds of points in a record, where there are several in that time
DAY = 86_400

RANK = f"""
import sys, time
import tachograph

gauges, seconds = int(sys.argv[1]), float(sys.argv[2])
pipeline = tachograph.start(metrics="otlp", traces="none", logs="otlp", interval=1.0, run_id="job")
names = [f"gauge{{number}}" for number in range(gauges)]
for value in range({FIRST}):
    for name in names:
        tachograph.put_metric(name, float(value), "train")
time.sleep(3)  # these have left
pipeline.flush(20)
before, began, step = time.process_time(), time.perf_counter(), 0
while step < seconds * 10:
    for name in names:
        tachograph.put_metric(name, 1 / (step + 3), "train")
    step += 1
    time.sleep(max(0.0, began + step / 10 - time.perf_counter()))
print(time.process_time() - before)
"""


def rank(gauges: int, seconds: float, folder: str, **more: str) -> float:
    """Return the processor time of a rank in so many seconds."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_"))}
    environ |= {
        "TACHOGRAPH_STORE": folder,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TACHOGRAPH_SYSTEM_METRICS": "false",
        **more,
    }
    command = [sys.executable, "-c", RANK, str(gauges), str(seconds)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - see above
    return float(done.stdout)


def interval(gauges: int) -> float:
    """Return the seconds a point of a gauge."""
    return INTERVAL if gauges <= FEW else LONG_INTERVAL


def hub(ranks: int, gauges: int, most: int = POINTS) -> tuple[float, float]:
    """Return the processor time of a hub for a point, and the bytes that its store has for it."""
    rows = max(1, round(TOGETHER / interval(gauges)))
    turns = max(2, most // (ranks * gauges * rows))
    taken, points = 0.0, 0
    with tempfile.TemporaryDirectory() as name:
        made = Hub(Path(name), run="job")
        for turn in range(turns):
            for number in range(ranks):
                body = _records(number, gauges, turn, rows)
                before = time.process_time()
                made.receive_logs(ExportLogsServiceRequest.FromString(body))
                taken += time.process_time() - before
                points += gauges * rows
        before = time.process_time()
        made.close()
        taken += time.process_time() - before
        size = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
    return taken / points, size / points


def _records(number: int, gauges: int, turn: int, rows: int) -> bytes:
    events = []
    places = range(turn * rows, (turn + 1) * rows)
    times = array("q", [(place + 1) * int(interval(gauges) * 1e9) for place in places])
    x = array("d", [10.0 * place for place in places])
    for gauge in range(gauges):
        values = array("d", [1 / (place + 3 + gauge) for place in places])
        more = {"min": values, "max": values, "count": array("q", [10] * rows), "nonfinite": array("q", [0] * rows)}
        packed = PackedPoints((f"gauge{gauge}",), "train", (), "", 0, times, x, values, more)
        events.append(packed_event(packed, 1 + (turn * gauges + gauge) * rows, f"stream.{number}"))
    about = {"dl.run.id": "job", "service.instance.id": str(number), "dl.rank": number}
    requests = log_requests(events, about, lambda *_: None, lambda: None)
    return b"".join(request.SerializeToString() for request, _ in requests)


def main() -> None:
    """Measure, and print the table."""
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 8.0
    _, size = hub(1, GAUGES[0], LONG)
    print(f"{size:.0f} bytes a point of a long curve\n")
    print("| ranks x gauges | points a day | a rank, of a core | the hub, of a core | the store |")
    print("|---|--:|--:|--:|--:|")
    for gauges in GAUGES:
        with tempfile.TemporaryDirectory() as name, served(name) as url:
            off = rank(gauges, seconds, name, OTEL_SDK_DISABLED="true")
            own = (rank(gauges, seconds, name, OTEL_EXPORTER_OTLP_ENDPOINT=url) - off) / seconds
        for ranks in RANKS:
            each, _ = hub(min(ranks, MEASURED), gauges)
            a_day = ranks * gauges * DAY / interval(gauges)
            mark = "" if ranks <= MEASURED else " (of eight ranks)"
            print(
                f"| {ranks} x {gauges} | {a_day / 1e6:,.1f} million | {own:.2%} | "
                f"{each * a_day / DAY:.2%}{mark} | {size * a_day / 2**30:,.2f} GiB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
