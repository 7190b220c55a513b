"""The delivery queue: what waits for one destination, in memory and on the disk, and the threads that deliver it.

Nothing here ever makes the caller wait for a network: :meth:`DeliveryQueue.put` appends, a worker delivers, and
:meth:`DeliveryQueue.close` returns in time even where a delivery never does. Every destination configures this one
queue: OTLP, InfluxDB, a hub that forwards, the exporters of others, and the files.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from opentelemetry import context

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
)
from tachograph.exporters.spool import Spool, SpoolRecord
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

LIMIT_BYTES = 64 * 2**20
GIVE_UP_AFTER = 60.0
LOOK_AGAIN = 30.0
_LONGEST_ASKED = 600.0
DISK_AGAIN = 10.0  # seconds after a disk that took no more
_MANY, _FULL = 5_000, 0.9  # items, and share of the memory, from which a destination that fails has them on the disk
_MOVED_AT_ONCE = 2**20  # bytes
_LAST = 0.5  # seconds at the end, for the disk
_ONE_WAIT = 1.0  # flushes no farther apart than this many seconds are one wait
_AFTER_A_BUG = 1.0
_ENDED = "the end has come"

_log = logging.getLogger("tachograph")

_Answer = TypeVar("_Answer")


def _called(requests: Sequence[Request], attempt: Attempt) -> None:
    """Deliver requests that are calls."""
    for request in requests:
        attempt.call(_call, request.payload)


def _call(send: Callable[[float], object], seconds: float) -> None:
    send(seconds)


class _Attempt:
    def __init__(
        self, call: Callable[[Callable[[Any, float], Any], Any], Any], settle: Callable[[int, int, str, bool], None]
    ) -> None:
        self.call, self._settle = call, settle

    def settled(self, items: int, *, lost: int = 0, why: str = "", accepted: bool = False) -> None:
        self._settle(items, lost, why, accepted)


class DeliveryQueue:
    """A bounded queue to one destination, and its daemon threads; the oldest leaves first, and is given up first.

    Args:
        destination: its name in logs and in what is counted.
        registry: where losses and the exports' durations are recorded.
        deliver: delivers some requests. It returns where all have arrived, raises :class:`Retry` where what is not
            settled may succeed later, anything else where that never will (``rejected``). By default the requests are
            calls.
        losses: counts what is lost; by default one that is made here.
        spool: makes the spool that keeps what waits for long, from what is to be told of its losses; None for none.
        limit_bytes: what may wait in memory; beyond it the oldest is dropped, and counted (``queue_full``).
        limit_items: items that may wait there, or as many as came last.
        give_up_after: seconds since it was queued, after which no further attempt is made (``unreachable``); None for
            never.
        batch_items: items that leave together, at most; None for one request at a time.
        flush_interval: seconds that a request waits for others to leave with it.
        workers: deliveries at a time, at most; with one, everything leaves in order.
        first_back_off: see :class:`BackOff`.
        longest_attempt: seconds.
        rest: returns a payload without its first items; needed where ``deliver`` settles parts of a request.
        at_least_once: what is sent again may arrive twice, and is counted (``tachograph.resent``).
        prepare: called by each worker first.
        pace: called between slices of work.
        look_again: seconds between looks for what processes that ended have left on the disk.
        disk_again: seconds after which a disk that took no more is tried again.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        destination: str,
        registry: Registry,
        deliver: Deliver = _called,
        *,
        losses: LossReport | None = None,
        spool: Callable[[Callable[[int, Reason, bool], None]], Spool] | None = None,
        limit_bytes: int = LIMIT_BYTES,
        limit_items: int | None = None,
        give_up_after: float | None = GIVE_UP_AFTER,
        batch_items: int | None = None,
        flush_interval: float = 0.0,
        workers: int = 1,
        first_back_off: float = FIRST_BACK_OFF,
        longest_attempt: float | None = None,
        rest: Callable[[Any, int], Any] | None = None,
        at_least_once: bool = False,
        prepare: Callable[[], None] = lambda: None,
        pace: Callable[[], None] = lambda: None,
        look_again: float = LOOK_AGAIN,
        disk_again: float = DISK_AGAIN,
        clock: Clock | None = None,
    ) -> None:
        self.destination = destination
        self.losses = losses or LossReport(destination, registry)
        self._deliver, self._rest, self._prepare, self._pace = deliver, rest, prepare, pace
        self._spool = spool(self.lose_kept) if spool is not None else None
        self._limit_bytes, self._limit_items, self._batch_items = limit_bytes, limit_items, batch_items
        self._give_up_after = math.inf if spool is not None or give_up_after is None else give_up_after
        self._flush_interval, self._size, self._look_again = flush_interval, workers, look_again
        self._longest_attempt = longest_attempt or give_up_after or GIVE_UP_AFTER
        self._at_least_once, self._clock, self._disk_again = at_least_once, clock or Clock(), disk_again
        self._back_off = BackOff(first_back_off, min(self._give_up_after, _LONGEST_ASKED))
        self._deadline: float | None = None
        self._forget()
        self._start()

    def _forget(self) -> None:
        self._changed, self._spool_lock = threading.Condition(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._prepared = False
        self._waiting: deque[Request] = deque()
        self._items = self._bytes = 0  # of what waits, in memory
        self._under_way: dict[int, RequestBatch] = {}  # of what was in memory
        self._bytes_under_way = self._number = 0
        self._reading = self._writing = False  # of the spool
        self._disk_not_before = 0.0
        self._look_at = 0.0 if self._spool is not None else math.inf
        self._accepted = self._finished = self._lost = self._arrived = 0
        self._hurry, self._ended = False, self._deadline is not None
        self._waiting_since, self._waited_until, self._awaited_until = 0.0, -math.inf, -math.inf
        self._back_off.forget()

    def _start(self) -> bool:
        """Begin, and tell whether there is a worker: none starts while the interpreter shuts down (CPython 3.12)."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"tachograph {self.destination}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)
        return bool(self._threads)

    # What callers do.

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
        with self._changed:
            closed = self._deadline is not None
            if not closed:
                self._accepted += max(items, 1)
                self._add(request)
                while self._is_too_full(request):
                    too_old.append(self._pop())
                    self._finish(too_old[-1], lost=True)
                self._start()
                self._changed.notify_all()
        if closed:
            self.losses.lose(items, "shutdown", "it came after the end")
        elif too_old:
            lost = sum(oldest.items for oldest in too_old)
            self.losses.lose(lost, "queue_full", "more waited than there is room for in memory")

    def flush(self, timeout: float) -> bool:
        """Deliver what is queued now; True where all of it was taken within ``timeout`` seconds.

        A request is taken, too, where the receiver accepts it without a part; that part is counted.
        """
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
                self._clock.wait(self._changed, left)
            self._waited_until = self._clock()
            return self._finished >= wanted and self._lost == lost

    def retry_now(self, longest: float) -> None:
        """Make the next attempt now, even where the receiver has asked for time: the end is near.

        Further ones follow as they do in a :meth:`flush`, for ``longest`` seconds.
        """
        with self._changed:
            self._back_off.asked, self._hurry = False, True
            self._awaited_until = max(self._awaited_until, self._clock() + longest)
            self._changed.notify_all()

    @property
    def delivered(self) -> int:
        """Items that have arrived; it grows while the destination takes anything."""
        return self._arrived

    @property
    def waiting(self) -> int:
        """Items that wait in memory."""
        return self._items

    def is_loading(self) -> bool:
        """Tell whether no worker is prepared yet."""
        return not self._prepared and any(thread.is_alive() for thread in self._threads)

    def close(self, timeout: float) -> None:
        """Deliver what is queued, and end, within ``timeout`` seconds.

        What is left then waits on the disk, where there is a spool; else it is counted (``shutdown``).
        """
        with self._changed:
            if self._deadline is not None:
                return
            began = self._clock()
            self._deadline = began + timeout
            self._back_off.asked, self._back_off.not_before, self._hurry = False, 0.0, True
            started = self._start()
            self._changed.notify_all()
        if started:
            self.flush(timeout)
        else:
            self._work(here=True)
        with self._changed:
            while self._reading and (time_left := self._deadline - self._clock()) > 0:
                self._clock.wait(self._changed, time_left)
            self._ended = True
            left: deque[Request] = deque()
            for batch in self._under_way.values():
                left += [request._replace(uncertain=not number) for number, request in enumerate(self._left(batch))]
            left += self._waiting
            self._under_way = {}
            self._waiting.clear()
            self._items = self._bytes = 0
            self._changed.notify_all()
        if self._spool is not None:
            self._leave(self._spool, left)
        if left:
            waited = self._clock() - (self._waiting_since if started else began)
            why = f"not delivered at the end, which has waited {waited:.1f} s for it"
            self.losses.lose(sum(request.items for request in left), "shutdown", why)

    def reset_in_child(self) -> None:
        """Forget everything, after a fork: the parent process delivers it, and keeps its files."""
        if self._spool is not None:
            self._spool.close()
        self._forget()

    # What waits in memory.

    def _add(self, request: Request) -> None:
        self._waiting.append(request)
        self._items += request.items
        self._bytes += request.size

    def _pop(self) -> Request:
        request = self._waiting.popleft()
        self._items -= request.items
        self._bytes -= request.size
        return request

    def _is_too_full(self, newest: Request) -> bool:
        """Tell whether the oldest has to go: what has come together is more than a queue of items takes."""
        if not self._waiting:
            return False
        if self._bytes + self._bytes_under_way > self._limit_bytes:
            return True
        too_many = self._limit_items is not None and self._items > self._limit_items
        return too_many and self._waiting[0].since != newest.since

    @property
    def _load(self) -> float:
        """Share of the memory that is used."""
        items = self._items / self._limit_items if self._limit_items is not None else 0.0
        return max(items, self._bytes / self._limit_bytes)

    def _put_back(self, requests: Iterable[Request]) -> None:
        for request in reversed(list(requests)):
            self._waiting.appendleft(request)
            self._items += request.items
            self._bytes += request.size

    def _left(self, batch: RequestBatch) -> list[Request]:
        """Return the requests of a batch that are not done, the first one without what is."""
        left = list(batch.requests)
        if left and batch.done and self._rest is not None:
            payload = self._rest(left[0].payload, batch.done)
            left[0] = left[0]._replace(payload=payload, size=len(payload), items=left[0].items - batch.done)
        return left

    # What the workers do.

    def _work(self, *, here: bool = False) -> None:
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - a broken installation shall cost the program nothing
            self.losses.blame(getattr(error, "kind", "prepare"), str(error))
        self._prepared = True
        while (job := self._next(here=here)) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001, PERF203 - the thread shall live on
                self.losses.blame("bug", f"a bug in tachograph: {type(error).__name__}: {error}")
                _log.debug(self.destination, exc_info=True)
                time.sleep(_AFTER_A_BUG)

    def _next(self, *, here: bool) -> Callable[[], None] | None:
        """Wait for something to do; None at the end, or where a caller who works here has nothing left or no time."""
        with self._changed:
            while not self._ended:
                now = self._clock()
                if (job := self._to_do(now)) is not None:
                    return job
                if here and (self._finished >= self._accepted or now >= (self._deadline or now)):
                    return None
                times = [now + self._look_again, self._back_off.not_before, self._disk_not_before, self._look_at]
                if self._waiting:
                    times.append(self._waiting[0].since + self._flush_interval)
                if here and self._deadline is not None:
                    times.append(self._deadline)
                self._clock.wait(self._changed, max(min(moment - now for moment in times if moment > now), 0.001))
        return None

    def _to_do(self, now: float) -> Callable[[], None] | None:
        spool = self._spool
        if spool is not None and not self._writing:
            if now >= self._look_at and not self._reading:
                self._look_at, self._writing = now + self._look_again, True
                return partial(self._adopt, spool)
            if self._presses(now):
                self._writing = True
                return partial(self._move, spool)
        is_late = self._deadline is not None and now >= self._deadline
        busy = self._back_off.failures > 0 and (self._under_way or self._reading)  # one attempt at a time, then
        if is_late or busy or self._back_off.waits(now, hurry=self._hurry):
            return None
        return self._to_send(now)

    def _to_send(self, now: float) -> Callable[[], None] | None:
        spool = self._spool
        if spool is not None and (self._writing or not spool.empty):  # what is on the disk comes first
            if self._reading or self._writing:
                return None
            self._reading = True
            return partial(self._send_kept, spool)
        if not self._is_due(now, hurry=self._hurry or self._deadline is not None):
            return None
        self._number += 1
        batch = self._under_way[self._number] = RequestBatch(self._take(self._batch_items))
        self._bytes_under_way += sum(request.size for request in batch.requests)
        return partial(self._send, self._number, batch)

    def _take(self, items: int | None) -> list[Request]:
        taken = [self._pop()]
        left = 0 if items is None else items - taken[0].items
        while self._waiting and self._waiting[0].items <= left:
            taken.append(self._pop())
            left -= taken[-1].items
        return taken

    def _is_due(self, now: float, *, hurry: bool) -> bool:
        if not self._waiting:
            return False
        enough = self._batch_items is None or self._items >= self._batch_items
        return hurry or enough or now >= self._waiting[0].since + self._flush_interval

    def _presses(self, now: float) -> bool:
        """Tell whether what waits in memory has to go to the disk."""
        if not self._waiting or now < self._disk_not_before:
            return False
        if self._back_off.is_away:
            return self._is_due(now, hurry=False)
        fails = self._back_off.failures > 0
        return self._load > _FULL or (fails and (self._items > _MANY or self._load > _FULL / 2))

    def _attempt(self, send: Callable[[Any, float], _Answer], body: Any) -> _Answer:
        """Make one attempt; see :meth:`tachograph.exporters.delivery.Attempt.call`."""
        began = self._clock()
        seconds = self._longest_attempt
        if self._deadline is not None:
            seconds = min(seconds, self._deadline - began)
        if self._ended or seconds <= 0:
            raise Ended
        # Instrumented HTTP and gRPC libraries would trace our own requests, and each export make the next one.
        token = context.attach(context.set_value("suppress_instrumentation", True))
        try:
            return send(body, seconds)
        finally:
            context.detach(token)
            self.losses.took(self._clock() - began)

    def _send(self, number: int, batch: RequestBatch) -> None:
        """Deliver what was in memory."""

        def settle(items: int | None, lost: int | None, why: str, accepted: bool) -> None:
            with self._changed:
                if number not in self._under_way:  # the end has come: it is counted, or on the disk
                    return
                done = batch.settle(items)
                self._bytes_under_way -= done.size
                self._count(done, lost)
            self._told(done, lost, why, accepted=accepted)

        again = self._try(list(batch.requests), settle)
        given_up: list[Request] = []
        with self._changed:
            if self._under_way.pop(number, None) is None:
                return
            self._bytes_under_way -= sum(request.size for request in batch.requests)
            left = self._left(batch)
            self._heard(again)
            if again is not None and left:
                left[0] = left[0]._replace(uncertain=again.uncertain)
                is_late = self._back_off.not_before > left[0].since + self._give_up_after
                if is_late and self._deadline is None:
                    given_up, left = left, []
            for request in given_up:
                self._finish(request, lost=True)
            self._put_back(left)
            self._changed.notify_all()
        if given_up:
            self.losses.lose(sum(request.items for request in given_up), "unreachable", str(again))

    def _send_kept(self, spool: Spool) -> None:
        """Deliver what is on the disk."""
        try:
            with self._spool_lock:
                records, kept, uncertain = spool.take(self._batch_items)
            again = self._try_kept(spool, records, kept, uncertain=uncertain) if records else None
            with self._spool_lock:
                spool.end()
            with self._changed:
                self._heard(again)
        except OSError as error:
            self.losses.blame("disk", f"{spool.folder}: {error.strerror or error}: not delivered yet, trying again")
            with self._spool_lock:
                spool.give_back()
            with self._changed:
                self._hurry = False
                self._back_off.failed(self._clock(), None, awaited=False)
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _try_kept(self, spool: Spool, records: list[SpoolRecord], kept: int, *, uncertain: bool) -> Retry | None:
        requests = [
            Request(record.payload, record.size, record.items, record.kind, lost=record.lost, own=record.own)
            for record in records
        ]
        requests[0] = requests[0]._replace(uncertain=uncertain)
        if kept and self._rest is not None:
            payload = self._rest(requests[0].payload, kept)
            requests[0] = requests[0]._replace(payload=payload, items=max(requests[0].items - kept, 0))
        batch = RequestBatch(requests, kept)

        def settle(items: int | None, lost: int | None, why: str, accepted: bool) -> None:
            with self._spool_lock:
                if not spool.is_reading:  # the end has come: the files are the next process's
                    return
                done = batch.settle(items)
                with self._changed:  # counted before it is noted: a kill in between loses nothing uncounted
                    self._count(done, lost)
                try:
                    spool.advance(done.size, batch.kept + batch.done)
                except OSError as error:
                    self._say_disk(spool, error, "what has arrived would be sent again after the end of this process")
            self._told(done, lost, why, accepted=accepted)

        if self._at_least_once:
            with self._spool_lock, contextlib.suppress(OSError):
                spool.trying(uncertain=True)
        again = self._try(requests, settle)
        if self._at_least_once and again is not None and not again.uncertain:
            with self._spool_lock, contextlib.suppress(OSError):
                spool.trying(uncertain=False)
        return again

    def _try(
        self, requests: list[Request], settle: Callable[[int | None, int | None, str, bool], None]
    ) -> Retry | None:
        """Deliver requests, and return why what is not settled has to be sent again."""
        if not requests[0].payload:  # nothing of it can be sent
            settle(None, 0, "", False)
            return None
        if self._at_least_once and (again := sum(request.items for request in requests if request.uncertain)):
            self.losses.resent(again)
        try:
            self._deliver(requests, _Attempt(self._attempt, settle))
        except Retry as retry:
            return retry
        except Ended:
            return Retry(why=_ENDED)
        except Exception as error:  # noqa: BLE001 - the border to exporters and their libraries
            settle(None, None, f"{type(error).__name__}: {error}", False)
            return None
        settle(None, 0, "", False)
        return None

    def _count(self, done: Done, lost: int | None) -> None:
        """Count what was lost of what is done; in the moment in which that leaves, or the end in between misses it."""
        lost = done.items if lost is None else lost
        if lost:
            self.losses.count(lost, "rejected")
        for request in done.whole:
            for each in request.lost:
                self.losses.count(each.items, each.reason)

    def _told(self, done: Done, lost: int | None, why: str, *, accepted: bool) -> None:
        """Say what was lost of what is done, and then let a flush know that it is."""
        known = [each for request in done.whole for each in request.lost]
        if lost or lost is None:
            self.losses.say_lost("rejected", why)
        for each in known:
            self.losses.say_lost(each.reason, each.why)
        with self._changed:
            self._finished += done.own
            gone = min(done.items if lost is None else lost + sum(each.items for each in known), done.items)
            self._arrived += max(done.items, len(done.whole)) - gone
            self._lost += lost is None or bool(known) or (lost > 0 and not accepted)
            self._changed.notify_all()

    def _finish(self, request: Request, *, lost: bool) -> None:
        self._finished += max(request.items, 1)
        self._lost += lost

    def _heard(self, again: Retry | None) -> None:
        """Note the end of an attempt: why another one is needed, or None."""
        self._hurry = self._hurry and again is None and bool(self._waiting)
        if again is None:
            if self._back_off.is_away and self._spool is not None:
                _log.info("%s: delivers again", self.destination)
            self._back_off.forget()
        elif str(again) != _ENDED:
            self.losses.say(again.kind, f"not delivered yet, trying again: {again}")
            awaited = self._deadline is not None or self._clock() < self._awaited_until
            self._back_off.failed(self._clock(), again.after, awaited=awaited)

    # What goes to the disk.

    def _adopt(self, spool: Spool) -> None:
        try:
            with self._spool_lock:
                spool.adopt()
        except OSError as error:
            self._say_disk(spool, error, "what other processes have left there waits")
        finally:
            self._end_writing()

    def _move(self, spool: Spool) -> None:
        """Put the oldest of what waits in memory on the disk."""
        with self._changed:
            left: deque[Request] = deque()
            size = 0
            while self._waiting and (not left or size + self._waiting[0].size <= _MOVED_AT_ONCE):
                left.append(self._pop())
                size += left[-1].size
        try:
            with self._spool_lock:
                self._keep(spool, left)
        except OSError as error:
            self._say_disk(spool, error, "what waits stays in memory")
        finally:
            if left:
                self._disk_not_before = self._clock() + self._disk_again
                with self._changed:
                    ended = self._ended
                    if not ended:
                        self._put_back(left)
                if ended:
                    lost = sum(request.items for request in left)
                    self.losses.lose(lost, "shutdown", "not delivered before the end")
            self._end_writing()

    def _keep(self, spool: Spool, requests: deque[Request], until: float = math.inf) -> None:
        """Append requests, and take out those that are there; where that raises, the others are left."""
        while requests and self._clock() < until:
            oldest = requests[0]
            uncertain = oldest.uncertain and self._at_least_once
            spool.append(SpoolRecord(oldest.kind, oldest.payload, oldest.items, uncertain=uncertain))
            requests.popleft()
            self._pace()

    def _leave(self, spool: Spool, left: deque[Request]) -> None:
        """Put on the disk, at the end, what there is time for, and leave it to whoever comes next."""
        if not self._spool_lock.acquire(timeout=_LAST):
            return
        try:
            self._keep(spool, left, self._clock() + _LAST)
        except OSError as error:
            self._say_disk(spool, error, "what waits is lost")
        finally:
            spool.lose_what_is_gone()
            remains, adoptable = not spool.empty, spool.adoptable
            spool.close(tidy=True)
            self._spool_lock.release()
        if remains:
            how = "for the next process"
            if spool.is_for_run:
                how = "for the next process of this run, or for 'tachograph replay'"
            if not adoptable:
                how = "for 'tachograph replay': this file system has no locks, so no other process takes it by itself"
            self.losses.say("end", f"what was not delivered before the end waits in {spool.folder} {how}")

    def lose_kept(self, count: int, reason: Reason, own: bool) -> None:
        """Count what the spool has given up, or has lost."""
        is_full = reason == "spool_full"
        why = "the disk's share for what waits is full" if is_full else "files of the spool were deleted or changed"
        self.losses.lose(count, reason, why)
        with self._changed:
            self._finished += count if own else 0
            self._lost += 1
            self._changed.notify_all()

    def _say_disk(self, spool: Spool, error: OSError, what: str) -> None:
        self.losses.say("disk", f"{spool.folder}: {error.strerror or error}: {what}")

    def _end_writing(self) -> None:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
