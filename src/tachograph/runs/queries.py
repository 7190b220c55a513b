"""Typed queries of a run's file, shared by the hub, the Studio, the diagnosis and the commands.

Each function takes ``rows``, which runs a statement and returns its rows: :meth:`tachograph.runs.file.Look.rows`,
:meth:`tachograph.runs.file.RunFile.rows` or :meth:`tachograph.runs.store.Store.read`. The first two return the rows up
to the damage of a file that is damaged, so each function copes with missing rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tachograph.runs.blocks import Block, Sample, unpack
from tachograph.runs.file import RunFile

Rows = Callable[..., Iterable[Sequence[Any]]]
Shape = Literal["gauge", "sum", "counter", "histogram"]  # a sum may fall, a counter may not
LARGEST = 2**63 - 1
_MOST_PARAMETERS = 500  # of one statement
_NO_LIMIT = -1


def _first(rows: Iterable[Sequence[Any]]) -> Sequence[Any] | None:
    return next(iter(rows), None)


def _value(rows: Iterable[Sequence[Any]]) -> Any:
    """Return the first column of the first row; None where there is no row."""
    row = _first(rows)
    return None if row is None else row[0]


# Curves and their points.


class StoredBlock(NamedTuple):
    """A block of packed points.

    Attributes:
        number: of the block in the file.
        curve: the number of its curve.
        seq0: the number of its first point in the stream.
        seq1: the same of its last point.
        crc: the checksum that it was written with.
    """

    number: int
    curve: int
    branch: int
    seq0: int
    seq1: int
    points: int
    crc: int
    block: Block


_BLOCK = "id, curve, branch, seq0, seq1, n, crc, form, pairs, rest"


def _blocks(rows: Iterable[Sequence[Any]]) -> Iterator[StoredBlock]:
    for number, curve, branch, seq0, seq1, points, crc, *block in rows:
        yield StoredBlock(number, curve, branch, seq0, seq1, points, crc, Block(*block))


def read_blocks(rows: Rows, curve: int, *, since: int = 0, newest_first: bool = False) -> Iterator[StoredBlock]:
    """Return the blocks of a curve by the numbers of their first points.

    Args:
        rows: runs a statement.
        curve: the number of the curve.
        since: the least number of a first point.
        newest_first: the order is descending.
    """
    order = "DESC" if newest_first else "ASC"
    statement = f"SELECT {_BLOCK} FROM block WHERE curve = ? AND seq0 >= ? ORDER BY seq0 {order}"
    return _blocks(rows(statement, curve, since))


def read_last_block(rows: Rows, curve: int) -> StoredBlock | None:
    """Return the block that has the last point of a curve."""
    return next(_blocks(rows(f"SELECT {_BLOCK} FROM block WHERE curve = ? ORDER BY seq1 DESC LIMIT 1", curve)), None)


def read_block_near(rows: Rows, curves: Sequence[int], time: int, *, is_before: bool) -> StoredBlock | None:
    """Return the block of any of some curves that began last up to a time, or the first one that ends since then."""
    curves = curves[-_MOST_PARAMETERS:]
    where = "t0 <= ? ORDER BY t0 DESC" if is_before else "t1 >= ? ORDER BY t0"
    nearest = f"SELECT id FROM block WHERE curve IN ({_marks(curves)}) AND {where} LIMIT 1"
    statement = f"SELECT {_BLOCK} FROM block WHERE id = ({nearest})"
    return next(_blocks(rows(statement, *curves, time)), None)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def read_samples_of_block(file: RunFile, stored: StoredBlock) -> list[Sample]:
    """Return the points of a block; none of a damaged one, which the file notes."""
    try:
        return list(unpack(stored.block))
    except ValueError as error:
        note_damaged_points(file, stored.seq0, stored.seq1, error)
        return []


def note_damaged_points(file: RunFile, seq0: int, seq1: int, error: Exception | str) -> None:
    """Note that points of a stream cannot be read."""
    file.note(f"points {seq0} to {seq1} of a stream: {error}")


class CurveExtent(NamedTuple):
    """The extent of a curve that has points. The extremes ignore values that are not finite.

    Attributes:
        branches: how many it has.
        points: how many it has.
        min: None where no value is finite.
        max: the same.
        nonfinite: the number of values that are NaN or infinite.
        newest: the time of its newest point, in nanoseconds.
    """

    branches: int
    points: int
    x0: float
    x1: float
    min: float | None
    max: float | None
    nonfinite: int
    newest: int


def read_curve_extents(rows: Rows) -> dict[int, CurveExtent]:
    """Return the extent of each curve that has points, by the number of the curve."""
    statement = (
        "SELECT curve, count(DISTINCT branch), sum(n), min(x0), max(x1), min(min), max(max), sum(nonfinite), max(t1)"
        " FROM block GROUP BY curve"
    )
    return {curve: CurveExtent(*extent) for curve, *extent in rows(statement)}


def read_last_numbers(rows: Rows) -> dict[int, int]:
    """Return the number of the last point of each curve; 0 for a curve without points."""
    # The block that begins last has it.
    last = "SELECT seq1 FROM block INDEXED BY block_order WHERE curve = curve.id ORDER BY seq0 DESC LIMIT 1"
    return {curve: number or 0 for curve, number in rows(f"SELECT id, ({last}) FROM curve")}


class NonfiniteValues(NamedTuple):
    """Values of a curve that are not finite.

    Attributes:
        curve: its number.
        values: how many there are.
        seq0: the number of the first point of the first block that has some.
    """

    curve: int
    values: int
    seq0: int


def read_nonfinite_values(rows: Rows) -> list[NonfiniteValues]:
    """Return the curves that have values that are not finite, in the order of the first one."""
    statement = "SELECT curve, sum(nonfinite), min(seq0) FROM block WHERE nonfinite > 0 GROUP BY curve ORDER BY min(t0)"
    return list(map(NonfiniteValues._make, rows(statement)))


class StoredCurve(NamedTuple):
    """A curve: one metric and set of attributes, in one stream and task.

    Attributes:
        execution: the number of the task; 0 outside tasks.
        group: the metric's group; empty for none.
        attributes: JSON, pairs sorted by key.
    """

    number: int
    stream: int
    execution: int
    group: str
    metric: str
    attributes: str


class StoredDefinition(NamedTuple):
    """The latest definition of a metric in a stream and task.

    Attributes:
        time: nanoseconds since the epoch.
        about: its attributes, as a JSON object.
    """

    stream: int
    execution: int
    group: str
    metric: str
    time: int
    about: str


_OF_METRIC = "WHERE metric = ? OR substr(metric, 1, length(?) + 1) = ? || '#'"


def read_curves(rows: Rows, metric: str | None = None) -> Iterator[StoredCurve]:
    """Return the curves of a metric and of its repetitions as a loop (``metric#2``), or of all metrics, by number."""
    where, values = ("", ()) if metric is None else (_OF_METRIC, (metric, metric, metric))
    statement = f"SELECT id, stream, execution, scope, metric, attributes FROM curve {where} ORDER BY id"
    return map(StoredCurve._make, rows(statement, *values))


def read_definitions(rows: Rows, metric: str | None = None) -> Iterator[StoredDefinition]:
    """Return the definitions of a metric and of its repetitions, or of all metrics, by stream and time."""
    where, values = ("", ()) if metric is None else (_OF_METRIC, (metric, metric, metric))
    columns = "stream, execution, scope, metric, time, about"
    statement = f"SELECT {columns} FROM definition {where} ORDER BY stream, time"
    return map(StoredDefinition._make, rows(statement, *values))


# Streams and their events.


class StoredStream(NamedTuple):
    """A stream of numbered records: what one start of a process logged.

    Attributes:
        process: the number of the process.
        resource: the attributes of the process, as a JSON object.
    """

    number: int
    name: str
    process: int
    resource: str


def read_streams(rows: Rows) -> Iterator[StoredStream]:
    """Return the streams by their numbers."""
    statement = (
        "SELECT stream.id, stream.name, process.id, resource FROM stream JOIN process ON process.id = process"
        " ORDER BY stream.id"
    )
    return map(StoredStream._make, rows(statement))


class EventSpan(NamedTuple):
    """The events of a stream.

    Attributes:
        resource: the attributes of the process, as a JSON object.
        first: the number of the first event; None where there are none.
        last: the same of the last event.
    """

    stream: int
    resource: str
    first: int | None
    last: int | None


def read_event_spans(rows: Rows, series_name: str) -> list[EventSpan]:
    """Return the streams of the processes that have a series of that name, by their numbers."""
    statement = (
        "SELECT stream.id, resource, (SELECT min(seq) FROM event WHERE stream = stream.id),"
        " (SELECT max(seq) FROM event WHERE stream = stream.id) FROM stream JOIN process ON process.id = process"
        " WHERE process IN (SELECT process FROM series WHERE name = ?) ORDER BY stream.id"
    )
    return list(map(EventSpan._make, rows(statement, series_name)))


def has_restarted(rows: Rows, stream: int) -> bool:
    """Tell whether a launcher has started the process of a stream again."""
    restarted = "SELECT 1 FROM stream JOIN incarnation USING (process) WHERE id = ? AND restart > 0 LIMIT 1"
    return _first(rows(restarted, stream)) is not None


class EventRow(NamedTuple):
    """An event as the file has it.

    Attributes:
        number: increases with each event of the run.
        time: nanoseconds since the epoch.
        observed: the same, of when it was logged.
        stream: the name of its stream.
        seq: its number in the stream.
        record: the log record, as protobuf.
        resource: the attributes of its process, as a JSON object.
    """

    number: int
    name: str
    time: int
    observed: int
    scope: str
    stream: str
    seq: int
    record: bytes
    resource: str


_EVENTS = (
    "SELECT event.rowid, event.name, event.time, observed, scope, stream.name, seq, record, resource FROM event"
    " JOIN stream ON stream.id = event.stream JOIN process ON process.id = process"
)


def read_events(rows: Rows, *, after: int = 0, names: Sequence[str] = (), limit: int = _NO_LIMIT) -> Iterator[EventRow]:
    """Return events in the order of their arrival.

    Args:
        rows: runs a statement.
        after: the number of the last event that is known.
        names: only events of these names; of all names where empty.
        limit: the most events.
    """
    named = f" AND event.name IN ({_marks(names)})" if names else ""
    statement = f"{_EVENTS} WHERE event.rowid > ?{named} ORDER BY event.rowid LIMIT ?"
    return map(EventRow._make, rows(statement, after, *names, limit))


def read_stream_events(
    rows: Rows, stream: int, name: str, *, since: int = 0, limit: int = 1, newest_first: bool = False
) -> Iterator[EventRow]:
    """Return the events of a name in a stream, by their numbers there.

    Args:
        rows: runs a statement.
        stream: the number of the stream.
        name: of the events.
        since: the least number.
        limit: the most events.
        newest_first: the order is descending.
    """
    order = "DESC" if newest_first else "ASC"
    statement = f"{_EVENTS} WHERE event.stream = ? AND event.name = ? AND seq >= ? ORDER BY seq {order} LIMIT ?"
    return map(EventRow._make, rows(statement, stream, name, since, limit))


def read_newest_event_number(rows: Rows) -> int:
    """Return the number of the event that arrived last; 0 where there is none."""
    return _value(rows("SELECT max(rowid) FROM event")) or 0


def read_last_event_time(rows: Rows, name: str) -> int | None:
    """Return the time of the last event of a name; None where there is none."""
    time: int | None = _value(rows("SELECT max(time) FROM event WHERE name = ?", name))
    return time


def read_first_event_time(rows: Rows, name: str, *, among: int) -> int | None:
    """Return the time of the first event of a name among the first ``among`` events; None where there is none."""
    time: int | None = _value(rows("SELECT min(time) FROM event WHERE name = ? AND rowid <= ?", name, among))
    return time


def read_launch_span(rows: Rows) -> tuple[int | None, int | None]:
    """Return the first and the last time at which the run was launched, or its job ended; None for never."""
    statement = "SELECT min(time), max(time) FROM (SELECT time FROM launch UNION ALL SELECT time FROM job_end)"
    first, last = _first(rows(statement)) or (None, None)
    return first, last


class StoredFailure(NamedTuple):
    """The exception that ended a start of a process, which process, pid and number of restarts identify."""

    process: int
    pid: int
    restart: int
    time: int
    type: str
    message: str


def read_failures(rows: Rows) -> list[StoredFailure]:
    """Return the exceptions that ended processes, the oldest first."""
    statement = "SELECT process, pid, restart, time, type, message FROM failure ORDER BY time"
    return list(map(StoredFailure._make, rows(statement)))


# Series and their samples.


class StoredSeries(NamedTuple):
    """A series of one process.

    Attributes:
        shape: gauge, sum, counter or histogram.
        attributes: JSON, pairs sorted by key.
        resource: the attributes of its process, as a JSON object.
        state: its last state, as JSON; None where there is none, or it was not asked for.
    """

    number: int
    scope: str
    name: str
    unit: str
    shape: str
    attributes: str
    resource: str
    state: str | None


def read_series(rows: Rows, *names: str, with_state: bool = False, limit: int = _NO_LIMIT) -> Iterator[StoredSeries]:
    """Return the series of some names, or all of them, in the order of their arrival."""
    state, join = ("data", "LEFT JOIN state ON state.series = series.id") if with_state else ("NULL", "")
    named = f"WHERE name IN ({_marks(names)})" if names else ""
    statement = (
        f"SELECT series.id, scope, name, unit, shape, attributes, resource, {state} FROM series"
        f" JOIN process ON process.id = process {join} {named} ORDER BY series.id LIMIT ?"
    )
    return map(StoredSeries._make, rows(statement, *names, limit))


def read_shape(rows: Rows, series: int) -> str | None:
    """Return the shape of a series; None where there is no such series."""
    shape: str | None = _value(rows("SELECT shape FROM series WHERE id = ?", series))
    return shape


class StoredSample(NamedTuple):
    """A sample of a series.

    Attributes:
        time: nanoseconds since the epoch.
        value: of a histogram the number of values since the sample before; None for NaN.
        total: of a histogram the sum of these values.
        spread: of a histogram these values: see :mod:`tachograph.runs.spread`.
    """

    time: int
    value: float | None
    total: float | None
    spread: bytes | None


_SAMPLE = "time, value, total, spread"


def read_samples(
    rows: Rows, series: int, *, low: int = 0, high: int = LARGEST, limit: int = _NO_LIMIT
) -> Iterator[StoredSample]:
    """Return the samples of a series between two times, the oldest first."""
    where = "series = ? AND time >= ? AND time <= ? ORDER BY time LIMIT ?"
    return map(StoredSample._make, rows(f"SELECT {_SAMPLE} FROM sample WHERE {where}", series, low, high, limit))


def read_newest_samples(rows: Rows, series: int, limit: int) -> list[StoredSample]:
    """Return the newest samples of a series, the oldest first."""
    statement = f"SELECT {_SAMPLE} FROM sample WHERE series = ? ORDER BY time DESC LIMIT ?"
    return list(map(StoredSample._make, rows(statement, series, limit)))[::-1]


class NewSample(NamedTuple):
    """A sample and its series."""

    series: int
    shape: str
    sample: StoredSample


def read_samples_since(rows: Rows, time: int) -> Iterator[NewSample]:
    """Return the samples of all series after a time, series by series."""
    # A cross join has the series outside, so that each one finds its samples by their key.
    statement = (
        f"SELECT id, shape, {_SAMPLE} FROM series CROSS JOIN sample ON series = id AND time > ? ORDER BY id, time"
    )
    return (NewSample(number, shape, StoredSample(*sample)) for number, shape, *sample in rows(statement, time))


def count_samples(rows: Rows, series: int, low: int, high: int, *, limit: int) -> int:
    """Return the number of samples of a series between two times, at most ``limit``."""
    some = "SELECT 1 FROM sample WHERE series = ? AND time >= ? AND time <= ? LIMIT ?"
    return _value(rows(f"SELECT count(*) FROM ({some})", series, low, high, limit)) or 0


def count_spreads(rows: Rows, series: int, low: int, high: int) -> int:
    """Return the number of samples between two times that have the values of a histogram."""
    statement = "SELECT count(*) FROM sample WHERE series = ? AND time >= ? AND time <= ? AND spread IS NOT NULL"
    return _value(rows(statement, series, low, high)) or 0


def read_sample_span(rows: Rows, series: int, low: int, high: int) -> tuple[int, int] | None:
    """Return the times of the first and the last sample of a series between two times; None where there is none."""
    ends = "SELECT time FROM sample WHERE series = ? AND time >= ? AND time <= ? ORDER BY time"
    window = (series, low, high)
    row = _first(rows(f"SELECT ({ends} LIMIT 1), ({ends} DESC LIMIT 1)", *window, *window))
    return None if row is None or row[0] is None else (row[0], row[1])


def read_sample_time_before(rows: Rows, series: int, time: int) -> int | None:
    """Return the time of the last sample of a series before a time; None where there is none."""
    before: int | None = _value(rows("SELECT max(time) FROM sample WHERE series = ? AND time < ?", series, time))
    return before


class GaugeStretch(NamedTuple):
    """The samples of a gauge in a stretch of time: the time of the last one, and mean, least and greatest value."""

    time: int
    mean: float | None
    min: float | None
    max: float | None


def read_gauge_stretch(rows: Rows, series: int, begin: int, end: int) -> GaugeStretch | None:
    """Return what a gauge was in a stretch of time, which ends before ``end``; None where it has no sample in it."""
    columns = "max(time), avg(value), min(value), max(value)"
    statement = f"SELECT {columns} FROM sample WHERE series = ? AND time >= ? AND time < ?"
    row = _first(rows(statement, series, begin, end))
    return None if row is None or row[0] is None else GaugeStretch(*row)


def read_last_sample(rows: Rows, series: int, begin: int, end: int) -> StoredSample | None:
    """Return the last sample of a series in a stretch of time, which ends before ``end``; None where there is none."""
    where = "series = ? AND time >= ? AND time < ? ORDER BY time DESC LIMIT 1"
    row = _first(rows(f"SELECT {_SAMPLE} FROM sample WHERE {where}", series, begin, end))
    return None if row is None else StoredSample(*row)


def read_last_increase(rows: Rows, name: str, *, among: int) -> int:
    """Return when a sample of a histogram last had values, of ``among`` series of a name; 0 for never."""
    last = "SELECT time FROM sample WHERE series = id AND value > 0 ORDER BY time DESC LIMIT 1"
    statement = f"SELECT max(({last})) FROM (SELECT id FROM series WHERE name = ? LIMIT ?)"
    return _value(rows(statement, name, among)) or 0


class StoredState(NamedTuple):
    """The last state of a series, from which a hub continues it.

    Attributes:
        attributes: JSON, pairs sorted by key.
        number: of the series in the file.
        seen: when it last got a value, in nanoseconds.
        data: the state, as JSON.
    """

    scope: str
    name: str
    unit: str
    shape: Shape
    attributes: str
    description: str
    number: int
    seen: int
    data: str


_STATES = (
    "SELECT scope, name, unit, shape, attributes, description, series.id, seen, data FROM series"
    " JOIN state ON state.series = series.id"
)


def read_states(rows: Rows, process: int, *, since: int) -> list[StoredState]:
    """Return the states of a process's series that were seen since a time, in the order of their arrival."""
    statement = f"{_STATES} WHERE process = ? AND seen >= ? ORDER BY series.id"
    return list(map(StoredState._make, rows(statement, process, since)))


class SeriesKey(NamedTuple):
    """What identifies a series among those of its process."""

    scope: str
    name: str
    unit: str
    shape: Shape
    attributes: str


def find_state(rows: Rows, instance: str, key: SeriesKey) -> StoredState | None:
    """Return the state of a series of a process; None where there is none."""
    of_process = "process = (SELECT id FROM process WHERE instance = ?)"
    of_key = "scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
    row = _first(rows(f"{_STATES} WHERE {of_process} AND {of_key}", instance, *key))
    return None if row is None else StoredState(*row)


def count_series(rows: Rows, process: int) -> int:
    """Return the number of a process's series."""
    return _value(rows("SELECT count(*) FROM series WHERE process = ?", process)) or 0


# Processes.


class StoredProcess(NamedTuple):
    """A process.

    Attributes:
        resource: its attributes, as a JSON object.
        times_lost: how often it was lost.
    """

    number: int
    resource: str
    times_lost: int


def find_process(rows: Rows, instance: str) -> StoredProcess | None:
    """Return a process by its ``service.instance.id``; None where there is none."""
    row = _first(rows("SELECT id, resource, times_lost FROM process WHERE instance = ?", instance))
    return None if row is None else StoredProcess(*row)


def read_instances(rows: Rows, *, since: int) -> list[str]:
    """Return the ``service.instance.id`` of each process that exported since a time, in the order of their arrival."""
    statement = (
        "SELECT instance FROM process JOIN incarnation ON process = id"
        " GROUP BY id HAVING max(last_export) >= ? ORDER BY id"
    )
    return [instance for (instance,) in rows(statement, since)]


class StoredStart(NamedTuple):
    """A start of a process.

    Attributes:
        process: the number of the process.
        instance: its ``service.instance.id``.
        resource: its attributes, as a JSON object.
        announced: 1 where the process announced its begin, and so will announce its end.
        first_export: nanoseconds since the epoch.
        last_export: the same.
        interval: nanoseconds between two exports.
        ended: why it ended; empty where it announced no end.
        lost: 1 where it was lost.
    """

    process: int
    instance: str
    resource: str
    pid: int
    restart: int
    announced: int
    first_export: int
    last_export: int
    interval: int
    ended: str
    lost: int


def read_starts(rows: Rows, process: int | None = None) -> Iterator[StoredStart]:
    """Return the starts of a process, or of all processes, the oldest first."""
    where, values = ("", ()) if process is None else ("WHERE process = ?", (process,))
    statement = (
        "SELECT id, instance, resource, pid, restart, announced, first_export, last_export, interval, ended, lost"
        f" FROM process JOIN incarnation ON process = id {where} ORDER BY first_export, restart"
    )
    return map(StoredStart._make, rows(statement, *values))
