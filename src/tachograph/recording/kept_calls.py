"""The calls of a profiled function that are kept one by one: its slowest ones, and the last that failed.

A call that went well is seen where durations are folded, so that it costs nothing when it is made: its time is that of
the fold, some seconds late at most. One that failed, and one inside a sampled span, has its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from heapq import nlargest
from math import inf
from typing import Any, NamedTuple

MOST = 10  # of a function in a process: slowest, and failed
MOST_MESSAGE = 500  # characters


class KeptCall(NamedTuple):
    """A call.

    Attributes:
        time_unix_nano: when it ended, or when it was seen to have ended.
        error: the type of the exception; empty where there was none.
        message: of the exception, cut.
        trace_id: 0 outside a sampled span.
    """

    time_unix_nano: int
    seconds: float
    error: str = ""
    message: str = ""
    trace_id: int = 0


class KeptCalls:
    """The slowest and the last failed calls of one function.

    Attributes:
        least: seconds that a call must have taken to be among the slowest.
        untold: whether there are others than at the last :meth:`told`.
    """

    __slots__ = ("_failed", "_slowest", "least", "untold")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._slowest: tuple[KeptCall, ...] = ()
        self._failed: deque[KeptCall] | None = None
        self.least = -inf
        self.untold = False

    def put_aside(self) -> tuple[Any, ...]:
        """Return the values for :meth:`put_back`, and begin anew."""
        before = self._slowest, self._failed, self.least, self.untold
        self.reset()
        return before

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Restore the values that were put aside."""
        self._slowest, self._failed, self.least, self.untold = before

    def folded(self, durations: Sequence[float]) -> None:
        """See the calls of a fold, the longest of which is longer than ``least``."""
        now, known = time.time_ns(), {each.seconds for each in self._slowest}
        longest = nlargest(MOST, [seconds for seconds in durations if seconds > self.least])
        self._take([KeptCall(now, seconds) for seconds in longest if seconds not in known])

    def traced(self, call: KeptCall) -> None:
        """See a call inside a sampled span, before it is folded."""
        if call.seconds > self.least:
            self._take([call])

    def failed(self, call: KeptCall) -> None:
        """Keep a call that failed: the last few stay."""
        if self._failed is None:
            self._failed = deque(maxlen=MOST)
        self._failed.append(call)
        self.untold = True
        self.traced(call)

    def _take(self, calls: Sequence[KeptCall]) -> None:
        # Threads that come at the same moment may lose each other's call: one of ten, and of a rare moment.
        kept = sorted([*self._slowest, *calls], key=lambda each: -each.seconds)[:MOST]
        self._slowest = tuple(kept)
        self.least = kept[-1].seconds if len(kept) == MOST else -inf
        self.untold = True

    def told(self) -> tuple[tuple[KeptCall, ...], tuple[KeptCall, ...]]:
        """Return the slowest calls, the slowest first, and those that failed last, the last one first."""
        self.untold = False
        failed = () if self._failed is None else tuple(list(self._failed)[::-1])
        return self._slowest, failed


def message_of(error: BaseException) -> str:
    """Return the message of an exception, cut; a sentence where it cannot be had."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - the border to the program's __str__
        return "(its message cannot be read)"
    return said[:MOST_MESSAGE]
