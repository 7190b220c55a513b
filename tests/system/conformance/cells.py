"""Cells of the table: their marks, and the total losses of all rows that share a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expected import Expected, Lost
from rows import Counted, Differently, Later, Row, Without
from table import has_torch, shared
from ways import WayName

_WORDS = {Counted: "counted", Differently: "✓", Without: "n/a", Later: "later"}


def word_of(row: Row, way: WayName) -> str:
    """Return the mark of a cell."""
    cell = row.cell(way)
    return _WORDS.get(type(cell), "✓")


def note_of(row: Row, way: WayName) -> str:
    """Return the note of a cell, or an empty string."""
    cell = row.cell(way)
    if isinstance(cell, Later):
        return cell.topic
    if isinstance(cell, Without):
        return cell.why
    return "" if isinstance(cell, tuple) else cell.why


def marks(row: Row, way: WayName) -> list[pytest.MarkDecorator]:
    """Return the pytest marks of a cell, such as a strict expected failure for a missing feature."""
    found: list[pytest.MarkDecorator] = []
    if row.torch:
        found += [pytest.mark.torch, pytest.mark.skipif(not has_torch(), reason="NOT TESTED: PyTorch is not installed")]
    if isinstance(row.cell(way), Later):
        found.append(pytest.mark.xfail(strict=True, reason=f"{word_of(row, way)}: {note_of(row, way)}"))
    return found


def expected(row: Row, way: WayName) -> tuple[Expected, ...]:
    """Return the data of a row that has to arrive at a destination; empty if the row does not apply."""
    cell = row.cell(way)
    if isinstance(cell, Without):
        return ()
    return cell.expected if isinstance(cell, Counted | Differently) else row.carried(way)


def totals(lost: Lost, way: WayName, row: Row) -> Lost:
    """Return a loss summed over all rows of its process, because a counter does not tell which row it belongs to."""
    beside = shared() if row.ends == "exit" else [row]
    same = [
        each
        for other in beside
        for each in expected(other, way)
        if isinstance(each, Lost) and (each.counter, each.reason) == (lost.counter, lost.reason)
    ]
    return replace(lost, count=sum(each.count for each in same))
