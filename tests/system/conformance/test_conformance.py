"""The conformance table: every documented behaviour by every way out, exactly or counted: docs/conformance.md."""

from __future__ import annotations

import pytest

from cells import expected, marks, note_of, totals, word_of
from collected import arrived
from expected import Lost
from page import PAGE, page
from rows import Row, Without
from table import ROWS
from ways import WAYS, WayName

CELLS = [
    pytest.param(
        row, way, id=f"{row.name}-{way}", marks=[*marks(row, way), pytest.mark.xdist_group(f"conformance:{way}")]
    )
    for way in WAYS
    for row in ROWS
    if not isinstance(row.cell(way), Without)
]


@pytest.mark.parametrize(("row", "way"), CELLS)
def test_cell(row: Row, way: WayName) -> None:
    """What the row's program records arrives by this way exactly; or something else does, counted and documented."""
    found = arrived(way, row)
    if found.failed:
        pytest.fail(found.failed, pytrace=False)
    wanted = [totals(each, way, row) if isinstance(each, Lost) else each for each in expected(row, way)]
    assert wanted
    problems = [problem for each in wanted for problem in each.problems(found)]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_no_cell_is_silent() -> None:
    """Each cell that is no plain tick says why; each row has a name of its own, and a sentence."""
    silent = [(row.name, way) for row in ROWS for way in WAYS if word_of(row, way) != "✓" and not note_of(row, way)]
    assert silent == []
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.says.endswith(".") for row in ROWS)


def test_the_page_says_what_the_tests_say() -> None:
    """docs/conformance.md is the table; where it is not: ``python tests/system/conformance/page.py`` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python tests/system/conformance/page.py"
