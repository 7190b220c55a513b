"""The interpreter's lock (GIL), yielded by background work in a training process."""

from __future__ import annotations

import time

SLICE = 0.0005  # seconds of work between two rests
REST = 0.0005


class GilYield:
    """A rest between slices of background work, so that no thread waits long for the interpreter.

    A thread that only gives the interpreter up may take it again before another one has woken; one that sleeps cannot.

    Args:
        work: seconds between two rests.
    """

    def __init__(self, work: float = SLICE) -> None:
        self._work = work
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Rest, where there was enough work since the last rest."""
        if time.perf_counter() - self._since > self._work:
            time.sleep(REST)
            self._since = time.perf_counter()
