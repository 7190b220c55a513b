"""The points of curves and their definitions, from log records into the file of a run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.recording.points import AttributeValue
from tachograph.runs.blocks import MOST_COLUMNS, Block, Outline, Sample, join, outline, pack
from tachograph.runs.event import plain_attributes

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"
OURS = frozenset(["tachograph.seq", "tachograph.stream", "tachograph.schema"])
FULL = 1024  # points, from which on a block stays as it is
_FRESH, _GATHERED, _FINAL = range(3)
_MANY = (16, 64)  # blocks of a level: a point is written about three times, however few come at once
_EXACT = 2**53
_MOST_HIDDEN = 2**32  # values that one point tells of: those of a block add up to what SQLite holds

_ADD = "INSERT INTO block VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "seq0, seq1, n, t0, t1, x0, x1, min, max, nonfinite, form, pairs, rest"


class Told(NamedTuple):
    """What a record says of a point, or, where ``sample`` is None, of a metric's definition: ``about``.

    Attributes:
        execution: the number of the task; 0 for the process.
        attributes: of the curve, as JSON: pairs, sorted by key.
        branch: goes up where x goes back.
    """

    execution: int
    metric: str
    group: str
    attributes: str
    branch: int
    sample: Sample | None
    about: Mapping[str, AttributeValue]


def told(record: LogRecord, seq: int, time: int) -> Told | None:
    """Return what a record says of a curve.

    None for all that a block could not give back as it came: records of another name or within a span, without a metric
    and a value at a finite x, or with more than numbers beside them.

    Args:
        record: the message.
        seq: its number.
        time: its time in nanoseconds.
    """
    if record.event_name == DEFINITION:
        return _definition(record)
    if record.event_name != POINT or record.trace_id:
        return None
    names: dict[str, str] = {"group": "", "attributes": "[]"}
    numbers: dict[str, int | float] = {}
    for each in record.attributes:
        key, value = each.key, each.value
        kind = value.WhichOneof("value")
        if key in OURS:
            continue
        if kind == "double_value":
            numbers[key] = value.double_value
        elif kind == "int_value":
            numbers[key] = value.int_value
        elif kind == "string_value" and key in ("metric", "group"):
            names[key] = value.string_value
        elif kind == "kvlist_value" and key == "attributes" and _exact(value.kvlist_value.values):
            names[key] = json.dumps(plain_attributes(value.kvlist_value.values), separators=(",", ":"))
        else:
            return None
    return _point(names, numbers, seq, time)


def _point(names: Mapping[str, str], numbers: dict[str, int | float], seq: int, time: int) -> Told | None:
    execution, branch = numbers.pop("execution", 0), numbers.pop("branch", 0)
    x, value = numbers.pop("x", None), numbers.pop("value", None)
    if not (names.get("metric") and isinstance(execution, int) and isinstance(branch, int)):
        return None
    if x is None or value is None or not (_holds(x) and _holds(value) and isfinite(x)):
        return None
    if not numbers.keys().isdisjoint(names) or len(numbers) > MOST_COLUMNS:
        return None
    hidden = numbers.get("nonfinite", 0)
    if not isinstance(hidden, int) or not 0 <= hidden <= _MOST_HIDDEN:
        return None
    sample = Sample(seq, time, float(x), float(value), numbers)
    return Told(execution, names["metric"], names["group"], names["attributes"], branch, sample, {})


def _exact(attributes: Iterable[KeyValue]) -> bool:
    """Tell whether JSON gives attributes back as they came."""
    kinds = [(each.value.WhichOneof("value"), each.value) for each in attributes]
    return all(
        kind in ("string_value", "bool_value", "int_value") or (kind == "double_value" and isfinite(value.double_value))
        for kind, value in kinds
    )


def _holds(number: float) -> bool:
    """Tell whether a float is the number itself."""
    return isinstance(number, float) or -_EXACT <= number <= _EXACT


def _definition(record: LogRecord) -> Told | None:
    about = {key: value for key, value in plain_attributes(record.attributes) if key not in OURS}
    metric, execution, group = about.get("metric"), about.get("execution", 0), about.get("group", "")
    if isinstance(metric, str) and metric and isinstance(execution, int) and isinstance(group, str):
        return Told(execution, metric, group, "[]", 0, None, about)
    return None


class Points:
    """Writes points and definitions of one stream, in a transaction that somebody else commits.

    What comes in a request is a block of its own; blocks are joined when there are many, until they are full.

    Args:
        connection: lent by :meth:`tachograph.runs.store.Store.transaction`.
        stream: the number of the stream in the file.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def add(self, found: Sequence[tuple[int, int, Told]]) -> None:
        """Add what records say that were not there yet: number, time, and what it is."""
        samples: dict[tuple[int, str, str, str], dict[int, list[Sample]]] = {}
        for seq, time, each in found:
            if each.sample is None:
                self._define(seq, time, each)
            else:
                curve = samples.setdefault((each.execution, each.group, each.metric, each.attributes), {})
                curve.setdefault(each.branch, []).append(each.sample)
        for named, branches in samples.items():
            row = self._curve(*named)
            for branch, listed in branches.items():
                listed.sort(key=lambda sample: sample.seq)
                for first in range(0, len(listed), FULL):
                    part = listed[first : first + FULL]
                    self._insert(row, branch, _FRESH, outline(part), pack(part))

    def _define(self, seq: int, time: int, each: Told) -> None:
        self._name(each.execution, each.group, each.metric)
        self._connection.execute(
            "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (stream, execution, scope, metric) DO"
            " UPDATE SET seq = excluded.seq, time = excluded.time, about = excluded.about WHERE excluded.seq > seq",
            (self._stream, each.execution, each.group, each.metric, seq, time, json.dumps(dict(each.about))),
        )

    def _name(self, execution: int, group: str, metric: str) -> None:
        """Name the group of a metric that had none: ``Metric`` may be told it later than its first points."""
        if not group:
            return
        named = (group, self._stream, execution, metric)
        of_metric = "SET scope = ? WHERE stream = ? AND execution = ? AND scope = '' AND metric = ?"
        self._connection.execute(f"UPDATE OR IGNORE definition {of_metric}", named)
        self._connection.execute(f"UPDATE OR IGNORE curve {of_metric}", named)

    def _curve(self, execution: int, group: str, metric: str, attributes: str) -> int:
        """Return the number of a curve, a new one where there is none; its definition alone may name its group."""
        if group:
            self._name(execution, group, metric)
        else:
            where = "stream = ? AND execution = ? AND metric = ? ORDER BY seq DESC LIMIT 1"
            said = self._connection.execute(
                f"SELECT scope FROM definition WHERE {where}",  # noqa: S608 - a constant
                (self._stream, execution, metric),
            ).fetchone()
            group = said[0] if said else ""
        key = (self._stream, execution, group, metric, attributes)
        find = "SELECT id FROM curve WHERE stream = ? AND execution = ? AND scope = ? AND metric = ? AND attributes = ?"
        known = self._connection.execute(find, key).fetchone()
        if known is not None:
            return int(known[0])
        add = "INSERT INTO curve (stream, execution, scope, metric, attributes) VALUES (?, ?, ?, ?, ?)"
        return int(self._connection.execute(add, key).lastrowid or 0)

    def _insert(self, curve: int, branch: int, level: int, about: Outline, block: Block) -> None:
        if about.n >= FULL:
            level = _FINAL
        self._connection.execute(_ADD, (curve, branch, level, *about, block.crc(), *block))
        if level == _FINAL:
            return
        place = (curve, branch, level)
        which = "FROM block WHERE curve = ? AND branch = ? AND level = ?"
        ((count, points),) = self._connection.execute(f"SELECT count(*), sum(n) {which}", place)
        if count < _MANY[level] and points < FULL:
            return
        rows = self._connection.execute(f"SELECT {_COLUMNS} {which}", place).fetchall()
        self._connection.execute(f"DELETE {which}", place)
        try:
            about, block = join([(Outline(*row[:10]), Block(*row[10:])) for row in rows])
        except ValueError as error:
            raise sqlite3.DatabaseError(str(error)) from error
        self._insert(curve, branch, level + 1, about, block)
