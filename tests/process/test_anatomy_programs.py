"""The anatomy of steps in programs of their own: under ``opentelemetry-instrument``, with own providers, forked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import programs
from tachograph.diagnosis.verdict_run import step_streams
from tachograph.runs.file import RunFile, look

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import torch
from torch import nn
torch.set_num_threads(1)

def train(steps):
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(steps * 8, 64), torch.zeros(steps * 8, dtype=torch.long))
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def ran(folder: Path, command: list[str], *, code: int = 0, **more: str) -> str:
    """Run a command to its end, a good one by default, and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=programs.environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("asked", ["true", pytest.param("", marks=pytest.mark.long)])
def test_opentelemetry_instrument_shows_steps_where_it_is_asked_to(tmp_path: Path, asked: str) -> None:
    """With TACHOGRAPH_ANATOMY=true all steps of an unchanged program leave; without it there is none."""
    script = programs.write(tmp_path, TRAINING + "train(30)\n")
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, str(script)]
    exporters = {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    told = ran(tmp_path, command, TACHOGRAPH_ANATOMY=asked, **exporters)
    assert re.findall(r"dl\.step\.count (\d+)", told)[-1:] == ["30"] * bool(asked)


def test_steps_reach_the_provider_that_was_given(tmp_path: Path) -> None:
    """By hand, without a ``start()``: the program's own reader collects counts, durations and phases."""
    program = (
        TRAINING
        + """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tachograph.instrumentation import TorchStepInstrumentor
reader = InMemoryMetricReader()
TorchStepInstrumentor().instrument(meter_provider=MeterProvider([reader]))
train(30)
TorchStepInstrumentor().uninstrument()
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics:
        for point in metric.data.data_points:
            print(metric.name, getattr(point, "count", getattr(point, "value", None)))
"""
    )
    told = ran(tmp_path, [sys.executable, str(programs.write(tmp_path, program))])
    assert {"dl.step.count 30", "dl.step.duration 30", "dl.samples 240"} <= {*told.splitlines()}
    assert "dl.step.phase.duration 30" in told


@pytest.mark.parametrize("helpers", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_a_forked_trainer_has_steps_of_its_own(tmp_path: Path, helpers: str) -> None:
    """Neither process has the other's; a helper's are recorded where TACHOGRAPH_HELPERS asks for them."""
    program = (
        TRAINING
        + """
import os, sys
train(30)
pid = os.fork()
if not pid:
    train(40)
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
train(20)
"""
    )
    script = programs.write(tmp_path, program)
    command = [sys.executable, "-m", "tachograph", "run", "--store", str(tmp_path), "--run-id", "job", "--"]
    ran(tmp_path, [*command, sys.executable, str(script)], TACHOGRAPH_HELPERS=helpers)
    with look(RunFile(tmp_path / "runs" / "job.db")) as reading:
        found = [stream.last["steps"] for stream in step_streams(reading, recent=False)]
    assert sorted(found) == ([40, 50] if helpers == "1" else [50])


def test_an_interrupted_training_ends_by_its_interrupt(tmp_path: Path) -> None:
    """Nothing that the last fold does makes a usual failure, with the code 1, of Ctrl-C."""
    interrupt = "signal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)\n"
    script = programs.write(tmp_path, TRAINING + "train(30)\nimport os, signal\n" + interrupt)
    command = [sys.executable, "-m", "tachograph", "run", "--store", str(tmp_path), "--", sys.executable, str(script)]
    stderr = ran(tmp_path, command, code=130)
    assert "killed (SIGINT): recorded the phases of its steps, " in stderr  # it logs no points
