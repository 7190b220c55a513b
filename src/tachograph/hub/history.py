"""What the store keeps of series: their last state, and one sample every ten seconds."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tachograph.hub.processes import SECOND, Incarnation, Process, Start
from tachograph.hub.series import Series, as_json
from tachograph.hub.store import MOST_BYTES, Store

SAMPLE_EVERY = 10 * SECOND
_LARGEST = 2**63 - 1

_PROCESS = "INSERT OR IGNORE INTO process (instance, resource) VALUES (?, ?)"
_INCARNATION = "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SERIES = (
    "INSERT OR IGNORE INTO series (process, scope, name, unit, shape, attributes, description)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SERIES_ROW = (
    "SELECT id FROM series WHERE process = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)


class Change(NamedTuple):
    """A series' state that is to be saved, and the sample that is due, if any."""

    series: Series
    seen: int
    snapshot: list[Any]
    sample: tuple[int, float | None, float | None] | None


def changes(found: Iterable[Series], *, at_the_end: bool = False) -> list[Change]:
    """Return what is to be saved of series, and take it for saved. The series must not change meanwhile.

    Args:
        found: the series.
        at_the_end: sample them even where the last sample is not ten seconds old.
    """
    listed = []
    for series in found:
        if not series.unsaved:
            continue
        sample = _sample(series, at_the_end=at_the_end)
        series.unsaved = series.restarted = False
        listed.append(Change(series, series.seen, series.snapshot(), sample))
    return listed


def _sample(series: Series, *, at_the_end: bool) -> tuple[int, float | None, float | None] | None:
    before, count, total = series.sampled
    time = min(series.newest(), _LARGEST)
    if time <= before or (time < before + SAMPLE_EVERY and not at_the_end):
        return None
    if series.shape == "histogram":
        now_count, now_total = series.sums()
        series.sampled = (time, now_count, now_total)
        return time, float(now_count - count), now_total - total
    series.sampled = (time, 0, 0.0)
    value = series.shown()
    return time, None if value is None or math.isnan(value) else float(value), None


class History:
    """Processes and series of a run in its file.

    Args:
        store: the file.
        most_bytes: of its content, beyond which the older half of each series' samples is thinned.
    """

    def __init__(self, store: Store, *, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes

    def row_of(self, connection: sqlite3.Connection, process: Process) -> int:
        """Return the number of a process in the store, a new one where it has none."""
        if not process.row:
            connection.execute(_PROCESS, (process.instance, json.dumps(dict(process.resource))))
            ((row,),) = connection.execute("SELECT id FROM process WHERE instance = ?", (process.instance,))
            process.row = row
        return process.row

    def save_processes(self, found: Sequence[tuple[Process, Sequence[Incarnation]]]) -> None:
        """Save what is known of processes, and of some of their starts.

        Raises:
            StoreError: it could not be written.
        """
        with self._store.transaction() as connection:
            for process, starts in found:
                row = self.row_of(connection, process)
                connection.execute(
                    "UPDATE process SET resource = ?, times_lost = ? WHERE id = ?",
                    (json.dumps(dict(process.resource)), process.times_lost, row),
                )
                for each in starts:
                    times = (each.first_export, each.last_export, each.interval)
                    values = (row, *each.key, each.announced, *times, each.ended, each.lost)
                    connection.execute(_INCARNATION, values)

    def save(self, found: Sequence[Change]) -> None:
        """Save states and samples.

        Raises:
            StoreError: it could not be written; the series are to be saved again.
        """
        try:
            with self._store.transaction() as connection:
                states, samples = [], []
                for change in found:
                    row = change.series.row or self._row(connection, change.series)
                    states.append((row, change.seen, as_json(change.snapshot)))
                    if change.sample is not None:
                        samples.append((row, *change.sample))
                connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", states)
                connection.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?)", samples)
        except BaseException:
            for change in found:
                change.series.unsaved = True
                change.series.row = 0
            raise

    def _row(self, connection: sqlite3.Connection, series: Series) -> int:
        instrument = series.instrument
        process = self.row_of(connection, series.owner)
        key = (process, instrument.scope, instrument.name, instrument.unit, series.shape, series.attributes)
        connection.execute(_SERIES, (*key, instrument.description))
        ((row,),) = connection.execute(_SERIES_ROW, key)
        series.row = int(row)
        return series.row

    def instances(self, since: int) -> list[str]:
        """Return the processes that were heard after a time, those first that came first."""
        found = self._store.read(
            "SELECT instance FROM process JOIN incarnation ON process = id"
            " GROUP BY id HAVING max(last_export) >= ? ORDER BY id",
            since,
        )
        return [instance for (instance,) in found]

    def resource(self, instance: str) -> dict[str, Any] | None:
        """Return the resource attributes of a process; None where the store does not know it."""
        found = self._store.read("SELECT resource FROM process WHERE instance = ?", instance)
        return json.loads(found[0][0]) if found else None

    def restore(self, process: Process) -> None:
        """Give a process the starts that the store knows of."""
        found = self._store.read("SELECT id, times_lost FROM process WHERE instance = ?", process.instance)
        if not found:
            return
        process.row, process.times_lost = found[0]
        for pid, restart, announced, first, last, interval, ended, lost in self._store.read(
            "SELECT pid, restart, announced, first_export, last_export, interval, ended, lost FROM incarnation"
            " WHERE process = ? ORDER BY first_export",
            process.row,
        ):
            each = Incarnation(Start(pid, restart), first)
            each.announced, each.ended, each.lost = bool(announced), ended, bool(lost)
            each.last_export, each.interval, each.unsaved = last, interval, False
            process.incarnations[each.key] = each
            process.current = each

    def states(self, process: Process, time_to_live: int) -> list[tuple[Any, ...]]:
        """Return scope, name, unit, shape, attributes, description, number, seen and state of a process's series.

        Args:
            process: the process.
            time_to_live: nanoseconds before its last export since which a series must have been seen.
        """
        return self._store.read(
            "SELECT scope, name, unit, shape, attributes, description, id, seen, data FROM series"
            " JOIN state ON series = id WHERE process = ? AND seen >= ? ORDER BY id",
            *(process.row, process.last_export - time_to_live),
        )

    def thin(self) -> int:
        """Where the file is too large, thin the older half of each series' samples; return how many went.

        Of two neighbours one is kept; a histogram's differences are added up. Events are never thinned.

        Raises:
            StoreError: it could not be written.
        """
        if self._store.size() <= self._most_bytes:
            return 0
        before = self._counted()
        for row, shape in self._store.read("SELECT id, shape FROM series"):
            self._thin(row, is_histogram=shape == "histogram")
        return before - self._counted()

    def _counted(self) -> int:
        return int(self._store.read("SELECT count(*) FROM sample")[0][0])

    def _thin(self, row: int, *, is_histogram: bool) -> None:
        samples = self._store.read("SELECT time, value, total FROM sample WHERE series = ? ORDER BY time", row)
        older = samples[: len(samples) // 2]
        with self._store.transaction() as connection:
            for one, two in zip(older[::2], older[1::2], strict=False):
                if is_histogram:
                    connection.execute(
                        "UPDATE sample SET value = ?, total = ? WHERE series = ? AND time = ?",
                        ((one[1] or 0) + (two[1] or 0), (one[2] or 0) + (two[2] or 0), row, two[0]),
                    )
                connection.execute("DELETE FROM sample WHERE series = ? AND time = ?", (row, one[0]))
