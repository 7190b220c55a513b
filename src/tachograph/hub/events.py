"""The journal of a run: log records in its file, each once, as exact as they came."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from tachograph.hub._arrived import Arrived, arrived
from tachograph.hub._points import Points, Told, told
from tachograph.recording.journal import SCHEMA
from tachograph.runs.event import BEGIN, END, StoredEvent, event_of, plain_attributes
from tachograph.runs.store import Store

_LARGEST = 2**63 - 1
_OURS = ("tachograph.seq", "tachograph.stream", "tachograph.schema")
_SEQ_BITS = 63
_READ_AT_ONCE = 1000
_STREAMS = 1000  # that are remembered


class Record(NamedTuple):
    """A log record on its way into the file.

    Attributes:
        stream: what tells one start of a process from all others.
        seq: its number in the stream.
        time: nanoseconds since the epoch.
        observed: the same, of when it was logged.
        data: the record itself, as protobuf; empty where it is told.
        newer: its schema is one that this version does not know: it is kept, and not looked into.
        reason: where it is the last of its process: why that ended.
        numbered: the sender gave it its number, so that a gap shows.
        told: what it says of a curve; None for all other events.
    """

    stream: str
    seq: int
    time: int
    observed: int
    name: str
    scope: str
    data: bytes
    newer: bool
    reason: str
    numbered: bool
    told: Told | None


def records(logs: ResourceLogs, instance: str) -> Iterator[Record]:
    """Yield the records of one resource.

    A record without ``tachograph.stream`` and ``tachograph.seq`` gets a number from a digest of its content, so that
    it, too, is inserted once.
    """
    for scope_logs in logs.scope_logs:
        scope = scope_logs.scope.name
        for record in scope_logs.log_records:
            seq, stream, schema = _ours(record)
            observed = min(record.observed_time_unix_nano, _LARGEST)
            time = min(record.time_unix_nano or observed, _LARGEST)
            name, newer = record.event_name, isinstance(schema, int) and schema > SCHEMA
            numbered = isinstance(seq, int) and isinstance(stream, str) and 0 < seq <= _LARGEST and bool(stream)
            curve = told(record, int(seq), time) if numbered and not newer else None
            data = b"" if curve else record.SerializeToString(deterministic=True)
            if not numbered:
                digest = hashlib.blake2b(scope.encode() + b"\0" + data, digest_size=8).digest()
                seq, stream = int.from_bytes(digest, "big") >> (64 - _SEQ_BITS), f"content:{instance}"
            reason = ""
            if name == END and not newer:
                reason = str(dict(plain_attributes(record.attributes)).get("reason", ""))
            yield Record(str(stream), int(seq or 0), time, observed, name, scope, data, newer, reason, numbered, curve)


def _ours(record: LogRecord) -> list[Any]:
    """Return number, stream and schema; we write them last, in the opposite order."""
    attributes = record.attributes
    if len(attributes) >= len(_OURS):
        last = attributes[-1], attributes[-2], attributes[-3]
        if tuple(each.key for each in last) == _OURS:
            return [last[0].value.int_value, last[1].value.string_value, last[2].value.int_value]
    found = dict(plain_attributes(each for each in attributes if each.key in _OURS))
    return [found.get(key) for key in _OURS]


class _Stream:
    """What came of one stream: a gap is what its highest number exceeds the number of its records by."""

    __slots__ = ("arrived", "gap", "lost", "row")

    def __init__(self, row: int, numbers: Arrived) -> None:
        self.row = row
        self.arrived = numbers
        self.gap = self.lost = numbers.highest - numbers.count

    def settle(self) -> int:
        """Return how many more are lost: a gap counts once it is as old as two calls."""
        gap = self.arrived.highest - self.arrived.count
        lost = min(gap, self.gap)
        self.gap = gap
        more = max(0, lost - self.lost)
        self.lost += more
        return more


class Events:
    """The events of a run.

    Args:
        store: the run's file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: dict[str, _Stream] = {}

    def add(self, connection: sqlite3.Connection, process: int, found: Iterable[Record]) -> list[Record]:
        """Insert records in the transaction of ``connection``, and return those that were not there yet.

        Args:
            connection: lent by :meth:`tachograph.runs.store.Store.transaction`.
            process: the number of the process in the store.
            found: its records.
        """
        new: list[Record] = []
        for name, of_stream in groupby(found, key=lambda record: record.stream):
            stream = self._streams.get(name) or self._stream(connection, name, process)
            fresh = [record for record in of_stream if self._insert(connection, stream, record)]
            curves = [(record.seq, record.time, record.told) for record in fresh if record.told]
            if curves:
                Points(connection, stream.row).add(curves)
            stream.arrived.save(connection, stream.row)
            new += fresh
        return new

    def is_late(self, connection: sqlite3.Connection, record: Record) -> bool:
        """Tell whether a record says that a process begins of which is stored that it ended after that."""
        if record.name != BEGIN:
            return False
        found = connection.execute(
            "SELECT 1 FROM event JOIN stream ON id = stream"
            " WHERE stream.name = ? AND seq > ? AND event.name = ? LIMIT 1",
            (*record[:2], END),
        )
        return found.fetchone() is not None

    def _insert(self, connection: sqlite3.Connection, stream: _Stream, record: Record) -> bool:
        """Insert an event, unless it is a curve's; tell whether it was not there yet."""
        if record.numbered and not stream.arrived.add(record.seq):
            return False
        if record.told is not None:
            return True
        values = (stream.row, *record[1:7])
        inserted = connection.execute("INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return inserted.rowcount == 1

    def _stream(self, connection: sqlite3.Connection, name: str, process: int) -> _Stream:
        connection.execute("INSERT OR IGNORE INTO stream (name, process) VALUES (?, ?)", (name, process))
        ((row,),) = connection.execute("SELECT id FROM stream WHERE name = ?", (name,))
        found = _Stream(row, arrived(connection, row))
        if len(self._streams) >= _STREAMS:  # what is forgotten is read from the file again
            del self._streams[next(iter(self._streams))]
        self._streams[name] = found
        return found

    def forget(self) -> None:
        """Forget what is known of streams, after a transaction that failed."""
        self._streams.clear()

    def settle(self) -> int:
        """Return how many events have come to be counted as lost since the last call, by gaps in their numbers."""
        return sum(stream.settle() for stream in list(self._streams.values()))

    def read(self, name: str | None = None, *, after: int = 0, limit: int = _READ_AT_ONCE) -> list[StoredEvent]:
        """Return events in the order in which they came.

        Args:
            name: of this name only.
            after: the number of the last one that was read.
            limit: so many at most.

        Raises:
            StoreError: the file is damaged.
        """
        found = self._store.read(
            "SELECT event.rowid, event.name, time, observed, scope, stream.name, seq, record FROM event"
            " JOIN stream ON stream.id = event.stream"
            " WHERE event.rowid > ? AND (? IS NULL OR event.name = ?) ORDER BY event.rowid LIMIT ?",
            *(after, name, name, limit),
        )
        return [event_of(row) for row in found]
