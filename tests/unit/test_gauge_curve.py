"""A gauge's curve: what it keeps of its values, and when."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.exporters.otlp.logs import log_bodies
from tachograph.recording._curve_entries import CurveState, after, point_of
from tachograph.recording.accumulators import LastValue
from tachograph.recording.gauge_curve import FEW, FIRST, INTERVAL, LONG_INTERVAL, GaugeCurves
from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.journal import LogEvent, packed_event
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.packed_points import PackedPoints, PlainPoints, PointHead, PointSources
from tachograph.recording.registry import Registry
from tachograph.recording.values import Pending

COLUMNS = 12


class Made:
    """A gauge with a curve, on a clock of its own."""

    def __init__(self, *, wanted: bool | None = True) -> None:
        self.now = 0.0
        self.failed: list[Exception] = []
        self.sources = PointSources(self.failed.append)
        self.sources.wanted = wanted
        self.gauge = LastValue(SeriesLosses("loss"))
        self.curve = GaugeCurves(self.sources, clock=lambda: self.now).follow(self.gauge, ("loss", "", ""), ())
        self.record = self.gauge.record

    def rows(self, *, everything: bool = True) -> list[tuple[float, ...]]:
        """Take the points: x, time, value, lowest, highest, values, not finite, and x of these.

        The x are those of the lowest, of the highest, and of the first NaN, infinity and minus infinity.
        """
        flat = self.curve.take(everything=everything)
        rows = [flat[place : place + COLUMNS] for place in range(0, len(flat), COLUMNS)]
        return [(*row[:4], row[5], row[7], row[8], row[4], row[6], *row[9:]) for row in rows]


def test_the_first_thousand_values_are_a_point_each() -> None:
    """Each has its own time, and the number of the values before it as x; later ones share points."""
    made = Made()
    for number in range(FIRST + 500):
        made.now = number * 0.001
        made.record(float(number))
    rows = made.rows()
    assert [row[:3] for row in rows[:FIRST]] == [(n, n * 0.001, n) for n in range(FIRST)]
    assert sum(row[5] for row in rows) == FIRST + 500
    assert rows[-1][0] == FIRST + 499
    assert rows[-1][2] == FIRST + 499
    assert len(rows) < FIRST + 4


def test_a_spike_is_never_thinned_away() -> None:
    """One value of a hundred thousand that differs is the highest of its point."""
    made = Made()
    for number in range(100_000):
        made.now = number * 0.0001
        made.record(50.0 if number == 77_777 else 1.0)
    rows = made.rows()
    assert max(row[4] for row in rows) == 50.0
    assert sum(row[5] for row in rows) == 100_000
    spike = next(row for row in rows if row[4] == 50.0)
    assert abs(spike[1] - 7.7777) < 1.1
    assert FIRST + 8 <= len(rows) <= FIRST + 12  # ten seconds, one point each


def test_extremes_have_their_place() -> None:
    """Of values that fall, the highest is at the beginning of its interval, and the lowest at the end."""
    made = Made()
    for number in range(FIRST + 4000):
        made.now = number * 0.001
        made.record(-float(number))
    for row in made.rows()[FIRST:-1]:
        x, _, value, low, high, count, _, low_x, high_x, *_ = row
        assert (low, low_x) == (value, x)
        assert count > 500
        assert -high - 100 <= high_x == pytest.approx(x - count + 1, abs=100)


values = st.one_of(
    st.floats(width=32), st.integers(-(2**70), 2**70), st.sampled_from([math.nan, math.inf, -math.inf, 10**400])
)
steps = st.lists(
    st.one_of(values, st.tuples(st.sampled_from(["wait", "fold", "take", "take all"]), st.floats(0, 3))), max_size=60
)


@given(steps, st.booleans())
def test_no_value_is_lost_however_it_is_folded(program: list[Any], late: bool) -> None:
    """Counts, extremes and the last value are those of all values, in ascending x, wherever folds come."""
    made = Made()
    if late:
        for _ in range(FIRST):
            made.record(0.0)
        made.rows()
    recorded: list[Any] = []
    rows: list[tuple[float, ...]] = []
    for step in program:
        if isinstance(step, tuple):
            what, seconds = step
            made.now += seconds
            if what == "fold":
                made.gauge.fold()
            elif what != "wait":
                rows += made.rows(everything=what == "take all")
        else:
            recorded.append(step)
            made.record(step)
            made.gauge.fold()
            assert made.gauge.value() is step
    rows += made.rows()
    floats = [_float(value) for value in recorded]
    finite = [value for value in floats if math.isfinite(value)]
    assert sum(row[5] for row in rows) == len(recorded)
    assert sum(row[6] for row in rows) == len(floats) - len(finite)
    assert min((row[3] for row in rows), default=math.inf) == min(finite, default=math.inf)
    assert max((row[4] for row in rows), default=-math.inf) == max(finite, default=-math.inf)
    assert all(before[0] < after[0] and before[1] <= after[1] for before, after in pairwise(rows))
    first = FIRST if late else 0
    begin = 0
    for row in rows:
        part = list(enumerate(floats))[max(0, begin - first) : int(row[0]) - first + 1]
        kinds = (math.isnan, lambda value: value == math.inf, lambda value: value == -math.inf)
        assert [next((x + first for x, value in part if kind(value)), math.inf) for kind in kinds] == [*row[9:]]
        begin = int(row[0]) + 1
    if recorded:
        assert rows[-1][0] == len(recorded) - 1 + (FIRST if late else 0)
        assert repr(rows[-1][2]) == repr(floats[-1])


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def test_each_collection_takes_all_that_was_recorded_so_far() -> None:
    """A process that is killed loses no more than the second since the last one: a point waits for no interval."""
    made = Made()
    for _ in range(FIRST):
        made.record(0.0)
    made.rows()
    for second in range(20):
        for number in range(10):
            made.now = second + 1 + number / 10
            made.record(float(number))
        made.now += 0.05 if second % 3 else 0.09  # no collection is exactly on time
        found = made.rows(everything=False)
        assert found[-1][2] == 9.0
        assert sum(row[5] for row in found) == 10
        assert len(found) == 1 or second == 0  # the first collection has no interval of its own length before it


def test_collections_close_together_make_no_more_points() -> None:
    """Below a tenth of a second they leave an interval alone, which ends with a later one, or by itself."""
    made = Made()
    for _ in range(FIRST):
        made.record(0.0)
    made.rows()
    points = 0
    for _ in range(1000):
        made.now += 0.01
        made.record(1.0)
        points += len(made.rows(everything=False))
    assert points == pytest.approx(10.0 / 0.1, abs=15)


@pytest.mark.usefixtures("untraced")  # 200,000 times the same
@pytest.mark.parametrize("wanted", [True, None])
def test_what_nobody_takes_is_kept_in_little(wanted: bool | None) -> None:
    """A process that delivers nothing keeps some kilobytes a series; extremes and counts are still complete."""
    made = Made(wanted=wanted)
    for number in range(200_000):
        made.now += 0.5
        made.record(-7.0 if number == 150_000 else 1.0)
    rows = made.rows()
    assert len(rows) <= FIRST + 25
    assert sum(row[5] for row in rows) == 200_000
    assert min(row[3] for row in rows) == -7.0


def test_no_curve_is_kept_that_no_destination_takes() -> None:
    """The gauge shows its last value, and there is no point; once a destination comes, x goes on."""
    made = Made(wanted=False)
    for number in range(5000):
        made.record(float(number))
    made.gauge.fold()
    assert made.gauge.value() == 4999.0
    assert made.rows() == []
    made.sources.wanted = True
    made.record(1.0)
    assert [row[:1] + row[2:3] for row in made.rows()] == [(5000.0, 1.0)]


@pytest.mark.usefixtures("untraced")  # 800,000 times the same
def test_threads_lose_no_value() -> None:
    """Four threads record two hundred thousand values each while a fifth one takes points."""
    sources = PointSources(print)
    sources.wanted = True
    gauge = LastValue(SeriesLosses("loss"))
    curve = GaugeCurves(sources).follow(gauge, ("loss", "", ""), ())
    rows: list[float] = []
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            rows.extend(curve.take(everything=True))

    def work(which: int) -> None:
        record = gauge.record
        for number in range(200_000):
            record(float(number) if number % 10_000 else -1.0 - which)

    taking = threading.Thread(target=take)
    working = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in (taking, *working):
        thread.start()
    for thread in working:
        thread.join()
    over.set()
    taking.join()
    rows.extend(curve.take(everything=True))
    assert sum(rows[7::COLUMNS]) == 800_000
    assert min(rows[3::COLUMNS]) == -4.0
    assert max(rows[5::COLUMNS]) == 199_999.0


def test_threads_lose_no_value_of_many_series() -> None:
    """Points of many series are taken while two threads record: each value is in one, and x never goes back."""
    sources = PointSources(lambda _error: None)
    sources.wanted = True
    curves = GaugeCurves(sources, clock=lambda: time.monotonic() * 5000)  # an interval takes two milliseconds
    made = [LastValue(SeriesLosses("loss")) for _ in range(FEW + 1)]
    for number, gauge in enumerate(made):
        curves.follow(gauge, (f"loss.{number}", "", ""), ())
    for _ in range(FIRST):
        for gauge in made:
            gauge.record(0.5)
    taken = list(curves.take(everything=True))

    def work() -> None:
        for number in range(2000):
            for gauge in made:
                gauge.record(float(number))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += curves.take(everything=False)
    assert any(each.__class__ is PlainPoints for each in taken)
    taken += curves.take(everything=True)
    for tables in by_metric(taken):
        assert sum(sum(each.more.get("count", [1] * each.size)) for each in tables) == FIRST + 4000
        x = [place for each in tables for place in each.x]
        assert x == sorted(set(x))
        assert x[-1] == FIRST + 3999


def by_metric(taken: list[PackedPoints | PlainPoints]) -> list[list[PackedPoints]]:
    """Return the points of each metric."""
    found: dict[str, list[PackedPoints]] = {}
    for points in taken:
        found.setdefault(points.packed().metrics[0], []).append(points.packed())
    return [*found.values()]


def test_a_signal_handler_may_record_and_take_in_the_middle() -> None:
    """A handler of the same thread neither waits for ever nor loses a value."""
    made = Made()
    turns = 0
    rows: list[tuple[float, ...]] = []

    def handler(*_: object) -> None:
        nonlocal turns
        turns += 1
        made.record(2.0)
        rows.extend(made.rows())

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for number in range(100_000):
            made.record(1.0)
            if number % 1000 == 0:
                rows += made.rows()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    rows += made.rows()
    assert turns > 0
    assert sum(row[5] for row in rows) == 100_000 + turns


class _Event:
    def __init__(self) -> None:
        self.over = False

    def query(self) -> bool:
        return self.over


class _Host:
    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class _Device:
    """A value on a device, as read() gives it back, of which the copy takes its time."""

    def __init__(self, value: float) -> None:
        self.event = _Event()
        self.pending = Pending(_Host(value), self.event)


class _Losses(SeriesLosses):
    def read(self, value: object) -> Any:
        return value.pending if isinstance(value, _Device) else super().read(value)


def test_values_of_a_device_come_in_their_place() -> None:
    """What is recorded later waits for a value that is on its way; the gauge shows the later one all the while."""
    made = Made()
    made.gauge.losses = _Losses("loss")
    slow = _Device(5.0)
    made.record(1.0)
    made.record(slow)
    made.record(3.0)
    assert not made.gauge.fold()
    assert made.gauge.value() == 3.0
    assert [row[2] for row in made.rows()] == [1.0] or made.rows() == []
    slow.event.over = True
    assert made.gauge.fold()
    assert made.gauge.value() == 3.0
    made.now += 5
    assert [row[2] for row in made.rows()][-2:] == [5.0, 3.0]


def test_series_that_rest_leave_their_turn_to_others() -> None:
    """Many that are not recorded any more hold none up that are: each has a point in about ten seconds."""
    now = 0.0
    sources = PointSources(lambda _error: None)
    sources.wanted = True
    curves = GaugeCurves(sources, clock=lambda: now)
    made = [LastValue(SeriesLosses("loss")) for _ in range(4 * FEW)]
    followed = [curves.follow(gauge, (f"loss.{number}", "", ""), ()) for number, gauge in enumerate(made)]
    for _ in range(FIRST + 1):
        for gauge in made:
            gauge.record(0.5)
    at_work, taken = made[2 * FEW :], list(curves.take(everything=True))
    for second in range(60):
        for _ in range(20):
            now += 0.05
            for gauge in at_work:
                gauge.record(0.25)
        if second == 30:
            taken.clear()
        taken += curves.take(everything=False)
    points = by_metric(taken)
    assert len(points) == len(at_work)
    assert {len(each) for each in points} <= {2, 3}
    for _ in range(20):  # now they rest, too: all that they have still leaves
        now += 1.0
        taken += curves.take(everything=False)
    assert {each[-1].x[-1] for each in by_metric(taken)} == {FIRST + 60 * 20}
    assert {curve.next for curve in followed} == {math.inf}
    made[0].record(0.75)  # one that has rested
    assert followed[0].next <= now
    assert any(each.packed().metrics[0] == "loss.0" for each in curves.take(everything=False))


def test_more_than_a_hundred_series_have_longer_intervals() -> None:
    """One point a second for few, one in ten for many."""
    registry = Registry(enabled=True)
    instrument = registry.group("g").instrument("x")
    instrument.keep_curves(registry.curves)
    for number in range(FEW):
        instrument.series({"n": number})
    assert registry.curves.interval() == INTERVAL
    instrument.series({"n": -1})
    assert registry.curves.interval() == LONG_INTERVAL


def drained(registry: Registry) -> Iterator[PackedPoints]:
    """Yield the packed points of a registry."""
    for _, points in registry.points.drain(everything=True):
        yield points


def test_a_series_is_a_curve() -> None:
    """Its points have the group, the name, the unit and the attributes of the series; counters have none."""
    registry = Registry(enabled=True)
    registry.points.wanted = True
    instrument = registry.group("train").declare(
        "rate", kind="gauge", unit="{token}/s", description="", boundaries=None
    )
    instrument.record(1, {"gpu": 0})
    instrument.keep_curves(registry.curves)
    instrument.record(2, {"gpu": 0})
    instrument.record(3, {"gpu": 1})
    counter = registry.group("train").instrument("done.success")
    counter.keep_curves(registry.curves)
    counter.record(1)
    found = [(each.group, each.metrics, each.units, each.attributes, [*each.values]) for each in drained(registry)]
    assert found == [
        ("train", ("rate",), "{token}/s", (("gpu", 0),), [2.0]),
        ("train", ("rate",), "{token}/s", (("gpu", 1),), [3.0]),
    ]


def test_numbers_are_of_points() -> None:
    """The first number of a record is behind the last point of the one before."""
    registry = Registry(enabled=True)
    registry.points.wanted = True
    instrument = registry.group("g").instrument("x")
    instrument.keep_curves(registry.curves)
    for number in range(3):
        instrument.record(number)
    ((first, points),) = registry.points.drain(everything=True)
    assert (first, points.size) == (1, 3)
    instrument.record(1)
    ((first, points),) = registry.points.drain(everything=True)
    assert (first, points.size) == (4, 1)


def test_a_source_that_fails_costs_no_other_its_points() -> None:
    """Its failure is counted; the curves still leave."""

    class Broken:
        def waiting(self) -> bool:
            return True

        def take(self, *, everything: bool) -> Iterator[PackedPoints]:
            raise RuntimeError(everything)

        def reset(self) -> None: ...

    registry = Registry(enabled=True)
    registry.points.wanted = True
    registry.points.add(Broken())
    instrument = registry.group("g").instrument("x")
    instrument.keep_curves(registry.curves)
    instrument.record(1)
    assert len(list(drained(registry))) == 1
    errors = [p for m in registry.collect() if m.name == "tachograph.errors" for p in m.points]
    assert [point.attributes for point in errors] == [(("where", "curves"),)]


@pytest.mark.process
def test_a_series_takes_little_memory() -> None:
    """A gauge with its curve takes at most 1.5 KiB before its first value."""
    program = """
import sys, tracemalloc
from tachograph.recording.registry import Registry
registry = Registry(enabled=True)
instrument = registry.group("g").instrument("x")
instrument.keep_curves(registry.curves)
instrument.series({"n": -1})
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
for number in range(1000):
    instrument.series({"n": number})
print((tracemalloc.get_traced_memory()[0] - before) / 1000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) <= 1536 + 400  # and its attributes, and its entry in two dictionaries


def test_values_that_are_not_finite_are_counted_at_once() -> None:
    """NaN and infinities count when they are recorded, or arrive; each once, however often the curve is folded."""
    made = Made()
    made.gauge.losses = _Losses("loss")
    late = _Device(float("inf"))
    for value in (1.0, float("nan"), late, float("-inf"), 2.0):
        made.record(value)
    assert made.gauge.losses.nonfinite == 2
    late.event.over = True
    made.gauge.fold()
    made.rows()
    made.gauge.fold()
    assert made.gauge.losses.nonfinite == 3


def test_a_forked_child_that_records_has_no_value_of_its_parent() -> None:
    """After the registry's reset neither the gauge nor its curve has anything, held values included."""
    registry = Registry(enabled=True)
    registry.points.wanted = True
    instrument = registry.group("g").instrument("x")
    instrument.keep_curves(registry.curves)
    for number in range(FIRST * 3):
        instrument.record(float(number))
    registry.reset()
    assert [metric for metric in registry.collect() if metric.scope == "g"] == []
    registry.points.wanted = True
    assert list(drained(registry)) == []
    instrument.record(1.0)
    ((points),) = drained(registry)
    assert (list(points.x), list(points.values)) == ([0.0], [1.0])


@pytest.mark.process
def test_a_forked_child_that_records_nothing_keeps_nothing() -> None:
    """A child of a moment at which a thread of the parent folded takes no memory for the values that it throws away."""
    program = """
import os, tachograph
from tachograph.recording.registry import default
tachograph.put_metric("loss", 1.0)
((_, series),) = default.group("torchelastic").instrument("loss").all_series()
series.curve._lock.acquire()
if os.fork() == 0:
    for number in range(100_000):
        tachograph.put_metric("loss", float("nan"))
    os._exit(len(series.curve.buffer) > 100)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"


VALUES = st.lists(
    st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.integers(-3, 3), st.just(10**400)), max_size=80
)


@given(VALUES)
@example(
    [0, 0, 10**400, 0, 10**400, 10**400, 0, 10**400, 0, 0, 0, 0, -(2**70), -(2**70) - 1]
)  # the same float: the first of them is the smallest
def test_values_are_the_same_points_whether_they_are_folded_one_by_one_or_together(values: list[Any]) -> None:
    """A fold after each value makes the points of one at the end, extremes and their x too."""
    together, singly = Made(), Made()
    for made in (together, singly):
        for _ in range(FIRST):
            made.record(0.5)
        made.rows()
    for value in values:
        for made in (together, singly):
            made.now += 0.41  # so long that no value is held back
            made.record(value)
        singly.curve.fold()
    assert repr(together.rows()) == repr(singly.rows())


FINITE = st.one_of(st.floats(-1e300, 1e300), st.integers(-(2**54), 2**54), st.integers(-2, 2))
ENTRIES = st.lists(st.lists(FINITE, min_size=1, max_size=4) | st.just([math.nan]) | st.just([-math.inf]), max_size=6)


@given(ENTRIES.filter(bool), ENTRIES, st.integers(0, 10))
def test_one_point_of_a_few_entries_is_that_of_each_in_its_turn(
    values: list[list[Any]], before: list[list[Any]], number: int
) -> None:
    """The quick way gives the same point, or none: where a value is not finite, or beyond the exact integers."""
    state = CurveState(number, 0, math.inf)
    for group in before:
        state = after(entries_of([group]), state, 1.0, keeps=True)
    found = point_of(entries_of(values), state.values, state.held)
    for group in values:
        state = after(entries_of([group]), state, 1.0, keeps=True)
    assert state.held is not None
    every = [value for group in before + values for value in group]
    if found is None:
        assert any(not abs(value) < 2**53 for value in every)
        return
    assert all(math.isfinite(value) for value in every)
    assert repr([*map(float, found)]) == repr([*map(float, state.held[:8])])


def entries_of(groups: list[list[Any]]) -> list[Any]:
    """Return an entry of each group of values."""
    return [part for group in groups for part in (min(group), max(group), group[-1], len(group), 1.0)]


def test_points_that_are_not_due_cost_no_fold() -> None:
    """Between two points of its curve a gauge is left alone, unless there is much to fold, which takes memory."""
    made = Made()
    for _ in range(FIRST):
        made.record(0.5)
    made.rows()
    made.now += 5.0
    made.record(1.0)
    made.rows(everything=False)  # that one is due
    for _ in range(8):
        made.now += 0.01
        made.record(2.0)
        assert made.rows(everything=False) == []
    assert made.curve.buffer
    longest = 0
    for _ in range(2000):
        made.record(2.0)
        made.rows(everything=False)
        longest = max(longest, len(made.curve.buffer))
    assert longest <= 25 * 5
    found = []
    for _ in range(2):
        made.now += 1.0
        found += made.rows(everything=False)
    assert sum(row[5] for row in found) == 2008


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
HEADS = st.builds(
    PointHead,
    st.text(max_size=8),
    st.text(max_size=8),
    st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8) | st.integers(0, 2**40)), max_size=3).map(tuple),
    st.text(max_size=3),
    st.integers(0, 3),
)
POINTS = st.tuples(st.integers(0, 2**62), *[NUMBERS] * 6, st.integers(2, 2**40))


@given(HEADS, st.lists(st.lists(POINTS, min_size=1, max_size=4), min_size=1, max_size=3), st.integers(1, 2**40))
def test_a_few_points_are_encoded_as_in_columns(head: PointHead, numbers: list[Any], first: int) -> None:
    """The quick way, whose constant bytes are kept from the first one on, writes the same bytes as the columns' way."""
    points = [PlainPoints(head, len(each), tuple(chain.from_iterable(zip(*each, strict=True)))) for each in numbers]
    quick = [packed_event(point, first, "stream") for point in points]
    slow = [event._replace(attributes=point.packed().record()) for event, point in zip(quick, points, strict=True)]
    assert all(type(event.attributes) is dict for event in slow)
    assert encoded(quick) == encoded(slow)
    assert [dict(event.attributes) for event in quick] == [dict(event.attributes) for event in slow]


def encoded(events: list[LogEvent]) -> list[bytes]:
    """Return their requests, from which nothing is missing."""
    lost: list[str] = []
    found = list(log_bodies(events, {"service.name": "s"}, lambda _count, why: lost.append(why), lambda: None))
    assert not lost
    assert sum(count for _, count in found) == sum(event.points for event in events)
    return [body for body, _ in found]


def test_many_series_that_are_due_together_are_taken_a_part_at_a_time() -> None:
    """None is forgotten, and from the first time on they are due apart; with many, a look at the clock is rare."""
    now = 0.0
    sources = PointSources(lambda _error: None)
    sources.wanted = True
    curves = GaugeCurves(sources, clock=lambda: now)
    made = [LastValue(SeriesLosses("loss")) for _ in range(2 * FEW)]
    followed = [curves.follow(gauge, (f"loss.{number}", "", ""), ()) for number, gauge in enumerate(made)]
    for _ in range(FIRST):
        for gauge in made:
            gauge.record(0.5)
    taken = list(curves.take(everything=False))
    assert sum(points.size for points in taken) == 2 * FEW * FIRST
    many: list[int] = []
    looks = 0
    for _ in range(40):
        for _ in range(20):
            now += 0.05
            before = len(followed[0].buffer)
            for gauge in made:
                gauge.record(0.25)
            looks += len(followed[0].buffer) > before
        taken = list(curves.take(everything=False))
        assert {points.size for points in taken} <= {1}
        many.append(len(taken))
    assert max(many) <= 2 * FEW // 8
    assert many[20:].count(0) <= 5  # mostly some, not all of them every ten seconds
    assert sum(many) >= 2 * 2 * FEW
    assert looks < 40 * 20 / 6 or not ATOMIC  # before CPython 3.11 each value looks at the clock
    last = list(curves.take(everything=True))
    counted = sum(many) + sum(points.size for points in last)
    assert counted > 3 * 2 * FEW
