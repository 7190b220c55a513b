"""The journal of a run: log records and points of curves in its file, each once, without loss of precision."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from tachograph.hub._dedup import SequenceNumbers, arrived
from tachograph.identity.launch import MOST_TAGS, described
from tachograph.recording.journal import CONFIG, RUN, SCHEMA, SUMMARY
from tachograph.recording.points import AttributeValue
from tachograph.runs.blocks import MOST_COLUMNS, Block, Outline, Sample, join, outline, pack
from tachograph.runs.recorded import BEGIN, END, StoredEvent, event_of, plain_attributes
from tachograph.runs.store import Store

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"
_OURS = ("tachograph.seq", "tachograph.stream", "tachograph.schema")
OURS = frozenset(_OURS)
_DICTIONARIES = {CONFIG: "config", SUMMARY: "summary"}  # events, and the tables of their keys
FULL = 1024  # points, from which on a block stays as it is
_FRESH, _GATHERED, _FINAL = range(3)
_MANY = (16, 64)  # blocks of a level: a point is written about three times, even where requests are small
_EXACT = 2**53
_MOST_HIDDEN = 2**32  # values that one point stands for: the sum of a block's fits into SQLite's integers

_ADD = "INSERT INTO block VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "seq0, seq1, n, t0, t1, x0, x1, min, max, nonfinite, form, pairs, rest"
_LARGEST = 2**63 - 1
_SEQ_BITS = 63
_READ_AT_ONCE = 1000
_STREAMS = 1000  # that are kept in memory


class CurveRecord(NamedTuple):
    """A record of a curve: a point (``sample``), or, where that is None, a metric's definition (``about``).

    Attributes:
        execution: the number of the task; 0 for the process.
        attributes: of the curve, as JSON: pairs, sorted by key.
        branch: goes up where x goes back.
    """

    execution: int
    metric: str
    group: str
    attributes: str
    branch: int
    sample: Sample | None
    about: Mapping[str, AttributeValue]


def told(record: LogRecord, seq: int, time: int) -> CurveRecord | None:
    """Return the curve's point, or the definition, in a record.

    None for records that a block cannot give back exactly: of another name or within a span, without a metric and a
    value at a finite x, or with more than numbers beside them.

    Args:
        record: the message.
        seq: its number.
        time: its time in nanoseconds.
    """
    if record.event_name == DEFINITION:
        return _definition(record)
    if record.event_name != POINT or record.trace_id:
        return None
    names: dict[str, str] = {"group": "", "attributes": "[]"}
    numbers: dict[str, int | float] = {}
    for each in record.attributes:
        key, value = each.key, each.value
        kind = value.WhichOneof("value")
        if key in OURS:
            continue
        if kind == "double_value":
            numbers[key] = value.double_value
        elif kind == "int_value":
            numbers[key] = value.int_value
        elif kind == "string_value" and key in ("metric", "group"):
            names[key] = value.string_value
        elif kind == "kvlist_value" and key == "attributes" and _exact(value.kvlist_value.values):
            names[key] = json.dumps(plain_attributes(value.kvlist_value.values), separators=(",", ":"))
        else:
            return None
    return _point(names, numbers, seq, time)


def _point(names: Mapping[str, str], numbers: dict[str, int | float], seq: int, time: int) -> CurveRecord | None:
    execution, branch = numbers.pop("execution", 0), numbers.pop("branch", 0)
    x, value = numbers.pop("x", None), numbers.pop("value", None)
    if not (names.get("metric") and isinstance(execution, int) and isinstance(branch, int)):
        return None
    if x is None or value is None or not (_holds(x) and _holds(value) and isfinite(x)):
        return None
    if not numbers.keys().isdisjoint(names) or len(numbers) > MOST_COLUMNS:
        return None
    hidden = numbers.get("nonfinite", 0)
    if not isinstance(hidden, int) or not 0 <= hidden <= _MOST_HIDDEN:
        return None
    sample = Sample(seq, time, float(x), float(value), numbers)
    return CurveRecord(execution, names["metric"], names["group"], names["attributes"], branch, sample, {})


def _exact(attributes: Iterable[KeyValue]) -> bool:
    """Tell whether JSON gives attributes back exactly."""
    kinds = [(each.value.WhichOneof("value"), each.value) for each in attributes]
    return all(
        kind in ("string_value", "bool_value", "int_value") or (kind == "double_value" and isfinite(value.double_value))
        for kind, value in kinds
    )


def _holds(number: float) -> bool:
    """Tell whether a float holds a number exactly."""
    return isinstance(number, float) or -_EXACT <= number <= _EXACT


def _definition(record: LogRecord) -> CurveRecord | None:
    about = {key: value for key, value in plain_attributes(record.attributes) if key not in OURS}
    metric, execution, group = about.get("metric"), about.get("execution", 0), about.get("group", "")
    if isinstance(metric, str) and metric and isinstance(execution, int) and isinstance(group, str):
        return CurveRecord(execution, metric, group, "[]", 0, None, about)
    return None


class Points:
    """Writes points and definitions of one stream, in a transaction that the caller commits.

    The points of a request are a block of their own; blocks are joined when there are many, until they are full.

    Args:
        connection: lent by :meth:`tachograph.runs.store.Store.transaction`.
        stream: the number of the stream in the file.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def add(self, found: Sequence[tuple[int, int, CurveRecord]]) -> None:
        """Add new records of curves, each with its number and time."""
        samples: dict[tuple[int, str, str, str], dict[int, list[Sample]]] = {}
        for seq, time, each in found:
            if each.sample is None:
                self._define(seq, time, each)
            else:
                curve = samples.setdefault((each.execution, each.group, each.metric, each.attributes), {})
                curve.setdefault(each.branch, []).append(each.sample)
        for named, branches in samples.items():
            row = self._curve(*named)
            for branch, listed in branches.items():
                listed.sort(key=lambda sample: sample.seq)
                for first in range(0, len(listed), FULL):
                    part = listed[first : first + FULL]
                    self._insert(row, branch, _FRESH, outline(part), pack(part))

    def _define(self, seq: int, time: int, each: CurveRecord) -> None:
        group = each.group or self._group(each.execution, each.metric)
        self._name(each.execution, group, each.metric)
        self._connection.execute(
            "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (stream, execution, scope, metric) DO"
            " UPDATE SET seq = excluded.seq, time = excluded.time, about = excluded.about WHERE excluded.seq > seq",
            (self._stream, each.execution, group, each.metric, seq, time, json.dumps(dict(each.about))),
        )

    def _group(self, execution: int, metric: str) -> str:
        """Return the group in the newest definition of a metric; empty where there is none."""
        where = "stream = ? AND execution = ? AND metric = ? ORDER BY seq DESC LIMIT 1"
        said = self._connection.execute(
            f"SELECT scope FROM definition WHERE {where}",  # noqa: S608 - a constant
            (self._stream, execution, metric),
        ).fetchone()
        return str(said[0]) if said else ""

    def _name(self, execution: int, group: str, metric: str) -> None:
        """Set the group of a metric that had none: a ``Metric`` may get it after its first points."""
        if not group:
            return
        named = (group, self._stream, execution, metric)
        of_metric = "SET scope = ? WHERE stream = ? AND execution = ? AND scope = '' AND metric = ?"
        self._connection.execute(f"UPDATE OR IGNORE definition {of_metric}", named)
        self._connection.execute(f"UPDATE OR IGNORE curve {of_metric}", named)

    def _curve(self, execution: int, group: str, metric: str, attributes: str) -> int:
        """Return the number of a curve, a new one where there is none; its group may stand in its definition alone."""
        group = group or self._group(execution, metric)
        key = (self._stream, execution, group, metric, attributes)
        find = "SELECT id FROM curve WHERE stream = ? AND execution = ? AND scope = ? AND metric = ? AND attributes = ?"
        known = self._connection.execute(find, key).fetchone()
        if known is None and group:
            self._name(execution, group, metric)
            known = self._connection.execute(find, key).fetchone()
        if known is not None:
            return int(known[0])
        add = "INSERT INTO curve (stream, execution, scope, metric, attributes) VALUES (?, ?, ?, ?, ?)"
        return int(self._connection.execute(add, key).lastrowid or 0)

    def _insert(self, curve: int, branch: int, level: int, about: Outline, block: Block) -> None:
        if about.n >= FULL:
            level = _FINAL
        self._connection.execute(_ADD, (curve, branch, level, *about, block.crc(), *block))
        if level == _FINAL:
            return
        place = (curve, branch, level)
        which = "FROM block WHERE curve = ? AND branch = ? AND level = ?"
        ((count, points),) = self._connection.execute(f"SELECT count(*), sum(n) {which}", place)
        if count < _MANY[level] and points < FULL:
            return
        rows = self._connection.execute(f"SELECT {_COLUMNS} {which}", place).fetchall()
        self._connection.execute(f"DELETE {which}", place)
        try:
            about, block = join([(Outline(*row[:10]), Block(*row[10:])) for row in rows])
        except ValueError as error:
            raise sqlite3.DatabaseError(str(error)) from error
        self._insert(curve, branch, level + 1, about, block)


class Record(NamedTuple):
    """A log record on its way into the file.

    Attributes:
        stream: identifies one start of a process.
        seq: its number in the stream.
        time: nanoseconds since the epoch.
        observed: the same, of when it was logged.
        data: the record itself, as protobuf; empty where ``told`` has it.
        newer: its schema is unknown to this version: it is stored, and not interpreted.
        reason: of the last record of a process: why the process ended.
        numbered: the sender gave it its number, so that a gap shows.
        told: its point of a curve, or its definition; None for all other events.
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
    told: CurveRecord | None


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
    """Return number, stream and schema; senders write them last, in the opposite order."""
    attributes = record.attributes
    if len(attributes) >= len(_OURS):
        last = attributes[-1], attributes[-2], attributes[-3]
        if tuple(each.key for each in last) == _OURS:
            return [last[0].value.int_value, last[1].value.string_value, last[2].value.int_value]
    found = dict(plain_attributes(each for each in attributes if each.key in OURS))
    return [found.get(key) for key in _OURS]


class _Stream:
    """The records of one stream: a gap is the difference between its highest number and the number of its records."""

    __slots__ = ("arrived", "gap", "lost", "row")

    def __init__(self, row: int, numbers: SequenceNumbers) -> None:
        self.row = row
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
        [(stream, key, json.dumps(value), record.seq) for key, value in plain_attributes(found.kvlist_value.values)],
    )


def describe(connection: sqlite3.Connection, time: int, tags: Iterable[str], notes: str) -> None:
    """Add tags to those of a run, as many as it may have, and give it notes, where it has no newer ones."""
    add = "INSERT OR IGNORE INTO tag SELECT ? WHERE (SELECT count(*) FROM tag) < ?"
    connection.executemany(add, [(tag, MOST_TAGS) for tag in tags])
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
        found = self._store.read(
            "SELECT event.rowid, event.name, time, observed, scope, stream.name, seq, record FROM event"
            " JOIN stream ON stream.id = event.stream"
            " WHERE event.rowid > ? AND (? IS NULL OR event.name = ?) ORDER BY event.rowid LIMIT ?",
            *(after, name, name, limit),
        )
        return [event_of(row) for row in found]
