"""Events as a line of a spool: an OTLP request as JSON, made at a fifth of what messages cost, as there may be many.

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any

from tachograph.journal import SCOPE, LogEvent
from tachograph.values import fits_int64

EVENTS = 32  # in a line, at most: one is written, and read back, without holding the interpreter for long


def keep(
    events: Sequence[LogEvent],
    resource: Mapping[str, Any],
    append: Callable[[bytes], object],
    pace: Callable[[], object] = lambda: None,
) -> None:
    """Append events as lines.

    Args:
        events: what was logged.
        resource: the attributes of the process that logged it.
        append: takes a line.
        pace: called between lines.
    """
    for start in range(0, len(events), EVENTS):
        append(request_line(events[start : start + EVENTS], resource))
        pace()


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
