"""Rows of the torch.monitor API: ``tachograph.monitor``. Windows of an hour close by ``max_samples`` or at exit."""

from __future__ import annotations

import gc
import math
import time
from datetime import datetime, timedelta, timezone

from expected import Counter, Expected, Gauge, Happened, Histogram, Lost, Nothing, Windows
from rows import Section
from tachograph.monitor import (
    Aggregation,
    Event,
    Stat,
    _WaitCounter,
    log_event,
    register_event_handler,
    unregister_event_handler,
)

section = Section("torch.monitor")
row = section.row

HOUR = timedelta(hours=1)
SHORT = 0.1  # seconds, so that windows close on time within the row
STAT = "torch.monitor.Stat"
AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=timezone(timedelta(hours=2)))
EVERY = [
    *(Aggregation.VALUE, Aggregation.MEAN, Aggregation.COUNT),
    *(Aggregation.SUM, Aggregation.MAX, Aggregation.MIN),
]

_kept: list[Stat] = []  # their windows are open when the process exits


def window(name: str, **aggregates: float) -> tuple[Expected, ...]:
    """Return the event and the gauges of a closed window; the gauges of count and sum always exist."""
    data = {f"{name}.{key}": value for key, value in aggregates.items()}
    renamed = {"count": "window.count", "sum": "window.sum"}
    gauges = [Gauge("torch.monitor", f"{name}.{renamed.get(key, key)}", value) for key, value in aggregates.items()]
    return *gauges, Happened(STAT, data)


def in_a_window_of_its_own() -> None:
    """Wait until a short window starts."""
    now = time.time()
    time.sleep((math.floor(now / SHORT) + 1) * SHORT - now + SHORT / 20)


@row(
    Gauge("torch.monitor", "m.all.value", 6.0, "s"),
    Gauge("torch.monitor", "m.all.mean", 3.0, "s"),
    Gauge("torch.monitor", "m.all.window.count", 3, "{value}"),
    Gauge("torch.monitor", "m.all.window.sum", 9.0, "s"),
    Gauge("torch.monitor", "m.all.max", 6.0, "s"),
    Gauge("torch.monitor", "m.all.min", 1.0, "s"),
    Happened(
        STAT,
        {
            "m.all.value": 6.0,
            "m.all.mean": 3.0,
            "m.all.count": 3.0,
            "m.all.sum": 9.0,
            "m.all.max": 6.0,
            "m.all.min": 1.0,
        },
    ),
)
def each_aggregation() -> None:
    """A closed window is one gauge per aggregation, and one event `torch.monitor.Stat` with all of them."""
    stat = Stat("m.all", EVERY, HOUR, 3, unit="s")
    for value in (1.0, 2.0, 6.0):
        stat.add(value)


@row(
    Gauge("torch.monitor", "m.summary.p50", 50.0),
    Gauge("torch.monitor", "m.summary.p90", 90.0),
    Gauge("torch.monitor", "m.summary.p99", 99.0),
    Gauge("torch.monitor", "m.summary.stddev", math.sqrt(sum((each - 50) ** 2 for each in range(101)) / 101)),
)
def percentiles() -> None:
    """`P50`, `P90`, `P99` and `STDDEV` are supported as well, exact up to 4,096 values per window."""
    stat = Stat("m.summary", [Aggregation.P50, Aggregation.P90, Aggregation.P99, Aggregation.STDDEV], HOUR, 101)
    for value in range(101):
        stat.add(float(value))


@row(
    Gauge("torch.monitor", "m.always.window.count", 2, "{value}"),
    Gauge("torch.monitor", "m.always.window.sum", 3.0),
    Happened(STAT, {"m.always.mean": 1.5}),
)
def count_and_sum_of_a_window() -> None:
    """`<stat>.window.count` and `<stat>.window.sum` always exist; the event has only the requested aggregations."""
    stat = Stat("m.always", [Aggregation.MEAN], HOUR, 2)
    stat.add(1.0)
    stat.add(2.0)


@row(
    Histogram("torch.monitor", "m.cumulative", 5, 15.0, 1.0, 5.0, "s", at_most={2.0: 2, 4.0: 4}),
)
def the_cumulative_histogram() -> None:
    """All values of a Stat are in one cumulative histogram, including those of the open window."""
    stat = Stat("m.cumulative", [Aggregation.MEAN], HOUR, unit="s", boundaries=(2.0, 4.0))
    _kept.append(stat)
    for value in range(1, 6):
        stat.add(float(value))


@row(
    *window("m.capped", mean=1.5),
    Histogram("torch.monitor", "m.capped", 2, 3.0, 1.0, 2.0),
    Lost("max_samples", 3),
)
def max_samples() -> None:
    """The window closes at `max_samples`; later values of the same window are dropped and counted."""
    stat = Stat("m.capped", [Aggregation.MEAN], HOUR, 2)
    for value in (1.0, 2.0, 30.0, 40.0, 50.0):
        stat.add(value)
    _kept.append(stat)


@row(
    *window("m.timed", mean=4.0, sum=8.0),
    Gauge("torch.monitor", "m.timed.window.end", None, "s"),
    Histogram("torch.monitor", "m.timed", 2, 8.0, 3.0, 5.0),
)
def a_window_that_closes_on_time() -> None:
    """A window closes on time; its gauges, including its end time, remain while later windows are empty."""
    stat = Stat("m.timed", [Aggregation.MEAN, Aggregation.SUM], SHORT)
    in_a_window_of_its_own()
    stat.add(3.0)
    stat.add(5.0)
    _kept.append(stat)


@row(
    Windows("torch.monitor", "m.each.window.sum", (1.0, 2.0, 3.0)),
    *(Happened(STAT, {"m.each.sum": value}) for value in (1.0, 2.0, 3.0)),
)
def each_window() -> None:
    """Each closed window is one point over OTLP and one event; empty windows have neither."""
    stat = Stat("m.each", [Aggregation.SUM], SHORT)
    for value in (1.0, 2.0, 3.0):
        in_a_window_of_its_own()
        stat.add(value)
        for _ in range(1000):  # an overdue window is closed late, together with the next one
            if not stat.count:
                break
            time.sleep(0.005)
    _kept.append(stat)


@row(
    Histogram("torch.monitor", "m.two", 3, 15.0, 1.0, 10.0),
    Gauge("torch.monitor", "m.two.mean", 7.0),
    Happened(STAT, {"m.two.mean": 1.0}),
    Happened(STAT, {"m.two.mean": 7.0}),
)
def two_stats_of_one_name() -> None:
    """Two Stats with the same name have separate windows and events; gauges show the last closed one, sums add up."""
    one, other = (Stat("m.two", [Aggregation.MEAN], HOUR, samples) for samples in (1, 2))
    one.add(1.0)
    other.add(4.0)
    other.add(10.0)
    _kept.extend((one, other))


@row(
    *window("m.nan", count=4.0, sum=3.0, mean=1.5, min=1.0, max=2.0),
    Histogram("torch.monitor", "m.nan", 2, 3.0, 1.0, 2.0),
    Counter("torch.monitor", "m.nan.nonfinite", 2, "{value}"),
)
def nan_in_a_stat() -> None:
    """NaN and infinity count in a window's count and in `<stat>.nonfinite`; other aggregations use finite values."""
    asked = [Aggregation.COUNT, Aggregation.SUM, Aggregation.MEAN, Aggregation.MIN, Aggregation.MAX]
    stat = Stat("m.nan", asked, HOUR, 4)
    for value in (1.0, math.nan, 2.0, math.inf):
        stat.add(value)
    _kept.append(stat)


@row(*window("m.gone", mean=2.0), Histogram("torch.monitor", "m.gone", 1, 2.0, 2.0, 2.0))
def a_stat_that_is_destroyed() -> None:
    """When a Stat is destroyed, its open window is logged."""
    stat = Stat("m.gone", [Aggregation.MEAN], HOUR)
    stat.add(2.0)
    del stat
    gc.collect()


@row(
    Happened(STAT, {"m.open.mean": 3.0}),
    Histogram("torch.monitor", "m.open", 1, 3.0, 3.0, 3.0),
)
def a_window_open_at_the_end() -> None:
    """When the process exits, open windows are logged."""
    stat = Stat("m.open", [Aggregation.MEAN], HOUR)
    stat.add(3.0)
    _kept.append(stat)


@row(Nothing("torch.monitor", "m.empty.mean"), Happened(STAT, {"m.empty.mean": 0.0}, times=0))
def a_stat_without_values() -> None:
    """A window without values creates no event and no metric."""
    _kept.append(Stat("m.empty", [Aggregation.MEAN], SHORT))


@row(
    Happened(
        "m.event",
        {"text": "größer", "share": 0.25, "whole": 7, "flag": True},
        time_unix_nano=int(AT.timestamp()) * 10**9 + 250_000_000,
    )
)
def an_event() -> None:
    """An event has its name, time and data; str, float, int and bool values keep their types."""
    log_event(Event("m.event", AT, {"text": "größer", "share": 0.25, "whole": 7, "flag": True}))


@row(Happened("m.raising", {"number": 1}), Lost("handler", 1, "tachograph.errors"))
def an_event_handler_that_raises() -> None:
    """If a handler raises, the error is counted; the event arrives, and other handlers get it."""

    def fail(event: Event) -> None:
        if event.name == "m.raising":
            raise OSError(event.name)

    handle = register_event_handler(fail)
    log_event(Event("m.raising", AT, {"number": 1}))
    unregister_event_handler(handle)


@row(Histogram("torch.monitor", "torch.wait.duration", 2, unit="s", attributes={"name": "m.wait"}))
def a_wait_counter() -> None:
    """`_WaitCounter(key).guard()` records the duration of a wait in the histogram `torch.wait.duration`."""
    for _ in range(2):
        with _WaitCounter("m.wait").guard():
            pass
