"""Two ways to do the same, timed side by side: each repetition runs every side, so that noise falls on all of them.

Timed is the processor of the calling thread: on a busy machine a side that takes a millisecond is now and then stopped
for ten, which says nothing about it. Where ``BENCH_RESULTS`` names a folder, each program also leaves what it found
there, in a JSON file of its name.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import thread_time
from typing import NamedTuple

Side = Callable[[], object]
# Of the other sides: their versions stand beside what was found.
PEERS = ("torch", "opentelemetry-sdk", "prometheus-client", "influxdb-client", "tensorboard", "tqdm", "numpy")


class Goal(NamedTuple):
    """One promise: a measurement, its reference, and the largest permitted ratio of the two."""

    what: str
    measured: float
    reference: float
    limit: float
    unit: str = "ns"

    @property
    def ratio(self) -> float:
        """Return the ratio of the measurement to the reference."""
        return self.measured / self.reference

    @property
    def kept(self) -> bool:
        """Tell whether the goal is reached."""
        return self.ratio <= self.limit


def medians(
    sides: dict[str, Side], *, calls: int, repetitions: int, clock: Callable[[], float] = thread_time
) -> dict[str, float]:
    """Return the median nanoseconds of the processor that one call takes, by side.

    Each side makes ``calls`` calls when it is called. Where a side leaves work to another thread, the clock is
    ``time.process_time``.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for side in sides.values():
        side()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            for name in order:
                start = clock()
                sides[name]()
                taken[name].append((clock() - start) / calls * 1e9)
            order.append(order.pop(0))
    finally:
        gc.enable()
    return {name: statistics.median(times) for name, times in taken.items()}


def report(title: str, goals: Sequence[Goal]) -> bool:
    """Print a table of goals, and tell whether all were kept."""
    print(f"\n{title}")
    print(f"{'':<58}{'ours':>12}{'reference':>12}{'ratio':>8}{'goal':>8}")
    for goal in goals:
        print(
            f"{goal.what:<58}{goal.measured:>9,.0f} {goal.unit:<2}{goal.reference:>9,.0f} {goal.unit:<2}"
            f"{goal.ratio:>8.3f}{goal.limit:>8.3f}  {'ok' if goal.kept else 'MISSED'}"
        )
    keep(title, [{**goal._asdict(), "ratio": goal.ratio, "kept": goal.kept} for goal in goals])
    return all(goal.kept for goal in goals)


def keep(title: str, found: object) -> None:
    """Leave a finding of this program in its JSON file, if a folder for those is given."""
    if not (folder := os.environ.get("BENCH_RESULTS")):
        return
    file = Path(folder, f"{Path(sys.argv[0]).stem}.json")
    so_far = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(so_far | {"machine": machine(), title: found}, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, object]:
    """Return where and when this is measured, and with which versions."""
    versions = {}
    for name in PEERS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def finish(*kept: bool) -> None:
    """End the program: with status 1 where ``--check`` was given and a goal was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--without-numpy", action="store_true", help=argparse.SUPPRESS)
    sys.exit(1 if parser.parse_args().check and not all(kept) else 0)
