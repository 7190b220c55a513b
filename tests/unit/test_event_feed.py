"""The feed: events that are held come into the journal first, those due or all; a holder that fails costs no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from curves import Bench
from receivers import dropped
from tachograph.exporters.batch import Batch
from tachograph.metric import Metric
from tachograph.metric import progress as loop_over
from tachograph.metric.execution import current
from tachograph.pipeline.destinations import Route
from tachograph.pipeline.event_feed import EventFeed
from tachograph.recording import timer
from tachograph.recording.gil_yield import SLICE
from tachograph.recording.journal import Journal, LogEvent
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry


class Taken:
    """A destination that keeps the events' values."""

    def __init__(self) -> None:
        self.values: list[object] = []

    def __call__(self, batch: Batch) -> None:
        """Keep them."""
        self.values += [event.attributes["value"] for event in batch.events if "value" in event.attributes]

    def flush(self, _timeout: float) -> bool:
        """Return True: they are kept."""
        return True

    def close(self, _timeout: float) -> None:
        """Do nothing."""


class Held:
    """A holder whose events come after it was asked so often.

    Args:
        journal: where it logs.
        after: how often it says that something is still to come; None for always.
    """

    def __init__(self, journal: Journal, after: int | None) -> None:
        self._journal, self._after = journal, after
        self.asked: list[bool] = []
        self.given_up: list[Reason] = []

    def hand_in(self, timeout: float, *, everything: bool, pace: Callable[[], None]) -> bool:
        """Log an event, or say that it comes."""
        assert timeout >= 0
        pace()
        self.asked.append(everything)
        if self._after is None or len(self.asked) <= self._after:
            return False
        self._journal.append("held", 1, {"value": len(self.asked)})
        self._journal.holders.remove(self)
        return True

    def give_up(self, reason: Reason) -> None:
        """Take note of it."""
        self.given_up.append(reason)


class Failing(Held):
    """A holder that fails."""

    def hand_in(self, timeout: float, *, everything: bool, pace: Callable[[], None]) -> bool:
        """Fail."""
        super().hand_in(timeout, everything=everything, pace=pace)
        raise ValueError


def deliver(journal: Journal, registry: Registry) -> list[object]:
    """Deliver once, and return the values that came."""
    taken = Taken()
    EventFeed(journal, registry).deliver([Route(taken, events=True)], {})
    return taken.values


def on_the_timer(call: Callable[[], object]) -> None:
    """Call it once as a task of the timer does."""
    done = threading.Event()

    def once() -> None:
        if not done.is_set():
            try:
                call()
            finally:
                done.set()

    task = timer.default.every("once", 0.0, once)
    assert done.wait(30)
    task.close(30)


def test_a_caller_waits_for_what_comes() -> None:
    """A holder of which something is still to come is asked again, and its event leaves with this delivery."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    holder = Held(journal, after=3)
    journal.holders.add(holder)
    assert deliver(journal, registry) == [4]
    assert holder.asked == [True] * 4
    assert not journal.holders


def test_a_caller_does_not_wait_for_ever() -> None:
    """Where nothing comes the delivery ends all the same; the holder is asked at the next one, and gives nothing up."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    holder = Held(journal, after=None)
    journal.holders.add(holder)
    began = time.monotonic()
    assert deliver(journal, registry) == []
    assert time.monotonic() - began < 5
    assert (list(journal.holders), holder.given_up) == ([holder], [])


def test_the_timer_waits_for_nothing() -> None:
    """In a task of the timer each holder is asked once, for what is due."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    holder = Held(journal, after=1)
    journal.holders.add(holder)
    on_the_timer(lambda: deliver(journal, registry))
    assert holder.asked == [False]


def test_at_the_end_what_has_not_come_is_given_up() -> None:
    """The last words are heard first; then each holder is waited for, and one of which nothing comes counts that."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    late, never = Held(journal, after=2), Held(journal, after=None)
    journal.holders.add(late)
    journal.holders.add(never)
    journal.last_words.append(lambda timeout: journal.append("last", 1, {"value": timeout > 0}))
    EventFeed(journal, registry).hear_last_words(0.2)
    assert [event.attributes["value"] for event in journal.drain()] == [True, 3]
    assert (late.given_up, never.given_up) == ([], ["shutdown"])


def test_one_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A holder that raises is counted and said; the events of the others leave."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    journal.holders.add(Failing(journal, after=9))
    journal.holders.add(Held(journal, after=0))
    assert deliver(journal, registry) == [1]
    assert [record.getMessage() for record in caplog.records] == ["lost events that were not logged yet"]
    assert dropped(registry) == {}
    errors = [metric for metric in registry.collect() if metric.name == "tachograph.errors"]
    assert [dict(point.attributes) for point in errors[0].points] == [{"where": "journal"}]


def test_an_execution_is_asked_from_its_first_definition_to_its_end() -> None:
    """A Metric's points, and those of a loop without any Metric, leave with the journal that they go to."""
    for record in (lambda bench: Metric("m", throttle=0.01, execution=bench).record(1), _begin_a_loop):
        bench = Bench()
        assert not bench.journal.holders
        kept = record(bench)
        assert list(bench.journal.holders) == [bench]
        assert deliver(bench.journal, bench.registry) == [1 if kept is None else 0]
        bench.end()
        assert not bench.journal.holders


def _begin_a_loop(bench: Bench) -> object:
    token = current.set(bench)
    going = loop_over(range(3))
    next(going)
    current.reset(token)
    return going


class Names(Taken):
    """A destination that keeps the events' names, and their streams and numbers."""

    def __call__(self, batch: Batch) -> None:
        """Keep them."""
        self.values += [(event.name, event.stream, event.seq) for event in batch.events]


def test_what_is_for_hubs_alone_goes_to_no_other_destination() -> None:
    """It waits until a receiver has said whether it is one, has numbers of its own, and is forgotten where none is."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    feed, hub, other = EventFeed(journal, registry), Names(), Names()
    said: list[int | None] = [None]
    routes = [Route(hub, events=True, reads=lambda: said[0]), Route(other, events=True)]
    feed.open(routes)
    journal.tell("life", {})
    journal.append("event", 1, {})
    feed.deliver(routes, {})
    seen = [("event", journal.stream, 1)]
    assert (hub.values, other.values) == (seen, seen)
    assert feed.undecided()
    said[0] = 2
    feed.deliver(routes, {})
    assert hub.values == [*seen, ("life", f"{journal.stream}.life", 1)]
    assert other.values == seen
    assert not feed.undecided()
    said[0] = 0
    journal.tell("life", {})
    feed.deliver(routes, {})
    assert (len(hub.values), len(other.values), feed.undecided()) == (2, 1, False)


def test_what_waits_for_a_hub_is_little() -> None:
    """A program without a receiver may start and stop delivery for ever."""
    journal = Journal(Registry(enabled=True))
    for _ in range(1000):
        journal.tell("life", {})
    assert len(journal.told) <= 16
    journal.reset()
    assert len(journal.told) == 0


RECORDS = [
    # whether logs were asked for by name, the schema that the receiver reads, and whether it gets records, or counts
    *((False, 2, True), (False, 0, False), (False, None, None)),
    *((True, 2, True), (True, 0, True), (True, None, True)),
]


@pytest.mark.parametrize(("named", "reads", "gets"), RECORDS)
def test_records_of_the_programs_logging_are_private(named: bool, reads: int | None, gets: bool | None) -> None:
    """Hubs of ours get them, others where logs are asked for by name; where a receiver never says they are counted."""
    registry = Registry(enabled=True)
    journal, taken = Journal(registry), Taken()
    feed = EventFeed(journal, registry)
    route = Route(taken, events=True, records=named, reads=lambda: reads)
    feed.open([route])
    journal.record({"value": "text"}, 1, finish=lambda said: said)
    journal.append("event", 1, {"value": 1})
    feed.deliver([route], {})
    assert taken.values == (["text", 1] if gets else [1])
    assert feed.waiting() == (gets is None)
    assert feed.undecided() is (gets is None)
    feed.close(exiting=True)
    assert dropped(registry) == ({"shutdown": 1} if gets is None else {})


def test_a_record_that_cannot_be_made_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and said once; the others leave."""
    registry = Registry(enabled=True)
    journal, taken = Journal(registry), Taken()
    for value in (1, 0, 2):
        journal.record({"value": value}, 1, finish=lambda said: {"value": 1 // int(str(said["value"]))})
    EventFeed(journal, registry).deliver([Route(taken, events=True, records=True)], {})
    assert taken.values == [1, 0]
    journal.drain()
    assert dropped(registry) == {"encoding": 1}
    assert len(caplog.records) == 1


class Costly(Journal):
    """A journal whose events take their time to be made, on a clock of its own."""

    now, each, most = 0.0, 0.0, 0.0
    taken = 0

    def drain(self, limit: int | None = None, **more: Any) -> list[LogEvent]:
        """Take events out, and note how long it took, past the first of them, which are of any cost."""
        before = len(self)
        found = super().drain(limit, **more)
        took = (before - len(self)) * self.each
        self.now, self.taken = self.now + took, self.taken + before - len(self)
        if self.taken > 1500:
            self.most = max(self.most, took)
        return found


@pytest.mark.parametrize("each", [1e-6, 4e-6, 1e-5])
def test_a_slice_is_bounded_by_its_time(monkeypatch: pytest.MonkeyPatch, each: float) -> None:
    """However long an event takes: once that is known, none takes longer than there is between two rests."""
    registry = Registry(enabled=True)
    journal = Costly(registry)
    journal.each = each
    for number in range(8000):
        journal.append("e", 1, {"value": number})
    monkeypatch.setattr("tachograph.pipeline.event_feed.time.thread_time", lambda: journal.now)
    assert deliver(journal, registry) == list(range(8000))
    assert 0 < journal.most <= SLICE
