"""The journal of a run: log records and points of curves in its file, each once, without loss of precision."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from tachograph.hub._curve_records import (
    LARGEST,
    SCHEMA_KEY,
    SEQ,
    STREAM,
    CurveRecord,
    DerivedPoints,
    PackedRecord,
    told,
)
from tachograph.hub._curve_writer import CurveEnds, Points
from tachograph.hub._dedup import SequenceNumbers, arrived
from tachograph.identity.launch import MOST_TAGS, described
from tachograph.recording.journal import CONFIG, RUN, SCHEMA, SUMMARY
from tachograph.runs.queries import read_events
from tachograph.runs.recorded import BEGIN, CALLS, END, StoredEvent, event_of, json_value, plain_attributes, run_start
from tachograph.runs.store import Store

_DICTIONARIES = {CONFIG: "config", SUMMARY: "summary"}  # events, and the tables of their keys
_NOTHING = AnyValue()
_SEQ_BITS = 63
_READ_AT_ONCE = 1000
_STREAMS = 1000  # that are kept in memory


class Record(NamedTuple):
    """A log record on its way into the file.

    Attributes:
        stream: identifies one start of a process.
        seq: its number in the stream.
        time: nanoseconds since the epoch.
        observed: the same, of when it was logged.
        data: the record itself, as protobuf; empty where ``told`` has all of it.
        newer: its schema is unknown to this version: it is stored, and not interpreted.
        reason: of the last record of a process: why the process ended.
        numbered: the sender gave it its number, so that a gap shows.
        told: its points of curves, or its definition; None for all other events.
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
    told: CurveRecord | PackedRecord | DerivedPoints | None


def records(logs: ResourceLogs, instance: str) -> Iterator[Record]:
    """Yield the records of one resource.

    A record without ``tachograph.stream`` and ``tachograph.seq`` gets a number from a digest of its content, so that
    it, too, is inserted once.
    """
    for scope_logs in logs.scope_logs:
        scope = scope_logs.scope.name
        for record in scope_logs.log_records:
            said = {each.key: each.value for each in record.attributes}
            number, of = said.get(SEQ, _NOTHING).int_value, said.get(STREAM, _NOTHING).string_value
            observed = min(record.observed_time_unix_nano, LARGEST)
            time = min(record.time_unix_nano or observed, LARGEST)
            name, newer = record.event_name, said.get(SCHEMA_KEY, _NOTHING).int_value > SCHEMA
            numbered = number > 0 and bool(of)
            curve = told(record, said, number, time) if numbered and not newer else None
            is_event = curve is None or curve.__class__ is DerivedPoints
            data = record.SerializeToString(deterministic=True) if is_event else b""
            if not numbered:
                digest = hashlib.blake2b(scope.encode() + b"\0" + data, digest_size=8).digest()
                number, of = int.from_bytes(digest, "big") >> (64 - _SEQ_BITS), f"content:{instance}"
            reason = ""
            if name == END and not newer:
                reason = str(dict(plain_attributes(record.attributes)).get("reason", ""))
            yield Record(of, number, time, observed, name, scope, data, newer, reason, numbered, curve)


class _Stream:
    """The records of one stream: a gap is the difference between its highest number and the number of its records.

    Attributes:
        ends: of the curves that follow from its events.
        began: when the run did, in nanoseconds; 0 as long as nothing asked.
    """

    __slots__ = ("arrived", "began", "ends", "gap", "lost", "row")

    def __init__(self, row: int, numbers: SequenceNumbers) -> None:
        self.row = row
        self.ends: CurveEnds = {}
        self.began = 0
        self.arrived = numbers
        self.gap = self.lost = numbers.highest - numbers.count

    def settle(self) -> int:
        """Return the number of newly lost records: a gap counts once it is as old as two calls."""
        gap = self.arrived.highest - self.arrived.count
        lost = min(gap, self.gap)
        self.gap = gap
        more = max(0, lost - self.lost)
        self.lost += more
        return more


def _keep(connection: sqlite3.Connection, stream: int, record: Record) -> None:
    """Keep the keys of a configuration or a summary; of two values of a key the one that was logged later."""
    attributes = LogRecord.FromString(record.data).attributes
    found = next((each.value for each in attributes if each.key == record.name), None)
    if found is None or found.WhichOneof("value") != "kvlist_value":
        return  # an event of somebody else's with this name
    table = _DICTIONARIES[record.name]
    connection.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT (stream, key) DO UPDATE"  # noqa: S608 - a constant
        " SET value = excluded.value, seq = excluded.seq WHERE excluded.seq > seq",
        [(stream, key, json.dumps(value), record.seq) for key, value in json_value(found).items()],
    )


def keep_failure(connection: sqlite3.Connection, start: tuple[int, int, int], record: Record) -> None:
    """Keep the exception that a process has told: of its start's several ones the latest."""
    said = dict(plain_attributes(LogRecord.FromString(record.data).attributes))
    told = [str(said.get(f"exception.{name}", ""))[:most] for name, most in (("type", 200), ("message", 2000))]
    connection.execute("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)", (*start, record.time, *told))


def forget_failure(connection: sqlite3.Connection, start: tuple[int, int, int]) -> None:
    """Forget the exception of a start, which has begun anew."""
    connection.execute("DELETE FROM failure WHERE process = ? AND pid = ? AND restart = ?", start)


def _run_began(connection: sqlite3.Connection, stream: int) -> int:
    """Return when the run began, as the first event of a stream says; the time of that event where it says nothing."""
    first = "SELECT time, record FROM event WHERE stream = ? ORDER BY seq LIMIT 1"
    ((time, data),) = connection.execute(first, (stream,))
    return run_start(data) or int(time)


def describe(connection: sqlite3.Connection, time: int, tags: Iterable[str], notes: str) -> None:
    """Add tags to those of a run, as many as it may have, and give it notes, where it has no newer ones.

    A tag that the user has removed since that time is not added.
    """
    add = (
        "INSERT OR IGNORE INTO tag SELECT ? WHERE (SELECT count(*) FROM tag) < ?"
        " AND NOT EXISTS (SELECT 1 FROM removed_tag WHERE name = ? AND time >= ?)"
    )
    connection.executemany(add, [(tag, MOST_TAGS, tag, time) for tag in tags])
    if notes:
        connection.execute(
            "INSERT INTO notes VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE"
            " SET time = excluded.time, text = excluded.text WHERE excluded.time >= time",
            (time, notes),
        )


class Events:
    """The events of a run.

    Args:
        store: the run's file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: dict[str, _Stream] = {}

    def add(
        self, connection: sqlite3.Connection, process: int, found: Iterable[Record], *, restart: int = 0
    ) -> list[Record]:
        """Insert records in the transaction of ``connection``, and return those that were not there yet.

        Args:
            connection: lent by :meth:`tachograph.runs.store.Store.transaction`.
            process: the number of the process in the store.
            found: its records.
            restart: the number of its restarts: of the first branch of a curve that follows from its events.
        """
        new: list[Record] = []
        for name, of_stream in groupby(found, key=lambda record: record.stream):
            stream = self._streams.get(name) or self._stream(connection, name, process)
            points = Points(connection, stream.row)
            fresh = [record for record in of_stream if self._insert(connection, stream, record, points)]
            single = [(each[1], each[2], each.told) for each in fresh if isinstance(each.told, CurveRecord)]
            if single:
                points.add(single)
            derived = [(each[1], each[2], each.told) for each in fresh if isinstance(each.told, DerivedPoints)]
            if derived:
                stream.began = stream.began or _run_began(connection, stream.row)
                points.add_derived(derived, stream.ends, began=stream.began, branch=restart)
            for record in fresh:
                if record.name in _DICTIONARIES and not record.newer:
                    _keep(connection, stream.row, record)
                elif record.name == RUN and not record.newer:
                    said = dict(plain_attributes(LogRecord.FromString(record.data).attributes))
                    describe(connection, record.time, *described(said))
            stream.arrived.save(connection, stream.row)
            new += fresh
        return new

    def is_late(self, connection: sqlite3.Connection, record: Record) -> bool:
        """Tell whether a record is the begin of a process whose later end is stored already."""
        if record.name != BEGIN:
            return False
        found = connection.execute(
            "SELECT 1 FROM event JOIN stream ON id = stream"
            " WHERE stream.name = ? AND seq > ? AND event.name = ? LIMIT 1",
            (*record[:2], END),
        )
        return found.fetchone() is not None

    @staticmethod
    def _insert(connection: sqlite3.Connection, stream: _Stream, record: Record, points: Points) -> bool:
        """Insert an event, or packed points; tell whether they were not there yet."""
        curve = record.told
        if isinstance(curve, PackedRecord):
            new = stream.arrived.add_range(curve.first, curve.last)
            if new:
                points.add_packed(curve, new)
            return bool(new)
        if record.numbered and not stream.arrived.add(record.seq):
            return False
        if isinstance(curve, CurveRecord) or record.name == CALLS:  # which has a table of its own
            return True
        values = (stream.row, *record[1:7])
        inserted = connection.execute("INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return inserted.rowcount == 1

    def _stream(self, connection: sqlite3.Connection, name: str, process: int) -> _Stream:
        connection.execute("INSERT OR IGNORE INTO stream (name, process) VALUES (?, ?)", (name, process))
        ((row,),) = connection.execute("SELECT id FROM stream WHERE name = ?", (name,))
        found = _Stream(row, arrived(connection, row))
        if len(self._streams) >= _STREAMS:  # a stream that is forgotten is read from the file again
            del self._streams[next(iter(self._streams))]
        self._streams[name] = found
        return found

    def forget(self) -> None:
        """Forget the cached streams, after a transaction that failed."""
        self._streams.clear()

    def settle(self) -> int:
        """Return the number of events that count as lost since the last call, by gaps in their numbers."""
        return sum(stream.settle() for stream in list(self._streams.values()))

    def read(self, name: str | None = None, *, after: int = 0, limit: int = _READ_AT_ONCE) -> list[StoredEvent]:
        """Return events in the order of their arrival.

        Args:
            name: of this name only.
            after: the number of the last one that was read.
            limit: the most events.

        Raises:
            StoreError: the file is damaged.
        """
        names = () if name is None else (name,)
        return [event_of(row) for row in read_events(self._store.read, after=after, names=names, limit=limit)]
