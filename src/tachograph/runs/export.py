"""Runs as text: CSV for points, JSON lines for everything. Floats are written so that they read back bit for bit."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, TextIO

from tachograph.runs.run import HEADER, row

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

if TYPE_CHECKING:
    from tachograph.runs.recorded import Point
    from tachograph.runs.run import Run


def write_csv(points: Iterable[Point], out: TextIO) -> None:
    """Write points as CSV with a header: NaN as ``nan``, infinities as ``inf`` and ``-inf``, nothing as nothing.

    A text that a spreadsheet would take for a formula begins with an apostrophe (OWASP, "CSV Injection").
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([_text(cell) if isinstance(cell, str) else cell for cell in row(point)] for point in points)


def _text(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def write_jsonl(lines: Iterable[dict[str, Any]], out: TextIO) -> None:
    """Write a JSON object a line; NaN and infinities are strings, as JSON has none: ProtoJSON, "Representation"."""
    out.writelines(json.dumps(_spelled(line), allow_nan=False, ensure_ascii=False) + "\n" for line in lines)


def lines(run: Run, points: Iterable[Point], *, everything: bool) -> Iterator[dict[str, Any]]:
    """Yield what there is: definitions and points, each point of a metric in recording order, and events.

    Args:
        run: to read.
        points: of this run.
        everything: definitions and events, too.
    """
    if everything:
        for definition in run.definitions():
            yield {"kind": "definition", **definition}
    for point in points:
        named = point._asdict()
        more = named.pop("more")
        yield {"kind": "point", **named, **{key: value for key, value in more.items() if key not in named}}
    if not everything:
        return
    for event in run.events():
        named = event._asdict()
        del named["number"]
        named["trace_id"], named["span_id"] = f"{event.trace_id:032x}", f"{event.span_id:016x}"
        if not event.trace_id:
            del named["trace_id"], named["span_id"]
        yield {"kind": "event", "rank": run.ranks.get(event.stream), **named}


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value
