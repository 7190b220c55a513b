"""The table of runs: filtered, sorted and grouped here, and sent a window at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from tachograph.runs.columns import ordered
from tachograph.runs.filter import FilterError, parsed, value_of
from tachograph.runs.store import StoreError
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


class Found(NamedTuple):
    """The rows for a question, and the number of runs among them."""

    rows: Sequence[Row]
    matched: int
    hint: str


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
        self._total = 0
        self._entries: list[RunEntry] = []
        self._columns: dict[str, int] = {}
        self._found: dict[TableQuestion, Found] = {}

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
            found = self._found.get(asked)
            if found is None:
                try:
                    found = self._find(asked)
                except FilterError as error:
                    return {"error": str(error), "at": error.position}
                if len(self._found) >= _FOUND:
                    self._found.pop(next(iter(self._found)))
                self._found[asked] = found
            answer: dict[str, Any] = {"now": self._clock(), "run": self._own, "writable": self._writable}
            answer |= {"total": self._total, "unread": self._overview.unread, "version": self._version}
            named = {"columns": self._columns} if question.text("names") else {}
        rows = [_item(row, columns) for row in found.rows[offset : offset + limit]]
        hint = {"hint": found.hint} if found.hint else {}
        return {**answer, **hint, **named, "matched": found.matched, "rows": len(found.rows), "items": rows}

    def _renew(self) -> None:
        try:
            entries = self._overview.entries(WITHIN)
        except StoreError as error:
            raise Unanswered(HTTPStatus.CONFLICT, f"{error.strerror} ({error.filename})") from error
        if self._overview.version != self._version:
            self._version = self._overview.version
            self._entries = entries
            self._total = len(entries)
            self._found.clear()
            self._columns = {}
            for each in entries:
                for name in each.columns:
                    self._columns[name] = self._columns.get(name, 0) + 1

    def _find(self, asked: TableQuestion) -> Found:
        wanted = parsed(asked.wanted)
        found = [each for each in self._entries if wanted.holds(each.columns)]
        found.sort(key=lambda each: (each.entry["state"] == "running", each.entry["started"]), reverse=True)
        if asked.sort:
            column = asked.sort.removeprefix("-")
            found = ordered(found, lambda each: value_of(each.columns, column), reverse=asked.sort.startswith("-"))
        rows = _grouped(found, asked.group) if asked.group else [Row(each) for each in found]
        return Found(rows, len(found), "" if self._overview.unread else wanted.unknown(self._columns))


def _grouped(found: Sequence[RunEntry], column: str) -> list[Row]:
    """Return rows by a column's value, the first with a head; those without a value come last."""
    groups: dict[Any, list[RunEntry]] = {}
    for each in found:
        value = value_of(each.columns, column)
        groups.setdefault(", ".join(value) if isinstance(value, tuple) else _hashable(value), []).append(each)
    by_value = ordered(groups.items(), lambda group: group[0])
    return [row for value, of in by_value for row in (Row(None, value, len(of)), *(Row(each) for each in of))]


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def _item(row: Row, columns: Iterable[str]) -> dict[str, Any]:
    if row.run is None:
        return {"group": row.value, "runs": row.many}
    told: Mapping[str, Any] = row.run.columns
    return {"run": row.run.entry, "columns": {name: value_of(told, name) for name in columns}}
