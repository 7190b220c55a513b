"""The registry: names become instruments, attributes become series, and what is lost is counted."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.recording import registry as registries
from tachograph.recording.accumulators import Distribution
from tachograph.recording.naming import MAX_NAME_LENGTH
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry


def by_name(registry: Registry) -> dict[tuple[str, str], MetricPoints]:
    """Return what a collection finds, by scope and name."""
    return {(metric.scope, metric.name): metric for metric in registry.collect()}


def numbers(metric: MetricPoints) -> dict[tuple[tuple[str, object], ...], float]:
    """Return the values of a gauge or counter by attributes."""
    return {point.attributes: point.value for point in metric.points if isinstance(point, NumberPoint)}


@pytest.mark.parametrize(
    ("recorded", "name", "unit", "kind"),
    [
        ("loss", "loss", "", "gauge"),
        ("step.duration.ms", "step.duration", "ms", "histogram"),
        ("load_ms", "load", "ms", "histogram"),
        ("fetch_seconds", "fetch", "s", "histogram"),
        ("fetch.latency", "fetch.latency", "", "histogram"),
        ("x.duration", "x.duration", "", "histogram"),
        ("calculate_latency", "calculate_latency", "", "histogram"),
        ("sent.bytes", "sent", "By", "gauge"),
        ("sent_bytes", "sent", "By", "gauge"),
        ("checkpoint.success", "checkpoint.success", "", "counter"),
        ("checkpoint.failure", "checkpoint.failure", "", "counter"),
        ("outer.<locals>.inner", "outer.<locals>.inner", "", "gauge"),
    ],
)
def test_a_name_says_what_it_is(recorded: str, name: str, unit: str, kind: str) -> None:
    """Kind and unit follow from the recorded name, as the contract's table has it."""
    registry = Registry()
    registry.group("g").instrument(recorded).record(3)
    metric = by_name(registry)["g", name]
    assert (metric.unit, metric.kind) == (unit, kind)
    assert metric.description == recorded


def test_a_taken_shorter_name_leaves_the_later_one_its_full_name() -> None:
    """Where the name without its suffix is another kind or unit already, the later one keeps its full name."""
    group = Registry().group("g")
    assert group.instrument("load").name == "load"
    assert group.instrument("load_ms").name == "load_ms"
    assert group.instrument("load_seconds").name == "load_seconds"


def test_two_spellings_of_one_metric_are_one_metric() -> None:
    """``sent.bytes`` and ``sent_bytes`` mean the same instrument, which is collected once."""
    registry = Registry()
    registry.group("g").instrument("sent.bytes").record(1)
    registry.group("g").instrument("sent_bytes").record(2)
    found = [metric for metric in registry.collect() if metric.scope == "g"]
    assert [numbers(metric) for metric in found] == [{(): 2}]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (1, TypeError),
        (None, TypeError),
        ("", ValueError),
        ("x" * (MAX_NAME_LENGTH + 1), ValueError),
        ("\ud800", ValueError),
    ],
)
def test_a_bad_name_is_refused_at_the_call(name: object, error: type[Exception]) -> None:
    """A name that is no string, empty, too long or not Unicode is an error that shows it."""
    with pytest.raises(error, match="metric name"):
        Registry().group("g").instrument(name)  # type: ignore[arg-type]


def test_the_empty_group_is_a_group() -> None:
    """The empty string names a group like any other."""
    registry = Registry()
    registry.group("").instrument("loss").record(1.0)
    assert by_name(registry)["", "loss"].scope == ""


def declare(registry: Registry, name: str, **definition: object) -> object:
    """Declare a metric of group g."""
    given_ = {"kind": None, "unit": None, "description": "", "boundaries": None, **definition}
    return registry.group("g").declare(name, **given_)  # type: ignore[arg-type]


def test_what_is_declared_holds() -> None:
    """Kind, unit, description and boundaries can be declared; the same declaration again is no conflict."""
    registry = Registry()
    for _ in range(2):
        declare(registry, "tokens", kind="counter", unit="{token}", description="Tokens seen.")
        declare(registry, "wait_ms", boundaries=(1, 10, 100))
    registry.group("g").instrument("tokens").record(5)
    registry.group("g").instrument("wait_ms").record(10)
    found = by_name(registry)
    tokens = found["g", "tokens"]
    assert (tokens.kind, tokens.unit, tokens.description) == ("counter", "{token}", "Tokens seen.")
    point = found["g", "wait"].points[0]
    assert isinstance(point, HistogramPoint)
    assert (point.boundaries, point.summary.at_most) == ((1.0, 10.0, 100.0), (0, 1, 1))


@pytest.mark.parametrize(
    "again",
    [{"kind": "gauge"}, {"unit": "s"}, {"description": "another"}, {"boundaries": (1, 2)}],
)
def test_a_conflicting_declaration_is_refused(again: dict[str, object]) -> None:
    """A declaration that differs from what is known is a ValueError that names both."""
    registry = Registry()
    declare(registry, "x.duration", kind="histogram", unit="ms", description="one", boundaries=(1, 2, 3))
    with pytest.raises(ValueError, match=r"'x\.duration' of group 'g' was already declared"):
        declare(registry, "x.duration", **{"kind": "histogram", "unit": "ms", **again})


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ({"kind": "summary"}, ValueError),
        ({"unit": 3}, TypeError),
        ({"kind": "gauge", "boundaries": (1, 2)}, ValueError),
        ({"kind": "histogram", "boundaries": (2, 1)}, ValueError),
        ({"kind": "histogram", "boundaries": (1, math.inf)}, ValueError),
        ({"kind": "histogram", "boundaries": ("a",)}, TypeError),
    ],
)
def test_a_wrong_declaration_is_refused(definition: dict[str, object], error: type[Exception]) -> None:
    """A kind, unit or boundaries that cannot be are an error at the call."""
    with pytest.raises(error):
        declare(Registry(), "loss", **definition)


@pytest.mark.process
def test_attributes_make_series_and_types_stay_apart() -> None:
    """Each set of attributes is a series of its own; 1, 1.0, True and '1' are different values."""
    registry = Registry()
    gauge = registry.group("g").instrument("loss")
    for number, value in enumerate((1, 1.0, True, "1")):
        gauge.bind(k=value)(number)
    gauge.record(9, {"b": 1, "a": 2})
    gauge.record(10, {"a": 2, "b": 1})
    found = numbers(by_name(registry)["g", "loss"])
    assert sorted(found.values()) == [0, 1, 2, 3, 10] or len(by_name(registry)["g", "loss"].points) == 5
    assert len(by_name(registry)["g", "loss"].points) == 5


@pytest.mark.parametrize("attributes", [3, {1: "a"}, {"": "a"}, {"a": object()}, {"a": {"b": 1}}])
def test_wrong_attributes_are_refused(attributes: object) -> None:
    """Attributes that OpenTelemetry cannot carry are an error at the call."""
    with pytest.raises((TypeError, ValueError), match="attribute"):
        Registry().group("g").instrument("loss").record(1, attributes)  # type: ignore[arg-type]


def test_beyond_the_limit_values_go_to_the_overflow_series() -> None:
    """A metric has at most its limit of series, the overflow series included; no value is lost."""
    registry = Registry(cardinality_limit=10)
    counter = registry.group("g").declare("n", kind="counter", unit=None, description="", boundaries=None)
    for number in range(50):
        counter.record(1, {"k": number})
    found = numbers(by_name(registry)["g", "n"])
    assert len(found) == 10
    assert sum(found.values()) == 50
    assert found[(("otel.metric.overflow", True),)] == 41


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "ValueError", "KeyError"])), max_size=80))
def test_calls_and_durations_always_agree(calls: list[tuple[str, str]]) -> None:
    """``function.calls`` summed over the outcomes equals the count of ``function.duration``."""
    registry = Registry()
    group = registry.group("g")
    for name, error in calls:
        function = group.function(name)
        into: Distribution = function.failure(error) if error else function.success
        into.record(0.25)
    found = by_name(registry)
    if not calls:
        assert ("g", "function.duration") not in found
        return
    counted: dict[tuple[object, object], float] = {}
    for attributes, value in numbers(found["g", "function.calls"]).items():
        key = dict(attributes)
        both = (key["code.function.name"], key["outcome"])
        counted[both] = counted.get(both, 0) + value
    durations = {
        (dict(point.attributes)["code.function.name"], dict(point.attributes)["outcome"]): point.summary.count
        for point in found["g", "function.duration"].points
        if isinstance(point, HistogramPoint)
    }
    assert counted == durations
    assert sum(counted.values()) == len(calls)


def test_what_is_lost_is_counted_and_exported() -> None:
    """Values that are no number, negative adds and drops of destinations leave as ``tachograph.dropped``."""
    registry = Registry()
    group = registry.group("g")
    group.instrument("loss").record(None)
    group.instrument("loss").record(math.nan)
    group.instrument("x.success").record(-1)
    registry.count_dropped("queue_full", "otlp", 3)
    registry.count_error("handler")
    found = by_name(registry)
    assert numbers(found["tachograph", "tachograph.dropped"]) == {
        (("destination", "otlp"), ("reason", "queue_full")): 3,
        (("destination", "registry"), ("reason", "no_number")): 1,
        (("destination", "registry"), ("reason", "negative")): 1,
    }
    assert numbers(found["tachograph", "tachograph.nonfinite"]) == {(("metric", "loss"),): 1}
    assert numbers(found["tachograph", "tachograph.errors"]) == {(("where", "handler"),): 1}


def test_reading_never_takes_from_another_reader() -> None:
    """Two collections see the same cumulative state."""
    registry = Registry()
    registry.group("g").instrument("x_ms").record(3)
    assert by_name(registry)["g", "x"] == by_name(registry)["g", "x"]


@pytest.mark.process
@pytest.mark.parametrize(("helpers", "counts"), [("", "parent 2 child 0"), ("1", "parent 2 child 1")])
def test_a_forked_child_records_nothing_unless_asked(helpers: str, counts: str) -> None:
    """A forked child doesn't repeat its parent's counts, and records only with ``TACHOGRAPH_HELPERS=true``."""
    program = """
import os
from tachograph.recording.registry import default
counter = default.group("g").instrument("x.success")
counter.record(1)
read, write = os.pipe()
child = os.fork()
counter.record(1)
total = sum(p.value for m in default.collect() if m.scope == "g" for p in m.points)
if not child:
    os.write(write, str(total).encode())
    os._exit(0)
os.waitpid(child, 0)
print("parent", total, "child", os.read(read, 10).decode())
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TACHOGRAPH_HELPERS": helpers},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == counts


@pytest.mark.process
def test_a_disabled_sdk_disables_the_registry() -> None:
    """``OTEL_SDK_DISABLED=true`` is read when the registry is made."""
    program = "from tachograph.recording.registry import default; print(default.enabled)"
    for value, enabled in (("true", "False"), ("TRUE ", "False"), ("false", "True"), ("", "True")):
        environment = {**os.environ, "OTEL_SDK_DISABLED": value}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == enabled


def test_a_copy_of_an_instrument_is_that_of_the_process() -> None:
    """Copied and pickled, once it has recorded, too: each process has one instrument of a name, declared the same."""
    declared = registries.declare(
        "copied", group="copies", kind="histogram", unit="s", description="It.", boundaries=(0.1, 1)
    )
    found = registries.default.group("copies").instrument("seen.success")
    for instrument in (declared, found):
        instrument.record(1.0)
        assert copy.deepcopy(instrument) is copy.copy(instrument) is instrument
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps([instrument], protocol)) == [instrument]  # noqa: S301


@pytest.mark.process
def test_an_instrument_is_declared_where_its_pickle_is_read() -> None:
    """In another process it is declared as in this one."""
    declared = registries.declare("sent.latency", group="copies", kind="histogram", unit="s", boundaries=(0.1, 1))
    program = (
        "import pickle, sys; found = pickle.load(sys.stdin.buffer); found.record(0.5);"
        "print(found.name, found.kind, found.unit, found.boundaries, found.declared)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(declared), capture_output=True, check=True
    )
    assert said.stdout.decode().strip() == "sent.latency histogram s (0.1, 1.0) True"


def test_an_interrupt_while_an_instrument_is_made_costs_no_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, say, in the first call for a name: the next one makes the instrument."""

    def interrupted(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    found = Registry().group("g")
    with monkeypatch.context() as patch:
        patch.setattr("tachograph.recording.group.Instrument", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.instrument("loss")
    assert found.instrument("loss") is found.instrument("loss")


def test_losses_of_one_reason_are_one_series() -> None:
    """What a series has lost and what was counted elsewhere add up: else a page would show one of them."""
    registry = Registry(enabled=True)
    registry.group("g").instrument("loss").record("low")
    registry.count_dropped("no_number", "registry", 2)
    registry.count_dropped("no_number", "hub")
    (dropped,) = [metric for metric in registry.collect() if metric.name == "tachograph.dropped"]
    found = {dict(point.attributes)["destination"]: point.value for point in dropped.points}  # type: ignore[union-attr]
    assert len(dropped.points) == 2
    assert found == {"registry": 3, "hub": 1}


def test_our_own_metrics_stand_as_they_stood() -> None:
    """A collection that does not ask them has those of the last that did, and no interval of theirs twice."""
    registry = Registry()
    reader = registry.intervals.open()

    def own(*, asked: bool) -> list[tuple[str, object, bool]]:
        found = registry.columns(reader=reader if asked else None, own=asked)
        points = [(metric.name, point) for metric in found if metric.scope == "tachograph" for point in metric.points]
        return [
            (name, point.summary.count, point.interval is not None)
            if isinstance(point, HistogramPoint)
            else (name, point.value, False)
            for name, point in points
        ]

    registry.export_duration.record(0.5, {"destination": "otlp"})
    registry.count_dropped("queue_full", "otlp", 3)
    first = own(asked=True)
    assert sorted(first) == [("tachograph.dropped", 3, False), ("tachograph.export.duration", 1, True)]
    registry.export_duration.record(0.5, {"destination": "otlp"})
    registry.count_dropped("queue_full", "otlp", 4)
    registry.group("g").instrument("loss").record("no number")  # type: ignore[arg-type]
    assert own(asked=False) == [(name, value, False) for name, value, _ in first]
    later = own(asked=True)
    assert ("tachograph.export.duration", 2, True) in later
    assert sum(int(str(value)) for name, value, _ in later if name == "tachograph.dropped") == 8
    registry.reset()
    assert own(asked=False) == []


@pytest.mark.parametrize(
    "count",
    [
        lambda registry: registry.count_dropped("queue_full", "otlp"),
        lambda registry: registry.count_resent("otlp", 2),
        lambda registry: registry.count_error("journal"),
    ],
)
def test_our_own_metrics_have_news_where_something_was_lost(count: Callable[[Registry], object]) -> None:
    """A loss, a repetition and an error are news until they are asked for; the duration of an export is none."""
    registry = Registry()
    registry.columns()
    registry.export_duration.record(0.5, {"destination": "otlp"})
    assert not registry.has_own_news
    count(registry)
    registry.columns(own=False)
    assert registry.has_own_news
    registry.columns()
    assert not registry.has_own_news


def test_columns_are_the_points_of_a_collection() -> None:
    """Plain series come in columns, all others one by one; series that have come since are there at once."""
    registry = Registry(enabled=True)
    group = registry.group("g")

    def both() -> list[list[tuple[str, list[object]]]]:
        found = registry.columns(), registry.collect()
        return [sorted((metric.name, list(metric.points)) for metric in metrics) for metrics in found]

    for value in (1.5, 2):
        for name in ("loss", "step.seconds", "saved.success"):
            group.instrument(name).record(value)
        columns, points = both()
        assert columns == points
        assert len(points) == 3
    group.instrument("loss").record(3.0, {"rank": "1"})
    group.instrument("new").record(0.5)
    group.instrument("never")
    columns, points = both()
    assert columns == points
    assert [len(of) for _, of in points] == [2, 1, 1, 1]
    assert len(registry.columns()) == 4
