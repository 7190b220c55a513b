"""Events as a line of a spool: an OTLP request as JSON, made at a fifth of what messages cost, as there may be many.

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from json.encoder import encode_basestring as _quoted
from typing import Any

from tachograph.exporters.influxdb._parcel import EVENTS, Parcel, unpacked
from tachograph.recording.journal import SCOPE, LogEvent
from tachograph.recording.values import fits_int64


def keep(parcels: deque[Parcel], append: Callable[[bytes], object]) -> None:
    """Append the oldest parcels as one line, and take them out; where that raises, they are left, and no line is there.

    Args:
        parcels: what waits, the oldest first; at least one.
        append: takes a line, whole or not at all.
    """
    first, together, points = parcels[0], 0, 0
    for parcel in parcels:
        points += parcel.points
        if together and (points > EVENTS or parcel.resource != first.resource):
            break
        together += 1
    events = [event for parcel in islice(parcels, together) for event in unpacked(parcel)]
    append(request_line(events, first.resource))
    for _ in range(together):
        parcels.popleft()


def request_line(events: Sequence[LogEvent], resource: Mapping[str, Any]) -> bytes:
    """Return events as one line, its end included."""
    records = ",".join([_record(event) for event in events])
    who = _pairs(resource.items())
    text = (
        f'{{"resourceLogs":[{{"resource":{{"attributes":[{who}]}},"scopeLogs":[{{"scope":{{"name":"{SCOPE}"}},'
        f'"logRecords":[{records}]}}]}}]}}\n'
    )
    return text.encode("utf-8", "replace")


def _record(event: LogEvent) -> str:
    span = ""
    if event.trace_id:
        span = f',"traceId":"{event.trace_id:032x}","spanId":"{event.span_id:016x}","flags":{event.trace_flags}'
    return (
        f'{{"timeUnixNano":"{max(event.time_unix_nano, 0)}","observedTimeUnixNano":"{event.observed_unix_nano}",'
        f'"eventName":{_quoted(event.name)},"attributes":[{_pairs(event.record_attributes().items())}]{span}}}'
    )


def _pairs(attributes: Iterable[tuple[str, Any]]) -> str:
    return ",".join([f'{{"key":{_quoted(key)},"value":{_value(value)}}}' for key, value in attributes])


def _value(value: Any) -> str:
    kind = value.__class__
    if kind is str:
        text = f'"stringValue":{_quoted(value)}'
    elif kind is float:
        text = f'"doubleValue":{value!r}' if math.isfinite(value) else f'"doubleValue":"{_spelled(value)}"'
    elif kind is bool:
        text = '"boolValue":true' if value else '"boolValue":false'
    elif kind is int and fits_int64(value):
        text = f'"intValue":"{value}"'
    elif kind is dict:
        text = f'"kvlistValue":{{"values":[{_pairs(value.items())}]}}'
    elif kind is list or kind is tuple:
        text = f'"arrayValue":{{"values":[{",".join(map(_value, value))}]}}'
    else:
        text = f'"stringValue":{_quoted(str(value))}'
    return f"{{{text}}}"


def _spelled(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
