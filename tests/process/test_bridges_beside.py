"""Other loggers beside ours: those that have no bridge are left alone, and values that come twice count once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tachograph
from launches import run
from programs import environment, write

pytestmark = [pytest.mark.torch, pytest.mark.long]

PROGRAM = """
import gc, sys, types
import influxdb_client
import torch
import torchmetrics
from lightning.fabric.loggers import CSVLogger
from torch.utils.tensorboard import SummaryWriter  # that one has a bridge

import tachograph

class MetricsLogger:
    def __init__(self): self.lines = []
    def log(self, measurement, tags=None, fields=None): self.lines.append((measurement, tags, fields))

theirs, table = MetricsLogger(), CSVLogger("csv", name="n", version=0)
ours = tachograph.MetricsLogger()
accuracy = torchmetrics.MetricTracker(torchmetrics.MeanMetric(), maximize=False)
line = influxdb_client.Point("m").field("value", 0.5).to_line_protocol()
for step in range(5):
    theirs.log("theirs", {}, {"loss": step})
    table.log_metrics({"loss": step / 2}, step=step)
    accuracy.increment()
    accuracy.update(torch.tensor(float(step)))
    ours.log("ours", {"step": str(step)}, {"loss": float(step)})
table.finalize("success")
ours.close()
classes = [MetricsLogger, CSVLogger, torchmetrics.Metric, torchmetrics.MetricTracker, torchmetrics.MeanMetric]
classes += [influxdb_client.Point, influxdb_client.InfluxDBClient, influxdb_client.WriteApi, type(table.experiment)]
changed = [
    f"{each.__name__}.{name}"
    for of in classes for each in of.__mro__ if each is not torch.nn.Module for name, value in vars(each).items()
    if isinstance(value, types.FunctionType) and "tachograph" in value.__code__.co_filename.split("/")
]
print(theirs.lines, accuracy.compute_all().tolist(), line, changed)
"""


def test_loggers_of_others_are_left_alone(tmp_path: Path) -> None:
    """With all bridges on, no method of theirs is ours; files and output are as without us, and their values theirs.

    ``Module.eval`` is PyTorch's: it is wrapped to tell an evaluation from training.
    """
    plain = tmp_path / "plain"
    path = write(tmp_path, PROGRAM)
    options = ("--run-id", "job", "--port", "0", "--linger", "0")
    done = run(tmp_path, sys.executable, str(path), options=options, timeout=150, TACHOGRAPH_BRIDGES="all")
    assert done.returncode == 0, done.stderr
    plain.mkdir()
    without = subprocess.run(
        [sys.executable, str(path)],
        cwd=plain,
        env=environment(plain),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert without.returncode == 0, without.stderr
    assert done.stdout == without.stdout
    assert done.stdout.rstrip().endswith(" []")
    (written,) = (tmp_path / "csv").rglob("metrics.csv")
    assert written.read_text() == plain.joinpath(written.relative_to(tmp_path)).read_text()
    found = tachograph.runs.open("job", tmp_path / "store")
    assert [(curve.group, curve.metric) for curve in found.curves()] == [("ours", "loss")]
    assert [point.value for point in found.points("loss")] == [float(step) for step in range(5)]


MIGRATING = """
import mlflow, wandb
from torch.utils.tensorboard import SummaryWriter
import tachograph

writer = SummaryWriter("runs")
run = wandb.init(mode="offline", project="p")
mlflow.set_tracking_uri("file:mlruns")
mlflow.start_run()
loggers = {
    "tensorboard": lambda values, step: [writer.add_scalar(key, value, step) for key, value in values.items()],
    "wandb": lambda values, step: run.log(values, step=step),
    "mlflow": lambda values, step: mlflow.log_metrics(values, step=step),
}
for step in range(100):
    for library, log in loggers.items():
        tachograph.log({f"{library}/first": step / 3}, step=step)
        log({f"{library}/first": step / 3, f"{library}/second": step / 7}, step)
        tachograph.log({f"{library}/second": step / 7, f"{library}/own": step}, step=step)
writer.close()
mlflow.end_run()
run.finish()
"""


def test_a_value_of_log_beside_another_tracker_counts_once(tmp_path: Path) -> None:
    """The first step of a migration: ``log()`` before or after the other tracker's call, and each curve is whole."""
    path = write(tmp_path, MIGRATING)
    options = ("--run-id", "job", "--port", "0", "--linger", "0")
    quiet = {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true"}
    done = run(tmp_path, sys.executable, str(path), options=options, timeout=150, **quiet)
    assert done.returncode == 0, done.stderr
    found = tachograph.runs.open("job", tmp_path / "store")
    factors = {"first": 1 / 3, "second": 1 / 7, "own": 1}
    libraries = ("tensorboard", "wandb", "mlflow")
    assert {(curve.group, curve.metric) for curve in found.curves()} == {
        (of, metric) for of in libraries for metric in factors
    }
    for metric, factor in factors.items():
        for library in libraries:
            points = [(point.x, point.value) for point in found.points(metric) if point.group == library]
            assert points == [(step, pytest.approx(step * factor)) for step in range(100)], (library, metric)
