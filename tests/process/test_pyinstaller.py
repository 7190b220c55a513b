"""A program that PyInstaller has frozen: a plain build of it records, and starts nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import environment, exported, number, write

PROGRAM = """
    import os, sys
    with open("starts", "a") as file:
        file.write(f"{sys.argv}\\n")
    if os.environ.get("STARTED"):
        sys.exit(9)  # a chain of starts ends here, whatever Tachograph does
    os.environ["STARTED"] = "1"
    import tachograph

    @tachograph.prof
    def step():
        pass

    with tachograph.start(hub=True, metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl") as pipeline:
        tachograph.put_metric("loss", 0.5)
        tachograph.log({"accuracy": 0.75}, step=1)
        tachograph.config({"lr": 0.1})
        tachograph.Metric("curve").record(0.25, at=1)
        step()
        print(pipeline.hub_url)
"""
# What the tests of this project have installed, and a build would find through other packages.
NOT_OF_THE_PROGRAM = (
    *("IPython", "PIL", "cryptography", "eventlet", "gevent", "hypothesis", "ipywidgets", "matplotlib", "numpy"),
    *("pandas", "pyarrow", "pytest", "rich", "scipy", "setuptools", "tensorboard", "torch", "trio", "yaml"),
)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("PyInstaller") is None, reason="PyInstaller is not installed")
def test_a_plain_build_records_and_is_started_once(tmp_path: Path) -> None:
    """A build without any option for Tachograph has all modules it needs, and ``start(hub=True)`` starts no process."""
    excluded = [word for name in NOT_OF_THE_PROGRAM for word in ("--exclude-module", name)]
    command = [sys.executable, "-m", "PyInstaller", "--onedir", "--log-level", "ERROR", *excluded]
    build = {**os.environ, "PYINSTALLER_CONFIG_DIR": str(tmp_path / "cache")}
    subprocess.run(
        [*command, str(write(tmp_path, PROGRAM, "app.py"))], cwd=tmp_path, env=build, check=True, timeout=540
    )
    app = tmp_path / "dist" / "app" / "app"
    done = subprocess.run(
        [str(app)], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert "could not start a hub" in line
    assert "this program is frozen" in line
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
    metrics = exported(tmp_path / "out.jsonl")
    assert number(metrics["torchelastic", "loss"]) == 0.5
    assert ("torchelastic", "function.calls") in metrics
