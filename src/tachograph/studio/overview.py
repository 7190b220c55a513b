"""The runs of a store, as a list: how each stands, and how much there is of it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tachograph.runs.catalogue import files_of, id_of, in_use, paths_in
from tachograph.runs.event import BEGIN
from tachograph.runs.file import RunFile
from tachograph.runs.liveness import NODE, SECOND
from tachograph.runs.look import Abandoned, Look, look
from tachograph.runs.members import Member, members, state
from tachograph.runs.store import StoreError

_SEEN = 4096  # runs that are remembered

_BEGUN = "SELECT min(time) FROM event WHERE name = ? AND rowid <= 1000"

Stamp = tuple[tuple[int, int], ...]


class Overview:
    """Lists runs. What it remembers is of files that nobody writes, and that have not changed since.

    Args:
        folder: the store.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop.
    """

    def __init__(self, folder: Path, clock: Callable[[], int], abandoned: Callable[[], bool]) -> None:
        self._folder = folder
        self._clock = clock
        self._abandoned = abandoned
        self._known: dict[Path, tuple[Stamp, dict[str, Any]]] = {}

    def runs(self) -> list[dict[str, Any]]:
        """Return every run into which anything came, the newest first.

        Raises:
            Abandoned: reading was to stop.
        """
        found = [self._run(path) for path in paths_in(self._folder)]
        found = [each for each in found if each["processes"] or each["points"] or each["damage"]]
        return sorted(found, key=lambda each: (each["started"], each["id"]), reverse=True)

    def _run(self, path: Path) -> dict[str, Any]:
        if self._abandoned():
            raise Abandoned
        written, stamp = in_use(path), _stamp(path)
        known = self._known.get(path)
        if known is not None and known[0] == stamp and not written:
            return known[1]
        try:
            file = RunFile(path)
            with look(file, self._abandoned) as reading:
                found = about(reading, id_of(path), members(reading), self._clock(), written=written)
            found["damage"] = file.damage
        except (StoreError, sqlite3.Error) as error:
            why = str(error.strerror) if isinstance(error, StoreError) else f"the file cannot be read: {error}"
            found = _unreadable(path, why)
        if not written and found["state"] != "live" and stamp == _stamp(path):
            if len(self._known) >= _SEEN:
                self._known.clear()
            self._known[path] = stamp, found
        return found


def about(reading: Look, name: str, found: Sequence[Member], now: int, *, written: bool) -> dict[str, Any]:
    """Return what there is to say of a run in a line; ``damage`` is for the caller to fill in.

    Args:
        reading: a look at its file.
        name: its id.
        found: its processes.
        now: nanoseconds since the epoch.
        written: a hub has the file open.
    """
    times = [(start.first, start.last) for member in found for start in member.starts]
    changed = _changed(reading.file.path)
    begun = [row[0] for row in reading.rows(_BEGUN, BEGIN) if row[0]]  # before the first export
    started = min([*begun, *(first for first, _ in times)], default=changed)
    last = max((last for _, last in times), default=changed)
    points = sum(row[0] or 0 for row in reading.rows("SELECT sum(n) FROM block"))
    return {
        "id": name,
        "program": _program(found),
        "state": state(found, now, written=written),
        "started": started,
        "last": last,
        "seconds": max(0, last - started) / SECOND,
        "ranks": len({each.rank for each in found} - {None}),
        "processes": sum(each.role != NODE for each in found),
        "restarts": max((len(each.starts) - 1 for each in found), default=0),
        "points": points,
        "bytes": _size(reading.file.path),
        "damage": [],
    }


def _unreadable(path: Path, why: str) -> dict[str, Any]:
    changed = _changed(path)
    times = {"started": changed, "last": changed, "seconds": 0}
    counts = {"ranks": 0, "processes": 0, "restarts": 0, "points": 0, "bytes": _size(path)}
    return {"id": id_of(path), "program": "", "state": "unknown", **times, **counts, "damage": [why]}


def _program(found: Sequence[Member]) -> str:
    """Return the name of what runs: that of a rank, as torchrun's own process has its own."""
    named = sorted(found, key=lambda each: (each.rank is None, each.role == "agent", each.rank or 0))
    return next((str(each.resource["service.name"]) for each in named if "service.name" in each.resource), "")


def _stamp(path: Path) -> Stamp:
    found = []
    for each in files_of(path)[::2]:  # the index of the log changes with every reader
        with contextlib.suppress(OSError):
            about = each.stat()
            found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def _size(path: Path) -> int:
    return sum(size for _, size in _stamp(path))


def _changed(path: Path) -> int:
    return max((changed for changed, _ in _stamp(path)), default=0)
