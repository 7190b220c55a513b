"""Recording and folding: nothing is lost, nothing is doubled, nothing poisons a sum."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from fractions import Fraction
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tachograph.recording.accumulators import LIMIT, Distribution, LastValue, Sum
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.naming import SECONDS_BOUNDARIES
from tachograph.recording.summary import Total
from tachograph.recording.switch import switch

finite = st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e300, max_value=1e300)
integers = st.integers(min_value=-(2**70), max_value=2**70)


def distribution(boundaries: tuple[float, ...] = SECONDS_BOUNDARIES) -> Distribution:
    """Return an empty distribution."""
    return Distribution(SeriesLosses("test"), boundaries)


@given(st.lists(integers, max_size=3000))
def test_the_sum_of_integers_is_exact(values: list[int]) -> None:
    """Integers add up exactly, whatever their size and order."""
    into = distribution()
    for value in values:
        into.record(value)
    into.fold()
    spread = into.summary()
    assert spread.count == len(values)
    assert spread.total.value() == sum(values)


@given(st.lists(finite, min_size=1, max_size=3000))
def test_the_sum_of_floats_is_within_1e12(values: list[float]) -> None:
    """Floats add up within 1e-12 of the sum of their magnitudes."""
    into = distribution()
    for value in values:
        into.record(value)
    into.fold()
    exact = sum(Fraction(value) for value in values)
    magnitude = sum(abs(Fraction(value)) for value in values)
    assert abs(Fraction(into.summary().total.value()) - exact) <= Fraction(1, 10**12) * magnitude


@given(st.lists(st.one_of(finite, st.integers(-(10**6), 10**6)), max_size=2500))
def test_buckets_agree_with_a_count_by_hand(values: list[float]) -> None:
    """A value on a bound counts below it, as the OpenTelemetry data model says; minimum and maximum are exact."""
    bounds = (-1.0, 0.0, 0.5, 1.0, 1000.0)
    into = distribution(bounds)
    for value in values:
        into.record(value)
    into.fold()
    spread = into.summary()
    at_most = [sum(value <= bound for value in values) for bound in bounds]
    assert (list(spread.at_most), sum(spread.buckets), len(spread.buckets)) == (at_most, len(values), 6)
    if values:
        assert (spread.minimum, spread.maximum) == (min(values), max(values))


@pytest.mark.process
def test_without_numpy_the_result_is_the_same() -> None:
    """The standard library's fold gives what NumPy's gives."""
    program = (
        "import random, sys\n"
        "if sys.argv[1] == 'numpy': import numpy\n"
        "from tachograph.recording.accumulators import Distribution\n"
        "from tachograph.recording.losses import SeriesLosses\n"
        "from tachograph.recording.naming import SECONDS_BOUNDARIES\n"
        "draw = random.Random(7)\n"
        "into = Distribution(SeriesLosses('x'), SECONDS_BOUNDARIES)\n"
        "for _ in range(5000): into.record(draw.lognormvariate(-3, 2))\n"
        "into.fold()\n"
        "assert ('numpy' in sys.modules) == (sys.argv[1] == 'numpy')\n"
        "print(into.summary())\n"
    )
    results = [
        subprocess.run([sys.executable, "-c", program, which], check=True, capture_output=True, text=True).stdout
        for which in ("numpy", "plain")
    ]
    assert results[0] == results[1]


@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.integers(),
            st.sampled_from([2**1024, 10**308 * 9, -(2**2000)]),
            st.booleans(),
            st.none(),
            st.text(max_size=5),
            st.binary(max_size=3),
            st.complex_numbers(),
            st.decimals(),
            st.fractions(),
            st.lists(st.integers(), max_size=2),
            st.sampled_from([10**400, -(10**400), math.nan, math.inf, -math.inf, object()]),
        ),
        max_size=200,
    )
)
def test_any_value_leaves_the_series_deliverable(values: list[object]) -> None:
    """Whatever is recorded, finite values are summed, others counted apart, and nothing raises."""
    for made in (distribution(), Sum(SeriesLosses("x")), LastValue(SeriesLosses("x"))):
        for value in values:
            made.record(value)
        made.fold()
        if isinstance(made, Distribution):
            spread = made.summary()
            assert spread.count + spread.nonfinite + made.losses.no_number == len(values)
            assert not math.isnan(spread.total.value())
            struct.pack("d", spread.minimum)
        else:
            value = made.value()
            assert value is None or isinstance(value, int | float)


def test_nonfinite_values_never_poison_a_sum() -> None:
    """NaN and infinities are counted apart; the sum, the minimum and the maximum are over the finite values."""
    into = distribution()
    for value in (1.0, math.nan, 2.0, math.inf, -math.inf, 3):
        into.record(value)
    into.fold()
    spread = into.summary()
    assert (spread.count, spread.nonfinite, spread.total.value()) == (3, 3, 6.0)
    assert (spread.minimum, spread.maximum) == (1.0, 3.0)
    assert into.losses.nonfinite == 3


def test_finite_values_whose_sum_is_beyond_floats_do_not_poison_it() -> None:
    """The sum of finite values overflows only as long as it is too large: it can come back."""
    into = distribution()
    for values in ([1.7e308] * 3, [-1.7e308] * 3, [1.0]):
        for value in values:
            into.record(value)
        into.fold()
    assert into.summary().total.value() == 1.0


def test_a_gauge_shows_nan_and_counts_it() -> None:
    """The last value is shown as it is; how often it was not finite is counted."""
    gauge = LastValue(SeriesLosses("loss"))
    gauge.record(0.5)
    gauge.record(math.nan)
    shown = gauge.value()
    assert shown is not None
    assert math.isnan(shown)
    gauge.record(math.inf)
    assert gauge.value() == math.inf
    assert gauge.losses.nonfinite == 2


def test_a_counter_never_goes_backwards(caplog: pytest.LogCaptureFixture) -> None:
    """A negative add is not added, counted, and said once."""
    counter = Sum(SeriesLosses("tokens"))
    for value in (5, -1, 2.5, -3, True):
        counter.record(value)
    counter.fold()
    assert counter.value() == 8.5
    assert counter.losses.negative == 2
    assert caplog.text.count("negative") == 1


def test_threads_conserve_the_count_and_the_sum() -> None:
    """Adds on several threads, with folds and reads in between, lose and double nothing."""
    into = distribution()
    counter = Sum(SeriesLosses("n"))
    done = threading.Event()
    seen: list[int] = []

    def add() -> None:
        for value in range(50_000):
            into.record(value)
            counter.record(1)

    def read() -> None:
        while not done.is_set():
            into.fold(wait=0.1)
            counter.fold()
            seen.append(into.summary().count)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=add) for _ in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    into.fold(wait=1)
    counter.fold(wait=1)
    assert into.summary().count == 200_000
    assert into.summary().total.value() == 4 * sum(range(50_000))
    assert counter.value() == 200_000
    assert seen == sorted(seen)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.sampled_from(["add", "fold", "read"]), max_size=60), st.integers(1, 3))
def test_any_interleaving_conserves(steps: list[str], threads: int) -> None:
    """Any sequence of adds, folds and reads on several threads conserves count and sum."""
    into = distribution()
    barrier = threading.Barrier(threads)

    def run() -> None:
        barrier.wait()
        for step in steps:
            if step == "add":
                for value in range(300):
                    into.record(value)
            elif step == "fold":
                into.fold()
            else:
                into.summary()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    into.fold(wait=1)
    adds = threads * steps.count("add")
    assert into.summary().count == adds * 300
    assert into.summary().total.value() == adds * sum(range(300))


@pytest.mark.usefixtures("untraced")
def test_a_signal_handler_may_record_while_its_thread_folds() -> None:
    """A handler that records in the middle of a fold neither deadlocks nor loses a value."""
    into = distribution()
    handled = itertools.count()

    def handler(_signum: int, _frame: FrameType | None) -> None:
        into.record(1)
        into.fold()
        next(handled)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(300_000):
            into.record(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    into.fold(wait=1)
    signals = next(handled)
    assert signals > 10
    assert into.summary().count == 300_000 + signals
    assert into.summary().total.value() == 300_000 + signals


@pytest.mark.usefixtures("untraced")
def test_an_interrupt_in_the_middle_of_a_fold_loses_nothing() -> None:
    """KeyboardInterrupt out of a fold leaves every value either added up or in the buffer."""
    into = distribution()
    recorded = 0

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(150):
            for value in itertools.repeat(0.25, 1000):
                into.record(value)
                recorded += 1
            # The outer one: the signal may come while the inner one is being left.
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00002)
                    into.fold()
                    for _ in range(100):
                        into.fold()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    into.fold(wait=1)
    assert into.summary().count + into.outstanding() >= recorded - 1
    assert into.summary().count <= recorded + 1


def test_beyond_the_buffers_limit_values_are_counted_out() -> None:
    """While a fold cannot happen the buffer grows to its limit, then further values are counted, none silently lost."""
    into = distribution()
    with into._lock:
        into._folding = threading.get_ident()
        for _ in range(LIMIT + 2000):
            into.record(1)
    into.fold()
    assert into.summary().count == LIMIT
    assert into.losses.overflow == 2000


def test_a_forked_child_that_shall_not_record_keeps_nothing() -> None:
    """With the switch off a fold throws away, so that a data-loader worker holds no memory and doubles no count."""
    into = distribution()
    into.record(1)
    switch.on = False
    try:
        into.fold()
        assert into.outstanding() == 0
    finally:
        switch.on = True
    assert into.summary().count == 0


class _Event:
    def __init__(self) -> None:
        self.arrived = False

    def query(self) -> bool:
        return self.arrived


class _Host:
    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


def test_device_values_are_taken_when_they_have_arrived() -> None:
    """A value still on its way is neither waited for nor lost, and a later plain value of a gauge wins over it."""
    from tachograph.recording.values import Pending

    event = _Event()
    into = distribution()
    into._buffer.append(Pending(_Host(0.5), event))
    into.record(1.5)
    into.fold()
    assert (into.summary().count, into.outstanding()) == (1, 1)
    event.arrived = True
    into.fold()
    assert (into.summary().count, into.summary().total.value(), into.outstanding()) == (2, 2.0, 0)


class _Graph:
    """A stand-in for ``torch.cuda.CUDAGraph``: no GPU can be had in a test."""

    fails = False

    def capture_begin(self, pool: object = None) -> object:
        """Begin."""
        if self.fails:
            raise RuntimeError("no capture")
        return pool

    def capture_end(self) -> None:
        """End."""


def test_no_event_is_queried_while_a_graph_is_captured() -> None:
    """A query of another thread would spoil the capture: the value arrives after it, also after one that failed."""
    from types import SimpleNamespace

    from tachograph.recording.cuda_captures import Captures

    captures, asked = Captures(), []

    def query() -> bool:
        asked.append(True)
        return True

    cuda = SimpleNamespace(CUDAGraph=type("CUDAGraph", (_Graph,), {}))
    captures.follow(cuda)
    captures.follow(cuda)
    first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
    assert first.capture_begin("pool") == "pool"
    second.fails = True
    with pytest.raises(RuntimeError):
        second.capture_begin()
    assert not captures.has_passed(query)
    assert asked == []
    first.capture_end()
    assert captures.has_passed(query)
    second.fails = False
    second.capture_begin()
    assert not captures.has_passed(query)
    del second  # without its end
    assert captures.has_passed(query)
    assert asked == [True, True]


@given(st.lists(finite, max_size=50))
def test_a_compensated_total_is_close_to_exact(values: list[float]) -> None:
    """Totals of chunks are added with compensation: the error does not grow with their number."""
    total = Total()
    for value in values:
        total = total.plus(value)
    exact = sum(Fraction(value) for value in values)
    magnitude = sum(abs(Fraction(value)) for value in values)
    if abs(magnitude) < Fraction(10**307):
        assert abs(Fraction(total.value()) - exact) <= Fraction(1, 10**14) * magnitude


@pytest.mark.process
@pytest.mark.torch
def test_numpy_and_torch_scalars_are_numbers() -> None:
    """NumPy scalars, arrays and CPU tensors of one element are read at the call; larger ones are counted."""
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    into = distribution()
    running = torch.tensor(2.0, requires_grad=True)
    array = numpy.array([4.0])
    for value in (numpy.float32(1.0), numpy.int64(2), running, torch.tensor([3]), array, numpy.bool_(True)):
        into.record(value)
    with torch.no_grad():
        running.zero_()
    array[:] = 0
    into.record(torch.ones(2))
    into.record(numpy.ones((2, 2)))
    into.record(torch.ones(1, device="meta"))
    into.fold()
    assert (into.summary().count, into.summary().total.value()) == (6, 13.0)
    assert into.losses.no_number == 3


@pytest.mark.process
def test_fork_in_the_middle_of_a_fold_does_not_hang_the_child() -> None:
    """A child forked while another thread held a fold's lock records on after a reset."""
    into = distribution()
    with into._lock:
        child = os.fork()
        if not child:
            into.reset()
            switch.on = True
            into.record(1)
            into.fold(wait=1)
            os._exit(0 if into.summary().count == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


class _Broken:
    """The event of a device on which every call fails, as after an illegal access."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_device_that_fails_costs_its_own_values(caplog: pytest.LogCaptureFixture) -> None:
    """A value that never arrives is counted and said once; what others recorded is read as ever."""
    from tachograph.recording.values import Pending

    broken = [Pending(_Host(0.5), _Broken()) for _ in range(3)]
    into, counter, gauge = distribution(), Sum(SeriesLosses("counter")), LastValue(SeriesLosses("gauge"))
    into._buffer += broken
    counter._buffer += broken
    gauge.waiting = deque(broken)
    for each in (into, counter, gauge):
        each.fold()
        assert each.fold()
        each.record(1.5)
        each.fold()
        assert each.losses.no_number == 3
    assert (into.summary().count, counter.value(), gauge.value()) == (1, 1.5, 1.5)
    assert len(caplog.records) == 3
    assert all("illegal memory access" in record.message for record in caplog.records)
