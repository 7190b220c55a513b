"""The program whose disk fails: it records a number each millisecond, and reports its longest wait at its end.

``python disk_program.py KIND REPORT SECONDS``: ``KIND`` is the destination, ``REPORT`` a file elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tachograph
from tachograph import Metric, put_metric
from tachograph.logger import MertricsLoggerWriteOptions, MetricsLogger
from tachograph.recording import registry
from tachograph.recording.points import NumberPoint

STATUS = 7  # its exit status, whatever the disk does
PERIOD = 0.001
_MARK_EVERY = 0.05


def recorder(kind: str) -> tuple[Callable[[int], None], Callable[[], object]]:
    """Start the destination, and return two functions: one records a number, one ends it."""
    if kind == "influxdb":
        tachograph.start(metrics="none", logs=["none"], interval=0.1)
        logger = MetricsLogger(max_queue_size=400, write_options=MertricsLoggerWriteOptions(100))
        return lambda number: logger.log("train", {"phase": "a"}, {"n": number}), logger.close
    metrics = [kind] if kind == "jsonl" else "none"
    jsonl = {"jsonl": os.environ["DISK_JSONL"]} if kind == "jsonl" else {}
    tachograph.start(metrics=metrics, logs=[kind], interval=0.1, **jsonl)
    metric = Metric("n", throttle=None)

    def record(number: int) -> None:
        metric.record(float(number), at=number)
        put_metric("steps.success", 1, "attack")

    return record, tachograph.shutdown


def main(kind: str, report: Path, seconds: float) -> int:
    """Record, end, and report."""
    record, end = recorder(kind)
    marks: list[tuple[float, int]] = []
    longest, number = 0.0, 0
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        number += 1
        began = time.perf_counter()
        record(number)
        longest = max(longest, time.perf_counter() - began)
        if not marks or now - marks[-1][0] > _MARK_EVERY:
            marks.append((now, number))
        time.sleep(PERIOD)
    began = time.monotonic()
    end()
    dropped = {
        "/".join(str(value) for _, value in sorted(point.attributes)): point.value
        for metric in registry.default.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint)
    }
    ended = time.monotonic() - began
    found = {"recorded": number, "longest": longest, "ended": ended, "marks": marks, "dropped": dropped}
    report.write_text(json.dumps(found))
    return STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
