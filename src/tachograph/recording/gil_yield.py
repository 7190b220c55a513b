"""The interpreter's lock (GIL), yielded by background work in a training process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SLICE = 0.0005  # seconds of work between two rests
REST = 0.0005
HURRIED = 0.005  # seconds of work where losses threaten: CPython's own switch interval


class _Thread(threading.local):
    """The thread that works.

    Attributes:
        since: when it has rested last, or has begun.
    """

    since = 0.0


_thread = _Thread()


def begin() -> None:
    """Note that this thread begins to work: it has waited."""
    _thread.since = time.perf_counter()


class GilYield:
    """A rest between slices of background work, so that no thread waits long for the interpreter.

    A thread that only gives the interpreter up may take it again before another one has woken; one that sleeps cannot.
    All that a thread does counts, whichever part of it asks: a short tick never rests, of a long one no part is longer.

    Args:
        work: seconds between two rests.
        hurries: tells whether something is lost soon unless the work is done: rests are rarer, then.
    """

    def __init__(self, work: float = SLICE, *, hurries: Callable[[], bool] = lambda: False) -> None:
        self._work, self._hurries = work, hurries
        if time.perf_counter() - _thread.since > HURRIED:  # it has not said when it began
            begin()

    def __call__(self) -> None:
        """Rest, where there was enough work since the last rest."""
        worked = time.perf_counter() - _thread.since
        if worked > self._work and (worked > HURRIED or not self._hurries()):
            time.sleep(REST)
            begin()
