"""Layouts: metrics that are read by offsets leave the same behind as those that protobuf has parsed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from examples import examples
from hub_requests import SECOND, START, Clock, exponential, histogram, metrics, number, rank
from tachograph.hub._request import PROTOBUF, Refusal, decode
from tachograph.hub._series import Limits
from tachograph.hub.hub import Hub

FLOATS = (0.0, 0.5, 2.5, -1.5, 3.0, 1e300, -0.0, math.nan, math.inf)
INTEGERS = (0, 1, -7, 2**40, -(2**63))
COUNTS = (0, 1, 5, 2**40, 2**63, 2**64 - 1)
TIMES = (0, 1, START, START + 1, START + SECOND, START + 120 * SECOND, START - SECOND, 2**64 - 1)
LONG = 200  # characters of a name, for a length of two bytes


class Kind(NamedTuple):
    """What stays the same of a metric; the points' numbers come with each request."""

    name: str
    data: str
    points: int
    is_delta: bool
    integers: bool
    odd: str


KINDS = st.builds(
    Kind,
    st.sampled_from(["loss", "step", "ü", "m" * LONG, "m", ""]),
    st.sampled_from(["gauge", "counter", "updown", "histogram", "exponential", "beside"]),
    st.sampled_from([1, 1, 2, 3, 0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(
        ["", "", "", "", "", "flags", "exemplar", "extremes", "no bounds", "no start", "repeated", "unsorted"]
    ),
)


def made(kind: Kind, draw: Random, *, tame: bool) -> Metric:
    """Return a metric of this kind with numbers that are drawn, ``tame`` ones of which none is refused."""
    points = [_point(kind, index, draw, tame=tame) for index in range(kind.points)]
    found = points[0] if points else Metric(name=kind.name)
    data = found.WhichOneof("data")
    for each in points[1:]:
        getattr(found, data).data_points.extend(getattr(each, data).data_points)
    return found


def _point(kind: Kind, index: int, draw: Random, *, tame: bool) -> Metric:
    floats = FLOATS[:3] if tame else FLOATS
    attributes = {} if not index else {"layer": 0 if kind.odd == "repeated" else index, "phase": "ü"}
    times = {"time": draw.choice(TIMES), "start": 0 if kind.odd == "no start" else draw.choice(TIMES)}
    about = {**times, "attributes": attributes, "delta": kind.is_delta}
    if kind.data in ("exponential", "beside"):
        return exponential(kind.name, [0.5, 1.0, draw.choice((2.0, 4.0))], **about, beside=kind.data == "beside")
    if kind.data == "histogram":
        bounds: Sequence[float] = (
            () if kind.odd == "no bounds" else (2.0, 1.0) if kind.odd == "unsorted" else (1.0, 2.0)
        )
        counts = [draw.choice(COUNTS) for _ in bounds] + [draw.choice(COUNTS)] if bounds else []
        metric = histogram(kind.name, [0] * len(counts), bounds=bounds, total=draw.choice(floats), **about)
        point: Any = metric.histogram.data_points[0]
        point.bucket_counts[:] = counts
        point.count = draw.choice(COUNTS)
        if kind.odd == "extremes":
            point.min, point.max = draw.choice(floats), draw.choice(floats)
    else:
        value = draw.choice((INTEGERS[:2] if tame else INTEGERS) if kind.integers else floats)
        metric = number(kind.name, value, kind=kind.data, **about)
        point = (metric.gauge if kind.data == "gauge" else metric.sum).data_points[0]
    if kind.odd == "flags":
        point.flags = 1
    if kind.odd == "exemplar":
        point.exemplars.add(
            as_double=0.5, time_unix_nano=draw.choice(TIMES), span_id=b"12345678", trace_id=b"0123456789abcdef"
        )
    return metric


def mutated(body: bytes, draw: Random) -> bytes:
    """Return a body with a byte changed, put in or left out, or without its end."""
    at = draw.randrange(len(body))
    change = draw.choice(("change", "insert", "leave out", "cut", "twice"))
    if change == "twice":
        return body + body
    byte = bytes([draw.randrange(256)]) if change in ("change", "insert") else b""
    return body[:at] + byte + (b"" if change == "cut" else body[at + (change != "insert") :])


def parsed(hub: Hub, body: bytes) -> Any:
    """Have a hub take a body that protobuf has parsed as a whole; return its answer."""
    try:
        return hub.receive_metrics(decode(body, PROTOBUF, ExportMetricsServiceRequest))
    except Refusal as refusal:
        return str(refusal)


def by_offsets(hub: Hub, body: bytes) -> Any:
    """Have a hub take a body as its receiver does; return its answer."""
    try:
        return hub.receive_metrics(hub.read_metrics(body))
    except Refusal as refusal:
        return str(refusal)


def layouts_found(hub: Hub, body: bytes) -> list[bool]:
    """Tell of each metric of a request whether a hub reads it by a layout; empty if it is none."""
    try:
        resources = hub.read_metrics(body)
    except Refusal:
        return []
    return [layout is not None for each in resources for _, sent in each.scopes for _, layout, _ in sent]


def state(hub: Hub) -> str:
    """Return everything that a hub knows of what it has received."""
    index = hub._index
    senders = [
        (each.instance, each.labels, sorted(map(repr, each.streams)), repr(each.resource), len(each.incarnations))
        for each in index.processes()
    ]
    series = [
        (
            *(each.instrument.name, each.instrument.unit, each.instrument.kind, each.instrument.description),
            *(each.labels, each.attributes, each.shape, each.owner.instance),
            *(
                each.shown(),
                each.exemplars,
                each.seen,
                each.unsaved,
                each.restarted,
                each.late,
                each.bounds,
                each.buckets,
            ),
            [part.__dict__ if hasattr(part, "__dict__") else part for part in each.snapshot()[:5]],
            each.covered and each.covered.copy(),
            each.spread and each.spread.snapshot()[0].packed(),
        )
        for each in index.series
    ]
    counted = [(of.name, point.attributes, point.value) for of in hub.registry.collect() for point in of.points]
    return repr(
        (senders, series, index._budget._series, index._budget._taken, hub._totals, hub._rejections.by_reason, counted)
    )


def emptied(hub: Hub) -> None:
    """Let a hub forget all senders."""
    hub._index._remove(list(hub._index.series))
    for process in hub._index.processes():
        hub._index._dismiss(process)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Hub, Hub]]:
    """Yield two hubs with the same clock, and room for a few series."""
    limits = Limits(series=12, memory=40_000)
    hubs = [Hub(tmp_path / name, run="run", clock=Clock(), limits=limits) for name in ("parsed", "offsets")]
    yield hubs[0], hubs[1]
    for each in hubs:
        each.close()


def test_both_ways_leave_the_same(pair: tuple[Hub, Hub]) -> None:
    """Whatever comes in whatever order, mutated or not: answers, series, counts and room are the same by both ways."""
    whole, offsets = pair
    read = 0

    @settings(max_examples=examples(100), deadline=None)
    @given(st.lists(KINDS, min_size=1, max_size=4), st.sets(st.integers(3, 9), max_size=3), st.integers(0, 2**32))
    def both(kinds: list[Kind], damaged: set[int], seed: int) -> None:
        nonlocal read
        draw = Random(seed)  # noqa: S311 - no secret: the numbers of an example, at once
        for hub in pair:
            emptied(hub)
        for turn in range(10):
            some = [kind for kind in kinds if turn < 4 or draw.random() < 0.7]
            body = metrics(rank(0), *(made(kind, draw, tame=turn < 3) for kind in some)).SerializeToString()
            body = mutated(body, draw) if turn in damaged else body
            read += sum(layouts_found(offsets, body))
            assert by_offsets(offsets, body) == parsed(whole, body)
            assert state(offsets) == state(whole)

    both()
    assert read > examples(100)  # of some thirty times as many metrics, most of which came once, or damaged


KNOWN = {
    "gauge": number("m", 0.5),
    "gauge of integers": number("m", 5, attributes={"layer": 1}),
    "counter": number("m", 5.5, kind="counter"),
    "updown": number("m", -5.5, kind="updown"),
    "delta": number("m", 5, kind="counter", delta=True),
    "histogram": histogram("m", [1, 2, 3], total=4.0),
    "histogram without bounds": histogram("m", [6], bounds=(), total=4.0),
    "long name": number("m" * LONG, 0.5),
}


@pytest.mark.parametrize("metric", KNOWN.values(), ids=KNOWN)
def test_the_third_one_is_not_parsed(pair: tuple[Hub, Hub], metric: Metric) -> None:
    """Where a metric's bytes but for the numbers came twice, the third one is read by offsets."""
    _, hub = pair
    body = metrics(rank(0), metric).SerializeToString()
    found = []
    for _ in range(3):
        found += layouts_found(hub, body)
        by_offsets(hub, body)
    assert found == [False, False, True]


def test_a_series_that_has_gone_meanwhile_comes_anew(pair: tuple[Hub, Hub]) -> None:
    """A request that was read by a layout, and whose series left the index before it was taken, loses nothing."""
    _, hub = pair
    body = metrics(rank(0), number("loss", 0.5)).SerializeToString()
    for _ in range(3):
        by_offsets(hub, body)
    read = hub.read_metrics(body)
    emptied(hub)
    hub.receive_metrics(read)
    assert [series.value for series in hub._index.series] == [0.5]


def test_changing_lengths_are_forgotten(pair: tuple[Hub, Hub]) -> None:
    """A sender whose messages have another length each time does not fill the memory with their keys."""
    _, hub = pair
    for length in range(1000):
        metric = number("loss", 0.5)
        metric.description = "x" * length
        by_offsets(hub, metrics(rank(0), metric).SerializeToString())
    (process,) = hub._index.processes()
    assert sum(map(len, process.layouts._by_scope.values())) < 100
