"""One series on the node's page: it goes on where its process starts anew, and nothing counts twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub_requests import START, Clock, histogram, metrics, number, only, rank, shown
from tachograph.hub._series import HubInstrument, HubSeries, as_json
from tachograph.hub.hub import Hub
from tachograph.runs.buckets import Buckets


def counter() -> HubSeries:
    """Return a counter that nothing has come for."""
    return HubSeries(HubInstrument("s", "n", "", "counter", ""), "counter", ())


def as_number(value: int) -> int:
    """Return an amount of a counter."""
    return value


def as_buckets(value: int) -> Buckets:
    """Return an amount of a histogram that has as many values."""
    return Buckets(value, float(value), (value // 2, value - value // 2), (1.0,))


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return the starts of a process: its start time, how it sends, and its points (time, amount added since)."""
    found = []
    for index in range(draw(st.integers(1, 4))):
        start = 1000 * (index + 1)
        added = draw(st.lists(st.integers(0, 50), min_size=1, max_size=6))
        found.append((start, draw(st.integers(0, 1)), [(start + 10 * (at + 1), more) for at, more in enumerate(added)]))
    return found


@pytest.mark.parametrize("amount", [as_number, as_buckets])
@given(lives=lives(), data=st.data())
def test_any_order_ends_at_the_exact_total(
    amount: Callable[[int], Any], lives: list[tuple[int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    """Restarts, deltas, duplicates, in whatever order they come: never backwards, and exact in the end."""
    points: list[tuple[bool, int, int, int, int]] = []
    total = 0
    for writer, (start, delta, sent) in enumerate(lives):
        so_far, before = 0, start
        for time, more in sent:
            so_far += more
            points.append((bool(delta), writer, before if delta else start, time, more if delta else so_far))
            before = time
        total += so_far
    arriving = data.draw(st.permutations(points + data.draw(st.lists(st.sampled_from(points), max_size=5))))
    series = HubSeries(HubInstrument("s", "n", "", "histogram", ""), "histogram", ())
    last = 0
    for is_delta, writer, start, time, value in arriving:
        if is_delta:
            series.delta(("pid", writer), start, time, amount(value))
        else:
            series.cumulative(start, time, amount(value))
        now = series.shown()
        count = now if isinstance(now, int) else now.count
        assert count >= last
        last = count
        if data.draw(st.integers(0, 9)) == 0:
            again = HubSeries(series.instrument, series.shape, ())
            again.restore(as_json(series.snapshot()))
            series = again
    assert last == total


def test_a_reset_without_a_new_start_goes_on() -> None:
    """A counter whose sender does not say when it began goes on when it falls."""
    series = counter()
    for time, value in ((1, 5), (2, 9), (3, 2), (4, 4)):
        series.cumulative(0, time, value)
    assert series.shown() == 13


def test_other_buckets_after_a_restart() -> None:
    """Where a restarted rank has other bounds, counts at bounds of both stay exact, and none goes backwards."""
    series = HubSeries(HubInstrument("s", "n", "", "histogram", ""), "histogram", ())
    series.cumulative(1, 2, Buckets(6, 9.0, (1, 2, 3), (1.0, 2.0)))
    series.cumulative(5, 6, Buckets(2, 3.0, (1, 1, 0), (2.0, 4.0)))
    assert series.shown() == Buckets(8, 12.0, (4, 1, 3), (2.0, 4.0))
    series.cumulative(1, 3, Buckets(7, 9.5, (2, 2, 3), (1.0, 2.0)))
    assert series.shown() == Buckets(9, 12.5, (5, 1, 3), (2.0, 4.0))
    series.cumulative(9, 10, Buckets(1, 1.0, (), ()))
    assert series.shown() == Buckets(10, 13.5, (), ())


def state(*counts: int) -> Buckets:
    """Return what a histogram of three buckets says of itself."""
    return Buckets(sum(counts), float(sum(counts)), counts, (1.0, 2.0))


STATES = st.tuples(*[st.integers(0, 3)] * 3).map(lambda counts: state(*counts))


@example(sent=[(1, state(0, 2, 0)), (5, state(1, 0, 0)), (1, state(3, 0, 0))])
@given(sent=st.lists(st.tuples(st.sampled_from([1, 5]), STATES), min_size=1, max_size=8))
def test_the_buckets_are_the_count(sent: list[tuple[int, Buckets]]) -> None:
    """Whatever a sender says, and however late: no bucket has less than nothing, and all have the count together."""
    series = HubSeries(HubInstrument("s", "n", "", "histogram", ""), "histogram", ())
    for time, (start, state) in enumerate(sent, 1):
        series.cumulative(start, time, state)
        shown = series.shown()
        assert min(shown.counts) >= 0
        assert sum(shown.counts) == shown.count


def test_many_restarts_are_bounded() -> None:
    """A process that restarts a thousand times costs a bounded memory, and its total stays exact."""
    series = counter()
    for start in range(1, 1001):
        series.cumulative(start, start + 1, 2)
    assert series.shown() == 2000
    assert len(series.past or {}) <= 64
    series.cumulative(1, 2, 2)
    assert series.shown() == 2000


def test_many_gaps_in_deltas_are_bounded() -> None:
    """Deltas with gaps between them cost a bounded memory."""
    series = counter()
    for index, writer in itertools.product(range(200), range(20)):
        series.delta(writer, 10 * index + 1, 10 * index + 5, 1)
    assert series.covered is not None
    assert sum(len(spans) for spans in series.covered.writers.values()) <= 33 * 8


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=clock)


def test_every_kind_is_on_the_page(hub: Hub) -> None:
    """Gauges, sums, histograms: each as Prometheus has it, with rank, role and run."""
    updown = number("queue", 3, kind="updown")
    sent = [number("loss", 0.5), number("steps", 7, kind="counter"), updown, histogram("step", [1, 2, 3], total=9.0)]
    assert hub.receive_metrics(metrics(rank(2), *sent)).items == 0
    _, page = hub.page()
    labels = (("dl_rank", "2"), ("dl_role", "trainer"), ("dl_run_id", "run"), ("otel_scope_name", "train"))
    assert shown(page, "loss") == {labels: 0.5}
    assert shown(page, "steps_total") == {labels: 7}
    assert shown(page, "queue") == {labels: 3}
    assert [only(page, "step_seconds_bucket", le=le) for le in ("1", "2", "+Inf")] == [1, 3, 6]
    assert only(page, "step_seconds_sum") == 9.0
    hub.close()


def test_gauges_keep_the_latest(hub: Hub) -> None:
    """A gauge's point that comes late does not replace a newer one."""
    for time, value in ((10, 1.0), (30, 3.0), (20, 2.0)):
        hub.receive_metrics(metrics(rank(0), number("loss", value, time=START + time)))
    assert only(hub.page()[1], "loss") == 3.0
    hub.close()


def test_an_updown_ends_with_its_process(hub: Hub) -> None:
    """What a process had in a queue is not carried over to the one that follows it."""
    for pid, start, sent in ((1, 10, (5, -2)), (2, 50, (4,))):
        for index, value in enumerate(sent):
            point = number(
                "queue", value, kind="updown", delta=True, start=START + start + index, time=START + start + index + 1
            )
            hub.receive_metrics(metrics(rank(0, pid=pid), point))
    assert only(hub.page()[1], "queue") == 4
    hub.close()


def test_exponential_histograms_and_summaries(hub: Hub) -> None:
    """What Prometheus's text cannot show whole keeps its count and sum."""
    request = metrics(rank(0), number("a", 1.0))
    scope = request.resource_metrics[0].scope_metrics[0]
    exponential = scope.metrics.add(name="exponential", unit="s").exponential_histogram
    exponential.aggregation_temporality = 2
    exponential.data_points.add(time_unix_nano=START, start_time_unix_nano=1, count=4, sum=10.0)
    scope.metrics.add(name="summary").summary.data_points.add(time_unix_nano=START, count=3, sum=6.0)
    assert hub.receive_metrics(request).items == 0
    _, page = hub.page()
    assert (only(page, "exponential_seconds_count"), only(page, "exponential_seconds_sum")) == (4, 10.0)
    assert (only(page, "summary_count"), only(page, "summary_sum")) == (3, 6.0)
    hub.close()


@pytest.mark.parametrize(
    "bad",
    [
        number("n", float("nan"), kind="counter"),
        number("n", -1, kind="counter"),
        number("n", 1, attributes={"long": "x" * 20_000}),
        histogram("n", [1, 2]),
        histogram("n", [1, 2, 3], bounds=[2.0, 1.0]),
        histogram("n", [1, 2, 3], bounds=[1.0, float("inf")]),
        histogram("n", [1, 2, 3], total=float("nan")),
    ],
)
def test_bad_points_are_rejected(hub: Hub, bad: Any) -> None:
    """A point that nothing can be made of is rejected and counted, and costs the others nothing."""
    assert hub.receive_metrics(metrics(rank(0), bad, number("good", 1.0))).items == 1
    _, page = hub.page()
    assert only(page, "good") == 1.0
    assert sum(shown(page, "tachograph_dropped_total", destination="hub").values()) == 1
    hub.close()


def test_other_attributes_of_the_resource_make_no_series(hub: Hub) -> None:
    """A restarted rank, with another pid and restart count, goes on in its series."""
    hub.receive_metrics(metrics(rank(1, pid=1), number("steps", 10, kind="counter", start=1, time=START)))
    again = rank(1, pid=2, restart=1)
    hub.receive_metrics(metrics(again, number("steps", 3, kind="counter", start=START + 5, time=START + 9)))
    assert only(hub.page()[1], "steps_total") == 13
    hub.close()


def test_the_order_of_attributes_does_not_matter(hub: Hub) -> None:
    """The same attributes in another order are the same series; 1, 1.0 and true are not."""
    for attributes in ({"a": "x", "b": 1}, {"b": 1, "a": "x"}, {"a": "x", "b": 1.0}, {"a": "x", "b": True}):
        hub.receive_metrics(metrics(rank(0), number("n", 1.0, attributes=attributes)))
    assert len(shown(hub.page()[1], "n")) == 2  # 1 and 1.0 look alike on the page, as they do behind the collector
    hub.close()
