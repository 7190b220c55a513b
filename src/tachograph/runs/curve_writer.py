"""Writing of curves: their points into blocks, and the definitions of their metrics, in a run's file."""

from __future__ import annotations

import json
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from math import inf
from operator import and_, itemgetter, le
from struct import unpack_from
from typing import Any, NamedTuple

from tachograph.runs.blocks import (
    PAIR,
    Block,
    Outline,
    PackedRows,
    Sample,
    join,
    outline,
    pack,
)
from tachograph.runs.point_records import LARGEST, CurveRecord, DerivedPoints, PackedRecord

FULL = 1024  # points, from which on a block stays as it is
_FRESH, _GATHERED, FINAL = range(3)  # levels of blocks
_MANY = (16, 64)  # blocks of a level: a point is written about three times, even where requests are small
_ENDS = 1000  # of a stream's derived curves that are kept in memory
_NANO = 1e9
_TURNED = bytes([1]) + bytes(255)  # 0 becomes 1, all else 0

_SAVE_DEFINITION = (
    "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (stream, execution, scope, metric) DO"
    " UPDATE SET seq = excluded.seq, time = excluded.time, about = excluded.about WHERE excluded.seq > seq"
)
_INSERT_BLOCK = "INSERT INTO block VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "seq0, seq1, n, t0, t1, x0, x1, min, max, nonfinite, form, pairs, rest"


class CurveEnd:
    """The end of a derived curve, from which it goes on.

    Attributes:
        row: the number of the curve in the file.
        seq: the number of its newest point; 0 before the first.
        x: of that.
        branch: of that: goes up where x goes back.
    """

    __slots__ = ("branch", "row", "seq", "x")

    def __init__(self, row: int, seq: int, x: float, branch: int) -> None:
        self.row, self.seq, self.x, self.branch = row, seq, x, branch


CurveEnds = dict[tuple[str, str, str], CurveEnd]  # by group, metric and attributes


class _Derived(NamedTuple):
    """Points of a derived curve, in columns.

    Attributes:
        given: x as the event says it; None for the time.
        xs: x, that of the time, too.
    """

    seqs: Sequence[int]
    times: Sequence[int]
    given: Sequence[float | None]
    xs: Sequence[float]
    values: Sequence[float]

    def block(self, low: int, high: int) -> tuple[Outline, Block]:
        """Return the block of those at some places."""
        rows = PackedRows(array("q", self.times[low:high]), array("d", self.xs[low:high]))
        return rows.block(array("q", self.seqs[low:high]), array("d", self.values[low:high]))

    def runs(
        self, low: int, high: int, x: float, branch: int, *, most: int
    ) -> tuple[list[tuple[int, int, int]], float]:
        """Return points by their branches, as places; and the x after them.

        Args:
            low: place of the first one.
            high: the place behind the last.
            x: before them.
            branch: the same.
            most: the highest branch that they may have.
        """
        xs, given = self.xs, self.given
        if xs[low] >= x and _ascends(xs[low:high]):
            return [(low, high, branch)], xs[high - 1]
        runs, first = [], low
        for place in range(low, high):
            if xs[place] >= x or given[place] is None:
                x = max(x, xs[place])
                continue
            x = xs[place]
            if branch < most:
                if place > first:
                    runs.append((first, place, branch))
                first, branch = place, branch + 1
        runs.append((first, high, branch))
        return runs, x


class CurveWriter:
    """Writes points and definitions of one stream, in a transaction that the caller commits.

    The points of a request are a block of their own; blocks are joined when there are many, until they are full.

    Args:
        connection: in a transaction.
        stream: the number of the stream in the file.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def add_records(self, records: Iterable[tuple[int, int, CurveRecord]]) -> None:
        """Add new records of curves, each with its number and time."""
        samples: dict[tuple[int, str, str, str], dict[int, list[Sample]]] = {}
        for seq, time, record in records:
            if record.sample is None:
                self._define(seq, time, record)
            else:
                curve = samples.setdefault((record.execution, record.group, record.metric, record.attributes), {})
                curve.setdefault(record.branch, []).append(record.sample)
        for key, branches in samples.items():
            number = self._curve(*key)
            for branch, points in branches.items():
                points.sort(key=lambda sample: sample.seq)
                self._insert_samples(number, branch, points)

    def add_packed(self, record: PackedRecord, new: Sequence[tuple[int, int]]) -> None:
        """Add packed points.

        Args:
            record: has the points.
            new: the first and the last of each range of its numbers that had not arrived before.
        """
        rows = len(record.times)
        execution = record.execution or 0
        curve_of = self._own_curve if record.execution is None else self._curve
        if record.units:
            for metric in record.metrics:
                about = {"metric": metric, "units": record.units}
                self._save_definition(execution, record.group, metric, 0, record.times[0], about)
        columns = []
        present = _present(record, new)
        for start, metric in zip(range(0, len(record.values), rows), record.metrics, strict=True):
            mask = present[start : start + rows]
            if any(mask):
                columns.append((curve_of(execution, record.group, metric, record.attributes), start, mask))
        for low in () if record.intervals else range(0, rows, FULL):
            high = min(low + FULL, rows)
            packed = PackedRows(record.times[low:high], record.x[low:high])
            for curve, start, mask in columns:
                if all(mask):
                    seqs = array("q", range(record.first + start + low, record.first + start + high))
                    about_block, block = packed.block(seqs, record.values[start + low : start + high])
                    self._insert(curve, record.branch, _FRESH, about_block, block)
        for curve, start, mask in columns:
            if record.intervals or not all(mask):
                places = compress(range(rows), mask)
                samples = [record.sample(record.first + start + row, row, start) for row in places]
                self._insert_samples(curve, record.branch, samples)

    def add_derived(
        self, records: Iterable[tuple[int, int, DerivedPoints]], ends: CurveEnds, *, began: int, branch: int
    ) -> None:
        """Add points that follow from new events, each event with its number and time.

        Args:
            records: the points of each event.
            ends: of the stream's derived curves, as far as they are known; it is kept up to date.
            began: when the run did, in nanoseconds: x where it is the time.
            branch: the first one of a new curve.
        """
        tables: dict[tuple[str, str, tuple[str, ...]], list[tuple[Any, ...]]] = {}
        x_names: dict[tuple[str, str], str] = {}
        for seq, time, (group, attributes, metrics, values, x, x_name) in records:
            tables.setdefault((group, attributes, metrics), []).append((seq, time, x, *values))
            if x_name:
                x_names.setdefault((group, attributes), x_name)
        curves: dict[tuple[str, str, str], list[_Derived]] = {}
        for (group, attributes, metrics), rows in tables.items():
            seqs, times, given, *columns = zip(*rows, strict=True)
            xs = [(time - began) / _NANO if x is None else x for x, time in zip(given, times, strict=True)]
            for metric, values in zip(metrics, columns, strict=True):
                curves.setdefault((group, metric, attributes), []).append(_Derived(seqs, times, given, xs, values))
        for named, parts in curves.items():
            points = parts[0] if len(parts) == 1 and _ascends(parts[0].seqs) else _in_order(parts)
            end = ends.get(named)
            if end is None:
                if len(ends) >= _ENDS:  # one that is forgotten is read from the file again
                    ends.clear()
                end = ends[named] = self._end(named, branch)
                group, metric, attributes = named
                self._define_x(group, metric, x_names.get((group, attributes), ""), points.times[0])
            for low, high, of in self._branches(end, points):
                for first in range(low, high, FULL):
                    about, block = points.block(first, min(first + FULL, high))
                    self._insert(end.row, of, _FRESH, about, block)

    def _define_x(self, group: str, metric: str, x_name: str, time: int) -> None:
        """Save the name of a derived curve's x: charts with the same x are zoomed together."""
        if x_name:
            self._save_definition(0, group, metric, 0, time, {"metric": metric, "x_units": x_name})

    def _end(self, named: tuple[str, str, str], branch: int) -> CurveEnd:
        """Return the end of a derived curve from the file."""
        row = self._own_curve(0, *named)
        found = self._connection.execute(
            "SELECT seq1, branch, substr(pairs, -16, 8) FROM block WHERE curve = ? ORDER BY seq1 DESC LIMIT 1", (row,)
        ).fetchone()
        if found is None:
            return CurveEnd(row, 0, -inf, branch)
        seq, branch, x = found
        return CurveEnd(row, seq, unpack_from("<d", x)[0] if len(x) == PAIR.size // 2 else -inf, branch)

    def _branches(self, end: CurveEnd, points: _Derived) -> list[tuple[int, int, int]]:
        """Return the first place, the one behind the last, and the branch of points; they are the curve's end then.

        A new branch begins where a given x goes back. Points that come late continue the one that was under way.
        """
        seqs, found = points.seqs, list[tuple[int, int, int]]()
        late = bisect_left(seqs, end.seq)
        if late:
            ((branch,),) = self._connection.execute(
                "SELECT coalesce((SELECT branch FROM block WHERE curve = ? AND seq0 < ? ORDER BY seq0 DESC LIMIT 1),"
                " (SELECT min(branch) FROM block WHERE curve = ?), 0)",
                (end.row, seqs[0], end.row),
            )
            found, _ = points.runs(0, late, -inf, branch, most=end.branch)
        if late < len(seqs):
            more, x = points.runs(late, len(seqs), end.x, end.branch, most=LARGEST)
            found += more
            end.seq, end.x, end.branch = seqs[-1], x, more[-1][2]
        return found

    def _define(self, seq: int, time: int, record: CurveRecord) -> None:
        group = record.group or self._group(record.execution, record.metric)
        self._name_group(record.execution, group, record.metric)
        self._save_definition(record.execution, group, record.metric, seq, time, record.about)

    def _save_definition(  # noqa: PLR0917 - the columns of the table
        self, execution: int, group: str, metric: str, seq: int, time: int, about: Mapping[str, Any]
    ) -> None:
        """Save a definition of a metric, unless there is one whose number is as high; the writer's own have 0."""
        row = (self._stream, execution, group, metric, seq, time, json.dumps(dict(about)))
        self._connection.execute(_SAVE_DEFINITION, row)

    def _group(self, execution: int, metric: str) -> str:
        """Return the group in the newest definition of a metric; empty where there is none."""
        # Number 0 have the writer's own definitions, of curves that are no Metric's: their group is not a Metric's.
        newest = (
            "SELECT scope FROM definition WHERE stream = ? AND execution = ? AND metric = ? AND seq > 0"
            " ORDER BY seq DESC LIMIT 1"
        )
        row = self._connection.execute(newest, (self._stream, execution, metric)).fetchone()
        return str(row[0]) if row else ""

    def _name_group(self, execution: int, group: str, metric: str) -> None:
        """Set the group of a metric that had none: a ``Metric`` may get it after its first points."""
        if not group:
            return
        values = (group, self._stream, execution, metric)
        of_metric = "SET scope = ? WHERE stream = ? AND execution = ? AND scope = '' AND metric = ?"
        self._connection.execute(f"UPDATE OR IGNORE definition {of_metric}", values)
        self._connection.execute(f"UPDATE OR IGNORE curve {of_metric}", values)

    def _curve(self, execution: int, group: str, metric: str, attributes: str) -> int:
        """Return the number of a ``Metric``'s curve, whose group may stand in its definition alone."""
        group = group or self._group(execution, metric)
        if group and self._find(execution, group, metric, attributes) is None:
            self._name_group(execution, group, metric)
        return self._own_curve(execution, group, metric, attributes)

    def _own_curve(self, *key: int | str) -> int:
        """Return the number of a curve by execution, group, metric and attributes; a new one where there is none."""
        number = self._find(*key)
        if number is not None:
            return number
        add = "INSERT INTO curve (stream, execution, scope, metric, attributes) VALUES (?, ?, ?, ?, ?)"
        return int(self._connection.execute(add, (self._stream, *key)).lastrowid or 0)

    def _find(self, *key: int | str) -> int | None:
        find = "SELECT id FROM curve WHERE stream = ? AND execution = ? AND scope = ? AND metric = ? AND attributes = ?"
        row = self._connection.execute(find, (self._stream, *key)).fetchone()
        return None if row is None else int(row[0])

    def _insert_samples(self, curve: int, branch: int, samples: Sequence[Sample]) -> None:
        for first in range(0, len(samples), FULL):
            part = samples[first : first + FULL]
            self._insert(curve, branch, _FRESH, outline(part), pack(part))

    def _insert(self, curve: int, branch: int, level: int, about: Outline, block: Block) -> None:
        if about.n >= FULL:
            level = FINAL
        insert_block(self._connection, curve, branch, (about, block), level=level)
        if level == FINAL:
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


def insert_block(
    connection: sqlite3.Connection, curve: int, branch: int, outlined: tuple[Outline, Block], *, level: int
) -> None:
    """Insert a block of a curve with its outline."""
    about, block = outlined
    connection.execute(_INSERT_BLOCK, (curve, branch, level, *about, block.crc(), *block))


def _present(record: PackedRecord, new: Sequence[tuple[int, int]]) -> bytes:
    """Return a byte for each point, 0 for those that were left out and for those that had arrived before."""
    sent = (record.left_out or bytes(len(record.values))).translate(_TURNED)
    if new[0] == (record.first, record.last):
        return sent
    fresh = bytearray(len(record.values))
    for low, high in new:
        fresh[low - record.first : high + 1 - record.first] = bytes([1]) * (high + 1 - low)
    return bytes(map(and_, sent, fresh))


def _in_order(parts: Sequence[_Derived]) -> _Derived:
    """Return points by their numbers."""
    rows = sorted(chain.from_iterable(zip(*part, strict=True) for part in parts), key=itemgetter(0))
    return _Derived(*zip(*rows, strict=True))


def _ascends(numbers: Sequence[float]) -> bool:
    return all(map(le, numbers[:-1], numbers[1:]))
