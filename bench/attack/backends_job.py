"""A training loop for ``backends.py``: records for a while, ends, and reports after its last export.

Its argument is JSON: ``door`` (``otlp`` or ``influxdb``), ``seconds``, ``settings`` for the door, ``end`` (``exit``,
``shutdown``), ``witness`` (a second destination notes what is handed out), ``report`` (a path), and for the process
that delivers what another one has left: ``waits`` (the folder that has to become empty).
"""

from __future__ import annotations

import atexit
import json
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

asked: dict[str, Any] = json.loads(sys.argv[1])
report: dict[str, Any] = {"steps": 0, "handed_events": 0, "handed_points": 0, "handed_counter": 0}
calls: list[float] = []


def leave_report() -> None:
    """Write the counts of recorded and of lost values, once nothing is delivered any more."""
    from tachograph.recording import registry

    lost, errors = {}, 0
    for metric in registry.default.collect():
        if metric.name == "tachograph.dropped":
            for point in metric.points:
                told = dict(point.attributes)
                lost[f"{told['destination']} {told['reason']}"] = point.value
        elif metric.name == "tachograph.errors":
            errors = sum(point.value for point in metric.points)
    median = statistics.median(calls) if calls else 0.0
    report.update(dropped=lost, errors=errors, median=median, longest=max(calls, default=0.0))
    Path(asked["report"]).write_text(json.dumps(report), encoding="utf-8")


atexit.register(leave_report)  # before tachograph is imported, whose last export comes before it then

import tachograph  # noqa: E402
from tachograph.elastic import put_metric  # noqa: E402
from tachograph.logger import MetricsLogger  # noqa: E402
from tachograph.monitor import Event, log_event  # noqa: E402

SCHEDULED = Path("/proc/thread-self/schedstat")  # proc(5): seconds on a core, and seconds that it waited for one, in ns


def witness(batch: Any) -> None:
    """Note each batch that every destination was handed."""
    report["handed_events"] += len(batch.events)
    for metric in batch.metrics:
        report["handed_points"] += len(metric.points)
        if metric.name == "step.success":
            report["handed_counter"] = metric.points[0].value


def waited() -> float:
    """Return the seconds that this thread has waited for a core: those are the machine's."""
    return int(SCHEDULED.read_text().split()[1]) / 1e9


def train(record: Any) -> None:
    """Record a step every few milliseconds, and note how long each took that was not the machine's."""
    until = time.monotonic() + asked["seconds"]
    while time.monotonic() < until:
        report["steps"] += 1
        before, began = waited(), time.perf_counter()
        record(report["steps"])
        spent = time.perf_counter() - began
        calls.append(max(spent - (waited() - before), 0.0))
        time.sleep(0.002)
    report["ended"] = time.time()
    print("trained", flush=True)


def over_otlp() -> None:
    """Train with counters, histograms and events."""
    wanted = ["otlp", witness] if asked["witness"] else ["otlp"]
    pipeline = tachograph.start(metrics=wanted, logs=wanted, traces="none", **asked["settings"])

    def record(number: int) -> None:
        put_metric("step.success", 1, "train")
        put_metric("step.duration.ms", number % 7, "train")
        log_event(Event("train.step", datetime.now(UTC), {"n": number}))

    train(record)
    if asked["end"] == "shutdown":
        pipeline.shutdown()


def over_influxdb() -> None:
    """Train with a MetricsLogger, once its client is loaded: before that the end waits for it."""
    import influxdb_client  # noqa: F401

    logger = MetricsLogger(**asked["settings"])
    train(lambda number: logger.log("train", {"split": "a"}, {"n": number, "loss": number / 7}))
    left, until = Path(asked.get("waits", "/nowhere")), time.monotonic() + 15
    while any(path.is_file() for path in left.rglob("*")) and time.monotonic() < until:
        time.sleep(0.05)
    if asked["end"] == "shutdown":
        logger.close()


if __name__ == "__main__":
    {"otlp": over_otlp, "influxdb": over_influxdb}[asked["door"]]()
