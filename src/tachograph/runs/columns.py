"""The columns of a list of runs, by choice: facts about each run, its configuration, its results, its program."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isnan
from typing import Any, TypeVar

from tachograph.runs.catalogue import Summary
from tachograph.runs.export import format_size, table, time_of
from tachograph.runs.file import RunFile, look
from tachograph.runs.filter import column_value, columns_meant, parse_filter
from tachograph.runs.outline import read_outline
from tachograph.runs.run import Run
from tachograph.runs.store import StoreError

RUN_FACTS = (*(name for name in Summary._fields if name != "path"), "program", "notes")
_OF_KEYS = ("config", "summary", "program")  # whose keys are columns, behind a dot
_TIMES = frozenset({"start", "last"})
_SHOWN = 20  # columns that a message names
_KEYS_SHOWN = 4  # keys of the configuration in the overview: a line of a terminal has room for few
_DURATION_UNITS = (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


def choose_runs(
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
        columns: of :data:`RUN_FACTS`, or a key: ``config.lr``, ``summary.accuracy``, ``program.git.commit``,
            ``last.loss``; the part behind the dot will do, as in a filter.
        wanted: a filter, see :mod:`tachograph.runs.filter`; only runs for which it holds are returned.
        sort: the column that they are sorted by, numbers before texts; None leaves them as they are.
        reverse: the largest first, or without ``sort`` the other way round; those without a value, or NaN, come last.

    Raises:
        LookupError: none of the runs has such a column; the message names the nearest one.
        FilterError: the filter cannot be read; a ``ValueError``.
    """
    only = parse_filter(wanted)
    named = [*columns, *([sort] if sort else [])]
    reads = bool(only.terms) or not set(named) <= set(Summary._fields)
    rows = [(each, {**_told(each), **(_read(each) if reads else {})}) for each in runs]
    known = dict.fromkeys([*RUN_FACTS, *(name for _, row in rows for name in row if name != "path")])
    for column in named:
        if not any(name in known for name in columns_meant(column)) and (
            runs or column.partition(".")[0] not in _OF_KEYS
        ):
            names = dict.fromkeys([*known, *(name.partition(".")[2] for name in known)])
            near = get_close_matches(column, names, n=1)
            more = ", ..." if len(known) > _SHOWN else ""
            hint = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join([*known][:_SHOWN])}{more}"
            raise LookupError(f"no run has the column {column!r:.200}: {hint}")
    if unknown := only.unknown(known) if runs else "":
        raise LookupError(unknown)
    rows = [row for row in rows if only.holds(row[1])]
    if sort:
        rows = sort_by(rows, lambda row: column_value(row[1], sort), reverse=reverse)
    elif reverse:
        rows.reverse()
    return [(each, {column: column_value(row, column) for column in columns}) for each, row in rows]


def _told(summary: Summary) -> dict[str, Any]:
    """Return the columns that need no reading of the run's file."""
    seconds = (summary.last - summary.start) / 1e9
    return {**summary._asdict(), "ended": summary.ended.brief, "state": summary.ended.state, "duration": seconds}


def _read(summary: Summary) -> dict[str, Any]:
    """Return the columns that are in the run's file; none where it cannot be read, which its ``problem`` says."""
    try:
        run = Run(summary.id, summary.path, looking=True)
    except StoreError:
        return {}
    found: dict[str, Any] = {"program": run.program_name, "notes": run.notes}
    with contextlib.suppress(sqlite3.DatabaseError), look(RunFile(summary.path, looking=True)) as reading:
        found |= read_outline(reading)
    for name, told in zip(_OF_KEYS, (run.config, run.summary, run.program), strict=True):
        found |= {f"{name}.{key}": value for key, value in told.items()}
    return found


Listed = TypeVar("Listed")


def sort_by(listed: Iterable[Listed], value: Callable[[Listed], Any], *, reverse: bool = False) -> list[Listed]:
    """Return a list by a value of each, numbers before texts; those without a value, or with NaN, come last either way.

    Args:
        listed: see above.
        value: returns the value of one; None for none.
        reverse: the largest first.
    """
    told = [(sort_key(value(each)), each) for each in listed]
    placed = [(order, each) for order, each in told if order is not None]
    placed.sort(key=lambda each: each[0], reverse=reverse)
    return [each for _, each in placed] + [each for order, each in told if order is None]


def sort_key(value: Any) -> tuple[bool, Any] | None:
    """Return that by which values are ordered: numbers before texts; None for no value, and for NaN."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return None
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def key_metric(metrics: Iterable[str]) -> str | None:
    """Return the metric that tells most about a run: a loss, else an accuracy, else a reward; None if there is none.

    The first of ``loss``, ``train/loss``, ``train_loss`` and ``*/loss`` is chosen, else the first name that contains
    ``accuracy`` or ``acc`` as a word, or ``reward``.

    Args:
        metrics: names, with or without their group: ``loss`` or ``train/loss``.
    """
    names = list(metrics)
    for name in ("loss", "train/loss", "train_loss"):
        if name in names:
            return name
    for pattern in (r".*/loss", r"(.*[\W_])?acc(uracy)?([\W_].*)?", r".*reward.*"):
        for name in names:
            if re.fullmatch(pattern, name, re.IGNORECASE):
                return name
    return None


def format_overview(runs: Sequence[Summary], *, now: int | None = None) -> str:
    """Return a line for each run: name, state, start, duration, key metric, and the configuration that differs.

    Args:
        runs: the runs in the order in which they are shown.
        now: nanoseconds since the epoch.
    """
    now = time.time_ns() if now is None else now
    details = [_read(run) for run in runs]
    metrics = [key_metric(name[len("last.") :] for name in row if name.startswith("last.")) for row in details]
    keys = _differing_keys(details)
    named = any(run.name for run in runs)
    tagged = any(run.tags for run in runs)
    metric_names = {metric for metric in metrics if metric is not None}
    value_title = f"LAST {metric_names.pop()}".upper() if len(metric_names) == 1 else "KEY METRIC"
    header = ["RUN", "STATE", "STARTED", "", "DURATION", value_title, *keys]
    header[1:1] = ["NAME"] if named else []
    rows = []
    for run, row, metric in zip(runs, details, metrics, strict=True):
        value = "-" if metric is None else _cell(f"last.{metric}", row[f"last.{metric}"])
        if metric is not None and value_title == "KEY METRIC":
            value = f"{metric} {value}"
        cells = [run.id, run.ended.brief, *started(run.start, now), duration_text((run.last - run.start) / 1e9), value]
        cells[1:1] = [run.name or "-"] if named else []
        cells += [_cell(key, row.get(f"config.{key}")) for key in keys]
        cells += [", ".join(run.tags)] if tagged else []
        cells.append(run.problem or ("in use" if run.in_use else ""))
        rows.append(cells)
    header += ["TAGS"] if tagged else []
    header.append("")
    value_place = header.index(value_title)
    return table([header, *rows], right=[value_place - 1, value_place])


def _differing_keys(details: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first keys of the configuration in which runs differ."""
    keys = dict.fromkeys(name for row in details for name in row if name.startswith("config."))
    differing = [name for name in keys if len({str(row.get(name)) for row in details}) > 1]
    return [name.removeprefix("config.") for name in differing[:_KEYS_SHOWN]]


def started(nanoseconds: int, now: int) -> tuple[str, str]:
    """Return when a run started: relative to now, and as a local time with its offset."""
    return f"{duration_text(max(0, now - nanoseconds) / 1e9)} ago", time_of(nanoseconds)


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: ``42 s``, ``5 min 3 s``, ``2 h 10 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for unit, size, smaller_unit, smaller in _DURATION_UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def format_columns(rows: Sequence[Mapping[str, Any]]) -> str:
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
        return format_size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    parts = value if isinstance(value, list | tuple) else [value]
    return ", ".join(part if isinstance(part, str) else json.dumps(part) for part in parts) or "-"


def columns_as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's columns, ready for JSON: times are ISO 8601, in UTC."""
    return {name: _iso(value) if name in _TIMES else value for name, value in row.items()}


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
