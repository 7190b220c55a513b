r"""Line protocol, read strictly: lines that InfluxDB's own parser takes, and no others.

Source: InfluxDB v2 documentation, "Line protocol", and its models/points.go. A backslash escapes a comma, a blank and
(but not in a measurement) an equals sign, in a string field a quote and a backslash; before anything else it is a
backslash. In a field's key it belongs together with the next character, any one.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_INTEGER = re.compile(r"-?\d+i")
_FLOAT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
LATEST = 2**63 - 2  # as InfluxDB has it; the earliest is as far before the epoch
_TIME = re.compile(r"-?\d+")


class Parsed(NamedTuple):
    """A line, read back."""

    measurement: str
    tags: dict[str, str]
    fields: dict[str, Any]
    time: int


def parse(line: str) -> Parsed:
    """Return the parts of a line.

    Raises:
        ValueError: it is no line; the message says where.
    """
    if not line or line[0] == "#":
        raise ValueError("no line: it is empty, or a comment")
    measurement, at = _word(line, 0, ", ", ", ")
    if not measurement:
        raise ValueError("the measurement is empty")
    tags: dict[str, str] = {}
    while line[at] == ",":
        key, at = _word(line, at + 1, "=", ",= ")
        text, at = _word(line, at + 1, ", ", ",= ")
        if not key or not text or key in tags:
            raise ValueError(f"a tag is empty, or there twice: {key!r}={text!r}")
        tags[key] = text
    fields: dict[str, Any] = {}
    separator = ","
    while separator == ",":
        key, at = _word(line, at + 1, "=", ",= ", pairs=True)
        found, at = _field(line, at + 1)
        if not key or key in fields:
            raise ValueError(f"a field's key is empty, or there twice: {key!r}")
        fields[key], separator = found, line[at : at + 1]
    time = line[at + 1 :]
    if separator != " " or not _TIME.fullmatch(time) or abs(int(time)) > LATEST:
        raise ValueError(f"no time at the end: {line[at:]!r:.60}")
    return Parsed(measurement, tags, fields, int(time))


def _word(line: str, at: int, ends: str, escaped: str, *, pairs: bool = False) -> tuple[str, int]:
    """Read up to one of ``ends``, and return the word and the offset of its end; ``pairs`` as in a field's key."""
    found = []
    while at < len(line):
        letter = line[at]
        if letter == "\\" and line[at + 1 : at + 2] and line[at + 1] in escaped:
            found.append(line[at + 1])
            at += 2
            continue
        if letter == "\\" and pairs:
            found.append(line[at : at + 2])
            at += 2
            continue
        if letter in ends:
            return "".join(found), at
        if letter in escaped or letter in "\n\r":
            raise ValueError(f"{letter!r} at {at} is not escaped")
        found.append(letter)
        at += 1
    raise ValueError(f"it ends before one of {ends!r}")


def _field(line: str, at: int) -> tuple[Any, int]:
    if line[at : at + 1] == '"':
        found = []
        at += 1
        while line[at : at + 1] != '"':
            if at >= len(line):
                raise ValueError("a string does not end")
            at += line[at] == "\\" and line[at + 1 : at + 2] in ('"', "\\")
            found.append(line[at])
            at += 1
        return "".join(found), at + 1
    match = re.compile(r"[^, ]*").match(line, at)
    text = match[0] if match else ""
    at += len(text)
    if text in ("true", "false"):
        return text == "true", at
    if _INTEGER.fullmatch(text) and -(2**63) <= int(text[:-1]) < 2**63:
        return int(text[:-1]), at
    if _FLOAT.fullmatch(text):
        return float(text), at
    raise ValueError(f"no field's value: {text!r:.60}")


def as_written(text: str, *, pairs: bool = False) -> str:
    r"""Return a name or a tag as it is read back: ends of lines as ``\n``, nothing else changed.

    Behind a backslash at the end there is a blank: nothing else keeps it from escaping the next character. In a field's
    key (``pairs``) backslashes before an escaped character are an even number.
    """
    for end, written in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(end, written)
    text = text.encode("utf-8", "replace").decode()
    text = text + " " if text.endswith("\\") else text
    return re.sub(r"(\\+)(?=[,= ])", lambda run: run[1] + "\\" * (len(run[1]) % 2), text) if pairs else text
