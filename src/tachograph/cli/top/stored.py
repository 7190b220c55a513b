"""A run read straight from its file, beside a hub that writes it, or long after."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from struct import iter_unpack
from typing import Any

from tachograph.cli.top.picture import KEPT, Json, Picture
from tachograph.cli.top.source import Away, HubRefused, default_run
from tachograph.runs.catalogue import located
from tachograph.runs.file import Look, RunFile, look
from tachograph.runs.file_lock import in_use
from tachograph.runs.losses import losses
from tachograph.runs.members import Member, members
from tachograph.runs.queries import read_newest_event_number
from tachograph.runs.store import StoreError
from tachograph.studio.charts import charts, curves, newest_samples, series
from tachograph.studio.faults import faults
from tachograph.studio.occurrences import events
from tachograph.studio.overview import Overview, about, functions, progress

_EVERYTHING = 5.0  # seconds: so often a hub writes states down
_LOOK_BACK = 1000  # events


class StoredRun:
    """A run in a store.

    Args:
        folder: the store.
        run: the run's id; None for the newest.
        interval: seconds between two looks.
    """

    def __init__(self, folder: Path, run: str | None, interval: float) -> None:
        self.where = str(folder)
        self._folder = folder
        self._run = run
        self._interval = interval
        self._seen = 0  # the last block
        self._counts: dict[int, int] = {}
        self._overview = Overview(folder, time.time_ns, lambda: False)
        self._path = folder

    def fill(self, picture: Picture) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.fill`."""
        try:
            name, path = self._located()
        except OSError as error:
            raise Away(f"{error.filename or self._folder}: {error.strerror}") from error
        self._path = path
        try:
            file = RunFile(path, looking=True)
            with look(file) as reading:
                self._read(picture, reading, name)
        except StoreError as error:
            raise Away(f"cannot read the run {name!r:.200}: {error.strerror} ({path})") from error
        except sqlite3.Error as error:
            raise Away(f"cannot read the run {name!r:.200}: {error} ({path})") from error

    def follow(self, picture: Picture, stop: threading.Event) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.follow`."""
        self.fill(picture)
        until = time.monotonic() + _EVERYTHING
        while time.monotonic() < until and not stop.wait(self._interval):
            self._read_on(picture)

    def _read_on(self, picture: Picture) -> None:
        try:
            with look(RunFile(self._path, looking=True)) as reading:
                self._read_points(picture, reading)
                self._read_events(picture, reading)
        except (OSError, sqlite3.Error) as error:
            raise Away(f"cannot read the file {self._path}: {error}") from error

    def runs(self) -> list[Json]:
        """See :meth:`tachograph.cli.top.source.RunSource.runs`."""
        return list(Overview(self._folder, time.time_ns, lambda: False).runs())

    def of(self, run: str) -> StoredRun:
        """See :meth:`tachograph.cli.top.source.RunSource.of`."""
        return StoredRun(self._folder, run, self._interval)

    def close(self) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.close`: a file is open only while it is read."""

    def _located(self) -> tuple[str, Path]:
        if self._run is not None:
            try:
                return self._run, located(self._run, self._folder)
            except LookupError as error:
                raise HubRefused(error.args[0]) from None
        runs = self._overview.runs()
        if not runs:
            raise Away(f"there is no run in {self._folder} yet")
        name = default_run(runs)
        return name, located(name, self._folder)

    def _read(self, picture: Picture, reading: Look, name: str) -> None:
        now, written = time.time_ns(), in_use(reading.file.path)
        found, drawn = members(reading), curves(reading)
        by_process, together = functions(reading)
        answer: dict[str, Any] = {
            "now": now,
            "run": about(reading, name, found, now, written=written),
            "processes": [_process(each, now, written=written) for each in found],
            "charts": charts(reading, drawn),
            "progress": progress(reading, drawn),
            "series": series(reading),
            "functions": by_process,
            "functions_together": together,
            "losses": [each._asdict() for each in losses(reading.rows)],
        }
        wrong, _ = faults(reading, now, written=written)
        with picture.lock:
            if picture.about and picture.about["id"] != name:
                picture.start_over()
            if not picture.about:
                self._seen, self._counts = 0, {}
            picture.take_run({**answer, "damage": list(reading.file.damage)})
            picture.take_faults([each.data() for each in wrong])
            wanted = picture.wanted()
        told = newest_samples(reading, wanted, 1)
        with picture.lock:
            picture.take_samples(told)
        self._read_points(picture, reading)
        self._read_events(picture, reading)
        with picture.lock:
            picture.damage = list(reading.file.damage)

    def _read_points(self, picture: Picture, reading: Look) -> None:
        """Read the newest points of each curve that has got some since the last look."""
        changed = {curve: None for (curve,) in reading.rows("SELECT curve FROM block WHERE id > ?", self._seen)}
        with picture.lock:
            for _, _, curve in picture.curves():  # a joined block may have the number of one that is gone
                if curve["points"] != self._counts.get(curve["curve"]):
                    self._counts[curve["curve"]] = curve["points"]
                    changed[curve["curve"]] = None
        for curve in changed:
            points, branch, seq = _tail(reading, curve)
            with picture.lock:
                picture.take_points(curve, points, branch=branch, seq=seq, anew=True)
        self._seen = next((last or 0 for (last,) in reading.rows("SELECT max(id) FROM block")), 0)

    @staticmethod
    def _read_events(picture: Picture, reading: Look) -> None:
        with picture.lock:
            known = picture.newest_event
        found, more = [], True
        after = max(known, read_newest_event_number(reading.rows) - _LOOK_BACK)
        while more:
            some, more = events(reading, after=after, limit=_LOOK_BACK)
            found += some
            more = more and bool(some)
            after = some[-1]["number"] if some else after
        with picture.lock:
            picture.take_events(found)


def _tail(reading: Look, curve: int) -> tuple[list[tuple[float, float]], int, int]:
    """Return the newest points of a curve's newest branch, that branch, and the number of the last of them."""
    points: list[tuple[float, float]] = []
    newest_branch, last = 0, 0
    for branch, seq, pairs in reading.rows(
        "SELECT branch, seq1, pairs FROM block WHERE curve = ? ORDER BY seq0 DESC", curve
    ):
        if points and branch != newest_branch:
            break
        newest_branch, last = branch, max(last, seq)
        points = [*iter_unpack("<dd", pairs[-16 * KEPT :]), *points]
        if len(points) >= KEPT:
            break
    return points[-KEPT:], newest_branch, last


def _process(each: Member, now: int, *, written: bool) -> Json:
    return {
        "rank": each.rank,
        "role": each.role,
        "starts": len(each.starts),
        "lost": each.lost(now, written=written),
        "ended": each.newest.ended,
    }
