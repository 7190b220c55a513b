"""The history of series in the store: their rows, their last state, and one sample every ten seconds, thinned later."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tachograph.hub._series import HubSeries, as_json
from tachograph.hub._spread import Packing
from tachograph.hub.processes import Incarnation, LiveProcess, StartNumber
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.members import SECOND
from tachograph.runs.queries import (
    SeriesKey,
    StoredState,
    count_series,
    find_process,
    find_state,
    read_instances,
    read_starts,
    read_states,
)
from tachograph.runs.store import MOST_BYTES, Store
from tachograph.runs.thinning import thin_points, thin_samples
from tachograph.runs.writer import RunWriter, StartKey, open_transaction

SAMPLE_EVERY = 10 * SECOND
_LARGEST = 2**63 - 1


class Numbers:
    """The numbers of processes and series, new ones where they have none: these hold once they are committed.

    Args:
        writer: of a transaction.
    """

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self._new: dict[LiveProcess | HubSeries, int] = {}

    def process(self, process: LiveProcess) -> int:
        """Return the number of a process."""
        row = process.row or self._new.get(process)
        if row is None:
            row = self._new[process] = self.writer.add_process(process.instance, process.resource)
        return row

    def series(self, series: HubSeries) -> int:
        """Return the number of a series."""
        row = series.row or self._new.get(series)
        if row is None:
            process = self.process(series.owner)
            row = self._new[series] = self.writer.add_series(process, _key_of(series), series.instrument.description)
        return row

    def committed(self) -> None:
        """Let the new ones hold."""
        for each, row in self._new.items():
            each.row = row


def _key_of(series: HubSeries) -> SeriesKey:
    instrument = series.instrument
    return SeriesKey(instrument.scope, instrument.name, instrument.unit, series.shape, series.attributes)


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
    numbers.writer.save_process(row, process.resource, process.times_lost)
    for each in starts:
        numbers.writer.save_start(
            StartKey(row, *each.key),
            announced=each.announced,
            first_export=each.first_export,
            last_export=each.last_export,
            interval=each.interval,
            ended=each.ended,
            lost=each.lost,
        )


class History:
    """Processes and series of a run in its file.

    Args:
        store: the file.
        most_bytes: of its content, beyond which samples are thinned: see :mod:`tachograph.runs.thinning`.
    """

    def __init__(self, store: Store, *, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Numbers]:
        """Lend the numbers in the store, and with them the writer, for one transaction.

        Raises:
            StoreError: it could not be written.
        """
        with open_transaction(self._store) as writer:
            numbers = Numbers(writer)
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
                numbers.writer.save_states(states)
                numbers.writer.save_samples(samples)
        except BaseException:
            for change in found:
                change.undo()
            raise

    def instances(self, since: int) -> list[str]:
        """Return the processes that were heard after a time, those first that came first."""
        return read_instances(self._store.read, since=since)

    def resource(self, instance: str) -> dict[str, Any] | None:
        """Return the resource attributes of a process; None where the store does not know it."""
        stored = find_process(self._store.read, instance)
        return None if stored is None else json.loads(stored.resource)

    def restore(self, process: LiveProcess) -> None:
        """Give a process the starts that the store knows of."""
        stored = find_process(self._store.read, process.instance)
        if stored is None:
            return
        process.row = stored.number
        process.times_lost = stored.times_lost
        for start in read_starts(self._store.read, process.row):
            each = Incarnation(StartNumber(start.pid, start.restart), start.first_export)
            each.announced = bool(start.announced)
            each.ended = start.ended
            each.lost = bool(start.lost)
            each.last_export = start.last_export
            each.interval = start.interval
            each.unsaved = False
            process.incarnations[each.key] = each
            process.current = each
        process.unsaved = False

    def states(self, process: LiveProcess, time_to_live: int) -> list[StoredState]:
        """Return the states of a process's series.

        Args:
            process: the process.
            time_to_live: nanoseconds before its last export since which a series must have been seen.
        """
        return read_states(self._store.read, process.row, since=process.last_export - time_to_live)

    def count(self, process: LiveProcess) -> int:
        """Return how many series of a process there are."""
        return count_series(self._store.read, process.row)

    def state(self, series: HubSeries) -> StoredState | None:
        """Return the state of a series, however old; None where the store does not know it."""
        return find_state(self._store.read, series.owner.instance, _key_of(series))

    def thin_samples(self) -> int:
        """Thin the samples where the file is too large; return how many went.

        Raises:
            StoreError: it could not be written.
        """
        return thin_samples(self._store, self._most_bytes)

    def thin_points(self) -> int:
        """Thin the longest curves of gauges where the file is too large; return how many points went.

        Raises:
            StoreError: it could not be written.
        """
        return thin_points(self._store, self._most_bytes)
