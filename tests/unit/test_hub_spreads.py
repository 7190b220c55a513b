"""Exponential histograms in a hub: each value once, in the whole of its series and in one sample."""

from __future__ import annotations

import base64
import json
import math
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from examples import examples
from hub_requests import START, Clock, exponential, histogram, metrics, only, rank, shown
from tachograph.hub._history import History
from tachograph.hub._series import HubInstrument, HubSeries, Limits, as_json
from tachograph.hub._spread import HubSpread, Packing
from tachograph.hub.hub import Hub
from tachograph.recording.exponential import ExponentialBuckets, ExponentialCounts, ExponentialHistogram
from tachograph.runs.spread import FEW, FINE_ENOUGH, joined, packed, since, unpacked
from tachograph.runs.store import Store, path_of

SECOND = 10**9
finite = st.floats(allow_nan=False, allow_infinity=False)
intervals = st.lists(st.lists(finite, max_size=20), min_size=1, max_size=12)


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=clock)


def of(values: Sequence[float]) -> ExponentialHistogram:
    """Return the histogram of some values, as a client counts them."""
    return ExponentialCounts().plus(sorted(values)).histogram() if values else ExponentialHistogram()


def whole(series: HubSeries) -> ExponentialHistogram:
    """Return the values of a series since it began."""
    return unpacked(series.spread.snapshot()[0].packed()) if series.spread is not None else ExponentialHistogram()


def series() -> HubSeries:
    """Return a histogram that nothing has come for."""
    return HubSeries(HubInstrument("s", "n", "s", "histogram", ""), "histogram", ())


def states(folder: Path) -> dict[str, ExponentialHistogram | None]:
    """Return the whole of each series in a run's file, by name."""
    query = "SELECT name, data FROM series JOIN state ON series = series.id WHERE shape = 'histogram'"
    with closing(sqlite3.connect(path_of(folder, "run"))) as connection:
        found = {name: json.loads(data) for name, data in connection.execute(query)}
    return {name: unpacked(base64.b64decode(data[-1])) if len(data) > 8 else None for name, data in found.items()}


def samples(folder: Path, name: str) -> list[tuple[float, ExponentialHistogram | None]]:
    """Return count and spread of the samples of a series in a run's file."""
    query = "SELECT value, spread FROM sample JOIN series ON id = series WHERE name = ? ORDER BY time"
    with closing(sqlite3.connect(path_of(folder, "run"))) as connection:
        found = connection.execute(query, (name,)).fetchall()
    return [(count, None if spread is None else unpacked(spread)) for count, spread in found]


def same(one: ExponentialHistogram, two: ExponentialHistogram) -> bool:
    """Tell whether two histograms hold the same values, at the coarser scale of both."""
    scale = min(one.scale, two.scale)
    one, two = one.at_scale(scale), two.at_scale(scale)
    extremes = [(each.minimum, each.maximum) for each in (one, two)]
    return (one.zeros, _listed(one)) == (two.zeros, _listed(two)) and repr(extremes[0]) == repr(extremes[1])


def _listed(histogram: ExponentialHistogram) -> list[dict[int, int]]:
    sides = histogram.positive, histogram.negative
    return [{index: count for index, count in enumerate(side.counts, side.offset) if count} for side in sides]


@given(intervals)
def test_parts_joined_are_the_values(parts: list[list[float]]) -> None:
    """However values are parted, joined they are the same as counted at once, at a scale that is worth its room."""
    values = [value for part in parts for value in part]
    found = joined(map(of, parts))
    assert same(found, of(values))
    width = max(len(found.positive.counts), len(found.negative.counts))
    assert width <= FEW or found.scale <= FINE_ENOUGH
    finer = of(values).scale > found.scale
    assert not (finer and found.scale < FINE_ENOUGH and 2 * width < FEW)


@given(st.lists(finite), st.lists(finite, min_size=1))
def test_what_came_since_is_what_was_added(before: list[float], after: list[float]) -> None:
    """A later state less an earlier one holds the values between, with the extremes that are new."""
    found = since(of([*before, *after]), of(before))
    assert found.total == len(after)
    assert same(
        found._replace(minimum=math.nan, maximum=math.nan), of(after)._replace(minimum=math.nan, maximum=math.nan)
    )
    if before and min(after) < min(before):
        assert found.minimum == min(after)
    elif before:
        assert math.isnan(found.minimum)


@given(lives=st.lists(intervals, min_size=1, max_size=4), data=st.data())
def test_any_order_of_deltas_ends_at_what_was_sent(lives: list[list[list[float]]], data: st.DataObject) -> None:
    """Restarts, duplicates, in whatever order they come, the hub begun anew in between: each value counts once."""
    points = [
        ((pid, 0), 1000 * pid + 10 * place + 1, 1000 * pid + 10 * (place + 1) + 1, part)
        for pid, life in enumerate(lives)
        for place, part in enumerate(life)
        if part
    ]
    again = data.draw(st.lists(st.sampled_from(points), max_size=5)) if points else []
    found, taken = series(), list[ExponentialHistogram]()
    for writer, start, time, part in data.draw(st.permutations(points + again)):
        found.spread = found.spread or HubSpread()
        found.spread.delta(writer, start, time, of(part))
        chosen = data.draw(st.integers(0, 5))
        if chosen == 0:
            taken += found.spread.sample()
        elif chosen == 1:
            state = as_json(found.snapshot())
            found = series()
            found.restore(state)
    values = [value for _, _, _, part in points for value in part]
    assert same(whole(found), of(values))
    assert same(joined([*taken, *(found.spread.sample() if found.spread else ())]), of(values))


@given(lives=st.lists(intervals, min_size=1, max_size=3), data=st.data())
def test_any_order_of_states_ends_at_the_last_ones(lives: list[list[list[float]]], data: st.DataObject) -> None:
    """A cumulative sender's restarts, duplicates and late points: the whole is that of the last state of each start."""
    points = [
        (1000 * (place + 1), 1000 * (place + 1) + number + 1, [value for part in life[: number + 1] for value in part])
        for place, life in enumerate(lives)
        for number in range(len(life))
    ]
    again = data.draw(st.lists(st.sampled_from(points), max_size=5))
    found, taken = series(), list[ExponentialHistogram]()
    for start, time, state in data.draw(st.permutations(points + again)):
        found.spread = found.spread or HubSpread()
        if state:
            found.spread.cumulative(start, time, of(state))
        chosen = data.draw(st.integers(0, 5))
        if chosen == 0:
            taken += found.spread.sample()
        elif chosen == 1:
            saved = as_json(found.snapshot())
            found = series()
            found.restore(saved)
    values = [value for life in lives for part in life for value in part]
    assert same(whole(found), of(values))
    rest = joined([*taken, *(found.spread.sample() if found.spread else ())])
    assert rest.total == len(values)


def test_a_sender_that_begins_anew_without_saying_so_goes_on() -> None:
    """Where a cumulative state has fewer values than the one before, all of them are new."""
    found = HubSpread()
    for time, values in ((1, [1.0, 2.0]), (2, [1.0, 2.0, 4.0]), (3, [8.0]), (4, [8.0, 0.5])):
        assert found.cumulative(0, time, of(values))
    assert not found.cumulative(0, 2, of([1.0]))
    assert same(unpacked(found.snapshot()[0].packed()), of([1.0, 2.0, 4.0, 8.0, 0.5]))


def test_many_restarts_are_bounded() -> None:
    """A thousand starts of a cumulative sender cost no more than a few, and none counts twice."""
    found = HubSpread()
    for start in range(1, 1001):
        assert found.cumulative(start, start + 1, of([1.0]))
    assert not found.cumulative(1, 2, of([1.0]))
    assert unpacked(found.snapshot()[0].packed()).total == 1000
    assert len(as_json([found.snapshot()[1]])) < 1000
    assert max(len(found.snapshot()[0].parts), len(found.stretch()), len(found.sample())) < 10


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_beside_an_explicit_histogram_counts_there_alone(
    tmp_path: Path, hub: Hub, clock: Clock, first: int
) -> None:
    """The page and the numbers of points are those without it, whichever comes first; quantiles are stored."""
    values = [0.010, 0.011, 0.230]
    attributes = {"phase": "train"}
    explicit = histogram("step", [3, 0, 0], total=math.fsum(values), attributes=attributes)
    beside = exponential("step", values, beside=True, attributes=attributes)
    for _ in range(2):
        for each in ([explicit, beside], [beside, explicit])[first]:
            assert hub.receive_metrics(metrics(rank(0), each)).items == 0
    page = hub.page()[1]
    assert (only(page, "step_seconds_count"), only(page, "step_seconds_sum")) == (3, math.fsum(values))
    assert only(page, "step_seconds_bucket", le="1") == 3
    assert hub.summary()["data_points"] == 2
    clock.forward(1)
    hub.close()
    found = states(tmp_path)["step"]
    assert found is not None
    assert same(found, of(values))
    ((count, spread),) = samples(tmp_path, "step")
    assert (count, spread) == (3.0, found)


@pytest.mark.parametrize("delta", [False, True])
def test_exponential_histograms_of_any_client_are_kept(tmp_path: Path, hub: Hub, clock: Clock, delta: bool) -> None:
    """Count, sum and spread of a client that has only these are kept, deltas or states; a sample has its own."""
    sent: list[float] = []
    for values in ([30.0], [0.010, 0.0101], [0.011, -2.0, 0.0]):
        sent += values
        point = values if delta else sent
        start = clock.now - 10 * SECOND if delta else START - 10 * SECOND
        for _ in range(2):
            request = metrics(rank(0), exponential("save", point, delta=delta, start=start, time=clock.now))
            assert hub.receive_metrics(request).items == 0
        page = hub.page()[1]
        assert only(page, "save_seconds_count") == len(sent)
        assert only(page, "save_seconds_sum") == pytest.approx(math.fsum(sent))
        hub.tick()
        clock.forward(10)
    hub.close()
    found = states(tmp_path)["save"]
    assert found is not None
    assert same(found, of(sent))
    first, second, third = (spread for _, spread in samples(tmp_path, "save"))
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.total, second.total, third.total) == (1, 2, 3)
    assert second.quantiles([0.5])[0] == pytest.approx(0.010, rel=0.02)
    if delta:
        assert (third.minimum, third.maximum) == (-2.0, 0.011)


def test_a_slow_first_step_spoils_its_own_interval_alone(tmp_path: Path, hub: Hub, clock: Clock) -> None:
    """Later samples are as fine as if it had not been."""
    fast = statistics.NormalDist(0.0104, 0.0001).samples(200, seed=1)
    before = START
    for values in ([3000.0, 1e-6], fast, fast):
        clock.forward(10)
        hub.receive_metrics(
            metrics(
                rank(0),
                histogram("step", [len(values), 0, 0], start=before, time=clock.now, delta=True),
                exponential("step", values, beside=True, start=before, time=clock.now),
            )
        )
        before = clock.now
        clock.forward(1)
        hub.tick()
    hub.close()
    spreads = [spread for _, spread in samples(tmp_path, "step") if spread is not None]
    assert [spread.total for spread in spreads] == [2, 200, 200]
    assert spreads[0].scale < FINE_ENOUGH < spreads[1].scale == spreads[2].scale
    for spread in spreads[1:]:
        assert spread.quantiles([0.5])[0] == pytest.approx(statistics.median(fast), rel=0.002)


def test_a_hub_that_goes_on_loses_no_spread(tmp_path: Path, clock: Clock) -> None:
    """After a hub was killed between two samples the next one has all since the last; what is sent again is known."""
    requests = []
    for turn, values in enumerate(([1.0, 2.0], [4.0], [8.0, 0.5])):
        clock.forward(4)
        beside = exponential("step", values, beside=True, start=START + turn * 4 * SECOND, time=clock.now)
        explicit = histogram("step", [turn + 1, 0, 0], time=clock.now)
        requests.append(metrics(rank(0), explicit, beside))
        hub = Hub(tmp_path, run="run", clock=clock)
        for each in requests:  # those before are sent again
            assert hub.receive_metrics(each).items == 0
        hub._due["save"] = 0
        hub.tick()  # saved; then killed: not closed
    clock.forward(20)
    hub.close()
    found = states(tmp_path)["step"]
    assert found is not None
    assert same(found, of([1.0, 2.0, 4.0, 8.0, 0.5]))
    spreads = [spread for _, spread in samples(tmp_path, "step") if spread is not None]
    assert same(joined(spreads), found)


def test_a_transaction_that_fails_loses_no_spread(tmp_path: Path, hub: Hub, clock: Clock) -> None:
    """What could not be written is in the sample that is written next, with what came meanwhile, once."""

    def renamed(one: str, two: str) -> None:
        with closing(sqlite3.connect(path_of(tmp_path, "run"))) as connection:
            connection.execute(f"ALTER TABLE {one} RENAME TO {two}")
            connection.commit()

    sent: list[float] = []
    for turn in range(4):
        if turn in (1, 3):
            renamed(*(("sample", "away") if turn == 1 else ("away", "sample")))
        values, before = [float(turn + 1), 0.25], clock.now
        sent += values
        clock.forward(11)
        point = exponential("save", values, start=before, time=clock.now)
        assert hub.receive_metrics(metrics(rank(0), point)).items == 0
        hub.tick()
    assert only(hub.page()[1], "tachograph_errors_total", where="store") == 2
    hub.close()
    found = samples(tmp_path, "save")
    assert [count for count, _ in found] == [2.0, 6.0]
    assert [spread.total for _, spread in found if spread is not None] == [2, 6]
    assert same(joined([spread for _, spread in found if spread is not None]), of(sent))


def test_thinning_joins_spreads(tmp_path: Path) -> None:
    """Two samples that become one have the spread of both; where one has none or a damaged one, that of the other."""
    store = Store(tmp_path, "run")
    values = statistics.NormalDist(0.01, 0.001).samples(2000, seed=1)
    rows = [(1, time, 1.0, value, packed(of([value]))) for time, value in enumerate(values)]
    rows[0] = (*rows[0][:4], b"damaged")
    rows[2] = (*rows[2][:4], None)
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        connection.execute("INSERT INTO series VALUES (1, 1, '', 'n', '', 'histogram', '[]', '')")
        connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)
    assert History(store, most_bytes=1000).thin_samples() == 500
    found = store.read("SELECT value, spread FROM sample ORDER BY time")
    spreads = [unpacked(spread) for _, spread in found]
    assert [spread.total for spread in spreads[:3]] == [1, 1, 2]
    assert same(joined(spreads), of([*values[1:2], *values[3:]]))
    assert math.fsum(count for count, _ in found) == 2000
    store.close()


def test_samples_with_spreads_are_thinned_by_what_they_take(tmp_path: Path) -> None:
    """An eighth of the limit is left to samples: their spreads count, too."""
    values = statistics.NormalDist(0.01, 0.001).samples(100, seed=1)
    for spread, gone in ((None, 0), (packed(joined([of(values)])), 1000)):
        store = Store(tmp_path, f"run-{gone}")
        with store.transaction() as connection:
            connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
            connection.execute("INSERT INTO series VALUES (1, 1, '', 'n', '', 'histogram', '[]', '')")
            rows = [(1, time, 100.0, 1.0, spread) for time in range(4000)]
            connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute("INSERT INTO stream VALUES (1, 's', 1)")
            connection.execute("INSERT INTO event VALUES (1, 1, 0, 0, '', '', zeroblob(1200000))")
        assert History(store, most_bytes=1_000_000).thin_samples() == gone
        store.close()


def by_rank(page: bytes, name: str) -> dict[str, float]:
    """Return the values of a gauge across ranks by aggregation."""
    return {dict(labels)["aggregation"]: value for labels, value in shown(page, name).items()}


def test_a_slow_rank_never_shows_less_than_it_takes(hub: Hub, clock: Clock) -> None:
    """A step of 230 ms and more on one rank of four, of 10.4 ms on the others: the quantiles say so, all the time."""
    chance = statistics.NormalDist(0.0, 0.00005)
    before = START
    for turn in range(30):
        clock.forward(1)
        for each in range(4):
            least = 0.230 if each == 2 else 0.0104
            values = [least + abs(more) for more in chance.samples(4 if each == 2 else 90, seed=turn * 4 + each)]
            if turn == 0:
                values.append(1.7)
            explicit = histogram(
                "step", [len(values), 0, 0], total=math.fsum(values), start=before, time=clock.now, delta=True
            )
            beside = exponential("step", values, beside=True, start=before, time=clock.now)
            hub.receive_metrics(metrics(rank(each), explicit, beside))
        before = clock.now
        hub.tick()
        page = hub.page()[1]
        p50, p99 = by_rank(page, "step_by_rank_p50_seconds"), by_rank(page, "step_by_rank_p99_seconds")
        assert 0.230 <= p50["max"] < 0.230 * 1.02
        assert p99["max"] >= 0.230
        assert p50["min"] == pytest.approx(0.0104, rel=0.02)
        assert p50["median"] == pytest.approx(0.0104, rel=0.02)
        assert only(page, "step_slowest_rank") == 2
        if turn > 21:  # the slow first step has left
            assert p99["max"] < 0.231
            assert p99["min"] < 0.0108
    hub.close()


def test_ranks_without_exponential_histograms_have_no_quantiles(hub: Hub) -> None:
    """The means are there as ever; quantiles are those of the ranks that sent exponential histograms."""
    for each in range(2):
        hub.receive_metrics(metrics(rank(each), histogram("step", [2, 0, 0], total=2.0)))
    page = hub.page()[1]
    assert by_rank(page, "step_by_rank_seconds") == {"min": 1.0, "median": 1.0, "max": 1.0}
    assert b"by_rank_p" not in page
    hub.receive_metrics(metrics(rank(1), exponential("step", [1.0, 1.0], beside=True)))
    assert by_rank(hub.page()[1], "step_by_rank_p50_seconds") == {"min": 1.0, "median": 1.0, "max": 1.0}
    hub.close()


def point_of(metric: Metric) -> Any:
    """Return the one point of an exponential histogram."""
    return metric.exponential_histogram.data_points[0]


def changed(change: Callable[[Any], object]) -> Metric:
    """Return an exponential histogram that was changed."""
    metric = exponential("n", [1.0, 2.0])
    change(point_of(metric))
    return metric


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda point: setattr(point, "scale", 21), "malformed"),
        (lambda point: setattr(point, "scale", -(2**31)), "malformed"),
        (lambda point: setattr(point.positive, "offset", 2**31 - 1), "malformed"),
        (lambda point: setattr(point.positive, "offset", -(2**31)), "malformed"),
        (lambda point: point.negative.bucket_counts.extend([0] * 1001), "too_large"),
        (lambda point: setattr(point, "sum", math.nan), "nonfinite"),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_what_no_histogram_of_floats_is_is_refused(
    tmp_path: Path, hub: Hub, bad: Callable[[Any], object], reason: str, beside: bool
) -> None:
    """It is counted by its reason, and the points after it are taken."""
    metric = changed(bad)
    if beside:
        metric.metadata.add(key="tachograph.beside").value.bool_value = True
        if reason == "nonfinite":  # a sum is not needed there
            reason = ""
    metric.exponential_histogram.data_points.append(point_of(exponential("n", [3.0], start=2, time=START + 1)))
    rejected = hub.receive_metrics(metrics(rank(0), metric))
    assert (rejected.items, reason in rejected.why) == (1 if reason else 0, True)
    hub.close()
    found = states(tmp_path)["n"]
    assert found is not None
    assert found.total == (1 if reason else 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda point: (point.ClearField("min"), point.ClearField("max")),
        lambda point: (setattr(point, "min", math.nan), setattr(point, "max", math.inf)),
        lambda point: (setattr(point, "min", 5.0), setattr(point, "max", -5.0)),
    ],
)
def test_extremes_that_cannot_be_are_unknown(tmp_path: Path, hub: Hub, change: Callable[[Any], object]) -> None:
    """The values are counted, and their quantiles are those of the buckets."""
    assert hub.receive_metrics(metrics(rank(0), changed(change))).items == 0
    hub.close()
    found = states(tmp_path)["n"]
    assert found is not None
    assert math.isnan(found.minimum)
    assert math.isnan(found.maximum)
    assert found.quantiles([0.0, 1.0]) == pytest.approx([1.0, 2.0], rel=0.011)


def test_fine_and_empty_buckets_are_made_what_is_kept(tmp_path: Path, hub: Hub) -> None:
    """A thousand buckets at the finest scale that there is, most of them empty, become few, with the same values."""
    metric = exponential("n", [1.0])
    point = point_of(metric)
    point.scale = 20
    point.positive.Clear()
    point.positive.offset = -500
    point.positive.bucket_counts.extend([0, *[1] * 998, 0])
    assert hub.receive_metrics(metrics(rank(0), metric)).items == 0
    hub.close()
    found = states(tmp_path)["n"]
    assert found is not None
    assert (found.total, found.scale, found.positive) == (998, 8, ExponentialBuckets(-1, (499, 499)))


def test_spreads_take_of_the_room(tmp_path: Path, clock: Clock) -> None:
    """Series of wide spreads are refused once the memory is used up, and give it back when they go."""
    wide = [10.0**exponent for exponent in range(-9, 10)]
    sent = [exponential("n", wide, attributes={"i": place}) for place in range(100)]
    hub = Hub(tmp_path, run="run", clock=clock, limits=Limits(memory=1_000_000))
    rejected = hub.receive_metrics(metrics(rank(0), *sent))
    assert 50 < rejected.items < 100
    assert "cardinality" in rejected.why
    clock.forward(1000)
    hub.tick()
    clock.forward(1000)
    hub.tick()
    assert not hub._index.series
    again = hub.receive_metrics(metrics(rank(0), *sent))
    assert again.items == rejected.items
    hub.close()


numbers = st.integers(0, 2**64 - 1) | st.integers(0, 3)
evil = st.fixed_dictionaries(
    {
        "scale": st.integers(-12, 22) | st.sampled_from([2**31 - 1, -(2**31)]),
        "count": numbers,
        "zero_count": numbers,
        "sum": st.floats(),
        "min": st.floats(),
        "max": st.floats(),
        "time_unix_nano": numbers | st.just(START),
        "start_time_unix_nano": numbers,
    }
)
side = st.tuples(st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5), st.lists(numbers, max_size=8))


@settings(max_examples=examples(30))
@given(
    points=st.lists(st.tuples(evil, side, side, st.booleans(), st.booleans()), min_size=1, max_size=6),
    temporality=st.integers(0, 2),
)
def test_whatever_comes_is_kept_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    points: list[tuple[dict[str, Any], tuple[int, list[int]], tuple[int, list[int]], bool, bool]],
    temporality: Any,
) -> None:
    """Any points at all leave the hub able to show, to save and to go on, and what it saved is legible."""
    folder, clock = tmp_path_factory.mktemp("store"), Clock()
    hub = Hub(folder, run="run", clock=clock)
    for fields, positive, negative, beside, extremes in points:
        metric = Metric(name="n", unit="s")
        if beside:
            metric.metadata.add(key="tachograph.beside").value.bool_value = True
        metric.exponential_histogram.aggregation_temporality = temporality
        point = metric.exponential_histogram.data_points.add(**fields)
        if not extremes:
            point.ClearField("min")
        for there, (offset, counts) in ((point.positive, positive), (point.negative, negative)):
            there.offset = offset
            there.bucket_counts.extend(counts)
        request = metrics(rank(0), metric)
        hub.receive_metrics(ExportMetricsServiceRequest.FromString(request.SerializeToString()))
        clock.forward(11)
        hub.tick()
    page = hub.page()[1]
    assert b"tachograph_errors_total" not in page
    hub.close()
    states(folder)
    samples(folder, "n")
    again = Hub(folder, run="run", clock=clock)
    assert shown(again.page()[1], "n_seconds_count") == shown(page, "n_seconds_count")
    again.close()


def test_a_damaged_spread_in_a_state_begins_the_series_anew() -> None:
    """It is told as any state that is not legible, and the series is as it was."""
    found = series()
    found.spread = HubSpread()
    found.spread.delta(("pid", 0), 1, 2, of([1.0]))
    state = json.loads(as_json(found.snapshot()))
    state[-1] = base64.b64encode(b"\x01damaged").decode()
    fresh = series()
    with pytest.raises(ValueError, match="histogram"):
        fresh.restore(json.dumps(state))
    assert fresh.spread is None


def test_a_sample_with_its_spread_is_small(tmp_path: Path) -> None:
    """Ten seconds of steps of 10 ms, 5 % give or take, cost less than 150 bytes in the file."""
    values = statistics.NormalDist(0.01, 0.0005).samples(1000, seed=1)
    assert len(Packing((of(values),)).packed()) < 120
    store = Store(tmp_path, "run")
    spread = Packing((of(values),)).packed()
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        connection.execute("INSERT INTO series VALUES (1, 1, '', 'n', '', 'histogram', '[]', '')")
    before = store.size()
    with store.transaction() as connection:
        rows = [(1, START + place * 10 * SECOND, 1000.0, 10.0 + place / 3, spread) for place in range(20_000)]
        connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)
    assert (store.size() - before) / len(rows) < 150
    store.close()
