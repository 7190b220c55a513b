"""An event as a run's file holds it: a log record, and its attributes as plain values."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.recording.points import Attributes, AttributeValue

BEGIN, END = "tachograph.process.start", "tachograph.process.end"


class StoredEvent(NamedTuple):
    """An event as it is read back; ``number`` grows with each, and is where to go on reading."""

    number: int
    name: str
    time_unix_nano: int
    observed_unix_nano: int
    attributes: Mapping[str, AttributeValue]
    trace_id: int
    span_id: int
    scope: str
    stream: str
    seq: int


def event_of(row: Sequence[Any]) -> StoredEvent:
    """Return an event from a row: number, name, both times, scope, stream, number in it, record."""
    number, name, time, observed, scope, stream, seq, data = row
    record = LogRecord.FromString(data)
    plain = dict(plain_attributes(record.attributes))
    trace, span = int.from_bytes(record.trace_id, "big"), int.from_bytes(record.span_id, "big")
    return StoredEvent(number, name, time, observed, plain, trace, span, scope, stream, seq)


def plain_attributes(attributes: Iterable[KeyValue]) -> Attributes:
    """Return a message's attributes sorted by key; of two with the same key the later one."""
    found = {each.key: plain_value(each.value) for each in attributes}
    return tuple((key, found[key]) for key in sorted(found))


def plain_value(value: AnyValue) -> AttributeValue:
    """Return an attribute's value; a map as JSON text, bytes in base64, and nothing as the empty string."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain_value(each) for each in value.array_value.values)  # type: ignore[return-value]
    if kind == "kvlist_value":
        return json.dumps(dict(plain_attributes(value.kvlist_value.values)), sort_keys=True)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind == "string_value":
        return value.string_value
    if kind in ("bool_value", "int_value", "double_value"):
        found: bool | int | float = getattr(value, kind)
        return found
    return ""
