"""Rows of docs/bridges-conformance.md: values that a program logged compared with those in its run.

A test with the fixture ``conforms`` has a row, which must be the same as on the page. If TACHOGRAPH_TEST_ROWS names a
file, the row is written to it instead; ``python scripts/conformance.py`` makes the page from this file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from places import ROOT
from tachograph.runs.run import Run

ROWS = "TACHOGRAPH_TEST_ROWS"
PAGE = ROOT / "docs" / "bridges-conformance.md"

Curves = Mapping[str, list[Any]]  # x and value of each point; the value as a number or text
Conforms = Callable[..., None]


def row(test: str, program: str, libraries: str, ranks: int, logged: Curves, stored: Curves, config: str) -> str:  # noqa: PLR0917 - a row's cells
    """Return a row of the table; values are compared in single precision, which is what TensorBoard stores."""
    with_x, with_x_here = _values(logged, with_x=True), _values(stored, with_x=True)
    own, here = _values(logged, with_x=False), _values(stored, with_x=False)
    at_their_step = (with_x & with_x_here).total()
    once = sum(count for value, count in own.items() if here[value] == count)
    numbers = (own.total(), here.total(), at_their_step, once)
    counts = " | ".join(f"{number:,}" for number in numbers)
    return f"| {program} | {libraries} | {ranks} | {counts} | {config} | `{test}` |"


def _values(curves: Curves, *, with_x: bool) -> Counter[tuple[str, str, str]]:
    return Counter(
        (name, repr(float(x)) if with_x else "", str(np.float32(float(value))))
        for name, points in curves.items()
        for x, value in points
    )


def of_ranks(curves: Mapping[int, Curves]) -> Curves:
    """Return the curves of several ranks as one mapping."""
    return {f"{rank} {name}": points for rank, of_rank in curves.items() for name, points in of_rank.items()}


def check(
    test: str,
    program: str,
    libraries: str,
    *,
    found: Run,
    logged: Curves,
    stored: Curves,
    config: Mapping[str, object],
    ranks: int = 1,
) -> None:
    """Check that the row of a test is on the page, or write it to the file."""
    matching = sum(found.config.get(key) == value for key, value in config.items())
    config_cell = f"{matching} of {len(config)}" if config else "–"  # noqa: RUF001 - a dash
    line = row(test, program, libraries, ranks, logged, stored, config_cell)
    if os.environ.get(ROWS):
        with Path(os.environ[ROWS]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    else:
        assert line in PAGE.read_text(encoding="utf-8").splitlines()
