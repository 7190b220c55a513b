"""One delivery: a request, its attempts, the time of the next one, and its losses."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tachograph.exporters.spool_format import Lost
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

FIRST_BACK_OFF = 0.5
_LONGEST_BACK_OFF, _AWAITED_BACK_OFF = 10.0, 0.1
_NOUNS = {"metrics": "data points", "traces": "spans", "logs": "records", "lines": "points"}  # by the kind of a request
_AWAY_AFTER = 3  # failures in a row: the destination is away for longer

_random = random.SystemRandom()  # the program's own random state stays as it is

_Answer = TypeVar("_Answer")


class Retry(Exception):  # noqa: N818 - not an error yet: it asks for another attempt
    """Raised by a delivery that may succeed later.

    Args:
        after: seconds that the receiver asked to be left alone; None where it did not say.
        why: the reason, for the log.
        uncertain: the answer was lost, so the request may have arrived.
        is_gone: nobody listens there, or the receiver has closed the connection.

    Attributes:
        kind: of trouble, each of which is said once.
    """

    kind = "retry"

    def __init__(
        self, after: float | None = None, why: str = "", *, uncertain: bool = False, is_gone: bool = False
    ) -> None:
        super().__init__(why)
        self.after = after
        self.uncertain = uncertain
        self.is_gone = is_gone


class Ended(Exception):  # noqa: N818 - no error: the end has come
    """Raised where no further attempt may begin: a request given up unanswered may have arrived."""


class Clock:
    """Monotonic seconds, and how to wait for them; a test has one that runs faster."""

    def __call__(self) -> float:
        """Return the seconds."""
        return time.monotonic()

    def wait(self, change: threading.Lock, seconds: float) -> bool:
        """Wait for a change, of :meth:`Changes.next`; False where it has not come after so many seconds."""
        return change.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class Changes:
    """Changes that threads wait for.

    A ``threading.Condition`` would leave its lock held where an exception of a signal handler of the program's comes
    between the lock and the ``with`` block, and not held where it comes in the middle of waiting: so the lock is one of
    its own, and waiting is outside of it.
    """

    def __init__(self) -> None:
        self._awaited: list[threading.Lock] = []

    def next(self) -> threading.Lock:
        """Return the next change, held until it comes; ask with the lock held under which changes are made."""
        change = threading.Lock()
        change.acquire()
        self._awaited.append(change)
        return change

    def forget(self, change: threading.Lock) -> None:
        """Forget a change for which its thread waits no longer."""
        with contextlib.suppress(ValueError):  # it has just come
            self._awaited.remove(change)

    def notify_all(self) -> None:
        """Wake all threads that wait for it, with the lock held."""
        awaited, self._awaited = self._awaited, []
        for change in awaited:
            change.release()


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


def amount(requests: Iterable[Request]) -> str:
    """Return how much requests hold: ``1,200 data points and 3 spans``."""
    found: Counter[str] = Counter()
    for request in requests:
        found[_NOUNS.get(request.kind, "items")] += request.items
    return " and ".join(f"{count:,} {noun if count != 1 else noun[:-1]}" for noun, count in found.items())


class LossReport:
    """Losses of one destination: each is counted, and said once a reason; used by several threads.

    Args:
        destination: its name in logs and counts.
        registry: where it is counted, and where durations are.
    """

    def __init__(self, destination: str, registry: Registry) -> None:
        self.destination, self._registry = destination, registry
        self._say_once = LogOnce()
        self._took: Callable[[float], None] | None = None

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
        self.say(
            reason,
            f"data was lost ({reason}; further warnings are suppressed; "
            f"see tachograph_dropped_total on /metrics): {why}",
        )

    def say(self, kind: str, message: str) -> None:
        """Say something, unless its kind was said before."""
        self._say_once(kind, "%s: %s", self.destination, message)

    def blame(self, kind: str, message: str) -> None:
        """Count an error of our own, or of a library, and say it."""
        self._registry.count_error(self.destination)
        self.say(kind, message)

    def took(self, seconds: float) -> None:
        """Record how long an attempt took."""
        if self._took is None:
            self._took = self._registry.export_duration.bind(destination=self.destination)
        self._took(seconds)


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
        """Note that the first of the rest is done; None for all of it."""
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

    def left(self, rest: Callable[[Any, int], Any] | None) -> list[Request]:
        """Return the requests that are not done, the first one without its items that are.

        Args:
            rest: returns a payload without its first items.
        """
        left = list(self.requests)
        if left and self.done and rest is not None:
            payload = rest(left[0].payload, self.done)
            left[0] = left[0]._replace(payload=payload, size=len(payload), items=left[0].items - self.done)
        return left


class WaitingRequests:
    """Requests that wait in memory, the oldest first, and how much they take; not for several threads at once.

    Args:
        limit_bytes: that may wait; beyond them the oldest has to go.
        limit_items: items that may, or as many as came last; None for any number.
        together: items that leave together, at most; None for one request at a time.
        interval: seconds that a request waits for others to leave with it.

    Attributes:
        items: points, records or spans in them.
        size: their bytes.
    """

    def __init__(self, limit_bytes: int, limit_items: int | None, together: int | None, interval: float) -> None:
        self._limit_bytes, self._limit_items = limit_bytes, limit_items
        self._together, self._interval = together, interval
        self._requests: deque[Request] = deque()
        self.items = self.size = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._requests)

    @property
    def due_at(self) -> float:
        """Time at which the oldest one leaves, even alone."""
        return self._requests[0].since + self._interval

    def is_due(self, now: float, *, hurry: bool) -> bool:
        """Tell whether some are to leave; in a hurry all of them are."""
        if not self._requests:
            return False
        return hurry or self._together is None or self.items >= self._together or now >= self.due_at

    @property
    def load(self) -> float:
        """Share of the memory that is used."""
        items = self.items / self._limit_items if self._limit_items is not None else 0.0
        return max(items, self.size / self._limit_bytes)

    def is_too_full(self, newest: Request, under_way: int) -> bool:
        """Tell whether the oldest has to go; requests that came together stay together.

        Args:
            newest: the request that came last.
            under_way: bytes that are on their way.
        """
        if not self._requests:
            return False
        if self.size + under_way > self._limit_bytes:
            return True
        too_many = self._limit_items is not None and self.items > self._limit_items
        return too_many and self._requests[0].since != newest.since

    def add(self, request: Request) -> None:
        """Append the newest."""
        self._requests.append(request)
        self.items += request.items
        self.size += request.size

    def pop(self) -> Request:
        """Take the oldest."""
        request = self._requests.popleft()
        self.items -= request.items
        self.size -= request.size
        return request

    def take(self) -> list[Request]:
        """Take the oldest, and those that leave together with it."""
        taken = [self.pop()]
        left = 0 if self._together is None else self._together - taken[0].items
        while self._requests and self._requests[0].items <= left:
            taken.append(self.pop())
            left -= taken[-1].items
        return taken

    def take_bytes(self, size: int) -> deque[Request]:
        """Take the oldest, and those after it that have so many bytes with it."""
        taken: deque[Request] = deque()
        while self._requests and (not taken or size >= self._requests[0].size):
            taken.append(self.pop())
            size -= taken[-1].size
        return taken

    def take_all(self) -> list[Request]:
        """Take all of them."""
        taken, self._requests = list(self._requests), deque()
        self.items = self.size = 0
        return taken

    def put_back(self, requests: Iterable[Request]) -> None:
        """Put requests that were taken back to where they were."""
        for request in reversed(list(requests)):
            self._requests.appendleft(request)
            self.items += request.items
            self.size += request.size


class Attempt:
    """One try to deliver some requests, as the destination's ``deliver`` sees it.

    Args:
        seconds: returns how long a call may take; 0 where none may begin.
        losses: where durations are recorded.
        clock: seconds, monotonic.
        settle: takes a number of items, how many of them are lost, why, and whether they were accepted for all that.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        losses: LossReport,
        clock: Clock,
        settle: Callable[[int, int, str, bool], None],
    ) -> None:
        self._seconds, self._losses, self._clock, self._settle = seconds, losses, clock, settle

    def call(self, send: Callable[[Any, float], _Answer], body: Any) -> _Answer:
        """Send something, within the seconds that it may take, measured.

        Raises:
            Ended: no further attempt may begin.
        """
        seconds = self._seconds()
        if seconds <= 0:
            raise Ended
        began = self._clock()
        try:
            return send(body, seconds)
        finally:
            self._losses.took(self._clock() - began)

    def settled(self, items: int, *, lost: int = 0, why: str = "", accepted: bool = False) -> None:
        """Note that the first so many items of the rest are done: none of them is ever sent again.

        Args:
            items: how many.
            lost: how many of them the receiver did not take.
            why: its reason.
            accepted: it accepted the request for all that, so that no flush fails by it.
        """
        self._settle(items, lost, why, accepted)


Deliver = Callable[[Sequence[Request], Attempt], None]


def call_each(requests: Sequence[Request], attempt: Attempt) -> None:
    """Deliver requests whose payloads are calls."""
    for request in requests:
        attempt.call(lambda send, seconds: send(seconds), request.payload)
