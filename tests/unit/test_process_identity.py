"""The identity of a process under zero code: its rank may come late, and what waits for it is bounded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from curves import dropped
from tachograph.identity.process_group import MODULE, GroupWatch
from tachograph.identity.resource import SERIES_KEYS, announced
from tachograph.pipeline._process_identity import LONGEST_WAIT, MOST_WAITING, AmbientIdentity, GivenIdentity
from tachograph.pipeline.settings import read_settings
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


class Process:
    """A process under zero code, with a journal, a registry and a clock of its own."""

    def __init__(self, *, waits: bool = False, idles: bool = False) -> None:
        self.registry = Registry(enabled=True)
        self.journal = Journal(self.registry)
        self.now = 100.0
        self.renamed = 0
        self.identity = AmbientIdentity(
            read_settings({}),
            waits=waits,
            idles=idles,
            journal=self.journal,
            registry=self.registry,
            clock=lambda: self.now,
        )
        self.identity.on_renamed = self._note
        self.identity.begin()

    def _note(self) -> None:
        self.renamed += 1

    def settle(self) -> bool:
        """Look for the identity; each look delivers the events that were logged up to a change."""
        return self.identity.settle(self.journal.drain)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have a launcher set LOCAL_RANK alone."""
    for name in ("RANK", "TACHOGRAPH__STARTED", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TACHOGRAPH__OWNER", "-")
    yield monkeypatch
    announced.announce({}, SERIES_KEYS)


def test_a_rank_that_is_left_to_torch_is_waited_for(local: pytest.MonkeyPatch) -> None:
    """It comes as RANK here; no event leaves before, and none as that of another process."""
    process = Process(waits=False)
    assert not process.settle()
    local.setenv("RANK", "3")
    assert process.settle()
    assert process.identity.resource["dl.rank"] == 3
    assert [event.name for event in process.journal.drain()] == ["tachograph.process.start"]
    assert process.renamed == 0


def test_the_wait_is_bounded(local: pytest.MonkeyPatch) -> None:
    """A minute, 10,000 events, or the end: then the process has no rank, and its values leave all the same."""
    del local
    process = Process(waits=False)
    process.now += LONGEST_WAIT - 1
    assert not process.settle()
    process.now += 1
    assert process.settle()
    process = Process(waits=False)
    for _ in range(MOST_WAITING):
        process.journal.append("e", 1, {})
    assert process.settle()
    process = Process(waits=False)
    process.identity.wait_no_longer(for_helpers=False)
    assert process.settle()


def test_a_rank_that_comes_later_begins_a_stream_of_its_own(local: pytest.MonkeyPatch) -> None:
    """What has left is another process's: that one ends, and the numbers begin anew, so that none seems missing."""
    process = Process(waits=False)
    process.now += LONGEST_WAIT
    assert process.settle()
    process.identity.use()
    before = process.journal.drain()
    local.setenv("LOCAL_RANK", "0")  # is no rank: nothing changes
    assert process.settle()
    assert process.renamed == 0
    delivered: list[object] = []
    local.setenv("RANK", "3")
    assert process.identity.settle(lambda: delivered.extend(process.journal.drain()))
    after = process.journal.drain()
    assert process.renamed == 1
    assert [(event.name, event.attributes.get("reason")) for event in delivered] == [  # type: ignore[attr-defined]
        ("tachograph.process.end", "renamed")
    ]
    assert [(event.name, event.seq) for event in after] == [("tachograph.process.start", 1)]
    assert {event.stream for event in before}.isdisjoint({event.stream for event in after})


def test_a_helper_waits_to_its_end_and_counts(local: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A process that may be a mere helper says nothing of itself, however long it lives: its values are counted."""
    local.delenv("LOCAL_RANK")
    process = Process(waits=True)
    process.now += 10 * LONGEST_WAIT
    process.registry.group("g").instrument("step.success").record(1)
    process.registry.group("g").instrument("step.success").record(1)
    process.identity.wait_no_longer(for_helpers=False)
    assert not process.settle()
    process.identity.take_leave(lambda: None, dying=False)
    assert process.journal.drain() == []
    assert dropped(process.registry) == {"helper": 2}
    assert "2 values were recorded in a helper process" in caplog.text


def leave(process: Process, *, dying: bool = False) -> None:
    """Let a process take leave while an exception is on its way."""
    try:
        raise ValueError("boom, token=12ab")
    finally:
        process.identity.take_leave(lambda: None, dying=dying)


@pytest.mark.parametrize("first", ["value", "event", "rank"])
def test_an_idle_worker_is_none_before_it_records(local: pytest.MonkeyPatch, first: str) -> None:
    """A worker that a pool has ready is no process of the run before a value, an event or its rank."""
    local.delenv("LOCAL_RANK")
    process = Process(idles=True)
    process.now += 10 * LONGEST_WAIT
    assert not process.settle()
    if first == "value":
        process.registry.group("g").instrument("step.success").record(1)
    elif first == "event":
        process.journal.append("of.mine", 1, {})
    else:
        local.setenv("RANK", "3")
    assert process.settle()
    assert process.identity.resource.get("dl.rank") == (3 if first == "rank" else None)
    assert process.settle()


@pytest.mark.parametrize("dying", [False, True])
def test_the_exception_is_told_to_hubs_alone(local: pytest.MonkeyPatch, dying: bool) -> None:
    """The event that all destinations get has its type, the one for hubs its message; at SIGTERM there is none."""
    local.delenv("LOCAL_RANK")
    process = Process(waits=False)
    assert process.settle()
    with pytest.raises(ValueError, match="boom"):
        leave(process, dying=dying)
    _, end = process.journal.drain()
    told = [(event.name, dict(event.attributes)) for event in process.journal.told]
    if dying:
        assert (dict(end.attributes), told) == ({"reason": "sigterm"}, [])
        return
    assert dict(end.attributes) == {"reason": "exception", "error.type": "ValueError"}
    message = {"exception.type": "ValueError", "exception.message": "boom, token=***"}
    assert told == [("tachograph.process.failure", message)]


def test_a_start_tells_hubs_its_begin_and_its_end(local: pytest.MonkeyPatch) -> None:
    """As zero code does, in a stream of their own; a pipeline beside another one tells nothing."""
    local.delenv("LOCAL_RANK")
    for announces in (True, False):
        journal = Journal(Registry(enabled=True))
        identity = GivenIdentity(read_settings({}), announces=announces, journal=journal)
        identity.begin()
        identity.take_leave(lambda: None, dying=False)
        names = [event.name for event in journal.told]
        assert names == ["tachograph.process.start", "tachograph.process.end"] * announces
        assert journal.drain() == []


def test_without_torch_there_is_no_group() -> None:
    """Nothing is imported for it, and a watch that has begun waits."""
    before = MODULE in sys.modules  # by another test of this process
    watch = GroupWatch()
    watch.begin()
    watch.begin()
    assert watch.joined() is None
    watch.reset_in_child()
    assert watch.joined() is None
    assert (MODULE in sys.modules) is before
