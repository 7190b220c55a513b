"""Runs as they are on the disk after an attack, read with SQLite alone: their numbers, and their total."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.runs.blocks import Block, unpack
from tachograph.runs.store import path_of


@dataclass
class KeptRun:
    """One run.

    Attributes:
        numbers: of events and points, in its file.
        total: the counter's; 0 if there is none.
        twice: numbers that it has twice.
        damage: of the file, by ``PRAGMA integrity_check``; empty for none.
    """

    numbers: set[int] = field(default_factory=set)
    total: int = 0
    twice: set[int] = field(default_factory=set)
    damage: str = ""


def kept(store: Path, run: str) -> KeptRun:
    """Return a run."""
    found = KeptRun()
    path = path_of(store, run)
    if not path.exists():
        return found
    with contextlib.closing(sqlite3.connect(path)) as file:
        for number in _numbers(file):
            if number in found.numbers:
                found.twice.add(number)
            found.numbers.add(number)
        found.damage = _damage(file)
        found.total = _total(file)
    return found


def _numbers(file: sqlite3.Connection) -> Iterator[int]:
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from (seq for (seq,) in file.execute("SELECT seq FROM event"))
    with contextlib.suppress(sqlite3.DatabaseError, ValueError):
        for parts in file.execute("SELECT form, pairs, rest FROM block"):
            yield from (sample.seq for sample in unpack(Block(*parts)))


def _total(file: sqlite3.Connection) -> int:
    with contextlib.suppress(sqlite3.DatabaseError):
        for (data,) in file.execute("SELECT data FROM state JOIN series ON id = series WHERE name = 'steps'"):
            _, _, value, before, *_ = json.loads(data)
            return (value or 0) + (before or 0)
    return 0


def _damage(file: sqlite3.Connection) -> str:
    try:
        said = file.execute("PRAGMA integrity_check(3)").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if said == [("ok",)] else str(said)
