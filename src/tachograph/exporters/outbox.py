"""The outbox: what waits to be delivered to one destination, and the thread that delivers it.

Nothing here ever makes the caller wait for a network: :meth:`Outbox.put` appends, the thread sends, and
:meth:`Outbox.close` returns in time even where a send never does.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

LIMIT_BYTES = 64 * 2**20
GIVE_UP_AFTER = 60.0
FIRST_BACK_OFF = 0.5
_LONGEST_BACK_OFF, _AWAITED_BACK_OFF = 10.0, 0.1
_ONE_WAIT = 1.0  # flushes no farther apart than this many seconds are one wait

_log = logging.getLogger("tachograph")
_random = random.SystemRandom()  # the program's own random state stays as it is

Send = Callable[[float], None]


class Retry(Exception):  # noqa: N818 - not an error yet: it asks for another attempt
    """Raised by a send that may succeed later.

    Args:
        after: seconds that the receiver asked to be left alone; None where it did not say.
        why: what happened, for the log.
    """

    def __init__(self, after: float | None = None, why: str = "") -> None:
        super().__init__(why)
        self.after = after


class _Parcel(NamedTuple):
    send: Send
    size: int
    items: int
    queued_at: float


class Outbox:
    """A bounded queue to one destination, and its daemon thread.

    Args:
        destination: its name in logs and in what is counted.
        registry: where losses and the exports' durations are recorded.
        limit_bytes: what may wait; beyond it the oldest is dropped, and counted (``queue_full``).
        give_up_after: seconds since it was queued, after which no further attempt is made (``unreachable``).
        first_back_off: seconds between the first two attempts, doubled for each further one up to 10 s, with jitter;
            0.1 s at most while a :meth:`flush` waits for them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        destination: str,
        registry: Registry,
        *,
        limit_bytes: int = LIMIT_BYTES,
        give_up_after: float = GIVE_UP_AFTER,
        first_back_off: float = FIRST_BACK_OFF,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.destination = destination
        self._registry = registry
        self._limit = limit_bytes
        self._give_up_after = give_up_after
        self._first_back_off = first_back_off
        self._clock = clock
        self._said: set[str] = set()
        self._forget()
        self._start()

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[_Parcel] = deque()
        self._current: _Parcel | None = None
        self._bytes = 0
        self._accepted = self._finished = self._lost = 0
        self._attempts = 0
        self._not_before = 0.0
        self._asked_to_wait = self._hurry = False
        self._deadline: float | None = None
        self._waiting_since, self._waited_until, self._awaited_until = 0.0, -math.inf, -math.inf
        self._ended = False
        self._thread: threading.Thread | None = None

    def _start(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name=f"tachograph {self.destination}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # since CPython 3.12 no thread starts once the interpreter has begun to shut down
                return False
            self._thread = thread
        return True

    def put(self, send: Send, size: int, *, items: int = 1) -> None:
        """Queue one delivery; never waits for the destination.

        Args:
            send: called with the seconds that it may take. It raises :class:`Retry` where another attempt may
                succeed, anything else where none will.
            size: bytes that it keeps in memory.
            items: how many points or spans are lost where it is.
        """
        parcel = _Parcel(send, size, items, self._clock())
        if size > self._limit:
            self._report(parcel, "queue_full", f"{size} bytes in one delivery")
            return
        too_old: list[_Parcel] = []
        with self._changed:
            closed = self._deadline is not None
            if not closed:
                self._accepted += 1
                self._bytes += size
                self._queue.append(parcel)
                while self._bytes > self._limit and self._queue:
                    too_old.append(self._queue.popleft())
                    self._finish(too_old[-1], lost=True)
                self._start()
                self._changed.notify_all()
        if closed:
            self._report(parcel, "shutdown", "it came after the end")
            return
        for oldest in too_old:
            self._report(oldest, "queue_full", f"more than {self._limit} bytes waited")

    def flush(self, timeout: float) -> bool:
        """Deliver what is queued now; True where all of it has been sent within ``timeout`` seconds."""
        now = self._clock()
        deadline = now + timeout
        with self._changed:
            if now - self._waited_until > _ONE_WAIT:
                self._waiting_since = now
            wanted, lost = self._accepted, self._lost
            self._hurry = True
            self._awaited_until = max(self._awaited_until, deadline)
            self._changed.notify_all()
            while self._finished < wanted and not self._ended and (left := deadline - self._clock()) > 0:
                self._changed.wait(left)
            self._waited_until = self._clock()
            return self._finished >= wanted and self._lost == lost

    def retry_now(self, longest: float) -> None:
        """Make the next attempt now, even where the receiver has asked for time: the end is near.

        Further ones follow as they do in a :meth:`flush`, for ``longest`` seconds.
        """
        with self._changed:
            self._asked_to_wait, self._hurry = False, True
            self._awaited_until = max(self._awaited_until, self._clock() + longest)
            self._changed.notify_all()

    @property
    def delivered(self) -> int:
        """How many deliveries have succeeded."""
        return self._finished - self._lost

    def close(self, timeout: float) -> None:
        """Deliver what is queued, and end, within ``timeout`` seconds; what is left then is counted (``shutdown``)."""
        with self._changed:
            if self._deadline is not None:
                return
            began = self._clock()
            self._deadline = began + timeout
            self._asked_to_wait, self._hurry = False, True
            started = self._start()
        if started:
            self.flush(timeout)
        else:
            self._work_here()
        with self._changed:
            self._ended = True
            left = [*self._queue] if self._current is None else [self._current, *self._queue]
            self._queue.clear()
            self._changed.notify_all()
        waited = self._clock() - (self._waiting_since if started else began)
        for parcel in left:
            self._report(parcel, "shutdown", f"not delivered at the end, which has waited {waited:.1f} s for it")

    def reset_in_child(self) -> None:
        """Forget what the parent process queued: it delivers that itself. The next :meth:`put` starts a thread."""
        deadline = self._deadline
        self._forget()
        self._deadline = deadline
        self._ended = deadline is not None

    def _work(self) -> None:
        changed = self._changed
        while True:
            with changed:
                while not self._queue and not self._ended:
                    changed.wait()
                if self._ended:
                    return
                parcel = self._current = self._queue.popleft()
            if not self._deliver(parcel):
                return

    def _work_here(self) -> None:
        while self._queue:
            parcel = self._current = self._queue.popleft()
            if not self._deliver(parcel):
                return

    def _deliver(self, parcel: _Parcel) -> bool:
        """Send one parcel, or lose it; False where the end came first."""
        reason: Reason | None = None
        why = ""
        while self._wait_for_turn():
            began = self._clock()
            try:
                parcel.send(self._allowance(began))
            except Retry as again:
                if self._postpone(parcel, again):
                    continue
                reason, why = "unreachable", str(again)
            except Exception as error:  # noqa: BLE001 - the border to exporters and their libraries
                reason, why = "rejected", f"{type(error).__name__}: {error}"
            finally:
                self._registry.export_duration.record(self._clock() - began, {"destination": self.destination})
            with self._changed:
                if self._ended:
                    return False
                self._current = None
            if reason:
                self._report(parcel, reason, why)
            with self._changed:
                if reason != "unreachable":  # it answers: the rest need not wait for what it asked before
                    self._attempts, self._not_before, self._asked_to_wait = 0, 0.0, False
                self._finish(parcel, lost=reason is not None)
                self._changed.notify_all()
            return True
        return False

    def _wait_for_turn(self) -> bool:
        with self._changed:
            while not self._ended and (left := self._not_before - self._clock()) > 0:
                if self._deadline is not None:
                    if self._clock() >= self._deadline:
                        return False
                    left = min(left, self._deadline - self._clock())
                if self._hurry and not self._asked_to_wait:
                    break
                self._changed.wait(left)
            self._hurry = False
            return not self._ended

    def _allowance(self, now: float) -> float:
        return self._give_up_after if self._deadline is None else max(self._deadline - now, 0.001)

    def _postpone(self, parcel: _Parcel, again: Retry) -> bool:
        """Set the time of the next attempt; False where there shall be none for this parcel."""
        self._say_once("retry", f"not delivered yet, trying again: {again}")
        with self._changed:
            is_awaited = self._deadline is not None or self._clock() < self._awaited_until
            longest = _AWAITED_BACK_OFF if is_awaited else _LONGEST_BACK_OFF
            delay = min(self._first_back_off * 2**self._attempts, longest) * _random.uniform(0.5, 1.0)
            self._attempts = min(self._attempts + 1, 16)
            self._asked_to_wait = again.after is not None
            if again.after is not None:
                delay = min(max(again.after, 0.0), self._give_up_after)
            self._not_before = self._clock() + delay
            return self._not_before <= parcel.queued_at + self._give_up_after

    def _finish(self, parcel: _Parcel, *, lost: bool) -> None:
        self._bytes -= parcel.size
        self._finished += 1
        self._lost += lost

    def _report(self, parcel: _Parcel, reason: Reason, why: str) -> None:
        self._registry.count_dropped(reason, self.destination, parcel.items)
        self._say_once(reason, f"data was lost ({reason}; further losses are counted): {why}")

    def _say_once(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s: %s", self.destination, message)
