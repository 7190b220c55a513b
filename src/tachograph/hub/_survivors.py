"""Objects that live as long as the hub knows their processes: CPython's garbage collector is kept from them."""

from __future__ import annotations

import gc
import time
from typing import Any

_LONG = 0.005  # seconds of a collection, in which no other thread runs
_OLDEST = 2  # the generation whose collection looks at everything
_MANY = 10_000  # series and processes


class Survivors:
    """Keeps the garbage collector from looking at the same objects again and again, until :meth:`close`.

    A collection of everything holds the interpreter for its whole length: 0.2 s with 50,000 series, and there are many
    while they come. So objects that have survived a long one are frozen (``gc.freeze``), and the next one has only what
    came since. Series that go refer to each other: once enough have gone, all that is frozen is looked at once.
    """

    def __init__(self) -> None:
        self._began, self._gone = 0.0, 0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < _OLDEST:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > _LONG:
            gc.freeze()

    def look(self, gone: int, known: int) -> None:
        """Collect everything where much has gone since that was done last.

        Args:
            gone: series and processes that have gone so far.
            known: those that are there.
        """
        if gone - self._gone > max(_MANY, known // 2):
            self._gone = gone
            gc.unfreeze()
            gc.collect()

    def close(self) -> None:
        """Let the garbage collector look at everything again."""
        gc.callbacks.remove(self._collected)
        gc.unfreeze()
