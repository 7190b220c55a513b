"""GPUs for tests: a real shared library in NVML's place, which nvidia-ml-py loads by its own path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import programs

SOURCE = Path(__file__).with_name("fake_nvml.c")
_PRELUDE = """
import json, logging, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
from tachograph.hardware._observation import Observation
from tachograph.recording.registry import Registry

registry = Registry()

def watch(ready=10.0, **more):
    made = Observation(registry, **{"node": True, "process": False, "folders": (), **more})
    for sampler in made._samplers:
        sampler.wait(ready)
    return made

def collected():
    began = time.monotonic()
    points = [[m.name, m.unit, m.kind, dict(p.attributes), p.value]
              for m in registry.collect() for p in m.points if hasattr(p, "value")]
    return {"took": time.monotonic() - began, "points": points}

def tell(**what):
    print(json.dumps(what), flush=True)
"""


class Seen(NamedTuple):
    """One series at a collection."""

    name: str
    unit: str
    kind: str
    attributes: dict[str, str]
    value: float


def compiled(folder: Path, *flags: str) -> Path:
    """Return a folder with a ``libnvidia-ml.so.1``; skip the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler is installed: the tests of GPU metrics cannot run")
        pytest.skip("NO C COMPILER IS INSTALLED: GPU METRICS ARE NOT TESTED")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *flags, str(SOURCE)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=60)
    return folder


def tells(folder: Path, program: str, **environ: str) -> tuple[list[dict[str, Any]], str]:
    """Run a program that begins with ``watch``, ``collected`` and ``tell``; return what it told, and its stderr."""
    done = programs.run(folder, _PRELUDE + program, **environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def series(told: dict[str, Any], name: str = "") -> list[Seen]:
    """Return the series of one metric, or of all, in what ``collected()`` has returned."""
    return [seen for point in told["points"] for seen in [Seen(*point)] if seen.name == name or not name]


def values(told: dict[str, Any], name: str, *, key: str = "hw.gpu.index") -> dict[str, float]:
    """Return the values of a metric by one attribute."""
    return {seen.attributes[key]: seen.value for seen in series(told, name)}


def left_out(told: dict[str, Any], where: str = "gpu") -> float:
    """Return how often something was left out."""
    return values(told, "tachograph.errors", key="where").get(where, 0)
