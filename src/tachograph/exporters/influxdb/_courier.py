"""From memory to the server, past the disk where the server is away."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from tachograph.exporters.influxdb._backlog import Backlog
from tachograph.exporters.influxdb._crew import Crew
from tachograph.exporters.influxdb._delivery import Delivery, Outcome, prepared
from tachograph.exporters.influxdb._disk import Disk
from tachograph.exporters.influxdb._kept import Kept
from tachograph.exporters.influxdb._losses import Losses
from tachograph.exporters.influxdb._parcel import EVENTS, Parcel, after, unpacked
from tachograph.exporters.influxdb._patience import Patience
from tachograph.exporters.influxdb.server import TIMEOUT, Server
from tachograph.recording.own_metrics import Reason

_MANY = 5_000  # points that wait while the server is away
_FULL = 0.9
_LOOK_AGAIN = 30.0  # seconds between looks for what processes that ended have left
_DISK_AGAIN = 10.0
_NEVER = float("inf")


class Courier:
    """What waits for one server, and the threads that carry it there.

    Points leave in the order in which they came: what is on the disk before what is in memory.

    Args:
        server: takes lines.
        disk: keeps what has to wait for long; None where nothing does.
        backlog: keeps the rest.
        losses: is told what is lost.
        patience: says when to try again.
        batch_size: points in one write, at most.
        concurrency: writes at a time, at most.
        flush_interval: seconds that a point waits for others to fill a write.
        pace: called between slices of work.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        server: Server,
        disk: Disk | None,
        backlog: Backlog,
        losses: Losses,
        patience: Patience,
        *,
        batch_size: int,
        concurrency: int,
        flush_interval: float,
        pace: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._disk, self._backlog = server, disk, backlog
        self._losses, self._patience = losses, patience
        self._batch_size, self._flush_interval = batch_size, flush_interval
        self._pace, self._clock = pace, clock
        self._deadline: float | None = None
        self._crew = Crew(concurrency, lambda: self._server.connect(), self._next, losses)  # noqa: PLW0108 - it changes
        self._forget()
        self._crew.start()

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[int, tuple[list[Parcel], int]] = {}  # and how many of their points are settled
        self._reading = self._writing = self._hurry = False  # of the disk, the first two
        self._ended = self._deadline is not None
        self._number = self._accepted = self._settled = self._lost = self._written = 0
        self._disk_not_before = 0.0
        self._look_at = 0.0 if self._disk is not None else _NEVER
        self._crew.forget()

    def put(self, parcels: Iterable[Parcel]) -> None:
        """Take points; never waits for the server."""
        for parcel in parcels:
            with self._changed:
                self._accepted += parcel.points
                closed = self._deadline is not None
                dropped = parcel.points if closed else self._backlog.push(parcel)
                self._crew.start()
                self._changed.notify()
            if dropped:
                why = "it came after the end" if closed else "the memory for what waits is full"
                self._lose(dropped, "shutdown" if closed else "queue_full", why)

    def flush(self, timeout: float) -> bool:
        """Deliver what came so far; True where all of it has arrived within ``timeout`` seconds."""
        deadline = self._clock() + timeout
        with self._changed:
            wanted, lost = self._accepted, self._lost
            self._hurry = True
            self._changed.notify_all()
            while self._settled < wanted and not self._ended and (left := deadline - self._clock()) > 0:
                self._changed.wait(left)
            return self._settled >= wanted and self._lost == lost

    @property
    def delivered(self) -> int:
        """How many points were written."""
        return self._written

    def is_loading(self) -> bool:
        """Tell whether no thread has the client yet."""
        return self._crew.is_preparing()

    def close(self, timeout: float) -> None:
        """Deliver, and end, within ``timeout`` seconds; what is left then waits on the disk for the next process."""
        with self._changed:
            if self._deadline is not None:
                return
            self._deadline = self._clock() + timeout
            self._patience.end_is_near()
            started = self._crew.start()
        if started:
            self.flush(timeout)
        with self._changed:
            while self._reading and (time_left := self._deadline - self._clock()) > 0:
                self._changed.wait(time_left)
            self._ended = True
            left = deque(parcel for some, settled in self._under_way.values() for parcel in after(some, settled))
            left += self._backlog.take_all()
            self._under_way = {}
            self._changed.notify_all()
        if self._disk is not None:
            self._disk.leave(left)
        self._lose_at_the_end(left)

    def _lose_at_the_end(self, parcels: Iterable[Parcel]) -> None:
        if lost := sum(parcel.points for parcel in parcels):
            self._lose(lost, "shutdown", f"{lost} points were not delivered before the end")

    def reset_in_child(self, server: Server, backlog: Backlog) -> Server:
        """Forget everything, after a fork: the parent process delivers it, and keeps what is on the disk.

        Returns:
            The server that it had: its connections are the parent's.
        """
        inherited, self._server, self._backlog = self._server, server, backlog
        if self._disk is not None:
            self._disk.forget()
        self._patience.forget()
        self._forget()
        return inherited

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do; None at the end."""
        with self._changed:
            while not self._ended:
                now = self._clock()
                job = self._to_do(now)
                if job is not None:
                    return job
                times = [now + _LOOK_AGAIN, self._patience.not_before, self._disk_not_before, self._look_at]
                if self._backlog:
                    times.append(self._backlog.since + self._flush_interval)
                self._changed.wait(max(min(moment - now for moment in times if moment > now), 0.001))
        return None

    def _to_do(self, now: float) -> Callable[[], None] | None:
        if self._disk is not None and not self._writing:
            if now >= self._look_at and not self._reading:
                self._look_at, self._writing = now + _LOOK_AGAIN, True
                return partial(self._adopt, self._disk)
            if self._presses(now):
                self._writing = True
                return partial(self._move, self._disk)
        if self._deadline is not None and now >= self._deadline:
            return None
        busy = self._patience.failures > 0 and (self._under_way or self._reading)  # one attempt at a time, then
        return None if busy or self._patience.waits(now, hurry=self._hurry) else self._to_send(now)

    def _to_send(self, now: float) -> Callable[[], None] | None:
        if self._disk is not None and (self._writing or not self._disk.spool.empty):
            if self._reading or self._writing:
                return None
            self._reading = True
            return partial(self._send_kept, self._disk)
        if self._due(now, hurry=self._hurry or self._deadline is not None):
            self._number += 1
            parcels = self._backlog.take(self._batch_size)
            self._under_way[self._number] = parcels, 0
            return partial(self._send, self._number, parcels)
        return None

    def _presses(self, now: float) -> bool:
        """Tell whether what waits in memory has to go to the disk."""
        if not self._backlog or now < self._disk_not_before:
            return False
        if self._patience.is_over:
            return self._due(now, hurry=False)
        some = self._patience.failures > 0
        return self._backlog.load > _FULL or (some and (self._backlog.points > _MANY or self._backlog.load > _FULL / 2))

    def _due(self, now: float, *, hurry: bool) -> bool:
        if not self._backlog:
            return False
        return hurry or self._backlog.points >= self._batch_size or now >= self._backlog.since + self._flush_interval

    def _adopt(self, disk: Disk) -> None:
        try:
            disk.adopt()
        finally:
            self._end_job(writing=False)

    def _move(self, disk: Disk) -> None:
        """Put the oldest of what waits in memory on the disk."""
        with self._changed:
            left = deque(self._backlog.take(EVENTS) if self._backlog else [])
        try:
            disk.keep(left)
        finally:
            if left:
                self._disk_not_before = self._clock() + _DISK_AGAIN
                self._put_back(left)
            self._end_job(writing=False)

    def _put_back(self, parcels: Iterable[Parcel]) -> None:
        with self._changed:
            ended = self._ended
            if not ended:
                self._backlog.put_back(parcels)
        if ended:
            self._lose_at_the_end(parcels)

    def _end_job(self, *, writing: bool | None = None, reading: bool | None = None) -> None:
        with self._changed:
            self._writing = self._writing if writing is None else writing
            self._reading = self._reading if reading is None else reading
            self._changed.notify_all()

    def _send(self, number: int, parcels: list[Parcel]) -> None:
        """Send what was in memory."""
        delivery = Delivery(self._write, self._allowance, partial(self._settle, number))
        failed: Exception | None = None
        try:
            pace = self._pace
            items = [item for parcel in parcels for item in prepared(unpacked(parcel), parcel.resource, pace)]
            delivery.send(items)
        except Exception as error:  # noqa: BLE001 - whatever it is, what is not settled is sent again
            failed = error
        with self._changed:
            if number not in self._under_way:  # it is on the disk by now
                return
            self._backlog.put_back(after(*self._under_way.pop(number)))
        if failed is None:
            self._heard(delivery)
        else:
            self._fail(failed)

    def _send_kept(self, disk: Disk) -> None:
        """Send what is on the disk."""
        kept = Kept(disk, self._pace)

        def settle(outcome: Outcome) -> None:
            own = kept.settle(outcome)
            if own is not None:
                self._count(outcome, own)
                self._say_lost(outcome)

        delivery = Delivery(self._write, self._allowance, settle)
        try:
            delivery.send(kept.take(self._batch_size))
            kept.end()
            self._heard(delivery)
        except Exception as error:  # noqa: BLE001 - whatever it is, what is not settled is sent again
            kept.give_back()
            self._fail(error)
        finally:
            self._end_job(reading=False)

    def _fail(self, error: Exception) -> None:
        """Say, once, what should not happen, and wait as after any attempt that failed."""
        whose = "the disk" if isinstance(error, OSError) else "a bug in tachograph"
        self._losses.blame(whose, f"not delivered yet, trying again: {whose}: {type(error).__name__}: {error}")
        with self._changed:
            self._hurry = False
            self._patience.failed(self._clock())

    def _settle(self, number: int, outcome: Outcome) -> None:
        """Note what became of a piece of what was in memory, unless it is on the disk by now."""
        with self._changed:
            if number not in self._under_way:
                return
            parcels, settled = self._under_way[number]
            self._under_way[number] = parcels, settled + outcome.items
            self._count(outcome, outcome.points)  # with it, or the end in between finds neither points nor their count
        self._say_lost(outcome)

    def _count(self, outcome: Outcome, own: int) -> None:
        with self._changed:
            for lost in outcome.lost:
                self._losses.add(lost.points, lost.reason)
            self._settled += own
            self._written += outcome.written
            self._lost += outcome.loses_points
            self._changed.notify_all()

    def _say_lost(self, outcome: Outcome) -> None:
        for lost in outcome.lost:
            self._losses.say_lost(lost.reason, lost.why)

    def _heard(self, delivery: Delivery) -> None:
        with self._changed:
            self._hurry = self._hurry and delivery.again is None and bool(self._backlog)
            if delivery.tried:
                self._patience.heard(delivery.again, self._clock())
            self._changed.notify_all()

    def _write(self, body: bytes, timeout: float) -> int:
        began = self._clock()
        try:
            return self._server.write(body, timeout)
        finally:
            self._losses.took(self._clock() - began)

    def _allowance(self) -> float | None:
        """Return the seconds for one attempt; None at the end, as what is given up unanswered may have arrived."""
        if self._deadline is None:
            return TIMEOUT
        left = self._deadline - self._clock()
        return left if left > 0 and not self._ended else None

    def _lose(self, count: int, reason: Reason, why: str, *, own: bool = True) -> None:
        self._losses.count(count, reason, why)
        with self._changed:
            self._settled += count if own else 0
            self._lost += 1
            self._changed.notify_all()

    def lose_kept(self, count: int, reason: Reason, own: bool) -> None:
        """Count what the spool has given up, or has lost."""
        is_full = reason == "spool_full"
        why = "the disk's share for what waits is full" if is_full else "files of the spool were deleted or changed"
        self._lose(count, reason, why, own=own)
