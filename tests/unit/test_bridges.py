"""The seam of bridges: patches of another library, and the names, the x and the one time of each value."""

from __future__ import annotations

import importlib
import io
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from curves import Tensor
from tachograph.instrumentation._given_providers import Recording
from tachograph.instrumentation.bridges import instrumentor_of
from tachograph.instrumentation.bridges._asked import asked_bridges
from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._libraries import LIBRARIES, Library, PatchedName
from tachograph.instrumentation.bridges._nesting import OutermostCall, numbers_by_leaf
from tachograph.instrumentation.bridges._patches import Patches
from tachograph.instrumentation.bridges._values import (
    MOST_HELD,
    MOST_OF_A_HISTOGRAM,
    MOST_ORIGINS,
    BridgedValues,
    legal,
)
from tachograph.instrumentation.bridges.tqdm import BarNotes
from tachograph.metric import _log
from tachograph.recording.journal import Journal
from tachograph.recording.naming import check_name
from tachograph.recording.points import HistogramPoint
from tachograph.recording.registry import Registry

Curves = dict[tuple[str, str, str], list[tuple[int, float, float]]]


class Recorded:
    """Values of bridges, with a registry and a journal of their own."""

    def __init__(self, **more: Any) -> None:
        self.registry = Registry()
        self.registry.points.wanted = True
        self.journal = Journal(self.registry)
        self.values = BridgedValues(Recording(self.registry, self.journal), **more)
        self.one = self.values.origin("one", "run", "run")
        self.two = self.values.origin("two", "run", "run")

    def curves(self) -> Curves:
        """Return branch, x and value of each point, by group, metric and ``source``."""
        found: Curves = {}
        for _, points in self.registry.points.drain(everything=True):
            source = dict(points.attributes).get("source", "")
            rows = len(points.times)
            for place, metric in enumerate(points.metrics):
                values = points.values[place * rows : (place + 1) * rows]
                found.setdefault((points.group, metric, str(source)), []).extend(
                    (points.branch, *each) for each in zip(points.x, values, strict=True)
                )
        return found

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """Return a counter of our own, by the values of its attributes in the order of their names."""
        return {
            tuple(str(value) for _, value in sorted(point.attributes)): point.value
            for metric in self.registry.collect()
            if metric.name == name
            for point in metric.points
        }


NUMBERS = st.integers(-1000, 1000).map(float)


@given(st.text(st.characters(), max_size=2000))
def test_every_tag_becomes_a_name(tag: str) -> None:
    """Any text names a metric: one that is legal as it is stays so."""
    name = check_name(legal(tag))
    try:
        assert check_name(tag) == name
    except ValueError:
        assert name != tag


def test_long_tags_stay_apart() -> None:
    """Two tags that begin alike for more than the longest name are two names."""
    assert legal("x" * 5000 + "a") != legal("x" * 5000 + "b")


@pytest.mark.parametrize(
    ("tag", "group", "metric"),
    [
        ("train/loss", "train", "loss"),
        ("loss", "", "loss"),
        ("a/b/c", "a", "b/c"),
        ("/loss", "", "/loss"),
        ("loss/", "", "loss/"),
        ("Größe [m]", "", "Größe [m]"),
        ("nul\0", "", "nul\\x00"),
        ("", "", '""'),
    ],
)
def test_a_tag_is_group_and_metric(tag: str, group: str, metric: str) -> None:
    """The part before the first slash is the group; a tag that is no name is escaped."""
    recorded = Recorded()
    recorded.values.scalar(recorded.one, tag, 1.0, 3)
    assert recorded.curves() == {(group, metric, ""): [(0, 3.0, 1.0)]}


def test_values_of_any_type_keep_their_x() -> None:
    """Numbers of NumPy and bools are read; NaN stays; without a step, x counts; a step that goes back is a branch."""
    recorded = Recorded()
    given_values = [(1, 0), (np.float32(0.5), np.int64(1)), (np.array(2.0), 2.0), (math.nan, 3), (True, 1)]
    for value, x in given_values:
        recorded.values.scalar(recorded.one, "loss", value, x)
    for value in (5.0, 6.0):
        recorded.values.scalar(recorded.one, "counted", value)
    recorded.values.scalar(recorded.one, "odd", 7.0, "no step")
    found = recorded.curves()
    assert repr(found["", "loss", ""]) == repr(
        [(0, 0.0, 1.0), (0, 1.0, 0.5), (0, 2.0, 2.0), (0, 3.0, math.nan), (1, 1.0, 1.0)]
    )
    assert found["", "counted", ""] == [(0, 0.0, 5.0), (0, 1.0, 6.0)]
    assert found["", "odd", ""] == [(0, 0.0, 7.0)]


def test_an_object_that_is_no_number_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted each time and said once, and makes no curve."""
    recorded = Recorded()
    for _ in range(3):
        recorded.values.scalar(recorded.one, "text", object(), 1)
    assert recorded.curves() == {}
    assert recorded.counted("tachograph.dropped") == {("registry", "no_number"): 3}
    assert len(caplog.records) == 1


def test_a_wall_time_is_the_points_time() -> None:
    """A value that was given a time has it, and others the time of the call."""
    recorded = Recorded()
    recorded.values.scalar(recorded.one, "loss", 1.0, 1, time_unix_nano=5 * 10**9)
    [(_, points)] = recorded.registry.points.drain(everything=True)
    assert list(points.times) == [5 * 10**9]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), NUMBERS, st.booleans(), st.booleans()), max_size=40)
)
def test_a_value_of_two_libraries_counts_once(logged: list[tuple[str, int, float, bool, bool]]) -> None:
    """Each value that both libraries log at one x is one point, whichever is first; each other one is one as well."""
    recorded = Recorded()
    wanted: Counter[float] = Counter()
    for tag, x, value, first, second in logged:
        origins = [origin for origin, logs in ((recorded.one, first), (recorded.two, second)) if logs]
        for origin in origins:
            recorded.values.scalar(origin, tag, np.float32(value) if origin is recorded.two else value, x)
        wanted[value] += bool(origins)
    found = Counter(value for points in recorded.curves().values() for _, _, value in points)
    repeated = sum(recorded.counted("tachograph.bridge.repeated").values())
    # A value may be one point for an earlier equal one at the same x that had but one source; none is there twice.
    assert all(found[value] <= wanted[value] for value in found)
    assert sum(found.values()) + repeated == sum(first + second for *_, first, second in logged)
    assert set(found) == {value for value, times in wanted.items() if times}


def test_each_value_stands_for_one() -> None:
    """A constant that one library logs once, and another three times without a step, is three points."""
    recorded = Recorded()
    recorded.values.scalar(recorded.one, "lr", 0.1, 7)
    for step in range(3):
        recorded.values.scalar(recorded.two, "lr", 0.1, step, counted=True)
    assert {key: len(points) for key, points in recorded.curves().items()} == {("", "lr", ""): 1, ("", "lr", "two"): 2}


def test_different_values_of_two_libraries_are_two_series() -> None:
    """Neither is lost: the second library's have the attribute ``source``; a group apart, nothing is compared."""
    recorded = Recorded()
    for step in range(3):
        recorded.values.scalar(recorded.one, "train/loss", float(step), step)
        recorded.values.scalar(recorded.two, "train/loss", step + 0.5, step)
        recorded.values.scalar(recorded.two, "val/loss", float(step), step)
    assert {key: len(points) for key, points in recorded.curves().items()} == {
        ("train", "loss", ""): 3,
        ("train", "loss", "two"): 3,
        ("val", "loss", ""): 3,
    }


def test_a_second_origin_is_a_group(caplog: pytest.LogCaptureFixture) -> None:
    """Two runs of one library do not mix, which is said once; two of a name are told apart."""
    recorded = Recorded()
    others = [recorded.values.origin("one", f"key {number}", "second") for number in range(2)]
    for origin in (recorded.one, *others):
        recorded.values.scalar(origin, "train/loss", 1.0, 0)
        recorded.values.config(origin, {"lr": 0.1})
    assert set(recorded.curves()) == {(group, "loss", "") for group in ("train", "second/train", "second (3)/train")}
    events: list[Any] = [event.attributes["tachograph.config"] for event in recorded.journal.drain()]
    assert events[-1] == {"lr": 0.1, "second.lr": 0.1, "second (3).lr": 0.1}
    assert [record.getMessage() for record in caplog.records] == [
        "one has 2 writers or runs in this process: recording the values of the latest one in group 'second'"
    ]


def test_the_runs_of_a_sweep_are_bounded() -> None:
    """Of very many runs in one process the oldest are forgotten, no two share a group, and a trainer's stays."""
    recorded = Recorded()
    trainer = recorded.values.origin("trainer", "", "")
    groups = Counter(recorded.values.origin("sweep", f"run {n}", "same").group for n in range(3 * MOST_ORIGINS))
    assert max(groups.values()) == 1
    assert len(recorded.values._origins) <= MOST_ORIGINS
    assert recorded.values.origin("trainer", "", "") is trainer
    latest = recorded.values.origin("sweep", f"run {3 * MOST_ORIGINS - 1}", "same")
    assert latest.group == f"same ({3 * MOST_ORIGINS})"


def test_a_histogram_keeps_its_shape() -> None:
    """Values of any shape are taken, of many as many as the training thread has time for, evenly."""
    recorded = Recorded()
    recorded.values.distribution(recorded.one, "few", [1.0, 2.0, 3.0])
    recorded.values.distribution(recorded.one, "layer/many", np.linspace(-1, 1, 10**6).reshape(1000, 1000))
    recorded.values.distribution(recorded.one, "none", np.array([]))
    found = {(metric.scope, metric.name): metric.points for metric in recorded.registry.collect()}
    [few], [many] = found["tachograph.metric", "few"], found["layer", "many"]
    assert isinstance(few, HistogramPoint)
    assert isinstance(many, HistogramPoint)
    assert (few.summary.count, few.summary.total.value()) == (3, 6.0)
    assert MOST_OF_A_HISTOGRAM // 2 < many.summary.count <= MOST_OF_A_HISTOGRAM
    assert many.summary.total.value() / many.summary.count == pytest.approx(0, abs=0.01)
    assert many.summary.minimum == -1


def test_a_histogram_of_a_gauges_name_is_counted() -> None:
    """The tag of a value cannot be a histogram as well: that is counted, and the value stays."""
    recorded = Recorded()
    recorded.values.scalar(recorded.one, "weights", 1.0, 0)
    recorded.values.distribution(recorded.one, "weights", [1.0])
    assert recorded.counted("tachograph.dropped") == {("registry", "name_conflict"): 1}
    assert recorded.curves() == {("", "weights", ""): [(0, 0.0, 1.0)]}


def test_series_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Values of series beyond the limit are counted, and the others go on."""
    recorded = Recorded(most_series=2)
    for step in range(2):
        for tag in "abc":
            recorded.values.scalar(recorded.one, tag, 1.0, step)
            recorded.values.distribution(recorded.one, f"{tag}/weights", [1.0])
    assert {key: len(points) for key, points in recorded.curves().items()} == {("", "a", ""): 2, ("", "b", ""): 2}
    assert {group for group in recorded.registry.groups if group in {*"abc"}} == {"a", "b"}
    assert recorded.counted("tachograph.dropped") == {("registry", "cardinality"): 4}
    assert len(caplog.records) == 1


def test_a_sweep_keeps_nothing_of_series_that_are_not_recorded() -> None:
    """Beyond the limit of series neither names nor last values are kept: memory has its bound."""
    recorded = Recorded(most_series=100)
    for number in range(1000):
        origin = recorded.values.origin("sweep", f"run {number}", f"run {number}")
        recorded.values.scalar(origin, "loss", 1.0, 0)
    assert len(recorded.curves()) == 100
    assert recorded.counted("tachograph.dropped") == {("registry", "cardinality"): 900}


def test_a_histogram_keeps_its_step() -> None:
    """The values of one call are a point at their step, and a step that goes back is a branch; without one x counts."""
    recorded = Recorded()
    for step, values in ((10, [1.0, 3.0]), (20, np.array([-1.0, 2.0, math.nan])), (5, [4])):
        recorded.values.distribution(recorded.one, "weights/layer", values, step)
    for values in ([1.0], [2.0], []):
        recorded.values.distribution(recorded.one, "bias", values)
    recorded.values.distribution(recorded.one, "lost", [math.nan], 1)
    points: list[dict[str, Any]] = [dict(event.attributes) for event in recorded.journal.drain()]
    layer = {"metric": "layer", "group": "weights"}
    assert points[:3] == [
        layer | {"x": 10, "branch": 0, "value": 2, "min": 1, "min_x": 10, "max": 3, "max_x": 10, "count": 2},
        layer
        | {
            "x": 20,
            "branch": 0,
            "value": 0.5,
            "min": -1,
            "min_x": 20,
            "max": 2,
            "max_x": 20,
            "count": 3,
            "nonfinite": 1,
        },
        layer | {"x": 5, "branch": 1, "value": 4, "min": 4, "min_x": 5, "max": 4, "max_x": 5, "count": 1},
    ]
    assert [(point["metric"], point["x"], point["value"]) for point in points[3:5]] == [("bias", 0, 1), ("bias", 1, 2)]
    assert math.isnan(points[5]["value"])
    assert (len(points), points[5]["nonfinite"], "min" in points[5]) == (6, 1, False)


def test_items_without_a_curve_are_said_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    """Images and texts are counted, and said once, at the end."""
    recorded = Recorded()
    for kind in ("image", "text", "image"):
        recorded.values.not_taken("one", kind)
    assert not caplog.records
    recorded.values.say_not_taken()
    recorded.values.say_not_taken()
    assert [record.getMessage() for record in caplog.records] == [
        "one: not recorded because they are not numbers: image: 2, text: 1"
    ]
    assert recorded.counted("tachograph.bridge.not_taken") == {("image", "one"): 2, ("text", "one"): 1}


def held(recorded: Recorded, tag: str, value: object, x: object) -> None:
    """Hold a call of the library ``one``, which brings a value at a time of its own."""
    take = recorded.values.take_scalar
    values = {"counted": False, "time_unix_nano": 10**18 + recorded.values.held.__len__()}
    call = ("one", partial(take, **values), recorded.one, tag, value, x)  # type: ignore[arg-type]
    recorded.values.held.append(call)


def test_a_held_call_becomes_a_value_with_the_next_collection() -> None:
    """Its value is in the gauge and on the curve, once, in the order of the calls, at the time of its own."""
    recorded = Recorded()
    for x in range(3):
        held(recorded, "train/loss", x / 2, x)
    assert recorded.registry.points.waiting()
    gauges = {(metric.scope, metric.name): metric.points for metric in recorded.registry.collect()}
    assert [point.value for point in gauges["train", "loss"]] == [1.0]
    held(recorded, "train/loss", 1.5, 3)
    [(_, points)] = recorded.registry.points.drain(everything=True)
    assert (list(points.x), list(points.values)) == ([0, 1, 2, 3], [0, 0.5, 1, 1.5])
    assert list(points.times) == [10**18, 10**18 + 1, 10**18 + 2, 10**18]
    assert not recorded.registry.points.waiting()


def test_a_held_call_is_first_where_another_library_follows() -> None:
    """A value of a second library is judged after the calls before it, however many these are."""
    recorded = Recorded()
    for x in range(100):
        held(recorded, "loss", float(x), x)
        recorded.values.scalar(recorded.two, "loss", float(x), x)
    for x in range(100, 200):
        held(recorded, "loss", float(x), x)
    recorded.values.scalar(recorded.two, "loss", 199.0, 199)
    assert {key: len(points) for key, points in recorded.curves().items()} == {("", "loss", ""): 200}
    assert recorded.counted("tachograph.bridge.repeated") == {("two",): 101}


@pytest.fixture
def beside_log(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Values of bridges that are recorded into the same registry as those of ``log()``, as in a program."""
    recorded = Recorded()
    monkeypatch.setattr(_log, "logged", recorded.values._logged)
    return recorded


@pytest.mark.parametrize("step", [0, None])
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_value_of_log_that_a_bridge_records_too_counts_once(
    beside_log: Recorded, is_first: bool, is_held: bool, step: int | None
) -> None:
    """Whichever of both comes first, with a step or counted: the curve has each value once, and there is no other."""
    record = partial(held, beside_log) if is_held else partial(beside_log.values.scalar, beside_log.one)
    for x in range(500):
        if is_first:
            record("train/loss", x / 3, x)
        tachograph.log({"train/loss": x / 3, "train/lr": 0.1}, step=None if step is None else x)
        if not is_first:
            record("train/loss", x / 3, x)
    assert beside_log.curves() == {
        ("train", "loss", ""): [(0, float(x), x / 3) for x in range(500)],
        ("train", "lr", ""): [(0, float(x), 0.1) for x in range(500)],
    }
    repeated = beside_log.counted("tachograph.bridge.repeated")
    assert repeated == {("tachograph",) if is_first else ("one",): 500}


def test_a_value_of_log_and_of_two_bridges_counts_once(beside_log: Recorded) -> None:
    """Also where one of them rounds it, and where the key sets of ``log()`` take turns."""
    for x in range(100):
        beside_log.values.scalar(beside_log.one, "loss", x / 3, x)
        tachograph.log({"loss": x / 3} | ({"accuracy": x / 7} if x % 5 == 0 else {}), step=x)
        beside_log.values.scalar(beside_log.two, "loss", float(np.float32(x / 3)), x)
        if x % 5 == 0:
            beside_log.values.scalar(beside_log.two, "accuracy", x / 7, x)
    assert beside_log.curves() == {
        ("", "loss", ""): [(0, float(x), x / 3) for x in range(100)],
        ("", "accuracy", ""): [(0, float(x), x / 7) for x in range(0, 100, 5)],
    }


def test_other_values_of_log_are_a_series_of_their_own(beside_log: Recorded) -> None:
    """A name that a library and ``log()`` use for different values is two series, and none is lost."""
    for x in range(10):
        beside_log.values.scalar(beside_log.one, "loss", float(x), x)
        tachograph.log({"loss": x + 0.5}, step=x)
    assert beside_log.curves() == {
        ("", "loss", ""): [(0, float(x), float(x)) for x in range(10)],
        ("", "loss", "tachograph"): [(0, float(x), x + 0.5) for x in range(10)],
    }


def test_held_calls_are_bounded_and_fail_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Where no collection comes, callers take the oldest ones themselves; one that fails costs no other."""
    recorded = Recorded()
    recorded.values.held.append(("one", lambda: 1 / 0))
    for x in range(5 * MOST_HELD):
        held(recorded, "loss", 1.0, x)
        recorded.values.bound_held()
        assert len(recorded.values.held) <= MOST_HELD + 1
    assert [len(points) for points in recorded.curves().values()] == [5 * MOST_HELD]
    assert recorded.counted("tachograph.errors") == {("bridge one",): 1}
    assert len(caplog.records) == 1


def test_a_forked_child_begins_anew() -> None:
    """After a reset nothing of the parent's values is left, and values are recorded as before."""
    recorded = Recorded()
    recorded.values.scalar(recorded.one, "loss", 1.0, 0)
    held(recorded, "loss", 1.0, 1)
    recorded.values.reset()
    recorded.values.scalar(recorded.one, "loss", 2.0, 1)
    assert recorded.curves() == {("", "loss", ""): [(0, 1.0, 2.0)]}


LIBRARY = """
class Base:
    def inherited(self, value):
        return value + 1

class Writer(Base):
    logged = []

    def log(self, tag, value, step=None):
        '''Log a value.'''
        self.logged.append((tag, value))
        if value == "wrong":
            raise KeyError(tag)
        return len(self.logged)

    def log_all(self, values, step):
        for tag, value in values.items():
            self.log(tag, value, step)

def function(value):
    return value
"""
NAMES = (
    PatchedName("a_logger.writer", "Writer.log", "log"),
    PatchedName("a_logger.writer", "Writer.log_all", "log_all", brings="brings"),
    PatchedName("a_logger.writer", "Writer.inherited", "log"),
    PatchedName("a_logger.writer", "function", "log"),
)


class Notes:
    """Notes that record, or fail."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.fails = False

    def log(self, _writer: object, tag: str = "", value: object = None, step: object = None) -> None:
        """Take one value, as a bridge does: not those that the call around it brings."""
        if self.fails:
            raise RuntimeError("a bridge")
        values, origin = self.recorded.values, self.recorded.one

        def record() -> None:
            values.scalar(origin, tag, value, step)

        if not values.passed_over("one", tag, value, record):
            record()

    def log_all(self, _writer: object, values: dict[str, float], step: int) -> None:
        """Take all values, as a trainer's bridge does."""
        for tag, value in values.items():
            self.recorded.values.scalar(self.recorded.two, "train/" + tag, value, step)

    def brings(self, _writer: object, values: dict[str, float], _step: int) -> dict[str, list[float]]:
        """Return the values by leaf."""
        if self.fails:
            raise RuntimeError("a bridge")
        return {tag: [value] for tag, value in values.items() if isinstance(value, float)}


class Bridged:
    """A library of the test's own, with a bridge."""

    def __init__(self, names: tuple[PatchedName, ...] = NAMES) -> None:
        self.recorded = Recorded()
        self.notes = Notes(self.recorded)
        self.errors: list[Exception] = []
        library = Library("a_logger", "1.0", "1.2", ("", ""), ("a_logger",), names)
        self.patches = Patches(library, self.notes, self.errors.append)

    @property
    def module(self) -> ModuleType:
        """The library's module, imported now where it was not."""
        return importlib.import_module("a_logger.writer")


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a library that logs."""
    folder = tmp_path / "a_logger"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "writer.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_logger"]:
        del sys.modules[name]


@pytest.mark.parametrize("early", [True, False])
def test_a_library_is_patched_once_it_is_there(early: bool) -> None:
    """Imported before or after, its calls are noted, and return as ever."""
    if early:
        importlib.import_module("a_logger.writer")
    bridged = Bridged()
    assert ("a_logger.writer" in sys.modules) is early
    assert bridged.module.Writer().log("loss", 0.5, step=3) == 1
    assert bridged.recorded.curves() == {("", "loss", ""): [(0, 3.0, 0.5)]}
    assert bridged.module.Writer.log.__doc__ == "Log a value."


def test_nothing_is_left_of_a_bridge() -> None:
    """After the end each name is the very object that it was; an inherited one is inherited again."""
    untouched = importlib.import_module("a_logger.writer")
    before = {owner: dict(vars(owner)) for owner in (untouched, untouched.Writer, untouched.Base)}
    finders = list(sys.meta_path)
    bridged = Bridged()
    assert vars(untouched.Writer)["log"] is not before[untouched.Writer]["log"]
    bridged.patches.close()
    assert {owner: dict(vars(owner)) for owner in before} == before
    assert sys.meta_path == finders


def test_a_patch_around_ours_outlives_it() -> None:
    """A name that another tool has patched since keeps that patch; bound methods work on, and nothing is noted."""
    bridged = Bridged()
    writer = bridged.module.Writer()
    bound, ours = writer.log, bridged.module.Writer.log

    def around(*args: Any) -> Any:
        return ours(*args)

    bridged.module.Writer.log = around
    bridged.patches.close()
    assert bridged.module.Writer.log is around
    assert (writer.log("a", 1.0), bound("b", 2.0)) == (1, 2)
    assert bridged.recorded.curves() == {}


def test_a_failing_bridge_is_not_noticed() -> None:
    """Its exceptions are counted, and the job's call succeeds; one of the job's own is raised, and nothing noted."""
    bridged = Bridged()
    writer = bridged.module.Writer()
    bridged.notes.fails = True
    assert writer.log("loss", 1.0) == 1
    writer.log_all({"loss": 2.0}, 0)
    assert [str(error) for error in bridged.errors] == ["a bridge"] * 3
    bridged.notes.fails = False
    with pytest.raises(KeyError, match="loss"):
        writer.log("loss", "wrong")
    assert len(bridged.errors) == 3
    assert set(bridged.recorded.curves()) == {("train", "loss", "")}


def test_a_missing_name_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A version without a name is said, with those that were tried; an optional one is not; the others are noted."""
    gone = PatchedName("a_logger.writer", "Writer.gone", "log")
    nowhere = PatchedName("a_logger.writer", "Nothing.__init__", "log")
    bridged = Bridged((*NAMES, gone, nowhere, gone._replace(path="Writer.old", optional=True)))
    bridged.module.Writer().log("loss", 1.0, 0)
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        "a_logger.writer has no Writer.gone and no Nothing.__init__: values passed to it are not recorded "
        "(tested with a_logger 1.0 to 1.2)"
    )
    assert len(bridged.recorded.curves()) == 1


def test_a_value_inside_of_another_call_counts_once() -> None:
    """A trainer that hands its values on has logged them once, under its own names; others inside pass."""
    bridged = Bridged()
    bridged.module.Writer().log_all({"loss": 0.25, "lr": np.float32(1)}, 3)
    assert bridged.recorded.curves() == {
        ("train", "loss", ""): [(0, 3.0, 0.25)],
        ("", "lr", ""): [(0, 3.0, 1.0)],
        ("train", "lr", ""): [(0, 3.0, 1.0)],
    }
    assert bridged.recorded.counted("tachograph.bridge.repeated") == {("one",): 1}


def test_a_value_on_a_device_is_known_by_its_leaf() -> None:
    """A trainer has it on the GPU, its loggers get a number: once, and nothing waits for the device."""
    call = OutermostCall(numbers_by_leaf({"train_loss": Tensor(0.25), "lr": 1.0, "note": "text"}))
    passed: list[object] = []
    values = (("loss", 0.25), ("lr", 1.0), ("lr", Tensor(1.0)), ("lr", 2.0), ("note", 3.0), ("other", Tensor(4.0)))
    assert [leaf for leaf, value in values if call.passes_over(leaf, value, lambda: passed.append(1))] == [
        *("loss", "lr", "lr")
    ]
    call.failed()
    assert len(passed) == 3


def test_values_of_a_call_that_fails_halfway_are_kept() -> None:
    """Those that were handed on before it failed are recorded as the inner call gave them."""
    bridged = Bridged()
    with pytest.raises(KeyError):
        bridged.module.Writer().log_all({"loss": 0.25, "lr": "wrong"}, 3)
    assert bridged.recorded.curves() == {("", "loss", ""): [(0, 3.0, 0.25)]}
    bridged.module.Writer().log("loss", 0.5, 4)
    assert bridged.recorded.curves() == {("", "loss", ""): [(0, 4.0, 0.5)]}


@pytest.mark.parametrize(
    ("given_text", "wanted"),
    [
        ("", list(LIBRARIES)),
        ("all", list(LIBRARIES)),
        ("none", []),
        (" WandB , tensorboard", ["tensorboard", "wandb"]),
        ("tensorboard,other", ["tensorboard"]),
    ],
)
def test_the_setting_chooses(given_text: str, wanted: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """TACHOGRAPH_BRIDGES is all, none or a list; a name that is no bridge is one line that names them all."""
    assert asked_bridges({"TACHOGRAPH_BRIDGES": given_text}, "all") == wanted
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == ("other" in given_text)
    assert all("'other'" in line and "wandb" in line for line in lines)


def test_a_misspelt_bridge_has_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    """The line in the log says which bridge was meant, as far as one is near; the others count."""
    assert asked_bridges({"TACHOGRAPH_BRIDGES": "tensorbord,wandb,light"}, "all") == ["wandb"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "unknown bridge 'tensorbord', 'light' (did you mean tensorboard, lightning?)" in said


def test_every_library_of_the_table_has_its_instrumentor() -> None:
    """Each is OpenTelemetry's, names its package, and notes every name that is patched."""
    for name, row in LIBRARIES.items():
        instrumentor = instrumentor_of(name)()
        assert isinstance(instrumentor, BridgeInstrumentor)
        assert instrumentor.library == name
        assert all(package.startswith(row.package) for package in instrumentor.instrumentation_dependencies())
        notes = instrumentor.notes(Recorded().values)
        for patched in row.names:
            assert callable(getattr(notes, patched.note)), patched
            assert not patched.brings or callable(getattr(notes, patched.brings)), patched
        notes.close()


class Bar:
    """A bar of tqdm, as its notes see one."""

    pos, n, total = 0, 0, 10


@pytest.mark.parametrize("first", ["bar", "library"])
@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=40))
def test_a_value_that_a_bar_shows_rounded_counts_once(first: str, values: list[float]) -> None:
    """A value that is logged and shown in one iteration is the library's, with its step, whichever call is first."""
    recorded = Recorded()
    notes = BarNotes(recorded.values)
    for step, value in enumerate(values):
        for call in ("bar", "library") if first == "bar" else ("library", "bar"):
            if call == "bar":
                notes.set_postfix(Bar(), {"loss": f"{value:.3f}"}, lr=f"{value:.1e}", shown=value)
            else:
                recorded.values.scalar(recorded.one, "loss", value, 10 * step)
                recorded.values.scalar(recorded.one, "lr", value, 10 * step)
    notes.close()
    curves = recorded.curves()
    logged = [(0, float(10 * step), value) for step, value in enumerate(values)]
    assert curves["", "loss", ""] == curves["", "lr", ""] == logged
    assert curves["", "shown", ""] == [(0, float(step), value) for step, value in enumerate(values)]
    assert len(curves) == 3


def test_a_value_that_a_bar_alone_shows_is_taken_after_a_second() -> None:
    """A loop whose next iteration is far away has its value with a collection of the meantime."""
    recorded = Recorded()
    notes = BarNotes(recorded.values, wait=10**6)
    notes.set_postfix(Bar(), loss="0.25")
    time.sleep(0.01)
    assert ("tachograph.metric", "loss") in {(metric.scope, metric.name) for metric in recorded.registry.collect()}
    notes.close()
    assert recorded.curves() == {("", "loss", ""): [(0, 0.0, 0.25)]}


def test_a_collection_in_the_middle_of_tqdms_import_finds_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be importing it: the collection goes on, and later ones see its bars."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    notes, found = BarNotes(Recorded().values), []

    class Collecting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "tqdm.utils" and "tqdm.std" in sys.modules:
                found.append(list(notes.points()))

    monkeypatch.setattr(sys, "meta_path", [Collecting, *sys.meta_path])
    with importlib.import_module("tqdm").tqdm(total=3, file=io.StringIO()):
        assert ([metric.name for metric in notes.points()], found) == (["progress.done", "progress.total"], [[]])
