"""What is put through the real torchelastic metrics API arrives as what is put through ours; no handler notices."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from front_door import Kept, calls, errors, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic
from tachograph.instrumentation._torchelastic import ElasticMetrics, TorchrunSeries

api = pytest.importorskip("torch.distributed.elastic.metrics.api")
pytestmark = pytest.mark.torch


class Interrupted(BaseException):
    """Ends a function as Ctrl-C does."""


class TorchKept(api.MetricHandler):  # type: ignore[misc, name-defined]
    """A handler as programs write it against the real API."""

    def __init__(self) -> None:
        self.points: list[tuple[str, str, Any]] = []

    def emit(self, metric_data: Any) -> None:
        """Keep one point."""
        self.points.append(tuple(metric_data[1:]))


@pytest.fixture(autouse=True)
def bridged() -> Iterator[ElasticMetrics]:
    """Bridge the real API, and leave it as it was."""
    before = dict(api._metrics_map), api._default_metrics_handler, api.MetricStream.add_value
    bridge = ElasticMetrics(api, TorchrunSeries())
    yield bridge
    bridge.close()
    api._metrics_map.clear()
    api._metrics_map.update(before[0])
    api._default_metrics_handler = before[1]
    assert api.MetricStream.add_value is before[2]


def test_put_metric_arrives_as_ours(group: str) -> None:
    """Values put through the real function become what the same call of ours makes of them."""
    for put, where in ((api.put_metric, group), (elastic.put_metric, f"{group} of ours")):
        put("loss", 0.25, where)
        put("step.duration.ms", 12, where)
        put("checkpoint.success", 1, where)
        put("checkpoint.success", 2, where)
    assert recorded(group) == recorded(f"{group} of ours")
    assert recorded(group) == {"loss": 0.25, "step.duration": (1, 12), "checkpoint.success": 3}


def test_publish_metric_arrives(group: str) -> None:
    """The deprecated function is heard as well."""
    with pytest.warns(FutureWarning):
        api.publish_metric(group, "loss", 2)
    assert recorded(group) == {"loss": 2}


def test_prof_becomes_calls_and_durations(group: str) -> None:
    """The real @prof counts calls by outcome and type of error, as ours does; a KeyboardInterrupt is a failure."""

    @api.prof(group=group)
    def work(error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "done"

    assert [work(None), work(None)] == ["done", "done"]
    for error in (ValueError("x"), Interrupted()):
        with pytest.raises(type(error)):
            work(error)
    name = "test_prof_becomes_calls_and_durations.<locals>.work"
    interrupted = f"{Interrupted.__module__}.Interrupted"
    assert calls(group) == {f"{name} success": 2, f"{name} ValueError": 1, f"{name} {interrupted}": 1}


def test_prof_inside_of_a_failure_is_a_success(group: str) -> None:
    """A profiled function that ends well while another exception is being handled has not failed."""

    @api.prof(group=group)
    def clean_up() -> None:
        pass

    try:
        [].pop()
    except IndexError:
        clean_up()
    assert list(calls(group).values()) == [1]
    assert next(iter(calls(group))).endswith(" success")


def test_a_point_put_inside_of_a_profiled_function_stays_what_it_is(group: str) -> None:
    """Only what @prof itself puts is a call: a program's own X.success is a counter, also in a profiled function."""

    @api.prof(group=group)
    def work() -> None:
        api.put_metric("save.success", 1, group)

    work()
    assert recorded(group)["save.success"] == 1
    assert len(calls(group)) == 1


def test_the_deprecated_profile_is_a_call_too(group: str) -> None:
    """The real @profile counts under the bare name of the function."""
    with pytest.warns(FutureWarning):
        decorate = api.profile(group)

    def save() -> None:
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # at each point that it puts
        decorate(save)()
    assert calls(group) == {"save success": 1}


def test_seconds_come_from_milliseconds(group: str) -> None:
    """What @prof puts in milliseconds is in function.duration in seconds."""
    kept = TorchKept()
    api.configure(kept, group)

    @api.prof(group=group)
    def work() -> None:
        time.sleep(0.02)

    work()
    (milliseconds,) = [value for _, name, value in kept.points if name.endswith(".duration.ms")]
    assert milliseconds >= 20
    (spent,) = [value for key, value in recorded(group).items() if key.startswith("function.duration")]
    assert spent == (1, pytest.approx(milliseconds / 1000))


def test_handlers_get_what_they_got(group: str) -> None:
    """A handler configured before, and one configured after, get every point exactly as put; ours arrive besides."""
    first, later = TorchKept(), TorchKept()
    api.configure(first, group)
    api.put_metric("a", 1, group)
    api.configure(later, group)
    odd = object()
    api.put_metric("b", odd, group)
    assert first.points == [(group, "a", 1)]
    assert later.points == [(group, "b", odd)]
    assert recorded(group)["a"] == 1


def test_a_handler_of_ours_hears_the_real_prof(group: str) -> None:
    """A handler configured with tachograph gets the points of the real API, too."""
    kept = Kept()
    elastic.configure(kept, group)

    @api.prof(group=group)
    def work() -> None:
        pass

    work()
    api.put_metric("loss", 3, group)
    assert [name.rpartition(">.")[2] for _, name, _ in kept.plain()] == ["work.success", "work.duration.ms", "loss"]


def test_an_explicit_null_handler_silences(group: str) -> None:
    """NullMetricHandler, configured for a group, keeps the group from every way out, as it does with ours."""
    api.configure(api.NullMetricHandler(), group)
    api.put_metric("a", 1, group)
    assert recorded(group) == {}


def test_a_handler_that_raises_still_raises(group: str) -> None:
    """What the program's handler raises reaches the program, as without us, and the value is recorded."""

    class Broken(api.MetricHandler):  # type: ignore[misc, name-defined]
        def emit(self, metric_data: Any) -> None:
            raise RuntimeError(metric_data.name)

    api.configure(Broken(), group)
    with pytest.raises(RuntimeError, match="loss"):
        api.put_metric("loss", 1, group)
    assert recorded(group) == {"loss": 1}


@given(
    name=st.one_of(st.text(), st.none(), st.integers(), st.just("x" * 2000), st.just("workers..x")),
    value=st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.just([])),
    where=st.one_of(st.text(), st.none(), st.integers()),
)
def test_nothing_that_is_put_raises(name: Any, value: Any, where: Any) -> None:
    """Whatever a program puts that torchelastic takes, it gets no error from us."""
    api.put_metric(name, value, where)


def test_what_cannot_be_recorded_is_counted() -> None:
    """A point with a name that is none is counted as an error of ours, and passed on."""
    before = errors("torchelastic")
    kept = TorchKept()
    api.configure(kept, "odd")
    api.put_metric(None, 1, "odd")
    assert kept.points == [("odd", None, 1)]
    assert errors("torchelastic") == before + 1


def test_torchruns_points_get_their_role(group: str) -> None:
    """``workers.<role>.*`` become gauges and counters ``torchrun.*``, the role an attribute; roles may have dots."""
    role = f"r.{group}"
    for left in (3, 3, 2):
        api.put_metric(f"workers.{role}.remaining_restarts", left)
        api.put_metric(f"workers.{role}.healthy", 1)
    api.put_metric(f"workers.{role}.succeeded", 1)
    api.put_metric(f"workers.{role}.flakiness", 25)
    api.put_metric(f"workers.{role}.run_total", 1)
    api.put_metric(f"workers.{role}.run_failed_no_retries", 0)
    api.put_metric(f"workers.{role}.something_new", 7)
    found = recorded("torchelastic")
    assert {key.partition(" role=")[0]: value for key, value in found.items() if f"role={role}" in key} == {
        "torchrun.remaining_restarts": 2,
        "torchrun.state": 1,
        "torchrun.flakiness": 25,
        "torchrun.run": 1,
        "torchrun.run_failed_no_retries": 0,
        "torchrun.something_new": 7,
    }
    assert found[f"torchrun.state role={role} state=healthy"] == 0
    assert found[f"torchrun.state role={role} state=succeeded"] == 1


def test_closing_twice_and_under_somebody_else(bridged: ElasticMetrics, group: str) -> None:
    """A bridge that somebody has wrapped records nothing once it is closed, and leaves the wrapper in place."""
    ours = api.MetricStream.add_value

    def wrapper(*args: Any) -> Any:
        return ours(*args)

    api.MetricStream.add_value = wrapper  # as another library may
    try:
        bridged.close()
        bridged.close()
        assert api.MetricStream.add_value is wrapper
        api.put_metric("loss", 1, group)
        assert recorded(group) == {}
    finally:
        api.MetricStream.add_value = ours
    bridged.close()
