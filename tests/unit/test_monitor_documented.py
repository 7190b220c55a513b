"""torch.monitor's documented behaviour, case by case, and where ours differs on purpose."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph import monitor
from tachograph.monitor import Aggregation, Event, Stat
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.recording import journal
from tachograph.recording.journal import Journal
from tachograph.recording.points import HistogramPoint, NumberPoint
from tachograph.recording.registry import Registry

SECOND = 1_000_000_000
SIX = (
    Aggregation.VALUE,
    Aggregation.MEAN,
    Aggregation.COUNT,
    Aggregation.SUM,
    Aggregation.MAX,
    Aggregation.MIN,
)


class Reader:
    """A windowed reader whose clock the test turns, with what its Stats log and publish."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.events = EventLog(self.journal, self.registry)
        self.logged: list[Event] = []
        self.events.register(self.logged.append)
        self.windows = Windows(self.events, self.registry, clock=lambda: self.now, threaded=False)

    def stat(self, name: str = "s", aggregations: Any = SIX, size: float = 1.0, *args: Any, **more: Any) -> Stat:
        """Make a Stat that this reader closes."""
        return Stat(name, aggregations, timedelta(seconds=size), *args, windows=self.windows, **more)

    def wait(self, seconds: float) -> None:
        """Let time go by, and close what is due."""
        self.now += int(seconds * SECOND)
        self.windows.tick()

    def published(self) -> dict[str, Any]:
        """Return what exporters get in the scope of Stats."""
        return {
            metric.name: point.value if isinstance(point, NumberPoint) else point
            for metric in self.registry.collect()
            if metric.scope == "torch.monitor"
            for point in metric.points
        }


@pytest.fixture
def reader() -> Reader:
    """Return a reader of the test's own."""
    return Reader()


def test_a_window_that_ends_is_logged_as_one_event(reader: Reader) -> None:
    """The event ``torch.monitor.Stat`` holds one float for each aggregation, under ``<name>.<aggregation>``."""
    stat = reader.stat("load")
    for value in (1, 4.0, 2.5):
        stat.add(value)
    assert stat.count == 3
    assert stat.get() == dict.fromkeys(SIX, 0.0)
    reader.wait(1)
    (event,) = reader.logged
    assert (event.name, stat.count) == (monitor.STAT_EVENT, 0)
    assert event.data == {
        "load.value": 2.5,
        "load.mean": 2.5,
        "load.count": 3.0,
        "load.sum": 7.5,
        "load.max": 4.0,
        "load.min": 1.0,
    }
    assert all(type(value) is float for value in event.data.values())
    assert event.timestamp.timestamp() == pytest.approx(reader.now / SECOND)
    assert stat.get() == dict(zip(SIX, (2.5, 2.5, 3.0, 7.5, 4.0, 1.0), strict=True))


def test_an_empty_window_logs_nothing_and_reads_as_zeros(reader: Reader) -> None:
    """Once a window has ended empty, ``get`` gives zeros; the gauges stay as the last window left them."""
    stat = reader.stat()
    stat.add(2)
    reader.wait(1)
    assert stat.get()[Aggregation.SUM] == 2.0
    reader.wait(1)
    assert stat.get() == dict.fromkeys(SIX, 0.0)
    assert len(reader.logged) == 1
    expected = {"s.value": 2, "s.mean": 2, "s.max": 2, "s.min": 2, "s.window.count": 1, "s.window.sum": 2}
    published = reader.published()
    assert {name: published[name] for name in expected} == expected
    assert set(published) == {"s", "s.window.end", *expected}


def test_max_samples_closes_the_window_and_drops_the_rest(reader: Reader) -> None:
    """The window closes at the Nth add; what comes after it in its time is dropped, counted, and in no sum."""
    stat = reader.stat("s", SIX, 1.0, 3)
    for value in range(10):
        stat.add(value)
    assert (stat.get()[Aggregation.COUNT], stat.get()[Aggregation.SUM]) == (3.0, 3.0)
    assert (stat.count, len(reader.logged)) == (0, 1)
    reader.wait(1)
    stat.add(5)
    reader.wait(1)
    assert [event.data["s.sum"] for event in reader.logged] == [3.0, 5.0]
    histogram = reader.published()["s"]
    assert (histogram.summary.count, histogram.summary.total.value()) == (4, 8)
    (lost,) = [
        point.value
        for metric in reader.registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and ("reason", "max_samples") in point.attributes
    ]
    assert lost == 7


def test_a_stat_that_is_destroyed_logs_what_it_holds(reader: Reader) -> None:
    """The rest leaves as an event at once, and stays in the cumulative histogram."""
    stat = reader.stat()
    stat.add(3)
    del stat
    gc.collect()
    reader.wait(0)
    assert [event.data["s.sum"] for event in reader.logged] == [3.0]
    for _ in range(40):
        reader.stat().add(1)
    reader.wait(1)
    assert reader.published()["s"].summary.count == 41


def test_what_is_published(reader: Reader) -> None:
    """Gauges as asked for, always the window's count and sum, and one cumulative histogram with buckets if wanted."""
    stat = reader.stat("step", (Aggregation.MEAN, Aggregation.P99), boundaries=(1, 2), unit="s")
    for value in (0.5, 1.5, 2.5):
        stat.add(value)
    reader.wait(1)
    stat.add(0.5)
    found = reader.published()
    assert {name: value for name, value in found.items() if name != "step"} == {
        "step.mean": 1.5,
        "step.p99": pytest.approx(2.48),
        "step.window.count": 3,
        "step.window.sum": 4.5,
        "step.window.end": pytest.approx(reader.now / SECOND, abs=1),
    }
    assert isinstance(found["step"], HistogramPoint)
    assert (found["step"].boundaries, found["step"].summary.at_most) == ((1.0, 2.0), (2, 3))


def test_two_stats_of_one_name_have_a_window_each(reader: Reader) -> None:
    """Gauges show the one that closed last, sums add up; other units or boundaries are a conflict."""
    one, two = reader.stat(), reader.stat()
    one.add(1)
    two.add(2)
    reader.wait(1)
    assert sorted(event.data["s.sum"] for event in reader.logged) == [1.0, 2.0]
    assert reader.published()["s"].summary.total.value() == 3
    for conflict in ({"unit": "s"}, {"boundaries": (1, 2)}):
        with pytest.raises(ValueError, match="already exists"):
            reader.stat("s", SIX, 1.0, **conflict)


def test_nan_and_infinity_count_and_enter_no_sum(reader: Reader) -> None:
    """``count`` has them; sum, mean, minimum and maximum are over the finite values; the rest is counted apart."""
    stat = reader.stat()
    for value in (1.0, math.nan, math.inf, 3.0):
        stat.add(value)
    reader.wait(1)
    data = reader.logged[0].data
    assert (data["s.count"], data["s.sum"], data["s.mean"], data["s.max"]) == (4.0, 4.0, 2.0, 3.0)
    assert reader.published()["s.nonfinite"] == 2
    stat.add(math.nan)
    reader.wait(1)
    assert math.isnan(float(reader.logged[1].data["s.mean"]))


@pytest.mark.parametrize("count", [1, 2, 100, 3000, 9000])
def test_percentiles_and_deviation(reader: Reader, count: int) -> None:
    """Percentiles are exact to 4,096 values and within 1 % beyond; the deviation is the population's."""
    stat = reader.stat("s", (Aggregation.P50, Aggregation.P90, Aggregation.STDDEV))
    values = [float(value + 1) for value in range(count)]
    for value in values:
        stat.add(value)
    reader.wait(1)
    found = stat.get()
    mean = sum(values) / count
    for asked, part in ((Aggregation.P50, 0.5), (Aggregation.P90, 0.9)):
        exact = values[0] + part * (count - 1)
        assert found[asked] == pytest.approx(exact, rel=0.011 if count > 4096 else 1e-12)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / count)
    assert found[Aggregation.STDDEV] == pytest.approx(deviation)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(-100, 100), max_size=90)),
            st.tuples(st.just("clock"), st.floats(-3, 5)),
            st.tuples(st.just("look"), st.none()),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 7, 10**9]),
)
def test_the_windows_add_up_to_what_was_accepted(steps: list[tuple[str, Any]], samples: int) -> None:
    """For any adds, steps of the clock and closings, the windows' sums come to the sum of the accepted adds."""
    reader = Reader()
    stat = reader.stat("s", SIX, 1.0, samples)
    for what, argument in steps:
        if what == "add":
            for value in argument:
                stat.add(value)
        elif what == "clock":
            reader.wait(argument)
        else:
            stat.get()
            reader.published()
    reader.windows.finish()
    windows = [event.data for event in reader.logged]
    histogram = reader.published().get("s")
    if histogram is None:
        assert not windows
    else:
        assert sum(data["s.sum"] for data in windows) == histogram.summary.total.value()
        assert sum(data["s.count"] for data in windows) == histogram.summary.count


def test_windows_close_on_time_and_line_up() -> None:
    """Without another add, a window closes at the wall clock's multiple of its size; no handler has to be slow."""
    seen: list[Event] = []
    handle = monitor.register_event_handler(seen.append)
    try:
        stat = Stat("quiet", [Aggregation.SUM], 0.2)
        stat.add(1)
        deadline = time.monotonic() + 5
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        monitor.unregister_event_handler(handle)
    assert [event.data for event in seen] == [{"quiet.sum": 1.0}]
    assert math.remainder(seen[0].timestamp.timestamp(), 0.2) == pytest.approx(0, abs=1e-5)


def test_a_window_that_closes_while_threads_add_loses_nothing() -> None:
    """Adds on several threads with windows closing all the time all end up in exactly one window."""
    reader = Reader()
    stat = reader.stat("s", [Aggregation.COUNT], 0.001)
    done = threading.Event()
    added: list[int] = []

    def close() -> None:
        while not done.is_set():
            reader.wait(0.001)

    def add() -> None:
        for batch in range(1, 1001):
            for _ in range(3_000):
                stat.add(1)
            if batch >= 10 and reader.logged:  # a window has closed in the middle
                break
        added.append(3_000 * batch)

    closer = threading.Thread(target=close)
    adders = [threading.Thread(target=add) for _ in range(3)]
    for thread in (closer, *adders):
        thread.start()
    for thread in adders:
        thread.join()
    done.set()
    closer.join()
    reader.wait(1)
    assert sum(int(event.data["s.count"]) for event in reader.logged) == sum(added)
    assert len(reader.logged) > 1


def test_events_reach_handlers_in_order_and_the_journal() -> None:
    """Handlers run in the order of registration, in the logging thread; without any, the event still leaves."""
    seen: list[tuple[str, str, int]] = []
    one = monitor.register_event_handler(lambda event: seen.append(("one", event.name, threading.get_ident())))
    two = monitor.register_event_handler(lambda event: seen.append(("two", event.name, threading.get_ident())))
    monitor.log_event(Event("first", datetime.now(), {"a": 1}))  # noqa: DTZ005 - as the documents write it
    monitor.unregister_event_handler(one)
    monitor.log_event(Event("second", datetime.now(tz=UTC), {"a": True}))
    monitor.unregister_event_handler(two)
    me = threading.get_ident()
    assert seen == [("one", "first", me), ("two", "first", me), ("two", "second", me)]
    journal.default.drain()
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=5)))
    monitor.log_event(Event("third", at, {"flag": True, "n": 3, "x": 0.5, "text": "a"}))
    (found,) = [event for event in journal.default.drain() if event.name == "third"]
    assert found.time_unix_nano == int(at.timestamp()) * SECOND + 6000
    assert found.attributes == {"flag": True, "n": 3, "x": 0.5, "text": "a"}
    assert found.attributes["flag"] is True


def test_a_handler_may_log_and_unregister() -> None:
    """What a handler logs comes after its own event; a handler that unregisters itself is not called again."""
    seen: list[str] = []
    handles = []

    def handler(event: Event) -> None:
        seen.append(event.name)
        if event.name == "outer":
            monitor.log_event(Event("inner", event.timestamp, {}))
            seen.append("end of outer")
        else:
            monitor.unregister_event_handler(handles[0])

    handles.append(monitor.register_event_handler(handler))
    for _ in range(2):
        monitor.log_event(Event("outer", datetime.now(tz=UTC), {}))
    assert seen == ["outer", "end of outer", "inner"]


def test_a_raising_handler_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """What it raises is counted and logged once; the others still run, and ``log_event`` returns."""
    seen: list[Event] = []

    def broken(_event: Event) -> None:
        raise RuntimeError("broken handler")

    handles = [monitor.register_event_handler(broken), monitor.register_event_handler(seen.append)]
    for _ in range(3):
        monitor.log_event(Event("e", datetime.now(tz=UTC), {}))
    for handle in handles:
        monitor.unregister_event_handler(handle)
    assert len(seen) == 3
    assert caplog.text.count("broken handler") >= 1
    assert caplog.text.count("event handler") == 1


def test_unregister_waits_for_a_handler_that_is_running() -> None:
    """It returns only when no other thread is in the handler any more."""
    inside, leave, left = threading.Event(), threading.Event(), threading.Event()

    def slow(_event: Event) -> None:
        inside.set()
        leave.wait(10)
        left.set()

    handle = monitor.register_event_handler(slow)
    logging = threading.Thread(target=lambda: monitor.log_event(Event("e", datetime.now(tz=UTC), {})))
    logging.start()
    inside.wait(10)
    threading.Timer(0.1, leave.set).start()
    monitor.unregister_event_handler(handle)
    assert left.is_set()
    logging.join()


def test_one_handler_is_never_in_two_threads() -> None:
    """Four threads that log all the time deliver every event, one at a time, and nobody hangs."""
    running, overlaps, seen = [0], [0], [0]

    def handler(_event: Event) -> None:
        running[0] += 1
        overlaps[0] += running[0] > 1
        seen[0] += 1
        running[0] -= 1

    handle = monitor.register_event_handler(handler)
    event = Event("e", datetime.now(tz=UTC), {"a": 1})

    def log() -> None:
        for _ in range(3000):
            monitor.log_event(event)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    monitor.unregister_event_handler(handle)
    assert (seen[0], overlaps[0]) == (12_000, 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, [Aggregation.SUM], timedelta(seconds=1)), TypeError),
        (("", [Aggregation.SUM], timedelta(seconds=1)), ValueError),
        (("s", ["sum"], timedelta(seconds=1)), TypeError),
        (("s", "sum", timedelta(seconds=1)), TypeError),
        (("s", Aggregation.SUM, timedelta(seconds=1)), TypeError),
        (("s", [Aggregation.SUM], timedelta(microseconds=999)), ValueError),
        (("s", [Aggregation.SUM], -1.0), ValueError),
        (("s", [Aggregation.SUM], math.inf), ValueError),
        (("s", [Aggregation.SUM], "1 s"), TypeError),
        (("s", [Aggregation.SUM], timedelta(seconds=1), 0), ValueError),
        (("s", [Aggregation.SUM], timedelta(seconds=1), 1.5), TypeError),
    ],
)
def test_a_wrong_stat_is_refused_at_once(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    """A wrong aggregation, window or number of samples is an error at the call."""
    with pytest.raises(error) as raised:
        Stat(*arguments)
    assert ("; use Aggregation.SUM" in str(raised.value)) is (arguments[1] == ["sum"])


@pytest.mark.parametrize(
    "more", [{"unit": 3}, {"boundaries": (2, 1)}, {"boundaries": ("a",)}, {"boundaries": (math.nan,)}]
)
def test_wrong_units_and_boundaries_are_refused(more: dict[str, Any]) -> None:
    """Our own arguments are checked as well."""
    with pytest.raises((TypeError, ValueError)):
        Stat("wrong", [Aggregation.SUM], 1.0, **more)


@pytest.mark.parametrize("value", ["1", None, [1], 1j])
def test_adding_what_is_no_number_is_a_type_error(reader: Reader, value: Any) -> None:
    """As the original does, and no value in the open window is lost by it."""
    stat = reader.stat()
    stat.add(1)
    with pytest.raises(TypeError):
        stat.add(value)
    assert stat.count == 1


@pytest.mark.parametrize(
    "arguments",
    [(1, datetime.now(tz=UTC), {}), ("e", 3, {}), ("e", datetime.now(tz=UTC), []), ("e", None, {})]
    + [("e", datetime.now(tz=UTC), {key: value}) for key, value in ((1, 1), ("a", None), ("a", [1]))],
)
def test_a_wrong_event_is_refused(arguments: tuple[Any, ...]) -> None:
    """A name, time, key or value of another type is a TypeError."""
    with pytest.raises(TypeError):
        Event(*arguments)


def test_misuse_of_handlers_is_refused() -> None:
    """Handlers are callable, handles come from registering, and unregistering twice is a ValueError."""
    with pytest.raises(TypeError):
        monitor.register_event_handler(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        monitor.EventHandlerHandle()
    with pytest.raises(TypeError):
        monitor.unregister_event_handler(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        monitor.log_event("event")  # type: ignore[arg-type]
    handle = monitor.register_event_handler(print)
    monitor.unregister_event_handler(handle)
    with pytest.raises(ValueError, match="not registered"):
        monitor.unregister_event_handler(handle)


def test_an_event_can_be_changed_like_the_originals() -> None:
    """Its parts can be assigned; ``data`` is a copy."""
    event = Event("a", datetime(2026, 1, 1, tzinfo=UTC), {"x": 1})
    event.data["x"] = 2
    assert event.data == {"x": 1}
    event.name, event.timestamp, event.data = "b", datetime(2027, 1, 1, tzinfo=UTC), {"y": b"z"}  # type: ignore[dict-item]
    assert (event.name, event.timestamp.year, event.data) == ("b", 2027, {"y": "z"})
    assert "b" in repr(event)


def test_the_tensorboard_handler_writes_scalars(reader: Reader) -> None:
    """Stat events become ``add_scalar(key, value, walltime=…)``; other events are left out."""
    written: list[tuple[str, float, float]] = []

    class Writer:
        def add_scalar(self, key: str, value: float, *, walltime: float) -> None:
            written.append((key, value, walltime))

    reader.events.register(monitor.TensorboardEventHandler(Writer()))
    stat = reader.stat("s", [Aggregation.MEAN, Aggregation.MAX])
    stat.add(4)
    reader.wait(1)
    reader.events.log_event(Event("other", datetime.now(tz=UTC), {"a": 1}))
    assert [(key, value) for key, value, _ in written] == [("s.mean", 4.0), ("s.max", 4.0)]
    assert written[0][2] == reader.logged[0].timestamp.timestamp()


def test_members_of_aggregation_have_names_and_constants() -> None:
    """As ``torch.monitor`` has them, with percentiles and the standard deviation beside."""
    assert [member.name for member in Aggregation][:6] == ["VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"]
    assert monitor.SUM is Aggregation.SUM
    assert int(Aggregation.VALUE) == 0
    assert repr(Stat("shown", [], 60.0)).count("shown") == 1


def test_a_wait_counter_measures_waits() -> None:
    """``_WaitCounter(key).guard()`` is a histogram in seconds with the key as attribute."""
    from tachograph.testing import capture

    with capture() as captured:
        with monitor._WaitCounter("data").guard():
            time.sleep(0.01)
        found: Any = captured.value("torch.wait.duration", "torch.monitor", name="data")
    assert found.count == 1
    assert found.total.value() >= 0.009
    with pytest.raises(TypeError):
        monitor._WaitCounter(3)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_handlers_left() -> Iterator[None]:
    """Every test leaves the process's handlers as it found them."""
    from tachograph.monitor._event_log import default

    before = default._handles
    yield
    assert default._handles == before
