"""The conformance table in docs/conformance.md: documented behaviors with each destination."""

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
    """The data that the row's program records arrives exactly, or its loss is counted and documented."""
    found = arrived(way, row)
    if found.failed:
        pytest.fail(found.failed, pytrace=False)
    wanted = [totals(each, way, row) if isinstance(each, Lost) else each for each in expected(row, way)]
    assert wanted
    problems = [problem for each in wanted for problem in each.problems(found)]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_no_cell_is_silent() -> None:
    """Each cell without a check mark has a note, and each row has a unique name and a sentence."""
    silent = [(row.name, way) for row in ROWS for way in WAYS if word_of(row, way) != "✓" and not note_of(row, way)]
    assert silent == []
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.says.endswith(".") for row in ROWS)


def test_the_page_says_what_the_tests_say() -> None:
    """docs/conformance.md is up to date; if not, run ``python tests/system/conformance/page.py``."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/system/conformance/page.py"
