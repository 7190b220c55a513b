"""The table of runs: filtered, sorted and grouped here, and sent a window at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from operator import attrgetter
from typing import Any, NamedTuple

from tachograph.runs import FilterError, StoreError, column_value, parse_filter, sort_by, sort_key, to_browser_value
from tachograph.studio._api import Question, Unanswered
from tachograph.studio.overview import Overview, RunEntry

WITHIN = 0.25  # seconds in which runs are read for one answer; the page asks again for the rest
MOST_ROWS = 500  # in one answer
MOST_COLUMNS = 200
_FOUND = 8  # questions whose rows are kept: of some tabs


class TableQuestion(NamedTuple):
    """How a table is wanted: a filter, a column to sort by, with a minus for the largest first, and one to group by."""

    wanted: str
    sort: str
    group: str


class Row(NamedTuple):
    """A row: a run, or the head of a group with its value and the number of its runs."""

    run: RunEntry | None
    value: Any = None
    many: int = 0


class Placed(NamedTuple):
    """A run's row with that by which it is ordered: its time, the order of the column's value, the group's value."""

    row: Row
    newest: tuple[bool, int]
    order: tuple[bool, Any] | None
    group: Any


class FoundRows:
    """The rows for a question: found among all runs once, then among those that have changed.

    Raises:
        FilterError: the filter cannot be read.
    """

    def __init__(self, asked: TableQuestion) -> None:
        self._filter = parse_filter(asked.wanted)
        self._sort, self._reverse = asked.sort.removeprefix("-"), asked.sort.startswith("-")
        self._group = asked.group
        self._matched: dict[str, Placed] = {}  # by id
        self._rows: Sequence[Row] | None = None

    @property
    def matched(self) -> int:
        """Return the number of runs that match."""
        return len(self._matched)

    def take(self, changed: Iterable[RunEntry], gone: Iterable[str]) -> None:
        """Take runs as they are now, and forget others."""
        for each in changed:
            if self._filter.holds(each.columns):
                self._matched[each.entry["id"]] = self._placed(each)
            else:
                self._matched.pop(each.entry["id"], None)
        for name in gone:
            self._matched.pop(name, None)
        self._rows = None

    def _placed(self, run: RunEntry) -> Placed:
        newest = run.entry["state"] == "running", run.entry["started"]
        order = sort_key(column_value(run.columns, self._sort)) if self._sort else None
        return Placed(
            Row(run), newest, order, _hashable(column_value(run.columns, self._group)) if self._group else None
        )

    def rows(self) -> Sequence[Row]:
        """Return the rows in order."""
        if self._rows is None:
            self._rows = self._ordered()
        return self._rows

    def hint(self, columns: Collection[str]) -> str:
        """Return a sentence about a column that no run has; the empty string where all are known."""
        return self._filter.unknown(columns)

    def _ordered(self) -> list[Row]:
        found = sorted(self._matched.values(), key=attrgetter("newest"), reverse=True)
        if self._sort:
            told = [each for each in found if each.order is not None]
            told.sort(key=attrgetter("order"), reverse=self._reverse)
            found = told + [each for each in found if each.order is None]
        return _grouped(found) if self._group else [each.row for each in found]


class RunsTable:
    """Answers questions about all runs of a store; from several threads at once.

    Args:
        overview: of the store's runs, with their columns.
        run: the hub's own.
        clock: nanoseconds since the epoch.
        writable: whether the page may change runs, as it is told.
    """

    def __init__(self, overview: Overview, run: str, clock: Callable[[], int], *, writable: bool = False) -> None:
        self._overview = overview
        self._own, self._clock, self._writable = run, clock, writable
        self._lock = threading.Lock()
        self._version = -1
        self._entries: dict[str, RunEntry] = {}  # by id
        self._columns: Counter[str] = Counter()
        self._found: dict[TableQuestion, FoundRows] = {}

    def ask(self, question: Question) -> dict[str, Any]:
        """Return a window of the table: ``items`` from ``offset`` on, of ``rows`` in all.

        An item is ``{"run": …, "columns": …}`` or the head of a group, ``{"group": value, "runs": many}``. With
        ``names`` it has the columns that there are, with the number of runs that have each. ``unread`` is the number of
        runs that are not in it yet: ask again.

        Of a filter that cannot be read it is the ``error``, and ``at`` which character: a filter is wrong while it is
        written, and a browser would log any other status as an error.

        Raises:
            Unanswered: the store cannot be read.
        """
        asked = TableQuestion(*(question.text(name) or "" for name in ("filter", "sort", "group")))
        columns = question.texts("column")[:MOST_COLUMNS]
        offset = question.whole("offset", 0, most=10**9)
        limit = question.whole("limit", 100, most=MOST_ROWS)
        with self._lock:
            self._renew()
            try:
                found = self._find(asked)
            except FilterError as error:
                return {"error": str(error), "at": error.position}
            all_rows, matched = found.rows(), found.matched
            hint = "" if self._overview.unread else found.hint(self._columns)
            answer: dict[str, Any] = {"now": self._clock(), "run": self._own, "writable": self._writable}
            answer |= {"total": len(self._entries), "unread": self._overview.unread, "version": self._version}
            named = {"columns": dict(self._columns)} if question.text("names") else {}
        rows = [_item(row, columns) for row in all_rows[offset : offset + limit]]
        hinted = {"hint": hint} if hint else {}
        return {**answer, **hinted, **named, "matched": matched, "rows": len(all_rows), "items": rows}

    def _renew(self) -> None:
        try:
            entries = self._overview.entries(WITHIN)
        except StoreError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"{error.strerror} ({error.filename})") from error
        version = self._overview.version
        if version == self._version:
            return
        changed = [each for each in entries if self._differs(each)]
        gone = []
        if len(self._entries) > len(entries):
            gone = list(self._entries.keys() - {each.entry["id"] for each in entries})
        for name in gone:
            self._columns.subtract(self._entries.pop(name).columns.keys())
        self._columns = +self._columns
        for found in self._found.values():
            found.take(changed, gone)
        self._version = version

    def _differs(self, each: RunEntry) -> bool:
        """Keep a run, and tell whether it is another than before."""
        name = each.entry["id"]
        before = self._entries.get(name)
        self._entries[name] = each
        if before is not None and before.columns is each.columns:
            return False
        if before is not None:
            self._columns.subtract(before.columns.keys())
        self._columns.update(each.columns.keys())
        return True

    def _find(self, asked: TableQuestion) -> FoundRows:
        found = self._found.get(asked)
        if found is None:
            found = FoundRows(asked)
            found.take(self._entries.values(), ())
            if len(self._found) >= _FOUND:
                self._found.pop(next(iter(self._found)))
            self._found[asked] = found
        return found


def _grouped(found: Iterable[Placed]) -> list[Row]:
    """Return rows by their groups, the first of each with a head; runs without a value come last."""
    groups: dict[Any, list[Row]] = {}
    for each in found:
        groups.setdefault(each.group, []).append(each.row)
    by_value = sort_by(groups.items(), lambda group: group[0])
    return [row for value, of in by_value for row in (Row(None, value, len(of)), *of)]


def _hashable(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value) if isinstance(value, list | dict) else value


def _item(row: Row, columns: Iterable[str]) -> dict[str, Any]:
    if row.run is None:
        return {"group": to_browser_value(row.value), "runs": row.many}
    told: Mapping[str, Any] = row.run.columns
    return {"run": row.run.entry, "columns": {name: to_browser_value(column_value(told, name)) for name in columns}}
