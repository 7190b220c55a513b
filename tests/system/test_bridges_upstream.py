"""Upstream's own suites with the bridges on: the same result as without.

Their tests are fetched by name and version with the library's source distribution, and lie in the test's folder alone.
Of the bridged trainers Accelerate's has them; those of transformers and Lightning come without.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import tachograph
from launches import RUN
from programs import environment

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.timeout(600)]

FETCH = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")


@pytest.fixture
def trackers(tmp_path: Path) -> Path:
    """Return Accelerate's tests of its trackers, in the version that is installed."""
    package = f"accelerate=={version('accelerate')}"
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", *FETCH, "--dest", str(tmp_path), package],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"the package index has no source of {package}, or is out of reach: {fetched.stderr[-300:]}")
    (archive,) = tmp_path.glob("accelerate-*.tar.gz")
    with tarfile.open(archive) as source:
        (member,) = [one for one in source.getmembers() if one.name.endswith("/tests/test_tracking.py")]
        member.name = "test_tracking.py"
        source.extract(member, tmp_path / "upstream", filter="data")
    return tmp_path / "upstream" / "test_tracking.py"


def outcomes(suite: Path, report: Path, *before: str) -> dict[str, str]:
    """Return the outcome of each test of a suite: ``passed``, ``failure``, ``error`` or ``skipped``."""
    options = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={suite.parent}", f"--junitxml={report}")
    done = subprocess.run(
        [*before, sys.executable, "-m", "pytest", *options, str(suite)],
        cwd=suite.parent,
        env=environment(report.parent, WANDB_MODE="offline", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return {
        f"{case.get('classname')}.{case.get('name')}": case[0].tag if len(case) else "passed"
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - written by pytest
    }


def test_accelerates_trackers(tmp_path: Path, trackers: Path) -> None:
    """Each test has the outcome that it has without us, and what it logs is recorded."""
    with_bridges = outcomes(
        trackers, tmp_path / "with.xml", *RUN, "--run-id", "with", "--port", "0", "--linger", "0", "--"
    )
    assert with_bridges == outcomes(trackers, tmp_path / "without.xml")
    assert sum(outcome == "passed" for outcome in with_bridges.values()) >= 10
    assert len(list(tachograph.runs.open("with", tmp_path / "store").points())) > 0
