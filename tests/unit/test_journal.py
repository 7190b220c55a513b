"""The journal: every event once, in order, numbered without gaps, and bounded."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import events, run
from tachograph.recording.journal import Journal
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch


def dropped(registry: Registry, reason: str = "queue_full") -> float:
    """Return how many events the journal dropped."""
    wanted = (("destination", "journal"), ("reason", reason))
    return sum(
        point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and point.attributes == wanted
    )


def test_an_event_keeps_all_that_it_was_logged_with() -> None:
    """Name, time, data and trace come out as they went in, with the time of the call, the stream and the number."""
    journal = Journal(Registry(enabled=True))
    before = time.time_ns()
    journal.append("e", 5, {"a": 1.5, "b": True, "c": "x", "d": 2**80}, trace_id=7, span_id=8, trace_flags=1)
    (event,) = journal.drain()
    assert before <= event.observed_unix_nano <= time.time_ns()
    assert event._replace(observed_unix_nano=0) == (
        ("e", 5, 0, {"a": 1.5, "b": True, "c": "x", "d": 2**80}, 1, 7, 8, 1, journal.stream, 1)
    )
    assert event.record_attributes() == {
        **event.attributes,
        "tachograph.schema": 1,
        "tachograph.stream": journal.stream,
        "tachograph.seq": 1,
    }


@given(st.lists(st.one_of(st.just("log"), st.integers(1, 5)), max_size=60))
def test_what_comes_out_is_what_went_in(steps: list[str | int]) -> None:
    """However logging and draining alternate: in order, each once, the oldest missing and counted."""
    registry = Registry(enabled=True)
    journal = Journal(registry, limit=7)
    logged: list[int] = []
    out: list[int] = []
    for step in steps:
        if step == "log":
            journal.append("e", 0, {"i": len(logged)})
            logged.append(len(logged) + 1)
        else:
            out += [event.seq for event in journal.drain(int(step))]
        assert len(journal) <= 7
    out += [event.seq for event in journal.drain()]
    assert out == sorted(set(out))
    assert len(logged) - len(out) == dropped(registry)
    assert out[-7:] == logged[-7:]


def test_threads_lose_and_double_nothing() -> None:
    """Four threads log while another drains: delivered plus counted as dropped is all, and numbers are unique."""
    registry = Registry(enabled=True)
    journal = Journal(registry, limit=500)
    seen: list[int] = []
    stop = threading.Event()

    def log() -> None:
        for number in range(20_000):
            journal.append("e", number, {})

    def drain() -> None:
        while not stop.is_set():
            seen.extend(event.seq for event in journal.drain())

    drainer = threading.Thread(target=drain)
    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in (drainer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    drainer.join()
    seen.extend(event.seq for event in journal.drain())
    assert len(seen) == len(set(seen))
    assert len(seen) + dropped(registry) == 80_000
    journal.append("e", 0, {})
    assert journal.drain()[0].seq == 80_001


def test_nothing_is_kept_where_recording_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a registry that is off, in a helper process, and where nobody takes events, logging does nothing."""
    off = Journal(Registry(enabled=False))
    off.append("e", 0, {})
    off.keep(True)
    off.append("e", 0, {})
    assert len(off) == 0
    registry = Registry(enabled=True)
    journal = Journal(registry, limit=2)
    monkeypatch.setattr(switch, "on", False)
    journal.append("e", 0, {})
    monkeypatch.undo()
    journal.append("e", 0, {})
    journal.keep(False)
    for _ in range(5):
        journal.append("e", 0, {})
    assert len(journal) == 0
    assert dropped(registry) == 0
    journal.keep(True)
    journal.append("e", 0, {})
    assert len(journal) == 1


def test_a_reset_begins_a_new_stream() -> None:
    """After a reset the journal is empty, its stream another one, and its numbers begin at 1."""
    journal = Journal(Registry(enabled=True))
    journal.append("e", 0, {})
    stream = journal.stream
    journal.reset()
    assert len(journal) == 0
    journal.append("e", 0, {})
    (event,) = journal.drain()
    assert event.seq == 1
    assert event.stream == journal.stream != stream
    assert len(bytes.fromhex(stream)) == 16


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="NOT TESTED: this system has no fork")
def test_a_forked_child_sends_its_own_events_only(tmp_path: Path) -> None:
    """A child that may record has a stream of its own; the parent's events leave once, from the parent."""
    done = run(
        tmp_path,
        """
import os, time
import tachograph
from tachograph.recording import journal
tachograph.start(metrics="none", logs="jsonl", store=".")
log = lambda name: journal.default.append(name, time.time_ns(), {})
log("parent")
if os.fork() == 0:
    log("child")
    tachograph.shutdown()
    os._exit(0)
os.wait()
log("parent")
""",
        TACHOGRAPH_HELPERS="true",
    )
    assert done.returncode == 0, done.stderr
    found = [
        (record["eventName"], record["attributes"]["tachograph.stream"], record["attributes"]["tachograph.seq"])
        for path in (tmp_path / "exports").rglob("*.jsonl")
        for record in events(path)
    ]
    streams = {name: {stream for other, stream, _ in found if other == name} for name in ("parent", "child")}
    assert sorted((name, seq) for name, _, seq in found) == [("child", 1), ("parent", 1), ("parent", 2)]
    assert len(streams["parent"]) == len(streams["child"]) == 1
    assert streams["parent"] != streams["child"]


def test_an_event_that_cannot_be_made_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, said once, and has a number of its own: a reader sees the gap."""
    registry = Registry()
    journal = Journal(registry)
    for number in range(5):
        journal.append("event", 1, (fails, number) if number in (1, 3) else {"n": number})
    found = journal.drain()
    assert [(event.attributes["n"], event.seq) for event in found] == [(0, 1), (2, 3), (4, 5)]
    assert dropped(registry, "encoding") == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_is_given_up_is_counted() -> None:
    """All that waits is forgotten, and no number is given twice."""
    journal = Journal(Registry())
    for number in range(3):
        journal.append("event", 1, {"n": number})
    assert journal.give_up() == 3
    assert len(journal) == 0
    journal.append("event", 1, {"n": 3})
    assert [event.seq for event in journal.drain()] == [4]


def fails(number: int) -> dict[str, int]:
    """Raise."""
    raise RuntimeError(number)


@given(st.lists(st.sampled_from(["log", "take over", "drain"]), max_size=60))
def test_it_calls_where_it_is_half_full(steps: list[str]) -> None:
    """Each event that comes while the journal is half full or more calls once, and none below that."""
    journal = Journal(Registry(enabled=True), limit=8)
    calls: list[int] = []
    journal.on_half_full = lambda: calls.append(len(journal))
    for step in steps:
        before, known = len(journal), len(calls)
        if step == "drain":
            journal.drain(3)
        elif step == "log":
            journal.append("e", 0, {})
            assert len(calls) - known == (before >= 4)
        else:
            journal.take_over([("e", 0, 0, {}, 0, 0, 0)] * 2)
            assert len(calls) - known == (before + 2 > 4)
        assert journal.is_half_full() == (len(journal) >= 4)
        assert len(journal) <= 8
    assert all(length >= 3 for length in calls)  # as it is called before the event is in


def test_a_forked_child_calls_nothing() -> None:
    """The pipeline that its parent's journal wakes is not the child's."""
    journal = Journal(Registry(enabled=True), limit=2)
    calls: list[int] = []
    journal.on_half_full = lambda: calls.append(1)
    journal.reset()
    for _ in range(5):
        journal.append("e", 0, {})
    assert calls == []
    assert len(journal) == 2
