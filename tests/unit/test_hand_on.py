"""The hand-over of the rest at the end: as long as a receiver takes some, and no longer where none does."""

from __future__ import annotations

import threading
import time

from tachograph.exporters.batch import Batch
from tachograph.pipeline.destinations import PATIENCE, Queued, Route, Routes
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
