"""What the store keeps of series: their last state, and one sample every ten seconds."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tachograph.hub._numbers import Numbers
from tachograph.hub._samples import thin
from tachograph.hub._series import Series, as_json
from tachograph.hub.processes import Incarnation, Process, Start
from tachograph.runs.liveness import SECOND
from tachograph.runs.store import MOST_BYTES, Store

SAMPLE_EVERY = 10 * SECOND
_LARGEST = 2**63 - 1

_INCARNATION = "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STATE = (
    "SELECT series.id, seen, data FROM series JOIN process ON process.id = process JOIN state ON series = series.id"
    " WHERE instance = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)


class Change(NamedTuple):
    """A series' state that is to be saved, and the sample that is due, if any.

    Attributes:
        before: what the series said of its saving until it was taken for saved.
    """

    series: Series
    seen: int
    snapshot: list[Any]
    sample: tuple[int, float | None, float | None] | None
    before: tuple[bool, tuple[int, int, float]]

    def undo(self) -> None:
        """Let it be saved again, the same stretch of time sampled."""
        restarted, self.series.sampled = self.before
        self.series.restarted = restarted or self.series.restarted
        self.series.unsaved = True


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
        before = series.restarted, series.sampled
        sample = _sample(series, at_the_end=at_the_end)
        series.unsaved = series.restarted = False
        listed.append(Change(series, series.seen, series.snapshot(), sample, before))
    return listed


def _sample(series: Series, *, at_the_end: bool) -> tuple[int, float | None, float | None] | None:
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


def save_process(numbers: Numbers, process: Process, starts: Iterable[Incarnation]) -> None:
    """Save what is known of a process, and of some of its starts, in a transaction that somebody else commits."""
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
        most_bytes: of its content, beyond which samples are thinned: see :func:`tachograph.hub._samples.thin`.
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
            numbers, file = Numbers(connection), self._store.renewed
            yield numbers
        if self._store.renewed == file:
            numbers.committed()

    def save_processes(self, found: Sequence[tuple[Process, Sequence[Incarnation]]]) -> None:
        """Save what is known of processes, and of some of their starts.

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
                        samples.append((row, *change.sample))
                numbers.connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", states)
                numbers.connection.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?)", samples)
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
        process.unsaved = False

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

    def count(self, process: Process) -> int:
        """Return how many series of a process there are."""
        return int(self._store.read("SELECT count(*) FROM series WHERE process = ?", process.row)[0][0])

    def state(self, series: Series) -> tuple[int, int, str] | None:
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
