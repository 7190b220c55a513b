"""When to try again, and when to stop hoping that the server is back in a moment."""

from __future__ import annotations

import logging
import random

from tachograph.exporters.delivery import Retry
from tachograph.exporters.influxdb._losses import CLIENT, NAME, Losses
from tachograph.exporters.influxdb.server import Misconfigured, NoClient

FIRST_BACK_OFF = 0.5
_LONGEST, _CLOSING, _LONGEST_ASKED = 10.0, 0.2, 600.0
_OVER_AFTER = 3  # attempts that have failed in a row

_log = logging.getLogger("tachograph")
_random = random.SystemRandom()  # the program's own random state stays as it is


class Patience:
    """Counts attempts that failed in a row; not for several threads at once.

    Args:
        losses: is told why they failed.
        first_back_off: seconds between the first two attempts, doubled for each further one up to 10 s, with jitter.

    Attributes:
        failures: how many there are.
        not_before: when the next attempt is due, in seconds of the monotonic clock.
    """

    def __init__(self, losses: Losses, first_back_off: float = FIRST_BACK_OFF) -> None:
        self._losses = losses
        self._first, self._longest = first_back_off, _LONGEST
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.failures = 0
        self.not_before = 0.0
        self._asked = False

    @property
    def is_over(self) -> bool:
        """Tell whether the server is away for longer."""
        return self.failures >= _OVER_AFTER

    def waits(self, now: float, *, hurry: bool) -> bool:
        """Tell whether it is too early; somebody who hurries waits only where the server asked for it."""
        return now < self.not_before and (self._asked or not hurry)

    def heard(self, again: Retry | None, now: float) -> None:
        """Note the end of an attempt: why another one is needed, or None."""
        if again is None:
            if self.is_over:
                _log.info("%s: delivers again", NAME)
            self.forget()
            return
        self._losses.say(_kind(again), f"not delivered yet, trying again: {again}")
        self.failed(now, again.after)

    def failed(self, now: float, after: float | None = None) -> None:
        """Note that an attempt failed; ``after`` so many seconds the server wants to hear the next one."""
        delay = min(self._first * 2 ** min(self.failures, 16), self._longest) * _random.uniform(0.5, 1.0)
        self._asked = after is not None
        if after is not None:
            delay = max(delay, min(after, _LONGEST_ASKED))
        self.failures += 1
        self.not_before = now + delay

    def end_is_near(self) -> None:
        """Wait no longer than a moment from now on."""
        self._longest = _CLOSING
        self.not_before = 0.0


def _kind(again: Retry) -> str:
    """Return what is said once of its kind."""
    if isinstance(again, NoClient):
        return CLIENT
    return "configuration" if isinstance(again, Misconfigured) else "retry"
