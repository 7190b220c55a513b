"""Curves thinned for a chart: no extreme is lost, and everything is counted."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from recorded_runs import points, record
from tachograph import runs
from tachograph.runs.blocks import Raw, Sample, outline, pack, thin, thin_slowly
from tachograph.runs.curve_writer import CurveWriter
from tachograph.runs.store import Store

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.lists(st.tuples(st.one_of(FINITE, st.integers(0, 50).map(float)), st.floats()), max_size=80)


def raw_of(found: list[Sample]) -> Raw:
    """Return a branch with these points."""
    raw = Raw([pack(found).pairs], [], [])
    raw.add(found)
    return raw


@settings(max_examples=examples(150), deadline=None)
@given(found=POINTS, pairs=st.integers(1, 30), intervals=st.booleans())
def test_no_extreme_is_lost(found: list[tuple[float, float]], pairs: int, intervals: bool) -> None:
    """Each point is in one bucket, whose extremes are those of its points; with NumPy as without."""
    samples = []
    for seq, (x, value) in enumerate(sorted(found, key=lambda pair: pair[0])):
        more = {"min": -1.0, "min_x": x, "max": 7.0, "max_x": x, "count": 5, "nonfinite": 2} if intervals else {}
        samples.append(Sample(seq, seq, x, value, more))
    buckets = thin(raw_of(samples), pairs)
    assert repr(buckets).replace("-0.0", "0.0") == repr(thin_slowly(raw_of(samples), pairs)).replace("-0.0", "0.0")
    assert len(buckets) <= pairs
    assert sum(bucket.points for bucket in buckets) == len(samples)
    lost = sum(2 if intervals else not math.isfinite(sample.value) for sample in samples)
    assert sum(bucket.nonfinite for bucket in buckets) == lost
    place = 0
    for bucket in buckets:
        mine, place = samples[place : place + bucket.points], place + bucket.points
        told = [(sample.value, sample.x) for sample in mine if math.isfinite(sample.value)]
        told += [(value, sample.x) for sample in mine for value in (-1.0, 7.0) if intervals]
        if told:
            assert (bucket.low, bucket.low_x) == min(told)
            assert bucket.high == max(told)[0]
            assert bucket.high_x == min(x for value, x in told if value == bucket.high)
        else:
            assert math.isnan(bucket.low)
            assert math.isnan(bucket.high)
            assert bucket.low_x == bucket.high_x == mine[0].x


def test_x_that_goes_back_within_a_branch() -> None:
    """What another program sends may be in any order: it is thinned by its x."""
    samples = [Sample(seq, seq, float(x), float(x), {}) for seq, x in enumerate([5, 1, 4, 0, 3, 2])]
    for found in (thin(raw_of(samples), 2), thin_slowly(raw_of(samples), 2)):
        assert [(each.low, each.high, each.points) for each in found] == [(0.0, 2.0, 3), (3.0, 5.0, 3)]


def test_nothing_is_thinned_to_nothing() -> None:
    """A branch without points has no buckets."""
    assert thin(Raw([], [], []), 5) == thin_slowly(Raw([], [], []), 5) == []


def test_each_branch_is_thinned_by_itself(tmp_path: Path) -> None:
    """A run gives each branch of each rank's curve, with the extremes of throttled intervals among the others."""
    record(tmp_path, "run", *points([1.0, 2.0], branch=0), *points([3.0, math.nan], branch=1))
    record(tmp_path, "run", *points([4.0], min=-9.0, min_x=-0.5, max=9.0, max_x=-0.25, count=3), number=1)
    found = runs.open("run", tmp_path).thinned("loss", pairs=10)
    assert [(curve.rank, branch) for curve, branch, _ in found] == [(0, 0), (0, 1), (1, 0)]
    assert [[(each.low, each.high, each.nonfinite) for each in buckets] for _, _, buckets in found][:2] == [
        [(1.0, 1.0, 0), (2.0, 2.0, 0)],
        [(3.0, 3.0, 0), pytest.approx((math.nan, math.nan, 1), nan_ok=True)],
    ]
    buckets = found[2][2]
    assert (min(each.low for each in buckets), max(each.high for each in buckets)) == (-9.0, 9.0)


def test_a_million_points_are_quick(tmp_path: Path) -> None:
    """A million points in the store become 2,000 pairs in a moment: bench/journal.py has the time to hold."""
    store = Store(tmp_path, "run")
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        connection.execute("INSERT INTO stream VALUES (1, 's', 1)")
        writer = CurveWriter(connection, 1)
        same = [Sample(seq, seq, float(seq), math.sin(seq), {}) for seq in range(1, 1001)]
        about, block = outline(same), pack(same)
        row = writer._curve(0, "", "loss", "[]")
        for _ in range(1000):
            writer._insert(row, 0, 2, about, block)
    store.close()
    run = runs.open("run", tmp_path)
    run.thinned("loss")
    began = time.perf_counter()
    ((_, _, buckets),) = run.thinned("loss", pairs=2000)
    assert time.perf_counter() - began < 2
    assert sum(each.points for each in buckets) == 1_000_000
