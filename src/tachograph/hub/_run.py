"""One run as the hub has it: its file, and the processes that belong to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from tachograph.hub._history import History, Numbers, save_process
from tachograph.hub.events import Events, Record, records
from tachograph.hub.processes import Incarnation, LiveProcess
from tachograph.runs.open_stores import OpenStores
from tachograph.runs.recorded import BEGIN, END
from tachograph.runs.store import Store, StoreError

_log = logging.getLogger("tachograph")

Sent = tuple[LiveProcess, Incarnation, ResourceLogs]


class Life(NamedTuple):
    """A new record that says that a start of a process begins or ends.

    Attributes:
        late: it begins, and how it ended was in the store already.
    """

    process: LiveProcess
    incarnation: Incarnation
    record: Record
    late: bool


class StoredRecords(NamedTuple):
    """Log records in the store: the new ones, and how many came in all.

    Attributes:
        new: those that were not there yet.
        lives: those of them that :func:`apply` is for.
        received: how many there were in all.
    """

    new: list[Record]
    lives: list[Life]
    received: int


class LiveRun:
    """A run.

    Args:
        name: its id.
        store: its file; None where it cannot be used: what comes is then in memory only.

    Attributes:
        processes: those that are on the page, by instance.
        tried: how often its file was tried in vain since it is kept in memory only.
    """

    def __init__(self, name: str, store: Store | None) -> None:
        self.name = name
        self.store: Store | None = None
        self.events: Events | None = None
        self.history: History | None = None
        self.processes: dict[str, LiveProcess] = {}
        self.tried = 0
        if store is not None:
            self.keep_in(store)

    def keep_in(self, store: Store) -> None:
        """Keep all of it in a file from now on."""
        self.events, self.history, self.store = Events(store), History(store), store

    def add_events(self, sent: Sequence[Sent]) -> StoredRecords:
        """Commit log records, and with them what they say of the life of their processes.

        Raises:
            StoreError: they could not be written: they may be sent again.
        """
        found = [(process, incarnation, list(records(logs, process.instance))) for process, incarnation, logs in sent]
        if self.store is None or self.events is None or self.history is None:
            raise StoreError(0, "the file of this run cannot be used", self.name)
        stored = StoredRecords([], [], sum(len(listed) for _, _, listed in found))
        try:
            with self.history.transaction() as numbers:
                for process, incarnation, listed in found:
                    late = {record[:2] for record in listed if self.events.is_late(numbers.connection, record)}
                    new = self.events.add(numbers.connection, numbers.process(process), listed)
                    lives = [record for record in new if record.name in (BEGIN, END) and not record.newer]
                    stored.new.extend(new)
                    stored.lives.extend([Life(process, incarnation, each, each[:2] in late) for each in lives])
                _save_lives(stored.lives, numbers)
        except BaseException:
            self.events.forget()
            raise
        return stored

    def forget(self) -> None:
        """Forget what processes and series are called in the file: all is to be saved again, into a new one."""
        if self.events is not None:
            self.events.forget()
        for process in self.processes.values():
            process.row, process.unsaved, process.forgotten = 0, True, False
            for incarnation in process.incarnations.values():
                incarnation.unsaved = True
            for stream in process.streams.values():
                for series in stream.series():
                    series.row, series.unsaved = 0, True

    def close(self) -> None:
        """Close the file."""
        if self.store is not None:
            self.store.close()


def _save_lives(lives: Iterable[Life], numbers: Numbers) -> None:
    """Save starts as they will be once records are applied to them, which is when these are committed."""
    after: dict[Incarnation, Incarnation] = {}
    for process, incarnation, record, late in lives:
        each = after.setdefault(incarnation, copy(incarnation))
        if record.name == BEGIN:
            each.begin(late=late)
        else:
            each.end(record.reason)
        save_process(numbers, process, [each])


def apply(life: Life) -> None:
    """Note what a new record says about the life of its process."""
    process, incarnation, record, late = life
    if record.name == BEGIN:
        process.began(incarnation, record.time, late=late)
    else:
        process.over(incarnation, record.reason)


def opened(folder: Path, name: str, open_stores: OpenStores) -> LiveRun:
    """Return a run with its file; where that cannot be used a warning is logged, and the run has none."""
    try:
        return LiveRun(name, Store(folder, name, open_stores))
    except StoreError as error:
        _log.warning("the run %s is kept in memory only: %s", name, error)
        return LiveRun(name, None)
