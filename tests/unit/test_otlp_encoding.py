"""Metrics as OTLP messages: every value arrives, whatever else a program recorded."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

from examples import examples
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp._message import BYTES_PER_REQUEST
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.settings import Temporality
from tachograph.recording.accumulators import Distribution
from tachograph.recording.own_metrics import HARDWARE_GROUP
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

Value = str | bool | int | float | Sequence[Any]


def no_rest() -> None:
    """Do not rest: nothing else runs in a test."""


def encoder(registry: Registry, temporality: Temporality = "cumulative", *, size: int = 1000) -> MetricsEncoder:
    """Return an encoder for a destination called ``there``."""
    return MetricsEncoder("there", registry, temporality=temporality, points_per_request=size, pace=no_rest)


def encode(made: MetricsEncoder, registry: Registry, sdk: MetricsData | None = None) -> dict[tuple[str, str], Metric]:
    """Return the user's metrics as their serialised form holds them, by scope and name."""
    found: dict[tuple[str, str], Metric] = {}
    batch = Batch(registry.columns(), sdk, [], {"service.name": "s"}, time.time_ns())
    for request, _ in made.messages(batch):
        again = type(request).FromString(request.SerializeToString())
        for scope in again.resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                found[scope.scope.name, metric.name] = metric
    return found


def dropped(registry: Registry) -> dict[str, float]:
    """Return what was dropped at ``there``, by reason."""
    return {
        str(dict(point.attributes)["reason"]): point.value  # type: ignore[union-attr]
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if dict(point.attributes)["destination"] == "there"
    }


def test_each_kind_is_what_the_data_model_says() -> None:
    """A gauge, a counter and a histogram leave with their unit, their description, their times and all they hold."""
    registry = Registry()
    group = registry.group("train")
    before = time.time_ns()
    group.instrument("loss").record(0.25, {"phase": "eval", "fold": 3, "ok": True, "lr": 0.5, "betas": (0.9, 0.999)})
    group.instrument("save.success").record(2)
    fetch = group.declare("fetch", kind="histogram", unit="s", description="Time to fetch.", boundaries=[1, 2])
    for value in (0.5, 1, 1.5, 7):
        fetch.record(value)
    series = fetch.series({})
    assert isinstance(series, Distribution)
    series.note(Exemplar(1.5, 77, 0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7))
    found = encode(encoder(registry), registry)

    (gauge,) = found["train", "loss"].gauge.data_points
    assert gauge.as_double == 0.25
    assert before <= gauge.time_unix_nano <= time.time_ns()
    values = {pair.key: pair.value for pair in gauge.attributes}
    assert values["phase"].string_value == "eval"
    assert values["fold"].int_value == 3
    assert values["ok"].WhichOneof("value") == "bool_value"
    assert [part.double_value for part in values["betas"].array_value.values] == [0.9, 0.999]

    counter = found["train", "save.success"].sum
    assert counter.is_monotonic
    assert counter.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert counter.data_points[0].as_int == 2
    assert before <= counter.data_points[0].start_time_unix_nano <= counter.data_points[0].time_unix_nano

    metric = found["train", "fetch"]
    assert (metric.unit, metric.description) == ("s", "Time to fetch.")
    (point,) = metric.histogram.data_points
    assert (point.count, point.sum, point.min, point.max) == (4, 10.0, 0.5, 7.0)
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([1.0, 2.0], [2, 1, 1])
    (exemplar,) = point.exemplars
    assert exemplar.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert exemplar.span_id.hex() == "00f067aa0ba902b7"
    assert exemplar.as_double == 1.5


def test_values_that_are_not_finite_leave_as_they_are() -> None:
    """A gauge that is NaN or infinite is delivered so; an integer beyond 64 bits as a float."""
    registry = Registry()
    for name, value in (("a", math.nan), ("b", -math.inf), ("c", 2**70), ("d", -(2**63)), ("e", 10**400)):
        registry.group("g").instrument(name).record(value)
    found = {
        name: metric.gauge.data_points[0]
        for (_, name), metric in encode(encoder(registry), registry).items()
        if metric.HasField("gauge")
    }
    assert math.isnan(found["a"].as_double)
    assert found["b"].as_double == -math.inf
    assert found["c"].as_double == 2.0**70
    assert found["d"].as_int == -(2**63)
    assert found["e"].as_double == math.inf


numbers = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.floats().map(np.float64),
    st.integers(-(2**31), 2**31 - 1).map(np.int32),
    st.floats(width=32).map(lambda value: np.array([value], dtype=np.float32)),
)
others = st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=3), st.complex_numbers(), st.lists(st.integers()))
texts = st.text(st.characters(exclude_categories=[]), max_size=10)  # lone surrogates included
scalars = st.one_of(texts, st.booleans(), st.integers(-(2**70), 2**70), st.floats())
attribute_sets = st.dictionaries(
    texts.filter(bool), st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple)), max_size=3
)
names = st.sampled_from(["a", "a.success", "a.duration.ms", "a.bytes"])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(names, st.one_of(numbers, others), attribute_sets), max_size=12))
def test_any_recorded_value_leaves_the_batch_deliverable(recorded: list[tuple[str, Any, dict[str, Value]]]) -> None:
    """Whatever was recorded, with whatever attributes, every series that the registry holds is encoded."""
    registry = Registry()
    group = registry.group("g")
    for name, value, attributes in recorded:
        group.instrument(name).record(value, attributes)
    wanted = sum(len(metric.points) for metric in registry.collect() if metric.scope == "g")
    found = encode(encoder(registry, size=3), registry)
    assert dropped(registry) == {}
    batch = Batch(registry.columns(), None, [], {}, 1)
    points = 0
    for request, count in encoder(registry, size=3).messages(batch):
        points += count
        sent = (
            request.SerializeToString()
        )  # the messages themselves differ where one holds NaN, in older versions of protobuf
        assert type(request).FromString(sent).SerializeToString() == sent
    assert points == sum(len(metric.points) for metric in batch.metrics) >= wanted
    assert {name for scope, name in found if scope == "g"} == {m.name for m in batch.metrics if m.scope == "g"}


def test_a_series_that_cannot_be_encoded_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Where one attribute defies encoding, its series is left out and counted, and all others leave.

    What is recorded has plain attributes by then; those of a source are as the source gives them.
    """

    class Hostile(str):
        __slots__ = ()

        def isascii(self) -> bool:
            raise RuntimeError("no text for you")

    registry = Registry()
    loss = registry.group("g").instrument("loss")
    loss.record(1, {"who": "a"})
    loss.record(3, {"who": "c"})

    def source() -> Iterator[MetricPoints]:
        yield MetricPoints("g", "loss", "", "gauge", "loss", [NumberPoint((("who", Hostile("b")),), 2, 1)])

    registry.group("g").sources.append(source)
    found = encode(encoder(registry), registry)
    assert [point.as_int for point in found["g", "loss"].gauge.data_points] == [1, 3]
    assert dropped(registry) == {"encoding": 1}
    assert "no text for you" in caplog.text


@pytest.mark.parametrize("measured", [False, True])
def test_a_histogram_that_cannot_be_packed_costs_itself_alone(measured: bool) -> None:
    """Those that leave together with it do leave: a count beyond 64 bits, which no program reaches, is lost alone.

    Whether they are packed together, or one by one, as beside a series with an exemplar.
    """
    registry = Registry()
    for name in ("one", "two", "three"):
        registry.group("g").instrument(f"{name}.duration.ms").record(1.0)
    instruments = registry.group("g").instruments
    odd, other = (instruments[f"{name}.duration.ms"].all_series()[0][1] for name in ("two", "three"))
    assert isinstance(odd, Distribution)
    assert isinstance(other, Distribution)
    if measured:
        other.note(Exemplar(1.0, 1, 2, 3))
    odd.fold()
    odd._state = odd._state[0]._replace(count=2**64), None
    found = encode(encoder(registry), registry)
    assert [name for scope, name in found if scope == "g"] == ["one.duration", "three.duration"]
    assert dropped(registry) == {"encoding": 1}


def test_requests_are_of_bounded_size_and_complete() -> None:
    """Many series are split into several requests that hold each of them once, each request with its resource."""
    registry = Registry()
    loss = registry.group("g").instrument("loss")
    for number in range(1500):
        loss.record(number, {"n": number})
    batch = Batch(registry.columns(), None, [], {"service.name": "s"}, 1)
    requests = list(encoder(registry, size=400).messages(batch))
    assert all(count <= 400 + 64 for _, count in requests)
    values = []
    for request, _ in requests:
        assert request.resource_metrics[0].resource.attributes[0].value.string_value == "s"
        for scope in request.resource_metrics[0].scope_metrics:
            values += [point.as_int for metric in scope.metrics for point in metric.gauge.data_points]
    assert sorted(values) == list(range(1500))


def test_requests_have_a_bounded_number_of_bytes() -> None:
    """Series with long attributes travel by the MiB: receivers take 4 MiB over gRPC, and refuse what is larger."""
    registry = Registry()
    for number in range(500):
        registry.group("g").instrument("loss").record(number, {"text": f"{number:010000}"})
    batch = Batch(registry.columns(), None, [], {}, 1)
    found = list(encoder(registry).messages(batch))
    assert all(request.ByteSize() <= BYTES_PER_REQUEST + 100 for request, _ in found)  # the scope and the resource
    assert len(found) < 10
    assert sum(count for _, count in found) == sum(len(metric.points) for metric in batch.metrics) >= 500


@pytest.mark.parametrize("temporality", ["delta", "lowmemory"])
@settings(max_examples=examples(40), deadline=None)
@given(rounds=st.lists(st.lists(st.integers(0, 2**40), max_size=5), max_size=6))
def test_deltas_add_up_to_the_totals(temporality: Temporality, rounds: list[list[int]]) -> None:
    """The deltas of a counter and of a histogram, bucket by bucket, add up exactly; gauges stay what they are."""
    registry = Registry()
    group = registry.group("g")
    made = encoder(registry, temporality)
    counter, histogram, gauge = group.instrument("a.success"), group.instrument("a.duration.ms"), group.instrument("a")
    total, count, added, buckets = 0, 0, 0.0, 0
    counted, end = 0, 0  # when either last had a point: a counter to which zeros were added has none
    recorded = False
    for values in rounds:
        recorded = recorded or bool(values)
        for value in values:
            counter.record(value)
            histogram.record(value)
            gauge.record(value)
        found = encode(made, registry)
        if ("g", "a.success") in found:
            data = found["g", "a.success"].sum
            assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
            (point,) = data.data_points
            assert counted in (0, point.start_time_unix_nano)
            counted = point.time_unix_nano
            total += point.as_int
        if ("g", "a.duration") in found:
            (spread,) = found["g", "a.duration"].histogram.data_points
            assert not spread.HasField("min") or spread.min == min(values)
            assert not spread.HasField("max") or spread.max == max(values)
            assert end in (0, spread.start_time_unix_nano)
            end = spread.time_unix_nano
            count += spread.count
            added += spread.sum
            buckets += sum(spread.bucket_counts)
        assert (("g", "a") in found) == recorded
    everything = [value for values in rounds for value in values]
    assert (total, count, buckets, added) == (sum(everything), len(everything), len(everything), sum(everything))


def test_deltas_leave_other_readers_alone() -> None:
    """Two encoders of different temporality see the same registry, and neither takes anything from the other."""
    registry = Registry()
    counter = registry.group("g").instrument("a.success")
    delta, cumulative = encoder(registry, "delta"), encoder(registry)
    for expected in (3, 6, 9):
        counter.record(3)
        assert encode(delta, registry)["g", "a.success"].sum.data_points[0].as_int == 3
        assert encode(cumulative, registry)["g", "a.success"].sum.data_points[0].as_int == expected


def test_what_other_libraries_record_leaves_in_the_same_request() -> None:
    """SDK instruments travel under the same resource; one that its own encoder refuses costs its series alone."""
    registry = Registry()
    registry.group("g").instrument("loss").record(1.5)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    meter = provider.get_meter("library", "1.2")
    meter.create_counter("requests").add(3)
    gauge = meter.create_gauge("load")
    gauge.set(2.5, {"core": 0})
    gauge.set(2**80, {"core": 1})
    data = reader.get_metrics_data()
    assert data is not None
    batch = Batch(registry.columns(), data, [], {"service.name": "s"}, 1)
    ((request, count),) = encoder(registry).messages(batch)
    provider.shutdown()
    assert count == 3
    (resource,) = request.resource_metrics
    scopes = {scope.scope.name: scope for scope in resource.scope_metrics}
    assert set(scopes) == {"g", "library"}
    assert scopes["library"].scope.version == "1.2"
    found = {metric.name: metric for metric in scopes["library"].metrics}
    assert found["requests"].sum.data_points[0].as_int == 3
    assert [point.as_double for point in found["load"].gauge.data_points] == [2.5]
    assert dropped(registry) == {"encoding": 1}


def test_it_rests_between_slices() -> None:
    """Encoding many series pauses at least once each 128 points, so that the program can run."""
    registry = Registry()
    for number in range(640):
        registry.group("g").instrument(f"m{number}").record(number)
    rests = 0

    def pace() -> None:
        nonlocal rests
        rests += 1

    made = MetricsEncoder("there", registry, pace=pace)
    assert list(made.messages(Batch(registry.columns(), None, [], {}, 1)))
    assert rests >= 5


def test_a_series_keeps_its_message_while_its_values_and_neighbours_change() -> None:
    """What is encoded once is right in each later request: values of other kinds, new series, a new description."""
    registry = Registry()
    group = registry.group("g")
    made = encoder(registry)
    values: list[float] = [0.5, 3, True, 2**70, -math.inf]
    for turn, value in enumerate(values):
        group.instrument("loss").record(value, {"n": 0})
        for number in range(turn):  # one series more each time
            group.instrument("many").record(number + turn, {"n": number})
        group.instrument("step.duration.ms").record(turn, {"n": 0})
        if turn == 2:
            group.declare("loss", kind=None, unit=None, description="The loss.", boundaries=None)
        found = encode(made, registry)
        (loss,) = found["g", "loss"].gauge.data_points
        assert (loss.as_int if loss.WhichOneof("value") == "as_int" else loss.as_double) == value
        assert found["g", "loss"].description == ("loss" if turn < 2 else "The loss.")
        many = found["g", "many"].gauge.data_points if turn else ()
        assert [(point.attributes[0].value.int_value, point.as_int) for point in many] == [
            (number, number + turn) for number in range(turn)
        ]
        (duration,) = found["g", "step.duration"].histogram.data_points
        assert (duration.count, duration.sum) == (turn + 1, sum(range(turn + 1)))


def test_attributes_that_are_one_for_a_dict_stay_apart() -> None:
    """A source may make its attributes anew each time, at the address of those before: they are never mixed up."""
    registry = Registry()
    wanted: list[Any] = []

    def source() -> Iterator[MetricPoints]:
        for number in range(40):  # as many as there are are made, and go, in each collection
            attributes = (("n", wanted[0] + number),)
            yield MetricPoints("g", f"m{number % 2}", "", "gauge", "m", [NumberPoint(attributes, number, 1)] * 2)

    registry.group("g").sources.append(source)
    made = encoder(registry, size=10**6)
    for first in (1, 1.0, True, 100):
        wanted[:] = [first]
        batch = Batch(registry.columns(), None, [], {}, 1)
        ((request, _),) = made.messages(batch)
        points = [
            point
            for metric in request.resource_metrics[0].scope_metrics[0].metrics
            for point in metric.gauge.data_points
        ]
        for point in points:
            (pair,) = point.attributes
            kind = pair.value.WhichOneof("value")
            number = getattr(pair.value, kind)
            assert number == first + point.as_int
            assert kind == ("double_value" if isinstance(first, float) else "int_value") or (first is True)


def test_only_what_has_changed_leaves_unless_all_is_asked_for() -> None:
    """A series without news is left out, also of a metric whose other series have some; then all leave again."""
    registry, whole = Registry(), True
    made = MetricsEncoder("there", registry, is_whole=lambda: whole, pace=no_rest)
    group = registry.group("g")
    for name in ("loss", "epochs.success", "step.duration.ms"):
        group.instrument(name).record(1.0, {"rank": "0"})
        group.instrument(name).record(2.0, {"rank": "1"})
    group.instrument("alone").record(0.25)
    everything = encode(made, registry)
    assert len(everything) == 4
    whole = False
    assert not encode(made, registry)
    for name in ("loss", "epochs.success", "step.duration.ms"):
        group.instrument(name).record(3.0, {"rank": "1"})
    news = encode(made, registry)
    assert len(news) == 3
    for metric in news.values():
        (point,) = getattr(metric, str(metric.WhichOneof("data"))).data_points
        assert [pair.value.string_value for pair in point.attributes] == ["1"]
    assert not list(made.requests(Batch([], None, [], {}, 1)))  # as with events alone
    assert not encode(made, registry)
    group.instrument("loss").record(4.0, {"rank": "2"})  # a new series: where the others are is not known any more
    assert sum(len(metric.gauge.data_points) for metric in encode(made, registry).values()) == 3
    whole = True
    assert len(encode(made, registry)) == 4


@pytest.mark.parametrize("destinations", [["otlp"], ["otlp", "influxdb"]])
def test_exporting_alone_is_no_reason_to_export(destinations: list[str]) -> None:
    """The durations of exports are no news, else each export were the reason for the next; they leave with all else."""
    registry, whole = Registry(), True
    made = MetricsEncoder("there", registry, is_whole=lambda: whole, pace=no_rest)
    registry.group("g").instrument("loss").record(1.0)
    assert list(made.requests(Batch(registry.columns(), None, [], {}, 1)))
    whole = False
    for seconds in (0.25, 0.5):
        for destination in destinations:
            registry.export_duration.record(seconds, {"destination": destination})
        assert not list(made.requests(Batch(registry.columns(), None, [], {}, 1)))
    for later, sent in ((2_000_000_001, True), (3_900_000_000, False)):  # so that an idle process is not taken for lost
        registry.export_duration.record(1.0, {"destination": destinations[0]})
        assert bool(list(made.requests(Batch(registry.columns(), None, [], {}, later)))) is sent
    whole = True
    points = encode(made, registry)["tachograph", "tachograph.export.duration"].histogram.data_points
    assert [point.count for point in points] == [4, *[2] * (len(destinations) - 1)]


def test_an_idle_process_is_heard() -> None:
    """The durations of exports leave as they stand where nothing else has left for two seconds, else each ten."""
    registry, whole = Registry(), True
    made = MetricsEncoder("there", registry, is_whole=lambda: whole, pace=no_rest)
    loss = registry.group("g").instrument("loss")
    loss.record(1.0)
    registry.export_duration.record(0.5, {"destination": "otlp"})

    def sent(second: float) -> list[str]:
        requests = made.messages(Batch(registry.columns(own=False), None, [], {}, int(second * 1e9)))
        scopes = [scope for each, _ in requests for of in each.resource_metrics for scope in of.scope_metrics]
        return [metric.name for scope in scopes for metric in scope.metrics]

    assert sent(1) == ["loss", "tachograph.export.duration"]
    whole = False
    assert [sent(second) for second in range(2, 7)] == [[], ["tachograph.export.duration"]] * 2 + [[]]
    for second in range(7, 18):
        loss.record(second)
        assert sent(second) == (["loss", "tachograph.export.duration"] if second in (7, 17) else ["loss"])


def test_news_are_values_of_the_programs_own() -> None:
    """Those of the machine and of exports are none, nor is a collection that is sent as a whole; the rest is."""
    registry, whole = Registry(), True
    made = MetricsEncoder("there", registry, is_whole=lambda: whole, pace=no_rest)
    step, moment = registry.group("g").instrument("step.duration.ms"), 0

    def used() -> Iterator[MetricPoints]:
        yield MetricPoints(HARDWARE_GROUP, "process.cpu.time", "s", "counter", "", [NumberPoint((), moment, 0)])

    registry.group(HARDWARE_GROUP).sources.append(used)

    def had_news() -> bool | None:
        nonlocal moment
        moment += 10_000_000_000
        registry.export_duration.record(0.5, {"destination": "otlp"})
        assert list(made.requests(Batch(registry.columns(), None, [], {}, moment)))
        return made.had_news

    step.record(0.25)
    assert not had_news()
    whole = False
    assert had_news() is False
    step.record(0.25)
    assert had_news() is True
    assert had_news() is False
    registry.group("g").instrument("epochs.success").record(1)
    assert had_news() is True
    assert MetricsEncoder("elsewhere", registry, pace=no_rest).had_news is None


def test_all_leaves_after_a_collection_that_was_not_sent_to_its_end() -> None:
    """What a reader of the requests has given up half-way is sent with the next collection."""
    registry = Registry()
    made = MetricsEncoder("there", registry, is_whole=lambda: False, points_per_request=1, pace=no_rest)
    for name in "abcdefgh":
        registry.group(name).instrument(name).record(1.0)
    batch = Batch(registry.columns(), None, [], {}, 1)
    next(made.requests(batch))
    assert len(list(made.requests(batch))) == 8
    assert not list(made.requests(batch))


@pytest.mark.usefixtures("untraced")
def test_what_is_kept_of_a_histogram_for_our_own_hub_is_small() -> None:
    """A KiB at most, with what the message beside it needs."""
    registry = Registry()
    reader = registry.intervals.open()
    for number in range(1000):
        registry.group("g").instrument(f"step.{number}.duration.ms").record(0.5, {"phase": "train"})
    points = registry.columns(None, reader)
    made = MetricsEncoder("there", registry, beside=lambda: True, pace=no_rest)
    tracemalloc.start()
    for _ in range(3):
        assert list(made.requests(Batch(points, None, [], {}, 1)))
    assert tracemalloc.get_traced_memory()[0] < 1000 * 1024
    tracemalloc.stop()


@pytest.mark.usefixtures("untraced")
def test_what_is_kept_of_a_series_is_small() -> None:
    """A KiB of a series at most, of its own metric or of one with many series; nothing of those that have gone."""
    for alone in (True, False):
        registry = Registry()
        group = registry.group("g")
        for number in range(3000):
            name = f"loss.{number}" if alone else "loss"
            group.instrument(name).record(0.5, {"phase": "train", "number": str(number)})
        points, few, made = registry.columns(), registry.collect()[:1], encoder(registry)
        tracemalloc.start()
        for _ in range(3):
            assert list(made.requests(Batch(points, None, [], {}, 1)))
        assert tracemalloc.get_traced_memory()[0] < 3000 * 1024
        assert list(made.requests(Batch(few, None, [], {}, 1)))
        if alone:
            assert tracemalloc.get_traced_memory()[0] < 3000 * 128  # tuples that CPython keeps for the next ones
        tracemalloc.stop()


def test_a_source_that_makes_its_attributes_anew_fills_no_memory() -> None:
    """The bytes of attributes that nothing else holds any more go."""
    registry = Registry()

    def source() -> Iterator[MetricPoints]:
        points = [NumberPoint((("number", str(number)),), number, 1) for number in range(100)]
        yield MetricPoints("g", "m", "", "gauge", "m", points)

    registry.group("g").sources.append(source)
    made = encoder(registry)
    tracemalloc.start()
    for turn in range(60):
        assert list(made.requests(Batch(registry.columns(), None, [], {}, 1)))
        if turn == 10:
            before = tracemalloc.get_traced_memory()[0]
    assert tracemalloc.get_traced_memory()[0] < before + 100_000
    tracemalloc.stop()
