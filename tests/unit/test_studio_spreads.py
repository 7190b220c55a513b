"""The counts behind a heat map of values: each value in its bucket and its stretch of time, of all series."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hub_requests import START
from recorded_runs import Recorded, record_histograms
from tachograph.runs.file import RunFile, look
from tachograph.runs.store import run_path
from tachograph.studio.spreads import MOST_COLUMNS, spreads

VALUES = st.lists(st.floats(1e-300, 1e300) | st.floats(-1e3, -1e-3) | st.just(0.0), min_size=1, max_size=20)
INTERVALS = st.lists(VALUES, min_size=1, max_size=4)


def counted(*recorded: Recorded, **how: Any) -> dict[str, Any]:
    """Return the counts of what some ranks have recorded."""
    with tempfile.TemporaryDirectory() as store:
        record_histograms(Path(store), "run", *recorded)
        with look(RunFile(run_path(Path(store), "run"), looking=True), lambda: False) as reading:
            numbers = [row[0] for row in reading.rows("SELECT id FROM series WHERE shape = 'histogram' ORDER BY id")]
            return spreads(reading, numbers, **how)


@given(INTERVALS, INTERVALS)
def test_each_value_is_counted_where_it_lies(one: list[list[float]], other: list[list[float]]) -> None:
    """Of both ranks, each interval in a stretch of its own; few rows, in ascending order, hold all values."""
    found = counted(Recorded("d", one, 0), Recorded("d", other, 1))
    bounds, counts = found["bounds"], found["counts"]
    assert bounds == sorted(bounds)
    assert 0 < len(bounds) <= 41
    assert sum(map(sum, counts)) == sum(map(len, [*one, *other]))
    columns = len(counts[0])
    assert columns == max(len(one), len(other))
    for place in range(columns):
        values = [value for some in (one, other) for each in some[place : place + 1] for value in each]
        for (low, high), row in zip(bounds, counts, strict=True):
            slack = 1e-9 * (high - low)
            least = sum(low + slack < value < high - slack for value in values)
            most = sum(low - slack <= value <= high + slack for value in values)
            assert least <= row[place] <= most


def test_very_many_intervals_are_read_in_part() -> None:
    """It is said of how many one is counted; a part of the time has its own, and nothing is nothing."""
    some = [[0.1, 0.2]] * 50
    every = counted(*(Recorded("d", some, rank) for rank in range(101)))
    assert every["joined"] == 3
    assert sum(map(sum, every["counts"])) == 2 * 101 * 17
    part = counted(Recorded("d", some), low=START + 100 * 10**9, high=START + 190 * 10**9)
    assert (part["begin"], part["end"]) == (START + 100 * 10**9, START + 190 * 10**9)
    assert sum(map(sum, part["counts"])) == 20
    assert len(counted(Recorded("d", [[0.1]] * (MOST_COLUMNS + 9)))["counts"][0]) == MOST_COLUMNS
    nothing = {"begin": None, "end": None, "joined": 1, "bounds": [], "counts": []}
    assert counted(Recorded("d", [[0.1]], exact=False)) == nothing
