"""Requests that wait on the disk: the spool of one queue, for its workers and for its end."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.exporters.delivery import Clock, Done, LossReport, Request, RequestBatch
from tachograph.exporters.spool import Sharing, Spool
from tachograph.exporters.spool_format import SpoolRecord

_LAST = 0.5  # seconds at the end, for the disk
_HEIRS: Mapping[Sharing, str] = {
    "destination": "for the next process",
    "run": "for the next process of this run, or for 'tachograph resend'",
    "process": "for 'tachograph resend'",
}


class KeptRequests:
    """Requests on the disk; used by several threads, one of which delivers.

    Args:
        spool: which keeps them.
        losses: where trouble with the disk is said.
        rest: returns a payload without its first items.
        at_least_once: note on the disk which request is on its way: sent again, it may arrive twice.
        pace: called between slices of work.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        spool: Spool,
        losses: LossReport,
        *,
        rest: Callable[[Any, int], Any] | None,
        at_least_once: bool,
        pace: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._spool, self._losses = spool, losses
        self._rest, self._at_least_once, self._pace, self._clock = rest, at_least_once, pace, clock
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return not self._spool.empty

    def adopt(self) -> None:
        """Take over the files of processes that have ended."""
        try:
            with self._lock:
                self._spool.adopt()
        except OSError as error:
            self._say(error, "leaving spooled data of other processes for the next run")

    def keep(self, requests: deque[Request]) -> None:
        """Move requests from memory to the disk; those that it does not take are left."""
        try:
            with self._lock:
                self._append(requests)
        except OSError as error:
            self._say(error, "keeping undelivered data in memory")

    def _append(self, requests: deque[Request], until: float = math.inf) -> None:
        while requests and self._clock() < until:
            oldest = requests[0]
            uncertain = oldest.uncertain and self._at_least_once
            self._spool.append(SpoolRecord(oldest.kind, oldest.payload, oldest.items, uncertain=uncertain))
            requests.popleft()
            self._pace()

    def take(self, items: int | None) -> RequestBatch:
        """Return the oldest that were not taken yet: about so many items, or one request; none where there is none.

        They wait for :meth:`end` or :meth:`give_back`.

        Raises:
            OSError: they cannot be read now.
        """
        with self._lock:
            records, kept, uncertain = self._spool.take(items)
            if records and self._at_least_once:
                self._trying(uncertain=True)
        requests = [
            Request(
                record.payload,
                record.size,
                record.items,
                record.kind,
                uncertain=record.uncertain,
                lost=record.lost,
                own=record.own,
            )
            for record in records
        ]
        if requests and uncertain:
            requests[0] = requests[0]._replace(uncertain=True)
        if kept and requests and self._rest is not None:
            first = requests[0]
            items = max(first.items - kept, 0)
            payload = self._rest(first.payload, kept)
            lost = first.lost if payload else tuple(each._replace(items=items) for each in first.lost)
            requests[0] = first._replace(payload=payload, items=items, lost=lost)
        return RequestBatch(requests, kept)

    def settle(self, batch: RequestBatch, items: int | None, count: Callable[[Done], None]) -> Done | None:
        """Note that the first items of the batch are done; None after the end: the files are the next process's.

        Args:
            batch: what was taken.
            items: how many; None for all that is left.
            count: counts what of it was lost; called before it is noted, so that a kill in between loses nothing
                uncounted.
        """
        with self._lock:
            if not self._spool.is_reading:
                return None
            done = batch.settle(items)
            count(done)
            try:
                self._spool.advance(done.size, batch.kept + batch.done)
            except OSError as error:
                self._say(error, "delivered data will be sent again after this process ends")
            return done

    def surely_not_arrived(self) -> None:
        """Note that the first of the rest was refused, or never sent."""
        with self._lock:
            if self._at_least_once:
                self._trying(uncertain=False)

    def _trying(self, *, uncertain: bool) -> None:
        with contextlib.suppress(OSError):
            self._spool.trying(uncertain=uncertain)

    def end(self) -> None:
        """Let go of the requests that were taken; those of them that are not done are taken again.

        Raises:
            OSError: the file cannot be read any more.
        """
        with self._lock:
            self._spool.end()

    def give_back(self, error: OSError) -> None:
        """Let go of the requests that were taken: the disk has failed."""
        self._losses.blame("disk", f"{self._where(error)}: cannot deliver, trying again")
        with self._lock:
            self._spool.give_back()

    def leave(self, requests: deque[Request]) -> None:
        """Keep, at the end, those that there is time for; the others are left, and the files are the next process's."""
        if not self._lock.acquire(timeout=_LAST):
            return
        spool = self._spool
        try:
            self._append(requests, self._clock() + _LAST)
        except OSError as error:
            self._say(error, "undelivered data is lost")
        finally:
            until = self._clock() + _LAST
            spool.lose_what_is_gone(lambda: self._clock() >= until)
            remains, adoptable = not spool.empty, spool.adoptable
            spool.close(tidy=True)
            self._lock.release()
        if remains:
            how = _HEIRS[spool.of]
            if not adoptable and spool.of != "process":
                how = "for 'tachograph resend' (this file system has no locks, so no other process sends it)"
            self._losses.say("end", f"undelivered data is stored in {spool.folder} {how}")

    def reset_in_child(self) -> None:
        """Leave the files to the parent process, after a fork."""
        self._lock = threading.Lock()
        self._spool.close()

    def _say(self, error: OSError, what: str) -> None:
        self._losses.say("disk", f"{self._where(error)}: {what}")

    def _where(self, error: OSError) -> str:
        return f"{self._spool.folder}: {error.strerror or error}"
