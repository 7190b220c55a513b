"""Who is under way: the process, its tasks, and those that have ended while something of theirs is still to come.

What they hold back is passed on whenever events are taken out of the journal, and at the end of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tachograph.recording import journal as journals
from tachograph.recording import timer
from tachograph.recording.forking import at_fork
from tachograph.recording.journal import Journal
from tachograph.recording.own_metrics import Reason
from tachograph.recording.pace import Pace

LEAVING = 1024  # beyond that, the values of the oldest one are given up: nothing arrives from its device
_POLL = 0.001


class UnderWay(Protocol):
    """Who holds something back: an execution, see there."""

    def pass_on(self, *, everything: bool, pace: Callable[[], None] | None = None) -> bool:
        """Log what is due, or everything; False where something is still to come."""

    def define_again(self) -> None:
        """Log its definitions once more, where that is due."""

    def give_up(self, reason: Reason) -> None:
        """Count what has not arrived."""

    def reset(self) -> None:
        """Begin again in a forked child."""


always: list[UnderWay] = []  # the process
tasks: dict[int, UnderWay] = {}  # by number
leaving: dict[UnderWay, None] = {}  # the oldest first: values on their way from a device, or somebody folds right now


def everybody() -> list[UnderWay]:
    """Return them all; what is older comes first, so that gauges show what is newer."""
    return [*list(leaving), *always, *list(tasks.values())]


def listen(journal: Journal) -> None:
    """Hear from now on when events are taken out of the journal, and when the process ends."""
    if journal is journals.default and _feed not in journal.feeders:
        journal.feeders.append(_feed)
        journal.last_words.append(_finish)


def see_off() -> None:
    """Look whether those that are leaving can go: also in a program that never takes events out."""
    for execution in list(leaving):
        if not execution.pass_on(everything=True):
            break
    for execution in list(leaving)[:-LEAVING]:
        execution.give_up("overflow")
        execution.pass_on(everything=True)


def _feed(timeout: float) -> None:
    if not timer.default.is_at_work():  # somebody waits for it, so for all that there is, not only for what is due
        _pass_on_all(timeout)
        return
    pace = Pace()
    for execution in everybody():
        execution.pass_on(everything=False, pace=pace)
        execution.define_again()


def _pass_on_all(timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    found = everybody()
    while found:
        found = [execution for execution in found if not execution.pass_on(everything=True)]
        if not found or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    return not found


def _finish(timeout: float) -> None:
    if not _pass_on_all(timeout):
        for execution in everybody():
            execution.give_up("shutdown")


def _after_fork_in_child() -> None:
    for execution in everybody():
        execution.reset()
    leaving.clear()


at_fork("tasks", in_child=_after_fork_in_child)
