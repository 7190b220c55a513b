"""Events as OTLP log records. Source: OpenTelemetry specification, "Logs Data Model", "Event Name".

A record is written as bytes: a message each for its attributes, their values and itself would take six times as long,
while a program that records every value waits for the interpreter. Field numbers are those of
``opentelemetry/proto/logs/v1/logs.proto`` and ``common.proto``, the form is that of "Protocol Buffers: Encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs

from tachograph.exporters.otlp._message import BYTES_PER_REQUEST, Lose
from tachograph.exporters.otlp.values import (
    OUT_OF_MEMORY,
    has_memory,
    resource_bytes,
    scope_and_schema,
    set_value,
    varint,
)
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import LOG, RECORD_FIELDS, RECORD_KEYS, SCHEMA, SCOPE, LogEvent
from tachograph.recording.packed_points import CODES, PLAIN_COLUMNS, PlainPoints
from tachograph.recording.points import AttributeValue
from tachograph.recording.values import UINT64_MAX, fits_int64

EVENTS_PER_REQUEST = 500
_SLICE = 8
# The tag of a field is its number times 8, and 0 for a varint, 1 for eight bytes, 2 for a length and so many bytes.
_RECORD = b"\x12"  # ScopeLogs.log_records, 2
_TIMES = Struct("<BQBQ")  # LogRecord.time_unix_nano, 1, and observed_time_unix_nano, 11
_TIME, _OBSERVED, _ATTRIBUTE, _EVENT_NAME = 0x09, 0x59, b"\x32", b"\x62"  # attributes is 6, event_name 12
_SEVERITY, _SEVERITY_TEXT, _BODY = b"\x10", b"\x1a", b"\x2a"  # of LogRecord, 2, 3 and 5
_SPAN = Struct("<BI2s16s2s8s")  # flags, 8; trace_id, 9; span_id, 10
_KEY, _VALUE = b"\x0a", b"\x12"  # of KeyValue, 1 and 2
_STRING, _INT = b"\x0a", b"\x18"  # of AnyValue, 1 and 3
_BYTES = b"\x3a"  # AnyValue.bytes_value, 7
_ARRAY, _PAIRS, _EACH = b"\x2a", b"\x32", b"\x0a"  # AnyValue.array_value and kvlist_value, 5 and 6; their values, 1
_DOUBLE, _DOUBLE_VALUE = Struct("<Bd"), 0x21  # AnyValue.double_value, 4
# Most strings and small numbers are the same in each event: they are kept encoded.
_KEPT, _SHORT, _MANY = 1024, 256, 16


def log_requests(
    events: Sequence[LogEvent], resource: Mapping[str, AttributeValue], lose: Lose, pace: Callable[[], None]
) -> Iterator[tuple[ExportLogsServiceRequest, int]]:
    """Yield :func:`log_bodies` as messages."""
    for body, points in log_bodies(events, resource, lose, pace):
        yield ExportLogsServiceRequest.FromString(body), points


def log_bodies(
    events: Sequence[LogEvent], resource: Mapping[str, AttributeValue], lose: Lose, pace: Callable[[], None]
) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded requests that carry the events, each with its number of events; packed points count each.

    Args:
        events: as they were logged.
        resource: the attributes of the process that logged it.
        lose: called with a number of events that cannot be encoded, and the reason.
        pace: called between slices.
    """
    if events and not has_memory():
        lose(sum(event.points for event in events), OUT_OF_MEMORY)
        return
    encoded: list[bytes] = []
    size = points = 0
    for number, event in enumerate(events, 1):
        if number % _SLICE == 0:
            pace()
        try:
            record = _record(event)
        except Exception as error:  # noqa: BLE001 - whatever one event holds, the others leave
            pass_on(error)
            lose(event.points, f"{event.name!r:.100}: {type(error).__name__}: {error}")
            continue
        if encoded and (size + len(record) > BYTES_PER_REQUEST or len(encoded) >= EVENTS_PER_REQUEST):
            yield _request(resource, encoded), points
            if not has_memory():
                lose(sum(left.points for left in events[number - 1 :]), OUT_OF_MEMORY)
                return
            encoded, size, points = [], 0, 0
        encoded.append(record)
        size, points = size + len(record), points + event.points
    if encoded:
        yield _request(resource, encoded), points


def _request(resource: Mapping[str, AttributeValue], records: Sequence[bytes]) -> bytes:
    scope, schema_url = _of_scope()
    held = b"".join(
        [scope, *[part for record in records for part in (_RECORD, varint(len(record)), record)], schema_url]
    )
    who = resource_bytes(resource)
    logs = b"".join((b"\x0a", varint(len(who)), who, b"\x12", varint(len(held)), held))  # resource, 1; scope_logs, 2
    return b"".join((b"\x0a", varint(len(logs)), logs))  # ExportLogsServiceRequest.resource_logs, 1


@lru_cache(1)
def _of_scope() -> tuple[bytes, bytes]:
    """Return the fields of ScopeLogs before its records, and after them."""
    scope, schema_url = scope_and_schema(SCOPE)
    return ScopeLogs(scope=scope).SerializeToString(), ScopeLogs(schema_url=schema_url).SerializeToString()


def _record(event: LogEvent) -> bytes:
    """Return an event as a LogRecord."""
    if event.attributes.__class__ is PlainPoints and 0 < event.time_unix_nano <= UINT64_MAX:
        return _record_of_plain(event, event.attributes)
    at = event.time_unix_nano
    if not 0 < at <= UINT64_MAX:
        at = min(max(at, 0), UINT64_MAX)  # 0, unknown, for what was before 1970
    parts = [_TIMES.pack(_TIME, at, _OBSERVED, event.observed_unix_nano), _named(event.name)]
    if event.trace_id:
        ids = event.trace_id.to_bytes(16, "big"), event.span_id.to_bytes(8, "big")
        parts.append(_SPAN.pack(0x45, event.trace_flags, b"\x4a\x10", ids[0], b"\x52\x08", ids[1]))
    attributes = event.record_attributes()
    if event.name == LOG:
        severity, severity_text, body = RECORD_FIELDS  # all there, unless they come out of a file
        parts += _fields(attributes.pop(severity, 0), attributes.pop(severity_text, ""), attributes.pop(body, ""))
    return b"".join(_encoded(parts, attributes))


def _record_of_plain(event: LogEvent, points: PlainPoints) -> bytes:
    """Return the record of a curve's points, of which the numbers alone are new."""
    head, size = points.head, points.size
    of_size, constants = head.encoded
    if of_size != size:
        constants = b"".join(_encoded([_named(event.name)], points.constants()))
        head.encoded = size, constants
    number = varint(event.seq)
    keys = _keys(event.stream, len(number))
    pack, before = _layout_of_plain(size, len(constants), len(keys))
    start = _TIME, event.time_unix_nano, _OBSERVED, event.observed_unix_nano, constants
    if size == 1:  # of very many curves
        time, x, value, low, low_x, high, high_x, count = points.numbers
        of_time, of_x, of_value, of_low, of_low_x, of_high, of_high_x, of_count, of_nonfinite = before
        packed = pack(
            *(*start, of_time, time, of_x, x, of_value, value, of_low, low, of_low_x, low_x),
            *(of_high, high, of_high_x, high_x, of_count, count, of_nonfinite, 0, keys),
        )
        return packed + number
    numbers = *points.numbers, *[0] * size
    columns = [(name, *numbers[place * size : (place + 1) * size]) for place, name in enumerate(before)]
    return pack(*start, *chain.from_iterable(columns), keys) + number


@lru_cache(_KEPT)
def _layout_of_plain(size: int, constants: int, keys: int) -> tuple[Callable[..., bytes], tuple[bytes, ...]]:
    """Return the packer of so many points with so many constant bytes, and the bytes before each of their columns."""
    before = tuple([_before_bytes(key, 8 * size) for key in PLAIN_COLUMNS])
    columns = "".join([f"{len(b)}s{size}{CODES[key]}" for b, key in zip(before, PLAIN_COLUMNS, strict=True)])
    return Struct(f"{_TIMES.format}{constants}s{columns}{keys}s").pack, before


@lru_cache(_MANY)
def _keys(stream: str, size: int) -> bytes:
    """Return the attributes by which a reader knows a record again, up to the number, of so many bytes."""
    of_schema, of_stream, of_seq = RECORD_KEYS
    return b"".join([*_encoded([], {of_schema: SCHEMA, of_stream: stream}), _before_int(of_seq, size)])


def _encoded(parts: list[bytes], attributes: Mapping[str, AttributeValue]) -> list[bytes]:
    """Append attributes to a record's parts."""
    for key, value in attributes.items():
        kind = value.__class__  # the plain types first: events hold little else, and there are many of them
        if kind is float:
            parts += _before_double(key), _DOUBLE.pack(_DOUBLE_VALUE, value)
        elif kind is str and len(value) < _SHORT:  # type: ignore[arg-type]
            parts.append(_string(key, value))
        elif kind is int and 0 <= value < _MANY:  # type: ignore[operator]
            parts.append(_small(key, value))
        elif kind is int and fits_int64(value):  # type: ignore[arg-type]
            number = varint(value & UINT64_MAX)  # type: ignore[operator]
            parts += _before_int(key, len(number)), number
        elif isinstance(value, bytes):
            parts += _before_bytes(key, len(value)), value
        else:
            parts.append(_other(key, value))
    return parts


def _other(key: str, value: Any) -> bytes:
    """Return any attribute; those of packed points are the same in each of a curve's records, and kept."""
    if value.__class__ is dict and all(part.__class__ is str for part in value.values()):
        return _strings(key, tuple(value.items()))
    if value.__class__ is tuple and len(value) == 1 and value[0].__class__ is str:
        return _one_string(key, value[0])
    return _any(key, value)


def _any(key: str, value: object) -> bytes:
    message = AnyValue()
    set_value(message, value)
    return _attribute(key, message.SerializeToString())


def _fields(severity: AttributeValue, severity_text: AttributeValue, body: AttributeValue) -> list[bytes]:
    """Return the fields of a record of the program's own logging, besides attributes."""
    named, said = _text(str(severity_text)), _text(str(body))
    value = b"".join([_STRING, varint(len(said)), said])
    number = varint(int(str(severity)))
    return [_SEVERITY, number, _SEVERITY_TEXT, varint(len(named)), named, _BODY, varint(len(value)), value]


def _text(value: str) -> bytes:
    return value.encode("utf-8", "replace")  # a lone surrogate becomes a question mark


def _text_value(value: str) -> bytes:
    return _field(_STRING, _text(value))


def _attribute(key: str, value: bytes) -> bytes:
    return _field(_ATTRIBUTE, _pair(key, value))


def _pair(key: str, value: bytes) -> bytes:
    return _field(_KEY, _text(key)) + _field(_VALUE, value)


def _field(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, varint(len(value)), value))


@lru_cache(_KEPT)
def _named(event: str) -> bytes:
    name = _text(event)
    return b"".join([_EVENT_NAME, varint(len(name)), name])


@lru_cache(_KEPT)
def _before_int(key: str, size: int) -> bytes:
    return _attribute(key, _INT + bytes(size))[:-size]


@lru_cache(_KEPT)
def _before_double(key: str) -> bytes:
    return _attribute(key, bytes(_DOUBLE.size))[: -_DOUBLE.size]


@lru_cache(_KEPT)
def _before_bytes(key: str, size: int) -> bytes:
    return _attribute(key, _BYTES + varint(size) + bytes(size))[: -size or None]


@lru_cache(_KEPT)
def _strings(key: str, pairs: tuple[tuple[str, str], ...]) -> bytes:
    held = b"".join([_field(_EACH, _pair(str(named), _text_value(value))) for named, value in pairs])
    return _attribute(key, _field(_PAIRS, held))


@lru_cache(_KEPT)
def _one_string(key: str, value: str) -> bytes:
    return _attribute(key, _field(_ARRAY, _field(_EACH, _text_value(value))))


@lru_cache(_KEPT)
def _string(key: str, value: str) -> bytes:
    return _attribute(key, _text_value(value))


@lru_cache(_KEPT)
def _small(key: str, value: int) -> bytes:
    return _attribute(key, _INT + varint(value))
