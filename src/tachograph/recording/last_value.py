"""A gauge's accumulator: the last value that was set."""

from __future__ import annotations

import time
from collections import deque
from operator import attrgetter
from typing import Any, Protocol

from tachograph.recording.losses import Losses
from tachograph.recording.switch import switch
from tachograph.recording.values import Number, Pending, is_finite

_WAITING_LIMIT = 64


class Followed(Protocol):
    """Who records elsewhere what a gauge is to show: that costs it nothing.

    Attributes:
        last: what it recorded last.
        moment: when that was, in seconds on a clock.
        shown: the value of ``last`` that the gauge has taken over, or that is older than one that it was given.
    """

    last: float
    moment: float
    shown: float


class LastValue:
    """A gauge: the last value that was set."""

    __slots__ = ("_followed", "_value", "_waiting", "losses", "start_unix_nano")

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.start_unix_nano = time.time_ns()
        self._value: Number | None = None
        self._waiting: deque[Pending] | None = None
        self._followed: tuple[Followed, ...] = ()

    def record(self, value: Any) -> None:
        """Set the gauge. NaN and infinities are shown as they are, and counted."""
        if value.__class__ is float:
            self._value = value
            if value - value:  # NaN is true; finite numbers give 0.0
                self.losses.nonfinite += 1
            self._waiting = None
            return
        number = self.losses.read(value)
        if isinstance(number, Pending):
            if self._waiting is None:
                self._waiting = deque(maxlen=_WAITING_LIMIT)
            elif len(self._waiting) == _WAITING_LIMIT:
                self.fold()
            self._waiting.append(number)
        elif number is not None:
            self._set(number)
            self._waiting = None

    def _set(self, number: Number) -> None:
        self._value = number
        if not is_finite(number):
            self.losses.nonfinite += 1

    def follow(self, whose: Followed) -> None:
        """Show from now on what somebody else records, too."""
        self._followed = (*self._followed, whose)

    def leave(self, whose: Followed) -> None:
        """Show what somebody has recorded so far, and nothing later."""
        self._take_over()
        self._followed = tuple(other for other in self._followed if other is not whose)

    def _take_over(self) -> None:
        fresh = [other for other in self._followed if other.last is not other.shown]
        for other in sorted(fresh, key=attrgetter("moment")):
            self._value = other.shown = other.last

    def fold(self) -> bool:
        """Take over what was recorded elsewhere, and device values that have arrived; True where none is on its way."""
        waiting = self._waiting
        if not switch.on:
            self._waiting = None
            return True
        if self._followed:
            self._take_over()
        while waiting and waiting[0].ready():
            try:
                arrived = waiting.popleft()
            except IndexError:  # another thread that folds took it
                break
            number = self.losses.arrived(arrived) if waiting is self._waiting else None
            if number is not None:
                self._set(number)
        return not waiting

    def value(self) -> Number | None:
        """Return the last value, or None where there was none yet."""
        return self._value

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._value = None
        self._waiting = None
        self._followed = ()
        self.start_unix_nano = time.time_ns()
