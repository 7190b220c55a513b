"""Exact points on their way to our own hub: packed by curve, each with its own number, and nothing else changed."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curves import Bench
from receivers import dropped
from tachograph.exporters.batch import Batch
from tachograph.metric import Metric, MetricGroup
from tachograph.pipeline.destinations import Route
from tachograph.pipeline.event_feed import EventFeed
from tachograph.recording.journal import SCHEMA, LogEvent
from tachograph.recording.logged_points import packed
from tachograph.recording.packed_points import PACKED

VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53)
STEPS = st.lists(st.tuples(st.integers(0, 3), VALUES, st.integers(0, 5)), max_size=120)
COLUMNS = {"time": "q", "x": "d", "value": "d"}


class Kept:
    """A destination that keeps the events."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def __call__(self, batch: Batch) -> None:
        """Keep them."""
        self.events += batch.events

    def flush(self, _timeout: float) -> bool:
        """Return True: they are kept."""
        return True

    def close(self, _timeout: float) -> None:
        """Do nothing."""


def recorded(steps: list[tuple[int, Any, int]]) -> Bench:
    """Return an execution with the points of four metrics, of which one is in a group and one is throttled."""
    bench = Bench()
    group = MetricGroup("train")
    metrics = [Metric(f"m{place}", throttle=None if place else 2, execution=bench) for place in range(3)]
    metrics.append(Metric("grouped", group=group, throttle=None, execution=bench))
    for place, value, at in steps:
        bench.now += 0.1
        metrics[place].record(value, at=at)
    bench.pass_on(everything=True)
    return bench


def told(events: list[LogEvent]) -> tuple[dict[Any, list[Any]], list[int], list[str]]:
    """Return the points of each curve in order, the numbers of all, and the names of the other events."""
    points: dict[Any, list[Any]] = defaultdict(list)
    numbers: list[int] = []
    others: list[str] = []
    for event in events:
        about = dict(event.attributes)
        if event.name == PACKED:
            columns = [memoryview(about[key]).cast(kind).tolist() for key, kind in COLUMNS.items()]  # type: ignore[arg-type,call-overload]
            (metric,) = about["metric"]  # type: ignore[misc]
            key = metric, about["group"], about["execution"], about.get("branch", 0)
            points[key] += [(x, str(value)) for _, x, value in zip(*columns, strict=True)]
            numbers += range(event.seq, event.seq + event.points)
            continue
        numbers.append(event.seq)
        if event.name == "tachograph.metric":
            key = about["metric"], about.get("group", ""), about.get("execution", 0), about["branch"]
            points[key].append((about["x"], str(about["value"])))
        else:
            others.append(event.name)
    return points, numbers, others


@given(STEPS, st.integers(1, 200))
def test_packed_or_not_the_points_are_the_same(steps: list[tuple[int, Any, int]], limit: int) -> None:
    """However many leave at once: each curve's points in their order, each number once, other events as they were."""
    alone, together = recorded(steps), recorded(steps)
    plain = alone.journal.drain()
    found: list[LogEvent] = []
    while len(together.journal):
        found += together.journal.drain(limit, pack=packed)
    (wanted, numbers, others), (points, given_numbers, same) = told(plain), told(found)
    assert points == wanted
    assert others == same
    assert sorted(given_numbers) == numbers == list(range(1, len(numbers) + 1))


def test_what_stands_for_several_values_stays_apart() -> None:
    """Points of throttled intervals leave as they are: their extremes have an x of their own. So do a few points."""
    bench = Bench()
    throttled, exact = Metric("slow", throttle=1, execution=bench), Metric("few", throttle=None, execution=bench)
    for step in range(40):
        bench.now += 0.1
        throttled.record(math.sin(step), at=step)
    for step in range(3):
        exact.record(0.5, at=step)
    bench.pass_on(everything=True)
    assert PACKED not in {event.name for event in bench.journal.drain(pack=packed)}


def test_numbers_of_packed_points_are_theirs_alone_while_others_are_dropped() -> None:
    """While threads record, and drop what there is no room for, no number is given twice, and none is left out."""
    bench = Bench(limit=600)
    metrics = [Metric(f"m{place}", throttle=None, execution=bench) for place in range(3)]
    for metric in metrics:
        metric.record(0.0, at=-1)
    stop, found = threading.Event(), list[LogEvent]()

    def record(metric: Metric) -> None:
        for step in range(4000):
            metric.record(0.5, at=step)

    def drain() -> None:
        while not stop.is_set():
            found.extend(bench.journal.drain(100, pack=packed))

    draining = threading.Thread(target=drain)
    threads = [threading.Thread(target=record, args=[metric]) for metric in metrics]
    for thread in (draining, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    draining.join()
    found += bench.journal.drain(pack=packed)
    _, numbers, others = told(found)
    assert len(numbers) == len(set(numbers))
    assert len(numbers) + dropped(bench.registry).get("queue_full", 0) == 3 * 4001 + len(others)
    bench.journal.append("last", 0, {})
    assert bench.journal.drain()[0].seq == 3 * 4001 + len(others) + 1


def test_only_where_every_receiver_reads_them() -> None:
    """Our own hub gets packed points; where another destination takes events, too, both get an event a point."""
    for beside in (False, True):
        bench, hub, other = recorded([(1, 0.5, step) for step in range(20)]), Kept(), Kept()
        routes = [Route(hub, events=True, reads=lambda: SCHEMA)]
        routes += [Route(other, events=True)] if beside else []
        EventFeed(bench.journal, bench.registry).deliver(routes, {})
        assert (PACKED in {event.name for event in hub.events}) != beside
        assert told(hub.events)[0] == {("m1", "", 0, 0): [(float(step), "0.5") for step in range(20)]}
        assert other.events == (hub.events if beside else [])


def test_an_interrupt_while_points_are_packed_loses_none() -> None:
    """What a signal handler raises in the middle of it leaves all events where they were, in their order."""
    bench = recorded([(1, float(value), value) for value in range(20)])
    before = len(bench.journal)

    def interrupted(_events: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.journal.drain(pack=interrupted)
    assert len(bench.journal) == before
    points, numbers, _ = told(bench.journal.drain(pack=packed))
    assert sum(map(len, points.values())) == 20
    assert numbers == sorted(numbers)


def test_points_of_many_curves_are_taken_out_with_rests_in_between() -> None:
    """Where each curve has few points none are packed: a slice of them would hold the interpreter for milliseconds."""
    bench = Bench()
    metrics = [Metric(f"m{place}", throttle=None, execution=bench) for place in range(100)]
    for metric in metrics:
        metric.record(0.5)
    bench.pass_on(everything=True)
    found: list[LogEvent] = []
    at: list[int] = []
    bench.journal.drain(pack=packed, into=found, pace=lambda: at.append(len(found)))
    assert len(found) == 2 * len(metrics)  # each with its definition
    assert at == list(range(1, len(found) + 1))
