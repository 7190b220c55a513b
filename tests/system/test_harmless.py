"""Training with Tachograph is training as it was: weights and random states, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from places import ROOT

pytest.importorskip("torch")

PROGRAM = ROOT / "bench" / "overhead.py"


@pytest.mark.long
def test_weights_and_random_states_are_the_same_with_and_without() -> None:
    """Two ranks train 200 steps, each with 100 recorded values, under ``tachograph run`` and without it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--pairs", "0", "--check"],
        env=plain,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same") == 4
