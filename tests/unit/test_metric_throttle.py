"""Throttling: the cap holds, the last value comes, extremes and order survive, whatever is recorded whenever."""

from __future__ import annotations

import itertools
import math
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curves import Bench
from tachograph.metric import Metric
from tachograph.recording import curve, journal, logged_points, throttle
from tachograph.recording.journal import Journal, Raw

VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53)
GAPS = st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.1, 0.3, 7.0])


def same(one: float, other: float) -> bool:
    """Tell whether two numbers are the same, NaN being itself."""
    return one == other or (math.isnan(one) and math.isnan(other))


@given(st.lists(st.tuples(GAPS, VALUES)), st.sampled_from([0.5, 10, 100]))
def test_one_point_an_interval(steps: list[tuple[float, float]], a_second: float) -> None:
    """Between two points lies an interval at least; the first value is a point, and the last one is, too."""
    bench = Bench()
    metric = Metric("m", throttle=a_second, execution=bench)
    leaving: list[float] = []
    points = []
    for number, (gap, value) in enumerate(steps):
        until = bench.now + gap
        for due in [found.due for found in bench.curves.values() if found.due <= until]:
            bench.now = max(bench.now, due)
            bench.pass_on(everything=False)
            leaving += [bench.now] * len(bench.journal)
            points += bench.logged()
        bench.now = until
        metric.record(value, at=number)
        leaving += [bench.now] * (len(bench.journal) - (number == 0))  # not for the definition
        points += bench.logged()
    bench.now += 1 / a_second
    bench.pass_on(everything=False)
    points += bench.logged()
    assert len(leaving) <= 1 + (bench.now - 100.0) * a_second
    assert all(later - one >= 1 / a_second - 1e-9 for one, later in pairwise(leaving))
    assert [point["x"] for point in points] == sorted(point["x"] for point in points)
    if steps:
        assert points[0]["x"] == 0
        assert same(points[0]["value"], float(steps[0][1]))
        assert points[-1]["x"] == len(steps) - 1
        assert same(points[-1]["value"], float(steps[-1][1]))
        assert sum(point.get("count", 1) for point in points) == len(steps)


@given(st.lists(st.tuples(GAPS, VALUES, st.booleans()), min_size=1))
def test_extremes_are_kept(steps: list[tuple[float, float, bool]]) -> None:
    """The smallest and the largest finite value between two points are on the later one, with their x.

    However late or early somebody looks: the cap holds over time.
    """
    bench = Bench()
    metric = Metric("m", execution=bench)
    looks = sum(look for *_, look in steps)
    for number, (gap, value, look) in enumerate(steps):
        bench.now += gap
        metric.record(value, at=number)
        if look:
            bench.pass_on(everything=True)
    bench.pass_on(everything=True)
    begin = 0
    points = bench.logged()
    assert len(points) <= 2 + (bench.now - 100.0) * 10 + looks + 1e-6
    for point in points:
        end = int(point["x"]) + 1
        part = [float(value) for _, value, _ in steps[begin:end]]
        finite = [value for value in part if math.isfinite(value)]
        assert same(point["value"], part[-1])
        if len(part) > 1:
            assert point["count"] == len(part)
            assert point.get("nonfinite", 0) == len(part) - len(finite)
            if finite:
                assert (point["min"], point["max"]) == (min(finite), max(finite))
                assert float(steps[int(point["min_x"])][1]) == point["min"]
                assert float(steps[int(point["max_x"])][1]) == point["max"]
                assert begin <= point["min_x"] < end
            else:
                assert "min" not in point
        begin = end
    assert begin == len(steps)


ODD_VALUES = st.sampled_from([math.nan, math.inf, -math.inf, 1.0, 2**1100])
KINDS: dict[str, Callable[[float], bool]] = {
    "nan_x": math.isnan,
    "posinf_x": lambda value: value == math.inf,
    "neginf_x": lambda value: value == -math.inf,
}


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.02, 0.3]), ODD_VALUES, st.booleans()), min_size=1, max_size=40))
def test_values_that_are_not_finite_keep_kind_and_place(steps: list[tuple[float, float, bool]]) -> None:
    """Of each interval the x of its first NaN, infinity and minus infinity are there, each by its own name."""
    bench = Bench()
    metric = Metric("m", execution=bench)
    for number, (gap, value, look) in enumerate(steps):
        bench.now += gap
        metric.record(value, at=number)
        if look:
            bench.pass_on(everything=False)
    bench.pass_on(everything=True)
    begin = 0
    values = [math.inf if value == 2**1100 else value for _, value, _ in steps]
    for point in bench.logged():
        end = int(point["x"]) + 1
        places = {
            name: next((x for x in range(begin, end) if of_kind(values[x])), None) for name, of_kind in KINDS.items()
        }
        assert {name: point.get(name) for name in KINDS} == (places if end - begin > 1 else dict.fromkeys(KINDS))
        begin = end
    assert begin == len(steps)


@given(st.lists(st.tuples(VALUES, st.integers(0, 5) | st.floats(0, 5))))
def test_unthrottled_every_value_is_a_point(recorded: list[tuple[float, float]]) -> None:
    """Without a throttle each value leaves bit for bit, in order; a branch begins wherever x goes back."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    for value, at in recorded:
        metric.record(value, at=at)
    points = bench.logged()
    assert len(points) == len(recorded)
    branch = 0
    for number, (point, (value, at)) in enumerate(zip(points, recorded, strict=True)):
        branch += number > 0 and at < recorded[number - 1][1]
        assert same(point["value"], float(value))
        assert (point["x"], point["branch"]) == (at, branch)
        assert "min" not in point


@given(st.lists(st.tuples(GAPS, st.integers(0, 40)), min_size=1, max_size=60))
def test_a_branch_that_is_left_keeps_its_last_value(steps: list[tuple[float, int]]) -> None:
    """Also throttled: where x goes back, the branch before it ends with its own last value."""
    bench = Bench()
    metric = Metric("m", execution=bench)
    expected: dict[int, float] = {}
    branch = last = 0
    for gap, at in steps:
        bench.now += gap
        metric.record(at * 2, at=at)
        branch, last = branch + (at < last), at
        expected[branch] = at
    bench.pass_on(everything=True)
    found = {point["branch"]: point["x"] for point in bench.logged()}
    if branch <= 16:  # beyond that, branches of one interval are taken together
        assert found == expected
    assert found[branch] == last


@pytest.mark.parametrize("at", [None, "step"])
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, 2**1100])
def test_many_values_an_interval(at: str | None, bad: float | None) -> None:
    """What is folded in one go says the same as what is folded value by value."""
    numbers = random.Random(3)  # noqa: S311 - no secret
    values: list[float] = [numbers.uniform(-5, 5) for _ in range(3000)]
    values[0], values[1700], values[2100] = 0.0, -50.0, 60.0
    if bad is not None:
        values[400] = bad
    bench = Bench()
    metric = Metric("m", execution=bench)
    for step, value in enumerate(values):
        bench.now += 1e-6
        metric.record(value, at=step if at else None)
    bench.now += 1
    bench.pass_on(everything=False)
    first, rest = bench.logged()
    assert (first["value"], first.get("min")) == (0.0, None)
    places = {"min_x": 1700, "max_x": 2100, "x": 2999}
    assert (rest["min"], rest["max"], rest["value"]) == (-50.0, 60.0, values[-1])
    assert (rest["count"], rest.get("nonfinite", 0)) == (2999, int(bad is not None))
    if bad is not None:
        places["posinf_x" if bad > 0 else "nan_x"] = 400
    assert {"nan_x", "posinf_x", "neginf_x"}.isdisjoint(rest.keys() - places.keys())
    for name, place in places.items():
        assert rest[name] == pytest.approx(place if at else (place + 1) * 1e-6)


def test_threads_lose_and_double_nothing() -> None:
    """Four threads record into one unthrottled curve while another passes on: every value is a point, once."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    found: list[float] = []
    stop = threading.Event()

    def record(first: int) -> None:
        for number in range(first, first + 3000):
            metric.record(number)

    def pass_on() -> None:
        while not stop.is_set():
            bench.pass_on(everything=True)
            found.extend(point["value"] for point in bench.logged())

    threads = [threading.Thread(target=record, args=(first,)) for first in range(0, 12_000, 3000)]
    passing = threading.Thread(target=pass_on)
    for thread in (passing, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    passing.join()
    bench.pass_on(everything=True)
    points = bench.logged()
    found += [point["value"] for point in points]
    assert sorted(found) == list(range(12_000))
    assert all(point["branch"] == 0 for point in points)


def test_threads_lose_nothing_that_is_held_back() -> None:
    """Four threads record into one throttled curve while another passes on: each value is in the count of a point."""
    bench = Bench()
    metric = Metric("m", throttle=1000, execution=bench)
    found: list[dict[str, Any]] = []
    stop = threading.Event()

    def record(first: int) -> None:
        for number in range(first, first + 20_000):
            metric.record(float(number) if number % 100 else number)

    def pass_on() -> None:
        while not stop.is_set():
            bench.now += 0.0005
            bench.pass_on(everything=False)
            found.extend(bench.logged())

    threads = [threading.Thread(target=record, args=(first,)) for first in range(0, 80_000, 20_000)]
    passing = threading.Thread(target=pass_on)
    for thread in (passing, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    passing.join()
    bench.pass_on(everything=True)
    found += bench.logged()
    assert sum(point.get("count", 1) for point in found) == 80_000
    assert min(point.get("min", point["value"]) for point in found) == 0
    assert max(point.get("max", point["value"]) for point in found) == 79_999
    assert {point["branch"] for point in found} == {0}


def interrupted(call: Callable[[], None], after: int) -> bool:
    """Interrupt a call once so many functions have begun in the curve and the journal; False where there are fewer."""
    begun, files = 0, {module.__file__ for module in (curve, throttle, logged_points, journal)}

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal begun
        if event == "call" and frame.f_code.co_filename in files and frame.f_code.co_name != "record":
            begun += 1
            if begun > after:
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("throttle", [None, 10])
def test_an_interrupt_loses_nothing(throttle: float | None) -> None:
    """Wherever an interrupt comes in the middle of a fold: each value is in a point, once, with the next fold."""
    for after in itertools.count():
        bench = Bench()
        metric = Metric("m", throttle=throttle, execution=bench)
        for number in range(1, 40):
            metric.record(number)
        bench.now += 0.2
        was = interrupted(partial(metric.record, 40), after)
        assert bench.pass_on(everything=True)
        points = bench.logged()
        assert sum(point.get("count", 1) for point in points) == 40
        assert (points[0]["value"], points[-1]["value"]) == (1, 40)
        if throttle is None:
            assert [point["value"] for point in points] == list(range(1, 41))
        if not was:
            break
    assert after > 5  # it was interrupted at so many places


def test_recording_within_a_fold_of_the_own_thread_waits_for_nothing() -> None:
    """A signal handler that records in the middle of a fold neither hangs nor loses: the fold takes it along."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    handled = []

    class Interrupted(Journal):
        def take_over(self, waiting: list[Raw]) -> None:
            handled.append(True)
            if len(handled) == 2:
                metric.record(2)  # while the fold of 1 holds the lock
            super().take_over(waiting)

    bench.journal = Interrupted(bench.registry)
    metric.record(0)
    metric.record(1)
    assert len(handled) > 2
    assert [value for _, value in bench.pairs()] == [0, 1, 2]


def test_another_metric_of_the_key_within_a_fold_of_the_own_thread_waits_for_nothing() -> None:
    """A signal handler may record with a Metric that allows more points than the one whose fold it interrupts."""
    bench = Bench()
    metric, fast = Metric("m", throttle=0.01, execution=bench), Metric("m", throttle=None, execution=bench)
    handled = []

    class Interrupted(Journal):
        def take_over(self, waiting: list[Raw]) -> None:
            if not handled:
                handled.append(True)
                fast.record(1)  # while the fold of 0 holds the lock
            super().take_over(waiting)

    bench.journal = Interrupted(bench.registry)
    recording = threading.Thread(target=metric.record, args=(0,), daemon=True)
    recording.start()
    recording.join(30)
    assert not recording.is_alive()
    for number in range(2, 5):
        metric.record(number)
    assert [value for _, value in bench.pairs()] == [0, 1, 2, 3, 4]


def test_early_points_count_for_the_intervals_to_come() -> None:
    """Who wants everything now gets it, and the cap holds over time all the same."""
    bench = Bench()
    metric = Metric("m", throttle=10, execution=bench)
    count = 0
    for step in range(200):
        metric.record(step)
        bench.pass_on(everything=True)
        count += len(bench.pairs())
        bench.now += 0.005
    assert 10 <= count <= 12 or count == 200  # one second


def test_fast_values_ask_for_the_time_once_a_millisecond() -> None:
    """Values of a fast loop cost no look at the clock each; none of them is lost, and each interval is on time."""
    looks, now = 0, 100.0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    bench = Bench()
    bench.clock = clock
    bench.reset()
    metric = Metric("m", execution=bench)
    for number in range(100_000):
        now += 0.00001
        metric.record(math.sin(number), at=number)
        if number == 50_000:
            looks = 0
    assert not curve.ATOMIC or looks < 50_000 / 50
    bench.pass_on(everything=True)
    points = bench.logged()
    assert sum(point.get("count", 1) for point in points) == 100_000
    gaps = [later["x"] - one["x"] for one, later in pairwise(points[1:])]
    assert all(9_900 <= gap <= 10_100 for gap in gaps[:-1])


def test_a_rest_after_fast_values_costs_one_interval_its_end() -> None:
    """Where values come slowly again, those until the next fold are one point; then each interval has its own."""
    bench = Bench()
    metric = Metric("m", execution=bench)
    for number in range(30_000):
        bench.now += 0.00001
        metric.record(1.0, at=number)
    bench.pass_on(everything=True)
    bench.logged()
    for second in range(3):
        for number in range(4):
            bench.now += 0.25
            metric.record(2.0, at=30_000 + 4 * second + number)
        bench.pass_on(everything=False)
    bench.pass_on(everything=True)
    points = bench.logged()
    assert sum(point.get("count", 1) for point in points) == 12
    assert [point["x"] for point in points if point["x"] >= 30_004] == list(map(float, range(30_004, 30_011 + 1)))
