"""The delivery queue: requests for one destination, which wait in memory and on the disk until they are delivered.

Nothing here ever makes the caller wait for a network: :meth:`DeliveryQueue.put` appends, a worker delivers, and
:meth:`DeliveryQueue.close` returns in time even where a delivery never does. Every destination configures this one
queue: OTLP, InfluxDB, a hub that forwards, the exporters of others, and the files.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tachograph.exporters._kept import KeptRequests
from tachograph.exporters._workers import AWAITED_HANGS, HANGS, Workers
from tachograph.exporters.delivery import (
    FIRST_BACK_OFF,
    Attempt,
    BackOff,
    Clock,
    Deliver,
    Done,
    Ended,
    LossReport,
    Request,
    RequestBatch,
    Retry,
    WaitingRequests,
    amount,
    call_each,
)
from tachograph.exporters.spool import Spool
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

LIMIT_BYTES = 64 * 2**20
GIVE_UP_AFTER = 60.0
LOOK_AGAIN = 30.0
_LONGEST_ASKED = 600.0
DISK_AGAIN = 10.0  # seconds after a disk that took no more
_MANY, _FULL = 5_000, 0.9  # items, and share of the memory, from which a destination that fails has them on the disk
_MOVED_AT_ONCE = 2**20  # bytes
_ONE_WAIT = 1.0  # flushes no farther apart than this many seconds are one wait
_ENDED = "the end has come"

_log = logging.getLogger("tachograph")


class DeliveryQueue:
    """A bounded queue to one destination; the oldest leaves first, and is given up first.

    Args:
        destination: its name in logs and counts.
        registry: where losses and the exports' durations are recorded.
        deliver: delivers some requests. It returns where all have arrived, raises :class:`Retry` where what is not
            settled may succeed later, anything else where that never will (``rejected``). By default the requests are
            calls.
        losses: counts them; by default one that is made here.
        spool: makes the spool for requests that wait for long; it is given a callable for its losses. None for none.
        limit_bytes: that may wait in memory; beyond them the oldest is dropped, and counted (``queue_full``).
        limit_items: items that may wait there, or as many as came last.
        give_up_after: seconds since it was queued, after which no further attempt is made (``unreachable``); None for
            never.
        batch_items: items that leave together, at most; None for one request at a time.
        flush_interval: seconds that a request waits for others to leave with it.
        workers: deliveries at a time, at most; with one, everything leaves in order. Or the threads that it shares with
            other queues, for one delivery at a time.
        first_back_off: see :class:`BackOff`.
        longest_attempt: seconds.
        rest: returns a payload without its first items; needed where ``deliver`` settles parts of a request.
        at_least_once: a request that is sent again may arrive twice, and is counted (``tachograph.resent``).
        reads_late: the receiver still reads a request that was sent before the end of this process, and not answered:
            such a request does not count as lost.
        prepare: called by each worker of its own first.
        pace: called between slices of work.
        look_again: seconds between looks for files that processes which have ended left on the disk.
        disk_again: seconds after which a disk that took no more is tried again.
        clock: seconds, monotonic.

    Attributes:
        undelivered: items that :meth:`close` has given up.
        unanswered: items that were sent and not answered by then; the receiver may have them.
    """

    def __init__(
        self,
        destination: str,
        registry: Registry,
        deliver: Deliver = call_each,
        *,
        losses: LossReport | None = None,
        spool: Callable[[Callable[[int, Reason, bool], None]], Spool] | None = None,
        limit_bytes: int = LIMIT_BYTES,
        limit_items: int | None = None,
        give_up_after: float | None = GIVE_UP_AFTER,
        batch_items: int | None = None,
        flush_interval: float = 0.0,
        workers: int | Workers = 1,
        first_back_off: float = FIRST_BACK_OFF,
        longest_attempt: float | None = None,
        rest: Callable[[Any, int], Any] | None = None,
        at_least_once: bool = False,
        reads_late: bool = False,
        prepare: Callable[[], None] = lambda: None,
        pace: Callable[[], None] = lambda: None,
        look_again: float = LOOK_AGAIN,
        disk_again: float = DISK_AGAIN,
        clock: Clock | None = None,
    ) -> None:
        self.destination = destination
        self.losses = losses or LossReport(destination, registry)
        self._deliver, self._rest, self._prepare = deliver, rest, prepare
        self._limit_bytes, self._batch_items = limit_bytes, batch_items
        self._no_requests = partial(WaitingRequests, limit_bytes, limit_items, batch_items, flush_interval)
        self._give_up_after = math.inf if spool is not None or give_up_after is None else give_up_after
        self._longest_attempt = longest_attempt or give_up_after or GIVE_UP_AFTER
        self._at_least_once, self._look_again, self._clock = at_least_once, look_again, clock or Clock()
        self._reads_late = reads_late
        self._disk_again = disk_again
        self._kept: KeptRequests | None = None
        if spool is not None:
            on_disk = partial(KeptRequests, rest=rest, at_least_once=at_least_once, pace=pace, clock=self._clock)
            self._kept = on_disk(spool(self._lose_kept), self.losses)
        self._back_off = BackOff(first_back_off, min(self._give_up_after, _LONGEST_ASKED))
        self._deadline: float | None = None
        self._shares = isinstance(workers, Workers)
        if not isinstance(workers, Workers):
            workers = Workers(destination, workers, prepare=self._prepared, clock=self._clock)
        self._workers = workers
        self._forget()
        self._workers.join(self)
        self._workers.start(self)

    def _forget(self) -> None:
        self._lock, self._changed = self._workers.lock, self._workers.changed
        self._waiting = self._no_requests()
        self._under_way: dict[int, RequestBatch] = {}  # of what was in memory
        self._bytes_under_way = self._number = 0
        self._reading = self._writing = False  # of the spool
        self._disk_not_before = 0.0
        self._look_at = 0.0 if self._kept is not None else math.inf
        self._accepted = self._finished = self._lost = self._arrived = 0
        self._refused = self._refused_before = 0  # in attempts; before the last flush, or before what is queued since
        self._hurry, self._ended = False, self._deadline is not None
        self._is_gone = False
        self.undelivered = 0
        self.unanswered = 0
        self._waiting_since, self._waited_until, self._awaited_until = 0.0, -math.inf, -math.inf
        self._back_off.forget()

    def _prepared(self) -> None:
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - a broken installation shall cost the program nothing
            self.losses.blame(getattr(error, "kind", "prepare"), str(error))

    def put(self, payload: Any, size: int, *, items: int = 1, kind: str = "", since: float | None = None) -> None:
        """Queue one delivery; never waits for the destination.

        Args:
            payload: encoded bytes for ``deliver``; else a call with the seconds that it may take. It raises
                :class:`Retry` where another attempt may succeed, anything else where none will.
            size: bytes that it keeps in memory.
            items: points, records or spans that are lost where it is.
            kind: which of the destination's ways it takes.
            since: when it came, the same for those that came together; by default now.
        """
        request = Request(payload, size, items, kind, self._clock() if since is None else since)
        if size > self._limit_bytes:
            self.losses.lose(items, "queue_full", f"{size} bytes in one delivery")
            return
        too_old: list[Request] = []
        with self._lock:
            closed = self._deadline is not None
            if not closed:
                if self.is_through():
                    self._refused_before = self._refused
                self._accepted += max(items, 1)
                self._waiting.add(request)
                self._make_room(request, too_old)
                self._workers.start(self)
                self._changed.notify_all()
        if closed:
            self.losses.lose(items, "shutdown", "it was recorded after shutdown")
        elif too_old:
            lost = sum(oldest.items for oldest in too_old)
            self.losses.lose(lost, "queue_full", "the queue in memory is full")
        elif self._shares and (seconds := self._workers.hangs_since(self)) > HANGS:
            self.losses.say("hangs", f"no data accepted for {seconds:.0f} s, queueing in memory")

    def _make_room(self, request: Request, too_old: list[Request]) -> None:
        while self._waiting.is_too_full(request, self._bytes_under_way):
            too_old.append(self._waiting.pop())
            self._finish(too_old[-1], lost=True)

    def flush(self, timeout: float) -> bool:
        """Deliver everything queued now; True where all of it was taken within ``timeout`` seconds.

        A request is taken, too, where the receiver accepts it without a part; that part is counted.
        """
        now = self._clock()
        deadline = now + timeout
        with self._lock:
            if now - self._waited_until > _ONE_WAIT:
                self._waiting_since = now
            wanted, lost, refused = self._accepted, self._lost, self._refused_before
            self._hurry = True
            self._awaited_until = max(self._awaited_until, deadline)
            self._changed.notify_all()
        while not self._waited(wanted, deadline):
            self._workers.work_here(self, deadline)
        with self._lock:
            self._waited_until = self._clock()
            is_whole, self._refused_before = self._refused == refused and self._lost == lost, self._refused
            return self._finished >= wanted and is_whole

    def _waited(self, wanted: int, deadline: float) -> bool:
        """Wait until so much is done, the end or ``deadline``; False where no thread is there to wait for."""
        while True:
            with self._lock:
                if self._finished >= wanted or self._ended or (left := deadline - self._clock()) <= 0:
                    return True
                if self._shares:
                    if not self._workers.start(self, AWAITED_HANGS):
                        return False
                    left = min(left, AWAITED_HANGS)
                change = self._changed.next()
            self._await(change, left)

    def _await(self, change: threading.Lock, seconds: float) -> None:
        if not self._clock.wait(change, seconds):
            self._changed.forget(change)

    def retry_now(self, longest: float) -> None:
        """Make the next attempt now, even where the receiver has asked for time: the end is near.

        Further ones follow as they do in a :meth:`flush`, for ``longest`` seconds.
        """
        with self._lock:
            self._back_off.asked, self._hurry = False, True
            self._awaited_until = max(self._awaited_until, self._clock() + longest)
            self._changed.notify_all()

    @property
    def delivered(self) -> int:
        """Items that have arrived; it grows while the destination takes anything."""
        return self._arrived

    @property
    def lost(self) -> int:
        """How often something was given up, or was not taken; it grows with each such loss."""
        return self._lost

    @property
    def waiting(self) -> int:
        """Items that wait in memory."""
        return self._waiting.items

    @property
    def is_answering(self) -> bool:
        """Whether the receiver has answered the last attempt, or may still answer it: it has not closed the connection.

        True as well before the first attempt.
        """
        return not self._is_gone

    def is_loading(self) -> bool:
        """Tell whether no worker is prepared yet."""
        return not self._workers.is_prepared and self._workers.are_alive

    def close(self, timeout: float) -> None:
        """Deliver everything queued, and end, within ``timeout`` seconds.

        Items that are left then wait on the disk, where there is a spool; else they are counted (``shutdown``).
        """
        with self._lock:
            if self._deadline is not None:
                return
            began = self._clock()
            self._deadline = began + timeout
            self._back_off.asked, self._back_off.not_before, self._hurry = False, 0.0, True
            started = self._workers.start(self)
            self._changed.notify_all()
        if started:
            self.flush(timeout)
        else:
            self._workers.work_here(self, self._deadline)
        while True:
            with self._lock:
                if not self._reading or (time_left := self._deadline - self._clock()) <= 0:
                    break
                change = self._changed.next()
            self._await(change, time_left)
        with self._lock:
            self._ended = True
            left: deque[Request] = deque()
            for batch in self._under_way.values():
                again = batch.left(self._rest)
                left += [request._replace(uncertain=not number) for number, request in enumerate(again)]
            left += self._waiting.take_all()
            self._under_way = {}
            self._workers.leave(self)
        if self._kept is not None:
            self._kept.leave(left)
        if left:
            self._give_up(left, self._clock() - (self._waiting_since if started else began))

    def _give_up(self, left: Iterable[Request], waited: float) -> None:
        """Count the requests that are left at the end as lost, unless the receiver still reads them."""
        unanswered: list[Request] = []
        undelivered: list[Request] = []
        for request in left:
            may_arrive = request.uncertain and self._reads_late and not self._is_gone
            (unanswered if may_arrive else undelivered).append(request)
        self.undelivered = sum(request.items for request in undelivered)
        self.unanswered = sum(request.items for request in unanswered)
        if unanswered:
            self.losses.say("unanswered", f"no response within {waited:.1f} s at shutdown for {amount(unanswered)}")
        if undelivered:
            why = f"not delivered within {waited:.1f} s at shutdown: {amount(undelivered)}"
            self.losses.lose(self.undelivered, "shutdown", why)

    def reset_in_child(self) -> None:
        """Forget everything, after a fork: the parent process delivers it, and keeps its files."""
        if self._kept is not None:
            self._kept.reset_in_child()
        if not self._shares:
            self._workers.reset_in_child()
        self._forget()
        if not self._ended:
            self._workers.join(self)

    def is_through(self) -> bool:
        """Tell whether all that was queued is delivered, or given up."""
        return self._finished >= self._accepted

    def idle_until(self, now: float) -> float:
        """Return when there may be something to do without a change, after ``now``."""
        times = [now + self._look_again, self._back_off.not_before, self._disk_not_before, self._look_at]
        if self._waiting:
            times.append(self._waiting.due_at)
        return min(moment for moment in times if moment > now)

    def next_job(self, now: float) -> Callable[[], None] | None:
        """Return something to do; None where there is nothing yet, or the end has come."""
        if self._ended:
            return None
        if self._kept is not None and not self._writing:
            if now >= self._look_at and not self._reading:
                self._look_at, self._writing = now + self._look_again, True
                return partial(self._write, self._kept.adopt)
            if self._presses(now):
                self._writing = True
                return partial(self._write, partial(self._move, self._kept))
        is_late = self._deadline is not None and now >= self._deadline
        busy = self._back_off.failures > 0 and (self._under_way or self._reading)  # one attempt at a time, then
        if is_late or busy or self._back_off.waits(now, hurry=self._hurry):
            return None
        return self._to_send(now)

    def _to_send(self, now: float) -> Callable[[], None] | None:
        if self._kept is not None and (self._writing or self._kept):  # what is on the disk comes first
            if self._reading or self._writing:
                return None
            self._reading = True
            return partial(self._send_kept, self._kept)
        if not self._waiting.is_due(now, hurry=self._hurry or self._deadline is not None):
            return None
        self._number += 1
        batch = self._under_way[self._number] = RequestBatch(self._waiting.take())
        self._bytes_under_way += sum([request.size for request in batch.requests])
        return partial(self._send, self._number, batch)

    def _presses(self, now: float) -> bool:
        """Tell whether requests have to go from memory to the disk."""
        if not self._waiting or now < self._disk_not_before:
            return False
        if self._back_off.is_away:
            return self._waiting.is_due(now, hurry=False)
        fails = self._back_off.failures > 0
        load = self._waiting.load
        return load > _FULL or (fails and (self._waiting.items > _MANY or load > _FULL / 2))

    def _seconds(self) -> float:
        """Return how long an attempt may take; 0 where none may begin."""
        left = math.inf if self._deadline is None else self._deadline - self._clock()
        return 0.0 if self._ended else min(self._longest_attempt, left)

    def _send(self, number: int, batch: RequestBatch) -> None:
        """Deliver requests from memory."""

        def settle(items: int | None, lost: int | None, why: str, accepted: bool) -> None:
            with self._lock:
                if number not in self._under_way:  # the end has come: it is counted, or on the disk
                    return
                if lost == 0 and not batch.requests:  # each was settled by itself
                    return
                done = batch.settle(items)
                self._bytes_under_way -= done.size
                self._count(done, lost=lost)
            self._told(done, lost, why, accepted=accepted)

        again = self._try(list(batch.requests), settle)
        given_up: list[Request] = []
        with self._lock:
            if self._under_way.pop(number, None) is None:
                return
            self._heard(again)
            if not batch.requests:  # mostly all of it is settled
                self._changed.notify_all()
                return
            self._bytes_under_way -= sum(request.size for request in batch.requests)
            left = batch.left(self._rest)
            if again is not None and left:
                left[0] = left[0]._replace(uncertain=again.uncertain)
                is_late = self._back_off.not_before > left[0].since + self._give_up_after
                if is_late and self._deadline is None:
                    given_up, left = left, []
            for request in given_up:
                self._finish(request, lost=True)
            self._waiting.put_back(left)
            self._changed.notify_all()
        if given_up:
            self.losses.lose(sum(request.items for request in given_up), "unreachable", str(again))

    def _send_kept(self, kept: KeptRequests) -> None:
        """Deliver requests from the disk."""
        try:
            batch = kept.take(self._batch_items)

            def settle(items: int | None, lost: int | None, why: str, accepted: bool) -> None:
                done = kept.settle(batch, items, partial(self._count, lost=lost))
                if done is not None:
                    self._told(done, lost, why, accepted=accepted)

            again = self._try(list(batch.requests), settle) if batch.requests else None
            if again is not None and not again.uncertain:
                kept.surely_not_arrived()
            kept.end()
            with self._lock:
                self._heard(again)
        except OSError as error:
            kept.give_back(error)
            with self._lock:
                self._hurry = False
                self._back_off.failed(self._clock(), None, awaited=False)
        finally:
            with self._lock:
                self._reading = False
                self._changed.notify_all()

    def _try(
        self, requests: list[Request], settle: Callable[[int | None, int | None, str, bool], None]
    ) -> Retry | None:
        """Deliver requests, and return why those that are not settled have to be sent again."""
        if not requests[0].payload:  # nothing of it can be sent
            settle(None, 0, "", False)
            return None
        if self._at_least_once and (again := sum(request.items for request in requests if request.uncertain)):
            self.losses.resent(again)
        try:
            self._deliver(requests, Attempt(self._seconds, self.losses, self._clock, settle))
        except Retry as retry:
            return retry
        except Ended:
            return Retry(why=_ENDED)
        except Exception as error:  # noqa: BLE001 - the border to exporters and their libraries
            settle(None, None, f"{type(error).__name__}: {error}", False)
            return None
        settle(None, 0, "", False)
        return None

    def _count(self, done: Done, *, lost: int | None) -> None:
        """Count losses in the moment in which their requests leave, or the end in between misses them."""
        lost = done.items if lost is None else lost
        with self._lock:
            if lost:
                self.losses.count(lost, "rejected")
            for request in done.whole:
                for each in request.lost:
                    self.losses.count(each.items, each.reason)

    def _told(self, done: Done, lost: int | None, why: str, *, accepted: bool) -> None:
        """Say losses, and then let a flush know that the requests are done."""
        known = [each for request in done.whole for each in request.lost]
        if lost or lost is None:
            self.losses.say_lost("rejected", why)
        for each in known:
            self.losses.say_lost(each.reason, each.why)
        with self._lock:
            self._finished += done.own
            gone = min(done.items if lost is None else lost + sum(each.items for each in known), done.items)
            self._arrived += max(done.items, len(done.whole)) - gone
            is_refused = lost is None or (lost > 0 and not accepted)
            self._refused += is_refused
            self._lost += is_refused or bool(known)
            self._changed.notify_all()

    def _finish(self, request: Request, *, lost: bool) -> None:
        self._finished += max(request.items, 1)
        self._lost += lost

    def _heard(self, again: Retry | None) -> None:
        """Note the end of an attempt: why another one is needed, or None."""
        self._hurry = self._hurry and again is None and bool(self._waiting)
        if again is None or str(again) != _ENDED:
            self._is_gone = again is not None and again.is_gone
        if again is None:
            if not self._back_off.failures:
                return
            if self._back_off.is_away and self._kept is not None:
                _log.info("%s: delivering again", self.destination)
            self._back_off.forget()
        elif str(again) != _ENDED:
            self.losses.say(again.kind, f"cannot deliver, trying again: {again}")
            awaited = self._deadline is not None or self._clock() < self._awaited_until
            self._back_off.failed(self._clock(), again.after, awaited=awaited)

    def _write(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            with self._lock:
                self._writing = False
                self._changed.notify_all()

    def _move(self, kept: KeptRequests) -> None:
        """Move the oldest requests from memory to the disk."""
        with self._lock:
            left = self._waiting.take_bytes(_MOVED_AT_ONCE)
        try:
            kept.keep(left)
        finally:
            if left:
                self._disk_not_before = self._clock() + self._disk_again
                with self._lock:
                    ended = self._ended
                    if not ended:
                        self._waiting.put_back(left)
                if ended:
                    lost = sum(request.items for request in left)
                    self.losses.lose(lost, "shutdown", "not delivered before shutdown")

    def _lose_kept(self, count: int, reason: Reason, own: bool) -> None:
        """Count items that the spool has given up, or has lost."""
        is_full = reason == "spool_full"
        why = "the spool on disk is full" if is_full else "spool files were deleted or changed"
        self.losses.lose(count, reason, why)
        with self._lock:
            self._finished += count if own else 0
            self._lost += 1
            self._changed.notify_all()
