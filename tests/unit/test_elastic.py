"""Recording through torchelastic's API."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from front_door import Kept, errors, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import declare, elastic, put_metric
from tachograph.elastic import MetricsConfig


def test_a_value_reaches_the_exporters_without_any_handler(group: str) -> None:
    """What is recorded with nothing configured is there for start()."""
    for value in (3, 1.5, 2):
        put_metric("loss", value, group)
        put_metric("step.duration.ms", value, group)
        put_metric("save.success", 1, group)
    assert recorded(group) == {"loss": 2, "step.duration": (3, 6.5), "save.success": 3}


def test_the_default_group_is_torchelastic() -> None:
    """put_metric without a group records into the group torchelastic."""
    put_metric("test.default.group", 4)
    assert recorded("torchelastic")["test.default.group"] == 4


def test_attributes_make_series_and_stay_from_handlers(group: str) -> None:
    """attributes= tells series of one metric apart; handlers get the point without them."""
    kept = Kept()
    put_metric("loss", 1, group, attributes={"phase": "train"})
    put_metric("loss", 2, group, attributes={})
    elastic.configure(kept, group)
    put_metric("loss", 3, group, attributes={"phase": "test"})
    assert kept.plain() == [(group, "loss", 3)]
    assert recorded(group) == {"loss": 2, "loss phase=train": 1, "loss phase=test": 3}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((3, 1), TypeError, "metric name must be a string, not int"),
        ((None, 1), TypeError, "metric name must be a string"),
        ((["a"], 1), TypeError, "metric name must be a string, not list"),
        (("", 1), ValueError, "must not be empty"),
        (("a\0b", 1), ValueError, r"'a\\x00b' contains a NUL"),
        (("x" * 1025, 1), ValueError, "1025 characters"),
        (("\ud800", 1), ValueError, "not valid Unicode"),
        (("loss", 1, 5), TypeError, "metric group must be a string, not int"),
        (("loss", 1, {}), TypeError, "metric group must be a string, not dict"),
        (("loss", 1, "g" * 1025), ValueError, "1025 characters"),
    ],
)
def test_bad_names_are_refused_at_the_call(arguments: tuple[Any, ...], error: type[Exception], says: str) -> None:
    """A name that cannot be one is a clear error, with a handler and without."""
    for handler in (None, Kept()):
        if handler is not None:
            elastic.configure(handler)
        with pytest.raises(error, match=says):
            put_metric(*arguments)


def test_bad_attributes_are_refused_at_the_call(group: str) -> None:
    """Attributes that OpenTelemetry does not take are a clear error."""
    with pytest.raises(TypeError, match="must be a mapping, not str"):
        put_metric("loss", 1, group, attributes="train")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'where' must be a string"):
        put_metric("loss", 1, group, attributes={"where": object()})


def test_deprecated_publish_metric(group: str) -> None:
    """publish_metric takes the group first, warns, and records."""
    with pytest.warns(FutureWarning, match="put_metric"):
        elastic.publish_metric(group, "loss", 2)
    assert recorded(group) == {"loss": 2}


def test_small_helpers_of_the_original() -> None:
    """get_elapsed_time_ms, MetricsConfig and initialize_metrics behave as torchelastic's do."""
    assert 2000 <= elastic.get_elapsed_time_ms(time.time() - 2) < 2500
    assert MetricsConfig().params == {}
    assert MetricsConfig({"a": "b"}).params == {"a": "b"}
    elastic.initialize_metrics()
    elastic.initialize_metrics(MetricsConfig())


@pytest.mark.process
def test_declare_decides_what_a_name_becomes(group: str) -> None:
    """declare() sets kind, unit and buckets for put_metric, and its instrument records into the same series."""
    tokens = declare("tokens", group=group, kind="counter", unit="{token}", description="Tokens seen.")
    put_metric("tokens", 5, group)
    tokens.bind()(7)
    tokens.record(1, {"split": "test"})
    assert recorded(group) == {"tokens": 12, "tokens split=test": 1}
    with pytest.raises(ValueError, match="already declared with kind 'counter'"):
        declare("tokens", group=group, kind="gauge", unit="{token}")
    with pytest.raises(TypeError, match="description of 'x' must be a string"):
        declare("x", group=group, description=3)  # type: ignore[arg-type]


@pytest.mark.process
def test_switched_off_nothing_is_recorded_and_handlers_still_work() -> None:
    """With OTEL_SDK_DISABLED=true put_metric hands points to handlers and records nothing; @prof costs nothing."""
    program = """
import tachograph
from tachograph import elastic
from tachograph.recording import registry
tachograph.put_metric("loss", 1)
elastic.configure(elastic.ConsoleMetricHandler(), "g")
tachograph.put_metric("loss", 2, "g", attributes={"a": 1})
elastic.getStream("g").add_value("loss", 3)
def f(): pass
assert tachograph.prof(f) is f
assert tachograph.prof(group="g")(f) is f
try:
    tachograph.put_metric("", 1)
except ValueError:
    assert not registry.default.collect()
"""
    environment = {**os.environ, "OTEL_SDK_DISABLED": "true"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert [line.partition("]")[2] for line in done.stdout.splitlines()] == ["[g]: loss=2", "[g]: loss=3"]


@given(values=st.lists(st.integers(-(2**40), 2**40) | st.floats(-1e6, 1e6)), configured=st.integers(0, 3))
def test_a_handler_gets_exactly_what_was_recorded(values: list[float], configured: int) -> None:
    """Whatever is recorded, a handler has every point since it was configured, and the exporters have all."""
    group = f"property {time.monotonic_ns()}"
    kept = Kept()
    for index, value in enumerate(values):
        if index == configured:
            elastic.configure(kept, group)
        put_metric("x_seconds", value, group)
    assert [point.value for point in kept.points] == values[configured:]
    count, total = recorded(group).get("x", (0, 0))
    assert count == len(values)
    assert total == pytest.approx(sum(values), rel=1e-9, abs=1e-6)


def test_configuring_while_others_record_loses_nothing(group: str) -> None:
    """Handlers may come and go while several threads record: every value is in the sum."""
    elastic.configure(Kept(), group)

    def record() -> None:
        for _ in range(2000):
            put_metric("save.success", 1, group)

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        tachograph.configure(Kept(), group)
    for thread in threads:
        thread.join()
    assert recorded(group) == {"save.success": 6000}
