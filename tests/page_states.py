"""A store with a run for each state that the Studio's page is to show well: for tests and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub_requests import SECOND, logs, rank
from launches import run_program
from many_runs import sweep
from recorded_runs import DEFINITION, POINT, Recorded, points, record_histograms
from recorded_runs import record as store_run
from studio import PROGRAM, record, studio
from tachograph.hub.hub import Hub
from watched_week import store_week

EVIL = "<img src=x onerror=alert(1)>'\"; DROP TABLE block;--/../../é😀%2F?#&"
NAMES = (EVIL, "a/very/deep/path/" * 8 + "loss", "العربية/خسارة", "損失/訓練", "loss\nwith a line", "x" * 120)
RANKS, STRAGGLER = 40, 17
CRASH = """
import math
import tachograph

for step in range(60):
    loss = math.nan if step > 40 else 2 * math.exp(-step / 20)
    tachograph.log({"loss": loss, "lr": 1e-3 * (1 - step / 60)}, step=step)
raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
RESUMED = """
import tachograph

for step in range(40, 90) if {again} else range(60):
    left = 1 / (1 + step / 12)
    tachograph.log({{"loss": (2.2 if {again} else 2) * left, "accuracy": 1 - left}}, step=step)
"""
# Of a run's page, by the name of the state: the address behind the hub's.
PATHS = {
    "finished": "/#/run/finished",
    "ranks": "/#/run/ranks",
    "ranks-heat": "/#/run/ranks?y./training=heat:deviation",
    "many": "/#/run/many",
    "odd": "/#/run/odd",
    "resumed": "/#/run/resumed",
    "crash": "/#/run/crash",
    "week": "/#/run/week",
    "histograms": "/#/run/histograms",
    "histograms-heat": "/#/run/histograms?y.training/step.duration=heat:values",
    "empty": "/#/run/empty",
    "names": "/#/run/names",
    "averaged": "/#/run/long?smooth=0.6",
    "gone": "/#/run/finishd",
    "no-metric": "/#/run/many?find=metirc+7",
    "runs": "/#/",
    "compared": "/#/compare?runs=" + "%2C".join(f"sweep-{number:05}" for number in range(12)),
}


def _many(store: Path) -> None:
    hub = Hub(store, run="many")
    told = []
    for number in range(200):
        about = {"group": f"group {number % 30:02}"}
        told.append((DEFINITION, {"metric": f"metric {number}", **about, "scale": f"s{number}"}))
        told += points([math.sin(x * (1 + number % 7) / 40) + number for x in range(100)], f"metric {number}", **about)
    hub.receive_logs(logs(rank(0, run="many"), *told))
    hub.close()


def _ranks(store: Path) -> None:
    hub = Hub(store, run="ranks")
    for number in range(RANKS):
        slow = 1.6 if number == STRAGGLER else 1.0
        about = {"group": "training", "x_units": "step"}
        told = [
            (DEFINITION, {"metric": name, **about, "scale": name, "units": "s" if "time" in name else ""})
            for name in ("loss", "step_time")
        ]
        for step in range(200):
            told += [
                (POINT, {"metric": name, "group": "training", "x": float(step), "value": value})
                for name, value in (
                    ("loss", 2 * math.exp(-step / 60) + 0.05 * math.sin(step * number)),
                    ("step_time", slow * (0.4 + 0.02 * math.sin(step + number)) + (0.3 if step % 50 == 49 else 0)),
                )
            ]
        loop = {"metric": "steps", "units": "item", "lower": 0.0, "upper": 200.0, "progress": True}
        told += [(DEFINITION, loop), *points([1.0, 150.0 + number % 7], "steps", total=200, rate=2.0)]
        hub.receive_logs(logs(rank(number, run="ranks"), *told, stream=f"r{number}", apart=SECOND // 100))
    hub.close()


def _odd(store: Path) -> None:
    values = [math.exp(-x / 30) for x in range(100)]
    values[20], values[50:54], values[70], values[90] = math.nan, [math.nan] * 4, math.inf, -math.inf
    store_run(store, "odd", *points(values), *points([math.nan] * 5, "never"), *points([1.0], "one"))


def record_states(folder: Path) -> None:
    """Record all runs into the store in a folder: some by real programs."""
    record(folder, "finished", PROGRAM)
    run_program(folder, CRASH, options=("--run-id", "crash", "--quiet", "--port", "0"))
    for again in (False, True):
        record(folder, "resumed", RESUMED.format(again=again))
    record(folder, "empty", "print()")
    store = folder / "store"
    store_run(store, "names", *(each for name in NAMES for each in points([1.0, 3.0, 2.0], name, group=name[:40])))
    store_run(store, "long", *points([x % 97 + 40 * math.sin(x / 3000) for x in range(30_000)], "wave"))
    _many(store)
    _ranks(store)
    _odd(store)
    intervals = [[0.01 * (1 + turn % 5) * (1 + each % 9) for each in range(200)] for turn in range(60)]
    record_histograms(store, "histograms", *(Recorded("step.duration", intervals, number) for number in range(2)))
    store_week(store, "week")
    sweep(store, 12)


@contextmanager
def served_states(folder: Path) -> Iterator[str]:
    """Record all states and serve their pages; lend the address."""
    record_states(folder)
    with studio(folder) as found:
        yield found.url
