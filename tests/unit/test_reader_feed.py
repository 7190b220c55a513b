"""Metric readers of the SDK as destinations: fed with everything recorded, flushed, shut down, silent after a fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from examples import examples
from programs import environment, run, write
from tachograph.exporters.batch import Batch
from tachograph.exporters.reader_feed import ReaderFeed, unfit
from tachograph.pipeline._providers import SdkInstruments
from tachograph.pipeline.destinations import Route
from tachograph.recording.registry import Registry

DELTA = AggregationTemporality.DELTA
RESOURCE = {"service.name": "s", "dl.rank": 1}


def source(registry: Registry, sdk: SdkInstruments | None = None) -> Callable[[MetricReader, float], Batch]:
    """Return what a pipeline gives to a reader."""

    def read(reader: MetricReader, _timeout: float) -> Batch:
        theirs = None if sdk is None else sdk.read_for(reader)
        return Batch(registry.collect(), theirs, [], RESOURCE, time.time_ns())

    return read


def fed(reader: MetricReader, registry: Registry, sdk: SdkInstruments | None = None) -> ReaderFeed:
    """Return a reader's feed, begun."""
    feed = ReaderFeed(reader, registry)
    if sdk is not None:
        sdk.attach_all([Route(feed, reader=feed)])
    feed.open(source(registry, sdk))
    return feed


def points(data: MetricsData | None) -> dict[tuple[str, str], Any]:
    """Return the points of each metric by scope and name, those about ourselves apart."""
    return {
        (scope.scope.name, metric.name): metric.data.data_points
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if scope.scope.name != "tachograph"
    }


def value_of(registry: Registry, name: str, **attributes: str) -> float:
    """Return one of our own counters."""
    return sum(
        point.value  # type: ignore[union-attr]
        for metric in registry.collect()
        if metric.name == name
        for point in metric.points
        if attributes.items() <= dict(point.attributes).items()
    )


class Kept(MetricExporter):
    """An exporter behind a periodic reader of the SDK."""

    def __init__(self, **preferred: Any) -> None:
        super().__init__(**preferred)
        self.received: list[MetricsData] = []
        self.calls: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Keep it, as soon as it is let."""
        del timeout_millis, kwargs
        self.free.wait(30)
        self.received.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Say that it was asked."""
        self.calls.append("flush")
        return timeout_millis > 0

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Say that it was asked."""
        del timeout_millis, kwargs
        self.calls.append("shutdown")
        self.free.set()


@settings(max_examples=examples(30), deadline=None)
@given(rounds=st.lists(st.lists(st.integers(0, 10**9), max_size=30), max_size=6), delta=st.booleans())
def test_what_a_reader_collects_is_everything(rounds: list[list[int]], delta: bool) -> None:
    """However collections fall, counters and distributions are exact in the reader's temporality."""
    registry = Registry(enabled=True)
    group = registry.group("g")
    reader = InMemoryMetricReader({Counter: DELTA, Histogram: DELTA} if delta else None)
    feed = fed(reader, registry)
    sent = count = total = 0
    for values in rounds:
        for value in values:
            group.instrument("load_seconds").record(value)
            group.instrument("sent.success").record(value)
            group.instrument("loss").record(value)
        found = points(reader.get_metrics_data())
        (histogram,), (counter,) = (found.get(("g", name), [None]) for name in ("load", "sent.success"))
        if delta:
            count += histogram.count if histogram is not None else 0
            total += histogram.sum if histogram is not None else 0
            sent += counter.value if counter is not None else 0
        elif histogram is not None:
            count, total, sent = histogram.count, histogram.sum, counter.value
        if values:
            assert found["g", "loss"][0].value == values[-1]
    everything = [value for values in rounds for value in values]
    assert (count, total, sent) == (len(everything), sum(everything), sum(everything))
    feed.close(1)


def test_a_hundred_thousand_values_at_once_are_exact() -> None:
    """No value of a distribution is lost on the way to a reader, whatever the rate."""
    registry = Registry(enabled=True)
    add = registry.group("g").declare("load", kind="histogram", unit="s", description="", boundaries=[1, 2]).record
    reader = InMemoryMetricReader()
    feed = fed(reader, registry)
    for number in range(100_000):
        add(number % 3)
    (point,) = points(reader.get_metrics_data())["g", "load"]
    assert (point.count, point.sum, list(point.bucket_counts)) == (100_000, 99_999, [66_667, 33_333, 0])
    feed.close(1)


def test_what_other_libraries_record_comes_as_the_reader_prefers_it() -> None:
    """Instruments of our own provider are there, too, as the reader prefers them; no reader takes from another."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record(1)
    provider = MeterProvider(resource=Resource(RESOURCE), shutdown_on_exit=False)
    sdk = SdkInstruments(provider)
    ours = (Counter, Histogram, ObservableCounter)
    readers = [
        InMemoryMetricReader(dict.fromkeys(ours, DELTA), {Histogram: ExponentialBucketHistogramAggregation()})
        for _ in range(2)
    ]
    feeds = [fed(reader, registry, sdk) for reader in (*readers, InMemoryMetricReader())]
    meter = provider.get_meter("library")
    counter, histogram = meter.create_counter("requests"), meter.create_histogram("took")
    for _ in range(2):
        counter.add(3)
        histogram.record(2.5)
        for reader in readers:
            found = points(reader.get_metrics_data())
            assert found["library", "requests"][0].value == 3
            assert found["library", "took"][0].count == 1
            assert found["library", "took"][0].scale > 0
            assert found["g", "loss"][0].value == 1
    found = points(feeds[2].reader.get_metrics_data())  # type: ignore[attr-defined]
    assert found["library", "requests"][0].value == 6
    assert found["library", "took"][0].explicit_bounds
    for feed in feeds:
        feed.close(1)
    sdk.close(1.0)
    provider.shutdown()


def test_a_periodic_reader_keeps_its_interval_and_collects_at_its_end() -> None:
    """It exports by itself, when it is flushed, and the last values when it is shut down, its exporter with it."""
    registry = Registry(enabled=True)
    done = registry.group("g").instrument("done.success")
    exporter = Kept(preferred_temporality={Counter: DELTA})
    feed = fed(PeriodicExportingMetricReader(exporter, export_interval_millis=50), registry)
    done.record(1)
    until = time.monotonic() + 10
    while not exporter.received and time.monotonic() < until:
        time.sleep(0.01)
    assert exporter.received, "it exports by itself"
    done.record(2)
    assert not feed.flush(0), "a flush that does not wait has only begun"
    assert feed.flush(5)
    assert exporter.calls[:1] == ["flush"]
    done.record(4)
    feed.close(5)
    assert exporter.calls[-1] == "shutdown"
    values = [point.value for data in exporter.received for point in points(data).get(("g", "done.success"), ())]
    assert sum(values) == 7
    received = len(exporter.received)
    done.record(8)
    time.sleep(0.2)
    assert len(exporter.received) == received, "nothing comes after the end"


def test_one_flush_is_one_collection() -> None:
    """That all destinations hurry first makes no second collection of a periodic reader."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record(1)
    exporter = Kept()
    feed = fed(PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000), registry)
    for number in range(1, 4):
        feed.flush(0)
        assert feed.flush(5)
        assert len(exporter.received) == number
    feed.close(5)


def test_an_export_that_does_not_return_holds_up_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """The end comes in time, what was not exported is counted and said, and the reader is shut down beside it."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record(1)
    exporter = Kept()
    exporter.free.clear()
    feed = fed(PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000), registry)
    assert not feed.flush(0.1)
    for _ in range(50):
        assert not feed.flush(0)
    before = time.monotonic()
    feed.close(0.3)
    assert time.monotonic() - before < 1
    assert value_of(registry, "tachograph.dropped", reason="shutdown") >= 1
    assert "data was lost (shutdown" in caplog.text
    until = time.monotonic() + 10
    while "shutdown" not in exporter.calls and time.monotonic() < until:
        time.sleep(0.01)
    assert "shutdown" in exporter.calls
    assert len(exporter.received) <= 2, "flushes that nobody waits for do not pile up"


@pytest.fixture
def page() -> Iterator[CollectorRegistry]:
    """Return a registry of prometheus_client."""
    return CollectorRegistry()


def samples(page: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of a page, those about ourselves and empty labels apart; none is there twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(generate_latest(page).decode()):
        for sample in family.samples:
            if sample.labels.get("otel_scope_name") == "tachograph" or family.name == "target_info":
                continue
            kept = {name: said for name, said in sample.labels.items() if said and not name.startswith("otel_scope_s")}
            key = sample.name, tuple(sorted(kept.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_a_prometheus_reader_shows_what_is_there_when_it_is_scraped(page: CollectorRegistry) -> None:
    """Each scrape has the state of its moment; a flush puts no second page beside it; after the end there is none."""
    registry = Registry(enabled=True)
    loss = registry.group("g").instrument("loss")
    feed = fed(PrometheusMetricReader(registry=page), registry)
    for number in (1.0, 2.0):
        loss.record(number)
        assert feed.flush(5)
        assert samples(page) == {("loss", (("otel_scope_name", "g"),)): number}
    feed.close(5)
    assert samples(page) == {}


def test_a_prometheus_reader_mixes_up_no_labels(page: CollectorRegistry) -> None:
    """Metrics of one name with other attributes in another group have their own values at their own labels."""
    registry = Registry(enabled=True)
    registry.group("a").instrument("f.success").record(1, {"fn": "x"})
    registry.group("b").instrument("f.success").record(2, {"fn": "y", "an": "z"})
    feed = fed(PrometheusMetricReader(registry=page), registry)
    assert samples(page) == {
        ("f_success_total", (("fn", "x"), ("otel_scope_name", "a"))): 1,
        ("f_success_total", (("an", "z"), ("fn", "y"), ("otel_scope_name", "b"))): 2,
    }
    feed.close(5)


def test_the_last_state_is_there_after_the_end() -> None:
    """An in-memory reader answers once more after its end, as one of the SDK's own provider does."""
    registry = Registry(enabled=True)
    reader = InMemoryMetricReader()
    feed = fed(reader, registry)
    registry.group("g").instrument("loss").record(3)
    feed.close(5)
    registry.group("g").instrument("loss").record(4)
    assert points(reader.get_metrics_data())["g", "loss"][0].value == 3
    assert reader.get_metrics_data() is None


class Raising(MetricReader):
    """A reader that cannot take what it has collected, nor end."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        del timeout_millis, kwargs
        raise ValueError(f"no room for {len(metrics_data.resource_metrics)}")

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Fail."""
        del timeout_millis, kwargs
        raise ValueError("no end")


def test_a_reader_that_raises_is_one_line_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What it did not take is counted by its name, and said once."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record(3)
    feed = fed(Raising(), registry)
    assert not feed.flush(5)
    assert not feed.flush(5)
    feed.close(5)
    assert value_of(registry, "tachograph.dropped", reason="rejected", destination="Raising") >= 3
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_collection_that_fails_ends_no_thread_of_the_readers(caplog: pytest.LogCaptureFixture) -> None:
    """An error on our side of a collection is counted and said once; the reader asks again."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record(3)
    feed = ReaderFeed(reader := InMemoryMetricReader(), registry)
    working, broken = source(registry), [True, True, False]

    def sometimes(reader: MetricReader, timeout: float) -> Batch:
        if broken.pop(0):
            raise RuntimeError("broken on purpose")
        return working(reader, timeout)

    feed.open(sometimes)
    assert reader.get_metrics_data() is None
    assert reader.get_metrics_data() is None
    assert points(reader.get_metrics_data())["g", "loss"]
    assert value_of(registry, "tachograph.errors", where="exporter") == 2
    assert len(caplog.records) == 1


def test_a_reader_has_one_owner() -> None:
    """A reader of a provider, of another pipeline, or one that was shut down is refused with the reason."""
    registry = Registry(enabled=True)
    theirs, ours = InMemoryMetricReader(), InMemoryMetricReader()
    provider = MeterProvider([theirs], shutdown_on_exit=False)
    with pytest.raises(ValueError, match="registered with a MeterProvider"):
        ReaderFeed(theirs, registry)
    assert unfit(ours) is None
    feed = fed(ours, registry)
    assert unfit(ours) is None
    with pytest.raises(ValueError, match="another pipeline uses it"):
        ReaderFeed(ours, registry)
    feed.close(1)
    with pytest.raises(ValueError, match="create a new one"):
        ReaderFeed(ours, registry)
    provider.shutdown()


def test_a_reader_that_was_taken_over_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A provider that the program gives our reader to later feeds it from then on, which is counted and said."""
    registry = Registry(enabled=True)
    feed = fed(reader := InMemoryMetricReader(), registry)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    feed.close(1)
    assert "uses this reader now" in caplog.text
    assert value_of(registry, "tachograph.errors", where="exporter") == 1
    provider.shutdown()


def test_threads_that_ask_at_once_lose_nothing() -> None:
    """Differences that are read by several threads add up to everything recorded."""
    registry = Registry(enabled=True)
    done = registry.group("g").instrument("done.success")

    class Adding(MetricReader):
        def __init__(self) -> None:
            super().__init__({Counter: DELTA})
            self.total = 0.0
            self.adding = threading.Lock()

        def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
            del timeout_millis, kwargs
            with self.adding:
                self.total += sum(point.value for point in points(metrics_data).get(("g", "done.success"), ()))

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            """End."""
            del timeout_millis, kwargs

    feed = fed(reader := Adding(), registry)
    threads = [threading.Thread(target=lambda: [reader.collect() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        done.record(1)
    for thread in threads:
        thread.join()
    reader.collect()
    assert reader.total == 2000
    feed.close(1)


@pytest.mark.process
def test_a_console_exporter_behind_a_periodic_reader_is_the_sdks_own(tmp_path: Any) -> None:
    """The whole way, in a program: start() takes the reader, it prints at its end, and the program ends well."""
    done = run(
        tmp_path,
        """
import tachograph
from opentelemetry import metrics
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
reader = PeriodicExportingMetricReader(ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n"))
tachograph.start(metrics=[reader, reader])
tachograph.put_metric("loss", 0.5, "train")
metrics.get_meter("library").create_counter("requests").add(3)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert '"loss"' in last
    assert '"requests"' in last
    assert '"service.name": "program"' in last


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_shows_nothing_of_its_parent(tmp_path: Any) -> None:
    """In the child neither the SDK's restarted thread nor a question finds anything; the parent goes on."""
    done = run(
        tmp_path,
        """
import os, time
import tachograph
from opentelemetry.sdk.metrics.export import *
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, generate_latest

class Kept(ConsoleMetricExporter):
    def __init__(self):
        super().__init__()
        self.exports = 0
    def export(self, *args, **kwargs):
        self.exports += 1
        return MetricExportResult.SUCCESS

page, memory, exporter = CollectorRegistry(), InMemoryMetricReader(), Kept()
periodic = PeriodicExportingMetricReader(exporter, export_interval_millis=50)
tachograph.start(metrics=[PrometheusMetricReader(registry=page), memory, periodic])
tachograph.put_metric("loss", 0.5, "train")
time.sleep(0.3)
child = os.fork()
if not child:
    exporter.exports = 0
    time.sleep(0.4)
    tachograph.put_metric("loss", 0.6, "train")
    print("child", exporter.exports, memory.get_metrics_data(), b"loss" in generate_latest(page), flush=True)
    raise SystemExit
os.waitpid(child, 0)
before = exporter.exports
time.sleep(0.3)
print("parent", exporter.exports > before > 0, memory.get_metrics_data() is not None, b"loss" in generate_latest(page))
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 0 None False", "parent True True True"]
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_helper_that_records_takes_the_reader_over(tmp_path: Any) -> None:
    """With TACHOGRAPH_HELPERS=true the forked child feeds its copy of the reader with its own values alone."""
    done = run(
        tmp_path,
        """
import os
import subprocess
import sys
import tachograph
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
tachograph.start(metrics=reader)
tachograph.put_metric("parent", 0.5, "g")
child = os.fork()
if not child:
    tachograph.put_metric("child", 0.6, "g")
    found = reader.get_metrics_data()
    print([metric.name for scope in found.resource_metrics[0].scope_metrics for metric in scope.metrics], flush=True)
    os._exit(0)
os.waitpid(child, 0)
""",
        TACHOGRAPH_HELPERS="true",
    )
    assert done.returncode == 0, done.stderr
    assert "'child'" in done.stdout
    assert "'parent'" not in done.stdout


@pytest.mark.process
def test_a_reader_beside_a_provider_of_the_program(tmp_path: Any) -> None:
    """Where the program has a provider of its own, a reader that start() was given shows everything recorded, too."""
    done = run(
        tmp_path,
        """
import tachograph
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
theirs, ours = InMemoryMetricReader(), InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([theirs]))
with tachograph.start(metrics=ours) as pipeline:
    tachograph.put_metric("loss", 0.5, "train")
    pipeline.flush()
    for reader in (theirs, ours):
        scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
        print("loss" in [metric.name for scope in scopes for metric in scope.metrics])
    try:
        tachograph.start(metrics=theirs)
    except ValueError as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    first, second, refused = done.stdout.splitlines()
    assert (first, second) == ("True", "True")
    assert "registered with a MeterProvider" in refused


@pytest.mark.process
def test_under_zero_code_a_program_adds_its_reader(tmp_path: Any) -> None:
    """start() in the script adds the reader to what runs; again it is the same; a taken one is a line only."""
    write(
        tmp_path,
        """
import tachograph
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
first = tachograph.start(metrics=reader)
print(tachograph.start(metrics=reader) is first)
tachograph.start(metrics=["console", reader], interval=3600)
tachograph.put_metric("loss", 0.5, "train")
scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
print("loss" in [metric.name for scope in scopes for metric in scope.metrics])
""",
    )
    done = subprocess.run(
        [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_METRICS_EXPORTER="none"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["True", "True"]
    assert [line for line in done.stderr.splitlines() if "another pipeline uses it" in line]
