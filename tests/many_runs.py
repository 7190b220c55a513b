"""A store with many runs, made cheaply: one recorded run, copied, each copy with values of its own."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

from recorded_runs import points, record
from tachograph.runs.store import run_path


def sweep(store: Path, many: int, *, length: int = 20, prefix: str = "sweep") -> list[str]:
    """Record a sweep of finished runs over learning rates and models, and return their ids.

    The first learning rate is 1e-4, each further one 1.5 times the one before, round again after twelve. Losses fall
    towards ``1 / (number + 1)``; each has a tag, ``sweep``, and those of even numbers ``even``; each fifth
    has failed.
    """
    first = f"{prefix}-00000"
    falling = [1 + 2 / (1 + place) for place in range(length)]
    record(
        store,
        first,
        ("tachograph.config", {"tachograph.config": {"lr": 1e-4, "model": "small", "seed": 1, "optimizer": "adam"}}),
        *points(falling, "loss"),
        *points(falling[::-1], "accuracy"),
        ("tachograph.summary", {"tachograph.summary": {"best": 1.0}}),
    )
    names = [first]
    original = run_path(store, first)
    _tell(original, 0)
    for number in range(1, many):
        name = f"{prefix}-{number:05}"
        path = run_path(store, name)
        shutil.copyfile(original, path)
        _tell(path, number)
        names.append(name)
    return names


def _tell(path: Path, number: int) -> None:
    """Give a copy its own configuration, results, tags and times; its points stay as they are."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("BEGIN")
    told = {"lr": 1e-4 * 1.5 ** (number % 12), "model": ("small", "large")[number % 2], "seed": 1 + number}
    for key, value in told.items():
        connection.execute("UPDATE config SET value = ? WHERE key = ?", (json.dumps(value), key))
    connection.execute("UPDATE summary SET value = ? WHERE key = 'best'", (json.dumps(1 / (number + 1)),))
    connection.execute("DELETE FROM tag")
    connection.executemany("INSERT INTO tag VALUES (?)", [("sweep",), *([("even",)] if not number % 2 else [])])
    later = number * 60 * 1_000_000_000
    connection.execute("DELETE FROM job_end")
    connection.execute(
        "INSERT INTO job_end SELECT max(last_export) + ?, ?, '' FROM incarnation", (later, number % 5 == 4)
    )
    connection.execute(
        "UPDATE incarnation SET first_export = first_export + ?, last_export = last_export + ?", (later, later)
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
