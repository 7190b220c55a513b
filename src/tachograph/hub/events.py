"""The journal of a run: log records and points of curves in its file, each once, without loss of precision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from tachograph.identity.launch import described
from tachograph.recording.journal import CONFIG, RUN, SCHEMA, SUMMARY
from tachograph.runs.curve_writer import CurveEnds, CurveWriter
from tachograph.runs.point_records import (
    LARGEST,
    SCHEMA_KEY,
    SEQ,
    STREAM,
    CurveRecord,
    DerivedPoints,
    PackedRecord,
    decode_curve_record,
)
from tachograph.runs.queries import read_events
from tachograph.runs.recorded import CALLS, END, StoredEvent, event_of, json_value, plain_attributes, run_start
from tachograph.runs.sequence_numbers import SequenceNumbers
from tachograph.runs.store import Store
from tachograph.runs.writer import RunWriter, StartKey

# The tables of the keys in events.
_DICTIONARIES: dict[str, Literal["config", "summary"]] = {CONFIG: "config", SUMMARY: "summary"}
_NOTHING = AnyValue()
_SEQ_BITS = 63
_READ_AT_ONCE = 1000
_MOST_TYPE = 200  # characters of the type of an exception
_MOST_MESSAGE = 2000  # the same of its message
_STREAMS = 1000  # that are kept in memory


class Record(NamedTuple):
    """A log record on its way into the file.

    Attributes:
        stream: identifies one start of a process.
        seq: its number in the stream.
        time: nanoseconds since the epoch.
        observed: the same, of when it was logged.
        data: the record itself, as protobuf; empty where ``curve`` has all of it.
        newer: its schema is unknown to this version: it is stored, and not interpreted.
        reason: of the last record of a process: why the process ended.
        numbered: the sender gave it its number, so that a gap shows.
        curve: its points of curves, or its definition; None for all other events.
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
    curve: CurveRecord | PackedRecord | DerivedPoints | None


def records(logs: ResourceLogs, instance: str) -> Iterator[Record]:
    """Yield the records of one resource.

    A record without ``tachograph.stream`` and ``tachograph.seq`` gets a number from a digest of its content, so that
    it, too, is inserted once.
    """
    for scope_logs in logs.scope_logs:
        scope = scope_logs.scope.name
        for record in scope_logs.log_records:
            attributes = {each.key: each.value for each in record.attributes}
            number, of = attributes.get(SEQ, _NOTHING).int_value, attributes.get(STREAM, _NOTHING).string_value
            observed = min(record.observed_time_unix_nano, LARGEST)
            time = min(record.time_unix_nano or observed, LARGEST)
            name, newer = record.event_name, attributes.get(SCHEMA_KEY, _NOTHING).int_value > SCHEMA
            numbered = number > 0 and bool(of)
            curve = decode_curve_record(record, attributes, number, time) if numbered and not newer else None
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


def _save_values(writer: RunWriter, stream: int, record: Record) -> None:
    """Save the keys of a configuration or a summary; of two values of a key the one that was logged later."""
    attributes = LogRecord.FromString(record.data).attributes
    values = next((each.value for each in attributes if each.key == record.name), None)
    if values is not None and values.WhichOneof("value") == "kvlist_value":  # else it is another program's event
        writer.save_values(_DICTIONARIES[record.name], stream, record.seq, json_value(values))


def save_failure(writer: RunWriter, start: StartKey, record: Record) -> None:
    """Save the exception that a process has reported."""
    attributes = dict(plain_attributes(LogRecord.FromString(record.data).attributes))
    type_name = str(attributes.get("exception.type", ""))[:_MOST_TYPE]
    message = str(attributes.get("exception.message", ""))[:_MOST_MESSAGE]
    writer.save_failure(start, record.time, type_name, message)


def _run_began(writer: RunWriter, stream: int) -> int:
    """Return when the run began, as the first event of a stream says; the time of that event where it says nothing."""
    time, record = writer.read_first_event(stream)
    return run_start(record) or time


class Events:
    """The events of a run.

    Args:
        store: the run's file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: dict[str, _Stream] = {}

    def add(self, writer: RunWriter, process: int, found: Iterable[Record], *, restart: int = 0) -> list[Record]:
        """Insert records, and return those that were not there yet.

        Args:
            writer: of a transaction.
            process: the number of the process in the store.
            found: its records.
            restart: the number of its restarts: of the first branch of a curve that follows from its events.
        """
        new: list[Record] = []
        for name, of_stream in groupby(found, key=lambda record: record.stream):
            stream = self._streams.get(name) or self._stream(writer, name, process)
            curves = writer.curves(stream.row)
            fresh = [record for record in of_stream if self._insert(writer, stream, record, curves)]
            single = [(each.seq, each.time, each.curve) for each in fresh if isinstance(each.curve, CurveRecord)]
            if single:
                curves.add_records(single)
            derived = [(each.seq, each.time, each.curve) for each in fresh if isinstance(each.curve, DerivedPoints)]
            if derived:
                stream.began = stream.began or _run_began(writer, stream.row)
                curves.add_derived(derived, stream.ends, began=stream.began, branch=restart)
            for record in fresh:
                if record.name in _DICTIONARIES and not record.newer:
                    _save_values(writer, stream.row, record)
                elif record.name == RUN and not record.newer:
                    attributes = dict(plain_attributes(LogRecord.FromString(record.data).attributes))
                    writer.add_description(record.time, *described(attributes))
            writer.save_sequence_numbers(stream.row, stream.arrived)
            new += fresh
        return new

    @staticmethod
    def _insert(writer: RunWriter, stream: _Stream, record: Record, curves: CurveWriter) -> bool:
        """Insert an event, or packed points; tell whether they were not there yet."""
        curve = record.curve
        if isinstance(curve, PackedRecord):
            new = stream.arrived.add_range(curve.first, curve.last)
            if new:
                curves.add_packed(curve, new)
            return bool(new)
        if record.numbered and not stream.arrived.add(record.seq):
            return False
        if isinstance(curve, CurveRecord) or record.name == CALLS:  # which has a table of its own
            return True
        event = (record.seq, record.time, record.observed, record.name, record.scope, record.data)
        return writer.add_event(stream.row, event)

    def _stream(self, writer: RunWriter, name: str, process: int) -> _Stream:
        row = writer.add_stream(name, process)
        found = _Stream(row, writer.read_sequence_numbers(row))
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
