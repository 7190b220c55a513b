"""The contents of a run, read back: processes, curves, points, and events with plain attributes."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any, Literal, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.recording.own_metrics import TORCH_MONITOR
from tachograph.recording.packed_points import INTERVALS, ODD
from tachograph.recording.points import Attributes, AttributeValue
from tachograph.runs.blocks import ODD_VALUES, PAIR, THINNED, Block, PointColumns, Raw, row_of_block, unpack
from tachograph.runs.queries import CurveExtent, EventRow

# Extremes and places are floats, counts are not.
_UNUSUAL = frozenset({"qmin", "qmax", "qmin_x", "qmax_x", "dnonfinite", *(f"q{name}" for name in ODD)})
BEGIN, END = "tachograph.process.start", "tachograph.process.end"
FAILURE = "tachograph.process.failure"  # its exception
CALLS = "tachograph.function.calls"  # single calls of its profiled functions: see kept_calls.py


class Process(NamedTuple):
    """A process of a run, over all of its starts.

    Attributes:
        instance: its ``service.instance.id``.
        rank: None if it has none.
        starts: how often it was started.
        first_export: nanoseconds since the epoch.
        last_export: nanoseconds since the epoch.
        ended: why its last start ended; empty if it did not announce its end.
        resource: its resource attributes.
    """

    instance: str
    rank: int | None
    role: str
    pid: int
    starts: int
    first_export: int
    last_export: int
    ended: str
    resource: Mapping[str, AttributeValue]


class Curve(NamedTuple):
    """The curve of one metric in one start of a process and one task.

    Attributes:
        group: the metric's group, which is its chart; empty for none.
        attributes: those that distinguish it from other curves of the metric.
        execution: the number of the task; 0 outside tasks.
        stream: a random id of the start of the process, shared by all of its records.
        definition: the metric's latest definition: group, scale, units, bounds.
        number: in the file.
    """

    metric: str
    group: str
    attributes: Mapping[str, AttributeValue]
    rank: int | None
    execution: int
    stream: str
    definition: Mapping[str, AttributeValue]
    number: int

    @property
    def units(self) -> str:
        """The units of the values; empty if none are defined."""
        return str(self.definition.get("units", ""))


class RecordedMetric(NamedTuple):
    """A metric of a run, over all processes. Extremes ignore values that are not finite; None if there are no others.

    Attributes:
        points: their number.
        branches: how many branches all curves have; a new one starts when x goes back.
        nonfinite: the number of values that are NaN or infinite.
        definition: its latest definition.
    """

    name: str
    group: str
    units: str
    ranks: tuple[int | None, ...]
    branches: int
    points: int
    x0: float
    x1: float
    min: float | None
    max: float | None
    nonfinite: int
    definition: Mapping[str, AttributeValue]


class Point(NamedTuple):
    """One recorded point, bit for bit.

    Attributes:
        attributes: those that distinguish its curve from others of the metric.
        rank: the rank of the process; None if it has none.
        execution: the number of the task; 0 outside tasks.
        branch: increases when x goes back.
        time_unix_nano: when the value was recorded.
        more: further columns: ``elapsed``, the seconds since the run started; for a throttled interval ``min``,
            ``min_x``, ``max``, ``max_x``, ``count``; and if some values are not finite, their number ``nonfinite`` and
            the x of the first one of each kind: ``nan_x``, ``posinf_x``, ``neginf_x``.
        stream: the start of the process.
        seq: its number among all records of this start.
    """

    metric: str
    group: str
    attributes: Mapping[str, AttributeValue]
    units: str
    rank: int | None
    execution: int
    branch: int
    x: float
    time_unix_nano: int
    value: float
    more: Mapping[str, int | float]
    stream: str
    seq: int

    @property
    def min(self) -> float:
        """The smallest finite value of the point's interval; the value itself if the point is a single value."""
        return self.more.get("min", self.value)

    @property
    def max(self) -> float:
        """The largest finite value of the point's interval; the value itself if the point is a single value."""
        return self.more.get("max", self.value)


# Further columns of points: of a throttled interval, and of a loop's progress.


MORE = (*INTERVALS, "elapsed", "rate", "total", "eta")
HEADER = (
    *("metric", "group", "units", "rank", "execution", "branch", "x", "time_unix_nano", "value"),
    *MORE,
    *("stream", "seq", "attributes"),
)


def row_of(point: Point) -> list[Any]:
    """Return a point's cells, in the order of :data:`HEADER`; None for an empty one."""
    more = point.more
    named = point.metric, point.group, point.units, point.rank, point.execution
    return [
        *named,
        point.branch,
        point.x,
        point.time_unix_nano,
        point.value,
        *[more.get(key) for key in MORE],
        point.stream,
        point.seq,
        json.dumps(dict(point.attributes)) if point.attributes else None,
    ]


class Moment(NamedTuple):
    """A value of a curve with its x and the time of recording in nanoseconds since the epoch."""

    value: float
    x: float
    time_unix_nano: int


class CurveSummary(NamedTuple):
    """The last, smallest and largest value of one curve.

    Attributes:
        points: their number.
        last: the value that was recorded last.
        min: the smallest finite value; None if there is none.
        max: the largest finite value; None if there is none.
    """

    curve: Curve
    points: int
    last: Moment | None
    min: Moment | None
    max: Moment | None


def stat_units(rows: Callable[..., Iterable[Sequence[Any]]]) -> dict[str, str]:
    """Return the units of each Stat, by its name.

    Args:
        rows: returns the rows of a query.
    """
    named = "SELECT name, unit FROM series WHERE scope = ? AND shape = 'histogram' AND unit != ''"
    return dict(map(tuple, rows(named, TORCH_MONITOR)))


def stat_definition(metric: str, units: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Return the definition of a curve of a Stat, whose events have none: over seconds, in the Stat's units."""
    name, _, of = metric.rpartition(".")
    found: dict[str, AttributeValue] = {"metric": metric, "x_units": "s"}
    if name in units and of != "count":
        found["units"] = units[name]
    return found


def thinned_curves(rows: Callable[..., Iterable[Sequence[Any]]]) -> int:
    """Return the number of a run's curves that were thinned to keep its file small.

    Args:
        rows: returns the rows of a query.
    """
    return sum(many for (many,) in rows("SELECT count(DISTINCT curve) FROM block WHERE level = ?", THINNED))


def metric_of(name: str, curves: Sequence[Curve], extents: Sequence[CurveExtent]) -> RecordedMetric:
    """Return a metric from its curves.

    Args:
        name: of the metric.
        curves: at least one, the oldest first.
        extents: of the curves that have points.
    """
    newest = next((each for each in reversed(curves) if each.definition), curves[-1])
    ranks = tuple(dict.fromkeys(each.rank for each in curves))
    return RecordedMetric(
        name,
        newest.group,
        newest.units,
        ranks,
        sum(each.branches for each in extents),
        sum(each.points for each in extents),
        min((each.x0 for each in extents), default=0.0),
        max((each.x1 for each in extents), default=0.0),
        min((each.min for each in extents if each.min is not None), default=None),
        max((each.max for each in extents if each.max is not None), default=None),
        sum(each.nonfinite for each in extents),
        newest.definition,
    )


def add_intervals(raw: Raw, block: Block) -> None:
    """Add a block: its points and their further columns, as :meth:`Raw.add` does, and faster.

    Args:
        raw: the branch that the block is added to.
        block: with columns beside x and value.

    Raises:
        ValueError: the block is damaged; of it only x and value were added.
    """
    raw.pairs.append(block.pairs)
    try:
        import numpy as np
    except ImportError:
        raw.add(unpack(block))
        return
    points = PointColumns(block)
    if not _UNUSUAL.isdisjoint(points.names):
        raw.add(unpack(block))
        return
    (low, has_low), (high, has_high) = points.column("dmin", points.value), points.column("dmax", points.value)
    (low_x, _), (high_x, _) = points.column("dmin_x", points.x), points.column("dmax_x", points.x)
    has_both = has_low & has_high
    parts = [(low_x, low, has_both), (high_x, high, has_both)]
    if not {"qnonfinite", *(f"d{name}" for name in ODD_VALUES)}.isdisjoint(points.names):
        lost, is_told = points.column("qnonfinite", 0)
        others = np.where(is_told, lost, 0) - ~np.isfinite(points.value)
        raw.hidden.extend(np.stack([points.x, others], axis=1)[others > 0].ravel().tolist())
        odd = [(points.column(f"d{name}", nan)[0], np.full(len(lost), value)) for name, value in ODD_VALUES.items()]
        parts += [(at, value, np.isfinite(at)) for at, value in odd]
        is_untold = (others > 0) & ~np.logical_or.reduce([is_there for _, _, is_there in parts[2:]])
        parts.append((points.x, np.full(len(lost), nan), is_untold))
    rows = np.stack([np.stack([at, value], axis=1) for at, value, _ in parts], axis=1)
    kept = rows[np.stack([is_there for _, _, is_there in parts], axis=1)]
    raw.extremes.extend(array("d", kept.tobytes()))


def last_moment(block: Block) -> Moment:
    """Return the value that was recorded last, of a block that has points.

    Raises:
        ValueError: it is damaged.
    """
    _, row = row_of_block(block)
    _, time, *_ = row.unpack_from(block.rest, len(block.rest) - row.size)
    x, value = PAIR.unpack_from(block.pairs, len(block.pairs) - PAIR.size)
    return Moment(value, x, time)


def extreme_moment(block: Block, column: Literal["min", "max"]) -> Moment | None:
    """Return the smallest or the largest finite value of a block's points and their intervals, and when it was.

    Several times as fast as reading all of its points.

    Raises:
        ValueError: it is damaged.
    """
    columns, row = row_of_block(block)
    told = [(value, place, "") for place, (_, value) in enumerate(PAIR.iter_unpack(block.pairs))]
    rows: list[tuple[Any, ...]] = []
    for bit, name in enumerate(each[1:] for each in columns):
        if name in ("min", "max"):
            rows = rows or list(row.iter_unpack(block.rest))
            told += [(cells[3 + bit], place, name) for place, cells in enumerate(rows) if cells[2] >> bit & 1]
    finite = [each for each in told if isfinite(each[0])]
    if not finite:
        return None
    value, place, source = (min if column == "min" else max)(finite, key=lambda each: each[0])
    _, time, there, *cells = row.unpack_from(block.rest, place * row.size)
    x, _ = PAIR.unpack_from(block.pairs, place * PAIR.size)
    more = {name[1:]: cell for bit, (name, cell) in enumerate(zip(columns, cells, strict=True)) if there >> bit & 1}
    return Moment(float(value), float(more.get(f"{source}_x", x)), time)


class StoredEvent(NamedTuple):
    """A stored event. ``number`` increases with each event and is the position to continue reading from."""

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


def event_of(row: EventRow) -> StoredEvent:
    """Return an event with its attributes. The severity and the body of a log record are among these.

    Raises:
        google.protobuf.message.DecodeError: the record is damaged.
    """
    record = LogRecord.FromString(row.record)
    plain = dict(plain_attributes(record.attributes))
    if record.severity_number:
        plain.setdefault("severity_number", int(record.severity_number))
    if record.severity_text:
        plain.setdefault("severity_text", record.severity_text)
    if record.HasField("body"):
        plain.setdefault("body", plain_value(record.body))
    trace, span = int.from_bytes(record.trace_id, "big"), int.from_bytes(record.span_id, "big")
    return StoredEvent(row.number, row.name, row.time, row.observed, plain, trace, span, row.scope, row.stream, row.seq)


def run_start(record: bytes) -> int:
    """Return when the run began, in nanoseconds, as the first event of a process's start says; 0 where it does not."""
    said = dict(plain_attributes(LogRecord.FromString(record).attributes)).get("run_start")
    return said if isinstance(said, int) and said > 0 else 0


def plain_attributes(attributes: Iterable[KeyValue]) -> Attributes:
    """Return a message's attributes sorted by key; of two with the same key the later one."""
    found = {each.key: plain_value(each.value) for each in attributes}
    return tuple((key, found[key]) for key in sorted(found))


def plain_value(value: AnyValue) -> AttributeValue:
    """Return an attribute's value; a map as JSON text, bytes in base64, and a missing one as the empty string."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain_value(each) for each in value.array_value.values)  # type: ignore[return-value]
    if kind == "kvlist_value":
        return json.dumps(json_value(value), sort_keys=True)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind == "string_value":
        return value.string_value
    if kind in ("bool_value", "int_value", "double_value"):
        found: bool | int | float = getattr(value, kind)
        return found
    return ""


def json_value(value: AnyValue) -> Any:
    """Return a value as JSON can say it: maps are maps at each depth, and a missing value is None."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {each.key: json_value(each.value) for each in value.kvlist_value.values}
    if kind == "array_value":
        return [json_value(each) for each in value.array_value.values]
    return plain_value(value) if kind else None
