"""The cost of ``import tachograph``, beside ``import opentelemetry.metrics``: fresh processes in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys

from race import Goal, finish, report

REPETITIONS = 15
PROGRAM = """
import sys
from time import perf_counter
start = perf_counter()
import {module}
print(perf_counter() - start)
loaded = {{"opentelemetry.sdk", "opentelemetry.trace", "numpy", "torch"}} & set(sys.modules)
assert "{module}" != "tachograph" or not loaded, loaded
"""


def seconds(module: str) -> float:
    """Return the seconds of one import in a process of its own."""
    program = [sys.executable, "-c", PROGRAM.format(module=module)]
    return float(subprocess.run(program, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - our own


def main() -> None:
    """Measure, print and judge."""
    modules = ("tachograph", "tachograph.elastic", "opentelemetry.metrics")
    taken: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(REPETITIONS):
        for module in modules:
            taken[module].append(seconds(module) * 1e6)
    median = {module: statistics.median(times) for module, times in taken.items()}
    reference = median["opentelemetry.metrics"]
    goals = [
        Goal("import tachograph / import opentelemetry.metrics", median["tachograph"], reference, 1, "us"),
    ]
    kept = report("Importing", goals)
    first_use = median["tachograph.elastic"] - median["tachograph"]
    print(f"the first use of a recording function adds {first_use:,.0f} us, once")
    finish(kept)


if __name__ == "__main__":
    main()
