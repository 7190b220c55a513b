"""The journal in the store: every event once, exactly as it was logged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from hub_requests import START, Clock, logs, only, rank, shown
from tachograph.hub.hub import Hub

VALUES = st.one_of(
    st.text(max_size=10), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=5)
)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=Clock())


def test_events_are_exact(hub: Hub) -> None:
    """NaN, whole floats and 64 bits survive; so do the name, the times and the span."""
    attributes = {"nan": math.nan, "whole": 2.0, "large": 2**63 - 1, "texts": ["a", "b"], "flag": True}
    request = logs(rank(0), ("loss", attributes), first=3)
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.trace_id, record.span_id = (5).to_bytes(16, "big"), (6).to_bytes(8, "big")
    assert hub.receive_logs(request).items == 0
    (event,) = hub.events("run").read("loss")
    assert math.isnan(float(str(event.attributes["nan"])))
    assert repr(event.attributes["whole"]) == "2.0"
    assert event.attributes["large"] == 2**63 - 1
    assert event.attributes["texts"] == ("a", "b")
    assert event.attributes["flag"] is True
    assert (event.time_unix_nano, event.trace_id, event.span_id) == (START + 3, 5, 6)
    assert (event.stream, event.seq) == ("s", 3)
    hub.close()


@settings(max_examples=examples(25), deadline=None)
@given(requests=st.lists(st.lists(st.integers(1, 30), max_size=8), max_size=6), values=st.lists(VALUES, min_size=1))
def test_each_event_once(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[int]], values: list[object]
) -> None:
    """However often and in whatever order requests come, each event of a stream is there once."""
    hub = Hub(tmp_path_factory.mktemp("store"), run="run")
    for seqs in requests:
        hub.receive_logs(logs(rank(0), *[("e", {"v": values[seq % len(values)]}) for seq in seqs], seqs=seqs))
    found = [event.seq for event in hub.events("run").read()]
    sent = {seq for seqs in requests for seq in seqs}
    assert sorted(found) == sorted(sent)
    assert hub.summary()["log_records"] == len(sent)
    hub.close()


def test_streams_are_apart(hub: Hub) -> None:
    """Two starts of a process number their events from 1 both, and both are kept."""
    hub.receive_logs(logs(rank(0), ("e", {}), stream="a"))
    hub.receive_logs(logs(rank(0), ("e", {}), stream="b"))
    assert [(event.stream, event.seq) for event in hub.events("run").read()] == [("a", 1), ("b", 1)]
    hub.close()


def test_records_without_a_number(hub: Hub) -> None:
    """Another library's log records are kept once each, too: they are known by their content."""
    request = logs(rank(0), ("one", {"i": 1}), ("one", {"i": 2}), stream="")
    for _ in range(2):
        hub.receive_logs(request)
    assert [event.attributes["i"] for event in hub.events("run").read()] == [1, 2]
    hub.close()


def test_a_number_that_is_none(hub: Hub) -> None:
    """Records with a stream or a number that cannot be one are kept as records without."""
    for attributes in ({"tachograph.seq": -1}, {"tachograph.seq": "x"}, {"tachograph.stream": 5}):
        request = logs(rank(0), ("e", {"tachograph.stream": "s", "tachograph.seq": 1, **attributes}), stream="")
        assert hub.receive_logs(request).items == 0
    assert len(hub.events("run").read()) == 3
    hub.close()


def test_gaps_are_counted(tmp_path: Path) -> None:
    """A number that never came is a counted loss, once it is sure not to be on its way."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("e", {}), first=1))
    hub.receive_logs(logs(rank(0), ("e", {}), first=5))
    for _ in range(2):
        assert not shown(hub.page()[1], "tachograph_hub_events_missing_total")
        clock.forward(11)
        hub.receive_logs(logs(rank(0), ("e", {}), first=4))
        hub.tick()
    assert only(hub.page()[1], "tachograph_hub_events_missing_total") == 2
    hub.close()


def test_newer_schemas_are_kept_and_counted(hub: Hub) -> None:
    """An event of a schema that the hub does not know is stored, and not looked into."""
    attributes = {"reason": "exit", "tachograph.schema": 99, "tachograph.stream": "s", "tachograph.seq": 1}
    hub.receive_logs(logs(rank(0), ("tachograph.process.end", attributes), stream=""))
    assert len(hub.events("run").read()) == 1
    assert only(hub.page()[1], "tachograph_hub_events_newer_total") == 1
    hub.close()


def test_reading_goes_on(hub: Hub) -> None:
    """A reader goes on after the last event it has read, and may ask for one name."""
    hub.receive_logs(logs(rank(0), *[("odd" if i % 2 else "even", {"i": i}) for i in range(10)]))
    first = hub.events("run").read(limit=4)
    assert [event.attributes["i"] for event in hub.events("run").read(after=first[-1].number)] == [4, 5, 6, 7, 8, 9]
    assert [event.attributes["i"] for event in hub.events("run").read("odd")] == [1, 3, 5, 7, 9]
    hub.close()


def test_each_run_has_its_file(hub: Hub, tmp_path: Path) -> None:
    """Runs are apart: each has its own file, and what names none belongs to the hub's."""
    hub.receive_logs(logs(rank(0), ("e", {})))
    hub.receive_logs(logs(rank(0, run="other"), ("e", {})))
    hub.receive_logs(logs({"service.name": "plain"}, ("e", {}), stream=""))
    assert (len(hub.events("run").read()), len(hub.events("other").read())) == (2, 1)
    assert sorted(path.name for path in tmp_path.joinpath("runs").glob("*.db")) == ["other.db", "run.db"]
    assert hub.summary()["runs"] == ["run", "other"]
    hub.close()
