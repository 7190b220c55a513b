"""One run as the hub has it: its file, and the processes that belong to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from tachograph.hub.events import BEGIN, END, Events, Record, records
from tachograph.hub.history import History
from tachograph.hub.processes import Incarnation, Process
from tachograph.hub.store import Store, StoreError

_log = logging.getLogger("tachograph")

Sent = tuple[Process, Incarnation, ResourceLogs]


class Run:
    """A run.

    Args:
        name: its id.
        store: its file; None where it cannot be used: what comes is then in memory only.

    Attributes:
        processes: those that are on the page, by instance.
    """

    def __init__(self, name: str, store: Store | None) -> None:
        self.name = name
        self.store = store
        self.events = None if store is None else Events(store)
        self.history = None if store is None else History(store)
        self.processes: dict[str, Process] = {}

    def add_events(self, sent: Sequence[Sent]) -> tuple[list[tuple[Process, Incarnation, Record]], int]:
        """Commit log records; return those that are new, each with its sender, and how many there were.

        Raises:
            StoreError: they could not be written: they may be sent again.
        """
        found = [(process, incarnation, list(records(logs, process.instance))) for process, incarnation, logs in sent]
        count = sum(len(listed) for _, _, listed in found)
        if self.store is None or self.events is None or self.history is None:
            raise StoreError(0, "the file of this run cannot be used", self.name)
        new: list[tuple[Process, Incarnation, Record]] = []
        try:
            with self.store.transaction() as connection:
                for process, incarnation, listed in found:
                    row = self.history.row_of(connection, process)
                    added = self.events.add(connection, row, listed)
                    new += [(process, incarnation, record) for record in added]
        except BaseException:
            self.events.forget()
            for process, _, _ in found:
                process.row = 0
            raise
        return new, count

    def close(self) -> None:
        """Close the file."""
        if self.store is not None:
            self.store.close()


def apply(process: Process, incarnation: Incarnation, record: Record) -> bool:
    """Note what a new record says about the life of its process; tell whether it says anything."""
    if record.newer or record.name not in (BEGIN, END):
        return False
    if record.name == BEGIN:
        process.began(incarnation)
    else:
        process.over(incarnation, record.reason)
    return True


def opened(folder: Path, name: str) -> Run:
    """Return a run with its file; where that cannot be used a warning is logged, and the run has none."""
    try:
        return Run(name, Store(folder, name))
    except StoreError as error:
        _log.warning("the run %s is kept in memory only: %s", name, error)
        return Run(name, None)
