"""OTLP as JSON: messages written as lines, and events read back from them.

Identifiers of traces and spans are hexadecimal, enumerations are numbers, 64-bit integers are strings.
Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tachograph.recording.journal import LOG, RECORD_FIELDS, SCHEMA, LogEvent

_LONG = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_IDS = {"trace_id", "span_id", "parent_span_id"}
_REST_AFTER = 8  # messages inside messages
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class JsonText:
    """Writes messages as one line of JSON each.

    Args:
        pace: called between slices of a message.
    """

    def __init__(self, pace: Callable[[], None]) -> None:
        self._pace = pace
        self._since_rest = 0

    def line(self, request: Message) -> bytes:
        """Return a request as one line, its end included."""
        return self._message(request).encode() + b"\n"

    def _message(self, message: Message) -> str:
        self._since_rest += 1
        if self._since_rest >= _REST_AFTER:
            self._since_rest = 0
            self._pace()
        return (
            "{"
            + ",".join([f'"{field.json_name}":{self._field(field, value)}' for field, value in message.ListFields()])
            + "}"
        )

    def _field(self, field: FieldDescriptor, value: Any) -> str:
        if isinstance(value, Message):
            return self._message(value)
        if isinstance(value, str | bytes | bool | int | float):
            return _scalar(field, value)
        if field.message_type is KeyValue.DESCRIPTOR:  # most of what there is in events
            return "[" + ",".join([_pair(part) or self._message(part) for part in value]) + "]"
        if field.message_type is not None:
            return "[" + ",".join([self._message(part) for part in value]) + "]"
        return "[" + ",".join([_scalar(field, part) for part in value]) + "]"


def _pair(pair: KeyValue) -> str:
    """Return an attribute with a number or a text as its value; an empty string for any other."""
    value = pair.value
    kind = value.WhichOneof("value")
    if kind == "double_value":
        found = f'"doubleValue":{_float(value.double_value)}'
    elif kind == "int_value":
        found = f'"intValue":"{value.int_value}"'
    elif kind == "string_value":
        found = f'"stringValue":{_quoted(value.string_value)}'
    else:
        return ""
    return f'{{"key":{_quoted(pair.key)},"value":{{{found}}}}}'


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _scalar(field: FieldDescriptor, value: str | bytes | float) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes):
        return f'"{value.hex() if field.name in _IDS else base64.b64encode(value).decode()}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    return f'"{value}"' if field.cpp_type in _LONG else str(value)


# Every record that we write has it, and no text in JSON can hold its quotes.
_RECORD = b'"observedTimeUnixNano":'


class JsonEvents(NamedTuple):
    """Contents of a line.

    Attributes:
        resource: the attributes of the process that logged it.
        events: those that it logged.
        newer: how many records were left out, because a later version of this library wrote them.
    """

    resource: dict[str, Any]
    events: list[LogEvent]
    newer: int


def records(line: bytes) -> int:
    """Return how many records a line has, without reading it."""
    return line.count(_RECORD)


def events_of_json(line: bytes) -> list[JsonEvents]:
    """Return the contents of a line, a part for each process.

    Raises:
        ValueError: it is no OTLP request.
    """
    try:
        request = json.loads(line)
        return [_part(part) for part in request.get("resourceLogs", ())]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not an OTLP request: {type(error).__name__}: {error}") from None


def _part(part: Mapping[str, Any]) -> JsonEvents:
    resource = _attributes(part.get("resource", {}).get("attributes", ()))
    events: list[LogEvent] = []
    newer = 0
    for scope in part.get("scopeLogs", ()):
        for record in scope.get("logRecords", ()):
            event = _event(record)
            if event is None:
                newer += 1
            else:
                events.append(event)
    return JsonEvents(resource, events, newer)


def _event(record: Mapping[str, Any]) -> LogEvent | None:
    attributes = _attributes(record.get("attributes", ()))
    if int(attributes.pop("tachograph.schema", SCHEMA)) > SCHEMA:
        return None
    stream, seq = str(attributes.pop("tachograph.stream", "")), int(attributes.pop("tachograph.seq", 0))
    observed = int(record.get("observedTimeUnixNano", 0))
    name = record.get("eventName", "")
    if name == LOG:
        fields = record.get("severityNumber", 0), record.get("severityText", ""), _value(record.get("body", {}))
        attributes |= zip(RECORD_FIELDS, fields, strict=True)
    return LogEvent(
        name,
        int(record.get("timeUnixNano", observed)),
        observed,
        attributes,
        seq,
        int(record.get("traceId") or "0", 16),
        int(record.get("spanId") or "0", 16),
        int(record.get("flags", 0)),
        stream,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value", {})) for pair in pairs}


def _value(value: Mapping[str, Any]) -> Any:
    for kind, found in value.items():
        if kind == "intValue":
            return int(found)
        if kind == "doubleValue":
            return float(found)
        if kind == "arrayValue":
            return [_value(part) for part in found.get("values", ())]
        if kind == "kvlistValue":
            return _attributes(found.get("values", ()))
        return found
    return None
