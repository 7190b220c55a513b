"""Curves from packed points, from MetricsLogger's points and from Stats' windows: as exact as points one by one."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from hub_requests import SECOND, START, Clock, histogram, logs, metrics, only, rank
from places import TESTS
from tachograph import runs
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub._history import History
from tachograph.hub.hub import Hub
from tachograph.pipeline.event_feed import apart, packed_event
from tachograph.recording.journal import LogEvent
from tachograph.recording.packed_points import ODD, PackedPoints
from tachograph.runs.file import RunFile, look
from tachograph.runs.sequence_numbers import SequenceNumbers, read_sequence_numbers
from tachograph.runs.store import Store, path_of
from tachograph.runs.thinning import thin_points
from tachograph.studio.charts import charts, curves, lines
from tachograph.studio.overview import about

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=Clock())


def send(hub: Hub, events: Iterable[LogEvent]) -> None:
    """Hand a hub events as a rank's exporter sends them."""

    def lose(*lost: object) -> None:
        raise AssertionError(lost)

    for request, _ in log_requests(list(events), rank(0), lose, lambda: None):
        assert hub.receive_logs(type(request).FromString(request.SerializeToString())).items == 0


def table(
    values: Sequence[Sequence[float]],
    *,
    metrics: Sequence[str] = ("loss", "lr", "acc"),
    group: str = "",
    x: Sequence[float] | None = None,
    branch: int = 0,
    units: str = "",
    attributes: Mapping[str, Any] | None = None,
    **more: Any,
) -> PackedPoints:
    """Return packed points: a row each, of as many metrics as a row has values."""
    width = len(values[0])
    return PackedPoints(
        tuple(metrics[:width]),
        group,
        tuple(sorted((attributes or {}).items())),
        units,
        branch,
        array("q", range(START, START + len(values))),
        array("d", range(len(values)) if x is None else x),
        array("d", itertools.chain.from_iterable(zip(*values, strict=True))),
        more,
    )


class Stored(NamedTuple):
    """A point as the store gives it back; floats as their bits."""

    metric: str
    group: str
    attributes: dict[str, Any]
    branch: int
    seq: int
    time: int
    x: bytes
    value: bytes
    more: dict[str, bytes]


def bits(value: float) -> bytes:
    """Return a number as it is in memory: NaN has many forms, and 1 is no 1.0."""
    return struct.pack("<d", value) if isinstance(value, float) else repr(value).encode()


def stored(folder: Path) -> list[Stored]:
    """Return all points of the run, by metric, group and number."""
    path = path_of(folder, "run")
    found = [
        Stored(
            *(each.metric, each.group, dict(each.attributes), each.branch, each.seq, each.time_unix_nano),
            bits(each.x),
            bits(each.value),
            {key: bits(number) for key, number in each.more.items()},
        )
        for each in (runs.open("run", folder).points() if path.exists() else ())
    ]
    return sorted(found, key=lambda each: (each.metric, each.group, repr(each.attributes), each.seq))


def xs(folder: Path, metric: str, group: str | None = None) -> list[tuple[int, float, float]]:
    """Return branch, x and value of the points of a metric, in the order of their numbers."""
    run = runs.open("run", folder)
    return [(each.branch, each.x, each.value) for each in run.points(metric) if group in (None, each.group)]


@st.composite
def tables(draw: st.DrawFn) -> PackedPoints:
    """Return packed points of one metric, with intervals or without, or of several; all are of one group."""
    width = draw(st.integers(1, 3))
    rows = draw(st.lists(st.tuples(*[st.floats()] * width), min_size=1, max_size=12))
    more: dict[str, Any] = {}
    if width == 1 and draw(st.booleans()):
        for name in ("min", "max", *draw(st.sets(st.sampled_from(ODD)))):
            more[name] = array("d", draw(st.lists(FINITE | st.just(math.nan), min_size=len(rows), max_size=len(rows))))
        counts = st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows))
        more |= {"count": array("q", draw(counts)), "nonfinite": array("q", [each - 1 for each in draw(counts)])}
    elif draw(st.booleans()):
        more["left_out"] = bytes(draw(st.lists(st.integers(0, 1), min_size=width * len(rows), max_size=9999)))
        more["left_out"] = more["left_out"][: width * len(rows)]
    return table(
        rows,
        group="train",
        x=draw(st.lists(FINITE, min_size=len(rows), max_size=len(rows))),
        branch=draw(st.integers(0, 2)),
        attributes=draw(st.sampled_from([{}, {"optimizer": "adam", "rate": 0.5, "n": 1}])),
        **more,
    )


@settings(max_examples=examples(40), deadline=None)
@given(listed=st.lists(tables(), min_size=1, max_size=4), order=st.lists(st.integers(0, 3), max_size=12))
def test_packed_points_are_those_of_a_record_each(
    tmp_path_factory: pytest.TempPathFactory, listed: list[PackedPoints], order: list[int]
) -> None:
    """In whatever order records come and however often, the store has what a record a point would have brought."""
    firsts = [1, *itertools.accumulate((each.size for each in listed), initial=1)][1:]
    packed = [packed_event(each, first, "s") for each, first in zip(listed, firsts, strict=False)]
    folders = [tmp_path_factory.mktemp("store") for _ in range(2)]
    for folder in folders:
        hub = Hub(folder, run="run")
        if folder is folders[0]:
            for place in [*order, *range(len(listed))]:
                send(hub, packed[place % len(listed) : place % len(listed) + 1])
        else:
            send(hub, [event for each, whole in zip(listed, packed, strict=True) for event in apart(each, whole)])
        hub.close()
    assert stored(folders[0]) == stored(folders[1])
    if stored(folders[1]):
        told = [[(each[:-1], dict(each.definition)) for each in runs.open("run", one).metrics()] for one in folders]
        assert repr(told[0]) == repr(told[1])  # extremes and counts, of what NumPy never sees


@settings(max_examples=examples(40), deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), min_size=1, max_size=8))
def test_records_that_overlap(tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]]) -> None:
    """A point that has come with other neighbours before is not there twice, and costs its neighbours nothing."""
    folder = tmp_path_factory.mktemp("store")
    hub = Hub(folder, run="run")
    whole = table([(value / 3,) for value in range(40)])
    for low, size in cuts:
        columns = (each[low : low + size] for each in (whole.times, whole.x, whole.values))
        part = PackedPoints(("loss",), "", (), "", 0, *columns, {})
        send(hub, [packed_event(part, 1 + low, "s")])
    hub.close()
    sent = sorted({place for low, size in cuts for place in range(low, min(low + size, 40))})
    assert [(each.seq, each.x, each.value) for each in stored(folder)] == [
        (place + 1, bits(float(place)), bits(place / 3)) for place in sent
    ]


@settings(max_examples=examples(60), deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=30), saved=st.sets(st.integers(0, 30))
)
def test_ranges_of_numbers_arrive_once(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], saved: set[int]
) -> None:
    """Each number of a range is new once, whatever came before; the file agrees, and has no ranges that touch."""
    store = Store(tmp_path_factory.mktemp("store"), "run")
    known: set[int] = set()
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        connection.execute("INSERT INTO stream VALUES (1, 's', 1)")
        found = SequenceNumbers()
        for place, (low, more) in enumerate(ranges):
            wanted = set(range(low, low + more + 1)) - known
            new = found.add_range(low, low + more) if more else [(low, low)] * found.add(low)
            assert sorted(number for first, last in new for number in range(first, last + 1)) == sorted(wanted)
            known |= wanted
            if place in saved:
                found.save(connection, 1)
                found = read_sequence_numbers(connection, 1)
        assert (found.count, found.highest) == (len(known), max(known, default=0))
        found.save(connection, 1)
        kept = connection.execute("SELECT first, last FROM arrived ORDER BY first").fetchall()
    store.close()
    assert [number for first, last in kept for number in range(first, last + 1)] == sorted(known)
    assert all(one[1] + 1 < after[0] for one, after in itertools.pairwise(kept))


def test_a_long_table_is_full_blocks(hub: Hub, tmp_path: Path) -> None:
    """A table of 5,000 rows lies in blocks of 1,024 points, a metric by itself; small tables are joined."""
    send(hub, [packed_event(table([(row / 3, -row) for row in range(5000)]), 1, "s")])
    for part in range(100):
        small = table([(float(row),) for row in range(10)], metrics=["small"], x=range(10 * part, 10 * part + 10))
        send(hub, [packed_event(small, 10_001 + 10 * part, "s")])
    hub.close()
    assert [(each.value, each.seq) for each in runs.open("run", tmp_path).points("lr")] == [
        (-row, 5001 + row) for row in range(5000)
    ]
    assert [x for _, x, _ in xs(tmp_path, "small")] == [*range(1000)]
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        sizes = "SELECT n FROM block JOIN curve ON curve.id = curve WHERE metric = ? ORDER BY seq0"
        assert connection.execute(sizes, ("loss",)).fetchall() == [(1024,)] * 4 + [(904,)]
        assert len(connection.execute(sizes, ("small",)).fetchall()) < 25
    connection.close()


def test_a_lost_record_is_so_many_lost_points(tmp_path: Path) -> None:
    """The gap that a packed record leaves is its points: a table of three metrics and four rows is twelve."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    rows = [(1.0, 2.0, 3.0)] * 4
    for first in (1, 25):
        send(hub, [packed_event(table(rows), first, "s")])
    for _ in range(3):
        clock.forward(11)
        hub.tick()
    assert only(hub.page()[1], "tachograph_hub_events_missing_total") == 12
    hub.close()


def test_groups_are_apart(hub: Hub, tmp_path: Path) -> None:
    """A metric of two groups and of none is three curves; the units are those of the one that says them."""
    for first, group, units in ((1, "", ""), (2, "train", "nats"), (3, "", ""), (4, "valid", "")):
        send(hub, [packed_event(table([(float(first),)], group=group, units=units), first, "s")])
    hub.close()
    run = runs.open("run", tmp_path)
    assert [
        (each.group, each.units, [value for _, _, value in xs(tmp_path, "loss", each.group)]) for each in run.metrics()
    ] == [
        ("", "", [1.0, 3.0]),
        ("train", "nats", [2.0]),
        ("valid", "", [4.0]),
    ]
    assert [dict(each.definition) for each in run.curves("loss") if each.units] == [{"metric": "loss", "units": "nats"}]


def test_a_metric_that_gets_its_group_later(hub: Hub, tmp_path: Path) -> None:
    """Packed points of a Metric are one curve, whichever of its points and its definition names the group first."""
    about = {"metric": "loss", "group": "train"}
    for metric, order in (("loss", "-gd-"), ("lr", "-dg-"), ("acc", "gd--"), ("rate", "d--g")):
        for seq, step in enumerate(order, 1):
            packed = table([(float(seq),)], metrics=[metric], group="train" if step == "g" else "")
            event = packed_event(PackedPoints(**{**packed._asdict(), "execution": 0}), seq, metric)
            if step == "d":
                hub.receive_logs(
                    logs(rank(0), ("tachograph.definition", {**about, "metric": metric}), stream=metric, first=seq)
                )
            else:
                send(hub, [event])
    hub.close()
    run = runs.open("run", tmp_path)
    assert {(each.name, each.group, each.points) for each in run.metrics()} == {
        (name, "train", 3) for name in ("loss", "lr", "acc", "rate")
    }
    assert len(run.curves()) == 4


def test_units_never_take_the_place_of_a_definition(hub: Hub, tmp_path: Path) -> None:
    """A definition from elsewhere counts, whether it comes before the units or after them."""
    said = {"metric": "loss", "group": "train", "units": "bits"}
    for first, metric in ((1, "loss"), (5, "lr")):
        named = ("tachograph.definition", {**said, "metric": metric})
        points = packed_event(table([(1.0,)], metrics=[metric], group="train", units="nats"), first + 1, "s")
        if metric == "loss":
            hub.receive_logs(logs(rank(0), named, first=first))
        send(hub, [points])
        if metric == "lr":
            hub.receive_logs(logs(rank(0), named, first=first))
        send(hub, [points._replace(seq=first + 2)])
    hub.close()
    assert {each.name: each.units for each in runs.open("run", tmp_path).metrics()} == {"loss": "bits", "lr": "bits"}


GOOD: Mapping[str, Any] = packed_event(table([(1.0, 2.0), (3.0, 4.0)], metrics=["good", "better"]), 1, "s").attributes
ONE: Mapping[str, Any] = packed_event(table([(1.0,), (3.0,)], metrics=["one"]), 1, "s").attributes
DAMAGED: Sequence[Mapping[str, Any]] = [
    *({**GOOD, key: value} for key in GOOD for value in (None, 5, 2**62, -1, "x", b"", b"123", ["m", ""], True, 0.5)),
    *({key: value for key, value in GOOD.items() if key != left} for left in GOOD if left != "group"),
    {**GOOD, "x": struct.pack("<2d", 1.0, math.nan)},
    {**GOOD, "x": struct.pack("<2d", 1.0, math.inf)},
    {**GOOD, "time": struct.pack("<2q", 1, -1)},
    {**GOOD, "n": 1},
    {**GOOD, "n": 4, "metric": ["m"]},
    {**GOOD, "left_out": b"\0\0\0"},
    {**GOOD, "attributes": {"deep": {"er": 1}}},
    {**GOOD, "attributes": {"nan": math.nan}},
    {**GOOD, "other": 1},
    {**GOOD, **dict.fromkeys(("min", "max", "count"), bytes(16))},  # of two metrics
    {**ONE, "count": struct.pack("<2q", 2, 2)},
    {**ONE, "min": bytes(16), "max": bytes(16)},
    {**ONE, "min": bytes(16), "max": bytes(16), "count": bytes(16)},
    {**ONE, "min": bytes(16), "max": bytes(16), "count": struct.pack("<2q", 2, 2), "nonfinite": b"\xff" * 16},
    {**ONE, "min": bytes(16), "max": bytes(8), "count": struct.pack("<2q", 2, 2)},
]


def _is_whole(attributes: Mapping[str, Any]) -> bool:
    """Tell whether the change of an attribute has left a record that says the same or something legal."""
    return attributes.get("group") in ("x", "", None) and {**attributes, "group": ""} == GOOD


def test_a_record_that_is_none_stays_an_event(hub: Hub, tmp_path: Path) -> None:
    """Packed points that do not belong together are kept as they came, are no points, and cost the others nothing."""
    sent = [each for each in DAMAGED if not _is_whole(each)]
    for place, attributes in enumerate(sent):
        ours = {"tachograph.schema": 1, "tachograph.stream": "bad", "tachograph.seq": 2**62 - place}
        numbered = {"tachograph.schema": 1, "tachograph.stream": "s", "tachograph.seq": 1 + 4 * place}
        both = [("tachograph.points", {**one, **of}) for one, of in ((attributes, ours), (GOOD, numbered))]
        assert hub.receive_logs(logs(rank(0), *both, stream="")).items == 0
    large = {"tachograph.schema": 1, "tachograph.stream": "bad", "tachograph.seq": 2**63 - 2}  # no numbers are left
    hub.receive_logs(logs(rank(0), ("tachograph.points", {**GOOD, **large}), stream=""))
    hub.receive_logs(logs(rank(0), ("tachograph.points", GOOD), stream=""))  # without a number
    hub.close()
    run = runs.open("run", tmp_path)
    assert {each.metric for each in run.curves()} == {"good", "better"}
    assert len(list(run.points())) == 4 * len(sent)
    assert len(list(run.events("tachograph.points"))) == len(sent) + 2


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
KEYS = ["metric", "group", "attributes", "n", "time", "x", "value", "min", "max", "count", "nonfinite", "left_out"]
LOGGED = ["tachograph.measurement", "tachograph.tags", "tachograph.fields", "x", "x_name", "load.mean"]


@settings(max_examples=examples(150), deadline=None)
@given(
    name=st.sampled_from(["tachograph.points", "tachograph.point", "torch.monitor.Stat", "tachograph.metric"]),
    changed=st.dictionaries(st.sampled_from([*KEYS, *LOGGED, "execution", "branch", "units"]), ANY, max_size=4),
    whole=st.booleans(),
)
def test_whatever_comes_costs_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, name: str, changed: dict[str, Any], whole: bool
) -> None:
    """No record makes the hub fail, or loses another one of its request."""
    folder = tmp_path_factory.mktemp("store")
    hub = Hub(folder, run="run")
    ours = {"tachograph.schema": 1, "tachograph.stream": "odd", "tachograph.seq": 7}
    odd = {**(GOOD if whole else {}), **changed, **ours}
    good = {**GOOD, "tachograph.schema": 1, "tachograph.stream": "s", "tachograph.seq": 1}
    request = logs(rank(0), ("before", {}), (name, odd), ("tachograph.points", good), stream="")
    assert hub.receive_logs(request).items == 0
    hub.close()
    run = runs.open("run", folder)
    assert [each.value for each in run.points() if each.stream == "s"] == [2.0, 4.0, 1.0, 3.0]
    assert [each.name for each in run.events()][:1] == ["before"]


def logged(fields: Mapping[str, Any], tags: Mapping[str, str] | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return a point as MetricsLogger logs it, of the measurement ``train``."""
    said = {"tachograph.measurement": "train", "tachograph.tags": dict(tags or {}), "tachograph.fields": dict(fields)}
    return "tachograph.point", {**said, **more}


BEGIN = ("tachograph.process.start", {"interval": 1.0, "run_start": START - 5 * SECOND})


@pytest.mark.parametrize(
    "case",
    [
        ({"step": "7", "epoch": "2", "uid": "a"}, {"loss": 1.0}, 7.0, {"uid": "a"}),
        ({"step": "7"}, {"loss": 1.0, "step": 8}, 8.0, {}),
        ({"step": "7"}, {"loss": 1.0, "epoch": 3}, 7.0, {}),
        ({"step": "seven", "window": "4"}, {"loss": 1.0}, 4.0, {"step": "seven"}),
        ({"step": "nan", "global_step": "1e3"}, {"loss": 1.0}, 1000.0, {"step": "nan"}),
        ({}, {"loss": 1.0, "iteration": 2.5, "step": math.nan}, 2.5, {}),
        ({"batch": "3", "uid": "b"}, {"loss": 1.0}, 5.0, {"uid": "b"}),  # seconds: a batch is no x
        ({}, {"loss": 1.0, "step": "text"}, 5.0, {}),
    ],
)
def test_the_x_of_a_loggers_point(
    hub: Hub, tmp_path: Path, case: tuple[dict[str, str], dict[str, Any], float, dict[str, str]]
) -> None:
    """It is the first number of step, global_step, iteration, epoch and window, fields before tags; else the time.

    Tags that count up are no attributes of the curve, and a field that is x is no curve.
    """
    tags, fields, x, attributes = case
    hub.receive_logs(logs(rank(0), BEGIN, logged(fields, tags)))
    hub.close()
    run = runs.open("run", tmp_path)
    (found,) = run.points("loss")
    assert (found.group, dict(found.attributes), found.value) == ("train", attributes, 1.0)
    assert found.x == pytest.approx(x, abs=1e-7)
    assert (found.seq, found.time_unix_nano) == (2, START + 2)
    numbers = {name for name, value in fields.items() if not isinstance(value, str)}
    chosen = {name for name in numbers if fields[name] == x}
    assert {each.metric for each in run.curves()} == numbers - chosen


def test_a_counting_name_of_ones_own_is_x(hub: Hub, tmp_path: Path) -> None:
    """A logger with other counting names says which of them x is; that tag is no attribute either."""
    for first in range(1, 4):
        hub.receive_logs(
            logs(rank(0), logged({"loss": 0.5}, {"block": str(10 * first), "step": "1"}, x_name="block"), first=first)
        )
    hub.close()
    assert xs(tmp_path, "loss") == [(0, 10.0, 0.5), (0, 20.0, 0.5), (0, 30.0, 0.5)]
    assert [dict(each.attributes) for each in runs.open("run", tmp_path).curves()] == [{}]


def test_a_loggers_points_are_events_and_curves(hub: Hub, tmp_path: Path) -> None:
    """Each event stays as it was, and each of its numbers is a point, once, however often it comes."""
    sent = [
        logged({"loss": value, "n": 2**40, "text": "a"}, {"step": "1", "uid": str(place % 2)})
        for place, value in enumerate(VALUES)
    ]
    for _ in range(2):
        hub.receive_logs(logs(rank(0), *sent))
    hub.receive_logs(logs(rank(0), *sent, stream=""))  # without numbers: nothing tells one that comes again
    newer = {"tachograph.schema": 99, "tachograph.stream": "n", "tachograph.seq": 1}
    hub.receive_logs(logs(rank(0), ("tachograph.point", {**sent[0][1], **newer}), stream=""))
    hub.close()
    run = runs.open("run", tmp_path)
    assert len(list(run.events("tachograph.point"))) == 2 * len(VALUES) + 1
    found = {dict(each.attributes)["uid"]: each for each in run.curves("loss")}
    assert sorted(found) == ["0", "1"]
    assert [bits(each.value) for each in sorted(run.points("loss"), key=lambda each: each.seq)] == [*map(bits, VALUES)]
    assert {each.value for each in run.points("n")} == {float(2**40)}


VALUES = [1.0, math.nan, -math.inf, 0.0, -0.0, 1e-300]


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    only_loss=st.sets(st.integers(0, 40)),
    again=st.sets(st.integers(0, 9)),
)
def test_a_step_that_goes_back_is_a_branch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], sizes: list[int], only_loss: set[int], again: set[int]
) -> None:
    """However the points are split into requests, and wherever a new hub goes on: x going back begins a branch."""
    folder = tmp_path_factory.mktemp("store")
    sent = [
        (seq, logged({"loss": float(seq), **({} if seq in only_loss else {"acc": -float(seq)})}, {"step": str(step)}))
        for seq, step in enumerate(steps, 1)
    ]
    expected: dict[str, list[tuple[int, float, float]]] = {"loss": [], "acc": []}
    for metric, points in expected.items():
        for _, (_, said) in sent:
            step, value = float(said["tachograph.tags"]["step"]), said["tachograph.fields"].get(metric)
            if value is not None:
                branch, x, _ = points[-1] if points else (2, step, 0.0)
                points.append((branch + (step < x), step, value))
    left = iter(sent)
    for place, size in enumerate(itertools.cycle(sizes)):
        part = list(itertools.islice(left, size))
        if not part:
            break
        hub = Hub(folder, run="run")
        request = logs(rank(0, restart=2), *[event for _, event in part], seqs=[seq for seq, _ in part])
        for _ in range(2 if place in again else 1):
            hub.receive_logs(request)
        hub.close()
    assert {metric: xs(folder, metric) if points else [] for metric, points in expected.items()} == expected


def test_a_late_request_finds_its_branch(hub: Hub, tmp_path: Path) -> None:
    """A request that comes after later ones begins no branch of its own, and shows the one that began in it."""
    parts = [range(50), [*range(50, 100), *range(20)], range(20, 60)]
    firsts = [1, 51, 121]
    for place in (0, 2, 1):
        sent = [logged({"loss": float(step)}, {"step": str(step)}) for step in parts[place]]
        hub.receive_logs(logs(rank(0), *sent, first=firsts[place]))
    hub.close()
    assert [(branch, x) for branch, x, _ in xs(tmp_path, "loss")] == [
        *((0, float(step)) for step in range(100)),
        *((1, float(step)) for step in range(60)),
    ]


def test_time_as_x_is_of_the_run(hub: Hub, tmp_path: Path) -> None:
    """Without the begin of the process it counts from the first event; time that goes back is no branch."""
    hub.receive_logs(logs(rank(0), ("other", {}), logged({"loss": 1.0}), logged({"loss": 2.0})))
    late = logs(rank(0), logged({"loss": 3.0}), first=4)
    late.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = START - SECOND
    hub.receive_logs(late)
    hub.receive_logs(logs(rank(1), BEGIN, logged({"loss": 1.0}), stream="b"))
    hub.close()
    assert [(branch, round(x, 6)) for branch, x, _ in xs(tmp_path, "loss")] == [(0, 0.0), (0, 0.0), (0, -1.0), (0, 5.0)]


def test_a_stats_views_are_curves(hub: Hub, tmp_path: Path) -> None:
    """Each number of a window is a metric of the group of its gauges, at the time of its end; a text is none."""
    data = {"load.mean": 0.5, "load.p99": math.nan, "load.count": 3, "load.note": "text", "load.flag": True}
    hub.receive_logs(logs(rank(0), BEGIN, *[("torch.monitor.Stat", data)] * 3))
    hub.close()
    run = runs.open("run", tmp_path)
    assert {(each.metric, each.group) for each in run.curves()} == {
        (f"load.{view}", "torch.monitor") for view in ("mean", "p99", "count")
    }
    assert [(branch, value) for branch, _, value in xs(tmp_path, "load.count")] == [(0, 3.0)] * 3
    assert [x for _, x, _ in xs(tmp_path, "load.mean")] == [pytest.approx(5 + seq / 1e9, abs=1e-9) for seq in (2, 3, 4)]
    assert len(list(run.events("torch.monitor.Stat"))) == 3


def test_a_stats_views_have_its_unit_over_seconds(hub: Hub, tmp_path: Path) -> None:
    """Its events tell no unit; that of its histogram is theirs, on the page and in Python."""
    hub.receive_logs(logs(rank(0), BEGIN, ("torch.monitor.Stat", {"load.mean": 0.5, "load.count": 3})))
    hub.receive_metrics(metrics(rank(0), histogram("load", [1, 2, 0], unit="By"), scope="torch.monitor"))
    hub.close()
    assert {each.metric: each.units for each in runs.open("run", tmp_path).curves()} == {
        "load.mean": "By",
        "load.count": "",
    }
    with look(RunFile(path_of(tmp_path, "run"))) as reading:
        drawn = charts(reading, curves(reading))
    assert [(each["x"]["units"], [scale["units"] for scale in each["scales"]]) for each in drawn] == [
        ("s", ["By"]),
        ("s", [None]),
    ]


def test_doors_do_not_take_each_others_curves(hub: Hub, tmp_path: Path) -> None:
    """A Metric without a group, a measurement, and gauges with a group and without: four curves of one name."""
    metric = ("tachograph.metric", {"metric": "loss", "x": 0.0, "value": 1.0})
    hub.receive_logs(logs(rank(0), metric, logged({"loss": 2.0}, {"step": "0"}), metric))
    send(hub, [packed_event(table([(3.0,)], group="train"), 1, "s.p"), packed_event(table([(4.0,)]), 2, "s.p")])
    hub.receive_logs(logs(rank(0), metric, logged({"loss": 2.0}, {"step": "1"}), first=4))
    hub.close()
    assert [value for _, _, value in xs(tmp_path, "loss", "")] == [1.0, 1.0, 1.0, 4.0]
    assert sorted(value for _, _, value in xs(tmp_path, "loss", "train")) == [2.0, 2.0, 3.0]
    assert len(runs.open("run", tmp_path).curves("loss")) == 4


def gauge(n: int, first: int, *, spike: float = 50.0) -> PackedPoints:
    """Return the points of a gauge of three values each, with a spike, a value that is not finite, and none at all."""
    values = [float(number % 7) for number in range(first, first + n)]
    low, high = array("d", [value - 0.5 for value in values]), array("d", [value + 0.5 for value in values])
    high[n // 3], values[n // 2] = spike, math.nan
    low[-1] = high[-1] = values[-1] = math.nan
    hidden = array("q", [1 if math.isnan(value) else 0 for value in values])
    hidden[-1] = 3
    more = {"min": low, "max": high, "count": array("q", [3] * n), "nonfinite": hidden}
    return table([(value,) for value in values], metrics=["gauge"], x=range(first, first + n), units="s", **more)


def thinned_to(folder: Path, most: int) -> int:
    """Thin a run's curves to so many points, whatever its size, and return how many points went."""
    store = Store(folder, "run")
    try:
        return thin_points(store, 0, most=most)
    finally:
        store.close()


def test_long_gauges_are_thinned_and_keep_their_extremes(hub: Hub, tmp_path: Path) -> None:
    """Where a file is too large a gauge keeps so many points; nothing that was exact is touched, and no spike is lost.

    The counts of values, and of those that were not finite, stay what they were; later points go on behind.
    """
    for branch in (0, 1):
        packed = gauge(5000, 0, spike=50.0 + branch)._asdict() | {"branch": branch}
        send(hub, [packed_event(PackedPoints(**packed), 1 + 5000 * branch, "s.p")])
    send(hub, [packed_event(table([(float(row), 1.0) for row in range(5000)]), 20_001, "s.p")])
    hub.receive_logs(
        logs(rank(0), *[("tachograph.metric", {"metric": "exact", "x": 0.0, "value": 1.0, "count": 2})] * 3000)
    )
    hub.close()
    run = runs.open("run", tmp_path)
    before = {each.name: each for each in run.metrics()}
    assert thinned_to(tmp_path, 20_000) == 0  # none has more
    gone = thinned_to(tmp_path, 1000)
    after = {each.name: each for each in run.metrics()}
    assert before["gauge"].points - after["gauge"].points == gone
    assert 900 < after["gauge"].points - 2 * 904 <= 1000 + 16  # the last blocks were not full
    for name in ("loss", "lr", "exact"):
        assert after[name] == before[name]
    told = ("min", "max", "nonfinite", "branches", "x1")
    assert [getattr(after["gauge"], name) for name in told] == [getattr(before["gauge"], name) for name in told]
    found = list(run.points("gauge"))
    assert sum(int(each.more.get("count", 1)) for each in found) == 30_000
    assert [(each.more["max_x"], each.max) for each in found if each.max >= 50] == [(1666, 50.0), (1666, 51.0)]
    assert [each.seq for each in found] == sorted(each.seq for each in found)
    hub = Hub(tmp_path, run="run")
    send(hub, [packed_event(gauge(5000, 5000), 40_001, "s.p")])
    hub.close()
    assert thinned_to(tmp_path, 1000) > 0
    assert sum(int(each.more.get("count", 1)) for each in run.points("gauge")) == 45_000
    assert not run.damage


def test_thinning_keeps_odd_values_apart_where_they_were(hub: Hub, tmp_path: Path) -> None:
    """Of neighbours that become one point the first NaN, infinity and minus infinity of each keep their x."""
    odd = {100: nan, 101: inf, 900: -inf, 901: nan, 2000: inf}
    n = 2100
    values = array("d", [odd.get(row, 1.0) for row in range(n)])
    ones = array("d", [1.0] * n)
    more: dict[str, Any] = {"min": ones, "max": ones, "count": array("q", [3] * n)}
    more["nonfinite"] = array("q", [int(row in odd or row == 500) for row in range(n)])
    more["neginf_x"] = array("d", [499.5 if row == 500 else nan for row in range(n)])
    found = table([(value,) for value in values], metrics=["gauge"], x=range(n), **more)
    send(hub, [packed_event(found, 1, "s.p")])
    hub.close()
    assert thinned_to(tmp_path, 300) > 0
    kept = [each.more for each in runs.open("run", tmp_path).points("gauge") if each.seq <= 2048]  # of full blocks
    assert len(kept) < n / 6
    assert [each["nan_x"] for each in kept if "nan_x" in each] == [100, 901]
    assert [each["posinf_x"] for each in kept if "posinf_x" in each] == [101, 2000]
    assert [each["neginf_x"] for each in kept if "neginf_x" in each] == [499.5, 900]
    assert sum(each.get("nonfinite", 0) for each in kept) == 6


def test_a_hub_thins_curves_after_samples(tmp_path: Path) -> None:
    """The hub's upkeep does it by itself, counts it, and says so of the run; a damaged block stays as it is."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    send(hub, [packed_event(gauge(30_000, 0), 1, "s.p")])
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        connection.execute("UPDATE block SET rest = x'00' WHERE id = 3")
    connection.close()
    live = hub._index.own
    assert live.store is not None
    live.history = History(live.store, most_bytes=100_000)
    hub.tick()
    assert only(hub.page()[1], "tachograph_hub_points_thinned_total") == 14 * 1024
    hub.close()
    with look(RunFile(path_of(tmp_path, "run"))) as reading:
        assert about(reading, "run", [], START, written=False)["thinned"] == 1
    run = runs.open("run", tmp_path)
    assert sum(int(each.more.get("count", 1)) for each in run.points()) == 3 * (30_000 - 1024)
    assert len(run.damage) == 1


KILLED = """
import os, sys
from math import inf, nan
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_hub_curves import both
from tachograph.hub.hub import Hub

hub = Hub(Path(sys.argv[1]), run="run")
for number in range(10_000):
    for request in both(number):
        hub.receive_logs(request)
    os.write(1, b"%d\\n" % number)
"""


def both(number: int) -> list[Any]:
    """Return requests of a rank: four rows of three metrics, packed, and five points of a logger, each fifth step 0."""
    event = packed_event(
        table([(row / 3, row / 7, -row) for row in range(4 * number, 4 * number + 4)]), 1 + 12 * number, "p"
    )
    points = [logged({"steps": float(step)}, {"step": str(step)}) for step in range(5)]
    packed = logs(rank(0), (event.name, event.record_attributes()), stream="")
    return [packed, logs(rank(0), *points, first=1 + 5 * number)]


@pytest.mark.process
@pytest.mark.parametrize("after", [3, 40])
def test_a_hub_killed_at_any_time(tmp_path: Path, after: int) -> None:
    """A hub that is killed has each request that it had taken, whole; the next one adds none twice, and goes on."""
    program = [sys.executable, "-c", KILLED, str(tmp_path), str(TESTS), str(TESTS / "unit")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for _ in range(after):
            killed.stdout.readline()
        os.kill(killed.pid, signal.SIGKILL)
    hub = Hub(tmp_path, run="run")
    rounds = 2 * after + 10
    for number in range(rounds):
        for request in both(number):
            hub.receive_logs(request)
    hub.close()
    run = runs.open("run", tmp_path)
    beyond = max(each.seq for each in run.points("steps")) // 5  # the hub had taken some more before the signal came
    rounds = max(rounds, beyond)
    assert [each.value for each in run.points("lr")][: 4 * rounds] == [row / 7 for row in range(4 * rounds)]
    found = [(each.branch, each.x) for each in run.points("steps")]
    assert found == [(place // 5, float(place % 5)) for place in range(len(found))]
    assert len(found) == 5 * rounds


def test_a_metric_and_a_gauge_of_one_name_are_told_apart(hub: Hub, tmp_path: Path) -> None:
    """Both are drawn, each in a chart of its own, as their x differ; a gauge without such a twin is as it was.

    The x of a gauge is the step; that of a ``Metric`` is the program's, who may give it units.
    """
    send(hub, [packed_event(gauge(20, 0)._replace(metrics=("loss",), group="train"), 1, "s.p")])
    send(hub, [packed_event(gauge(20, 0)._replace(metrics=("lr",), group="train"), 21, "s.p")])
    point = {"metric": "loss", "group": "train", "value": 1.0, "branch": 0}
    definition = ("tachograph.definition", {"metric": "loss", "group": "train"})
    hub.receive_logs(logs(rank(0), definition, *[("tachograph.metric", {**point, "x": x / 10}) for x in range(5)]))
    hub.close()
    with look(RunFile(path_of(tmp_path, "run"))) as reading:
        found = [
            (each["metric"], each["curves"][0]["points"], chart["kind"], chart["shared"], chart["x"]["units"])
            for chart in charts(reading, curves(reading))
            for each in chart["metrics"]
        ]
        drawn = [(line["kind"], line["points"]) for line in lines(reading, "loss", group="train")]
    assert sorted(found) == [
        ("loss", 5, "", True, None),
        ("loss", 20, "gauge", False, "step"),
        ("lr", 20, "", False, "step"),
    ]
    assert sorted(drawn) == [("", 5), ("gauge", 20)]
