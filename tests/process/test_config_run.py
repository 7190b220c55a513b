"""config() and summary() of a real run: in the store, in `runs show`, in the Studio's answer, over a restart."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import tachograph
from hubs import serving
from launches import run_program

PROGRAM = """
    import sys, tachograph
    lr, = sys.argv[1:]
    tachograph.config({"lr": float(lr), "model": {"layers": 12}, "api_key": "hunter2-in-config", lr: True})
    tachograph.config({"betas": (0.9, 1), "resume": None, "extra": {}})
    tachograph.config({"stages": [{"width": 8, "norm": None}, [1, "a"]]})
    tachograph.config({"seed": 2**62 + 1})
    tachograph.summary({"accuracy": 0.5, "worst": float("nan")})
    tachograph.summary({"accuracy": 0.75})
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A store with a run of two starts, the later one with another learning rate."""
    for lr in ("0.1", "0.2"):
        options = ("--run-id", "job", "--port", "0", "--linger", "0")
        done = run_program(tmp_path, PROGRAM, lr, options=options, TACHOGRAPH_STORE=str(tmp_path / "store"))
        assert done.returncode == 0, done.stderr
    return tmp_path / "store"


def test_a_run_has_its_configuration_and_its_summary(recorded: Path) -> None:
    """Read back they are as they were told, the newer value of a key; no secret is in any file."""
    run = tachograph.runs.open("job", recorded)
    assert run.config == {
        "lr": 0.2,
        "model.layers": 12,
        "api_key": "***",
        "0.1": True,
        "0.2": True,  # each start has said one of these
        "betas": [0.9, 1],
        "stages": [{"width": 8, "norm": None}, [1, "a"]],
        "resume": None,
        "seed": 2**62 + 1,
        "extra": {},
    }
    assert math.isnan(run.summary.pop("worst"))  # type: ignore[arg-type]
    assert run.summary["accuracy"] == 0.75
    assert not [path for path in recorded.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    command = [sys.executable, "-m", "tachograph", "runs", "show", "job", "--store", str(recorded)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line.split() for line in told.splitlines()]
    rows = (["CONFIG", "VALUE"], ["lr", "0.2"], ["api_key", "***"], ["resume", "null"], ["betas", "[0.9,", "1]"])
    for row in (*rows, ["SUMMARY", "VALUE"], ["accuracy", "0.75"]):
        assert row in lines


def test_the_studio_answers_them(recorded: Path) -> None:
    """The page's answer has both, with NaN as JSON can say it."""
    with serving(recorded) as hub, urllib.request.urlopen(f"{hub.url}/api/runs/job", timeout=30) as response:
        answer = json.load(response)
    assert answer["config"]["model.layers"] == 12
    assert answer["config"]["stages"] == [{"width": 8, "norm": None}, [1, "a"]]
    assert answer["config"]["seed"] == str(2**62 + 1)  # a browser would round the number
    assert answer["summary"] == {"accuracy": 0.75, "worst": "NaN"}


@pytest.mark.parametrize(("tasks", "ids"), [("1", None), ("2", {"991.0", "991.0-2"})])
def test_experiments_in_a_slurm_allocation_keep_their_configurations(
    tmp_path: Path, tasks: str, ids: set[str] | None
) -> None:
    """Two experiments that a shell starts in one allocation are two runs, each with its own configuration."""
    slurm = {"SLURM_JOB_ID": "991", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": tasks}
    for lr in ("0.1", "0.2"):
        done = run_program(tmp_path, PROGRAM, lr, options=("--port", "0", "--linger", "0"), **slurm)
        assert done.returncode == 0, done.stderr
    recorded = [tachograph.runs.open(run.id, tmp_path / "store") for run in tachograph.runs.list(tmp_path / "store")]
    assert sorted(run.config["lr"] for run in recorded) == [0.1, 0.2]
    assert ids in (None, {run.id for run in recorded})
    assert {process.resource["slurm.job.id"] for run in recorded for process in run.processes()} == {"991"}
