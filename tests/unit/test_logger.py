"""MetricsLogger: what a point becomes, what is refused, what is counted."""

from __future__ import annotations

import random
import threading
import time
from argparse import Namespace
from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest

import tachograph
from tachograph.logger import MertricsLoggerWriteOptions, MetricsLogger, MetricsLoggerWriteOptions
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture


class Front:
    """A logger with a journal and a registry of its own."""

    def __init__(self, **arguments: Any) -> None:
        self.registry = Registry()
        self.journal = Journal(self.registry)
        self.logger = MetricsLogger(journal=self.journal, registry=self.registry, **arguments)
        self.log = self.logger.log

    def points(self) -> list[dict[str, Any]]:
        """Return what was logged since the last call, by the last part of its attributes' names."""
        events = self.journal.drain()
        assert {event.name for event in events} <= {"tachograph.point"}
        return [
            {"time": event.time_unix_nano, **{key.rpartition(".")[2]: part for key, part in event.attributes.items()}}
            for event in events
        ]

    def dropped(self) -> dict[str, float]:
        """Return what was counted as dropped, by reason."""
        return {
            str(dict(point.attributes)["reason"]): point.value  # type: ignore[union-attr]
            for metric in self.registry.collect()
            if metric.name == "tachograph.dropped"
            for point in metric.points
        }


def test_a_point() -> None:
    """A point has its prefixed name, the user's tags as strings before the logger's own, its fields and its x."""
    config = Namespace(lr=0.1, layers=3, amp=True, name="big", _hidden="x", hosts=["a"], nothing=None)
    front = Front(
        prefix="miner.", uid=0, version="1.2", runtime_id="r", role="miner", group="g", job_type="j", config=config
    )
    front.log("train", {"step": 42, "split": "a"}, {"loss": 0.75, "n": 3})
    (point,) = front.points()
    assert point["measurement"] == "miner.train"
    assert point["fields"] == {"loss": 0.75, "n": 3}
    assert point["x"] == 42
    assert list(point["tags"].items()) == [
        ("step", "42"),
        ("split", "a"),
        ("uid", "0"),
        ("prefix", "miner."),
        ("version", "1.2"),
        ("runtime_id", "r"),
        ("role", "miner"),
        ("group", "g"),
        ("job_type", "j"),
        ("config_lr", "0.1"),
        ("config_layers", "3"),
        ("config_amp", "True"),
        ("config_name", "big"),
    ]


def test_own_tags_that_are_not_set() -> None:
    """What a logger was not given is no tag; only the runtime id is made, one for each logger's start."""
    front = Front(uid="", config={"a": 1})
    front.log("train", {}, {"loss": 1})
    (point,) = front.points()
    assert len(point["tags"].pop("runtime_id")) == 16
    assert point["tags"] == {"config_a": "1"}
    assert "x" not in point


def test_the_users_tags_win() -> None:
    """A tag of the user's that is called like one of the logger's stays the user's, and is its metric's label."""
    front = Front(role="miner", uid="7")
    front.log("train", {"role": "evaluator", "uid": "me"}, {"loss": 1})
    (point,) = front.points()
    assert (point["tags"]["role"], point["tags"]["uid"]) == ("evaluator", "me")
    (gauge,) = (metric for metric in front.registry.collect() if metric.name == "train.loss")
    assert dict(gauge.points[0].attributes) == {"role": "evaluator", "uid": "me"}


def test_the_span_that_is_current(spans: Spans) -> None:
    """A point that is logged within a sampled span carries its ids."""
    front = Front()
    with spans.provider.get_tracer("test").start_as_current_span("step") as span:
        front.log("train", {}, {"loss": 1})
    (event,) = front.journal.drain()
    assert (event.trace_id, event.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    assert event.trace_flags & 1


def test_any_mapping() -> None:
    """Tags and fields may be any mappings, and stay as they are."""
    front = Front()
    front.log("train", MappingProxyType({"a": "b"}), UserDict({"loss": 1}))
    (point,) = front.points()
    assert point["tags"]["a"] == "b"
    assert point["fields"] == {"loss": 1}


def test_keys_that_are_no_strings(caplog: pytest.LogCaptureFixture) -> None:
    """Names become strings; where two become the same, the first stays, and that is said."""
    front = Front()
    front.log("train", {1: "a", "1": "b"}, {2: 1.0, "2": 2.0, 3: 3.0})
    (point,) = front.points()
    assert point["tags"]["1"] == "a"
    assert point["fields"] == {"2": 1.0, "3": 3.0}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("timestamp", [None, 0])
def test_the_time_is_now_and_rises(timestamp: int | None) -> None:
    """Without a timestamp a point's time is now, and later than that of the logger's point before."""
    front = Front()
    before = time.time_ns()
    for _ in range(1000):
        front.log("train", {}, {"loss": 1}, timestamp)
    times = [point["time"] for point in front.points()]
    assert times == sorted(set(times))
    assert before <= times[0]
    assert times[-1] <= time.time_ns() + 1000


def test_times_are_apart_over_threads() -> None:
    """Points of several threads have a time each."""
    front = Front()

    def work() -> None:
        for step in range(2000):
            front.log("train", {"step": step}, {"loss": 1})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({point["time"] for point in front.points()}) == 8000


def test_a_given_time() -> None:
    """A timestamp is taken as it is, also NumPy's, and does not move the next one."""
    import numpy as np

    front = Front()
    front.log("train", {}, {"loss": 1}, 2**62)
    front.log("train", {}, {"loss": 1}, np.int64(7))
    front.log("train", {}, {"loss": 1})
    first, second, third = (point["time"] for point in front.points())
    assert (first, second) == (2**62, 7)
    assert third < 2**62


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("m", ["a"], {"f": 1}), TypeError, "tags must be a mapping of names to values, not list"),
        (("m", None, {"f": 1}), TypeError, "tags must be a mapping of names to values, not NoneType"),
        (("m", {}, 0.5), TypeError, "fields must be a mapping of names to values, not float"),
        ((7, {}, {"f": 1}), TypeError, "a measurement must be a string, not int"),
        (([], {}, {"f": 1}), TypeError, "a measurement must be a string, not list"),
        (("", {}, {"f": 1}), ValueError, "must not be empty"),
        (("m" * 1025, {}, {"f": 1}), ValueError, "name of a point"),
        (("m", {}, {"f": 1}, 0.5), TypeError, "timestamp must be an int"),
        (("m", {}, {"f": 1}, "now"), TypeError, "timestamp must be an int"),
        (("m", {}, {"f": 1}, -1), ValueError, "timestamp must be nanoseconds"),
        (("m", {}, {"f": 1}, 2**63), ValueError, "timestamp must be nanoseconds"),
        (("m", {}, {"f": 1}, None, False, False, 1.5), ValueError, "sample_rate must be from 0 to 1: 1.5"),
        (("m", {}, {"f": 1}, None, False, False, -0.1), ValueError, "sample_rate must be from 0 to 1"),
        (("m", {}, {"f": 1}, None, False, False, float("nan")), ValueError, "sample_rate must be from 0 to 1"),
        (("m", {}, {"f": 1}, None, False, False, None), TypeError, "sample_rate must be a number"),
    ],
)
def test_misuse(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """What is no point at all is an error at the call, and the next point is logged as ever."""
    front = Front()
    with pytest.raises(error, match=message):
        front.log(*arguments)
    front.log("m", {}, {"f": 1})
    assert len(front.points()) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_queue_size": 0}, ValueError),
        ({"max_workers": 0}, ValueError),
        ({"max_workers": "2"}, TypeError),
        ({"write_options": MertricsLoggerWriteOptions(batch_size=0)}, ValueError),
        ({"counting_tags": "label"}, ValueError),
        ({"config": 7}, TypeError),
        ({"port": "eight"}, ValueError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    """A logger that could not work as asked is an error at once."""
    with pytest.raises(error):
        Front(**arguments)


def test_a_bad_port_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """INFLUXDB_PORT is read when a logger is made, and named where it is wrong."""
    monkeypatch.setenv("INFLUXDB_PORT", "eight")
    with pytest.raises(ValueError, match="INFLUXDB_PORT"):
        Front()


def test_an_empty_point(caplog: pytest.LogCaptureFixture) -> None:
    """A point without fields is not logged; that is counted, and said once."""
    front = Front()
    for _ in range(3):
        front.log("train", {"step": 1}, {})
    assert front.points() == []
    assert front.dropped() == {"empty": 3}
    assert len(caplog.messages) == 1


def test_sample_rate() -> None:
    """A rate is the share of points that are logged, by chance of our own; what is left out sets no gauge either."""
    front = Front()
    random.seed(7)
    state = random.getstate()
    for _ in range(2000):
        front.log("train", {}, {"loss": 1}, sample_rate=0.25)
        front.log("never", {}, {"loss": 1}, sample_rate=0)
        front.log("always", {}, {"loss": 1}, sample_rate=1)
    assert random.getstate() == state
    names = [point["measurement"] for point in front.points()]
    assert names.count("always") == 2000
    assert names.count("never") == 0
    assert 350 < names.count("train") < 650
    assert {metric.name for metric in front.registry.collect()} == {"train.loss", "always.loss"}
    assert front.dropped() == {}


def test_a_machines_readings() -> None:
    """On request a point has the machine's readings; those of the program's own names win."""
    front = Front()
    front.log("train", {}, {"loss": 1, "sys_mem_used": "mine"}, with_system_metrics=True, with_gpu_metrics=True)
    (point,) = front.points()
    fields = point["fields"]
    assert fields["sys_mem_used"] == "mine"
    assert fields["sys_mem_total"] > 0
    assert 0 <= fields["sys_cpu_usage"] <= 100
    found = tachograph.logger.get_system_metrics()
    assert set(found) == {"cpu_usage", "mem_used", "mem_total"}
    assert set(front.logger.get_gpu_metrics()) >= {name for name in fields if name.startswith("gpu_")}


def test_after_close(caplog: pytest.LogCaptureFixture) -> None:
    """What comes after close() is counted and said once; closing twice is as good as once."""
    front = Front()
    with front.logger as logger:
        logger.log("train", {}, {"loss": 1})
    logger.close()
    for _ in range(2):
        logger.log("train", {}, {"loss": 1})
    assert len(front.points()) == 1
    assert front.dropped() == {"closed": 2}
    assert len(caplog.messages) == 1


def test_nothing_while_disabled() -> None:
    """With OTEL_SDK_DISABLED nothing is recorded, and nothing delivers."""
    registry = Registry(enabled=False)
    journal = Journal(registry)
    logger = MetricsLogger(host="127.0.0.1", port=9, journal=journal, registry=registry)
    logger.log("train", {}, {"loss": 1})
    logger.close()
    assert journal.drain() == []
    assert registry.collect() == []


def test_the_queue_is_bounded() -> None:
    """A logger may let the journal hold more; what goes beyond it is counted, the oldest first."""
    registry = Registry()
    journal = Journal(registry, limit=10)
    logger = MetricsLogger(max_queue_size=20, journal=journal, registry=registry)
    for step in range(25):
        logger.log("train", {"step": step}, {"loss": 1})
    assert [event.attributes["x"] for event in journal.drain()] == list(range(5, 25))


def test_write_options_have_both_spellings() -> None:
    """The documents' spelling and the right one are the same."""
    assert MetricsLoggerWriteOptions is MertricsLoggerWriteOptions
    assert MetricsLoggerWriteOptions().batch_size == 5_000
    assert tachograph.MetricsLogger is MetricsLogger
