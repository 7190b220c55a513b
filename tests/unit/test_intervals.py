"""Intervals of exponential histograms: each reader gets each value once, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tachograph.recording.accumulators import Distribution
from tachograph.recording.exponential import ExponentialCounts, ExponentialHistogram
from tachograph.recording.intervals import IntervalReader, Intervals
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.naming import SECONDS_BOUNDARIES
from tachograph.recording.points import HistogramPoint, histogram_point
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.values import as_float

NOTHING = ExponentialHistogram()
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.one_of(
    finite,
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2**53 + 1, 2**70, -(2**63), 10**400]),
    st.integers(-(2**64), 2**64),
)


def distribution(intervals: Intervals, boundaries: tuple[float, ...] = SECONDS_BOUNDARIES) -> Distribution:
    """Return an empty distribution for these readers."""
    return Distribution(SeriesLosses("test"), boundaries, intervals)


def taken(into: Distribution, reader: IntervalReader) -> ExponentialHistogram:
    """Return what a reader gets of all that is recorded, in a reading of its own."""
    into.fold(wait=1)
    _, found = into.read(reader, 1)
    reader.finish()
    assert found is not None
    return found


def joined(parts: Iterable[ExponentialHistogram]) -> ExponentialHistogram:
    """Return several intervals as one."""
    found = NOTHING
    for part in parts:
        found = found.plus(part)
    return found


def expected(recorded: Sequence[float]) -> ExponentialHistogram:
    """Return the histogram of the finite ones of these values."""
    kept = sorted(value for value in recorded if math.isfinite(value))
    return ExponentialCounts().plus(np.array(kept)).histogram() if kept else NOTHING


def assert_alike(found: ExponentialHistogram, wanted: ExponentialHistogram) -> None:
    """Compare two histograms at a scale that both have."""
    scale = min(found.scale, wanted.scale)
    assert repr(found.at_scale(scale)) == repr(wanted.at_scale(scale))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(values, max_size=90),
            st.sampled_from(["fold", "first", "second", "unfinished"]),
        ),
        max_size=12,
    ),
    st.sampled_from([SECONDS_BOUNDARIES, ()]),
)
def test_each_reader_gets_each_value_once(steps: list[list[float] | str], boundaries: tuple[float, ...]) -> None:
    """Two readers that read in any order have all values in the end; a reading that is not finished comes again."""
    intervals = Intervals()
    readers = {"first": intervals.open(), "second": intervals.open()}
    into = distribution(intervals, boundaries)
    got: dict[str, list[ExponentialHistogram]] = {"first": [], "second": []}
    recorded: list[float] = []
    for step in steps:
        if isinstance(step, list):
            for value in step:
                into.record(value)
                recorded.append(as_float(value))
        elif step == "fold":
            into.fold()
        elif step == "unfinished":
            into.fold()
            into.read(readers["first"])
        else:
            got[step].append(taken(into, readers[step]))
    for name, reader in readers.items():
        got[name].append(taken(into, reader))
        whole = joined(got[name])
        assert whole.total == into.summary().count
        assert_alike(whole, expected(recorded))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.floats(-10, 10), max_size=3000), min_size=1, max_size=4))
def test_a_reading_agrees_with_its_summary(rounds: list[list[float]]) -> None:
    """What came since the last reading is the difference of the summaries: count and extremes."""
    intervals = Intervals()
    reader, into, count = intervals.open(), distribution(intervals), 0
    for recorded in rounds:
        for value in recorded:
            into.record(value)
        into.fold()
        summary, found = into.read(reader)
        reader.finish()
        assert found is not None
        assert found.total == summary.count - count == len(recorded)
        assert not recorded or (found.minimum, found.maximum) == (min(recorded), max(recorded))
        count = summary.count


def test_without_a_reader_nothing_is_counted() -> None:
    """A distribution counts from the first reader on, and no more once the last one has no use for it."""
    intervals = Intervals()
    into = distribution(intervals)
    into.record(1.0)
    into.fold()
    assert into._state[1] is None
    reader = intervals.open()
    into.record(2.0)
    assert taken(into, reader) == expected([2.0])
    intervals.close(reader, goes_on=False)
    into.record(3.0)
    into.fold()
    assert into._state[1] is None


def test_a_later_reader_goes_on() -> None:
    """Values between the end of one reader and the beginning of the next are in the next one's first interval."""
    intervals = Intervals()
    into = distribution(intervals)
    first = intervals.open()
    into.record(1.0)
    taken(into, first)
    intervals.close(first, goes_on=True)
    into.record(2.0)
    into.fold()
    assert taken(into, intervals.open()) == expected([2.0])


def test_values_wait_in_numpy_or_not() -> None:
    """Few values, many, few again, in lists and in arrays, are those that were recorded."""
    recorded = np.random.default_rng(7).lognormal(0, 3, 9000).tolist()
    intervals = Intervals()
    into, reader = distribution(intervals), intervals.open()
    parts, at = [], 0
    for size in (1, 40, 63, 64, 1, 2048, 5, 70, 4096, 3):
        for value in recorded[at : at + size]:
            into.record(value)
        into.fold()
        at += size
        if size in (64, 5):
            parts.append(taken(into, reader))
    parts.append(taken(into, reader))
    assert_alike(joined(parts), expected(recorded[:at]))


def test_threads_that_record_and_readers_that_read() -> None:
    """Four threads record while two readers read: each of them has every value, in its bucket, once."""
    intervals = Intervals()
    readers = [intervals.open(), intervals.open()]
    into = distribution(intervals)
    recorded = [[0.001 * (number + 1) * (1 + thread) for number in range(12_000)] for thread in range(4)]
    got: list[list[ExponentialHistogram]] = [[], []]
    done, both_have_some = threading.Event(), threading.Event()

    def record(those: list[float]) -> None:
        for number, value in enumerate(those):
            if number == len(those) // 2:
                assert both_have_some.wait(60)
            into.record(value)

    def read(which: int) -> None:
        while not done.is_set():
            into.fold(wait=0.05)
            _, found = into.read(readers[which], 0.05)
            readers[which].finish()
            if found is not None and found.total:
                got[which].append(found)
            if all(got):
                both_have_some.set()
            time.sleep(0.001)

    with ThreadPoolExecutor(6) as pool:
        reading = pool.map(read, range(2))
        try:
            list(pool.map(record, recorded))
        finally:
            done.set()
        list(reading)
    everything = expected([value for those in recorded for value in those])
    for which, reader in enumerate(readers):
        got[which].append(taken(into, reader))
        assert len(got[which]) > 1
        assert_alike(joined(got[which]), everything)


@pytest.mark.usefixtures("untraced")
def test_an_interrupt_in_a_fold_or_a_reading_loses_nothing_and_doubles_nothing() -> None:
    """KeyboardInterrupt anywhere leaves summary and intervals agreeing on how many values there are."""
    intervals = Intervals()
    reader, into = intervals.open(), distribution(intervals)
    got, recorded = NOTHING, 0

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # an interrupt in the middle of Hypothesis's own callback there would be none
    try:
        for turn in range(200):
            for value in itertools.repeat(0.25 * (1 + turn % 7), 300):
                into.record(value)
                recorded += 1
            found: ExponentialHistogram | None = None
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00001 + 0.000002 * (turn % 40))
                    into.fold()
                    for _ in range(20):
                        into.read(reader)  # not finished: they come again
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            into.fold(wait=1)
            _, found = into.read(reader, 1)
            assert found is not None
            got = got.plus(found)
            reader.finish()
            assert got.total == into.summary().count
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert abs(got.total - recorded) <= 1


def test_a_handler_that_reads_in_the_middle_of_a_fold_of_its_thread_waits_for_nothing() -> None:
    """The interval goes on: the handler gets the summary so far and no histogram; nothing hangs."""
    intervals = Intervals()
    reader, into = intervals.open(), distribution(intervals)
    into.record(1.0)
    into.fold()
    found: list[object] = []

    def tap(_chunk: Sequence[float]) -> None:  # called inside the fold, as a handler's code would be
        found.append(into.read(reader, wait=60)[1])

    into.tap = tap
    into.record(2.0)
    into.fold()
    assert found == [None]
    assert taken(into, reader) == expected([1.0, 2.0])


@pytest.mark.process
def test_a_forked_child_counts_anew() -> None:
    """After a reset a child has no reader of its parent and no value of it; a reader of its own gets its own values."""
    registry = Registry()
    registry.intervals.open()
    series = registry.group("g").declare("t", kind="histogram", unit="s", description="", boundaries=None)
    series.record(1.0)
    child = os.fork()
    if not child:
        passed = False
        try:
            registry.reset()
            switch.on = True
            reader = registry.intervals.open()
            series.record(4.0)
            (metric,) = [metric for metric in registry.collect(None, reader) if metric.name == "t"]
            (point,) = metric.points
            passed = (
                registry.intervals.readers == (reader,)
                and isinstance(point, HistogramPoint)
                and point.interval == expected([4.0])
            )
        finally:
            os._exit(0 if passed else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.process
def test_without_numpy_the_histogram_is_the_same() -> None:
    """The standard library counts what NumPy counts, also where the program imports that in the middle."""
    program = (
        "import random, sys\n"
        "if sys.argv[1] == 'numpy': import numpy\n"
        "from tachograph.recording.registry import Registry\n"
        "draw, registry = random.Random(7), Registry()\n"
        "reader = registry.intervals.open()\n"
        "into = registry.group('g').declare('t', kind='histogram', unit='s', description='', boundaries=None)\n"
        "for number in range(9000):\n"
        "    into.record(draw.gauss(1, 2) if number % 50 else 0)\n"
        "    if number == 5000 and sys.argv[1] == 'late': import numpy\n"
        "assert ('numpy' in sys.modules) == (sys.argv[1] != 'plain')\n"
        "print([m.points[0].interval for m in registry.collect(None, reader) if m.name == 't'])\n"
    )
    results = {
        subprocess.run([sys.executable, "-c", program, which], check=True, capture_output=True, text=True).stdout
        for which in ("numpy", "plain", "late")
    }
    assert len(results) == 1
    assert "zeros=180" in results.pop()


def test_only_the_reader_takes() -> None:
    """A page and a program's own reader collect as often as they like, and take nothing from the one that asked."""
    registry = Registry()
    reader = registry.intervals.open()
    series = registry.group("g").declare("t", kind="histogram", unit="s", description="", boundaries=None)
    points = []
    for value in (1.0, 2.0, 4.0):
        series.record(value)
        points += [m.points[0] for m in registry.collect() if m.name == "t"]
    assert [getattr(point, "interval", NOTHING) for point in points] == [None] * 3
    (point,) = [m.points[0] for m in registry.collect(None, reader) if m.name == "t"]
    assert isinstance(point, HistogramPoint)
    assert point.interval == expected([1.0, 2.0, 4.0])


def test_a_point_of_several_distributions_has_the_values_of_all() -> None:
    """A function's failures are one point: its interval has those of each type of error."""
    intervals = Intervals()
    reader = intervals.open()
    parts = [distribution(intervals) for _ in range(3)]
    for part, value in zip(parts, (1.0, 2.0, 400.0), strict=True):
        part.record(value)
        part.fold()
    point = histogram_point((), parts, reader)
    assert point is not None
    assert point.interval is not None
    assert_alike(point.interval, expected([1.0, 2.0, 400.0]))
