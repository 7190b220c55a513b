"""The history of series in the store: their rows, their last state, and one sample every ten seconds, thinned later."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from tachograph.hub._curve_writer import thin_points
from tachograph.hub._series import HubSeries, as_json
from tachograph.hub._spread import Packing
from tachograph.hub.processes import Incarnation, LiveProcess, StartNumber
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.members import SECOND
from tachograph.runs.spread import joined, packed, unpacked
from tachograph.runs.store import MOST_BYTES, Store

_PROCESS = "INSERT OR IGNORE INTO process (instance, resource) VALUES (?, ?)"
_SERIES = (
    "INSERT OR IGNORE INTO series (process, scope, name, unit, shape, attributes, description)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SERIES_ROW = (
    "SELECT id FROM series WHERE process = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)
ROW = 28  # bytes of a sample in the file, measured; its spread comes on top
FLOOR = 1000  # samples of a series that are left to it at least: enough for a chart
_SHARE = 8  # of a file that its samples may always have, one in so many bytes: events take all that they need
_AT_ONCE = 4096  # samples in one transaction
_LOGGED = 2**17  # samples that are gone, between two times that the log is taken over
SAMPLE_EVERY = 10 * SECOND
_LARGEST = 2**63 - 1
_INCARNATION = "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STATE = (
    "SELECT series.id, seen, data FROM series JOIN process ON process.id = process JOIN state ON series = series.id"
    " WHERE instance = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)


class Numbers:
    """The numbers of processes and series, new ones where they have none: these hold once they are committed.

    Args:
        connection: lent by :meth:`tachograph.runs.store.Store.transaction`, for that transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._new: dict[LiveProcess | HubSeries, int] = {}

    def process(self, process: LiveProcess) -> int:
        """Return the number of a process."""
        row = process.row or self._new.get(process)
        if row is None:
            self.connection.execute(_PROCESS, (process.instance, json.dumps(dict(process.resource))))
            ((row,),) = self.connection.execute("SELECT id FROM process WHERE instance = ?", (process.instance,))
            self._new[process] = row
        return row

    def series(self, series: HubSeries) -> int:
        """Return the number of a series."""
        row = series.row or self._new.get(series)
        if row is None:
            of = series.instrument
            key = (self.process(series.owner), of.scope, of.name, of.unit, series.shape, series.attributes)
            self.connection.execute(_SERIES, (*key, of.description))
            ((row,),) = self.connection.execute(_SERIES_ROW, key)
            self._new[series] = row
        return row

    def committed(self) -> None:
        """Let the new ones hold."""
        for each, row in self._new.items():
            each.row = row


def thin(store: Store, most_bytes: int, *, floor: int = FLOOR) -> int:
    """Thin the older half of each series' samples where the file is too large; return how many went.

    Of two neighbours one is kept; a histogram's differences are added up. Samples are left alone where others take the
    room: an eighth of the limit is theirs. Events are never thinned.

    Args:
        store: the file.
        most_bytes: of its content.
        floor: samples of a series that are left to it at least.

    Raises:
        StoreError: it could not be written.
    """
    if store.size() <= most_bytes:
        return 0
    count = "SELECT count(*), coalesce(sum(length(spread)), 0) FROM sample WHERE series = ?"
    series = [(row, shape, *store.read(count, row)[0]) for row, shape in store.read("SELECT id, shape FROM series")]
    if sum(samples * ROW + spreads for _, _, samples, spreads in series) <= most_bytes // _SHARE:
        return 0
    gone = logged = 0
    for row, shape, samples, _ in series:
        if samples - samples // 4 >= floor:
            fewer = _thin(store, row, samples // 2, is_histogram=shape == "histogram")
            gone, logged = gone + fewer, logged + fewer
        if logged >= _LOGGED:
            store.checkpoint()
            logged = 0
    return gone


def _thin(store: Store, row: int, older: int, *, is_histogram: bool) -> int:
    gone, after = 0, -1
    while older > 1:
        found = store.read(
            "SELECT time, value, total, spread FROM sample WHERE series = ? AND time > ? ORDER BY time LIMIT ?",
            *(row, after, min(older, _AT_ONCE)),
        )
        if not found:
            break
        older -= _AT_ONCE
        kept = [_joined(one, two) if is_histogram else two or one for one, two in zip_longest(found[::2], found[1::2])]
        after = found[-1][0]
        with store.transaction() as connection:  # all of them: gaps in the pages free none
            span = (row, found[0][0], after)
            connection.execute("DELETE FROM sample WHERE series = ? AND time BETWEEN ? AND ?", span)
            connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", [(row, *each) for each in kept])
        gone += len(found) - len(kept)
    return gone


def _joined(one: tuple[Any, ...], two: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if two is None:
        return one
    spread = one[3] if two[3] is None else two[3]
    if one[3] is not None and two[3] is not None:
        parts: list[ExponentialHistogram] = []
        for data in (one[3], two[3]):
            with contextlib.suppress(ValueError):  # damage: the other one is left
                parts.append(unpacked(data))
        spread = packed(joined(parts)) if parts else None
    return two[0], (one[1] or 0) + (two[1] or 0), (one[2] or 0) + (two[2] or 0), spread


class Change(NamedTuple):
    """A series' state that is to be saved, and the sample that is due, if any.

    Attributes:
        before: ``restarted`` and ``sampled`` of the series before it was taken for saved.
        spread: the parts of the sample's spread.
    """

    series: HubSeries
    seen: int
    snapshot: list[Any]
    sample: tuple[int, float | None, float | None] | None
    before: tuple[bool, tuple[int, int, float]]
    spread: tuple[ExponentialHistogram, ...] = ()

    def undo(self) -> None:
        """Let it be saved again, the same stretch of time sampled."""
        if self.spread and self.series.spread is not None:
            self.series.spread.recent.extend(self.spread)
        restarted, self.series.sampled = self.before
        self.series.restarted = restarted or self.series.restarted
        self.series.unsaved = True


def changes(found: Iterable[HubSeries], *, at_the_end: bool = False) -> list[Change]:
    """Return the unsaved states of series, and take them for saved. The series must not change meanwhile.

    Args:
        found: the series.
        at_the_end: sample them even where the last sample is not ten seconds old, or their state is saved already.
    """
    listed = []
    for series in found:
        if not (series.unsaved or (at_the_end and series.unsampled)):
            continue
        before = series.restarted, series.sampled
        sample = _sample(series, at_the_end=at_the_end)
        spread = () if sample is None or series.spread is None else series.spread.sample()
        series.unsaved = series.restarted = False
        listed.append(Change(series, series.seen, series.snapshot(), sample, before, spread))
    return listed


def _sample(series: HubSeries, *, at_the_end: bool) -> tuple[int, float | None, float | None] | None:
    before, count, total = series.sampled
    time = min(series.newest(), _LARGEST)
    is_set_back = time < before - SAMPLE_EVERY  # the sender's clock
    if not is_set_back and (time <= before or (time < before + SAMPLE_EVERY and not at_the_end)):
        return None
    if series.shape == "histogram":
        now_count, now_total = series.sums()
        series.sampled = (time, now_count, now_total)
        return time, float(now_count - count), now_total - total
    series.sampled = (time, 0, 0.0)
    value = series.shown()
    return time, None if value is None or math.isnan(value) else float(value), None


def save_process(numbers: Numbers, process: LiveProcess, starts: Iterable[Incarnation]) -> None:
    """Save a process and some of its starts, in a transaction that the caller commits."""
    row = numbers.process(process)
    numbers.connection.execute(
        "UPDATE process SET resource = ?, times_lost = ? WHERE id = ?",
        (json.dumps(dict(process.resource)), process.times_lost, row),
    )
    for each in starts:
        times = (each.first_export, each.last_export, each.interval)
        values = (row, *each.key, each.announced, *times, each.ended, each.lost)
        numbers.connection.execute(_INCARNATION, values)


class History:
    """Processes and series of a run in its file.

    Args:
        store: the file.
        most_bytes: of its content, beyond which samples are thinned: see :func:`tachograph.hub._history.thin`.
    """

    def __init__(self, store: Store, *, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Numbers]:
        """Lend the numbers in the store, and with them the connection, for one transaction.

        Raises:
            StoreError: it could not be written.
        """
        with self._store.transaction() as connection:
            numbers = Numbers(connection)
            yield numbers
        numbers.committed()

    def save_processes(self, found: Sequence[tuple[LiveProcess, Sequence[Incarnation]]]) -> None:
        """Save processes, each with some of its starts.

        Raises:
            StoreError: it could not be written; they are to be saved again.
        """
        try:
            with self.transaction() as numbers:
                for process, starts in found:
                    save_process(numbers, process, starts)
        except BaseException:
            for process, starts in found:
                process.unsaved = True
                for each in starts:
                    each.unsaved = True
            raise

    def save(self, found: Sequence[Change]) -> None:
        """Save states and samples.

        Raises:
            StoreError: it could not be written; the series are to be saved again.
        """
        try:
            with self.transaction() as numbers:
                states, samples = [], []
                for change in found:
                    row = numbers.series(change.series)
                    states.append((row, change.seen, as_json(change.snapshot)))
                    if change.sample is not None:
                        samples.append(
                            (row, *change.sample, Packing(change.spread).packed() if change.spread else None)
                        )
                numbers.connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", states)
                numbers.connection.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?)", samples)
        except BaseException:
            for change in found:
                change.undo()
            raise

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

    def restore(self, process: LiveProcess) -> None:
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
            each = Incarnation(StartNumber(pid, restart), first)
            each.announced, each.ended, each.lost = bool(announced), ended, bool(lost)
            each.last_export, each.interval, each.unsaved = last, interval, False
            process.incarnations[each.key] = each
            process.current = each
        process.unsaved = False

    def states(self, process: LiveProcess, time_to_live: int) -> list[tuple[Any, ...]]:
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

    def count(self, process: LiveProcess) -> int:
        """Return how many series of a process there are."""
        return int(self._store.read("SELECT count(*) FROM series WHERE process = ?", process.row)[0][0])

    def state(self, series: HubSeries) -> tuple[int, int, str] | None:
        """Return number, seen and state of a series, however old; None where the store does not know it."""
        of = series.instrument
        key = (series.owner.instance, of.scope, of.name, of.unit, series.shape, series.attributes)
        found = self._store.read(_STATE, *key)
        return found[0] if found else None

    def thin(self) -> int:
        """Thin the samples where the file is too large; return how many went.

        Raises:
            StoreError: it could not be written.
        """
        return thin(self._store, self._most_bytes)

    def thin_points(self) -> int:
        """Thin the longest curves of gauges where the file is too large; return how many points went.

        Raises:
            StoreError: it could not be written.
        """
        return thin_points(self._store, self._most_bytes)
