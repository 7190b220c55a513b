"""The curves in log records: points one by one, packed ones, definitions, and points that follow from other events."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.recording.own_metrics import TORCH_MONITOR
from tachograph.recording.packed_points import INTERVALS, LEFT_OUT, PACKED
from tachograph.recording.points import AttributeValue
from tachograph.runs.blocks import MOST_COLUMNS, Sample
from tachograph.runs.recorded import plain_attributes

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"
LOGGED, WINDOW = "tachograph.point", "torch.monitor.Stat"  # of MetricsLogger, and of Stats
SEQ, STREAM, SCHEMA_KEY = "tachograph.seq", "tachograph.stream", "tachograph.schema"  # of every record of ours
LARGEST = 2**63 - 1
_MEASUREMENT, _TAGS, _FIELDS = "tachograph.measurement", "tachograph.tags", "tachograph.fields"
_X = ("step", "global_step", "iteration", "epoch", "window")  # of MetricsLogger's points: the first that is a number
_COUNTING = frozenset((*_X, "batch"))  # tags that tell points of one curve apart, as numbers, never curves
_OF_RECORD = frozenset((SEQ, STREAM, SCHEMA_KEY))
_EXACT = 2**53
_MOST_HIDDEN = 2**32  # values that one point stands for: the sum of a block's fits into SQLite's integers
_BYTE = 8


class CurveRecord(NamedTuple):
    """A record of a curve: a point (``sample``), or, where that is None, a metric's definition (``about``).

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


class PackedRecord(NamedTuple):
    """A record of packed points: a row each, with a value of every metric.

    Point ``row`` of the metric ``place`` has the number ``first + place * len(times) + row``.

    Attributes:
        execution: the number of the task; 0 for the process; None where the points are of no ``Metric``.
        attributes: of the curves, as JSON: pairs, sorted by key.
        units: of the one metric; empty for none.
        branch: theirs.
        first: the number of the first point.
        times: of the rows, in nanoseconds.
        x: of the rows, finite.
        values: metric after metric.
        left_out: a byte each value, 1 where there is no point; None where there are all.
        intervals: the further columns of the one metric's points, by name; empty where each stands for one value.
    """

    execution: int | None
    metrics: Sequence[str]
    group: str
    attributes: str
    units: str
    branch: int
    first: int
    times: array[int]
    x: array[float]
    values: array[float]
    left_out: bytes | None
    intervals: Mapping[str, array[Any]]

    @property
    def last(self) -> int:
        """The number of the last point."""
        return self.first + len(self.values) - 1

    def sample(self, seq: int, row: int, start: int) -> Sample:
        """Return a point; one that stands for one value has no further columns.

        Args:
            seq: its number.
            row: its place in the table.
            start: the place of the metric's first value.
        """
        more: dict[str, int | float] = {}
        columns = self.intervals
        if columns and columns["count"][row] > 1:
            for name, column in columns.items():
                cell = column[row]
                if isfinite(cell) and (cell or name != "nonfinite"):
                    more[name] = cell
        return Sample(seq, self.times[row], self.x[row], self.values[start + row], more)


class DerivedPoints(NamedTuple):
    """Points that follow from an event, which is stored as such, too.

    Attributes:
        attributes: of the curves, as JSON: pairs, sorted by key.
        metrics: their names.
        values: one of each metric.
        x: None for the time.
        x_name: of x, such as ``step``; empty for the time.
    """

    group: str
    attributes: str
    metrics: tuple[str, ...]
    values: tuple[float, ...]
    x: float | None
    x_name: str


RecordAttributes = Mapping[str, AnyValue]  # they are read once: that costs more than all else


def decode_curve_record(
    record: LogRecord, attributes: RecordAttributes, seq: int, time: int
) -> CurveRecord | PackedRecord | DerivedPoints | None:
    """Return the points, or the definition, in a record; None for all other records.

    Args:
        record: the message; a record that a block cannot give back exactly, such as one within a span, is no point.
        attributes: of the message.
        seq: its number.
        time: its time in nanoseconds.
    """
    name = record.event_name
    if name == POINT:
        return None if record.trace_id else _point(attributes, seq, time)
    if name == LOGGED:
        return _logged(attributes)
    if name == WINDOW:
        return _derived(TORCH_MONITOR, "[]", _numbers(attributes), None)
    if name == PACKED:
        return None if record.trace_id else _packed(attributes, seq)
    return _definition(record) if name == DEFINITION else None


def _point(attributes: RecordAttributes, seq: int, time: int) -> CurveRecord | None:
    names: dict[str, str] = {"group": "", "attributes": "[]"}
    numbers: dict[str, int | float] = {}
    for key, value in attributes.items():
        if key in _OF_RECORD:
            continue
        kind = value.WhichOneof("value")
        if kind == "double_value":
            numbers[key] = value.double_value
        elif kind == "int_value":
            numbers[key] = value.int_value
        elif kind == "string_value" and key in ("metric", "group"):
            names[key] = value.string_value
        elif kind == "kvlist_value" and key == "attributes" and _exact(value.kvlist_value.values):
            names[key] = _as_json(plain_attributes(value.kvlist_value.values))
        else:
            return None
    return _of_numbers(names, numbers, seq, time)


def _of_numbers(names: Mapping[str, str], numbers: dict[str, int | float], seq: int, time: int) -> CurveRecord | None:
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
    return CurveRecord(execution, names["metric"], names["group"], names["attributes"], branch, sample, {})


def _exact(attributes: Iterable[KeyValue]) -> bool:
    """Tell whether JSON gives attributes back exactly."""
    kinds = [(each.value.WhichOneof("value"), each.value) for each in attributes]
    return all(
        kind in ("string_value", "bool_value", "int_value") or (kind == "double_value" and isfinite(value.double_value))
        for kind, value in kinds
    )


def _holds(number: float) -> bool:
    """Tell whether a float holds a number exactly."""
    return isinstance(number, float) or -_EXACT <= number <= _EXACT


def _definition(record: LogRecord) -> CurveRecord | None:
    about = {key: value for key, value in plain_attributes(record.attributes) if key not in _OF_RECORD}
    metric, execution, group = about.get("metric"), about.get("execution", 0), about.get("group", "")
    if isinstance(metric, str) and metric and isinstance(execution, int) and isinstance(group, str):
        return CurveRecord(execution, metric, group, "[]", 0, None, about)
    return None


def _packed(attributes: RecordAttributes, seq: int) -> PackedRecord | None:
    decoded: dict[str, Any] = {}
    for key, value in attributes.items():
        if key in _OF_RECORD:
            continue
        kind = value.WhichOneof("value")
        if kind is None or kind != _KINDS.get(key):
            return None
        decoded[key] = getattr(value, kind)
    metrics = [each.string_value for each in decoded["metric"].values] if "metric" in decoded else []
    labels = decoded["attributes"].values if "attributes" in decoded else ()
    n, branch = decoded.get("n", 0), decoded.get("branch", 0)
    columns = {key: _column(kind, decoded[key]) for key, kind in _TYPES.items() if key in decoded}
    if not (metrics and all(metrics) and n > 0 and _exact(labels) and {"time", "x", "value"} <= columns.keys()):
        return None
    times, x, values = (columns[name] for name in ("time", "x", "value"))
    intervals = {name: columns[name] for name in INTERVALS if name in columns}
    lengths = {len(times), len(x), *map(len, intervals.values())}
    cells, left_out = n * len(metrics), decoded.get(LEFT_OUT)
    if lengths != {n} or len(values) != cells or cells > LARGEST - seq or len(left_out or values) != cells:
        return None
    if min(times) < 0 or not all(map(isfinite, x)) or not _are_intervals(intervals, len(metrics)):
        return None
    named = metrics, decoded.get("group", ""), _as_json(plain_attributes(labels)), decoded.get("units", "")
    return PackedRecord(decoded.get("execution"), *named, branch, seq, times, x, values, left_out, intervals)


# The attributes of packed points, and those of them that are columns: of float64, or of 64-bit integers.
_KINDS: Mapping[str, str] = {
    "metric": "array_value",
    "attributes": "kvlist_value",
    **dict.fromkeys(("group", "units"), "string_value"),
    **dict.fromkeys(("n", "execution", "branch"), "int_value"),
    **dict.fromkeys(("time", "x", "value", *INTERVALS, LEFT_OUT), "bytes_value"),
}
_TYPES = {**dict.fromkeys(("x", "value", *INTERVALS), "d"), **dict.fromkeys(("time", "count", "nonfinite"), "q")}


def _column(kind: str, data: bytes) -> array[Any]:
    """Return a column of little-endian numbers; an empty one where they are not whole."""
    column = array(kind)
    if len(data) % _BYTE == 0:
        column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _are_intervals(columns: Mapping[str, array[Any]], metrics: int) -> bool:
    """Tell whether columns say of each point for how many values it stands, and which were the extremes."""
    if not columns:
        return True
    counts, hidden = columns.get("count", ()), columns.get("nonfinite", ())
    if metrics > 1 or not {"min", "max", "count"} <= columns.keys() or min(counts) < 1:
        return False
    return not hidden or (min(hidden) >= 0 and max(hidden) <= _MOST_HIDDEN)


def _logged(attributes: RecordAttributes) -> DerivedPoints | None:
    """Return the curves' points in a point of MetricsLogger: one a numeric field, told apart by its tags."""
    try:
        group = attributes[_MEASUREMENT].string_value
        given = attributes[_TAGS].kvlist_value
        listed = attributes[_FIELDS].kvlist_value
    except KeyError:
        return None
    tags = {each.key: each.value.string_value for each in given.values}
    fields = _numbers({each.key: each.value for each in listed.values})
    names: Sequence[str] = _X
    counting = _COUNTING
    if "x_name" in attributes:
        names = (attributes["x_name"].string_value, *names)
        counting |= {names[0]}
    x, x_name = None, ""
    for name in names:
        x = _finite(fields[name]) if name in fields else _finite(tags[name]) if name in tags else None
        if x is not None:
            fields.pop(name, None)
            x_name = "step" if name == "global_step" else name
            break
    pairs = tuple([(name, text) for name, text in tags.items() if name not in counting or _finite(text) is None])
    return _derived(group, _tags_as_json(pairs), fields, x, x_name)


def _derived(
    group: str, attributes: str, values: Mapping[str, float], x: float | None, x_name: str = ""
) -> DerivedPoints | None:
    if not (group and values):
        return None
    return DerivedPoints(group, attributes, tuple(values), tuple(values.values()), x, x_name)


def _numbers(attributes: RecordAttributes) -> dict[str, float]:
    """Return those of the attributes that are numbers."""
    found: dict[str, float] = {}
    for key, value in attributes.items():
        if not key or key in _OF_RECORD:
            continue
        number = value.double_value
        if number:  # the quicker question: it is 0 where another one is set
            found[key] = number
            continue
        kind = value.WhichOneof("value")
        if kind == "double_value":
            found[key] = number
        elif kind == "int_value":
            found[key] = float(value.int_value)
    return found


def _finite(number_or_text: str | float) -> float | None:
    """Return a finite number; None for any other number or text."""
    try:
        number = float(number_or_text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _as_json(pairs: Sequence[tuple[str, AttributeValue]]) -> str:
    return json.dumps(pairs, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _tags_as_json(pairs: Sequence[tuple[str, str]]) -> str:
    return _as_json(sorted(pairs))
