"""Joining a MeterProvider that the program has set up itself: the same data arrives, and nothing of it is touched."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from examples import examples
from metric_programs import Collector, OtherReader, Program, dropped, series
from tachograph.exporters.external_provider import ExternalProvider
from tachograph.recording.registry import Registry


@pytest.fixture(params=[InMemoryMetricReader, OtherReader])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Return a program that ends with the test, and whose reader is fed, or replayed into."""
    made = Program(request.param())
    yield made
    made.end()


@pytest.fixture
def replayed() -> Iterator[Program]:
    """Return a program whose reader is replayed into."""
    made = Program(OtherReader())
    yield made
    made.end()


def test_gauges_and_counters_arrive_exactly(program: Program) -> None:
    """A gauge's last value and a counter's exact sum arrive with their attributes, in the scope of their group."""
    program.join().refresh()
    group = program.registry.group("train")
    group.instrument("loss").record(0.25, {"split": "eval"})
    group.instrument("sent.success").record(2**60)
    group.instrument("sent.success").record(3)
    program.external[0].refresh()
    points = program.collected()
    assert points["train", "loss", ("split", "eval")].value == 0.25
    assert points["train", "sent.success"].value == 2**60 + 3


def test_a_distribution_arrives_value_by_value(program: Program) -> None:
    """Every value reaches the program's own histogram: count, sum, minimum, maximum and our buckets."""
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    for value in range(1, 1501):
        fetch.record(value / 1000)
    external.refresh()
    points = program.collected()
    found = points["train", "fetch"]
    assert (found.count, found.min, found.max) == (1500, 0.001, 1.5)
    assert found.sum == pytest.approx(math.fsum(value / 1000 for value in range(1, 1501)), rel=1e-12)
    assert tuple(found.explicit_bounds) == fetch.boundaries
    assert ("train", "fetch.count") not in points
    assert not any(key[1] == "tachograph.dropped" for key in points)


def test_what_was_recorded_up_to_a_collection_is_in_it(program: Program) -> None:
    """A collection of the program's reader brings us up to date by itself: nothing waits for our next tick."""
    group = program.registry.group("train")
    group.instrument("fetch_seconds").record(1)
    group.instrument("loss").record(1)
    program.join()
    for number in range(2, 30):
        group.instrument("fetch_seconds").record(1)
        group.instrument("loss").record(number)
        points = program.collected()
        assert points["train", "fetch"].count == number
        assert points["train", "loss"].value == number


def test_cumulative_over_many_collections(program: Program) -> None:
    """However often they collect, counters and histograms hold all that was recorded, once."""
    external = program.join()
    done, fetch = (program.registry.group("train").instrument(name) for name in ("done.success", "fetch_seconds"))
    for number in range(1, 200):
        done.record(2)
        fetch.record(number)
        if number % 3 == 0:
            external.refresh()
        if number % 5 == 0:
            program.collected()
    external.refresh()
    points = program.collected()
    assert points["train", "done.success"].value == 398
    assert (points["train", "fetch"].count, points["train", "fetch"].sum) == (199, sum(range(1, 200)))


def test_profiled_functions_arrive_as_both_instruments(program: Program) -> None:
    """``function.duration`` is a replayed histogram by outcome, ``function.calls`` a counter with the error's type."""
    calls = program.registry.group("train").function("K.f")
    program.join()
    for _ in range(4):
        calls.success.record(0.5)
    calls.failure("ValueError").record(2.0)
    calls.failure("KeyError").record(1.0)
    program.external[0].refresh()
    points = program.collected()
    name = ("code.function.name", "K.f")
    assert points["train", "function.duration", name, ("outcome", "success")].count == 4
    failed = points["train", "function.duration", name, ("outcome", "failure")]
    assert (failed.count, failed.sum) == (2, 3.0)
    assert points["train", "function.calls", name, ("outcome", "success")].value == 4
    for error in ("KeyError", "ValueError"):
        assert points["train", "function.calls", name, ("error.type", error), ("outcome", "failure")].value == 1


def test_ten_thousand_values_a_second_are_limited_and_add_up(replayed: Program) -> None:
    """At most 2,000 values a second are replayed; the exact count and sum stand beside, and the rest is counted."""
    fetch = replayed.registry.group("train").instrument("fetch_seconds")
    external = replayed.join()
    recorded = 0
    for _second in range(5):
        for value in range(10_000):
            fetch.record(value)
            recorded += 1
            if value % 2_500 == 0:
                replayed.registry.collect()
        replayed.clock.now += 1
        external.refresh()
    points = replayed.collected()
    replayed = points["train", "fetch"].count
    assert 10_000 <= replayed <= 12_000
    assert replayed + dropped(points, "replay_rate") == recorded
    assert points["train", "fetch.count"].value == recorded
    assert points["train", "fetch.sum"].value == 5 * sum(range(10_000))
    assert points["train", "fetch"].sum / replayed == pytest.approx(4999.5, rel=0.02), "an evenly spaced sample"


def test_a_metric_that_is_new_arrives_whole(program: Program) -> None:
    """A distribution that comes into being and is folded between two of our ticks is replayed from its first value."""
    program.join()
    for _ in range(1_500):
        program.registry.group("train").instrument("fetch_seconds").record(1)
        program.registry.group("train").function("f").success.record(1)
    program.registry.collect()
    Registry(enabled=True).group("train").instrument("fetch_seconds").record(9)
    program.external[0].refresh()
    points = program.collected()
    assert points["train", "fetch"].count == points["train", "fetch"].sum == 1_500
    assert points["train", "function.duration", ("code.function.name", "f"), ("outcome", "success")].count == 1_500
    assert ("train", "fetch.count") not in points


def test_what_was_folded_before_joining_is_no_invention(replayed: Program) -> None:
    """What was folded before is in the exact count and sum, and counted as not replayed: no value is made up."""
    fetch = replayed.registry.group("train").instrument("fetch_seconds")
    for _ in range(30):
        fetch.record(0.3)
    replayed.registry.collect()
    fetch.record(0.5)
    replayed.join().refresh()
    points = replayed.collected()
    assert (points["train", "fetch"].count, points["train", "fetch"].sum) == (1, 0.5)
    assert dropped(points, "replay_late") == 30
    assert points["train", "fetch.count"].value == 31
    assert points["train", "fetch.sum"].value == pytest.approx(9.5, rel=1e-12)


def test_negative_values_are_counted_not_lost_silently(replayed: Program) -> None:
    """Their histograms take nothing below zero: it is counted, and the exact count and (signed) sum hold it."""
    change = replayed.registry.group("train").declare(
        "change", kind="histogram", unit="", description="", boundaries=[0]
    )
    external = replayed.join()
    for value in (1, -3, 2):
        change.record(value)
    external.refresh()
    external.refresh()
    points = replayed.collected()
    assert points["train", "change"].count == 2
    assert dropped(points, "replay_negative") == 1
    assert points["train", "change.count"].value == 3
    assert points["train", "change.signed.sum"].value == 0
    assert ("train", "change.sum") not in points


def test_values_that_their_sdk_cannot_take(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """NaN pauses a gauge, is counted and fills nobody's log; an integer beyond 64 bits becomes a float."""
    group = program.registry.group("train")
    program.join()
    group.instrument("loss").record(math.nan)
    group.instrument("huge").record(2**70)
    group.instrument("fetch_seconds").record(math.inf)
    group.instrument("fetch_seconds").record(1.0)
    program.external[0].refresh()
    points = program.collected()
    assert ("train", "loss") not in points
    assert isinstance(points["train", "huge"].value, float)
    assert points["train", "fetch"].count == 1
    assert points["tachograph", "tachograph.nonfinite", ("metric", "loss")].value == 1
    assert points["tachograph", "tachograph.nonfinite", ("metric", "fetch_seconds")].value == 1
    assert not caplog.records


def test_any_name_arrives(program: Program) -> None:
    """Names that their SDK refuses, and names that it cannot tell apart, all arrive, each under a name of its own."""
    group = program.registry.group("train")
    names = ["outer.<locals>.inner", "Größe", "9 lives", "loss", "Loss", "x" * 1000, "x" * 999 + "y", "<>"]
    for number, name in enumerate(names):
        group.instrument(name).record(number)
    program.registry.group("").instrument("loss").record(99)
    program.join()
    points = program.collected()
    assert sorted(point.value for key, point in points.items() if key[0] == "train") == list(range(len(names)))
    assert points["train", "outer._locals_.inner"].value == 0
    assert points["tachograph.unnamed", "loss"].value == 99


def test_their_instruments_of_the_same_name_are_left_alone(program: Program) -> None:
    """An observable that the program has under the same name keeps its callback; ours gets another name."""
    from opentelemetry.metrics import Observation

    meter = program.provider.get_meter("train")
    meter.create_observable_gauge("loss", [lambda _: [Observation(1)]], "", "loss")
    program.registry.group("train").instrument("loss").record(2)
    program.join()
    points = program.collected()
    assert (points["train", "loss"].value, points["train", "loss_2"].value) == (1, 2)


def test_their_views_temporality_interval_and_exporter_apply() -> None:
    """The provider, its reader and the interval stay theirs; their views and their temporality shape our metrics."""
    delta = AggregationTemporality.DELTA
    collector = Collector(preferred_temporality={Histogram: delta, ObservableCounter: delta, Counter: delta})
    reader = PeriodicExportingMetricReader(collector, export_interval_millis=3_600_000)
    views = [View(instrument_name="fetch", aggregation=ExplicitBucketHistogramAggregation((1.0, 2.5)))]
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    before = dict(vars(reader)), provider._metric_readers
    registry = Registry(enabled=True)
    fetch = registry.group("train").instrument("fetch_seconds")
    done = registry.group("train").instrument("done.success")
    external = ExternalProvider(provider, registry)
    for number in range(1, 4):
        fetch.record(1.5)
        fetch.record(1.5)
        done.record(number)
        external.refresh()
        assert external.drain(1.0)
        assert external.force_flush(5.0)
    assert [found["train", "fetch"].count for found in collector.received] == [2, 2, 2]
    assert [found["train", "done.success"].value for found in collector.received] == [1, 2, 3]
    assert collector.received[0]["train", "fetch"].bucket_counts == (0, 2, 0)
    external.close()
    assert (dict(vars(reader)), provider._metric_readers) == before
    provider.shutdown()


def test_nothing_leaves_after_closing_and_all_of_it_after_joining_again(replayed: Program) -> None:
    """A closed join yields nothing and taps nothing; the next one takes its instruments over, and nothing doubles."""
    group = replayed.registry.group("train")
    fetch, done = group.instrument("fetch_seconds"), group.instrument("done.success")
    first = replayed.join()
    fetch.record(1)
    done.record(1)
    first.refresh()
    first.close()
    assert list(replayed.collected()) == [("train", "fetch")], "their own histogram keeps what it has"
    fetch.record(2)
    done.record(1)
    first.refresh()
    replayed.registry.collect()
    replayed.join().refresh()
    fetch.record(4)
    points = replayed.collected()
    assert points["train", "done.success"].value == 2
    assert points["train", "fetch"].sum == 5
    assert dropped(points, "replay_late") == 1
    assert (points["train", "fetch.count"].value, points["train", "fetch.sum"].value) == (3, 7)


def test_draining_replays_what_is_left_whatever_the_rate(replayed: Program) -> None:
    """At the end nothing is held back by the rate limit; a deadline that has passed is kept, and the rest counted."""
    fetch = replayed.registry.group("train").instrument("fetch_seconds")
    external = replayed.join()
    for _ in range(9_000):
        fetch.record(1)
    assert external.drain(10.0)
    assert replayed.collected()["train", "fetch"].count == 9_000
    for _ in range(3_000):
        fetch.record(1)
    assert not external.drain(0.0)
    points = replayed.collected()
    assert points["train", "fetch"].count + dropped(points, "replay_rate") == 12_000
    assert points["train", "fetch.count"].value == 12_000


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(min_value=-5, max_value=3000).map(lambda value: ("record", value)),
            st.sampled_from([("fold", 0), ("refresh", 0), ("collect", 0), ("second", 0), ("rejoin", 0), ("nan", 0)]),
        ),
        max_size=40,
    )
)
def test_every_value_is_replayed_or_counted(steps: list[tuple[str, int]]) -> None:
    """Whatever is recorded, folded, collected, joined and left in any order: replayed + counted = recorded."""
    program = Program(OtherReader())
    fetch = program.registry.group("train").instrument("fetch_seconds")
    external = program.join()
    recorded = 0

    def record(value: int) -> None:
        nonlocal recorded
        for _ in range(max(value, 1)):
            fetch.record(value)
            recorded += 1

    def rejoin(_: int) -> None:
        nonlocal external
        external.close()
        external = program.join()

    actions: dict[str, Callable[[int], object]] = {
        "record": record,
        "fold": lambda _: program.registry.collect(),
        "refresh": lambda _: external.refresh(),
        "collect": lambda _: program.collected(),
        "second": lambda _: setattr(program.clock, "now", program.clock.now + 1),
        "rejoin": rejoin,
        "nan": lambda _: fetch.record(math.nan),
    }
    for action, value in steps:
        actions[action](value)
    external.refresh()
    external.refresh()
    points = program.collected()
    replayed = points["train", "fetch"].count if ("train", "fetch") in points else 0
    lost = sum(dropped(points, reason) for reason in ("replay_rate", "replay_late", "replay_negative"))
    assert replayed + lost == recorded
    assert ("train", "fetch.count") in points or not lost
    if lost:
        assert points["train", "fetch.count"].value == recorded
    program.end()


def test_threads_that_record_and_collect_at_once_lose_nothing(program: Program) -> None:
    """Four threads record while two readers collect and we refresh: every value arrives once."""
    second = InMemoryMetricReader()
    program.provider.add_metric_reader(second)
    group = program.registry.group("train")
    external = program.join()
    stop = threading.Event()

    def record() -> None:
        for _ in range(3_000):
            group.instrument("fetch_seconds").record(1)
            group.instrument("done.success").record(1)

    def collect(reader: InMemoryMetricReader) -> None:
        while not stop.is_set():
            reader.get_metrics_data()

    recorders = [threading.Thread(target=record) for _ in range(4)]
    collectors = [threading.Thread(target=collect, args=(reader,)) for reader in (program.reader, second)]
    for thread in (*recorders, *collectors):
        thread.start()
    while any(thread.is_alive() for thread in recorders):
        program.clock.now += 1
        external.refresh()
    stop.set()
    for thread in (*recorders, *collectors):
        thread.join()
    external.drain(10)
    for points in (program.collected(), series(second.get_metrics_data())):
        lost = sum(dropped(points, reason) for reason in ("replay_rate", "replay_late"))
        assert points["train", "fetch"].count + lost == 12_000
        assert points["train", "done.success"].value == 12_000


def test_a_provider_that_is_gone_takes_what_we_made_with_it() -> None:
    """Nothing of ours keeps a provider alive."""
    program = Program()
    program.registry.group("train").instrument("loss").record(1)
    program.join()
    import weakref

    provider = weakref.ref(program.provider)
    program.end()
    del program
    gc.collect()
    assert provider() is None


def test_a_provider_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A provider that raises is counted and logged once; recording and joining go on."""

    class Broken(MeterProvider):
        def get_meter(self, *_args: Any, **_more: Any) -> Any:
            raise RuntimeError("broken on purpose")

    registry = Registry(enabled=True)
    provider = Broken(shutdown_on_exit=False)
    registry.group("train").instrument("loss").record(1)
    external = ExternalProvider(provider, registry)
    external.refresh()
    errors = next(found for found in registry.collect() if found.name == "tachograph.errors")
    assert errors.points[0].attributes == (("where", "joined"),)
    assert len([record for record in caplog.records if "MeterProvider" in record.message]) == 1
    external.close()


def test_flushing_an_exporter_that_hangs_is_bounded(program: Program) -> None:
    """A provider whose exporter never answers holds a flush up for no longer than was allowed."""
    release = threading.Event()

    class Hangs(MeterProvider):
        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return release.wait(timeout_millis)

    provider = Hangs(shutdown_on_exit=False)
    external = ExternalProvider(provider, program.registry)
    began = time.monotonic()
    assert not external.force_flush(0.2)
    assert time.monotonic() - began < 2
    release.set()
    external.close()
    assert not external.drain(1.0), "nothing leaves any more"


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_publishes_nothing_of_its_parent(program: Program) -> None:
    """A child yields none of the values that it has inherited: nothing is counted twice."""
    group = program.registry.group("train")
    external = program.join()
    group.instrument("done.success").record(7)
    external.refresh()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        external.reset_in_child()
        found = program.reader.get_metrics_data()
        os.write(write_end, repr([key for key in series(found) if key[1] == "done.success"]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        assert answer.read() == "[]"
    assert program.collected()["train", "done.success"].value == 7


_FOREIGN = """
from tachograph.exporters.external_provider import external_meter_provider
import sys
assert external_meter_provider() is None, "the proxy is nobody's provider"
assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules), "the SDK was imported"
from opentelemetry import metrics
if sys.argv[1] == "no-op":
    metrics.set_meter_provider(metrics.NoOpMeterProvider())
    assert external_meter_provider() is None
else:
    from opentelemetry.sdk.metrics import MeterProvider
    provider = MeterProvider()
    metrics.set_meter_provider(provider)
    assert external_meter_provider() is provider
"""


@pytest.mark.process
@pytest.mark.parametrize("provider", ["no-op", "real"])
def test_only_a_provider_that_the_program_set_is_foreign(provider: str) -> None:
    """The proxy and a no-op are nobody's; what the program has set is found, and nothing is created to find it."""
    subprocess.run([sys.executable, "-c", _FOREIGN, provider], check=True, timeout=60)


@pytest.mark.process
def test_a_provider_named_by_the_environment_is_loaded() -> None:
    """``OTEL_PYTHON_METER_PROVIDER`` is honoured; one that cannot be loaded is one log line, and counted each time."""
    program = """
import logging
from tachograph.exporters.external_provider import external_meter_provider
from tachograph.recording import registry
said = []
logging.getLogger("tachograph").addFilter(lambda record: said.append(record.getMessage()))
found = {type(external_meter_provider()).__module__ for _ in range(3)}
errors = [point.value for metric in registry.default.collect() if metric.name == "tachograph.errors"
          for point in metric.points]
print(*found, *errors, sum("OTEL_PYTHON_METER_PROVIDER" in each for each in said))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
            env={**os.environ, "OTEL_PYTHON_METER_PROVIDER": name},
        ).stdout.strip()
        for name in ("sdk_meter_provider", "no_such_provider")
    ]
    assert found == ["opentelemetry.sdk.metrics._internal 0", "builtins 3 1"]
