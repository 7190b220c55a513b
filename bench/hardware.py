"""The cost of observing the hardware: eight GPUs each second, and a collection of everything.

The GPUs are the tests' stand-in for NVML, a real shared library that nvidia-ml-py loads by its own path: our side and
nvidia-ml-py's are measured, not a driver's. Run it as ``python bench/hardware.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from race import Goal, finish, report

GPUS = 8
SECONDS = 4.0
TURNS = 5
ALLOWED = 2000.0  # microseconds of one core in each second
SOURCE = Path(__file__).resolve().parents[1] / "tests" / "fake_nvml.c"


def measure() -> None:
    """Print, as JSON, the costs of this process while it does nothing but observe its hardware."""
    from tachograph.hardware._observation import Observation
    from tachograph.recording.gil_yield import GilYield
    from tachograph.recording.registry import Registry

    def each_second() -> float:
        began, at = time.process_time(), time.monotonic()
        time.sleep(SECONDS)
        return (time.process_time() - began) / (time.monotonic() - at) * 1e3

    def collection() -> tuple[float, float]:
        began, at = time.thread_time(), time.monotonic()
        registry.collect(GilYield())
        return (time.thread_time() - began) * 1e3, (time.monotonic() - at) * 1e3

    registry = Registry()
    idle = each_second()
    observation = Observation(registry, node=True, process=False, folders=("/",))
    time.sleep(1.5)
    sampling = [each_second() for _ in range(TURNS)]
    taken = [collection() for _ in range(20)]
    series = sum(len(metric.points) for metric in registry.collect())
    observation.close()
    alone = Registry()
    of_process = Observation(alone, node=False, process=True, folders=())
    registry = alone
    process = [collection() for _ in range(20)]
    of_process.close()
    cpu, wall = (statistics.median(each) for each in zip(*taken, strict=True))
    own = statistics.median(each for each, _ in process)
    print(
        json.dumps(
            {
                "gpus": statistics.median(sampling) - idle,
                "series": series,
                "collection": cpu,
                "wall": wall,
                "process": own,
            }
        )
    )


def main() -> None:
    """Measure in a process of its own."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("no C compiler: there are no GPUs to sample")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(library)], check=True)  # noqa: S603
        environ = {**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_NVML_DEVICES": str(GPUS)}
        done = subprocess.run(  # noqa: S603
            [sys.executable, __file__, "--measure"], env=environ, check=True, capture_output=True, text=True
        )
    found = json.loads(done.stdout)
    goal = Goal(f"{GPUS} GPUs and a file system, CPU each second", found["gpus"] * 1e3, ALLOWED, 1.0, "us")
    kept = report("Sampling hardware", [goal])
    print(f"a collection of {found['series']} series of the node: {found['collection']:.2f} ms of CPU,", end=" ")
    print(f"{found['wall']:.2f} ms with its rests; of a process: {found['process']:.2f} ms of CPU")
    finish(kept)


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        main()
