"""Handlers: who gets which point."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

import tachograph
from front_door import Kept, errors, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, put_metric
from tachograph.elastic import MetricData, MetricHandler, MetricStream
from tachograph.recording import registry
from tachograph.recording.wishes import wishes


def test_a_handler_gets_each_point_exactly_as_passed(group: str) -> None:
    """A handler gets epoch seconds, the group, the name and the very value, in order."""
    kept = Kept()
    elastic.configure(kept, group)
    value = object()
    before = time.time()
    put_metric("anything", value, group)
    put_metric("loss", 0.25, metric_group=group)
    after = time.time()
    assert kept.plain() == [(group, "anything", value), (group, "loss", 0.25)]
    assert all(isinstance(point, MetricData) and before <= point.timestamp <= after for point in kept.points)
    assert recorded(group) == {"loss": 0.25}


def test_a_handler_is_chosen_when_the_value_is_recorded(group: str) -> None:
    """Configuring later counts from the next point on; a stream that is held keeps its handler."""
    first, second, default = Kept(), Kept(), Kept()
    put_metric("loss", 1, group)
    elastic.configure(default)
    put_metric("loss", 2, group)
    elastic.configure(first, group)
    held = elastic.getStream(group)
    put_metric("loss", 3, group)
    elastic.configure(second, group)
    put_metric("loss", 4, group)
    held.add_value("loss", 5)
    assert [[point.value for point in kept.points] for kept in (default, first, second)] == [[2], [3, 5], [4]]
    assert recorded(group) == {"loss": 5}


def test_the_empty_group_is_a_real_one() -> None:
    """The group "" has its own handler and its own scope."""
    kept, default = Kept(), Kept()
    elastic.configure(default)
    elastic.configure(kept, "")
    put_metric("test.empty.group", 1, "")
    assert kept.plain() == [("", "test.empty.group", 1)]
    assert not default.points
    assert recorded("")["test.empty.group"] == 1


def test_a_stream_records_too(group: str) -> None:
    """MetricStream.add_value records as put_metric does."""
    kept = Kept()
    stream = MetricStream(group, kept)
    stream.add_value("sent.bytes", 8)
    assert kept.plain() == [(group, "sent.bytes", 8)]
    assert recorded(group) == {"sent": 8}
    assert (stream.group_name, stream.handler) == (group, kept)


def test_an_explicit_null_handler_silences_its_group(group: str) -> None:
    """A NullMetricHandler keeps its group from handlers and exporters alike, until another handler replaces it."""
    put_metric("loss", 1, group)
    elastic.configure(elastic.NullMetricHandler(), group)
    for attributes in (None, {"phase": "train"}):
        put_metric("loss", 2, group, attributes=attributes)
    elastic.getStream(group).add_value("loss", 3)
    assert elastic.silenced(group)
    assert recorded(group) == {}
    elastic.configure(Kept(), group)
    assert recorded(group) == {"loss": 1}
    put_metric("loss", 4, group)
    assert not elastic.silenced(group)
    assert recorded(group) == {"loss": 4}


def leaving(group: str) -> set[str]:
    """Return the names of what a collection finds in a group."""
    return {metric.name for metric in registry.default.collect() if metric.scope == group}


def test_a_silenced_group_leaves_by_no_way(group: str) -> None:
    """What was recorded before, and what is recorded through an instrument, leaves neither; and both do again later."""
    declared = tachograph.declare("tokens", group=group, kind="counter")
    put_metric("loss", 1, group)
    assert leaving(group) == {"loss"}
    elastic.configure(elastic.NullMetricHandler(), group)
    declared.record(3)
    assert leaving(group) == set()
    elastic.configure(Kept(), group)
    assert leaving(group) == {"loss", "tokens"}


def test_a_default_null_handler_keeps_what_came_before_from_leaving(group: str) -> None:
    """Without a group, it silences the groups of put_metric and @prof, and none of what Tachograph measures itself."""
    put_metric("loss", 1, group)
    registry.default.group(group + ".machine").instrument("load").record(1)
    elastic.configure(elastic.NullMetricHandler())
    assert leaving(group) == set()
    assert leaving(group + ".machine") == {"load"}


def test_a_default_null_handler_silences_all_other_groups(group: str) -> None:
    """Configured without a group, NullMetricHandler silences every group that has no handler of its own."""
    kept = Kept()
    elastic.configure(elastic.NullMetricsHandler())
    elastic.configure(kept, group)
    put_metric("loss", 1, group)
    put_metric("loss", 1, group + "other")
    assert len(kept.points) == 1
    assert recorded(group)
    assert not recorded(group + "other")


def test_a_null_handler_with_a_life_of_its_own_is_a_handler(group: str) -> None:
    """A subclass of NullMetricHandler that overrides emit silences nothing."""
    seen = []

    class Loud(elastic.NullMetricHandler):
        def emit(self, metric_data: MetricData) -> None:
            seen.append(metric_data.value)

    elastic.configure(Loud(), group)
    put_metric("loss", 7, group)
    assert seen == [7]
    assert recorded(group) == {"loss": 7}


def test_a_raising_handler_is_kept_away_from_the_program(group: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a handler raises is counted each time and logged once; the value is recorded all the same."""

    class Broken(MetricHandler):
        def emit(self, metric_data: MetricData) -> None:  # noqa: ARG002 - as the base class has it
            raise RuntimeError("no disk")

    before = errors("handler")
    elastic.configure(Broken(), group)
    with caplog.at_level(logging.WARNING, "tachograph"):
        for value in range(3):
            put_metric("loss", value, group)
        elastic.getStream(group).add_value("loss", 3)
    assert errors("handler") == before + 4
    assert [record.getMessage().count("no disk") for record in caplog.records] == [1]
    assert recorded(group) == {"loss": 3}


def test_keyboard_interrupts_pass_through_a_handler(group: str) -> None:
    """Ctrl-C while a handler runs reaches the program."""

    class Interrupted(MetricHandler):
        def emit(self, metric_data: MetricData) -> None:  # noqa: ARG002 - as the base class has it
            raise KeyboardInterrupt

    elastic.configure(Interrupted(), group)
    with pytest.raises(KeyboardInterrupt):
        put_metric("loss", 1, group)


@pytest.mark.parametrize("handler", [print, None, 3, "console", object()])
def test_configure_says_what_it_takes(handler: Any) -> None:
    """What is neither a handler nor an exporter is refused, and both are named."""
    with pytest.raises(TypeError, match=r"MetricHandler .* or an OpenTelemetry MetricExporter"):
        elastic.configure(handler)


def test_configure_refuses_a_class_and_a_wrong_group() -> None:
    """A class in place of an instance, or a group that is no string, is a clear error that changes nothing."""
    with pytest.raises(TypeError, match=r"pass Kept\(\), not Kept"):
        elastic.configure(Kept)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metric group must be a string"):
        elastic.configure(Kept(), 3)  # type: ignore[arg-type]
    assert not elastic._metrics_map


def test_an_object_with_emit_is_a_handler(group: str) -> None:
    """A handler need not inherit from MetricHandler."""

    class Duck:
        seen: list[MetricData] = []  # noqa: RUF012 - one instance

        def emit(self, metric_data: MetricData) -> None:
            self.seen.append(metric_data)

    elastic.configure(Duck(), group)
    put_metric("loss", 1, group)
    assert Duck.seen[0][1:] == (group, "loss", 1)


class Exporter:
    """Exports, as far as configure() can tell."""

    def export(self, metrics_data: object) -> None:
        """Take what one collection found."""


def test_an_exporter_can_be_given_as_a_handler(group: str) -> None:
    """An OpenTelemetry exporter is kept for the pipeline, which is told; the group is recorded, not silenced."""
    told: list[tuple[str | None, object]] = []

    class Pipeline:
        def export(self, group: str | None) -> None:
            told.append((group, wishes.exporters.get(group)))

    wishes.fulfilled_by(Pipeline())  # type: ignore[arg-type]
    exporter, another = Exporter(), Exporter()
    elastic.configure(elastic.NullMetricHandler())
    elastic.configure(exporter, group)
    elastic.configure(exporter, group)
    assert elastic.exporters == {group: exporter}
    elastic.configure(another)
    put_metric("loss", 1, group)
    assert recorded(group) == {"loss": 1}
    elastic.configure(Kept(), group)
    elastic.configure(Kept(), group)
    assert elastic.exporters == {None: another}
    assert told == [(group, exporter), (None, another), (group, None)]


def test_console_handler_prints_a_line_a_point(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """ConsoleMetricHandler prints [timestamp][group]: name=value, under both spellings of its name."""
    elastic.ConsoleMetricsHandler().emit(MetricData(1574213883.4182858, "my_app", "my_metric", 3))
    elastic.configure(elastic.ConsoleMetricHandler(), group)
    put_metric("loss", 0.5, group)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "[1574213883.4182858][my_app]: my_metric=3"
    assert second.endswith(f"[{group}]: loss=0.5")
