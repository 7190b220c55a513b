"""@prof on functions, methods, classes and descriptors: what it leaves as it was, and what it records."""

from __future__ import annotations

import inspect
import logging
import pickle
import threading
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from front_door import Kept, calls, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, prof
from tachograph.elastic import MetricData, MetricHandler
from tachograph.profiling.probe import error_type
from tachograph.recording import registry


def plain(value: int, *, by: int = 1) -> float:
    """Divide."""
    return value / by


def test_a_function_keeps_its_face(group: str) -> None:
    """Name, docstring, signature, module and __wrapped__ of a profiled function are the function's own."""
    for profiled in (prof(plain), prof()(plain), prof(group=group)(plain), prof(plain, group)):
        assert profiled(6, by=2) == 3
        assert inspect.signature(profiled) == inspect.signature(plain)
        assert (profiled.__name__, profiled.__qualname__, profiled.__module__) == ("plain", "plain", __name__)
        assert profiled.__doc__ == "Divide."
        assert profiled.__wrapped__ is plain  # type: ignore[attr-defined]
        assert inspect.isfunction(profiled)
    assert calls(group) == {"test_prof.plain success": 2}


def test_failures_are_counted_by_type_and_passed_on(group: str) -> None:
    """Any exception reaches the caller as it was, and is counted under its type; KeyboardInterrupt is one."""

    class Own(Exception):  # noqa: N818 - a name with a dot in it is what is tested
        pass

    @prof(group=group)
    def raising(error: BaseException) -> None:
        raise error

    for error in (ValueError("v"), KeyError("k"), Own(), KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            raising(error)
        assert caught.value is error
    with pytest.raises(GeneratorExit):
        raising(GeneratorExit())
    name = raising.__qualname__
    assert calls(group) == {
        f"{name} ValueError": 1,
        f"{name} KeyError": 1,
        f"{name} {Own.__module__}.{Own.__qualname__}": 1,
        f"{name} KeyboardInterrupt": 1,
        f"{name} SystemExit": 1,
        f"{name} success": 1,
    }
    assert error_type(ValueError()) == "ValueError"


def test_durations_are_seconds_at_full_precision(group: str) -> None:
    """A short call is measured, not rounded to zero."""
    profiled = prof(plain, group)
    for _ in range(5):
        profiled(1)
    count, total = recorded(group)["function.duration code.function.name=test_prof.plain outcome=success"]
    assert count == 5
    assert 0 < total < 0.1


def test_a_function_without_a_module_has_its_bare_name() -> None:
    """What belongs to no module is called by its own name."""
    fn = types.FunctionType((lambda: 1).__code__, {}, "made")
    fn.__qualname__ = "made"
    fn.__module__ = None  # type: ignore[assignment]
    assert elastic._get_metric_name(fn) == "made"


@pytest.mark.parametrize("wrong", [3, "mine", [plain], object()])
def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    """@prof on something that cannot be called is a TypeError that shows how a group is written."""
    with pytest.raises(TypeError, match=r"@prof\(group=…\)"):
        prof(wrong)


def test_a_wrong_group_is_refused_at_once() -> None:
    """A group that is no string is a TypeError where it is written."""
    with pytest.raises(TypeError, match="metric group must be a string"):
        prof(group=3)  # type: ignore[call-overload]


def test_a_method_name_of_two_thousand_characters_is_refused() -> None:
    """A function whose name is too long for a metric is refused at its decoration."""

    def fn() -> None:
        pass

    fn.__qualname__ = "f" * 2000
    with pytest.raises(ValueError, match="2010 characters"):
        prof(fn)


def test_handlers_get_the_original_points(group: str) -> None:
    """A handler gets X.success or X.failure = 1, then X.duration.ms as an int, and no zero point."""
    kept = Kept()
    elastic.configure(kept, group)
    profiled = prof(plain, group)
    profiled(1)
    with pytest.raises(ZeroDivisionError):
        profiled(1, by=0)
    assert [(point.name, type(point.value), point.group_name) for point in kept.points] == [
        ("test_prof.plain.success", int, group),
        ("test_prof.plain.duration.ms", int, group),
        ("test_prof.plain.failure", int, group),
        ("test_prof.plain.duration.ms", int, group),
    ]
    assert calls(group) == {"test_prof.plain success": 1, "test_prof.plain ZeroDivisionError": 1}
    assert {key.split()[0] for key in recorded(group)} == {"function.calls", "function.duration"}


def test_a_raising_handler_does_not_touch_the_result(group: str, caplog: pytest.LogCaptureFixture) -> None:
    """The function's result survives a handler that raises."""

    class Broken(MetricHandler):
        def emit(self, metric_data: MetricData) -> None:
            raise RuntimeError(metric_data.name)

    elastic.configure(Broken(), group)
    with caplog.at_level(logging.ERROR):
        assert prof(plain, group)(4) == 4
    assert calls(group) == {"test_prof.plain success": 1}


def test_a_silenced_group_records_no_calls(group: str) -> None:
    """An explicit NullMetricHandler silences @prof, from the next call on, until it is replaced."""
    profiled = prof(plain, group)
    profiled(1)
    elastic.configure(elastic.NullMetricHandler(), group)
    assert profiled(2) == 2
    elastic.configure(Kept(), group)
    profiled(3)
    assert calls(group) == {"test_prof.plain success": 2}


class Kind:
    """Has a method."""

    def method(self, value: int) -> int:
        """Return the value."""
        return value


def test_profile_is_deprecated_and_uses_the_bare_name(group: str) -> None:
    """profile() warns with a FutureWarning and names metrics after the function alone; no group means None."""
    kept = Kept()
    elastic.configure(kept)
    with pytest.warns(FutureWarning, match="@prof"):
        grouped = elastic.profile(group)
    with pytest.warns(FutureWarning):
        ungrouped = elastic.profile()
    assert grouped(Kind().method)(1) == 1
    assert ungrouped(plain)(1) == 1
    assert [(point.group_name, point.name) for point in kept.points[::2]] == [
        (group, "method.success"),
        (None, "plain.success"),
    ]
    assert calls(group) == {"method success": 1}


def test_profiled_functions_can_be_pickled() -> None:
    """A profiled function of a module is found again by its name."""
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level  # noqa: S301 - our own bytes


@prof
def at_module_level() -> None:
    """Do nothing."""


@given(outcomes=st.lists(st.sampled_from([None, ValueError, KeyboardInterrupt, GeneratorExit, OSError])))
def test_calls_and_durations_always_agree(outcomes: list[type[BaseException] | None]) -> None:
    """However calls end, function.calls summed over outcomes is the count of function.duration and of the calls."""
    group = f"agree {id(outcomes)} {len(registry.default.groups)}"

    @prof(group=group)
    def ending(error: type[BaseException] | None) -> None:
        if error is not None:
            raise error

    for outcome in outcomes:
        if outcome is None:
            ending(outcome)
            continue
        with pytest.raises(outcome):
            ending(outcome)
    assert sum(calls(group).values()) == len(outcomes)


def test_calls_on_several_threads_are_all_counted(group: str) -> None:
    """Concurrent and nested calls of one function are each counted."""

    @prof(group=group)
    def nested(depth: int) -> int:
        return depth and nested(depth - 1)

    threads = [threading.Thread(target=lambda: [nested(4) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls(group) == {f"{nested.__qualname__} success": 4 * 500 * 5}
