"""Runs as text: tables for a terminal, CSV for points, JSON lines for everything.

Floats are written so that they read back bit for bit.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from math import isnan
from typing import TYPE_CHECKING, Any, TextIO

from tachograph.runs.blocks import spell_nonfinite
from tachograph.runs.buckets import HistogramValues
from tachograph.runs.members import NODE, read_extent
from tachograph.runs.recorded_series import HEADERS, Kind, RecordedSeries
from tachograph.runs.run import Run

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

if TYPE_CHECKING:
    from tachograph.runs.kept_calls import CallsOfFunction, ProfiledCall
    from tachograph.runs.recorded import CurveSummary, Process, RecordedMetric

_UNIT = 1024
_FEW = 8
_FEW_CALLS, _SHORT = 3, 120  # of a function; characters of a message
_OWN = frozenset({"tachograph", "tachograph.hardware"})  # groups


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write rows as CSV with a header: NaN as ``nan``, infinities as ``inf`` and ``-inf``, None as an empty cell.

    A text that a spreadsheet would take for a formula begins with an apostrophe (OWASP, "CSV Injection").
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)


def _text(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def write_jsonl(lines: Iterable[dict[str, Any]], out: TextIO) -> None:
    """Write a JSON object a line; NaN and infinities are strings, as JSON has none: ProtoJSON, "Representation"."""
    out.writelines(json.dumps(spell_nonfinite(line), allow_nan=False, ensure_ascii=False) + "\n" for line in lines)


def export_lines(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the lines of everything in a run: definitions, points in recording order within a metric, samples, events.

    Samples are those of counters and histograms, and of gauges that have no points.
    """
    for definition in run.definitions():
        yield {"kind": "definition", **definition}
    yield from export_metric_lines(run, None, "curve")
    for kind in HEADERS:
        yield from export_metric_lines(run, None, kind)
    for event in run.events():
        named = event._asdict()
        del named["number"]
        named["trace_id"], named["span_id"] = f"{event.trace_id:032x}", f"{event.span_id:016x}"
        if not event.trace_id:
            del named["trace_id"], named["span_id"]
        yield {"kind": "event", "rank": run.ranks.get(event.stream), **named}


def export_metric_lines(run: Run, name: str | None, kind: Kind | None) -> Iterator[dict[str, Any]]:
    """Yield the lines of one metric, or of all of a kind: see :meth:`Run.table` on both.

    Raises:
        LookupError: there is no such metric, when the first line is asked for.
    """
    wanted = kind or next(iter([] if name is None else run.kinds(name)), "curve")
    if wanted != "curve":
        columns, rows = run.table(name, kind=wanted)
        for cells in rows:
            line = dict(zip(columns, cells, strict=True))
            yield {"kind": wanted, **line, "attributes": json.loads(line["attributes"] or "{}")}
        return
    for point in run.points(name):
        named = point._asdict()
        more = named.pop("more")
        yield {"kind": "point", **named, **{key: value for key, value in more.items() if key not in named}}


def describe_run(run: Run) -> str:
    """Return the description of one run: its processes, metrics, histograms, counters, losses and events."""
    processes, metrics = run.processes(), run.metrics()
    events = Counter(event.name or "(no name)" for event in run.events())
    head = [f"run {run.id}", f"file {run.path}"]
    first, last, _ = read_extent(run._file.rows, 0)  # noqa: SLF001 - not for users: Summary has it
    if first:
        head.append(f"from {time_of(first)} to {time_of(last)}")
    head.append(str(run.ended))
    if thinned := run.curves_thinned:
        head.append(f"{thinned:,} {'curve is' if thinned == 1 else 'curves are'} thinned (with their extremes)")
    words = {"name": run.name, "tags": ", ".join(run.tags)}
    head += [f"{what} {said}" for what, said in words.items() if said]
    parts = ["\n".join(map(printable, head)) + "\n"]
    if run.notes:
        parts.append("".join(f"{printable(line.expandtabs())}\n" for line in run.notes.split("\n")))
    parts += _processes(run, processes)
    for title, found in (("PROGRAM", _program(run)), ("CONFIG", run.config), ("SUMMARY", run.summary)):
        if found:
            rows = [[key, value if isinstance(value, str) else json.dumps(value)] for key, value in found.items()]
            parts.append(table([[title, "VALUE"], *rows]))
    if metrics:
        parts.append(_metrics(metrics, run.summaries()))
    parts += _series(run)
    parts += _calls(run.calls)
    lost = [[each.reason, each.destination or "-", f"{each.points:,}", each.why] for each in run.losses]
    counted = [[name, f"{count:,}"] for name, count in sorted(events.items())]
    tables = ((["LOST", "DESTINATION", "POINTS", ""], lost, 2), (["EVENT", "COUNT"], counted, 1))
    parts += [table([titles, *rows], right=(count,)) for titles, rows, count in tables if rows]
    return "\n".join(parts)


def _processes(run: Run, processes: Sequence[Process]) -> list[str]:
    """Return the table of a run's processes, and that of those which failed."""
    rows = [["RANK", "ROLE", "PID", "STARTS", "LAST EXPORT", "ENDED"]]
    for process in processes:
        rank = "-" if process.rank is None else str(process.rank)
        numbers = [str(process.pid or "-"), str(process.starts)]
        rows.append([rank, process.role or "-", *numbers, time_of(process.last_export), process.ended or "-"])
    failed = [
        ["FAILED", "PID", "TIME", "EXCEPTION"],
        *(
            [each.process or each.role or "-", str(each.pid), time_of(each.time_unix_nano), str(each)]
            for each in run.failures
        ),
    ]
    return [table(found, right=right) for found, right in ((rows, (0, 2, 3)), (failed, (1,))) if len(found) > 1]


def _calls(found: Sequence[CallsOfFunction]) -> list[str]:
    """Return the tables of the slowest calls of profiled functions, and of the last that failed: a few of each."""
    slowest = [_call(call) for each in found for call in each.slowest[:_FEW_CALLS]]
    failed = [_call(call) for each in found for call in each.failed[:_FEW_CALLS]]
    head = ["SECONDS", "RANK", "TIME", "ERROR"]
    tables = (("SLOWEST CALLS", slowest), ("FAILED CALLS", failed))
    return [table([[title, *head], *rows], right=(1, 2)) for title, rows in tables if rows]


def _call(call: ProfiledCall) -> list[str]:
    rank = call.role or "-" if call.rank is None else str(call.rank)
    said = ": ".join(filter(None, (call.error, " ".join(call.message.split())[:_SHORT])))
    return [call.function, f"{call.seconds:.4g}", rank, time_of(call.time_unix_nano), said or "-"]


def _metrics(metrics: Sequence[RecordedMetric], summaries: Iterable[CurveSummary]) -> str:
    """Return the table of a run's metrics, each with the newest and the extreme values of its curves."""
    of: dict[tuple[str, str], list[CurveSummary]] = {}
    for summary in summaries:
        of.setdefault((summary.curve.metric, summary.curve.group), []).append(summary)
    rows = [["METRIC", "GROUP", "UNITS", "RANKS", "BRANCHES", "POINTS", "X", "LAST", "MIN", "MAX", "NOT FINITE"]]
    for metric in metrics:
        counts = [f"{metric.branches:,}", f"{metric.points:,}", f"{metric.x0:.6g} to {metric.x1:.6g}"]
        named = [metric.name, metric.group or "-", metric.units or "-", _ranks(metric.ranks)]
        curves = of.get((metric.name, metric.group), [])
        last = max((each.last for each in curves if each.last), key=lambda each: each.time_unix_nano, default=None)
        low = min((each.min for each in curves if each.min), key=lambda each: each.value, default=None)
        high = max((each.max for each in curves if each.max), key=lambda each: each.value, default=None)
        extremes = ["-" if each is None else f"{each.value:.6g} at {each.x:.6g}" for each in (low, high)]
        newest = "-" if last is None else f"{last.value:.6g}"
        rows.append([*named, *counts, newest, *extremes, f"{metric.nonfinite:,}"])
    return table(rows, right=(4, 5, 7, 8, 9, 10))


def _series(run: Run) -> list[str]:
    """Return the tables of a run's histograms and counters, each over all ranks; those of the machine are left out."""
    of: dict[tuple[str, ...], list[RecordedSeries]] = {}
    for each in run.series():
        if each.role != NODE and each.group not in _OWN and each.value is not None:
            attributes = ", ".join(f"{key}={value}" for key, value in each.attributes.items())
            of.setdefault((each.kind, each.name, each.group, each.units, attributes), []).append(each)
    histograms = [["HISTOGRAM", "GROUP", "UNITS", "RANKS", "COUNT", "MEAN", "P50", "P99", "MAX", "ERROR", "ATTRIBUTES"]]
    counters = [["COUNTER", "GROUP", "UNITS", "RANKS", "TOTAL", "ATTRIBUTES"]]
    for (kind, name, group, units, attributes), found in of.items():
        named = [name, group or "-", units or "-", _ranks(sorted({each.rank for each in found}, key=_place))]
        values = [each.value for each in found if isinstance(each.value, HistogramValues)]
        if values:
            joined = reduce(HistogramValues.plus, values)
            off = joined.error((0.5, 0.99))
            numbers = [joined.mean, *joined.quantiles((0.5, 0.99)), joined.maximum]
            known = ["-" if isnan(value) else f"{value:.6g}" for value in numbers]
            said = "-" if isnan(off) else f"{100 * off:.2g} %" if off < 1 else "rough"
            histograms.append([*named, f"{joined.count:,}", *known, said, attributes])
        elif kind == "counter":
            total = sum(each.value for each in found if isinstance(each.value, int | float))
            counters.append([*named, f"{total:,.10g}", attributes])
    tables = ((histograms, (4, 5, 6, 7, 8, 9)), (counters, (4,)))
    return [table(rows, right=right) for rows, right in tables if len(rows) > 1]


def _place(rank: int | None) -> tuple[bool, int]:
    return rank is None, rank or 0


def _ranks(ranks: Sequence[int | None]) -> str:
    return ",".join("-" if rank is None else str(rank) for rank in ranks[:_FEW]) + ",..." * (len(ranks) > _FEW)


def _program(run: Run) -> dict[str, Any]:
    """Return the facts about a run's newest start, its command line as a shell would take it."""
    found: dict[str, Any] = dict(run.program)
    if isinstance(found.get("argv"), list):
        found["argv"] = shlex.join(map(str, found["argv"]))
    earlier = len(run.programs) - 1
    return {**found, "earlier starts": earlier} if earlier > 0 else found


def printable(line: str) -> str:
    """Return a line with a question mark for each control character."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows as aligned text; the columns ``right`` are right-aligned."""
    safe = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in safe
    ]
    return "\n".join(lines) + "\n"


def time_of(nanoseconds: int) -> str:
    """Return a time to the second in the local zone with its offset, as :mod:`tachograph.runs.filter` parses it."""
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000).astimezone().strftime("%Y-%m-%d %H:%M:%S%z")


def format_size(count: int) -> str:
    """Return a number of bytes with a unit."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= _UNIT and len(units) > 1:
        size /= _UNIT
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
