"""From ``Metric.record`` in a process, over HTTP and the hub's store, to the export: every point, once, in order."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubs import Command, command
from programs import environment, run, write
from servers import free_port, wait_until
from tachograph import runs

RECORDING = """
import math, os, sys, time
import tachograph
from tachograph import Metric, MetricGroup

def value(step):
    return {7: math.nan, 8: math.inf, 9: -math.inf}.get(step % 1000, 1 / (step + 3))

def started(**more):
    return tachograph.start(metrics="none", traces="none", logs="otlp", run_id="job", **more)
"""

WHOLE = (
    RECORDING
    + """
with started() as pipeline:
    metric = Metric("loss", group=MetricGroup("training", units="step"), throttle=None)
    for step in range(5000):
        metric.record(value(step), at=step % 4000)
    assert pipeline.flush(20)
"""
)

KILLED = (
    RECORDING
    + """
pipeline = started(interval=0.5)
metric = Metric("loss", throttle=None)
began = time.monotonic()
for step in range(10**9):
    metric.record(value(step), at=step)
    os.write(1, b"%d %f\\n" % (step, time.monotonic() - began))
    time.sleep(0.001)
"""
)

AWAY = (
    RECORDING
    + """
pipeline = started(interval=0.2)
metric = Metric("loss", throttle=None)
for step in range(500):
    metric.record(value(step), at=step)
time.sleep(1.0)
for step in range(500, 1000):
    metric.record(value(step), at=step)
print("recorded", flush=True)
assert pipeline.flush(30)
pipeline.shutdown(5)
"""
)

RANK = (
    RECORDING
    + """
with started(interval=1.0) as pipeline:
    metric = Metric("loss", throttle=None)
    began = time.perf_counter()
    for step in range(int(sys.argv[1])):
        metric.record(value(step), at=step)
        time.sleep(max(0.0, began + (step + 1) / 200 - time.perf_counter()))
    assert pipeline.flush(20)
"""
)


def value(step: int) -> float:
    """Return what the programs record at a step."""
    return {7: math.nan, 8: math.inf, 9: -math.inf}.get(step % 1000, 1 / (step + 3))


def endpoint(hub: Command) -> dict[str, str]:
    """Return the variable that sends everything to a hub."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": hub.url}


def read_back(folder: Path) -> list[tuple[int, float, float]]:
    """Return branch, x and value of each point, from the export."""
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "runs", "export", "job", "--format", "jsonl", "--metric", "loss"],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["branch"], line["x"], float(line["value"])) for line in found]


def test_five_thousand_records_are_five_thousand_points(tmp_path: Path) -> None:
    """An unthrottled metric's values come out of the export one by one, a resumed part as a second branch."""
    with command(tmp_path, "--quiet") as hub:
        done = run(tmp_path, WHOLE, **endpoint(hub))
        assert (done.returncode, done.stderr) == (0, "")
        found = read_back(tmp_path)  # while the hub writes
    wanted = [(int(step >= 4000), float(step % 4000), value(step)) for step in range(5000)]
    assert repr(found) == repr(wanted)
    (about,) = runs.open("job", tmp_path / "store").metrics()
    assert (about.group, about.definition["x_units"], about.points, about.nonfinite) == ("training", "step", 5000, 15)


def test_a_run_resumed_shows_both_branches(tmp_path: Path) -> None:
    """What was recorded before the program was started again from step 500 is there beside what came after."""
    resumed = RECORDING + (
        "with started() as pipeline:\n"
        "    metric = Metric('loss', throttle=None)\n"
        "    for step in range(int(sys.argv[1]), int(sys.argv[2])): metric.record(value(step), at=step)\n"
    )
    with command(tmp_path, "--quiet") as hub:
        for restart, (first, last) in enumerate([("0", "700"), ("500", "1000")]):
            more = {"TORCHELASTIC_RESTART_COUNT": str(restart), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
            assert run(tmp_path, resumed, first, last, **endpoint(hub), **more).returncode == 0
    found = read_back(tmp_path)
    wanted = [(0, float(step), value(step)) for step in range(700)]
    wanted += [(1, float(step), value(step)) for step in range(500, 1000)]
    assert repr(found) == repr(wanted)
    (about,) = runs.open("job", tmp_path / "store").metrics()
    assert (about.ranks, about.branches) == ((0,), 2)


@pytest.mark.timing
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    """After SIGKILL everything but the last interval is there, in order, without a hole."""
    program = write(tmp_path, KILLED)
    with (
        command(tmp_path, "--quiet") as hub,
        subprocess.Popen(
            [sys.executable, str(program)],
            env=environment(tmp_path, **endpoint(hub)),
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None
        recorded = []
        for line in job.stdout:
            recorded.append(line.split())
            if float(recorded[-1][1]) > 3:
                break
        os.kill(job.pid, signal.SIGKILL)
        recorded += [line.split() for line in job.stdout.read().splitlines() if len(line.split()) == 2]
        job.wait(10)
        time.sleep(0.5)
        found = read_back(tmp_path)
    assert repr(found) == repr([(0, float(step), value(step)) for step in range(len(found))])
    end = float(recorded[-1][1])
    sure = sum(float(at) < end - 1.5 for _, at in recorded)  # the interval, and what this machine may be late by
    assert len(found) >= sure > 500


def test_a_hub_that_was_away(tmp_path: Path) -> None:
    """A hub that begins later, and one that is killed and begins again, get everything, once."""
    port = free_port()
    program = write(tmp_path, AWAY)
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    with (
        command(tmp_path, "--quiet", "--port", str(port)) as first,
        subprocess.Popen(
            [sys.executable, str(program)], env=environment(tmp_path, **address), stdout=subprocess.PIPE, text=True
        ) as job,
    ):
        store = tmp_path / "store"
        wait_until(lambda: any(each.points for each in runs.list(store)), 20, lambda: "no points")
        first.process.kill()
        first.process.wait()
        assert job.stdout is not None
        assert job.stdout.readline() == "recorded\n"
        time.sleep(0.5)
        with command(tmp_path, "--quiet", "--port", str(port)):
            assert job.wait(40) == 0
    assert repr(read_back(tmp_path)) == repr([(0, float(step), value(step)) for step in range(1000)])


@pytest.mark.timeout(120)
def test_eight_ranks_and_nothing_is_missing(tmp_path: Path) -> None:
    """Eight processes that record 200 points a second each: all of them are in the store."""
    program, seconds = write(tmp_path, RANK), 4
    with command(tmp_path, "--quiet") as hub:
        jobs = [
            subprocess.Popen(
                [sys.executable, str(program), str(200 * seconds)],
                env=environment(tmp_path, RANK=str(rank), WORLD_SIZE="8", LOCAL_RANK=str(rank), **endpoint(hub)),
            )
            for rank in range(8)
        ]
        assert [job.wait(90) for job in jobs] == [0] * 8
        hub.process.terminate()
        assert hub.end() == 0
    found = runs.open("job", tmp_path / "store")
    for rank in range(8):
        mine = [(each.x, each.value) for each in found.points("loss", rank=rank)]
        assert repr(mine) == repr([(float(step), value(step)) for step in range(200 * seconds)])
