"""Jobs killed at random moments, some of those of ``bench/kills.py``: no hang, little lost, nothing there twice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from places import ROOT

pytest.importorskip("torch")

PROGRAM = ROOT / "bench" / "kills.py"
TIME_LIMIT = 150.0


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2, id="agent-SIGKILL", marks=pytest.mark.long),
        pytest.param(6, id="rank-SIGKILL"),
        pytest.param(8, id="agent-SIGTERM", marks=pytest.mark.long),
        pytest.param(9, id="rank-SIGTERM", marks=pytest.mark.long),
    ],
)
def test_a_killed_job_loses_little_and_doubles_nothing(seed: int) -> None:
    """Whoever is killed, however: the job ends, and what was recorded an export interval before is there, once."""
    # Not under coverage: it slows the start of each process down until no moment is what it was chosen as.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--seeds", str(seed)],
        env=plain,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
