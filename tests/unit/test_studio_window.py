"""What is drawn of a stretch of a curve: no spike is missing, nothing is there that was not recorded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from math import ceil, inf, isfinite, isnan
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from curves import Bench
from examples import examples
from hub_requests import SECOND, START, logs, rank
from recorded_runs import Recorded, points, record, record_histograms
from tachograph.hub.hub import Hub
from tachograph.metric import Metric
from tachograph.runs.blocks import PAIR, Block, Raw, Sample, kind_of, pack
from tachograph.runs.buckets import Buckets, HistogramValues
from tachograph.runs.file import Abandoned, RunFile, look
from tachograph.runs.recorded import add_intervals
from tachograph.runs.store import path_of
from tachograph.runs.window import Drawing, Stretch, stretch, stretches, windowed
from tachograph.studio._arrivals import Heads
from tachograph.studio.charts import samples

FINITE = st.floats(-1e6, 1e6)
VALUES = FINITE | st.sampled_from([inf, -inf, float("nan")])
BRANCH = st.lists(st.tuples(st.integers(0, 50).map(float), VALUES), max_size=60).map(
    lambda found: sorted(found, key=lambda point: point[0])
)
BOUND = st.integers(-5, 55).map(float)


def raw(found: Sequence[tuple[float, float]]) -> Raw:
    """Return points as blocks hold them, in two blocks."""
    half = len(found) // 2
    return Raw([b"".join(PAIR.pack(*point) for point in part) for part in (found[:half], found[half:])], [], [])


@given(BRANCH, BOUND, BOUND)
def test_a_window_has_what_lies_in_it_and_one_point_beyond_on_each_side(
    found: list[tuple[float, float]], low: float, high: float
) -> None:
    """In the order of x, with the nearest point before and the nearest one behind."""
    low, high = min(low, high), max(low, high)
    kept = list(PAIR.iter_unpack(windowed(raw(found), low, high).pairs[0]))
    inside = [point for point in found if low <= point[0] <= high]
    before = [point for point in found if point[0] < low][-1:]
    behind = [point for point in found if point[0] > high][:1]
    assert list(map(repr, kept)) == list(map(repr, [*before, *inside, *behind]))


@given(BRANCH, BOUND, BOUND, st.integers(1, 8))
def test_without_numpy_the_same_is_drawn(found: list[tuple[float, float]], low: float, high: float, pairs: int) -> None:
    """The hub needs no NumPy; what it draws does not depend on it."""
    with_it = drawn(found, low, high, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        assert drawn(found, low, high, pairs) == with_it


def drawn(found: list[tuple[float, float]], low: float, high: float, pairs: int) -> Stretch | None:
    """Return what is drawn of points; None where there are none."""
    part = windowed(raw(found), min(low, high), max(low, high))
    return stretch(0, 1, part, pairs, count=len(found)) if part.pairs[0] else None


@given(BRANCH, st.integers(1, 8))
def test_no_spike_is_missing_and_nothing_is_made_up(found: list[tuple[float, float]], pairs: int) -> None:
    """The smallest and the largest value are drawn where they were, and every drawn point was recorded."""
    line = drawn(found, -inf, inf, pairs)
    if line is None:
        assert not found
        return
    finite = [point for point in found if isfinite(point[1])]
    points_ = list(zip(line.x, line.y, strict=True))
    assert set(points_) <= set(finite)
    assert line.x == sorted(line.x)
    assert len(points_) <= max(2 * pairs, len(finite) if line.exact else 0)
    if finite:
        assert min(line.y) == min(y for _, y in finite)
        assert max(line.y) == max(y for _, y in finite)
    kinds = {"NaN" if isnan(y) else "Infinity" if y > 0 else "-Infinity" for _, y in found if not isfinite(y)}
    assert {kind for _, kind in line.nonfinite} == kinds
    assert {x for x, _ in line.nonfinite} <= {x for x, y in found if not isfinite(y)}


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 200), min_size=1, max_size=200), BOUND, BOUND)
def test_only_blocks_that_overlap_a_window_count(
    tmp_path_factory: pytest.TempPathFactory, xs: list[int], low: float, high: float
) -> None:
    """Whatever order points came in, a window of the file is a window of its points."""
    low, high = min(low, high), max(low, high)
    folder: Path = tmp_path_factory.mktemp("run")
    sent = [("tachograph.metric", {"metric": "m", "x": float(x), "value": float(i)}) for i, x in enumerate(xs)]
    hub = Hub(folder, run="run", clock=lambda: START)
    for first in range(0, len(sent), 7):
        hub.receive_logs(logs(rank(0), *sent[first : first + 7], first=1 + first))
    hub.close()
    with look(RunFile(path_of(folder, "run"))) as reading:
        whole = next(stretches(reading, 1, Drawing(1000)))
        assert (whole.points, whole.x) == (len(xs), sorted(map(float, xs)))
        part = next(stretches(reading, 1, Drawing(1000, low, high)), None)
    expected = [x for x in whole.x if low <= x <= high]
    assert [x for x in (part.x if part else []) if low <= x <= high] == expected


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, min_size=1, max_size=300), st.integers(1, 4), st.integers(20, 60))
def test_of_more_points_than_are_read_at_once_no_spike_is_missing(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], pairs: int, at_once: int
) -> None:
    """However many points there are, and however few are held at once, the extremes and what is not finite stay."""
    folder: Path = tmp_path_factory.mktemp("run")
    hub = Hub(folder, run="run", clock=lambda: START)
    sent = points(values)
    for first in range(0, len(sent), 11):
        hub.receive_logs(logs(rank(0), *sent[first : first + 11], first=1 + first))
    hub.close()
    with look(RunFile(path_of(folder, "run"))) as reading:
        (line,) = stretches(reading, 1, Drawing(pairs, at_once=at_once))
    assert line.points == len(values)
    assert set(zip(line.x, line.y, strict=True)) <= {(float(x), value) for x, value in enumerate(values)}
    finite = list(filter(isfinite, values))
    assert (min(line.y, default=None), max(line.y, default=None)) == (
        min(finite, default=None),
        max(finite, default=None),
    )
    assert (len(finite) == len(values)) == (not line.nonfinite)


MORE = st.fixed_dictionaries(
    {},
    optional={
        "min": FINITE,
        "max": FINITE,
        "min_x": BOUND,
        "max_x": BOUND,
        "count": st.integers(0, 9),
        "nonfinite": st.integers(0, 9),
        **dict.fromkeys(("nan_x", "posinf_x", "neginf_x"), BOUND | st.sampled_from([inf, float("nan")])),
        "rate": BOUND,
    },
)


@given(st.lists(st.tuples(VALUES, MORE), min_size=1, max_size=20))
def test_intervals_are_read_alike_with_and_without_numpy(found: list[tuple[float, dict[str, float]]]) -> None:
    """What throttled intervals say is the same however it is read."""
    samples = [Sample(i + 1, i, float(i), value, more) for i, (value, more) in enumerate(found)]
    block = pack(samples)
    fast, slow = Raw([], [], []), Raw([], [], [])
    add_intervals(fast, block)
    slow.add(samples)
    assert list(map(repr, fast.extremes)) == list(map(repr, map(float, slow.extremes)))
    assert fast.hidden == slow.hidden


ODD = st.lists(st.floats(0, 1) | st.sampled_from([inf, -inf, float("nan")]), min_size=1, max_size=40)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ODD, st.sampled_from([0.0, 0.01, 0.06]), st.booleans())
def test_odd_values_are_drawn_as_themselves_where_they_happened(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], gap: float, exact: bool
) -> None:
    """Of a throttled curve, too: each kind, at the x of the first one of an interval, on the page and as it comes."""
    bench = Bench()
    metric = Metric("m", throttle=None if exact else 10, execution=bench)
    for x, value in enumerate(values):
        bench.now += gap
        metric.record(value, at=x)
    bench.pass_on(everything=True)
    folder: Path = tmp_path_factory.mktemp("run")
    record(folder, "run", *[("tachograph.metric", attributes) for attributes in bench.logged()])
    with look(RunFile(path_of(folder, "run"))) as reading:
        (whole,) = stretches(reading, 1, Drawing(1000))
        (thinned,) = stretches(reading, 1, Drawing(1))
        heads = Heads()
        heads.known = {1: 0}
        news = [point for entry in heads.arrived(reading).curves for point in entry["points"]]
    recorded = {(float(x), kind_of(value)) for x, value in enumerate(values) if not isfinite(value)}
    kinds = {kind for _, kind in recorded}
    for found in (whole.nonfinite, thinned.nonfinite, [(x, kind) for x, _, kind in filter(_is_odd, news)]):
        assert set(found) <= recorded
        assert {kind for _, kind in found} == kinds
        assert {min(x for x, each in found if each == kind) for kind in kinds} == {
            min(x for x, each in recorded if each == kind) for kind in kinds
        }
    if exact:
        assert set(whole.nonfinite) == recorded


def _is_odd(point: list[object]) -> bool:
    return len(point) > 2


def test_a_count_alone_is_drawn_as_nan_at_its_point(tmp_path: Path) -> None:
    """Runs of earlier versions tell only how many values of an interval were not finite."""
    record(tmp_path, "run", *points([1.0, inf], min=0.5, max=2.0, count=9, nonfinite=2))
    with look(RunFile(path_of(tmp_path, "run"))) as reading:
        (line,) = stretches(reading, 1, Drawing(1000))
    assert sorted(line.nonfinite) == [(0.0, "NaN"), (1.0, "Infinity"), (1.0, "NaN")]


@given(st.binary(max_size=40), st.binary(max_size=80), st.sampled_from(["", "{}", "[1]", '["dmin"]', '["x"]', "[" * 9]))
def test_a_broken_block_is_told_from_a_bug(pairs: bytes, rest: bytes, form: str) -> None:
    """Whatever is in a block, reading it ends well or with a ValueError."""
    with contextlib.suppress(ValueError):
        add_intervals(Raw([], [], []), Block(form, pairs, rest))


def test_whoever_stops_waiting_stops_the_reading(tmp_path: Path) -> None:
    """A query that goes through a large file ends soon after nobody wants its answer any more."""
    record(tmp_path, "run", *points([1.0] * 3000))
    asked: list[int] = []

    def abandoned() -> bool:
        asked.append(1)
        return len(asked) > 2

    with look(RunFile(path_of(tmp_path, "run")), abandoned) as reading, pytest.raises(Abandoned):
        list(reading.rows("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"))


@given(st.lists(st.floats(0, 100), min_size=2, max_size=200), st.sampled_from([0.5, 0.99]))
def test_a_percentile_lies_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    """Interpolation errs by at most the width of a bucket, and never beyond the highest bound."""
    bounds = (0.5, 1.0, 5.0, 25.0, 50.0, 200.0)
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[sum(value > bound for bound in bounds)] += 1
    found = quantile(Buckets(len(values), sum(values), tuple(counts), bounds), share)
    assert not isnan(found)
    ordered = sorted(values)
    nearest = ordered[min(len(values) - 1, max(0, ceil(share * len(values)) - 1))]
    edges = (0.0, *bounds)
    place = sum(nearest > bound for bound in bounds)
    assert edges[place] <= found <= edges[min(place + 1, len(bounds))]


def test_a_percentile_needs_buckets() -> None:
    """Without values or bounds there is none; above the last bound that one is all that is known."""
    assert isnan(quantile(Buckets(0, 0.0, (0, 0), (1.0,)), 0.5))
    assert isnan(quantile(Buckets(3, 3.0, (), ()), 0.5))
    assert quantile(Buckets(3, 30.0, (0, 3), (1.0,)), 0.5) == 1.0
    assert quantile(Buckets(4, 4.0, (0, 4, 0), (1.0, 2.0)), 0.5) == 1.5


@given(st.lists(st.lists(st.floats(0.01, 10), min_size=1, max_size=5), min_size=1, max_size=150), st.integers(50, 160))
@example([[1.0, 1.0, 1.0, 9.0, 9.009677102628336]], 50)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_of_many_samples_neighbours_are_one(
    tmp_path_factory: pytest.TempPathFactory, intervals: list[list[float]], most: int
) -> None:
    """Counts, sums and extremes of all samples are there, however few points they become; no quantile lies outside."""
    store = tmp_path_factory.mktemp("samples")
    record_histograms(store, "run", Recorded("step.duration", intervals))
    with look(RunFile(path_of(store, "run"))) as reading:
        (found,) = samples(reading, [1], most=most)
        (whole,) = samples(reading, [1])
        (part,) = samples(reading, [1], low=START + 30 * SECOND + 1, high=START + 50 * SECOND)
    size = found["joined"]
    assert len(found["time"]) <= most
    assert size == -(-len(intervals) // most)
    for place, each in enumerate(intervals[at : at + size] for at in range(0, len(intervals), size)):
        values = [value for some in each for value in some]
        assert (found["count"][place], found["total"][place]) == (len(values), pytest.approx(sum(values)))
        assert (found["min"][place], found["max"][place]) == (min(values), max(values))
        slowest = next(some for some in each if max(some) == max(values))
        assert min(slowest) <= found["p50"][place] <= found["p90"][place] <= found["p99"][place] <= max(values)
    assert whole["joined"] == 1
    assert whole["error"] <= 0.022
    seen = [time for time in whole["time"] if time <= START + 50 * SECOND]
    assert part["time"] == (seen[3:] if len(intervals) > 3 else seen[-1:])


def quantile(of: Buckets, share: float) -> float:
    """Return a quantile that explicit buckets tell."""
    return HistogramValues(of.count, of.total, None, of).quantile(share)
