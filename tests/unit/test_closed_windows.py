"""Closed windows: gauges keep the last one, and each reader gets each of them once, in order, whatever it waits for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from tachograph.exporters._deltas import ClosedWindowReader
from tachograph.exporters.batch import Batch
from tachograph.exporters.external_provider import ExternalProvider
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.producer import SdkExporter
from tachograph.exporters.prometheus.format import negotiate
from tachograph.exporters.prometheus.page import Page
from tachograph.instrumentation._bridge import BridgedStats
from tachograph.monitor import COUNT, MAX, MEAN, P99, SUM, Stat
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.recording import registry as registries
from tachograph.recording.closed_windows import ClosedWindows
from tachograph.recording.journal import Journal
from tachograph.recording.own_metrics import DROPPED
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

SECOND, MILLISECOND = 1_000_000_000, 1_000_000
START = 1_000_000 * SECOND


class Recorder:
    """Stats whose windows close when the test says so, and what they log."""

    def __init__(self, *, threaded: bool = False, **bounds: int) -> None:
        self.now = START
        self.registry = Registry(enabled=True)
        self.registry.closed_windows = ClosedWindows(**bounds)
        self.journal = Journal(self.registry)
        clock = time.time_ns if threaded else lambda: self.now
        self.windows = Windows(EventLog(self.journal, self.registry), self.registry, clock=clock, threaded=threaded)

    def stat(self, name: str = "load", aggregations: Any = (MEAN, SUM), size: float = 1.0, *args: Any) -> Stat:
        """Make a Stat."""
        return Stat(name, aggregations, size, *args, windows=self.windows)

    def wait(self, seconds: float) -> None:
        """Let time go by, and close what is due."""
        self.now += round(seconds * 1000) * MILLISECOND
        self.windows.tick()

    def gauges(self) -> dict[str, float]:
        """Return the gauges of all Stats, each of which has one point."""
        found: dict[str, float] = {}
        for metric in self.registry.collect():
            if (metric.scope, metric.kind) == ("torch.monitor", "gauge"):
                (point,) = metric.points
                assert isinstance(point, NumberPoint)
                assert not point.time_unix_nano
                found[metric.name] = point.value
        return found

    def dropped(self) -> dict[str, float]:
        """Return what was lost for want of room, by destination."""
        return {
            str(dict(point.attributes)["destination"]): point.value
            for metric in self.registry.collect()
            if metric.name == DROPPED.name
            for point in metric.points
            if isinstance(point, NumberPoint) and ("reason", "windows_full") in point.attributes
        }


class Point(NamedTuple):
    """A point as a receiver sees it."""

    start: int
    time: int
    value: float


class Receiver:
    """What arrives at the other end of our own OTLP."""

    def __init__(self, recorder: Recorder, destination: str = "there") -> None:
        self._recorder = recorder
        self._encoder = MetricsEncoder(destination, recorder.registry, windows=True, pace=lambda: None)
        self.windows: dict[str, list[Point]] = {}
        self.all: dict[str, list[Point]] = {}

    def export(self, now: int | None = None) -> None:
        """Collect and send."""
        now = self._recorder.now if now is None else now
        for request, _ in self._encoder.messages(Batch(self._recorder.registry.collect(), None, [], {}, now)):
            for scope in request.resource_metrics[0].scope_metrics:
                for metric in scope.metrics:
                    for each in metric.gauge.data_points:
                        value = each.as_int if each.WhichOneof("value") == "as_int" else each.as_double
                        point = Point(each.start_time_unix_nano, each.time_unix_nano, value)
                        self.all.setdefault(metric.name, []).append(point)
                        if point.start:
                            self.windows.setdefault(metric.name, []).append(point)

    def close(self) -> None:
        """Ask for no more."""
        self._encoder.close()

    def fork(self) -> None:
        """Begin anew, as in a forked child."""
        self._encoder.forget()

    def values(self, name: str) -> list[float]:
        """Return a gauge's values, one a window."""
        return [point.value for point in self.windows.get(name, [])]


@pytest.fixture
def recorder() -> Recorder:
    """Return Stats of the test's own."""
    return Recorder()


def test_a_gauge_keeps_the_last_window_until_another_one_closes(recorder: Recorder) -> None:
    """Windows without values change nothing, however many; the end tells how old the value is."""
    stat = recorder.stat()
    for value in (1.0, 3.0):
        stat.add(value)
    recorder.wait(1)
    shown = {"load.mean": 2.0, "load.window.count": 2, "load.window.sum": 4.0, "load.window.end": START / SECOND + 1}
    assert recorder.gauges() == shown
    for _ in range(50):
        recorder.wait(1)
        assert recorder.gauges() == shown
    stat.add(7.0)
    recorder.wait(1)
    assert recorder.gauges() == {
        "load.mean": 7.0,
        "load.window.count": 1,
        "load.window.sum": 7.0,
        "load.window.end": START / SECOND + 52,
    }


def test_a_gauge_outlives_its_stat(recorder: Recorder) -> None:
    """A Stat that is gone leaves what its last window came to, also when hundreds of its name follow it empty."""
    stat = recorder.stat(aggregations=(MAX,))
    stat.add(5.0)
    recorder.wait(1)
    stat.add(6.0)
    del stat
    for _ in range(300):
        recorder.stat(aggregations=(SUM,))
        recorder.wait(1)
    assert recorder.gauges() == {
        "load.max": 6.0,
        "load.window.count": 1,
        "load.window.sum": 6.0,
        "load.window.end": START / SECOND + 1,
    }


def test_the_page_shows_the_last_window_only(recorder: Recorder) -> None:
    """One sample a gauge, though an exporter beside it gets every window; and it stays."""
    receiver, page = Receiver(recorder), Page({}, {}, recorder.registry)
    stat = recorder.stat()
    for value in (1.0, 2.0, 3.0):
        stat.add(value)
        recorder.wait(1)
    for _ in range(3):
        text = page.render(recorder.registry.collect(), None, negotiate("text/plain")).decode()
        assert [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("load_mean{")] == ["3.0"]
        assert "load_window_end_seconds{" in text
        recorder.wait(5)
    receiver.export()
    assert receiver.values("load.mean") == [1.0, 2.0, 3.0]


def test_a_provider_of_the_program_shows_the_last_window_only(recorder: Recorder) -> None:
    """A reader of theirs that looks after many empty windows sees the last one that was not."""
    receiver, theirs = Receiver(recorder), InMemoryMetricReader()
    stat = recorder.stat()
    external = ExternalProvider(MeterProvider([theirs], shutdown_on_exit=False), recorder.registry)
    for value in (1.0, 2.0):
        stat.add(value)
        recorder.wait(1)
    recorder.wait(30)
    external.refresh()
    data: Any = theirs.get_metrics_data()
    found = {
        metric.name: [point.value for point in metric.data.data_points]
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if hasattr(metric.data.data_points[0], "value")
    }
    assert (found["load.mean"], found["load.window.end"]) == ([2.0], [START / SECOND + 2])
    external.close()
    receiver.export()
    assert receiver.values("load.mean") == [1.0, 2.0]


def test_a_window_is_one_point_with_its_bounds(recorder: Recorder) -> None:
    """Points lie at the multiples of the window's size; the first begins with the Stat, one that is full ends early."""
    recorder.wait(0.25)
    receiver = Receiver(recorder)
    stat = recorder.stat("load", (MEAN,), 1.0, 3)
    stat.add(1.0)
    recorder.wait(0.75)
    recorder.wait(1)
    stat.add(2.0)
    recorder.wait(1.0005)
    recorder.wait(0.2)
    for value in (3.0, 4.0, 5.0, 6.0):
        stat.add(value)
    recorder.wait(1)
    stat.add(7.0)
    recorder.wait(0.1)
    del stat
    receiver.export()
    bounds = [
        ((point.start - START) / SECOND, (point.time - START) / SECOND) for point in receiver.windows["load.mean"]
    ]
    early = pytest.approx(3.2, abs=0.01)
    assert bounds == [(0.25, 1), (2, 3), (3, early), (4, pytest.approx(4.3, abs=0.01))]
    assert receiver.values("load.mean") == [1.0, 2.0, 4.0, 7.0]
    assert receiver.values("load.window.count") == [1, 1, 3, 1]
    assert receiver.values("load.window.end") == [point.time / SECOND for point in receiver.windows["load.mean"]]


def test_between_windows_the_gauge_is_sent_as_it_is(recorder: Recorder) -> None:
    """What watches a series does not take it for gone: the last value comes again, at the time of the collection."""
    receiver = Receiver(recorder)
    stat = recorder.stat()
    stat.add(4.0)
    recorder.wait(1)
    receiver.export()
    for _ in range(3):
        recorder.wait(1)
        receiver.export()
    assert receiver.windows["load.mean"] == [Point(START, START + SECOND, 4.0)]
    assert receiver.all["load.mean"][1:] == [Point(0, START + (2 + each) * SECOND, 4.0) for each in range(3)]
    assert {point.value for point in receiver.all["load.window.end"]} == {START / SECOND + 1}


def test_a_reader_gets_what_closes_after_it_came(recorder: Recorder) -> None:
    """What had closed before is there as the gauge's value, not as a window."""
    stat = recorder.stat()
    early = Receiver(recorder, "early")
    stat.add(1.0)
    recorder.wait(1)
    late = Receiver(recorder, "late")
    late.export()
    assert (late.windows, late.all["load.mean"]) == ({}, [Point(0, START + SECOND, 1.0)])
    stat.add(2.0)
    recorder.wait(1)
    late.export()
    early.export()
    assert (early.values("load.mean"), late.values("load.mean")) == ([1.0, 2.0], [2.0])


def test_stats_of_one_name_have_no_two_points_in_a_millisecond(recorder: Recorder) -> None:
    """Prometheus would refuse the whole request for that; the points come in order, and all of them."""
    receiver = Receiver(recorder)
    stats = [recorder.stat(size=0.005) for _ in range(3)]
    for turn in range(20):
        for number, stat in enumerate(stats):
            stat.add(float(10 * turn + number))
        recorder.wait(0.005)
        if turn % 7 == 0:
            receiver.export()
    receiver.export()
    points = receiver.all["load.mean"]
    assert receiver.values("load.mean") == [float(10 * turn + number) for turn in range(20) for number in range(3)]
    assert all(later.time - earlier.time >= MILLISECOND for earlier, later in pairwise(points))


class Play:
    """Five Stats of three names, and up to three receivers, each with what was logged while it was there."""

    def __init__(self) -> None:
        self.recorder = recorder = Recorder()
        self.stats: list[Stat | None] = [
            recorder.stat("a", (MEAN,), 0.5),
            recorder.stat("a", (SUM, P99), 0.5),
            recorder.stat("b", (MEAN, COUNT), 1.0, 3),
            recorder.stat("c", (SUM,), 0.002),
            recorder.stat("c", (MEAN,), 2.5, 2),
        ]
        self._logged: list[dict[str, Any]] = []
        self.here = {0: Receiver(recorder), 1: Receiver(recorder)}
        self._since = {0: 0, 1: 0}
        self.gone: list[tuple[Receiver, list[dict[str, Any]]]] = []

    def add(self, which: int, value: int) -> None:
        """Add a value to a Stat, where it is still there."""
        stat = self.stats[which]
        if stat is not None:
            stat.add(value)

    def destroy(self, which: int, _: int) -> None:
        """Let go of a Stat."""
        self.stats[which] = None

    def wait(self, _: int, value: int) -> None:
        """Let time go by, and close what is due."""
        self.recorder.wait(value / 1000)

    def export(self, which: int, _: int) -> None:
        """Have a receiver come, where it is not there yet, or get what is new."""
        if which in self.here:
            self.here[which].export()
        elif which not in self._since:
            self._since[which] = self._log()
            self.here[which] = Receiver(self.recorder)

    def leave(self, which: int, _: int) -> None:
        """Have a receiver get what is new, and leave."""
        receiver = self.here.pop(which, None)
        if receiver is not None:
            receiver.export()
            end = self._log()
            receiver.close()
            self.gone.append((receiver, self._logged[self._since[which] : end]))

    def _log(self) -> int:
        self._logged += [dict(event.attributes) for event in self.recorder.journal.drain()]
        return len(self._logged)


which, value = st.integers(0, 4), st.integers(-1000, 1000)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), which, value),
        st.tuples(st.just("wait"), which, st.integers(0, 3000)),
        st.tuples(st.just("export"), st.integers(0, 2), value),
        st.tuples(st.sampled_from(["add", "leave", "destroy"]), which, value),
    ),
    max_size=100,
)


@given(steps)
def test_every_reader_gets_every_window_once_in_order(taken: Sequence[tuple[str, int, int]]) -> None:
    """Readers with intervals of their own get what the events say, from when each came until it went."""
    play = Play()
    for what, *arguments in taken:
        getattr(play, what)(*arguments)
    play.recorder.windows.finish()
    for number in list(play.here):
        play.leave(number, 0)
    for receiver, logged in play.gone:
        for key in ("a.mean", "a.p99", "b.mean", "c.mean"):
            assert receiver.values(key) == [each[key] for each in logged if key in each]
        for name in "abc":
            mine = [each for each in logged if any(key.startswith(f"{name}.") for key in each)]
            assert len(receiver.values(f"{name}.window.end")) == len(mine)
            told = [
                value
                for each, value in zip(mine, receiver.values(f"{name}.window.sum"), strict=True)
                if f"{name}.sum" in each
            ]
            assert told == [each[f"{name}.sum"] for each in mine if f"{name}.sum" in each]
        for points in receiver.all.values():
            assert all(point.start <= point.time for point in points)
            assert all(later.time - earlier.time >= MILLISECOND for earlier, later in pairwise(points))
    assert play.recorder.dropped() == {}
    assert play.recorder.registry.closed_windows.kept == 0


def test_what_every_reader_has_taken_is_let_go_of(recorder: Recorder) -> None:
    """Windows wait for the slowest reader, and for none that has gone; without a reader none is kept."""
    kept = recorder.registry.closed_windows
    stat = recorder.stat()

    def close(windows: int) -> None:
        for _ in range(windows):
            stat.add(1.0)
            recorder.wait(1)

    close(5)
    assert kept.kept == 0
    fast, slow = Receiver(recorder), Receiver(recorder)
    close(5)
    fast.export()
    assert kept.kept == 5
    slow.export()
    assert kept.kept == 0
    close(5)
    fast.export()
    slow.close()
    assert kept.kept == 0
    fast.close()
    close(5)
    assert kept.kept == 0
    assert recorder.dropped() == {}


def test_windows_that_find_no_room_are_counted() -> None:
    """A reader that does not come loses the oldest ones, and their number is known; the other one loses none."""
    recorder, total = Recorder(most_of_a_stat=1000), 3000
    fast, slow = Receiver(recorder, "fast"), Receiver(recorder, "slow")
    stat = recorder.stat("load", (), 0.001)
    for number in range(total):
        stat.add(number)
        recorder.wait(0.001)
        if number % 400 == 0:
            fast.export()
    fast.export()
    slow.export()
    assert fast.values("load.window.sum") == list(range(total))
    left = slow.values("load.window.sum")
    assert left == list(range(total - len(left), total))
    assert 1000 * 63 // 64 <= len(left) <= 1000
    assert recorder.dropped() == {"slow": total - len(left)}


def test_all_stats_together_are_bounded() -> None:
    """Those that close the most give way to themselves: another one's windows stay."""
    recorder, turns = Recorder(most=2000), 300
    receiver = Receiver(recorder)
    rare = recorder.stat("rare", (), 0.001)
    rare.add(1)
    recorder.wait(0.001)
    often = [recorder.stat(f"often.{number}", (), 0.001) for number in range(16)]
    for turn in range(turns):
        for stat in often:
            stat.add(turn)
        recorder.wait(0.001)
    kept = recorder.registry.closed_windows.kept
    assert 1900 < kept <= 2000
    receiver.export()
    arrived = {stat.name: receiver.values(f"{stat.name}.window.sum") for stat in (rare, *often)}
    assert arrived["rare"] == [1]
    assert sum(map(len, arrived.values())) == kept
    for stat in often:
        assert arrived[stat.name] == list(range(turns - len(arrived[stat.name]), turns))
    assert recorder.dropped() == {"there": turns * len(often) + 1 - kept}


def test_readers_in_threads_get_each_window_once() -> None:
    """While windows of a millisecond close and Stats come and go, three readers at paces of their own miss nothing."""
    recorder = Recorder(threaded=True)
    receivers = [Receiver(recorder, str(number)) for number in range(3)]
    over = threading.Event()

    def read(receiver: Receiver, every: float) -> None:
        while not over.wait(every):
            receiver.export(time.time_ns())
        receiver.export(time.time_ns())

    def add() -> None:
        stat = recorder.stat("load", (SUM,), 0.001)
        for number in range(10_000):
            stat.add(1)
            if number % 100 == 0:
                recorder.stat("load", (SUM,), 0.003).add(1)
                recorder.stat("load", (SUM,), 0.002, 1).add(1)
                time.sleep(0.003)

    adders = [threading.Thread(target=add) for _ in range(2)]
    paces = zip(receivers, (0.001, 0.013, 0.2), strict=True)
    readers = [threading.Thread(target=read, args=arguments) for arguments in paces]
    for thread in (*readers, *adders):
        thread.start()
    for thread in adders:
        thread.join()
    recorder.windows.finish()
    over.set()
    for thread in readers:
        thread.join()
    sums = sorted(event.attributes["load.sum"] for event in recorder.journal.drain())  # type: ignore[type-var]
    assert sum(sums) == 2 * 10_200  # type: ignore[arg-type]
    for receiver in receivers:  # two threads may close windows in another order than that in which they log them
        assert sorted(receiver.values("load.window.sum")) == sums
    assert recorder.dropped() == {}


class Kept(MetricExporter):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Keep it."""
        del timeout_millis
        self.data.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return at once."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing."""
        del timeout_millis


def test_an_exporter_of_the_sdk_gets_every_window(recorder: Recorder) -> None:
    """Any ``MetricExporter`` that is a destination of ours has each window as a data point of the gauge."""
    exporter = Kept()
    destination = SdkExporter(exporter, recorder.registry)
    stat = recorder.stat()
    for turn in range(3):
        for value in (10.0 * turn, 10.0 * turn + 2):
            stat.add(value)
            recorder.wait(1)
        destination(Batch(recorder.registry.collect(), None, [], {}, recorder.now))
    destination.close(10)
    found = [
        (point.value, (point.start_time_unix_nano - START) // SECOND, (point.time_unix_nano - START) // SECOND)  # type: ignore[union-attr,operator]
        for data in exporter.data
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == "load.mean"
        for point in metric.data.data_points
    ]
    assert found == [(0, 0, 1), (2, 1, 2), (10, 2, 3), (12, 3, 4), (20, 4, 5), (22, 5, 6)]
    assert recorder.registry.closed_windows.kept == 0


def test_windows_of_the_real_torch_monitor_are_points_too(recorder: Recorder) -> None:
    """Each event over the bridge is one point at the event's time, which begins where the one before it ended."""
    stats, receiver = BridgedStats(recorder.registry), Receiver(recorder)
    stats.add({"x.mean": 1.0}, START + SECOND)
    stats.add({"x.mean": 2.0, "x.count": 3.0}, START + 2 * SECOND)
    stats.add({"x.count": 4.0}, START + 4 * SECOND)
    receiver.export(START + 5 * SECOND)
    first, second = receiver.windows["x.mean"]
    assert (first.value, first.time, second) == (1.0, START + SECOND, Point(START + SECOND, START + 2 * SECOND, 2.0))
    assert receiver.values("x.window.count") == [3, 4]
    assert receiver.values("x.window.end") == [(START + each * SECOND) / SECOND for each in (1, 2, 4)]
    assert recorder.gauges() == {"x.mean": 2.0, "x.window.count": 4, "x.window.end": (START + 4 * SECOND) / SECOND}


def test_an_exporter_of_logs_alone_keeps_no_windows(recorder: Recorder) -> None:
    """What nobody will ask for is not kept: a reader is attached where metrics leave, and goes with it."""
    closed = recorder.registry.closed_windows
    reader = ClosedWindowReader(recorder.registry, "there")
    history = closed.history()
    assert history.wanted
    reader.close()
    assert not history.wanted


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("untraced")
def test_a_forked_child_has_nothing_of_its_parents_windows(recorder: Recorder) -> None:
    """Its readers get what closes in it, also where a thread of the parent held the lock; the parent's get theirs."""
    receiver = Receiver(recorder)
    stat = recorder.stat()
    stat.add(1.0)
    recorder.wait(1)
    with recorder.registry.closed_windows.lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                recorder.registry.closed_windows.reset_in_child()
                recorder.windows.reset_in_child()
                receiver.fork()
                receiver.export()
                stat.add(2.0)
                recorder.wait(1)
                receiver.export()
                status = 0 if receiver.values("load.mean") == [2.0] else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stat.add(3.0)
    recorder.wait(1)
    receiver.export()
    assert receiver.values("load.mean") == [1.0, 3.0]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("untraced")
def test_a_fork_frees_the_lock_of_the_process() -> None:
    """In a child a reader can come, whatever a thread of the parent was at, and it is the only one."""
    closed = registries.default.closed_windows
    parents = ClosedWindowReader(registries.default, "parent")
    with closed.lock:
        child = os.fork()
        if child == 0:
            free = closed.lock.acquire(timeout=10)
            if free:
                closed.lock.release()
            os._exit(0 if free and not closed.history().wanted else 1)
    parents.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_request_is_never_older_than_the_one_before() -> None:
    """A collection right after windows that were moved ahead is later than they are: Prometheus refuses one before."""
    recorder = Recorder()
    made = MetricsEncoder("there", recorder.registry, windows=True, pace=lambda: None)
    stats = [recorder.stat() for _ in range(3)]
    for stat in stats:
        stat.add(1.0)
    recorder.wait(1)
    newest = []
    for later in (0, MILLISECOND // 2, 10 * MILLISECOND):
        batch = Batch(recorder.registry.collect(), None, [], {}, recorder.now + later)
        times = [
            point.time_unix_nano
            for request, _ in made.messages(batch)
            for scope in request.resource_metrics[0].scope_metrics
            for metric in scope.metrics
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]
        newest.append(max(times))
    assert newest == [recorder.now + moved * MILLISECOND for moved in (2, 3, 10)]
