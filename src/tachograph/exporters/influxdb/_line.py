r"""Line protocol: one event as one line. Source: InfluxDB v2 documentation, "Line protocol", "Special characters".

Line protocol has no NaN and no infinity, and no escape for a line's end outside of a string field: there, the two
characters ``\n`` stand for it, as in the official client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tachograph.exporters.influxdb._field_types import NO_VALUE_TEXT
from tachograph.exporters.spool_format import Lost
from tachograph.logger.point import EVENT_NAME, FIELDS, MEASUREMENT, TAGS, LoggerPoint
from tachograph.recording.journal import LogEvent
from tachograph.recording.values import as_float, fits_int64

METRIC = "tachograph.metric"
_PACE_EVERY = 8
_NONFINITE = "nan"  # for learn() alone: the field is one of floats
# Of the resource: they tell apart what several processes record under one name in one nanosecond.
_WHO = ("dl.run.id", "dl.role", "dl.rank")

_ENDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONE = re.compile(r"(?<!\\)(?:\\\\)*\\(?=[,= ])")  # an odd number of backslashes before what is escaped
_SPECIAL = re.compile(r"[,= \n\r\t\\]")
_MEASUREMENT = str.maketrans({",": "\\,", " ": "\\ ", **_ENDS})
_KEY = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\=", **_ENDS})
_TEXT = str.maketrans({'"': '\\"', "\\": "\\\\"})


class Line(NamedTuple):
    """An event in line protocol.

    Attributes:
        text: the line, without its end; empty where no field is left.
        nonfinite: how many fields were left out because they are NaN or infinite.
    """

    text: bytes
    nonfinite: int


Learn = Callable[[str, str, str], None]  # takes a measurement, a field and its value, as line protocol spells them


def line(event: LogEvent, resource: Mapping[str, Any], learn: Learn | None = None) -> Line | None:
    """Return an event as a line; None where it is none that InfluxDB gets.

    A point of a MetricsLogger is a line of its measurement; a point of a Metric is one of ``<group>/<metric>``, with
    the run, the role and the rank as tags, and ``value``, ``x`` and what else it says as fields. No other event is.

    Args:
        event: as it was logged.
        resource: the attributes of the process that logged it.
        learn: called with each of its fields.

    Raises:
        ValueError: its measurement begins with ``#``: the server would take the line for a comment.
    """
    attributes = event.attributes
    if event.name == EVENT_NAME:
        measurement = str(attributes.get(MEASUREMENT, ""))
        tags: Mapping[str, Any] = _mapping(attributes.get(TAGS))
        fields: Mapping[str, Any] = _mapping(attributes.get(FIELDS))
    elif event.name == METRIC:
        group, metric = attributes.get("group"), attributes.get("metric")
        measurement = f"{group}/{metric}" if group else str(metric)
        told = {key: value for key, value in attributes.items() if key not in ("group", "metric")}
        fields = {key: value for key, value in told.items() if not isinstance(value, str)}
        tags = {key: resource[key] for key in _WHO if key in resource}
        tags.update((key, value) for key, value in told.items() if isinstance(value, str))
    else:
        return None
    if not measurement:
        return Line(b"", 0)
    if measurement.lstrip("\0").startswith("#"):  # "Comments" there; it skips a zero, and no escape is read before #
        raise ValueError(
            f"a measurement cannot start with #, which is a comment in line protocol: {measurement!r:.100}"
        )
    head = _safe(measurement, _MEASUREMENT)
    without_value = attributes.fields_without_value if isinstance(attributes, LoggerPoint) else ()
    parts, nonfinite = _fields(head, fields, without_value, learn)
    if not parts:
        return Line(b"", nonfinite)
    for key in sorted(tags):
        text = str(tags[key])
        if key and text:  # an empty tag is no tag
            head += f",{_safe(key, _KEY)}={_safe(text, _KEY)}"
    return Line(f"{head} {','.join(parts)} {event.time_unix_nano}".encode("utf-8", "replace"), nonfinite)


def _fields(
    measurement: str, fields: Mapping[str, Any], without_value: Collection[str], learn: Learn | None
) -> tuple[list[str], int]:
    parts: list[str] = []
    nonfinite = 0
    for key, value in fields.items():
        text = NO_VALUE_TEXT if key in without_value else _value(value)
        name = _safe(_paired(key), _KEY)
        if not text:
            nonfinite += 1
        elif key:
            parts.append(f"{name}={text}")
        if learn is not None:
            learn(measurement, name, text or _NONFINITE)
    return parts, nonfinite


def _paired(key: str) -> str:
    r"""Return a field's key with two backslashes before a comma, a blank, an equals sign and the end, for each one.

    There a server takes backslashes in pairs, and ``\\,`` for a comma that is not escaped, unlike in tags (InfluxDB's
    models/points.go, scanFields).
    """
    if "\\" not in key:
        return key
    return _LONE.sub(r"\g<0>\\", f"{key} " if key.endswith("\\") else key)


def _value(value: Any) -> str:
    """Return a field's value; an empty string for a number that is not finite."""
    if isinstance(value, str):
        return f'"{value.translate(_TEXT)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if fits_int64(value):
        return f"{value}i"
    if isinstance(value, int | float):
        number = as_float(value)
        return repr(number) if math.isfinite(number) else ""
    return f'"{str(value).translate(_TEXT)}"'


def _safe(text: str, escapes: dict[int, str]) -> str:
    if _SPECIAL.search(text) is None:
        return text
    escaped = text.translate(escapes)
    # A backslash at the end would escape the separator behind it, and cannot be escaped itself.
    return f"{escaped}\\ " if escaped.endswith("\\") else escaped


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def encoded(
    events: Iterable[LogEvent], resource: Mapping[str, Any], pace: Callable[[], None], learn: Learn | None = None
) -> tuple[list[bytes], list[Lost]]:
    """Return the lines of events, and the losses among them.

    Args:
        events: as they were logged; one that InfluxDB does not get has no line and is no loss.
        resource: the attributes of the process that logged them.
        pace: called between slices of work.
        learn: called with each field of these events.
    """
    lines: list[bytes] = []
    lost: list[Lost] = []
    nonfinite = 0
    for number, event in enumerate(events):
        if number % _PACE_EVERY == 0:
            pace()
        try:
            made = line(event, resource, learn)
        except Exception as error:  # noqa: BLE001 - whatever one event holds, the others leave
            lost.append(Lost(1, "encoding", f"{event.name!r:.100}: {type(error).__name__}: {error}"))
            continue
        if made is None:
            continue
        nonfinite += made.nonfinite
        if made.text:
            lines.append(made.text)
        else:
            lost.append(Lost(1, "empty", "a point has no writable field"))
    if nonfinite:
        why = "a field is not finite, which line protocol cannot express"
        lost.append(Lost(nonfinite, "nonfinite", why))
    return lines, lost
