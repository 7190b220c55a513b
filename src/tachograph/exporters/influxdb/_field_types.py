"""Types of fields: the first value of a shard fixes a field's type, and InfluxDB refuses a point with another.

So the type of a field is decided when its lines are written, over all lines of the batch and all that this process has
written before. A bare ``0`` in a line stands for "no value": it is valid as it is (a float), and becomes a zero of the
field's type. Sources: InfluxDB v1.8 documentation, "Line protocol reference", "Field value type discrepancies";
models/points.go (scanKey, scanFields) for what ends a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from tachograph.exporters.influxdb.server import FieldConflict
from tachograph.recording.values import as_float, fits_int64

# As the server names them. NO_VALUE is the bare zero.
FLOAT = "float"
INTEGER = "integer"
STRING = "string"
BOOLEAN = "boolean"
NO_VALUE = ""

NO_VALUE_TEXT = "0"
_ZEROS = {FLOAT: NO_VALUE_TEXT, INTEGER: "0i", STRING: '""', BOOLEAN: "false"}

_PACE_EVERY = 16
_MOST_FIELDS = 16_384  # beyond it all are forgotten, and learned again
# A shard begins at a full hour: the shortest is an hour long.
_HOUR = 3600 * 10**9

# In a measurement and in tags a backslash escapes the character behind it, whatever is before it; in fields backslashes
# come in pairs.
_MEASUREMENT = r"[^, \n]++(?:(?<=\\)[, ][^, \n]*+)*+"
_TAGS = r"(?:,[^ \n]*+(?:(?<=\\) [^ \n]*+)*+)?"
_KEY = r"[^\\,= \n]*+(?:\\.[^\\,= \n]*+)*+"
_UNCLOSED_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_FIELD = rf'{_KEY}=(?:{_UNCLOSED_STRING}"|[^", \n]++)'
_LINE = re.compile(rf"({_MEASUREMENT})({_TAGS}) ({_FIELD}(?:,{_FIELD})*+) (-?\d++)", re.DOTALL)
_FIELDS = re.compile(rf'({_KEY})=({_UNCLOSED_STRING}"|[^", \n]++)', re.DOTALL)
_ENDS_IN_A_STRING = re.compile(rf"{_MEASUREMENT}{_TAGS} (?:{_FIELD},)*+{_KEY}={_UNCLOSED_STRING}".encode(), re.DOTALL)
_HAS_NO_VALUE = re.compile(rb"=0[, ]")
_HAS_INTEGER_OR_NO_VALUE = re.compile(rb"=(?:-?\d+i|0)[, ]")


class LeftOut(NamedTuple):
    """A value that cannot be written, because no value of its type fits the field.

    Attributes:
        measurement: of the point.
        field: its name.
        value: as line protocol spells it.
        kind: the type of the field in the database.
    """

    measurement: str
    field: str
    value: str
    kind: str


class DecidedLines(NamedTuple):
    """Lines as they are written.

    Attributes:
        lines: as many as were given; an empty one where no field is left.
        left_out: the values that none of them has.
    """

    lines: list[bytes]
    left_out: list[LeftOut]


class _ParsedLine(NamedTuple):
    measurement: str
    tags: str
    fields: list[tuple[str, str]]
    time: str

    @property
    def hour(self) -> int:
        return int(self.time) // _HOUR


class FieldTypes:
    """Types of the fields that one process writes to one database; used by several threads.

    Args:
        integers_as_floats: write every number as a float.
    """

    def __init__(self, *, integers_as_floats: bool = False) -> None:
        self._integers_as_floats = integers_as_floats
        self._types: dict[tuple[str, str], str] = {}
        self._has_mixed_field = integers_as_floats  # one that had an integer and a float
        # As the server has said, by the hour of the points. It counts only for lines that the server has refused: the
        # measurement may have been deleted since.
        self._in_database: dict[tuple[str, str, int], str] = {}

    def learn(self, measurement: str, field: str, value: str) -> None:
        """Note the type of a field, whose names and value are spelled as in line protocol; a float is never changed."""
        kind = _kind_of(value)
        if kind == INTEGER and self._integers_as_floats:
            kind = FLOAT
        known = self._types.get((measurement, field))
        if kind in {NO_VALUE, known}:
            return
        if known is not None:
            self._has_mixed_field = True
        if known != FLOAT:
            if len(self._types) >= _MOST_FIELDS:
                self._types.clear()
            self._types[measurement, field] = kind

    def learn_lines(self, lines: Iterable[bytes]) -> None:
        """Note the types of all fields in some lines."""
        for parsed in filter(None, map(_parsed, lines)):
            for field, value in parsed.fields:
                self.learn(parsed.measurement, field, value)

    def decide(self, lines: Sequence[bytes], *, refused: bool, learned: bool, pace: Callable[[], None]) -> DecidedLines:
        """Return lines with the types that they are written with.

        Args:
            lines: as they were encoded, or as they lay on the disk.
            refused: the server has refused them as they were; it has the last word.
            learned: the types in them were learned when they came.
            pace: called between slices of work.
        """
        if not learned:
            for start in range(0, len(lines), _PACE_EVERY):
                pace()
                self.learn_lines(lines[start : start + _PACE_EVERY])
        changes = _HAS_INTEGER_OR_NO_VALUE if self._has_mixed_field else _HAS_NO_VALUE
        if not refused and not any(map(changes.search, lines)):
            return DecidedLines(list(lines), [])
        result = DecidedLines([], [])
        for number, line in enumerate(lines):
            if number % _PACE_EVERY == 0:
                pace()
            parsed = _parsed(line) if refused or changes.search(line) else None
            result.lines.append(line if parsed is None else self._decided(parsed, result.left_out, refused=refused))
        return result

    def _decided(self, line: _ParsedLine, left_out: list[LeftOut], *, refused: bool) -> bytes:
        parts: list[str] = []
        for field, value in line.fields:
            kind = self._wanted(line.measurement, field, value)
            if refused:
                kind = self._in_database.get((line.measurement, field, line.hour), kind)
            text = _converted(value, kind)
            if text is None:
                left_out.append(LeftOut(_unescaped(line.measurement), _unescaped(field), value, kind))
            else:
                parts.append(f"{field}={text}")
        return f"{line.measurement}{line.tags} {','.join(parts)} {line.time}".encode() if parts else b""

    def _wanted(self, measurement: str, field: str, value: str) -> str:
        kind = _kind_of(value)
        if kind == INTEGER:
            return FLOAT if self._types.get((measurement, field)) == FLOAT else INTEGER
        if kind == NO_VALUE:
            kind = self._types.get((measurement, field), "")
            if not kind:
                kind = FLOAT
                self.learn(measurement, field, "0.0")  # it will be one in the database
        return kind

    def heed(self, lines: Sequence[bytes], conflict: FieldConflict, heeded: set[tuple[str, str]]) -> bool:
        """Note the type that the server says a field has; False if it has said so before, of another type.

        Args:
            lines: as it has refused them, all of one hour.
            conflict: what it said.
            heeded: the measurements and fields of which it has said something since these lines were sent first.
        """
        for line in filter(None, map(_parsed, lines)):
            if _unescaped(line.measurement) != _unescaped(conflict.measurement):
                continue
            for field, value in line.fields:
                place = line.measurement, field
                if _unescaped(field) != _unescaped(conflict.field) or _kind_of(value) == conflict.kind:
                    continue
                if place in heeded:
                    return False
                heeded.add(place)
                if len(self._in_database) >= _MOST_FIELDS:
                    self._in_database.clear()
                self._in_database[*place, line.hour] = conflict.kind
                if conflict.kind == FLOAT:
                    self.learn(*place, "0.0")
                return True
        return False


def split_by_hour(lines: Sequence[bytes]) -> list[list[bytes]]:
    """Return lines in pieces whose points are of one hour, and so in one shard."""
    return [list(piece) for _, piece in groupby(lines, _hour_of)]


def _hour_of(line: bytes) -> int | None:
    parsed = _parsed(line)
    return parsed.hour if parsed is not None else None


def split_lines(body: bytes, count: int | None = None) -> list[bytes]:
    """Return the lines of a body; a string in one may have line ends of its own.

    Args:
        body: lines, separated by line ends.
        count: how many there are, where that is known.
    """
    parts = body.split(b"\n")
    if len(parts) == count or b'"' not in body:
        return parts
    lines: list[bytes] = []
    unclosed = b""
    for part in parts:
        line = unclosed + part
        if _ENDS_IN_A_STRING.fullmatch(line) is None:
            lines.append(line)
            unclosed = b""
        else:
            unclosed = line + b"\n"
    return [*lines, unclosed[:-1]] if unclosed else lines


def _parsed(line: bytes) -> _ParsedLine | None:
    """Return the parts of a line; None where it has none of ours."""
    match = _LINE.fullmatch(line.decode("utf-8", "replace"))
    if match is None:
        return None
    measurement, tags, fields, time = match.groups()
    return _ParsedLine(measurement, tags, _FIELDS.findall(fields), time)


def _kind_of(value: str) -> str:
    if value == NO_VALUE_TEXT:
        return NO_VALUE
    if value.startswith('"'):
        return STRING
    if value.endswith("i"):
        return INTEGER
    return BOOLEAN if value in {"true", "false"} else FLOAT


def _converted(value: str, kind: str) -> str | None:
    """Return a value with another type, as line protocol spells it; None where no value of that type is equal to it."""
    given = _kind_of(value)
    if given == kind:
        return value
    if given == NO_VALUE:
        return _ZEROS.get(kind)
    if given == INTEGER and kind == FLOAT:
        return repr(as_float(int(value[:-1])))
    if given == FLOAT and kind == INTEGER:
        number = float(value)
        return f"{int(number)}i" if number.is_integer() and fits_int64(int(number)) else None
    return None


def _unescaped(name: str) -> str:
    """Return a name without backslashes, by which names that the server writes are compared with ours."""
    return name.replace("\\", "")
