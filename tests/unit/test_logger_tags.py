"""Which tags of MetricsLogger are labels of a metric, and which count up."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.logger import MetricsLogger
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


class Front:
    """A logger with a journal and a registry of its own."""

    def __init__(self, registry: Registry | None = None, **arguments: Any) -> None:
        self.registry = registry or Registry()
        self.journal = Journal(self.registry)
        self.logger = MetricsLogger(journal=self.journal, registry=self.registry, **arguments)
        self.log = self.logger.log

    def labels(self, name: str) -> list[dict[str, Any]]:
        """Return the labels of each series of a gauge."""
        return [
            dict(point.attributes)
            for metric in self.registry.collect()
            if metric.scope == "tachograph.logger" and metric.name == name
            for point in metric.points
        ]

    def last(self) -> dict[str, Any]:
        """Return the attributes of the last point."""
        return dict(self.journal.drain()[-1].attributes)


def test_labels() -> None:
    """Labels are the user's tags that do not count up, role, group and job type; the others are in events only."""
    front = Front(prefix="miner.", uid="7", version="1", runtime_id="r", role="miner", group="g", config={"lr": 1})
    front.log("train", {"step": 1, "split": "a", "epoch": 2, "shard": 3}, {"loss": 0.5, "name": "x"})
    assert front.labels("miner.train.loss") == [{"split": "a", "shard": "3", "role": "miner", "group": "g"}]
    assert front.labels("miner.train.name") == []


@pytest.mark.parametrize("name", ["step", "global_step", "epoch", "batch", "iteration", "window"])
def test_counting_names(name: str) -> None:
    """A tag that counts up by its name is the point's x and stays a tag; it makes no series."""
    front = Front()
    for number in range(5):
        front.log("train", {name: number}, {"loss": 1.0})
    assert front.labels("train.loss") == [{}]
    found = front.last()
    assert found["x"] == 4
    assert "x_name" not in found
    assert found["tachograph.tags"][name] == "4"


@pytest.mark.parametrize(
    ("tags", "x"),
    [
        ({"epoch": 3, "batch": 100}, 100),
        ({"step": 7, "global_step": 70}, 70),
        ({"step": "42"}, 42),
        ({"epoch": 0.5}, 0.5),
        ({"step": "first", "epoch": 2}, 2),
        ({"step": "nan"}, None),
        ({"step": None}, None),
        ({"step": 2**70}, None),
    ],
)
def test_x(tags: dict[str, object], x: float | None) -> None:
    """The x is the finest tag that counts up and is a number."""
    front = Front()
    front.log("train", tags, {"loss": 1.0})
    assert front.last().get("x") == x


def test_too_many_values(caplog: pytest.LogCaptureFixture) -> None:
    """A tag with more than 32 values is no label any more, which is said once, and stays in every event."""
    front = Front()
    for number in range(100):
        front.log("train", {"peer": f"p{number}", "split": "a"}, {"loss": float(number)})
        assert front.last()["tachograph.tags"]["peer"] == f"p{number}"
    labels = front.labels("train.loss")
    assert len(labels) == 33
    assert {"split": "a"} in labels
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "'peer' of 'train'" in said
    assert front.registry.groups["tachograph.logger"].instruments["train.loss"].series({"split": "a"}).value() == 99.0  # type: ignore[union-attr]


def test_two_loggers_count_together() -> None:
    """What two loggers record under one name has no more series than one logger's."""
    registry = Registry()
    fronts = [Front(registry), Front(registry)]
    for number in range(100):
        fronts[number % 2].log("train", {"peer": number}, {"loss": 1.0})
    assert len(fronts[0].labels("train.loss")) == 33


@given(st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.booleans(), st.none()), max_size=80))
def test_series_are_bounded(values: list[object]) -> None:
    """Whatever values a tag has, a gauge has at most 33 series."""
    front = Front()
    for value in values:
        front.log("train", {"tag": value}, {"loss": 1.0})
    assert len(front.labels("train.loss")) <= 33


def test_equal_keys_stay_apart() -> None:
    """1, 1.0 and True are three tags."""
    front = Front()
    for value in (1, 1.0, True):
        front.log("train", {"tag": value}, {"loss": 1.0})
    assert [labels["tag"] for labels in front.labels("train.loss")] == ["1", "1.0", "True"]


def test_names_can_be_set(caplog: pytest.LogCaptureFixture) -> None:
    """The names that count up are the user's to choose, and are said once."""
    caplog.set_level(logging.INFO, "tachograph")
    front = Front(counting_names=["episode"])
    for number in range(3):
        front.log("train", {"episode": number, "step": 5}, {"loss": 1.0})
    assert front.labels("train.loss") == [{"step": "5"}]
    found = front.last()
    assert (found["x"], found["x_name"]) == (2, "episode")
    assert [message for message in caplog.messages if "'episode'" in message] == [
        "tag 'episode' is a counter: using it as the point's x if it is a number, and not as a metric label"
    ]


def test_counting_tags_as_fields() -> None:
    """With counting_tags="field" tags that count up are fields, numbers where they are; an explicit field stays."""
    front = Front(counting_tags="field")
    front.log("train", {"step": 7, "window": "w1", "epoch": 2, "split": "a"}, {"loss": 1.0, "epoch": 0.5})
    found = front.last()
    assert found["tachograph.fields"] == {"loss": 1.0, "epoch": 0.5, "step": 7, "window": "w1"}
    assert "step" not in found["tachograph.tags"]
    assert found["tachograph.tags"]["epoch"] == "2"
    assert found["x"] == 7


def test_a_suffix_is_the_unit() -> None:
    """A field is always a gauge; a suffix that is a unit becomes it, as everywhere."""
    front = Front()
    front.log("train", {}, {"load_ms": 3.0, "ok.success": 1, "x.duration": 2.0})
    found = {(metric.name, metric.unit, metric.kind) for metric in front.registry.collect()}
    assert found == {
        ("train.load", "ms", "gauge"),
        ("train.ok.success", "", "gauge"),
        ("train.x.duration", "", "gauge"),
    }


def test_a_field_whose_name_is_no_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """A field that cannot have a gauge leaves in its event all the same."""
    front = Front()
    front.log("train", {"": "empty"}, {"f" * 2000: 1.0, "loss": 2.0})
    assert len(front.last()["tachograph.fields"]) == 2
    assert front.labels("train.loss") == [{}]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_many_shapes() -> None:
    """Points of ever new names are logged as ever."""
    front = Front()
    for number in range(1500):
        front.log(f"m{number}", {}, {"loss": number})
    assert len(front.journal.drain()) == 1500
