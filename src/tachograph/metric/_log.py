"""``log()``: dictionaries of values, as trackers take them, kept as the rows of tables: one table a set of keys.

A call appends a row: the time, the step, and the values. Each 256 rows are packed into columns; a gauge shows the last
row of each key. The points leave packed, see :mod:`tachograph.recording.packed_points`.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from operator import itemgetter
from typing import Any, NamedTuple

from tachograph.metric.execution import Execution, process
from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import Definition, MetricGroup, finite
from tachograph.recording.forking import at_fork
from tachograph.recording.ids import NumberSequence
from tachograph.recording.logged_tokens import TOKENS, logged_tokens
from tachograph.recording.naming import check_name
from tachograph.recording.packed_points import LEFT_OUT, PackedPoints, first_branch
from tachograph.recording.points import Attributes
from tachograph.recording.registry import Registry
from tachograph.recording.registry import default as default_registry
from tachograph.recording.switch import switch
from tachograph.recording.values import Pending, as_float, shown

ROWS = 256  # that are packed at once
_RECORD = 64 * 1024  # values in one record, about
_WAIT = 2 * 10**9  # nanoseconds for which rows wait for others, to leave together
MOST_TABLES = 1024
MOST_WAITING = 2**20  # values in packed rows that wait to leave, 8 MiB; beyond, the oldest go
_FAR = sys.float_info.max
_TOKENS = ("", TOKENS)  # group and metric
_DEPTH = 32  # of nested dictionaries: one that holds itself has no end


class _Part(NamedTuple):
    """Packed rows of one branch. ``left_out`` is empty where every value is there."""

    branch: int
    times: array[int]
    x: array[float]
    columns: list[array[float]]
    left_out: list[bytes]


class _Shown:
    """One key of a table, as its gauge follows it: :class:`tachograph.recording.accumulators.Followed`."""

    __slots__ = ("_last", "_place", "_table")

    def __init__(self, table: _Table, place: int) -> None:
        self._table, self._place = table, place
        self._last: Sequence[Any] = ()

    def newest(self) -> float:
        """Return when the last row was logged."""
        row = self._table.newest()
        return row[0] / 1e9 if row else 0.0

    def unseen(self) -> tuple[float, float] | None:
        """Return when the last row was logged, and its value; None where the gauge has it, or there is no number."""
        row = self._table.newest()
        if row is self._last or not row:
            return None
        self._last = row
        value = row[2 + self._place]
        return None if value is None or isinstance(value, Pending) else (row[0] / 1e9, value)


class _Table:
    """The rows of one set of keys.

    Args:
        keys: group and metric of each.
        gauges: of each.
        counted: its steps are counts of calls, which two threads may append in another order.
        attributes: those that distinguish its curves from others of the same names.

    Attributes:
        tokens: the sum of those in packed rows; None where they are none of its keys.
    """

    __slots__ = (
        *("_attributes", "_branch", "_lock", "_newest", "_shown", "_x"),
        *("counted", "gauges", "keys", "late", "parts", "rows", "tokens"),
    )

    def __init__(
        self,
        keys: Sequence[tuple[str, str]],
        gauges: Sequence[LastValue],
        *,
        counted: bool,
        attributes: Attributes = (),
    ) -> None:
        self.keys, self.gauges, self.counted, self._attributes = keys, gauges, counted, attributes
        self._shown = [_Shown(self, place) for place in range(len(keys))]
        self.tokens = 0 if _TOKENS in keys else None
        self.rows: list[tuple[Any, ...]] = []
        self.parts: tuple[_Part, ...] = ()
        self.late = False  # some values are on their way from a device
        self._lock = threading.Lock()
        self._newest: Sequence[Any] = ()
        self._x, self._branch = float("-inf"), first_branch()
        for gauge, place in zip(self.gauges, self._shown, strict=True):
            gauge.follow(place)

    def leave(self) -> None:
        """Leave its gauges as they are: another table of these keys may come."""
        for gauge, place in zip(self.gauges, self._shown, strict=True):
            gauge.leave(place)

    def newest(self) -> Sequence[Any]:
        """Return the last row; empty before the first."""
        try:
            return self.rows[-1]
        except IndexError:
            return self._newest

    def read(self, values: Iterable[object]) -> list[Any]:
        """Return values as numbers; each other object is counted, and None here."""
        found = []
        for gauge, value in zip(self.gauges, values, strict=True):
            plain = value.__class__ is float or value.__class__ is int
            number: Any = value if plain else gauge.losses.read(value)
            self.late = self.late or isinstance(number, Pending)
            found.append(number)
        return found

    def pack(self) -> None:
        """Pack the rows, up to one that waits for a device."""
        if self._lock.locked():  # another thread is at it, or this one was interrupted
            return
        with self._lock:
            self._pack_rows()

    def _pack_rows(self) -> None:
        left = len(self.rows)  # a trace function that logs adds to them all the while
        while left > 0 and self.rows:
            taken = self.rows[: min(ROWS, left)]
            rows = self._arrived(taken) if self.late else taken
            if not rows:
                return
            left -= len(rows)
            packed, x, branch = self._packed(rows)
            count, last = len(rows), rows[-1]
            tokens = None if self.tokens is None else self.tokens + self._tokens_of(packed)
            # No call in these lines, see interrupts.ATOMIC: an interrupt neither loses nor doubles a row.
            self.parts, self.tokens = self.parts + packed, tokens
            self._x, self._branch, self._newest = x, branch, last
            del self.rows[:count]
        self.late = False

    def _tokens_of(self, parts: Sequence[_Part]) -> int:
        place = self.keys.index(_TOKENS)
        return sum(int(number) for part in parts for number in part.columns[place] if 0 < number < inf)

    def _arrived(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for row in rows:
            waiting = [value for value in row if isinstance(value, Pending)]
            if not all(value.ready() for value in waiting):
                break
            found.append(row if not waiting else (*row[:2], *map(self._number, self.gauges, row[2:])))
        return found

    @staticmethod
    def _number(gauge: LastValue, value: Any) -> Any:
        return gauge.losses.arrived(value) if isinstance(value, Pending) else value

    def _packed(self, rows: list[tuple[Any, ...]]) -> tuple[tuple[_Part, ...], float, int]:
        """Return rows as parts, one a branch; and the x and the branch of the last one."""
        if self.counted:
            rows = sorted(rows, key=itemgetter(1))
            return (self._part(self._branch, rows, [float(row[1]) for row in rows]),), self._x, self._branch
        steps = [row[1] for row in rows]
        x = array("d", steps) if max(map(abs, steps)) <= _FAR else array("d", map(as_float, steps))
        ascending = sorted(x)
        if x[0] >= self._x and ascending == x.tolist():
            return (self._part(self._branch, rows, x),), x[-1], self._branch
        before, branch, branches = self._x, self._branch, []
        for step in x:
            branch += step < before
            before = step
            branches.append(branch)
        parts = []
        for one in range(branches[0], branch + 1):
            begin, end = bisect_left(branches, one), bisect_right(branches, one)
            parts.append(self._part(one, rows[begin:end], x[begin:end]))
        return tuple(parts), before, branch

    def _part(self, branch: int, rows: Sequence[tuple[Any, ...]], x: Iterable[float]) -> _Part:
        times, _, *columns = zip(*rows, strict=True)
        found: list[array[float]] = []
        left_out: list[bytes] = []
        for gauge, column in zip(self.gauges, columns, strict=True):
            missing = b""
            try:
                numbers = array("d", column)
            except (TypeError, OverflowError):  # some were no numbers, or are beyond the range of floats
                numbers = array("d", [nan if value is None else as_float(value) for value in column])
                missing = bytes(value is None for value in column)
            total = sum(numbers)
            if total - total:
                gauge.losses.nonfinite += sum(not isfinite(value) for value in numbers) - sum(missing)
            found.append(numbers)
            left_out.append(missing)
        return _Part(branch, array("q", times), array("d", x), found, left_out if any(map(any, left_out)) else [])

    def take(self, *, everything: bool) -> Iterator[PackedPoints]:
        """Yield the points that are due, or all that were logged so far."""
        if self.rows and (everything or self.parts or time.time_ns() - self.rows[0][0] >= _WAIT):
            self.pack()
        parts, self.parts = self.parts, ()
        done = 0
        try:
            for some in _together(parts):
                found = list(self._joined(some))
                done += len(some)
                yield from found
        except BaseException:  # an interrupt, or no memory: the rest leaves the next time
            self._put_back(parts, done)
            raise

    def _put_back(self, parts: tuple[_Part, ...], done: int) -> None:
        try:
            self.parts = parts[done:] + self.parts
        except MemoryError:
            for place, part in enumerate(parts):
                for gauge in self.gauges if place >= done else ():
                    gauge.losses.overflow += len(part.x)

    def _joined(self, parts: Sequence[_Part]) -> Iterator[PackedPoints]:
        branch, times, x = parts[0].branch, array("q"), array("d")
        columns = [array("d") for _ in self.keys]
        missing = [bytearray() for _ in self.keys]
        for part in parts:
            times += part.times
            x += part.x
            for place, column in enumerate(part.columns):
                columns[place] += column
                missing[place] += (part.left_out[place] if part.left_out else b"") or bytes(len(column))
        yield from self._by_group(branch, times, x, columns, missing)

    def _by_group(
        self, branch: int, times: array[int], x: array[float], columns: list[array[float]], missing: list[bytearray]
    ) -> Iterator[PackedPoints]:
        """Yield packed points, one for the metrics of each group."""
        there = [place for place, column in enumerate(missing) if not all(column)]
        for group in dict.fromkeys(self.keys[place][0] for place in there):
            places = [place for place in there if self.keys[place][0] == group]
            values = array("d")
            for place in places:
                values += columns[place]
            left_out = b"".join([bytes(missing[place]) for place in places])
            more = {LEFT_OUT: left_out} if any(left_out) else {}
            metrics = tuple(self.keys[place][1] for place in places)
            yield PackedPoints(metrics, group, self._attributes, "", branch, times, x, values, more)


def _together(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield parts that leave as one: of one branch, and not too large."""
    some: list[_Part] = []
    for part in parts:
        if some and (part.branch != some[0].branch or sum(len(one.x) for one in some) * len(part.columns) >= _RECORD):
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _gauge(execution: Execution, group: str, metric: str, **attributes: str) -> LastValue:
    return execution.gauge(Definition(metric, MetricGroup(group) if group else None, None), **attributes)


class LogTables:
    """The tables of a process: a source of packed points.

    Args:
        registry: where losses are counted, and that is asked for points.
        execution: has their gauges.

    Attributes:
        registry: see above.
        next_call: returns the number of calls before this one.
        tables: by group, whether steps are counted, and keys.
    """

    def __init__(self, registry: Registry, execution: Execution = process) -> None:
        self.registry = registry
        self._execution = execution
        self.tables: dict[Any, _Table] = {}
        self._old: list[_Table] = []
        self._tokens: int | None = None  # of tables that were put aside
        self.reset()
        registry.points.add(self)

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self.next_call = NumberSequence(0).next
        self.tables, self._old, self._tokens = {}, [], None

    def row(
        self, values: Mapping[Any, object], group: str | None, *, counted: bool
    ) -> tuple[_Table | None, Sequence[object]]:
        """Return the table of a dictionary, new where it is not there yet, and its values; None for an empty one.

        Raises:
            TypeError: it is no mapping, or a key or the group is no string.
            ValueError: a name is empty or too long.
        """
        if not isinstance(values, Mapping):
            kind = type(values).__name__
            raise TypeError(f"log() takes a mapping of names to values, not {kind}: {shown(values)}")
        flat = dict(_flat(values))
        if not flat:
            return None, ()
        place = (group, counted, *flat)
        table = self.tables.get(place)
        if table is None:
            if group is not None:
                check_name(group, "the group of log()")
            keys = [_named(key, group) for key in flat]
            made = _Table(keys, [_gauge(self._execution, *key) for key in keys], counted=counted)
            if len(self.tables) >= MOST_TABLES:
                self._put_aside(self.tables.pop(next(iter(self.tables))))
            table = self.tables.setdefault(place, made)
        return table, [*flat.values()]

    def series(self, group: str, metric: str, attributes: Attributes = ()) -> _Table:
        """Return the table of one series, new where it is not there yet; it stays as long as the tables do.

        Args:
            group: of the metric; empty for none.
            metric: its name.
            attributes: those that distinguish the series from others of the metric; strings.
        """
        place = (group, metric, attributes)
        table = self.tables.get(place)
        if table is None:
            gauge = _gauge(self._execution, group, metric, **{key: str(value) for key, value in attributes})
            made = _Table([(group, metric)], [gauge], counted=False, attributes=attributes)
            table = self.tables.setdefault(place, made)
        return table

    def _put_aside(self, table: _Table) -> None:
        """Keep a table only until its rows have left; of very many that wait, the oldest goes."""
        table.leave()
        if table.tokens is not None:
            table.pack()
            self._tokens = (self._tokens or 0) + table.tokens
        if self.registry.points.wanted is not False:
            self._old.append(table)
        if len(self._old) > MOST_TABLES:
            gone = self._old.pop(0)
            rows = len(gone.rows) + sum(len(part.x) for part in gone.parts)
            self.registry.count_dropped("queue_full", "journal", rows * len(gone.keys))

    def bound(self, table: _Table) -> None:
        """Pack a table, and let its oldest rows go where too much waits to leave."""
        table.pack()
        if self.registry.points.wanted is False:
            table.parts = ()
            return
        waiting = sum(len(part.x) for part in table.parts) * len(table.keys)
        if waiting > MOST_WAITING:
            gone, table.parts = table.parts[0], table.parts[1:]
            self.registry.count_dropped("queue_full", "journal", len(gone.x) * len(table.keys))

    def tokens(self) -> int | None:
        """Return the sum of all ``tokens`` that were logged without a group; None before the first."""
        tables = [table for table in list(self.tables.values()) if table.tokens is not None]
        if not tables:
            return self._tokens
        for table in tables:
            table.pack()
        return (self._tokens or 0) + sum(table.tokens or 0 for table in tables)

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""
        return any(table.rows or table.parts for table in [*self._old, *self.tables.values()])

    def take(self, *, everything: bool) -> Iterator[PackedPoints]:
        """Yield the points that are due, or all that were logged so far."""
        for table in [*self._old, *list(self.tables.values())]:
            yield from table.take(everything=everything)
        self._old = [table for table in self._old if table.rows]


def _named(key: object, group: str | None) -> tuple[str, str]:
    """Return group and metric of a key: ``a/b`` is the metric ``b`` of the group ``a``, where no group is given."""
    name = check_name(key, "a key of log()")
    before, _, behind = name.partition("/")
    if group is None and before and behind:
        return before, behind
    if not name:
        raise ValueError("a key of log() must not be empty")
    return group or "", name


def _flat(values: Mapping[Any, object], depth: int = 0) -> Iterator[tuple[Any, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            check_name(key, "a key of log()")
            yield from ((f"{key}/{inner}", found) for inner, found in _flat(value, depth + 1))
        else:
            yield key, value


_tables = LogTables(default_registry)


def log(values: Mapping[str, object], step: object = None, *, group: str | None = None) -> None:
    """Log a dictionary of values: each key is a curve, and a gauge that shows its last value.

    ``train/loss`` is the metric ``loss`` of the group ``train`` where no group is given; nested dictionaries are
    flattened with ``/``. A value is a number of Python, NumPy or torch (one element), NaN and infinities included;
    anything else is counted, and said once. Nothing is thinned.

    Args:
        values: names and values.
        step: x of the points; without it, the number of calls of ``log()`` before this one. A step that goes back
            begins a new branch of the curves.
        group: of all keys.

    Raises:
        TypeError: the values are no mapping, a key or the group is no string, the step is no number.
        ValueError: a key is empty or longer than 1,024 characters, the step is not finite.
    """
    tables = _tables
    if not switch.on or not tables.registry.enabled:
        return
    counted = step is None
    if counted:
        step = tables.next_call()
    elif step.__class__ is not int:
        step = finite(step, "the step of log()")
    table: _Table | None
    try:
        place = (group, counted, *values)
        table = tables.tables[place]
        numbers: Any = values.values()
    except (KeyError, TypeError, AttributeError):
        table, numbers = tables.row(values, group, counted=counted)
    for value in numbers:
        if value.__class__ is not float and value.__class__ is not int:
            if any(isinstance(other, Mapping) for other in numbers):
                table, numbers = tables.row(values, group, counted=counted)
            numbers = [] if table is None else table.read(numbers)
            break
    if table is None:
        return
    rows = table.rows
    rows.append((time.time_ns(), step, *numbers))
    if len(rows) >= ROWS:
        tables.bound(table)


at_fork("log", in_child=_tables.reset)
logged_tokens.summed_by(_tables.tokens)
