"""Metric: what is recorded leaves as gauge and points, definitions explain it, what is wrong is said at the call."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from curves import Bench
from programs import events, exported, number, run
from tachograph.metric import Metric, MetricGroup, MetricScale
from tachograph.metric.execution import Execution
from tachograph.recording import journal as journals
from tachograph.recording.chart import Definition, Definitions
from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.logged_points import RUN_START

START = """
import math, os, signal, sys, threading, time
import tachograph as cf
cf.start(metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl")
"""


def points(path: Path, metric: str | None = None) -> list[dict[str, Any]]:
    """Return the points in a JSON-lines file, in order."""
    found = [event["attributes"] for event in events(path) if event["eventName"] == "tachograph.metric"]
    return [point for point in found if metric in (None, point["metric"])]


def definitions(path: Path) -> list[dict[str, Any]]:
    """Return the definitions in a JSON-lines file, in order, without what every event has."""
    return [
        {key: value for key, value in event["attributes"].items() if not key.startswith("tachograph.")}
        for event in events(path)
        if event["eventName"] == "tachograph.definition"
    ]


DOCUMENTED = """
import coflux as cf

loss = cf.Metric("loss", group="training")
accuracy = cf.Metric("accuracy", group="training")

@cf.task()
def train(epochs):
    for epoch in range(epochs):
        loss_val, acc_val = run_epoch(epoch)
        loss.record(loss_val, at=epoch)
        accuracy.record(acc_val, at=epoch)

group = cf.MetricGroup("training", units="epoch")

loss = cf.Metric("loss", group=group, scale=cf.MetricScale(units=""))
accuracy = cf.Metric("accuracy", group=group, scale=cf.MetricScale(units="%", lower=0, upper=100))

@cf.task()
def process_batch(items):
    for item in cf.progress(items):
        handle(item)

@cf.task()
def process_named(items):
    for item in cf.progress(items, key="items_processed", group="processing"):
        handle(item)

metric = cf.Metric("fast_metric", throttle=100)  # 100 values/sec
metric = cf.Metric("exact_metric", throttle=None)  # No throttling
"""


@pytest.mark.process
def test_the_documented_programs_run(tmp_path: Path) -> None:
    """The documents' programs run top to bottom with only their import changed, and everything in them arrives."""
    program = DOCUMENTED.replace("import coflux as cf", START)
    program += """
def run_epoch(epoch):
    return 1 / (epoch + 1), 10 * epoch

handled = []
handle = handled.append
train(5)
process_batch([1, 2, 3])
process_named(["a"])
assert handled == [1, 2, 3, "a"], handled
for value in (1, math.nan, 3):
    metric.record(value)
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    found = points(tmp_path / "out.jsonl")
    assert [(p["x"], p["value"]) for p in found if p["metric"] == "loss"] == [(0, 1), (4, 0.2)]
    assert [(p["x"], p["value"]) for p in found if p["metric"] == "accuracy"] == [(0, 0), (4, 40)]
    assert {p["execution"] for p in found if p["metric"] == "accuracy"} == {1}
    assert [p["value"] for p in found if p["metric"] == "progress"] == [0, 3]
    assert [p["value"] for p in found if p["metric"] == "items_processed"] == [0, 1]
    assert str([p["value"] for p in found if p["metric"] == "exact_metric"]) == "[1.0, nan, 3.0]"
    said = {definition["metric"]: definition for definition in definitions(tmp_path / "out.jsonl")}
    task = {"execution": 1, "task": "__main__.train"}
    assert said["loss"] == {"metric": "loss", "group": "training", "x_units": "epoch", "units": "", **task}
    assert (said["accuracy"]["units"], said["accuracy"]["lower"], said["accuracy"]["upper"]) == ("%", 0, 100)
    assert said["progress"]["progress"] is True
    gauges = exported(tmp_path / "out.jsonl")
    assert (number(gauges["training", "accuracy"]), gauges["training", "accuracy"]["unit"]) == (40, "%")
    assert number(gauges["processing", "items_processed"]) == 1


def test_points_say_what_they_are() -> None:
    """A point has the metric, its group, x, value, branch, and the time since the run began; the gauge is its last."""
    began = time.time_ns()
    bench = Bench(branch=2)
    metric = Metric("lr", group="training", scale=MetricScale(units="ms"), throttle=None, execution=bench)
    metric.record(0.5, at=3)
    bench.now += 4.5
    metric.record(0.25)
    first, second = bench.logged()
    assert (began - RUN_START) / 1e9 <= first.pop("elapsed") <= (time.time_ns() - RUN_START) / 1e9
    assert first == {"metric": "lr", "group": "training", "x": 3.0, "value": 0.5, "branch": 2}
    assert (second["x"], second["branch"]) == (4.5, 2)
    assert bench.gauges() == {("training", "lr"): ("ms", 0.25)}


def test_without_at_x_is_the_time_since_the_start() -> None:
    """Values without at= lie on the seconds since the execution began, in the order of the calls."""
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    for gap in (0.5, 0.25, 0.0):
        bench.now += gap
        metric.record(1)
    assert [x for x, _ in bench.pairs()] == [0.5, 0.75, 0.75]


def test_definitions_come_first_and_again() -> None:
    """A metric's definition is logged before its first point, again each minute, and when more becomes known."""
    bench = Bench()
    first = Metric("loss", group="training", execution=bench)
    first.record(1, at=0)
    events_ = [(event.name, dict(event.attributes)) for event in bench.journal.drain()]
    assert events_[0] == ("tachograph.definition", {"metric": "loss", "group": "training"})
    assert events_[1][0] == "tachograph.metric"
    bench.now += 59
    bench.define_again()
    assert bench.logged("tachograph.definition") == []
    bench.now += 2
    bench.define_again()
    bench.define_again()
    assert bench.logged("tachograph.definition") == [{"metric": "loss", "group": "training"}]
    axis = MetricGroup("training", units="epoch", lower=0)
    Metric("accuracy", group=axis, scale=MetricScale("share", units="%"), execution=bench).record(5)
    assert bench.logged("tachograph.definition") == [
        {"metric": "loss", "group": "training", "x_units": "epoch", "x_lower": 0.0},
        {"metric": "accuracy", "group": "training", "x_units": "epoch", "x_lower": 0.0, "scale": "share", "units": "%"},
    ]


@pytest.mark.parametrize(
    ("units", "unit"),
    [("epoch", "{epoch}"), ("%", "%"), ("ms", "ms"), ("By/s", "By/s"), ("", ""), (None, ""), ("k tok", "{k_tok}")],
)
def test_units(units: str | None, unit: str) -> None:
    """UCUM units are the gauge's unit; other words become an annotation."""
    bench = Bench()
    Metric("m", scale=MetricScale(units=units), execution=bench).record(1)
    assert bench.gauges() == {("tachograph.metric", "m"): (unit, 1)}


def test_two_handles_are_one_metric() -> None:
    """Two Metrics of one key record one curve, which may have as many points as the one that allows more."""
    bench = Bench()
    slow, fast = Metric("m", throttle=0.1, execution=bench), Metric("m", throttle=None, execution=bench)
    slow.record(1, at=1)
    slow.record(2, at=2)
    fast.record(3, at=3)
    fast.record(4, at=4)
    assert [x for x, _ in bench.pairs()] == [1, 2, 3, 4]


def test_the_gauge_shows_what_was_recorded_last() -> None:
    """However a value goes, held back or not, by Metric or set on the gauge itself: the page has the last one."""
    bench = Bench()
    metric = Metric("m", throttle=0.1, execution=bench)
    shown = []
    for value in (1.0, 2.0, 5.0, 0.5, 3, 4.0, 4.0, math.inf, 6.0, math.nan):
        bench.now += 0.001
        metric.record(value)
        shown.append(bench.gauges()["tachograph.metric", "m"][1])
    assert shown[:-1] == [1.0, 2.0, 5.0, 0.5, 3, 4.0, 4.0, math.inf, 6.0]
    assert math.isnan(shown[-1])
    metric.record(7.0)
    metric.record(8.0)
    bench.registry.group("tachograph.metric").instrument("m").record(9.0)
    metric.record(10.0)
    metric.record(11)
    assert bench.gauges()["tachograph.metric", "m"][1] == 11


def test_the_gauge_of_two_executions_shows_the_later_value() -> None:
    """Tasks that record the same metric share a gauge; one that is over leaves its last value there."""
    bench = Bench()
    executions = [Execution(journal=bench.journal, registry=bench.registry, clock=bench.clock) for _ in range(2)]
    metrics = [Metric("m", throttle=0.1, execution=execution) for execution in executions]
    for turn in range(4):
        for place, metric in enumerate(metrics):
            bench.now += 0.001
            metric.record(turn + place / 10)
    assert bench.gauges()["tachograph.metric", "m"][1] == 3.1
    metrics[0].record(4.0)
    executions[0].end()
    metrics[1].record(0.5)
    assert bench.gauges()["tachograph.metric", "m"][1] == 0.5


A, B = MetricGroup("g", units="a"), MetricGroup("g", units="b")
CONFLICTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"key": "m", "group": "g"}, {"key": "m", "group": "h"}, "already has the group 'g', not 'h'"),
    ({"key": "m", "scale": "g"}, {"key": "m", "scale": "h"}, "already has the scale 'g', not 'h'"),
    ({"key": "m", "group": A}, {"key": "n", "group": B}, "MetricGroup 'g' is already defined"),
    (
        {"key": "m", "group": "g", "scale": MetricScale("s", upper=1)},
        {"key": "n", "group": "g", "scale": MetricScale("s", upper=2)},
        "MetricScale 's' is already defined",
    ),
    ({"key": "m", "scale": MetricScale(units="a")}, {"key": "m", "scale": MetricScale(progress=True)}, "the scale of"),
    (
        {"key": "m", "scale": MetricScale(units="a")},
        {"key": "m", "scale": MetricScale("s", units="b")},
        "MetricScale 's' is already",
    ),
]


@pytest.mark.parametrize(("one", "other", "message"), CONFLICTS)
def test_conflicting_definitions(one: dict[str, Any], other: dict[str, Any], message: str) -> None:
    """Two definitions that differ are a ValueError: in the constructor once the other has recorded, else at record."""
    bench = Bench()
    first, second = Metric(**one, execution=bench), Metric(**other, execution=bench)
    first.record(1)
    with pytest.raises(ValueError, match=message):
        second.record(1)
    with pytest.raises(ValueError, match=message):
        Metric(**other, execution=bench)
    first.record(2)
    Metric(**one, execution=bench).record(3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"key": "m"}, {"key": "m", "group": A, "scale": MetricScale("s", units="a")}),
        ({"key": "m", "group": "g", "scale": "s"}, {"key": "m", "group": A, "scale": MetricScale("s", units="a")}),
        ({"key": "m", "group": "g", "scale": MetricScale("s", upper=1)}, {"key": "n", "group": "h", "scale": "s"}),
        (
            {"key": "m", "group": "g", "scale": MetricScale("s", upper=1)},
            {"key": "n", "group": "h", "scale": MetricScale("s", upper=2)},
        ),
        ({"key": "m", "scale": MetricScale(units="a")}, {"key": "m", "scale": "s"}),
        ({"key": "m", "scale": MetricScale(units="a")}, {"key": "n", "scale": MetricScale(units="b")}),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_open_definitions_agree(one: dict[str, Any], other: dict[str, Any], turned: bool) -> None:
    """A bare name or None leaves open what is defined elsewhere, before or after; scales belong to their group."""
    bench = Bench()
    for arguments in (other, one, other) if turned else (one, other, one):
        Metric(**arguments, execution=bench).record(1)
    last = {said["metric"]: said for said in bench.logged("tachograph.definition")}
    for arguments in (one, other):
        for axis, names in (("group", ("x_units",)), ("scale", ("units", "upper"))):
            wanted = arguments.get(axis)
            for name in names if wanted is not None and not isinstance(wanted, str) else ():
                assert last[arguments["key"]].get(name) == getattr(wanted, name.removeprefix("x_"))


def test_a_group_that_is_known_later_takes_the_metric_along() -> None:
    """Points and gauge of both handles are in the group from the moment on that one of them names it."""
    bench = Bench()
    early, late = Metric("m", throttle=None, execution=bench), Metric("m", group="g", execution=bench)
    early.record(1)
    late.record(2)
    early.record(3)
    assert [point.get("group") for point in bench.logged()] == [None, "g", "g"]
    assert bench.gauges()["g", "m"] == ("", 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MetricGroup("g", lower=2, upper=1), ValueError, "below its upper bound: lower=2, upper=1"),
        (lambda: MetricScale(lower=1, upper=1), ValueError, "below its upper bound"),
        (lambda: MetricScale("s", lower=math.nan), ValueError, "lower bound of MetricScale 's' must be finite"),
        (lambda: MetricScale("s", upper="1"), TypeError, "upper bound of MetricScale 's' must be a number, not str"),
        (lambda: MetricScale("s", upper=True), TypeError, "not the bool"),
        (lambda: MetricScale(units=3), TypeError, "units of a MetricScale must be a string, not int"),
        (lambda: MetricScale(progress=1), TypeError, "progress must be a bool"),
        (lambda: MetricScale(""), ValueError, "must not be empty"),
        (lambda: MetricGroup(""), ValueError, "must not be empty"),
        (lambda: MetricGroup(3), TypeError, "must be a string, not int"),
        (lambda: Metric(""), ValueError, "metric name must not be empty"),
        (lambda: Metric(7), TypeError, "metric name must be a string"),
        (lambda: Metric("m", group=3), TypeError, "must be a MetricGroup or its name, not int"),
        (lambda: Metric("m", scale=3), TypeError, "must be a MetricScale or its name, not int"),
        (lambda: Metric("m", throttle=0), ValueError, "above 0: 0; pass None"),
        (lambda: Metric("m", throttle=-1), ValueError, "per second above 0"),
        (lambda: Metric("m", throttle=math.inf), ValueError, "must be finite"),
        (lambda: Metric("m", throttle="10"), TypeError, "must be a number, not str"),
        (lambda: Metric("m").record(1, 3), TypeError, r"^Metric\.record\..*\(\) takes 1 positional argument but 2"),
        (
            lambda: Metric("m").record(1, step=3),
            TypeError,
            r"^Metric\.record\..*\(\) got an unexpected keyword argument",
        ),
        (lambda: Metric("m").record(1, at="3"), TypeError, "at= of Metric 'm' must be a number, not str"),
        (lambda: Metric("m").record(1, at=True), TypeError, "not the bool"),
        (lambda: Metric("m").record(1, at=math.nan), ValueError, "at= of Metric 'm' must be finite"),
    ],
)
def test_what_is_wrong_is_said_at_the_call(make: Callable[[], object], error: type[Exception], message: str) -> None:
    """A wrong argument is a TypeError or ValueError that says what was wrong, and nothing of it is recorded."""
    journals.default.drain()
    with pytest.raises(error, match=message):
        make()
    assert len(journals.default) == 0


ODD = [None, "1", b"1", 1j, np.zeros(3), np.zeros(0), object(), np.complex128(1)]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("throttle", [None, 10])
@pytest.mark.parametrize("first", [True, False])
def test_a_value_that_is_no_number_is_counted(
    value: object, throttle: float | None, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It breaks no training: it is counted, said once, and leaves nothing behind; the values around it are recorded."""
    bench = Bench()
    metric = Metric("m", throttle=throttle, execution=bench)
    if not first:
        metric.record(0.5, at=0)
    for _ in range(3):
        metric.record(value, at=1)
    if first:
        assert bench.gauges() == {}
        assert bench.journal.waiting() == []
    bench.now += 1
    metric.record(0.25, at=2)
    assert bench.pairs() == ([] if first else [(0, 0.5)]) + [(2, 0.25)]
    assert bench.dropped()["no_number"] == 3
    assert caplog.text.count("m: dropped a value: ") == 1


@pytest.mark.parametrize("value", [True, False, np.True_, np.array([False])])
def test_a_bool_is_0_or_1(value: Any) -> None:
    """As for ``put_metric``."""
    bench = Bench()
    Metric("m", execution=bench).record(value, at=0)
    assert bench.pairs() == [(0, float(bool(value)))]


def _pickled(protocol: int, value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))  # noqa: S301 - its own


class Named(Metric):
    """A subclass with an attribute of its own."""

    def __init__(self, key: str, note: str) -> None:
        super().__init__(key, group=MetricGroup("copied", units="epoch"), scale="share", throttle=None)
        self.note = note


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, *(partial(_pickled, n) for n in range(2, 6))])
def test_copies_and_pickles_are_metrics_of_the_definition(
    copied: Callable[[Any], Any], request: pytest.FixtureRequest
) -> None:
    """So a model that holds one can be copied, saved and sent. A copy records into the same curve."""
    metric = Named(request.node.name, "mine")
    metric.record(1.0, at=0)
    journals.default.drain()
    found = copied(metric)
    assert type(found) is Named
    assert (found.key, found.group, found.scale, found.throttle, found.note) == (
        *(metric.key, metric.group, metric.scale, None, "mine"),
    )
    assert found is not metric
    found.record(0.5, at=1)
    points = [event.attributes for event in journals.default.drain() if event.name == "tachograph.metric"]
    assert [(point["metric"], point["x"], point["branch"]) for point in points] == [(metric.key, 1.0, 0)]
    for each in (metric.group, metric.scale):
        assert copied(each) == each


@pytest.mark.parametrize("throttle", [None, 10])
def test_an_integer_beyond_the_range_of_floats_is_no_x(throttle: float | None) -> None:
    """At any call, it is a ValueError, and the curve goes on; one that is held back costs no value."""
    bench = Bench()
    metric = Metric("m", throttle=throttle, execution=bench)
    metric.record(1, at=0)
    for at in (10**400, -(10**400)):
        with pytest.raises(ValueError, match=r"at= of Metric 'm' must be finite"):
            metric.record(2, at=at)
    metric.record(3, at=2**1023)
    bench.pass_on(everything=True)
    metric.record(4.0, at=2**1023 + 1)
    held_back = throttle is not None and ATOMIC  # before CPython 3.11 each call reads its x
    if held_back:
        metric.record(5.0, at=10**400)
    bench.pass_on(everything=True)
    found = bench.logged()
    assert sum(point.get("count", 1) for point in found) == 3 + held_back
    assert [math.isfinite(point["x"]) for point in found] == [True] * 3
    assert {point["branch"] for point in found} == {0}


@pytest.mark.timing
def test_many_metrics_are_soon_known() -> None:
    """The first values of 600 metrics of a group take no longer, each, than those of a few; the axis may come last."""
    axis = MetricGroup("g", units="epoch")
    took = []
    for count in (600, 60):
        bench = Bench()
        metrics = [Metric(f"m{number}", group="g", scale="s", execution=bench) for number in range(count)]
        start = time.perf_counter()
        for metric in metrics:
            metric.record(1.0)
        took.append((time.perf_counter() - start) / count)
        bench.logged()
        Metric("last", group=axis, scale=MetricScale("s", units="%"), execution=bench).record(1.0)
        said = bench.logged("tachograph.definition")
        assert [(found["x_units"], found["units"]) for found in said] == [("epoch", "%")] * (count + 1)
    assert took[0] < took[1] * 5 + 1e-4


AXES = st.sampled_from(
    [None, MetricGroup("g"), MetricGroup("g", units="a"), MetricGroup("h"), MetricGroup("h", upper=1)]
)
SCALES = st.sampled_from(
    [None, MetricScale(units="y"), *(MetricScale("s", units=units) for units in (None, "x")), MetricScale("t", upper=1)]
)


@given(st.lists(st.tuples(st.sampled_from("klm"), AXES, SCALES), max_size=8))
def test_what_is_known_is_what_was_said_together(said: list[Any]) -> None:
    """Whatever the order: each change is told of once, and every definition agrees with all that was said."""
    definitions, told = Definitions(), {}
    for one in said:
        with contextlib.suppress(ValueError):
            for changed in definitions.add(Definition(*one)):
                assert told.get(changed.key) != changed
                told[changed.key] = changed
        assert {found.key: found for found in definitions.all()} == told
        assert all(definitions.check(found) == found for found in told.values())


class Broken:
    """A number that cannot be read."""

    def __float__(self) -> float:
        raise OSError("the disk is gone")


def test_the_programs_own_failures_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """An object whose own code fails costs the program nothing but the value, which is said once."""
    metric = Metric("broken", execution=Bench())
    metric.record(Broken())
    metric.record(Broken())
    assert [record.getMessage() for record in caplog.records] == [
        (
            "broken: dropped a value: the disk is gone "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
        )
    ]


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), np.array([2.5]), Fraction(1, 4), 2**80, -0.0])
def test_numbers_of_all_kinds(value: Any) -> None:
    """Scalars of NumPy and whatever else is one number are read at the call, as value and as x."""
    bench = Bench()
    Metric("m", execution=bench).record(value, at=value)
    assert bench.pairs() == [(float(np.asarray(value).item()), float(np.asarray(value).item()))]


@pytest.mark.process
@pytest.mark.torch
def test_tensors_are_read_at_the_call() -> None:
    """A tensor of one element is a number, and may be overwritten right after the call."""
    torch = pytest.importorskip("torch")
    bench = Bench()
    metric = Metric("m", throttle=None, execution=bench)
    loss = torch.tensor(0.5, requires_grad=True)
    step = torch.tensor([3])
    metric.record(loss, at=step)
    step.zero_()
    metric.record(torch.tensor(True), at=4)
    metric.record(torch.zeros(3), at=5)
    assert bench.pairs() == [(3, 0.5), (4, 1)]
    assert bench.dropped() == {"no_number": 1}


def test_a_name_that_is_no_gauge_keeps_its_curve(caplog: pytest.LogCaptureFixture) -> None:
    """Where the group has another kind of metric of that name, the curve is recorded, and that is said."""
    bench = Bench()
    bench.registry.group("g").instrument("m.duration").record(3)
    Metric("m.duration", group="g", execution=bench).record(1, at=1)
    assert bench.pairs() == [(1, 1)]
    assert bench.gauges() == {}
    assert "recording Metric 'm.duration' only as a curve" in caplog.text


@pytest.mark.process
@pytest.mark.parametrize(
    "end",
    [
        "",
        "raise SystemExit(3)",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        "cf.shutdown()",
        "time.sleep(2.5); print(open('out.jsonl').read().count('\"tachograph.metric\"')); os.kill(os.getpid(), 9)",
    ],
)
def test_the_last_value_leaves_at_the_end(tmp_path: Path, end: str, untraced: None) -> None:  # noqa: ARG001
    """However the process ends: 2,000 values are two points of a throttled metric, 2,000 of the other, and no more."""
    program = (
        START.replace("jsonl=", "interval=1, jsonl=")
        + """
held = cf.Metric("held", throttle=0.01)
exact = cf.Metric("exact", throttle=None)
for step in range(2000):
    held.record(step / 2, at=step)
    exact.record(step / 4, at=step)
"""
    )
    run(tmp_path, program + end)
    exact = points(tmp_path / "out.jsonl", "exact")
    assert [(point["x"], point["value"]) for point in exact] == [(step, step / 4) for step in range(2000)]
    first, *rest = points(tmp_path / "out.jsonl", "held")
    assert (first["x"], first["value"]) == (0, 0)
    if end.endswith("9)"):
        assert rest == []  # its interval was not over
        return
    (last,) = rest
    assert (last["x"], last["value"]) == (1999, 999.5)
    assert (last["min"], last["min_x"], last["max"], last["max_x"]) == (0.5, 1, 999.5, 1999)


@pytest.mark.process
def test_a_restarted_rank_begins_a_new_branch(tmp_path: Path) -> None:
    """A rank that torchelastic has started again counts its branches from its restart on."""
    run(tmp_path, START + "cf.Metric('m').record(1, at=500)", TORCHELASTIC_RESTART_COUNT="2")
    (point,) = points(tmp_path / "out.jsonl")
    assert (point["branch"], point["x"]) == (2, 500)


@pytest.mark.process
def test_points_say_how_long_the_run_has_been_going(tmp_path: Path) -> None:
    """Each point carries the seconds since the run began, which all processes of it are told."""
    run(tmp_path, START + "cf.Metric('m').record(1)", TACHOGRAPH__START_NS="1000000000")
    (event,) = [event for event in events(tmp_path / "out.jsonl") if event["eventName"] == "tachograph.metric"]
    assert event["attributes"]["elapsed"] == pytest.approx(int(event["timeUnixNano"]) / 1e9 - 1)


@pytest.mark.process
@pytest.mark.parametrize("helpers", ["", "1"])
def test_a_forked_child_starts_afresh(tmp_path: Path, helpers: str, untraced: None) -> None:  # noqa: ARG001
    """What the parent holds back leaves once; a child records nothing, or, asked to, a stream of its own."""
    program = (
        START
        + """
metric = cf.Metric("m", throttle=0.01)
metric.record(1, at=1)
metric.record(2, at=2)
child = os.fork()
if not child:
    metric.record(7, at=0)
    metric.record(8, at=1)
    cf.shutdown()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    done = run(tmp_path, program, TACHOGRAPH_HELPERS=helpers)
    assert done.returncode == 0, done.stderr
    streams: dict[str, list[float]] = {}
    for event in events(tmp_path / "out.jsonl"):
        if event["eventName"] == "tachograph.metric":
            streams.setdefault(event["attributes"]["tachograph.stream"], []).append(event["attributes"]["value"])
    assert sorted(streams.values()) == ([[1, 2], [7, 8]] if helpers else [[1, 2]])


@pytest.mark.process
def test_a_signal_handler_may_record(tmp_path: Path, untraced: None) -> None:  # noqa: ARG001
    """Metrics recorded from a signal handler, in the middle of anything, hang nowhere and lose nothing."""
    program = (
        START
        + """
metric = cf.Metric("m", throttle=None)
seen = []
def handler(*_):
    seen.append(1)
    metric.record(-1)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
until = time.monotonic() + 0.5
count = 0
while time.monotonic() < until:
    for _ in range(30):
        metric.record(1)
    count += 30
    time.sleep(0.002)
signal.setitimer(signal.ITIMER_REAL, 0)
cf.shutdown(20)
print(count, len(seen))
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    count, seen = map(int, done.stdout.split())
    values = [point["value"] for point in points(tmp_path / "out.jsonl", "m")]
    assert (values.count(1), values.count(-1)) == (count, seen)
    assert seen > 10


@pytest.mark.process
def test_nothing_is_recorded_where_telemetry_is_off(tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED nothing leaves, and the program runs as always."""
    program = (
        START + "cf.Metric('m').record(1)\nfor x in cf.progress([1]): print(x)\n@cf.task\ndef f(): return 4\nprint(f())"
    )
    done = run(tmp_path, program, OTEL_SDK_DISABLED="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n4\n", "")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.process
def test_what_was_recorded_before_start_leaves(tmp_path: Path) -> None:
    """Points and their definition wait for start()."""
    start = START.splitlines()[-1]
    program = START.replace(start, "m = cf.Metric('m')\nm.record(1, at=1)\nm.record(2, at=2)\n" + start)
    run(tmp_path, program)
    assert [point["value"] for point in points(tmp_path / "out.jsonl")] == [1, 2]
    assert definitions(tmp_path / "out.jsonl") == [{"metric": "m"}]


def test_names_of_the_package() -> None:
    """The top level gives the very objects of tachograph.metric, and a Metric shows what it was made with."""
    assert tachograph.Metric is Metric
    assert tachograph.metric.MetricGroup is tachograph.MetricGroup is MetricGroup
    metric = Metric("m", group="g", scale=MetricScale("s"), throttle=3)
    assert (metric.key, metric.group, metric.scale, metric.throttle) == ("m", MetricGroup("g"), MetricScale("s"), 3)
    assert repr(metric) == "<tachograph.Metric 'm'>"
