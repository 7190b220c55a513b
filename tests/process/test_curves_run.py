"""Every door's values as curves of a real run: in the store, in `runs`, `export` and `top`, from one rank or two."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tachograph
from launches import run, run_program
from programs import environment, write
from tachograph.runs.buckets import HistogramValues
from tachograph.runs.file import RunFile, look
from tachograph.runs.run import Run
from tachograph.studio.overview import functions

# What is recorded, by group and metric, as pairs of x and value; x is None for the time. The program notes the same.
NOTING = """
import json, math, os, time
noted = {}

def note(group, metric, x, value):
    noted.setdefault(f"{group}/{metric}", []).append([x, value])

def done():
    with open(f"noted-{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump(noted, file)
"""
GAUGE = """
import tachograph
for number in range(700):
    value = 50.0 if number == 123 else math.nan if number == 321 else 1 / (number + 1)
    tachograph.put_metric("loss", value, "gauges")
    note("gauges", "loss", number, value)
"""
LOG = """
import tachograph
for step in [*range(2000), *range(1900, 2100)]:
    loss = 50.0 if step == 77 else 2 / (step + 1)
    tachograph.log({"epochs/loss": loss, "valid": {"accuracy": step / 3}, "valid/note": "text"}, step=step)
    note("epochs", "loss", step, loss)
    note("valid", "accuracy", step, step / 3)
"""
CHANGING_KEYS = """
import tachograph

def log(step, **values):
    tachograph.log({f"{group}/{key}": value for key, value in values.items()}, step=step)
    for key, value in values.items():
        note(group, key, step, value)

group = "usual"  # the loss each step, with the accuracy each fifth
for step in range(42):
    cost = 100 / (step + 1)
    log(step, cost=cost, accuracy=step / 50) if step % 5 == 0 else log(step, cost=cost)

group = "phases"  # pre-training, then fine-tuning, which logs other keys and begins at 0 again
for step in range(30):
    log(step, loss=30 - step, lr=0.1)
for step in range(20):
    log(step, loss=3 - step / 10, reward=step)

group = "three"  # three key sets that take turns, each with a metric of its own and one in common
for step in range(31):
    log(step, loss=31 - step, **{"abc"[step % 3]: step})

group = "resumed"  # after a restart only one metric is logged from an earlier step on
for step in range(20):
    log(step, loss=20 - step, accuracy=step)
for step in range(10, 25):
    log(step, loss=25 - step)
log(25, loss=0.5, accuracy=25)
"""
LOGGER = """
from tachograph import MetricsLogger
logger = MetricsLogger(role="miner", uid="7")
for step in [*range(300), *range(250, 400)]:
    loss = 50.0 if step == 77 else 2 / (step + 1)
    logger.log("train", {"step": step, "split": "a"}, {"loss": loss, "lr": 1e-3, "name": "text"})
    note("train", "loss", step, loss)
    note("train", "lr", step, 1e-3)
    logger.log("machine", {}, {"temperature": step})
    note("machine", "temperature", None, step)
"""
STAT = """
from tachograph.monitor import Aggregation, Stat, register_event_handler

def closed(event):
    if event.name == "torch.monitor.Stat":
        for view, value in event.data.items():
            note("torch.monitor", view, None, value)

register_event_handler(closed)
stat = Stat("load", [Aggregation.MEAN, Aggregation.P99, Aggregation.MAX, Aggregation.COUNT], 0.05)
for number in range(300):
    stat.add(number / 3)
    time.sleep(0.002)
del stat
until = time.monotonic() + 30  # handlers of windows that the timer closes have a thread of their own
while sum(value for _, value in noted.get("torch.monitor/load.count", [])) < 300 and time.monotonic() < until:
    time.sleep(0.02)
"""
TORCH = """
from datetime import timedelta
from torch import monitor

def closed(event):
    for view, value in event.data.items():
        note("torch.monitor", view, None, value)

def measured():
    stat = monitor.Stat("forward", [monitor.Aggregation.MEAN, monitor.Aggregation.MAX], timedelta(milliseconds=50))
    for number in range(300):
        stat.add(number / 3)
        time.sleep(0.002)

handle = monitor.register_event_handler(closed)
measured()
time.sleep(0.5)
monitor.unregister_event_handler(handle)
"""
ENDING = "\ndone()\n"


def launched(folder: Path, program: str, *, ranks: int) -> Run:
    """Run a program under ``tachograph run``, and return the run that its hub has recorded."""
    options = ("--run-id", "job", "--port", "0", "--linger", "0")
    said = {"TACHOGRAPH_STORE": str(folder / "store")}
    if ranks == 1:
        done = run_program(folder, program, options=options, **said)
    else:
        path = write(folder, program)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(path)]
        done = run(folder, sys.executable, *torchrun, options=options, timeout=170, **said)
    assert done.returncode == 0, done.stderr
    assert "no hub" not in done.stderr, done.stderr  # the machine is too busy to start one in time
    return tachograph.runs.open("job", folder / "store")


def printed(folder: Path, *arguments: str) -> str:
    """Return what a command of ours prints about the run."""
    command = [sys.executable, "-m", "tachograph", *arguments, "--store", str(folder / "store")]
    wide = environment(folder, COLUMNS="200")
    return subprocess.run(command, env=wide, capture_output=True, text=True, timeout=60, check=True).stdout


def same(found: Sequence[tuple[float, float]], noted: Sequence[tuple[float | None, float]]) -> bool:
    """Tell whether points are those that were noted, in order; where no x was noted it is a time, which ascends."""
    xs = [x for x, _ in found]
    if noted[0][0] is None:
        return repr([value for _, value in found]) == repr([float(value) for _, value in noted]) and xs == sorted(xs)
    return repr(found) == repr([(float(x or 0), float(value)) for x, value in noted])


def check(folder: Path, found: Run, instances: dict[str, int | None]) -> None:
    """Check that each way to read a run gives back what its ranks have noted, each in a file of its own."""
    exported = list(csv.DictReader(io.StringIO(printed(folder, "runs", "export", "job"))))
    listed, top = printed(folder, "runs", "show", "job"), printed(folder, "top", "--once", "job")
    metrics = {(each.group, each.name): each for each in found.metrics()}
    for suffix, rank in instances.items():
        noted: dict[str, list[tuple[float | None, float]]] = json.loads((folder / f"noted-{suffix}.json").read_text())
        assert noted
        for name, points in noted.items():
            group, _, metric = name.partition("/")
            read = [each for each in found.points(metric, rank=rank) if each.group == group]
            assert same([(each.x, each.value) for each in read], points), name
            of_file = [
                (float(row["x"]), float(row["value"]))
                for row in exported
                if (row["group"], row["metric"], row["rank"]) == (group, metric, "" if rank is None else str(rank))
            ]
            assert same(of_file, points), name
            frame = found.to_pandas(metric, rank=rank)
            frame = frame[frame["group"] == group]
            assert same(list(zip(frame["x"], frame["value"], strict=True)), points), name
            finite = [value for _, value in points if value == value]  # noqa: PLR0124 - NaN
            thinned = [bucket for curve, _, buckets in found.thinned(metric, pairs=50, rank=rank) for bucket in buckets
                       if curve.group == group]  # fmt: skip
            assert (min(each.low for each in thinned), max(each.high for each in thinned)) == (min(finite), max(finite))
            total = metrics[group, metric]
            assert total.min is not None
            assert total.max is not None
            assert (total.min <= min(finite), total.max >= max(finite)) == (True, True)
            assert total.points >= len(points)
            assert any(line.split()[:2] == [metric, group] for line in listed.splitlines()), listed
            assert any(line.startswith(f"{group} / {metric}") for line in top.splitlines()), top
    assert sum(each.points for each in metrics.values()) == len(exported)


@pytest.mark.parametrize(
    "door",
    [
        pytest.param(GAUGE, id="put_metric", marks=pytest.mark.long),
        pytest.param(LOG, id="log", marks=pytest.mark.long),
        pytest.param(LOGGER, id="MetricsLogger"),
        pytest.param(STAT, id="Stat", marks=pytest.mark.long),
    ],
)
def test_a_door_has_its_curves(tmp_path: Path, door: str) -> None:
    """A program of one door, with the imports of its documents, has each of its values in the run, with its x."""
    found = launched(tmp_path, NOTING + door + ENDING, ranks=1)
    check(tmp_path, found, {"": None})
    if door is LOGGER:
        assert {each.branch for each in found.points("loss")} == {0, 1}  # the step went back once
        assert {each.branch for each in found.points("temperature")} == {0}
        (curve,) = found.curves("lr")
        assert {"split", "role", "uid"} <= curve.attributes.keys()
        assert "step" not in curve.attributes


def test_a_curve_of_log_follows_the_order_of_the_calls(tmp_path: Path) -> None:
    """Whatever keys each call has: points, CSV and pandas are in order, and the last value is the last one logged.

    A step that goes back begins a branch of those metrics alone that have been at a later step.
    """
    found = launched(tmp_path, NOTING + CHANGING_KEYS + ENDING, ranks=1)
    check(tmp_path, found, {"": None})

    noted = json.loads((tmp_path / "noted-.json").read_text())
    summaries = {f"{each.curve.group}/{each.curve.metric}": each for each in found.summaries()}
    last = {name: (each.last.x, each.last.value) for name, each in summaries.items() if each.last is not None}
    assert last == {name: tuple(points[-1]) for name, points in noted.items()}

    branches: dict[str, list[int]] = {}
    for name in noted:
        group, _, metric = name.partition("/")
        branches[name] = [each.branch for each in found.points(metric) if each.group == group]
    assert branches.pop("phases/loss") == [0] * 30 + [1] * 20
    assert branches.pop("resumed/loss") == [0] * 20 + [1] * 16
    assert {branch for each in branches.values() for branch in each} == {0}

    (shown,) = [line for line in printed(tmp_path, "runs", "show", "job").splitlines() if line.startswith("cost")]
    assert re.search(r"0 to 41 +2\.38095 +2\.38095 at 41 +100 at 0", shown), shown
    (shown,) = [line for line in printed(tmp_path, "top", "--once").splitlines() if line.startswith("usual / cost")]
    assert "2.381" in shown.split(), shown
    for limit, runs in ((2.4, ["job"]), (2.3, [])):
        lines = printed(tmp_path, "runs", "list", "--filter", f"cost < {limit}", "--json").splitlines()
        assert [json.loads(line)["id"] for line in lines] == runs


@pytest.mark.torch
def test_two_ranks_have_their_curves(tmp_path: Path) -> None:
    """Two ranks of a real torchrun have a curve each of every metric, of all doors and of the real torch.monitor."""
    pytest.importorskip("torch")
    found = launched(tmp_path, NOTING + GAUGE + LOG + LOGGER + STAT.replace("load", "own") + TORCH + ENDING, ranks=2)
    check(tmp_path, found, {"0": 0, "1": 1})
    ranks: dict[tuple[str, str], list[Any]] = {}
    for curve in found.curves():
        ranks.setdefault((curve.group, curve.metric), []).append(curve.rank)
    mine = {
        name: each
        for name, each in ranks.items()
        if name[0] in ("gauges", "epochs", "valid", "train", "machine") or "forward" in name[1]
    }
    assert len(mine) == 8
    assert all(sorted(each) == [0, 1] for each in mine.values()), mine


QUANTILES = """
import random, time
import tachograph

@tachograph.prof
def step():
    time.sleep(0.0104)

own = []
for number in range(150):
    begun = time.perf_counter()
    step()
    own.append(time.perf_counter() - begun)
time.sleep(0.5)
record = tachograph.declare("wait.time", group="g", kind="histogram", unit="s").bind()
chance = random.Random(3)
waits = [chance.lognormvariate(-4, 1.5) for _ in range(5000)] + [30.0]
for wait in waits:
    record(wait)
for name, values in {"step": own, "wait": waits}.items():
    for value in sorted(values):
        note("", name, None, value)
"""


def test_quantiles_are_those_of_the_values(tmp_path: Path) -> None:
    """A function of 10.4 ms shows no 17.5: p50 is within 2 % in `runs`, `top` and for the page, p99 within 2.2 %."""
    found = launched(tmp_path, NOTING + QUANTILES + ENDING, ranks=1)
    noted = json.loads((tmp_path / "noted-.json").read_text())
    top = printed(tmp_path, "top", "--once", "job")
    listed = printed(tmp_path, "runs", "show", "job")
    for name, metric in {"step": "function.duration", "wait": "wait.time"}.items():
        exact = [value for _, value in noted[f"/{name}"]]
        median, high = exact[len(exact) // 2], exact[round(0.99 * (len(exact) - 1))]
        (series,) = found.series(metric)
        assert isinstance(series.value, HistogramValues)
        assert series.value.count == len(exact)
        assert series.value.quantile(0.5) == pytest.approx(median, rel=0.02)
        if name == "wait":  # of 150 steps on a busy machine the slowest two may be far apart
            assert series.value.quantile(0.99) == pytest.approx(high, rel=0.022)
        frame = found.to_pandas(metric)
        assert sum(frame["count"]) == len(exact)
        assert any(row == pytest.approx(median, rel=0.02) for row in frame["p50"]), frame
        (line,) = [line for line in listed.splitlines() if line.startswith(metric)]
        assert f"{series.value.quantile(0.5):.6g}" in line.split(), line
    with look(RunFile(found.path)) as reading:
        (function,), _ = functions(reading)
    median = noted["/step"][75][1]
    assert function["p50"] == pytest.approx(median, rel=0.02)
    assert any(float(shown) == pytest.approx(1000 * median, rel=0.02) for shown in re.findall(r"([\d.]+) ms", top)), top
