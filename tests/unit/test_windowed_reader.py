"""WindowedMetricReader: what a Stat gives, for any program with the plain OpenTelemetry SDK."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from front_door import Kept
from programs import environment, events, run, write
from receivers import dropped, receiving, silent
from tachograph.exporters.handler_exporter import each_point
from tachograph.monitor import COUNT, MAX, MIN, SUM, Event, Stat, log_event, register_event_handler
from tachograph.monitor import unregister_event_handler as unregister
from tachograph.otel import HandlerExporter, WindowedMetricReader, stat_views
from tachograph.recording.registry import Registry
from test_windows import SECOND, START, Clock, wait_for
from test_windows import reader as stat_windows

HOUR = 3600 * SECOND
SDK = tuple(map(int, version("opentelemetry-sdk").split(".")[:2]))


class Exported(MetricExporter):
    """Keeps the windows that it gets; ``behave`` is called before each."""

    def __init__(self, behave: Callable[[], Any] = lambda: None, **more: Any) -> None:
        super().__init__(**more)
        self.windows: list[MetricsData] = []
        self.arrived: list[int] = []
        self.ended = 0
        self._behave = behave

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Keep a window."""
        del timeout_millis
        self.arrived.append(time.time_ns())
        self.windows.append(metrics_data)
        return self._behave() or MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return True."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Count the ends."""
        del timeout_millis
        self.ended += 1

    def points(self, name: str = "load") -> list[Any]:
        """Return the data points of a metric."""
        return [point for window in self.windows for _, metric, point in each_point(window) if metric.name == name]

    def spans(self, name: str = "load") -> list[tuple[int, int]]:
        """Return start and end of each point, in nanoseconds since the tests' clock began."""
        return [(point.start_time_unix_nano - START, point.time_unix_nano - START) for point in self.points(name)]


@contextmanager
def providing(
    exporter: Any, window: timedelta | float = 1.0, *names: str, **more: Any
) -> Iterator[tuple[WindowedMetricReader, Any]]:
    """Yield a reader and a meter of a provider that ends afterwards."""
    reader = WindowedMetricReader(exporter, window, **more)
    provider = MeterProvider([reader], views=stat_views(*(names or ("load",))), shutdown_on_exit=False)
    try:
        yield reader, provider.get_meter("tests")
    finally:
        provider.shutdown(10_000)


def assert_apart(points: list[Any]) -> None:
    """Check that no window begins before the one before it has ended."""
    ends = [point.time_unix_nano for point in points]
    assert all(point.start_time_unix_nano >= end for point, end in zip(points[1:], ends, strict=False))


numbers = st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.integers(0, 2**63 - 1)
recorded_windows = st.lists(st.tuples(st.lists(numbers, max_size=100), st.integers(1, 3)), max_size=6)


@settings(deadline=None)
@given(recorded_windows)
def test_a_window_is_that_of_a_stat(recorded: list[tuple[list[float], int]]) -> None:
    """For finite values that are not negative: count, minimum and maximum are a Stat's, and the sum within 1e-12."""
    clock, exporter = Clock(), Exported()
    windows, journal = stat_windows(clock)
    stat = Stat("load", [COUNT, SUM, MIN, MAX], timedelta(seconds=1), windows=windows)
    with providing(exporter, timedelta(seconds=1), clock=clock, registry=Registry()) as (reader, meter):
        load = meter.create_histogram("load")
        for values, seconds in recorded:
            for value in values:
                stat.add(value)
                load.record(value)
            clock.now += seconds * SECOND
            windows.tick()
            reader.tick()
        assert reader.force_flush()
    events = [event.attributes for event in journal.drain()]
    points = exporter.points()
    assert [event["load.count"] for event in events] == [point.count for point in points]
    assert [event["load.min"] for event in events] == [float(point.min) for point in points]
    assert [event["load.max"] for event in events] == [float(point.max) for point in points]
    for event, point in zip(events, points, strict=True):
        assert math.isclose(event["load.sum"], point.sum, rel_tol=1e-12)  # type: ignore[arg-type]
    assert all(point.bucket_counts == (point.count,) and point.explicit_bounds == () for point in points)


@pytest.mark.parametrize(
    ("value", "counted"),
    [(math.nan, (2.0, 1.0)), (math.inf, (2.0, 1.0)), (-2.0, (2.0, -1.0))],
)
def test_the_sdk_drops_what_a_stat_counts(value: float, counted: tuple[float, float]) -> None:
    """A Stat counts all, and adds up the finite; the SDK drops negatives, and from 1.44 on NaN and infinities."""
    clock, exporter = Clock(), Exported()
    windows, journal = stat_windows(clock)
    stat = Stat("load", [COUNT, SUM], 1.0, windows=windows)
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        for number in (1.0, value):
            stat.add(number)
            load.record(number)
        clock.now += SECOND
        windows.tick()
        reader.tick()
        reader.force_flush()
    (event,) = journal.drain()
    (point,) = exporter.points()
    assert (event.attributes["load.count"], event.attributes["load.sum"]) == counted
    if math.isfinite(value) or SDK >= (1, 44):
        assert (point.count, point.sum) == (1, 1.0)
    else:
        assert (point.count, str(point.sum)) == (2, str(value))


def test_a_gauge_takes_negative_values_into_its_window() -> None:
    """Under stat_views a synchronous gauge has the count, sum, minimum and maximum of all that was set in a window."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_gauge("load")
        for value in (3, -5, 1):
            load.set(value)
        clock.now += SECOND
        reader.tick()
        reader.force_flush()
    (point,) = exporter.points()
    assert (point.count, point.sum, point.min, point.max) == (3, -1, -5, 3)


@pytest.mark.timing
def test_windows_close_on_time() -> None:
    """The reader's thread closes each window right after its end, at the clock's multiples, and nothing is lost."""
    exporter = Exported()
    size = 20_000_000
    with providing(exporter, timedelta(milliseconds=20)) as (_, meter):
        load = meter.create_histogram("load")
        end = time.monotonic() + 2
        recorded = 0
        while time.monotonic() < end:
            load.record(1)
            recorded += 1
            time.sleep(0.001)
    points = exporter.points()
    late = sorted(arrived - point.time_unix_nano for arrived, point in zip(exporter.arrived, points, strict=True))
    assert sum(point.count for point in points) == recorded
    assert_apart(points)
    assert all(point.time_unix_nano % size == 0 for point in points[:-1])
    assert len(points) > 60
    assert late[len(late) // 2] < 10_000_000


def test_an_empty_window_exports_nothing_and_an_overdue_one_is_one() -> None:
    """A window without values is none; after a pause what was recorded is one late window, up to the last boundary."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        for _ in range(3):
            clock.now += SECOND
            reader.tick()
        load.record(1)
        clock.now += HOUR + SECOND // 2
        load.record(2)
        reader.tick()
        reader.tick()
        reader.force_flush()
        assert [(point.count, point.sum) for point in exporter.points()] == [(2, 3)]
        assert exporter.spans() == [(3 * SECOND, 3 * SECOND + HOUR)]


def test_a_flush_closes_the_open_window() -> None:
    """force_flush() exports the window so far; the rest of it is one of its own, and times do not overlap."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        load.record(1)
        clock.now += SECOND // 4
        assert reader.force_flush()
        load.record(2)
        clock.now += SECOND
        reader.tick()
        load.record(3)
        clock.now += 1
    assert [point.sum for point in exporter.points()] == [1, 2, 3]
    assert exporter.spans() == [
        (0, SECOND // 4),
        (SECOND // 4, SECOND),
        (SECOND, SECOND + SECOND // 4 + 1),
    ]
    assert exporter.ended == 1


def test_a_collection_from_elsewhere_closes_the_open_window() -> None:
    """collect(), which every reader has, is as good as a flush: nothing is counted twice or left out."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        load.record(1)
        clock.now += SECOND // 4
        reader.collect()
        load.record(2)
        clock.now += SECOND
        reader.collect()
        reader.tick()
        reader.force_flush()
        assert [point.sum for point in exporter.points()] == [1, 2]
        assert exporter.spans() == [(0, SECOND // 4), (SECOND // 4, SECOND)]


def test_a_clock_set_back_a_little_keeps_the_window_open() -> None:
    """A clock that is corrected by less than a window closes no window twice."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        clock.now += SECOND
        reader.tick()
        load.record(1)
        clock.now -= 1000
        reader.tick()
        clock.now += 2000
        load.record(2)
        reader.tick()
        clock.now += SECOND
        reader.tick()
        reader.force_flush()
        assert [point.sum for point in exporter.points()] == [3]
        assert exporter.spans() == [(SECOND, 2 * SECOND)]


def test_a_clock_set_back_far_keeps_no_window_open_for_long() -> None:
    """An hour back, the window closes at the next boundary of the new time."""
    clock, exporter = Clock(), Exported()
    with providing(exporter, clock=clock) as (reader, meter):
        load = meter.create_histogram("load")
        load.record(1)
        clock.now -= HOUR
        reader.tick()
        load.record(2)
        clock.now += SECOND
        reader.tick()
        reader.force_flush()
        assert [point.sum for point in exporter.points()] == [3]
        assert exporter.spans() == [(-HOUR, SECOND - HOUR)]


def test_each_kind_of_instrument_has_its_temporality() -> None:
    """Counters and gauges are of the window; an up-down counter says how much there is, since the reader's start."""
    clock, exporter = Clock(), Exported()
    totals = iter([10, 15, 15])

    def observe(_: CallbackOptions) -> list[Observation]:
        return [Observation(next(totals, 15))]

    with providing(exporter, clock=clock) as (reader, meter):
        sent, waiting, rate = (
            meter.create_counter("sent"),
            meter.create_up_down_counter("waiting"),
            meter.create_gauge("rate"),
        )
        meter.create_observable_counter("read", [observe])
        for number in range(2):
            sent.add(2)
            waiting.add(3)
            if not number:
                rate.set(7)
            clock.now += SECOND
            reader.tick()
        reader.force_flush()
        temporality = {
            metric.name: getattr(metric.data, "aggregation_temporality", None)
            for window in exporter.windows
            for _, metric, _ in each_point(window)
        }
        values = {name: [point.value for point in exporter.points(name)][:2] for name in temporality}
    delta, cumulative = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE
    assert temporality == {"sent": delta, "waiting": cumulative, "rate": None, "read": delta}
    assert values == {"sent": [2, 2], "waiting": [3, 6], "rate": [7], "read": [10, 5]}
    assert exporter.spans("sent") == [(0, SECOND), (SECOND, 2 * SECOND)]
    assert exporter.spans("waiting")[:2] == [(0, SECOND), (0, 2 * SECOND)]


def test_views_are_for_what_they_name(caplog: pytest.LogCaptureFixture) -> None:
    """Names, patterns and upper case match once each; an observable instrument stays as it is, without a warning."""
    exporter = Exported()
    with providing(exporter, 60.0, "Load", "load", "step.*", "step.time", "sent") as (reader, meter):
        for name in ("load", "step.time", "other"):
            meter.create_histogram(name).record(2)
        meter.create_counter("sent").add(3)
        meter.create_observable_gauge("step.now", [lambda _: [Observation(1)]])
        meter.create_up_down_counter("step.open").add(1)
        reader.force_flush()
    found = sorted((metric.name, type(metric.data).__name__) for _, metric, _ in each_point(exporter.windows[0]))
    assert found == [
        ("load", "Histogram"),
        ("other", "Histogram"),
        ("sent", "Histogram"),
        ("step.now", "Gauge"),
        ("step.open", "Sum"),
        ("step.time", "Histogram"),
    ]
    assert [len(exporter.points(name)[0].bucket_counts) for name in ("load", "sent", "step.time", "other")] == [
        *(1, 1, 1),
        16,
    ]
    assert caplog.records == []


def test_views_take_names() -> None:
    """Without a name, with an empty one, or with what is no string, stat_views() says what it takes."""
    with pytest.raises(ValueError, match=r"use '\*' for all"):
        stat_views()
    with pytest.raises(ValueError, match="must not be empty"):
        stat_views("load", "")
    with pytest.raises(TypeError, match="must be a string, not list"):
        stat_views(["load"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        (timedelta(microseconds=999), ValueError, "the window of WindowedMetricReader must be at least 1 ms"),
        (0.0, ValueError, "must be at least 1 ms: 0.0"),
        (math.inf, ValueError, "must be finite"),
        (1, TypeError, r"must be a timedelta, or a float .*, not int: 1; write timedelta\(seconds=1\) or 1\.0"),
        ("1s", TypeError, "must be a timedelta, or a float of seconds"),
    ],
)
def test_a_window_is_what_a_stat_takes(window: Any, error: type[Exception], message: str) -> None:
    """A wrong window is refused with the words of a Stat."""
    with pytest.raises(error, match=message):
        WindowedMetricReader(Exported(), window)
    with pytest.raises(error, match=message.replace("WindowedMetricReader", "Stat 'load'")):
        Stat("load", [SUM], window)


def test_a_destination_is_an_exporter_or_a_function() -> None:
    """What is neither is refused, and the message says what to write."""
    with pytest.raises(TypeError, match=r"write ConsoleMetricExporter\(\)"):
        WindowedMetricReader(ConsoleMetricExporter, 1.0)
    with pytest.raises(TypeError, match=r"HandlerExporter\(handler\), not the handler itself: Kept"):
        WindowedMetricReader(Kept(), 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"or a function that is called with events, not str: 'otlp'"):
        WindowedMetricReader("otlp", 1.0)  # type: ignore[arg-type]


def test_a_function_gets_the_events_of_a_stat() -> None:
    """Each series of a window is one event, named and keyed as a Stat's; its time is the window's end."""
    clock = Clock()
    events: list[Event] = []
    with providing(events.append, clock=clock) as (reader, meter):
        load, sent, rate = meter.create_histogram("load"), meter.create_counter("sent"), meter.create_gauge("rate")
        waiting = meter.create_up_down_counter("waiting")
        load.record(1)
        load.record(2, {"split": "eval"})
        load.record(4, {"split": "eval"})
        sent.add(7)
        rate.set(0.5)
        waiting.add(-1)
        clock.now += SECOND
        reader.tick()
        reader.force_flush()
        data = [event.data for event in events[:5]]
    assert {event.name for event in events} == {"torch.monitor.Stat"}
    assert events[0].timestamp == datetime.fromtimestamp((START + SECOND) / SECOND)  # noqa: DTZ006 - a local time
    assert data == [
        {"load.count": 1, "load.sum": 1, "load.min": 1, "load.max": 1, "load.mean": 1},
        {
            'load.count{split="eval"}': 2,
            'load.sum{split="eval"}': 6,
            'load.min{split="eval"}': 2,
            'load.max{split="eval"}': 4,
            'load.mean{split="eval"}': 3,
        },
        {"sent.sum": 7},
        {"rate.value": 0.5},
        {"waiting.value": -1},
    ]
    assert all(type(value) is float for found in data for value in found.values())


def test_the_function_may_be_log_event() -> None:
    """With log_event as the function, the windows reach every handler of tachograph.monitor."""
    seen: list[Event] = []
    handle = register_event_handler(seen.append)
    try:
        with providing(log_event, 60.0) as (reader, meter):
            meter.create_histogram("load").record(2)
            reader.force_flush()
        assert wait_for(lambda: seen)
    finally:
        unregister(handle)
    assert seen[0].data["load.max"] == 2


def test_exponential_histograms_are_windows_too() -> None:
    """An exporter that prefers exponential histograms gets them; so does a function their summary."""
    exponential: Any = {Histogram: ExponentialBucketHistogramAggregation()}
    exporter = Exported(preferred_aggregation=exponential)
    with providing(exporter, 60.0, "other") as (reader, meter):
        meter.create_histogram("load").record(2)
        reader.force_flush()
    (point,) = exporter.points()
    assert (point.count, point.sum, point.min, point.max, point.positive.bucket_counts) == (1, 2, 2, 2, [1])
    handler = Kept()
    with providing(HandlerExporter(handler, preferred_aggregation=exponential), 60.0, "other") as (reader, meter):
        meter.create_histogram("load").record(2)
        reader.force_flush()
    assert [(point.name, point.value) for point in handler.points] == [
        *(("load.count", 1), ("load.sum", 2), ("load.min", 2), ("load.max", 2)),
    ]


def raising() -> None:
    """Fail as an exporter may."""
    raise OSError("disk full")


@pytest.mark.parametrize("behave", [raising, lambda: MetricExportResult.FAILURE], ids=["raises", "fails"])
def test_an_exporter_that_fails_loses_its_windows_alone(behave: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What an exporter raises, or says, is counted for each window and logged once; the next windows go on."""
    clock, registry = Clock(), Registry(enabled=True)
    exporter = Exported(lambda: behave() if len(exporter.windows) < 3 else None)
    with providing(exporter, clock=clock, registry=registry) as (reader, meter):
        load = meter.create_histogram("load")
        for number in range(3):
            load.record(number, {"rank": 0})
            load.record(number, {"rank": 1})
            clock.now += SECOND
            reader.tick()
        reader.force_flush()
        assert len(exporter.windows) == 3
    assert dropped(registry) == {"rejected": 4}
    assert [record.getMessage().startswith("Exported: data was lost") for record in caplog.records] == [True]


def test_a_function_that_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What the function raises costs that event alone: it is counted, and logged once."""
    registry = Registry(enabled=True)
    seen: list[Event] = []

    def twice(event: Event) -> None:
        seen.append(event)
        if len(seen) < 3:
            raise ValueError("no")

    with providing(twice, 60.0, registry=registry) as (reader, meter):
        load = meter.create_histogram("load")
        for rank in range(3):
            load.record(1, {"rank": rank})
        assert reader.force_flush()
    errors = next(found for found in registry.collect() if found.name == "tachograph.errors")
    assert [(point.attributes, point.value) for point in errors.points] == [((("where", "handler"),), 2)]  # type: ignore[union-attr]
    assert len(seen) == 3
    assert len(caplog.records) == 1


def test_a_slow_exporter_delays_no_window() -> None:
    """While an export takes six windows' time, windows close on time, and all of them arrive."""
    exporter = Exported(lambda: time.sleep(0.15))
    with providing(exporter, timedelta(milliseconds=25)) as (_, meter):
        load = meter.create_histogram("load")
        end = time.monotonic() + 0.5
        recorded = 0
        while time.monotonic() < end:
            load.record(1)
            recorded += 1
            time.sleep(0.002)
    points = exporter.points()
    assert sum(point.count for point in points) == recorded
    assert len(points) >= 12
    assert sorted(point.time_unix_nano - point.start_time_unix_nano for point in points)[len(points) // 2] == 25_000_000


def test_a_collection_that_fails_closes_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Where the program's own callback breaks a collection, it is counted and said, and no value is lost."""
    registry, exporter, broken = Registry(enabled=True), Exported(), threading.Event()

    def observe(_: CallbackOptions) -> list[Observation]:
        if not broken.is_set():
            broken.set()
            raise SystemExit
        return []

    with providing(exporter, 0.05, registry=registry) as (_, meter):
        meter.create_observable_gauge("broken", [observe])
        meter.create_histogram("load").record(4)
        assert wait_for(exporter.points)
    assert broken.is_set()
    (point,) = exporter.points()
    assert (point.count, point.sum) == (1, 4)
    assert point.time_unix_nano - point.start_time_unix_nano > 50_000_000
    errors = next(found for found in registry.collect() if found.name == "tachograph.errors")
    assert errors.points[0].attributes == (("where", "windows"),)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_threads_lose_nothing() -> None:
    """Four threads record while windows of 2 ms close and another thread flushes: each value is in one window."""
    exporter = Exported()
    with providing(exporter, 0.002) as (reader, meter):
        load = meter.create_histogram("load")

        recorded: list[int] = []

        def record() -> None:
            for batch in range(1, 1001):
                for _ in range(300):
                    load.record(1)
                if batch >= 10 and len(exporter.points()) > 5:  # on a busy machine windows close seldom
                    break
            recorded.append(300 * batch)

        threads = [threading.Thread(target=record) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            reader.force_flush()
        for thread in threads:
            thread.join()
    points = exporter.points()
    assert sum(point.count for point in points) == sum(recorded)
    assert len(points) > 5
    assert_apart(points)


def test_what_an_exporter_does_is_not_instrumented() -> None:
    """Requests of an exporter make no spans and metrics of their own, as with the SDK's periodic reader."""
    enabled: list[bool] = []
    exporter = Exported(lambda: enabled.append(is_instrumentation_enabled()))
    with providing(exporter, 60.0) as (reader, meter):
        meter.create_histogram("load").record(1)
        reader.force_flush()
    assert enabled == [False]


def test_a_reader_ends_once_and_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """A second shutdown(), a flush after it, a reader taken off its provider or never given one: nothing happens."""
    caplog.set_level(logging.WARNING)
    exporter = Exported()
    reader = WindowedMetricReader(exporter, 0.01)
    time.sleep(0.03)
    provider = MeterProvider(shutdown_on_exit=False, views=stat_views("load"))
    provider.add_metric_reader(reader)
    provider.get_meter("tests").create_histogram("load").record(1)
    assert wait_for(exporter.points)
    provider.remove_metric_reader(reader)
    reader.shutdown()
    assert reader.force_flush()
    WindowedMetricReader(exporter, 1.0).shutdown()
    assert exporter.ended == 2
    assert caplog.records == []


@pytest.mark.process
def test_windows_leave_as_otlp() -> None:
    """The official exporter sends each window to a real receiver: delta, with the window's times and no bounds."""
    with receiving() as server:
        with providing(OTLPMetricExporter(endpoint=server.url), 0.1) as (_, meter):
            load = meter.create_histogram("load")
            load.record(1.5)
            assert wait_for(lambda: server.requests)
            load.record(2)
        requests = [ExportMetricsServiceRequest.FromString(body) for _, _, body in server.requests]
    metrics = [request.resource_metrics[0].scope_metrics[0].metrics[0] for request in requests]
    points = [metric.histogram.data_points[0] for metric in metrics]
    assert {metric.histogram.aggregation_temporality for metric in metrics} == {1}  # DELTA
    assert [(point.count, point.sum, point.min, point.max) for point in points] == [(1, 1.5, 1.5, 1.5), (1, 2, 2, 2)]
    assert points[0].time_unix_nano - points[0].start_time_unix_nano == 100_000_000
    assert not any(point.explicit_bounds for point in points)


PROGRAM = """
    import json, os, sys, time
    from opentelemetry.sdk.metrics import MeterProvider
    from tachograph.otel import WindowedMetricReader, stat_views

    def keep(event):
        with open(f"windows.{os.getpid()}", "a") as file:
            file.write(json.dumps(event.data) + "\\n")

    reader = WindowedMetricReader(keep, 0.25)
    provider = MeterProvider([reader], views=stat_views("load"))
    load = provider.get_meter("m").create_histogram("load")
"""


def kept(folder: Path) -> list[tuple[float, float]]:
    """Return count and sum over all windows that each process kept, of the parent first."""
    import json

    found = []
    for path in sorted(folder.glob("windows.*"), key=lambda path: int(path.suffix[1:])):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        found.append((sum(event["load.count"] for event in events), sum(event["load.sum"] for event in events)))
    return found


@pytest.mark.process
@pytest.mark.parametrize("late", [False, True], ids=["of a provider", "added late"])
def test_the_open_window_leaves_at_the_end_of_the_process(tmp_path: Path, late: bool) -> None:
    """What was recorded in the last window arrives, also where the provider's end does not reach the reader."""
    program = PROGRAM
    if late:
        program = program.replace("MeterProvider([reader], ", "MeterProvider(").replace(
            "    load =", "    provider.add_metric_reader(reader)\n    load ="
        )
    done = run(tmp_path, program + "    for _ in range(10): load.record(2)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert kept(tmp_path) == [(10, 20)]


@pytest.mark.process
def test_the_last_window_is_logged_before_the_last_event(tmp_path: Path) -> None:
    """With log_event as the function, the open window is in what start() delivers, whichever was set up first."""
    program = PROGRAM.replace("WindowedMetricReader(keep, 0.25)", "WindowedMetricReader(log_event, 60.0)")
    program += """
    import tachograph
    tachograph.start(metrics="none", logs="jsonl", jsonl="events.jsonl")
    for _ in range(10): load.record(2)
"""
    done = run(tmp_path, "    from tachograph.monitor import log_event\n" + program)
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = events(tmp_path / "events.jsonl")
    assert (event["eventName"], event["attributes"]["load.count"]) == ("torch.monitor.Stat", 10)


@pytest.mark.process
def test_a_child_exports_its_own_windows_only(tmp_path: Path) -> None:
    """After a fork the parent's window is the parent's, and the child's values are the child's."""
    done = run(
        tmp_path,
        PROGRAM
        + """
    for _ in range(100): load.record(1)
    child = os.fork()
    for _ in range(10): load.record(1 if child else 5)
    if child:
        assert os.waitpid(child, 0)[1] == 0
""",
    )
    assert done.returncode == 0, done.stderr
    assert kept(tmp_path) == [(110, 110), (10, 50)]


@pytest.mark.process
def test_a_fork_in_the_middle_of_anything_hangs_nothing(tmp_path: Path) -> None:
    """Children that were forked while threads record and windows of 1 ms close end by themselves, and in time."""
    done = run(
        tmp_path,
        PROGRAM.replace("0.25", "0.001")
        + """
    import threading
    def record():
        while True: load.record(1)
    for _ in range(2): threading.Thread(target=record, daemon=True).start()
    for _ in range(8):
        child = os.fork()
        if not child:
            break
        began = time.monotonic()
        assert os.waitpid(child, 0)[1] == 0
        assert time.monotonic() - began < 5, "a child took long"
""",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_fork_waits_for_the_collection_and_the_child_for_its_window(tmp_path: Path) -> None:
    """Forked in the middle of a collection, a child can record and export at once, and loses nothing of its own."""
    done = run(
        tmp_path,
        PROGRAM.replace("0.25", "0.05")
        + """
    import threading
    from opentelemetry.metrics import Observation
    collecting = threading.Event()
    def observe(_):
        collecting.set()
        time.sleep(0.01)
        return []
    provider.get_meter("m").create_observable_gauge("slow", [observe])
    for _ in range(4):
        collecting.clear()
        assert collecting.wait(10)
        child = os.fork()
        if not child:
            for _ in range(10): load.record(1)
            break
        os.waitpid(child, 0)
""",
    )
    assert done.returncode == 0, done.stderr
    # Not each of them: on a machine that is busy a collection takes longer than a fork waits for it.
    assert (10, 10) in kept(tmp_path)
    assert all(count <= 10 for count, _ in kept(tmp_path))


@pytest.mark.timing
@pytest.mark.process
def test_a_dead_collector_holds_up_the_end_by_a_second(tmp_path: Path) -> None:
    """With a collector that never answers the process ends within a second of its program's end."""
    exporters = "    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter\n"
    program = exporters + PROGRAM.replace("keep, 0.25", "OTLPMetricExporter(endpoint=sys.argv[1]), 0.25")
    program += "    load.record(1); time.sleep(0.6); load.record(1); print(flush=True)\n"
    with silent() as port:
        command = [sys.executable, str(write(tmp_path, program)), f"http://127.0.0.1:{port}/v1/metrics"]
        with subprocess.Popen(
            command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            began = time.monotonic()
            _, said = process.communicate(timeout=60)
            took = time.monotonic() - began
    assert process.returncode == 0
    assert took < 2  # the interpreter's own end is in it
    assert said.count(b"data was lost (shutdown") == 1
