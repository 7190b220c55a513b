"""The hand-over of the rest at the end: as long as a receiver takes some, and no longer where none does."""

from __future__ import annotations

import threading
import time

import pytest

from tachograph.exporters.batch import Batch
from tachograph.pipeline.destinations import PATIENCE, Queued, Route, Routes
from tachograph.pipeline.event_feed import EVENTS_PER_BATCH
from tachograph.pipeline.pipeline import Pipeline
from tachograph.pipeline.settings import read_settings
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry


class Encoding:
    """Batches that this process encodes, which rests meanwhile from everything else; the receiver is slow besides.

    Args:
        rounds: how many batches there are.
        is_dead: the receiver never takes any.
    """

    def __init__(self, rounds: int, *, is_dead: bool = False) -> None:
        self.rounds, self.taken = rounds, 0
        self._rests, self._is_dead = threading.Event(), is_dead
        self.registry = Registry()
        self.queue = Queued(self._take, "receiver", self.registry)
        self.routes = Routes()
        self.routes.attach(Route(self.queue, metrics=True))

    def _take(self, _: Batch) -> None:
        if self._is_dead:
            time.sleep(30)
        self._rests.wait()
        time.sleep(PATIENCE / 5)
        self.taken += 1

    def export(self, seconds: float) -> bool:
        """Encode one more batch, for longer than it may take; False where there are more."""
        self._rests.clear()
        self.queue(Batch([], None, [], {}, time.time_ns()))
        self.rounds -= 1
        time.sleep(seconds * 1.2)
        self._rests.set()
        return not self.rounds


def test_time_in_which_we_encode_is_no_silence_of_the_receiver() -> None:
    """Where no request gets through while batches are encoded, the receiver has its time after that, each time."""
    encoding = Encoding(4)
    assert encoding.routes.hand_on(encoding.export)
    assert encoding.taken == 4


def test_a_receiver_that_takes_nothing_is_given_up() -> None:
    """A dead one is waited for no longer than without encoding, but for the batch that is encoded in that moment."""
    encoding = Encoding(100, is_dead=True)
    began = time.monotonic()
    assert not encoding.routes.hand_on(encoding.export)
    assert time.monotonic() - began < 2 * PATIENCE
    assert encoding.rounds == 99


def test_events_for_receivers_that_take_nothing_stay_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """One batch waits for a dead receiver; the rest, which would be encoded in vain, is not, and all are counted."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    dead = threading.Event()
    pipeline = Pipeline(
        read_settings({}, metrics="none", traces="none", logs=[lambda _: dead.wait()]), registry, journal=journal
    )
    for _ in range(3 * EVENTS_PER_BATCH):
        journal.append("e", 1, {})
    pipeline.hand_on()
    pipeline.shutdown(0.25, exiting=True)
    dead.set()
    assert f"journal: lost {2 * EVENTS_PER_BATCH} events" in caplog.text
    assert f"{EVENTS_PER_BATCH:,} items" in caplog.text


def test_what_was_held_back_leaves_once_the_receiver_takes_something() -> None:
    """A receiver that was given up as dead, and takes its first event as the end waits once more, gets the others."""
    registry = Registry(enabled=True)
    journal = Journal(registry)
    ending, taken = threading.Event(), list[str]()

    def take(batch: Batch) -> None:
        ending.wait()
        time.sleep(0.1)  # the end has found by now that nothing is taken
        taken.extend(event.name for event in batch.events)

    pipeline = Pipeline(read_settings({}, metrics="none", traces="none", logs=[take]), registry, journal=journal)
    journal.append("one", 1, {})
    assert pipeline.hand_on() < PATIENCE
    journal.append("of an exit handler", 1, {})
    ending.set()
    pipeline.shutdown(1, exiting=True)
    assert taken == ["one", "of an exit handler"]


def test_nothing_is_held_back_from_a_disk() -> None:
    """A receiver that takes nothing gets all events where its queue keeps them on a disk for the next process."""
    journal = Journal(Registry(enabled=True))
    journal.append("e", 1, {})
    batch = Batch([], None, [], {}, 1, journal.drain())
    for spools in (False, True):
        dead, routes = threading.Event(), Routes()
        queued = Queued(lambda _batch, dead=dead: dead.wait(), "dead", Registry(enabled=True))
        routes.attach(Route(queued, events=True, spools=spools))
        queued(batch)
        assert routes.hold_back(routes.delivered()) is not spools
        dead.set()
        queued.close(1)
