"""``log()``: what becomes of the dictionaries that a program logs."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from curves import Tensor, copied
from tachograph.metric._log import MOST_KEY_SETS, MOST_WAITING, ROWS, logged
from tachograph.recording import registry, values
from tachograph.recording.accumulators import LastValue
from tachograph.recording.packed_points import LEFT_OUT

Point = tuple[float, float]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Begin without tables, with a destination that takes points."""
    logged.reset()
    before, registry.default.points.wanted = registry.default.points.wanted, True
    yield
    logged.reset()
    registry.default.points.wanted = before


def taken(*, everything: bool = True) -> dict[tuple[str, str], list[tuple[int, float, float]]]:
    """Take all points: branch, x and value by group and metric."""
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for points in logged.take(everything=everything):
        rows = len(points.times)
        assert len(points.values) == rows * len(points.metrics)
        for place, metric in enumerate(points.metrics):
            here = slice(place * rows, (place + 1) * rows)
            left_out = points.more.get(LEFT_OUT, bytes(len(points.values)))[here]
            curve = found.setdefault((points.group, metric), [])
            curve += [
                (points.branch, x, value)
                for x, value, out in zip(points.x, points.values[here], left_out, strict=True)
                if not out
            ]
    return found


def gauges() -> dict[tuple[str, str], float]:
    """Return what the gauges show, by scope and name."""
    return {
        (metric.scope, metric.name): point.value
        for metric in registry.default.collect()
        if metric.kind == "gauge"
        for point in metric.points
        if hasattr(point, "value")
    }


def test_each_key_is_a_curve_and_a_gauge() -> None:
    """Points are (step, value); the gauge shows the last one; a slash names the group."""
    tachograph.log({"loss": 0.5, "eval/acc": 1}, step=7)
    tachograph.log({"loss": 0.25, "eval/acc": 2}, step=8)
    shown = gauges()
    assert (shown["tachograph.metric", "loss"], shown["eval", "acc"]) == (0.25, 2)
    assert taken() == {("", "loss"): [(0, 7, 0.5), (0, 8, 0.25)], ("eval", "acc"): [(0, 7, 1), (0, 8, 2)]}
    assert taken() == {}


def test_a_group_takes_the_keys_as_they_are() -> None:
    """Where a group is given, a slash is part of the name; nested dictionaries are flattened with one."""
    tachograph.log({"a/b": 1, "c": {"d": {"e": 2}, "f": 3}}, step=0, group="g")
    assert set(taken()) == {("g", "a/b"), ("g", "c/d/e"), ("g", "c/f")}
    tachograph.log({"c": {"d": {"e": 2}, "f": 3}}, step=0)
    assert set(taken()) == {("c", "d/e"), ("c", "f")}


def test_a_key_may_hold_a_number_or_a_dictionary() -> None:
    """The same key at two levels: each call is read as it is."""
    tachograph.log({"a": 1}, step=0)
    tachograph.log({"a": {"b": 2}}, step=1)
    tachograph.log({"a": 3}, step=2)
    assert taken() == {("", "a"): [(0, 0, 1), (0, 2, 3)], ("a", "b"): [(0, 1, 2)]}


def test_without_a_step_calls_are_counted() -> None:
    """Whatever keys they have: points of one call share an x."""
    tachograph.log({"loss": 1.0})
    tachograph.log({"loss": 2.0, "acc": 0.5})
    tachograph.log({"loss": 3.0})
    found = taken()
    assert found["", "loss"] == [(0, 0, 1.0), (0, 1, 2.0), (0, 2, 3.0)]
    assert found["", "acc"] == [(0, 1, 0.5)]


steps = st.one_of(st.integers(-5, 50), st.floats(-5, 50))
numbers = st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.sampled_from([10**400, np.float32(0.5), True]))
calls = st.lists(
    st.one_of(st.tuples(st.dictionaries(st.sampled_from("abc"), numbers, min_size=1), steps), st.sampled_from([0, 1])),
    max_size=40,
)


@given(calls)
def test_every_value_is_a_point(program: list[Any]) -> None:
    """Whatever keys a call has: each curve has its values in the order of the calls, and a branch where x goes back."""
    logged.reset()
    wanted: dict[str, list[tuple[int, float, float]]] = {}
    found: dict[str, list[tuple[int, float, float]]] = {}

    def take(*, everything: bool) -> None:
        for (_, metric), points in taken(everything=everything).items():
            found.setdefault(metric, []).extend(points)

    for call in program:
        if isinstance(call, int):
            take(everything=bool(call))
            continue
        values, step = call
        tachograph.log(values, step=step)
        for key, value in values.items():
            points = wanted.setdefault(key, [])
            branch, x = points[-1][:2] if points else (0, -math.inf)
            points.append((branch + (step < x), float(step), _float(value)))
    last = {key: points[-1][2] for key, points in wanted.items()}
    shown = gauges()
    assert repr({key: _float(shown["tachograph.metric", key]) for key in last}) == repr(last)
    take(everything=True)
    assert repr({key: found[key] for key in wanted}) == repr(wanted)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def test_what_is_no_number_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A string, None or an array is left out, counted and said once; the other values of the call are kept."""
    with caplog.at_level("WARNING", "tachograph"):
        for step in range(3):
            tachograph.log({"odd.one": "text", "even.one": float(step), "array": np.zeros(3), "none": None}, step=step)
    assert taken() == {("", "even.one"): [(0, 0, 0.0), (0, 1, 1.0), (0, 2, 2.0)]}
    assert len([record for record in caplog.records if "odd.one" in record.getMessage()]) == 1
    lost = [
        point.value
        for metric in registry.default.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if dict(point.attributes) == {"destination": "registry", "reason": "no_number"} and hasattr(point, "value")
    ]
    assert lost[0] >= 9


@pytest.mark.parametrize(
    ("values", "more", "error", "words"),
    [
        (["loss"], {}, TypeError, "log() takes a mapping of names to values, not list"),
        ("loss", {}, TypeError, "not str: 'loss'; write log({'loss': value})"),
        ("loss", {}, TypeError, "not str"),
        (None, {}, TypeError, "not NoneType"),
        ({1: 2.0}, {}, TypeError, "a key of log() must be a string, not int: 1"),
        ({"": 2.0}, {}, ValueError, "a key of log() must not be empty"),
        ({"x" * 1025: 2.0}, {}, ValueError, "1025 characters"),
        ({"a": 1.0}, {"step": "7"}, TypeError, "the step of log() must be a number, not str: '7'"),
        ({"a": 1.0}, {"step": True}, TypeError, "the step of log()"),
        ({"a": 1.0}, {"step": math.nan}, ValueError, "the step of log() must be finite"),
        ({"a": 1.0}, {"step": 1, "group": 3}, TypeError, "the group of log() must be a string, not int: 3"),
    ],
)
def test_misuse_is_said_at_the_call(values: Any, more: Any, error: type[Exception], words: str) -> None:
    """The message names the value and what is taken instead; nothing is recorded."""
    with pytest.raises(error) as raised:
        tachograph.log(values, **more)
    assert words in str(raised.value)
    assert taken() == {}


def test_an_empty_dictionary_is_nothing() -> None:
    """There is no point, and no error."""
    tachograph.log({})
    tachograph.log({"a": {}}, step=1)
    assert taken() == {}


def test_threads_lose_no_row() -> None:
    """Four threads log, with and without a step, while another one takes: each row once."""
    over = threading.Event()
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}

    def take() -> None:
        for key, points in taken().items():
            found.setdefault(key, []).extend(points)

    def taking() -> None:
        while not over.is_set():
            take()

    def work(which: int) -> None:
        for number in range(5000):
            tachograph.log({"value": which * 5000.0 + number, "two": 2}, step=None if which % 2 else number)

    taker = threading.Thread(target=taking)
    workers = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in (taker, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    taker.join()
    take()
    assert sorted(value for _, _, value in found["", "value"]) == list(map(float, range(20_000)))
    assert len(found["", "two"]) == 20_000


def test_a_signal_handler_may_log_and_take() -> None:
    """In the middle of a call or of packing: no row is lost, and nothing waits."""
    found: list[Any] = []
    turns = 0

    def handler(*_: object) -> None:
        nonlocal turns
        turns += 1
        tachograph.log({"n": -1.0}, step=turns)
        found.extend(taken().get(("", "n"), []))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)  # a handler that takes longer would interrupt itself for ever
    try:
        for number in range(30_000):
            tachograph.log({"n": float(number)}, step=number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found += taken().get(("", "n"), [])
    assert turns > 0
    assert sorted(value for _, _, value in found if value >= 0) == list(map(float, range(30_000)))
    assert len(found) == 30_000 + turns


def test_very_many_sets_of_keys_are_bounded() -> None:
    """Names that count up cost memory for the last thousand; the points of all of them leave."""
    for number in range(MOST_KEY_SETS + 50):
        tachograph.log({f"n{number}": 1.0}, step=number)
    assert len(logged.key_sets) <= MOST_KEY_SETS
    assert len(taken()) == MOST_KEY_SETS + 50


@pytest.mark.usefixtures("untraced")
def test_a_key_of_very_many_sets_is_one_series() -> None:
    """A new set of keys each call: the gauge of a key that is in all of them follows one series."""
    calls = 2 * MOST_KEY_SETS + 100
    for number in range(calls):
        tachograph.log({"loss.of.many": float(number), f"piled.{number % 10}.{number}": 1.0}, step=number)
    assert gauges()["tachograph.metric", "loss.of.many"] == calls - 1
    series = registry.default.group("tachograph.metric").instrument("loss.of.many").series({})
    assert isinstance(series, LastValue)
    assert len(series.followed) == 1
    assert len(taken()["", "loss.of.many"]) == calls


def test_what_nobody_takes_is_bounded_and_counted() -> None:
    """Before a start(), a mebi of values waits; beyond, the oldest rows go and are counted as lost points."""
    registry.default.points.wanted = None
    calls = MOST_WAITING // 64 + 4 * ROWS
    before = _lost()
    values = {f"k{number}": 1.0 for number in range(64)}
    for step in range(calls):
        tachograph.log(values, step=step)
    left = taken()["", "k0"]
    assert left[-1][1] == calls - 1
    assert (calls - len(left)) * 64 == _lost() - before > 0


def _lost() -> float:
    return sum(
        point.value
        for metric in registry.default.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if dict(point.attributes) == {"destination": "journal", "reason": "queue_full"} and hasattr(point, "value")
    )


def test_no_rows_are_kept_that_no_destination_takes() -> None:
    """The gauge shows the last value; nothing waits, and nothing is lost."""
    registry.default.points.wanted = False
    before = _lost()
    for step in range(5 * ROWS):
        tachograph.log({"quiet": float(step)}, step=step)
    assert gauges()["tachograph.metric", "quiet"] == 5 * ROWS - 1
    assert len(logged.rows) < ROWS
    assert taken() == {}
    assert _lost() == before


def test_rows_wait_for_values_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row leaves once its values have arrived, in its place; one that cannot be read costs itself alone."""
    monkeypatch.setattr(values, "leave_device", copied)
    first, second = Tensor(0.5), Tensor(0.25)
    second.failed = True
    for step, loss in enumerate((first, 2.0, second)):
        tachograph.log({"loss": loss, "lr": 0.1}, step=step)
    assert taken() == {}
    first.there = True
    assert taken() == {("", "loss"): [(0, 0, 0.5), (0, 1, 2.0)], ("", "lr"): [(0, 0, 0.1), (0, 1, 0.1)]}
    second.there = True
    assert taken() == {("", "lr"): [(0, 2, 0.1)]}


def test_nan_is_a_value_and_counted() -> None:
    """NaN and infinities are points as they are, and counted by metric."""
    tachograph.log({"odd.values": math.nan}, step=0)
    tachograph.log({"odd.values": -math.inf}, step=1)
    values = [value for _, _, value in taken()["", "odd.values"]]
    assert math.isnan(values[0])
    assert values[1] == -math.inf
    counted = {
        dict(point.attributes)["metric"]: point.value
        for metric in registry.default.collect()
        if metric.name == "tachograph.nonfinite"
        for point in metric.points
        if hasattr(point, "value")
    }
    assert counted["odd.values"] == 2


def test_tokens_are_summed() -> None:
    """``tokens`` without a group are added up, once, in whatever dictionary they come; points are as ever."""
    assert logged.tokens() is None
    for _ in range(ROWS + 10):
        tachograph.log({"tokens": 3})
    assert logged.tokens() == 3 * (ROWS + 10)
    for value in (4, math.nan, -1, math.inf, "five", np.int64(6)):
        tachograph.log({"loss": 1.0, "tokens": value}, step=1)
    tachograph.log({"train/tokens": 1000, "tokens/s": 1000})
    tachograph.log({"tokens": 1000}, group="train")
    assert logged.tokens() == logged.tokens() == 3 * (ROWS + 10) + 10
    assert len(taken()["", "tokens"]) == ROWS + 10 + 5
    for number in range(MOST_KEY_SETS + 1):
        tachograph.log({f"other{number}": 1})
    assert not any(place[-1] == "tokens" for place in logged.key_sets)
    assert logged.tokens() == 3 * (ROWS + 10) + 10
    logged.reset()
    assert logged.tokens() is None
