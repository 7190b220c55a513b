"""One delivery: a request, why it has to be tried again and when, and what is lost."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tachograph.exporters.spool import Lost
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

FIRST_BACK_OFF = 0.5
_LONGEST_BACK_OFF, _AWAITED_BACK_OFF = 10.0, 0.1
_AWAY_AFTER = 3  # failures in a row: the destination is away for longer

_log = logging.getLogger("tachograph")
_random = random.SystemRandom()  # the program's own random state stays as it is

_Answer = TypeVar("_Answer")


class Retry(Exception):  # noqa: N818 - not an error yet: it asks for another attempt
    """Raised by a delivery that may succeed later.

    Args:
        after: seconds that the receiver asked to be left alone; None where it did not say.
        why: what happened, for the log.
        uncertain: the answer was lost, so the request may have arrived.

    Attributes:
        kind: what is said once of its kind.
    """

    kind = "retry"

    def __init__(self, after: float | None = None, why: str = "", *, uncertain: bool = False) -> None:
        super().__init__(why)
        self.after = after
        self.uncertain = uncertain


class Ended(Exception):  # noqa: N818 - no error: the end has come
    """Raised where no further attempt may begin: a request given up unanswered may have arrived."""


class Clock:
    """Monotonic seconds, and how to wait for them; a test has one that runs faster."""

    def __call__(self) -> float:
        """Return the seconds."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait until something has changed, so many seconds at most."""
        changed.wait(seconds)


class Request(NamedTuple):
    """One delivery.

    Attributes:
        payload: encoded bytes; or a call that takes the seconds that it may last.
        size: bytes that it keeps in memory, or takes on the disk.
        items: points, records or spans in it, which are lost where it is.
        kind: which of the destination's ways it takes: a signal of OTLP.
        since: when it was queued.
        uncertain: an attempt had no answer, so that it may have arrived.
        lost: losses that are counted once it is done.
        own: this process has queued it.
    """

    payload: Any
    size: int
    items: int
    kind: str = ""
    since: float = 0.0
    uncertain: bool = False
    lost: tuple[Lost, ...] = ()
    own: bool = True


class LossReport:
    """Losses of one destination: each is counted, and said once a reason; used by several threads.

    Args:
        destination: its name in logs and in what is counted.
        registry: where it is counted, and where durations are.
    """

    def __init__(self, destination: str, registry: Registry) -> None:
        self.destination, self._registry = destination, registry
        self._said: set[str] = set()

    def lose(self, count: int, reason: Reason, why: str) -> None:
        """Count items that are lost, and say it."""
        self.count(count, reason)
        self.say_lost(reason, why)

    def count(self, count: int, reason: Reason) -> None:
        """Count items that are lost; the program's log handlers, which may take their time, wait."""
        self._registry.count_dropped(reason, self.destination, count)

    def resent(self, count: int) -> None:
        """Count items that were sent again though they may have arrived."""
        self._registry.count_resent(self.destination, count)

    def say_lost(self, reason: Reason, why: str) -> None:
        """Say that something is lost, once a reason."""
        self.say(reason, f"data was lost ({reason}; further losses are counted): {why}")

    def say(self, what: str, message: str) -> None:
        """Say something, unless its like was said before."""
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s: %s", self.destination, message)

    def blame(self, what: str, message: str) -> None:
        """Count an error of our own, or of a library, and say it."""
        self._registry.count_error(self.destination)
        self.say(what, message)

    def took(self, seconds: float) -> None:
        """Record how long an attempt took."""
        self._registry.export_duration.record(seconds, {"destination": self.destination})


class BackOff:
    """Time of the next attempt, after some that have failed in a row; not for several threads at once.

    Args:
        first: seconds between the first two attempts, doubled for each further one up to 10 s, with jitter.
        longest_asked: seconds that a receiver may ask for at most.

    Attributes:
        failures: attempts that have failed in a row.
        not_before: when the next one is due.
        asked: whether the receiver has asked for that.
    """

    def __init__(self, first: float, longest_asked: float) -> None:
        self._first, self._longest_asked = first, longest_asked
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.failures, self.not_before, self.asked = 0, 0.0, False

    @property
    def is_away(self) -> bool:
        """Tell whether the destination is away for longer."""
        return self.failures >= _AWAY_AFTER

    def waits(self, now: float, *, hurry: bool) -> bool:
        """Tell whether it is too early; a caller in a hurry waits only where the receiver asked for it."""
        return now < self.not_before and (self.asked or not hurry)

    def failed(self, now: float, after: float | None, *, awaited: bool) -> None:
        """Note a failure.

        Args:
            now: the time.
            after: seconds that the receiver asked to be left alone.
            awaited: a flush or the end waits: attempts follow soon.
        """
        longest = _AWAITED_BACK_OFF if awaited else _LONGEST_BACK_OFF
        delay = min(self._first * 2 ** min(self.failures, 16), longest) * _random.uniform(0.5, 1.0)
        self.asked = after is not None
        if after is not None:
            delay = min(max(after, 0.0), self._longest_asked)
        self.failures += 1
        self.not_before = now + delay


class Done(NamedTuple):
    """A part of a batch that is done.

    Attributes:
        size: bytes of the requests that are done as a whole.
        items: how many items are.
        own: how many of them this process has queued; a request without items counts as one.
        whole: those requests.
    """

    size: int
    items: int
    own: int
    whole: list[Request]


class RequestBatch:
    """Requests on their way, and how many items of the first are done.

    Args:
        requests: the oldest first.
        kept: items of the first that were done before it was read from the disk.
    """

    def __init__(self, requests: Iterable[Request], kept: int = 0) -> None:
        self.requests = deque(requests)
        self.done, self.kept = 0, kept

    def settle(self, items: int | None) -> Done:
        """Note that the first of what is left is done; None for all of it."""
        own = settled = 0
        whole: list[Request] = []
        while self.requests:
            request = self.requests[0]
            left = request.items - self.done
            some = left if items is None else min(left, items - settled)
            settled += some
            is_whole = some == left
            own += (some if request.items or not is_whole else 1) if request.own else 0
            if not is_whole:
                self.done += some
                break
            whole.append(self.requests.popleft())
            self.done = self.kept = 0
            if settled == items:
                break
        return Done(sum(request.size for request in whole), settled, own, whole)


class Attempt(Protocol):
    """One try to deliver some requests, as the destination's ``deliver`` sees it."""

    def call(self, send: Callable[[Any, float], _Answer], body: Any) -> _Answer:
        """Send something, within the seconds that it may take, measured and untraced.

        Raises:
            Ended: no further attempt may begin.
        """

    def settled(self, items: int, *, lost: int = 0, why: str = "", accepted: bool = False) -> None:
        """Note that the first so many items of what is left are done: none of them is ever sent again.

        Args:
            items: how many.
            lost: how many of them the receiver did not take.
            why: its reason.
            accepted: it accepted the request for all that, so that no flush fails by it.
        """


Deliver = Callable[[Sequence[Request], Attempt], None]
