"""The columns of a list of runs, by choice: facts about each run, its configuration, its results, its program."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isnan
from typing import Any, TypeVar

from tachograph.runs.catalogue import Summary
from tachograph.runs.export import size_of, table, time_of
from tachograph.runs.file import RunFile, look
from tachograph.runs.filter import parsed
from tachograph.runs.outline import outline
from tachograph.runs.run import Run
from tachograph.runs.store import StoreError

FACTS = (*(name for name in Summary._fields if name != "path"), "program", "notes")
_OF_KEYS = ("config", "summary", "program")  # whose keys are columns, behind a dot
_TIMES = frozenset({"start", "last"})
_SHOWN = 20  # columns that a message names


def chosen(
    runs: Sequence[Summary],
    columns: Sequence[str],
    *,
    wanted: str = "",
    sort: str | None = None,
    reverse: bool = False,
) -> list[tuple[Summary, dict[str, Any]]]:
    """Return runs with their columns; None where a run has no such key.

    Args:
        runs: see above.
        columns: of :data:`FACTS`, or a key: ``config.lr``, ``summary.accuracy``, ``program.git.commit``, ``last.loss``.
        wanted: a filter, see :mod:`tachograph.runs.filter`; only runs for which it holds are returned.
        sort: the column that they are sorted by, numbers before texts; None leaves them as they are.
        reverse: the largest first. Runs without a value, or with NaN, come last either way.

    Raises:
        LookupError: none of the runs has such a column; the message names the nearest one.
        FilterError: the filter cannot be read; a ``ValueError``.
    """
    only = parsed(wanted)
    named = [*columns, *([sort] if sort else [])]
    reads = bool(only.terms) or not set(named) <= set(Summary._fields)
    found = [(each, {**_told(each), **(_read(each) if reads else {})}) for each in runs]
    known = dict.fromkeys([*FACTS, *(name for _, told in found for name in told if name != "path")])
    for column in named:
        if column not in known and (runs or column.partition(".")[0] not in _OF_KEYS):
            near = get_close_matches(column, known, n=1)
            more = ", ..." if len(known) > _SHOWN else ""
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join([*known][:_SHOWN])}{more}"
            raise LookupError(f"no run has the column {column!r:.200}: {hint}")
    if unknown := only.unknown(known) if runs else "":
        raise LookupError(unknown)
    found = [each for each in found if only.holds(each[1])]
    if sort:
        found = ordered(found, lambda each: each[1].get(sort), reverse=reverse)
    return [(each, {column: told.get(column) for column in columns}) for each, told in found]


def _told(summary: Summary) -> dict[str, Any]:
    """Return the columns that need no reading of the run's file."""
    seconds = (summary.last - summary.start) / 1e9
    return {**summary._asdict(), "ended": summary.ended.brief, "state": summary.ended.state, "duration": seconds}


def _read(summary: Summary) -> dict[str, Any]:
    """Return the columns that are in the run's file; none where it cannot be read, which its ``problem`` says."""
    try:
        run = Run(summary.id, summary.path)
    except StoreError:
        return {}
    found: dict[str, Any] = {"program": run.program_name, "notes": run.notes}
    with contextlib.suppress(sqlite3.DatabaseError), look(RunFile(summary.path)) as reading:
        found |= outline(reading)
    for name, told in zip(_OF_KEYS, (run.config, run.summary, run.program), strict=True):
        found |= {f"{name}.{key}": value for key, value in told.items()}
    return found


Listed = TypeVar("Listed")


def ordered(listed: Iterable[Listed], value: Callable[[Listed], Any], *, reverse: bool = False) -> list[Listed]:
    """Return a list by a value of each, numbers before texts; those without a value, or with NaN, come last either way.

    Args:
        listed: see above.
        value: returns the value of one; None for none.
        reverse: the largest first.
    """
    told = [(order_of(value(each)), each) for each in listed]
    placed = [(order, each) for order, each in told if order is not None]
    placed.sort(key=lambda each: each[0], reverse=reverse)
    return [each for _, each in placed] + [each for order, each in told if order is None]


def order_of(value: Any) -> tuple[bool, Any] | None:
    """Return that by which values are ordered: numbers before texts; None for no value, and for NaN."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return None
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def columns_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each run, with its columns."""
    right = [
        place
        for place, name in enumerate(rows[0])
        if name not in _TIMES and all(isinstance(row[name], int | float | None) for row in rows)
    ]
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    return table([[name if "." in name else name.upper() for name in rows[0]], *cells], right)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _TIMES:
        return time_of(value)
    if name == "size":
        return size_of(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    parts = value if isinstance(value, list | tuple) else [value]
    return ", ".join(part if isinstance(part, str) else json.dumps(part) for part in parts) or "-"


def json_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's columns, ready for JSON: times are ISO 8601, in UTC."""
    return {name: _iso(value) if name in _TIMES else value for name, value in row.items()}


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
