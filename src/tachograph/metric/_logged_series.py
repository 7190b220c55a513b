"""The series of ``log()`` and of the bridges, and the points that rows of their values become.

A row has a value of each series of its key set. Branch, x and last value belong to a series: where it is in several key
sets, or where several sources record under its name, all of their rows count together, in the order of recording.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count
from math import inf, isfinite, nan
from operator import lt
from typing import Any, NamedTuple, TypeVar, cast

from tachograph.recording.accumulators import FOLD_WAIT, LastValue
from tachograph.recording.logged_tokens import TOKENS
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.packed_points import PackedPoints, first_branch
from tachograph.recording.points import Attributes
from tachograph.recording.values import Number, Pending, as_float

LOG = "tachograph"  # the source of the values of log()
RECORD_VALUES = 64 * 1024  # in one record, about
_REMEMBERED = 32  # the last values under a name, with which those of another source are compared
_PART_COST = 64  # what a part takes in memory beside its values, in values
_FIRST_VALUE = 3  # the column of a row behind key set, time and x
_TOLERANCE = 1e-6  # float32 is all that TensorBoard keeps of a value

Item = TypeVar("Item")
Row = tuple[Any, ...]
"""Key set, time, x, and the values. x is None where ``log()`` was called without a step.

The row of a bridge has one value, then the x that the library was given (None where it counted by itself), and the
rounding of a value that was read from a text.
"""


class OnItsWayError(Exception):
    """A row has a value that is still on its way from a device."""


def alike(one: Number | Pending, other: Number | Pending, rounding: float = 0.0) -> bool:
    """Tell whether two values are the same one, as far as float32 or a text tells; False for one on its way."""
    if isinstance(one, Pending) or isinstance(other, Pending):
        return one is other
    if one == other or (one != one and other != other):  # noqa: PLR0124 - NaN
        return True
    return abs(one - other) <= max(_TOLERANCE * max(abs(one), abs(other)), rounding)


class RecentValue(NamedTuple):
    """A value that those of other sources are compared with.

    Attributes:
        x: None where the source counted by itself, so that another source may have another x.
        value: the number.
        source: where it came from first.
        repeated_by: the sources that it came from once more.
    """

    x: float | None
    value: float
    source: str
    repeated_by: tuple[str, ...] = ()


class LoggedName:
    """Group and name of a metric, which the series of its sources have in common.

    Attributes:
        owner: the source whose series is the plain one; the others have the attribute ``source``.
        is_shared: a second source records under the name.
        recent: the last values from all sources; empty as long as there is one source.
        only_source: x and value of its last values, as long as there is one source; x is NaN where it counted.
    """

    __slots__ = ("is_shared", "only_source", "owner", "recent")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_shared = False
        self.recent: tuple[RecentValue, ...] = ()
        self.only_source = (array("d"), array("d"))

    def recent_values(self) -> list[RecentValue]:
        """Return the last values from all sources, in the order of recording."""
        if self.recent:
            return list(self.recent)
        pairs = zip(*self.only_source, strict=True)
        return [RecentValue(x if isfinite(x) else None, value, self.owner) for x, value in pairs]


class LoggedSeries:
    """A series: the values of one source under a name. Its gauge follows it.

    Args:
        place: group and metric.
        source: where the values come from.
        name: shared with the series of other sources.
        gauge: shows the last value.
        fold: makes points of the rows that wait; its argument is how many seconds it may wait for another thread.

    Attributes:
        attributes: those that distinguish it from other series of its name.
        x: of the last value.
        branch: how often x has gone back.
        last: the time of the last value in seconds since 1970, and that value; None before the first.
    """

    __slots__ = ("_fold", "_shown", "attributes", "branch", "gauge", "group", "last", "metric", "name", "source", "x")

    def __init__(
        self,
        place: tuple[str, str],
        source: str,
        name: LoggedName,
        gauge: LastValue,
        fold: Callable[[float], object],
    ) -> None:
        self.group, self.metric = place
        self.source = source
        self.name = name
        self.attributes: Attributes = () if source == name.owner else (("source", source),)
        self.x = -inf
        self.branch = first_branch()
        self.last: tuple[float, Number] | None = None
        self._shown: tuple[float, Number] | None = None
        self._fold = fold
        self.gauge = gauge
        gauge.follow(self)

    def newest(self) -> float:
        """Return when the last value was recorded."""
        self._fold(0.0)
        return 0.0 if self.last is None else self.last[0]

    def unseen(self) -> tuple[float, float] | None:
        """Return when the last value was recorded, and that value; None where the gauge has it."""
        self._fold(FOLD_WAIT)
        last = self.last
        if last is self._shown:
            return None
        self._shown = last
        return last


class KeySet:
    """The series that the values of a row belong to.

    Args:
        series: in the order of the values; None for a value whose name is one too many, which is dropped.
        is_bridged: the rows are those of a bridge, see :data:`Row`.

    Attributes:
        columns: the place of each series' value in a row.
        dropped: how many values of a row are dropped.
    """

    __slots__ = ("_series", "columns", "dropped", "is_bridged")

    def __init__(self, series: Sequence[LoggedSeries | None], *, is_bridged: bool) -> None:
        self._series = tuple(series)
        self.columns = {each: column for column, each in enumerate(self._series, _FIRST_VALUE) if each is not None}
        self.dropped = len(self._series) - len(self.columns)
        self.is_bridged = is_bridged

    def read(self, values: Sequence[object]) -> list[Any]:
        """Return values as numbers; any other object is counted, and None here."""
        numbers: list[Any] = []
        for series, value in zip(self._series, values, strict=True):
            if series is None:
                numbers.append(None)
            elif value.__class__ is float or value.__class__ is int:
                numbers.append(value)
            else:
                numbers.append(series.gauge.losses.read(value))
        return numbers


class Part(NamedTuple):
    """Points of series that are in the same rows, and in the same branch.

    Attributes:
        values: of the first series, then of the second, and so on.
    """

    series: tuple[LoggedSeries, ...]
    branch: int
    times: array[int]
    x: array[float]
    values: array[float]

    @property
    def cost(self) -> int:
        """The memory that it takes, counted in values."""
        return len(self.values) + _PART_COST

    def points(self) -> PackedPoints:
        """Return the points as they leave."""
        first = self.series[0]
        metrics = tuple([series.metric for series in self.series])
        return PackedPoints(
            metrics, first.group, first.attributes, "", self.branch, self.times, self.x, self.values, {}
        )


class _JoinedPart:
    """Parts of the same series and branch that become one."""

    __slots__ = ("first", "parts", "size")

    def __init__(self, first: Part) -> None:
        self.first = first
        self.parts = [first]
        self.size = len(first.values)

    def takes(self, part: Part) -> bool:
        """Tell whether a part belongs here."""
        return part.series == self.first.series and part.branch == self.first.branch and self.size < RECORD_VALUES

    def add(self, part: Part) -> None:
        """Add a part."""
        self.parts.append(part)
        self.size += len(part.values)

    def as_part(self) -> Part:
        """Return all of them as one part."""
        if len(self.parts) == 1:
            return self.first
        times = array("q")
        x = array("d")
        for part in self.parts:
            times += part.times
            x += part.x
        values = array("d")
        for place in range(len(self.first.series)):
            for part in self.parts:
                rows = len(part.times)
                values += part.values[place * rows : (place + 1) * rows]
        return Part(self.first.series, self.first.branch, times, x, values)


def join(parts: Sequence[Part]) -> list[Part]:
    """Return the points in fewer parts, each of them not too large; the points of each series keep their order."""
    joined: list[_JoinedPart] = []
    newest: dict[LoggedSeries, _JoinedPart] = {}
    for part in parts:
        before = newest.get(part.series[0])
        if before is not None and before.takes(part) and all(newest[series] is before for series in part.series):
            before.add(part)
            continue
        made = _JoinedPart(part)
        joined.append(made)
        newest.update(dict.fromkeys(part.series, made))
    return [each.as_part() for each in joined]


class FoldedRows:
    """The points that rows become, and the new state of their series, which :meth:`apply` puts into effect.

    Nothing that others see changes before that, so a fold that is interrupted can be begun again.

    Args:
        rows: in the order of recording.
        calls: the number of calls of ``log()`` without a step before them.

    Raises:
        OnItsWayError: a value has not arrived yet.

    Attributes:
        count: the number of rows.
        parts: their points.
        calls: the number of calls of ``log()`` without a step so far.
        tokens: the sum of the values of ``tokens``.
        dropped: how many values have a name that is one too many.
        repeated: how many values another source had recorded already, by source.
    """

    def __init__(self, rows: Sequence[Row], calls: int) -> None:
        self.count = len(rows)
        self.calls = calls
        self.tokens = 0
        self.dropped = 0
        self.parts: list[Part] = []
        self.repeated: dict[str, int] = {}
        self._rows = rows
        self._shortest = list(zip(*rows, strict=False))  # columns, as many as the shortest row has
        self._key_sets: Sequence[KeySet] = self._shortest[0]
        self._times: Sequence[int] = self._shortest[1]
        self._given_xs: Sequence[float | None] = self._shortest[2]
        self._xs = self._numbered()
        self._series: list[tuple[LoggedSeries, float, int, tuple[float, Number]]] = []
        self._only_source: list[tuple[LoggedName, tuple[array[float], array[float]]]] = []
        self._recent: list[tuple[LoggedName, list[RecentValue]]] = []
        self._nonfinite: list[tuple[SeriesLosses, int]] = []
        self._fold()

    def apply(self) -> None:
        """Put the new state into effect; after an interrupt, once more."""
        for series, x, branch, last in self._series:
            series.x = x
            series.branch = branch
            series.last = last
        for name, columns in self._only_source:
            name.only_source = columns
        for name, values in self._recent:
            name.recent = tuple(values)
        nonfinite, self._nonfinite = self._nonfinite, []
        for losses, number in nonfinite:
            losses.nonfinite += number

    def _numbered(self) -> Sequence[float]:
        """Return each x, with the number of earlier calls in place of None."""
        if None not in self._given_xs:
            return cast("Sequence[float]", self._given_xs)
        numbered = []
        for x in self._given_xs:
            numbered.append(self.calls if x is None else x)
            self.calls += x is None
        return numbered

    def _fold(self) -> None:
        rows_of = self._rows_by_key_set()
        self.dropped = sum(key_set.dropped * len(rows) for key_set, rows in rows_of.items())
        sets_of: dict[LoggedSeries, list[KeySet]] = {}
        for key_set in rows_of:
            for series in key_set.columns:
                sets_of.setdefault(series, []).append(key_set)
        # Series that are in the same rows are folded together: mostly all that a call logs.
        together: dict[tuple[KeySet, ...], list[LoggedSeries]] = {}
        shared: dict[LoggedName, list[LoggedSeries]] = {}
        for series, key_sets in sets_of.items():
            if series.name.is_shared:
                shared.setdefault(series.name, []).append(series)
            else:
                together.setdefault(tuple(key_sets), []).append(series)
        for sets, some in together.items():
            rows = rows_of[sets[0]] if len(sets) == 1 else sorted(chain(*[rows_of[key_set] for key_set in sets]))
            self._fold_series(some, rows, self._columns(sets, some, rows))
        for name, of_name in shared.items():
            self._fold_shared(name, {key_set: series for series in of_name for key_set in sets_of[series]})

    def _rows_by_key_set(self) -> dict[KeySet, Sequence[int]]:
        first = self._key_sets[0]
        if self._key_sets.count(first) == self.count:
            return {first: range(self.count)}
        rows: dict[KeySet, list[int]] = {}
        for row, key_set in enumerate(self._key_sets):
            rows.setdefault(key_set, []).append(row)
        return dict(rows)

    def _columns(
        self, key_sets: Sequence[KeySet], several: Sequence[LoggedSeries], rows: Sequence[int]
    ) -> Iterator[Sequence[Any]]:
        """Yield the values of each series in some rows."""
        if len(key_sets) == 1:
            columns = self._shortest
            if len(rows) < self.count:
                columns = list(zip(*[self._rows[row] for row in rows], strict=True))
            for series in several:
                yield columns[key_sets[0].columns[series]]
            return
        for series in several:
            column_of = {key_set: key_set.columns[series] for key_set in key_sets}
            yield [self._rows[row][column_of[self._key_sets[row]]] for row in rows]

    def _fold_series(
        self, several: Sequence[LoggedSeries], rows: Sequence[int], columns: Iterable[Sequence[Any]]
    ) -> None:
        """Fold series that are in the same rows: those that went on alike so far become one part."""
        by_state: dict[tuple[Any, ...], list[tuple[LoggedSeries, Number, array[float]]]] = {}
        for series, column in zip(several, columns, strict=True):
            numbers = _numbers(column)
            if numbers is not None:
                state = (series.group, series.attributes, series.x, series.branch)
                by_state.setdefault(state, []).append((series, column[-1], numbers))
                continue
            readable = [row for row, value in zip(rows, column, strict=True) if value is not None]
            if readable:
                self._fold_series([series], readable, [[value for value in column if value is not None]])
        for found in by_state.values():
            self._add_parts(found, rows)

    def _add_parts(self, several: Sequence[tuple[LoggedSeries, Number, array[float]]], rows: Sequence[int]) -> None:
        times = array("q", _chosen(self._times, rows))
        x = _floats(_chosen(self._xs, rows))
        first = several[0][0]
        branch = first.branch
        for branch, begin, end in _branches(x, first.x, first.branch):
            values = array("d")
            for _, _, numbers in several:
                values += numbers[begin:end]
            together = tuple([series for series, _, _ in several])
            self.parts.append(Part(together, branch, times[begin:end], x[begin:end], values))
        for series, last, numbers in several:
            self._series.append((series, x[-1], branch, (times[-1] / 1e9, last)))
            if not series.name.is_shared:
                self._remember(series.name, rows[-_REMEMBERED:], numbers[-_REMEMBERED:])
            total = sum(numbers)
            if total - total:  # NaN or infinite
                self._nonfinite.append((series.gauge.losses, sum(not isfinite(number) for number in numbers)))
            if series.metric == TOKENS and not series.group and series.source == LOG:
                self.tokens += sum(int(number) for number in numbers if 0 < number < inf)

    def _remember(self, name: LoggedName, rows: Sequence[int], numbers: array[float]) -> None:
        """Remember the last values of a name's only source, for another one that may come."""
        xs_given = self._given_xs[rows[0] : rows[-1] + 1]
        if len(xs_given) > len(rows) or self._key_sets[rows[0]].is_bridged:
            xs_given = [self._known_x(row) for row in rows]
        known = _floats([nan if x is None else x for x in xs_given])
        xs, values = name.only_source
        self._only_source.append((name, ((xs + known)[-_REMEMBERED:], (values + numbers)[-_REMEMBERED:])))

    def _fold_shared(self, name: LoggedName, series_of: Mapping[KeySet, LoggedSeries]) -> None:
        """Fold the series of one name: a value that another source has recorded already is left out."""
        recent = name.recent_values()
        kept: dict[LoggedSeries, list[int]] = {}
        for row, key_set in enumerate(self._key_sets):
            series = series_of.get(key_set)
            value = None if series is None else self._rows[row][key_set.columns[series]]
            if series is None or value is None:
                continue
            if isinstance(value, Pending):
                raise OnItsWayError
            x = self._known_x(row)
            rounding = self._rows[row][-1] if key_set.is_bridged else 0.0
            if _repeats(recent, RecentValue(x, value, series.source), rounding):
                self.repeated[series.source] = self.repeated.get(series.source, 0) + 1
                continue
            recent.append(RecentValue(x, value, series.source))
            del recent[:-_REMEMBERED]
            kept.setdefault(series, []).append(row)
        for series, rows in kept.items():
            values = [self._rows[row][self._key_sets[row].columns[series]] for row in rows]
            self._fold_series([series], rows, [values])
        self._recent.append((name, recent))

    def _known_x(self, row: int) -> float | None:
        """Return the x that the caller gave; None where it was counted."""
        if not self._key_sets[row].is_bridged:
            return self._given_xs[row]
        x: float | None = self._rows[row][_FIRST_VALUE + 1]
        return x


def _chosen(items: Sequence[Item], places: Sequence[int]) -> Sequence[Item]:
    """Return the items at some places, which ascend."""
    return items if len(places) == len(items) else [items[place] for place in places]


def _repeats(recent: list[RecentValue], new: RecentValue, rounding: float) -> bool:
    """Tell whether another source has recorded a value already; each value of its stands for one, and is marked."""
    for place, known in enumerate(recent):
        if new.source in (known.source, *known.repeated_by) or not alike(known.value, new.value, rounding):
            continue
        if known.x is None or new.x is None or known.x == new.x:
            recent[place] = known._replace(repeated_by=(*known.repeated_by, new.source))
            return True
    return False


def _numbers(column: Sequence[Any]) -> array[float] | None:
    """Return values as floats; None where some are missing.

    Raises:
        OnItsWayError: one has not arrived yet.
    """
    try:
        return array("d", column)
    except (TypeError, OverflowError):  # a value on its way or missing, or an integer beyond the range of floats
        if any(isinstance(value, Pending) for value in column):
            raise OnItsWayError from None
        return None if None in column else array("d", map(as_float, column))


def _floats(numbers: Sequence[float]) -> array[float]:
    try:
        return array("d", numbers)
    except OverflowError:
        return array("d", map(as_float, numbers))


def _branches(x: array[float], before: float, branch: int) -> Iterator[tuple[int, int, int]]:
    """Yield each branch with its first row and the one behind its last; a new one begins where x goes back."""
    xs = x.tolist()
    if xs[0] >= before and sorted(xs) == xs:
        yield branch, 0, len(x)
        return
    begin = 0
    for row in compress(count(), map(lt, xs, [before, *xs])):
        if row > begin:
            yield branch, begin, row
        begin = row
        branch += 1
    yield branch, begin, len(x)
