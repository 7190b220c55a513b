"""Results of curves: last, smallest and largest value of each, and when they were."""

from __future__ import annotations

import math
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from hub_requests import START, Clock, logs, rank
from recorded_runs import POINT, points, record, spoil
from tachograph import runs
from tachograph.hub.hub import Hub
from tachograph.runs import CurveSummary, Moment, Point
from tachograph.runs.store import run_path

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SAID = st.fixed_dictionaries(
    {"value": st.floats(), "x": FINITE},
    optional={"min": FINITE, "max": FINITE, "min_x": FINITE, "max_x": FINITE, "count": st.integers(1, 2**40)},
)


def same(one: Moment | None, other: Moment | None) -> bool:
    """Tell whether two moments are the same; NaN is itself."""
    return repr(one) == repr(other)


def moments(point: Point) -> list[Moment]:
    """Return the finite values that a point tells of: its own, and the extremes of its interval, each at its x."""
    told = [Moment(point.value, point.x, point.time_unix_nano)]
    for column in ("min", "max"):
        if column in point.more:
            x = point.more.get(f"{column}_x", point.x)
            told.append(Moment(point.more[column], x, point.time_unix_nano))
    return [each for each in told if math.isfinite(each.value)]


@settings(max_examples=examples(40), deadline=None)
@given(
    said=st.lists(st.tuples(SAID, st.integers(0, 2), st.sampled_from(["loss", "lr"])), min_size=1, max_size=60),
    parts=st.lists(st.integers(1, 12), min_size=1),
)
def test_the_summary_is_that_of_all_points(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[dict[str, Any], int, str]], parts: list[int]
) -> None:
    """However many blocks and curves there are, with whatever columns: as if every point were looked at."""
    folder = tmp_path_factory.mktemp("store")
    hub = Hub(folder, run="run", clock=Clock())
    sent = [(POINT, {"metric": metric, "group": f"g{group}", **point}) for point, group, metric in said]
    first, turn = 0, 0
    while first < len(sent):
        many = parts[turn % len(parts)]
        hub.receive_logs(logs(rank(0), *sent[first : first + many], first=first + 1, stream="one"))
        first, turn = first + many, turn + 1
    hub.close()
    run = runs.open("run", folder)
    summaries = run.summaries()
    assert sum(each.points for each in summaries) == len(said)
    for summary in summaries:
        curve = summary.curve
        found = [each for each in run.points(curve.metric) if each.group == curve.group]
        newest = found[-1]
        assert same(summary.last, Moment(newest.value, newest.x, newest.time_unix_nano))
        told = [moment for each in found for moment in moments(each)]
        for best, moment in ((min, summary.min), (max, summary.max)):
            value = best((each.value for each in told), default=None)
            assert (None if moment is None else moment.value) == value
            assert moment is None or moment in told
    assert run.damage == []


def test_the_extremes_have_their_x_and_time(tmp_path: Path) -> None:
    """A spike within a throttled interval has the x at which it was; NaN and infinities are no extremes."""
    sent = [
        *points([3.0, math.nan, 1.0]),
        (POINT, {"metric": "loss", "x": 3.0, "value": 2.0, "min": 2.0, "min_x": 3.0, "max": 50.0, "max_x": 2.5}),
        *points([math.inf])[:1],
    ]
    record(tmp_path, "run", *sent)
    (summary,) = runs.open("run", tmp_path).summaries()
    assert isinstance(summary, CurveSummary)
    assert (summary.points, summary.curve.metric) == (5, "loss")
    assert summary.last is not None
    assert (summary.last.value, summary.last.x) == (math.inf, 0.0)
    assert summary.min is not None
    assert (summary.min.value, summary.min.x) == (1.0, 2.0)
    assert summary.max is not None
    assert (summary.max.value, summary.max.x) == (50.0, 2.5)
    assert START <= summary.min.time_unix_nano < summary.max.time_unix_nano < summary.last.time_unix_nano


def test_a_curve_without_a_finite_value(tmp_path: Path) -> None:
    """It has a last value, and no extremes."""
    record(tmp_path, "run", *points([math.inf, math.nan]))
    (summary,) = runs.open("run", tmp_path).summaries()
    assert (summary.min, summary.max) == (None, None)
    assert summary.last is not None
    assert math.isnan(summary.last.value)


def test_one_metric_or_rank(tmp_path: Path) -> None:
    """Summaries of one metric, or of one rank, are those of its curves; a metric that is not there is an error."""
    for number in (0, 1):
        record(tmp_path, "run", *points([1.0 + number]), *points([2.0], "lr"), number=number)
    run = runs.open("run", tmp_path)
    assert [(each.curve.metric, each.curve.rank) for each in run.summaries("loss")] == [("loss", 0), ("loss", 1)]
    assert [each.curve.metric for each in run.summaries(rank=1)] == ["loss", "lr"]
    with pytest.raises(LookupError, match="did you mean 'loss'"):
        run.summaries("los")


def test_damage_costs_no_more_than_it_hit(tmp_path: Path) -> None:
    """A block that is not as it was written leaves the others their summaries, and is named."""
    for number in (0, 1, 2):
        record(tmp_path, "run", *points([0.5 + number, 1.5 + number]), number=number)
    with closing(sqlite3.connect(run_path(tmp_path, "run"))) as connection, connection:
        connection.execute("UPDATE block SET pairs = zeroblob(32) WHERE curve = 2")
    run = runs.open("run", tmp_path)
    found = [(each.points, each.last, each.min and each.min.value) for each in run.summaries()]
    assert [(points, low) for points, _, low in found] == [(2, 0.5), (2, None), (2, 2.5)]
    assert found[1][1] is None
    assert run.damage == ["points 1 to 2 of a stream: not what was written"]


def test_a_damaged_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Pages that were overwritten cost the curves on them, and raise nothing."""
    for number in (0, 1, 2):
        record(tmp_path, "run", *points([0.123456789 + number] * 2000), number=number)
    pattern = struct.pack("<d", 0.123456789)
    assert spoil(run_path(tmp_path, "run"), lambda content: content.count(pattern) > 100)
    run = runs.open("run", tmp_path)
    found = [each for each in run.summaries() if each.last is not None]
    for each in found:
        assert each.last is not None
        assert each.last.value == 0.123456789 + (each.curve.rank or 0)
    assert run.damage
