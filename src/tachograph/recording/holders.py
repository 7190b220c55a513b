"""Holders: the parts of the program whose events are not in the journal yet, such as the points of throttled curves.

The front doors add them to a journal. The feed of the pipeline, which takes events out of that journal, asks them
first; at the end of the process it waits for them. No holder knows the feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tachograph.recording.own_metrics import Reason

LEAVING = 1024  # beyond that, the events of the oldest one are given up: nothing arrives from its device


class Holder(Protocol):
    """A holder of events that are not logged yet."""

    def hand_in(self, timeout: float, *, everything: bool, pace: Callable[[], None]) -> bool:
        """Log events.

        Args:
            timeout: seconds that it may wait for others; events that are there are logged in any case.
            everything: all that was recorded so far, as a caller waits for it; else only events that are due.
            pace: called between slices of the work; may sleep.

        Returns:
            False where something is still to come: it is asked again, as long as there is time.
        """

    def give_up(self, reason: Reason) -> None:
        """Count events that are still to come as dropped."""


class PassingHolder(Holder, Protocol):
    """A holder that comes and goes, such as a task."""

    def reset(self) -> None:
        """Begin again in a forked child."""


def no_rest() -> None:
    """Take no rest between two slices, as a caller waits."""


class Holders:
    """The holders of a journal's events; iteration gives a copy: those that are over, the oldest first, then the rest.

    So gauges show the newer one of two values that arrive late.

    Attributes:
        passing: the tasks under way; empty while there is none, which recorders ask at each value.
    """

    __slots__ = ("_leaving", "_standing", "passing")

    def __init__(self) -> None:
        self.passing: dict[PassingHolder, None] = {}
        self._standing: dict[Holder, None] = {}
        self._leaving: dict[Holder, None] = {}

    def add(self, holder: Holder) -> None:
        """Ask a holder from now on, until it is removed."""
        if holder not in self.passing:
            self._standing[holder] = None

    def leave(self, holder: Holder) -> None:
        """Ask a holder whose end has come as long as something of it is still to come, and look after those before."""
        self._leaving[holder] = None
        self._standing.pop(holder, None)
        self.passing.pop(holder, None)  # type: ignore[call-overload] # whether it was one or not
        for other in list(self._leaving):  # also in a program that never takes events out
            if not other.hand_in(0.0, everything=True, pace=no_rest):
                break
        for other in list(self._leaving)[:-LEAVING]:
            other.give_up("overflow")
            other.hand_in(0.0, everything=True, pace=no_rest)
        if holder in self._leaving:  # behind others that wait
            holder.hand_in(0.0, everything=True, pace=no_rest)

    def remove(self, holder: Holder) -> None:
        """Ask a holder no more: everything of it is logged."""
        self._standing.pop(holder, None)
        self._leaving.pop(holder, None)

    def reset_in_child(self) -> None:
        """Leave those that are over to the parent process, after a fork; the tasks under way begin again."""
        self._leaving.clear()
        for task in list(self.passing):
            task.reset()

    def __iter__(self) -> Iterator[Holder]:
        return iter([*list(self._leaving), *list(self._standing), *list(self.passing)])

    def __len__(self) -> int:
        return len(self._leaving) + len(self._standing) + len(self.passing)
