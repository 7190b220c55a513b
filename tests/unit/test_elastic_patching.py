"""What programs patch and inspect in torchelastic's modules is honoured in ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from front_door import Kept, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, prof, put_metric
from tachograph.elastic import MetricStream


def work() -> int:
    """Return 3."""
    return 3


def names(kept: Kept) -> list[str]:
    """Return the names of the points."""
    return [point.name for point in kept.points]


@pytest.mark.parametrize("target", ["tachograph.elastic.getStream", "tachograph.elastic.api.getStream"])
def test_a_patched_get_stream_gets_every_point(target: str, group: str) -> None:
    """put_metric and @prof go through a patched getStream, by either module name, also where a route was kept."""
    kept = Kept()
    profiled = prof(work, group)
    profiled()
    put_metric("loss", 1, group)
    with mock.patch(target, side_effect=lambda name: MetricStream(name, kept)) as asked:
        assert profiled() == 3
        put_metric("loss", 2, group)
        put_metric("loss", 3, group, attributes={"phase": "test"})
    profiled()
    put_metric("loss", 4, group)
    assert names(kept) == [
        "test_elastic_patching.work.success",
        "test_elastic_patching.work.duration.ms",
        "loss",
        "loss",
    ]
    assert {call.args for call in asked.call_args_list} == {(group,)}
    found = recorded(group)
    assert (found["loss"], found["loss phase=test"]) == (4, 3)
    assert found["function.calls code.function.name=test_elastic_patching.work outcome=success"] == 3


def test_a_stream_of_another_kind_takes_over(group: str) -> None:
    """What a patched getStream returns gets add_value, and decides alone what is recorded."""
    added: list[tuple[str, Any]] = []

    class Stream:
        def add_value(self, name: str, value: object) -> None:
            added.append((name, value))
            if value == "broken":
                raise OSError("full")

    with mock.patch("tachograph.elastic.getStream", return_value=Stream()):
        put_metric("loss", 1, group)
        put_metric("loss", "broken", group)
        prof(work, group)()
    assert added[:3] == [("loss", 1), ("loss", "broken"), ("test_elastic_patching.work.success", 1)]
    assert "loss" not in recorded(group)


def test_a_patched_stream_to_a_null_handler_is_silent(group: str) -> None:
    """A patched getStream whose stream leads to a NullMetricHandler keeps values out."""
    with mock.patch("tachograph.elastic.getStream", return_value=MetricStream(group, elastic.NullMetricHandler())):
        put_metric("loss", 1, group)
    assert not recorded(group)


def _set_default(kept: Kept, _group: str) -> Any:
    return mock.patch.object(elastic, "_default_metrics_handler", kept)


def _change_map(kept: Kept, group: str) -> Any:
    return mock.patch.dict("tachograph.elastic._metrics_map", {group: kept})


def _replace_map(kept: Kept, group: str) -> Any:
    return mock.patch("tachograph.elastic.api._metrics_map", {group: kept})


@pytest.mark.parametrize("patch", [_set_default, _change_map, _replace_map])
def test_patched_handlers_count_at_once(patch: Callable[[Kept, str], Any], group: str) -> None:
    """Replacing the default handler, or changing or replacing the map of handlers, counts from the next point on."""
    kept = Kept()
    profiled = prof(work, group)
    for step in range(2):
        profiled()
        put_metric("loss", step, group)
        with patch(kept, group):
            profiled()
            put_metric("loss", 10 + step, group)
    once = ["test_elastic_patching.work.success", "test_elastic_patching.work.duration.ms", "loss"]
    assert names(kept) == once * 2
    put_metric("loss", 5, group)
    assert recorded(group)["loss"] == 5


def test_the_map_of_handlers_can_be_inspected(group: str) -> None:
    """_metrics_map shows what configure() has set, and deleting from it takes a handler away."""
    kept = Kept()
    elastic.configure(kept, group)
    assert elastic._metrics_map[group] is kept
    put_metric("loss", 1, group)
    del elastic._metrics_map[group]
    put_metric("loss", 2, group)
    assert [point.value for point in kept.points] == [1]
    elastic.configure(kept)
    assert elastic._default_metrics_handler is kept


def test_a_patched_name_is_used(group: str) -> None:
    """@prof asks the module's _get_metric_name, which programs patch."""
    kept = Kept()
    elastic.configure(kept, group)
    profiled = prof(work, group)
    profiled()
    with mock.patch("tachograph.elastic._get_metric_name", return_value="named"):
        profiled()
    assert names(kept)[::2] == ["test_elastic_patching.work.success", "named.success"]


def test_deleting_an_added_attribute_is_noticed(group: str) -> None:
    """An attribute that a test adds to the module can be deleted again."""
    with mock.patch("tachograph.elastic.extra", 1, create=True):
        put_metric("loss", 1, group)
    assert not hasattr(elastic, "extra")
    put_metric("loss", 2, group)
    assert recorded(group) == {"loss": 2}
