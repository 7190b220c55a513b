"""Functions that record, on their way to another process: by cloudpickle as Ray and joblib do it, by spawn, by loky."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tachograph
from tachograph import Metric, elastic, monitor

pytest.importorskip("cloudpickle")

# What the program defines is in its main module, so cloudpickle writes it by value.
DEFINITIONS = """
import asyncio
from datetime import datetime, timedelta

import tachograph
from tachograph import MetricsLogger, elastic, monitor
from tachograph.monitor import log_event

@tachograph.prof(group="sent")
def profiled(x):
    return x + 1

@tachograph.prof(group="sent")
def generator(n):
    yield from range(n)

@tachograph.prof(group="sent")
async def coroutine():
    return 5

@tachograph.prof(group="sent")
class Profiled:
    def method(self):
        return 1

    @staticmethod
    def static():
        return 2

class WithMethods:
    @tachograph.prof(group="sent")
    def method(self):
        return 1

    @property
    @tachograph.prof(group="sent")
    def width(self):
        return 2

@tachograph.task
def task():
    return 7

histogram = tachograph.declare("histogram", group="sent", kind="histogram", unit="s", boundaries=(0.5, 1.0))
counter = tachograph.declare("counter", group="sent", kind="counter")
gauge = tachograph.declare("gauge.with.dots and 100 % more", group="sent", kind="gauge")
bound_histogram, bound_counter, bound_gauge = histogram.bind(part="a.b"), counter.bind(), gauge.bind(rank=1)
record = histogram.record
loss = tachograph.Metric("loss", group=tachograph.MetricGroup("sent", units="epoch"), throttle=None)
record_loss = loss.record
stat = monitor.Stat("stat", [monitor.MEAN], timedelta(hours=1))
add = stat.add
logger = MetricsLogger(uid="a", config={"lr": 0.1})
stream = elastic.getStream("sent")
event = monitor.Event("sent", datetime(2026, 1, 1), {})

bound_histogram(0.25)  # values stay where they were recorded: none of these goes along
record_loss(2.0)
add(3.0)

USES = {
    "a profiled function": lambda: profiled(1),
    "a profiled generator": lambda: list(generator(3)),
    "a profiled coroutine": lambda: asyncio.run(coroutine()),
    "a profiled class": lambda: (Profiled().method(), Profiled.static()),
    "a class with profiled methods": lambda: (WithMethods().method(), WithMethods().width),
    "a task": lambda: task(),
    "put_metric of the module": lambda: elastic.put_metric("put", 1.0, "sent"),
    "put_metric of the package": lambda: tachograph.put_metric("put", 1.0, "sent"),
    "an instrument": lambda: histogram.record(0.75),
    "record of an instrument": lambda: record(0.75),
    "a bound histogram": lambda: bound_histogram(0.75),
    "a bound counter": lambda: bound_counter(2),
    "a bound gauge": lambda: bound_gauge(2),
    "a stream": lambda: stream.add_value("streamed", 1.0),
    "a Metric": lambda: loss.record(1.0, at=2),
    "record of a Metric": lambda: record_loss(1.0, at=2),
    "a Stat": lambda: (stat.add(1.0), stat.count),
    "add of a Stat": lambda: add(1.0),
    "a logger": lambda: logger.log("point", {}, {"field": 1.0}),
    "an event": lambda: log_event(event),
    "log": lambda: tachograph.log({"logged": 1.0}),
}
"""
SENDER = """
import pickle, sys
import cloudpickle
first = {name: cloudpickle.dumps(use) for name, use in USES.items()}
for use in USES.values():
    use()
after_a_call = {name: cloudpickle.dumps(use) for name, use in USES.items()}
pickle.dump([first, after_a_call], sys.stdout.buffer)
"""
RECEIVER = """
import json, pickle, sys
from tachograph.recording.registry import default
from tachograph.testing import capture

def added_to_stats():
    found = [metric for metric in default.collect() if metric.scope == "torch.monitor" and metric.name == "stat"]
    return sum(metric.points[0].summary.count for metric in found)

def recorded():
    for metric in default.collect():
        if metric.scope in ("sent", "tachograph.task", "tachograph.logger"):
            yield from (f"{metric.scope} {metric.name} {getattr(point, 'value', None) or point.summary.total.value()}"
                for point in metric.points if "duration" not in metric.name)

found = []
for uses in pickle.load(sys.stdin.buffer):
    found.append({})
    for name, use in uses.items():
        before = added_to_stats()
        with capture():
            result = pickle.loads(use)()
            found[-1][name] = [str(result), sorted(recorded()), added_to_stats() - before]
print(json.dumps(found))
"""
CALLS = "sent function.calls 1"
EXPECTED = {
    "a profiled function": ["2", [CALLS]],
    "a profiled generator": ["[0, 1, 2]", [CALLS]],
    "a profiled coroutine": ["5", [CALLS]],
    "a profiled class": ["(1, 2)", [CALLS, CALLS]],
    "a class with profiled methods": ["(1, 2)", [CALLS, CALLS]],
    "a task": ["7", ["tachograph.task function.calls 1"]],
    "put_metric of the module": ["None", ["sent put 1.0"]],
    "put_metric of the package": ["None", ["sent put 1.0"]],
    "an instrument": ["None", ["sent histogram 0.75"]],
    "record of an instrument": ["None", ["sent histogram 0.75"]],
    "a bound histogram": ["None", ["sent histogram 0.75"]],
    "a bound counter": ["None", ["sent counter 2"]],
    "a bound gauge": ["None", ["sent gauge.with.dots and 100 % more 2"]],
    "a stream": ["None", ["sent streamed 1.0"]],
    "a Metric": ["None", ["sent loss 1.0"]],
    "record of a Metric": ["None", ["sent loss 1.0"]],
    "a Stat": ["(None, 1)", []],
    "add of a Stat": ["None", []],
    "a logger": ["None", ["tachograph.logger point.field 1.0"]],
    "an event": ["None", []],
    "log": ["None", []],
}


def run(program: str, sent: bytes = b"") -> bytes:
    """Run a program and return what it prints."""
    ended = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


@pytest.fixture(scope="module")
def received() -> list[dict[str, Any]]:
    """What another process has recorded, by what was sent to it: before its first call in the sender, and after it."""
    found: list[dict[str, Any]] = json.loads(run(RECEIVER, run(DEFINITIONS + SENDER)))
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_what_cloudpickle_takes_by_value_records_in_the_other_process(
    name: str, received: list[dict[str, Any]]
) -> None:
    """A function of the main module that records can be sent, before its first call and after it, and records there."""
    added_to_stats = int(name in {"a Stat", "add of a Stat"})
    assert [found[name] for found in received] == [[*EXPECTED[name], added_to_stats]] * 2


def test_a_pickle_in_the_same_process_is_the_same_function() -> None:
    """A bound record, ``Metric.record``, ``Stat.add`` and ``elastic`` are what they were, by pickle and cloudpickle."""
    import cloudpickle

    stat = monitor.Stat("pickled", [monitor.MEAN], timedelta(hours=1))
    bound = tachograph.declare("pickled", kind="histogram").bind(part='"a.b"\n%2E')
    same: list[Any] = [bound, Metric("pickled").record, stat.add, elastic, monitor.log_event, tachograph.log]
    twins = Metric("pickled"), Metric("pickled")
    for each in [*same, *(twin.record for twin in twins)]:
        assert cloudpickle.loads(cloudpickle.dumps(each)) is each
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            if each is not elastic or protocol >= 2:
                assert pickle.loads(pickle.dumps(each, protocol)) is each  # noqa: S301 - our own


@pytest.mark.parametrize("way", ["spawn", "loky"])
def test_workers_get_a_bound_record(way: str, tmp_path: Path) -> None:
    """A process that multiprocessing spawns, and a worker of loky's, get a bound record as an argument, and use it."""
    if way == "loky":
        pytest.importorskip("joblib")
    program = tmp_path / "program.py"
    program.write_text(
        DEFINITIONS
        + f"""
import multiprocessing, sys

def work(record, number):
    from tachograph.testing import capture

    with capture() as captured:
        record(float(number))
        profiled(number)
        summary = captured.value("histogram", "sent", part="a.b")
        return summary.count, summary.total.value(), "function.calls" in captured.names("sent")

if __name__ == "__main__":
    if {way!r} == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.starmap(work, [(bound_histogram, 3)]))
    else:
        import joblib
        print(joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(work)(bound_histogram, n) for n in [3])[:1])
"""
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert ended.stdout == "[(1, 3.0, True)]\n", ended.stderr
