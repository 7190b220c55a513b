"""Events read back from OTLP as JSON. Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.recording.journal import SCHEMA, LogEvent

# Every record that we write has it, and no text in JSON can hold its quotes.
_RECORD = b'"observedTimeUnixNano":'


class JsonEvents(NamedTuple):
    """What a line holds.

    Attributes:
        resource: the attributes of the process that logged it.
        events: what it logged.
        newer: how many records were left out, because a later version of this library wrote them.
    """

    resource: dict[str, Any]
    events: list[LogEvent]
    newer: int


def records(line: bytes) -> int:
    """Return how many records a line has, without reading it."""
    return line.count(_RECORD)


def events_of_json(line: bytes) -> list[JsonEvents]:
    """Return what a line holds, a part for each process.

    Raises:
        ValueError: it is no OTLP request.
    """
    try:
        request = json.loads(line)
        return [_part(part) for part in request.get("resourceLogs", ())]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no OTLP request: {type(error).__name__}: {error}") from None


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
    return LogEvent(
        record.get("eventName", ""),
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
    return ""
