"""One run in the hub: its file, and its processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from tachograph.hub._history import History, Numbers, save_process
from tachograph.hub.events import Events, Record, records, save_failure
from tachograph.hub.processes import Incarnation, LiveProcess
from tachograph.identity.launch import Launch
from tachograph.runs.members import SECOND
from tachograph.runs.open_stores import OpenStores
from tachograph.runs.recorded import BEGIN, CALLS, END, FAILURE
from tachograph.runs.store import Store, StoreError
from tachograph.runs.writer import RunWriter, StartKey, open_transaction

_log = logging.getLogger("tachograph")

Sent = tuple[LiveProcess, Incarnation, ResourceLogs]

STAYS = 60 * SECOND  # on the page, after its last process
_SETTLED = 2 * SECOND  # of silence: the last metrics may arrive after the word of the end
_SCRAPERS = 64  # that are told apart


class Life(NamedTuple):
    """A new record of the begin or the end of a process's start.

    Attributes:
        late: it is a begin, and the end was in the store already.
    """

    process: LiveProcess
    incarnation: Incarnation
    record: Record
    late: bool


class StoredRecords(NamedTuple):
    """The log records of a request, once they are in the store.

    Attributes:
        new: those that were not there yet.
        lives: those of them that are for :func:`apply`.
        received: the number of all.
    """

    new: list[Record]
    lives: list[Life]
    received: int


class LiveRun:
    """A run.

    Args:
        name: its id.
        store: its file; None where it cannot be used: the run is then kept in memory only.

    Attributes:
        processes: those that are on the page, by instance.
        tried: number of times that its file was tried in vain, while the run is kept in memory only.
        launch: how ``tachograph run`` has started it; None where that is not known.
        launch_unsaved: that is not in the file yet.
        over_since: the time at which no process of it was live any more; 0 while one is.
    """

    def __init__(self, name: str, store: Store | None) -> None:
        self.name = name
        self.store: Store | None = None
        self.events: Events | None = None
        self.history: History | None = None
        self.processes: dict[str, LiveProcess] = {}
        self.tried = 0
        self.launch: Launch | None = None
        self.launch_unsaved = False
        self.over_since = 0
        self._was_live = False  # since this hub began
        self._told: set[str] = set()  # scrapers that have had its last values
        if store is not None:
            self.keep_in(store)

    def check(self, now: int, since: int) -> None:
        """Note whether a process of it is live: one that has neither ended nor is lost or silent for too long.

        Args:
            now: nanoseconds of the hub's clock.
            since: the time from which exports could arrive, the same.
        """
        starts = [each.current for each in self.processes.values() if each.current is not None]
        if any(not (each.ended or each.lost or each.silent_for_too_long(now, since)) for each in starts):
            self.over_since, self._was_live = 0, True
            self._told.clear()
        elif not self.over_since:
            found_lost = self._was_live and not self._has_ended()
            self.over_since = now if found_lost else self._last_export()

    def is_shown(self, scraper: str | None, now: int) -> bool:
        """Tell whether it is on the page for a scraper: as long as it is live, and for its last values.

        For a minute at most after that; where all of its processes have ended in an orderly way, each scraper gets
        these once. Alerts see lost processes for that minute.

        Args:
            scraper: names it; None for none, where the page is only prepared.
            now: nanoseconds of the hub's clock.
        """
        if not self.over_since:
            return True
        if now > self.over_since + STAYS or scraper in self._told:
            return False
        settled = self._has_ended() and now > self._last_export() + _SETTLED
        if settled and scraper is not None and len(self._told) < _SCRAPERS:
            self._told.add(scraper)
        return True

    def _has_ended(self) -> bool:
        return all(each.current is None or bool(each.current.ended) for each in self.processes.values())

    def _last_export(self) -> int:
        return max((each.last_export for each in self.processes.values()), default=0)

    def keep_in(self, store: Store) -> None:
        """Keep the run in a file from now on."""
        self.events, self.history, self.store = Events(store), History(store), store

    def add_events(self, sent: Sequence[Sent]) -> StoredRecords:
        """Commit log records, and with them the begins and ends of processes that they announce.

        Raises:
            StoreError: they could not be written: they may be sent again.
        """
        found = [(process, incarnation, list(records(logs, process.instance))) for process, incarnation, logs in sent]
        if self.store is None or self.events is None or self.history is None:
            raise StoreError(0, "the file of this run is not available", self.name)
        stored = StoredRecords([], [], sum(len(listed) for _, _, listed in found))
        try:
            with self.history.transaction() as numbers:
                writer = numbers.writer
                for process, incarnation, listed in found:
                    late = {record[:2] for record in listed if _is_late(writer, record)}
                    start = StartKey(numbers.process(process), *incarnation.key)
                    new = self.events.add(writer, start.process, listed, restart=start.restart)
                    lives = [record for record in new if record.name in (BEGIN, END) and not record.newer]
                    for record in new:
                        if record.name == FAILURE and not record.newer:
                            save_failure(writer, start, record)
                        elif record.name == CALLS and not record.newer:
                            writer.save_calls(start, record.data)
                        elif record.name == BEGIN and record[:2] not in late:
                            writer.delete_failure(start)
                    stored.new.extend(new)
                    stored.lives.extend([Life(process, incarnation, each, each[:2] in late) for each in lives])
                _save_lives(stored.lives, numbers)
        except BaseException:
            self.events.forget()
            raise
        return stored

    def save_launch(self) -> None:
        """Save how the run was started, and its tags and notes, where there is news of them.

        Raises:
            StoreError: it could not be written.
        """
        if self.store is None or not self.launch_unsaved:
            return
        self.launch_unsaved = False  # first: another thread may learn more of it meanwhile
        launch = self.launch
        if launch is None:
            return
        try:
            with open_transaction(self.store) as writer:
                writer.add_description(launch.time_unix_nano, launch.tags, launch.notes)
                if launch.program:
                    writer.save_launch(launch.time_unix_nano, launch.host, launch.program)
        except BaseException:
            self.launch_unsaved = True
            raise

    def save_job_end(self, time: int, status: int) -> None:
        """Save how the job has ended.

        Args:
            time: nanoseconds since the epoch.
            status: its exit code; negative for the number of the signal that killed it.

        Raises:
            StoreError: it could not be written.
        """
        if self.store is not None:
            with open_transaction(self.store) as writer:
                writer.save_job_end(time, status)

    def close(self) -> None:
        """Close the file."""
        if self.store is not None:
            self.store.close()


def _is_late(writer: RunWriter, record: Record) -> bool:
    """Tell whether a record is the begin of a process whose later end is stored already."""
    return record.name == BEGIN and writer.has_event_after(record.stream, record.seq, END)


def _save_lives(lives: Iterable[Life], numbers: Numbers) -> None:
    """Save starts as they will be once the records are applied, which happens after their commit."""
    after: dict[Incarnation, Incarnation] = {}
    for process, incarnation, record, late in lives:
        each = after.setdefault(incarnation, copy(incarnation))
        if record.name == BEGIN:
            each.begin(late=late)
        else:
            each.end(record.reason)
        save_process(numbers, process, [each])


def apply(life: Life) -> None:
    """Apply a new begin or end to its process."""
    process, incarnation, record, late = life
    if record.name == BEGIN:
        process.began(incarnation, record.time, late=late)
    else:
        incarnation.end(record.reason)


def opened(folder: Path, name: str, open_stores: OpenStores) -> LiveRun:
    """Return a run with its file; without one, after a warning in the log, where the file cannot be used."""
    try:
        return LiveRun(name, Store(folder, name, open_stores))
    except StoreError as error:
        _log.warning("cannot store the run %s, keeping it in memory only: %s", name, error)
        return LiveRun(name, None)
