"""The disk for what waits for one server: its spool, for several threads, and what is said where it fails."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tachograph.exporters.influxdb._losses import Losses
from tachograph.exporters.influxdb._parcel import Parcel
from tachograph.exporters.influxdb._spool import Spool
from tachograph.exporters.influxdb._spooling import keep

_LAST = 0.5  # seconds at the end


class Disk:
    """A spool that is used by one thread at a time.

    Args:
        spool: whose threads these are.
        losses: is told what went wrong.
        pace: called between slices of work.
        clock: seconds, monotonic.

    Attributes:
        spool: the spool, for whoever holds the lock.
        lock: for whoever uses the spool.
    """

    def __init__(self, spool: Spool, losses: Losses, pace: Callable[[], None], clock: Callable[[], float]) -> None:
        self.spool, self.lock = spool, threading.Lock()
        self._losses, self._pace, self._clock = losses, pace, clock

    def forget(self) -> None:
        """Have no files, after a fork: they are the parent's."""
        self.lock = threading.Lock()
        self.spool.close()

    def adopt(self) -> None:
        """Take over what processes that have ended have left."""
        try:
            with self.lock:
                self.spool.adopt()
        except OSError as error:
            self._say(error, "what other processes have left there waits")

    def keep(self, parcels: deque[Parcel]) -> None:
        """Put parcels on the disk, the oldest first, and take out those that are there.

        It raises nothing: where the disk takes no more, that is said, and the others are left.
        """
        try:
            with self.lock:
                while parcels:
                    keep(parcels, self.spool.append)
                    self._pace()
        except OSError as error:
            self._say(error, "what waits stays in memory")

    def advance(self, size: int, records: int) -> bool:
        """Note how much of what was taken has arrived.

        See :meth:`tachograph.exporters.influxdb._spool.Spool.advance`.
        """
        try:
            with self.lock:
                return self.spool.advance(size, records)
        except OSError as error:
            self._say(error, "what has arrived of it would be sent again after the end of this process")
            return True

    def leave(self, parcels: deque[Parcel]) -> None:
        """Put on the disk, at the end, what there is time for, and leave it to the next process; the rest is left."""
        until = self._clock() + _LAST
        if not self.lock.acquire(timeout=_LAST):
            return
        try:
            while parcels and self._clock() < until:
                keep(parcels, self.spool.append)
        except OSError as error:
            self._say(error, "what waits is lost")
        finally:
            self.spool.lose_what_is_gone()
            remains, adoptable = not self.spool.empty, self.spool.adoptable
            self.spool.close()
            self.lock.release()
        if remains:
            how = "for the next process"
            if not adoptable:
                how = "for 'tachograph replay': this file system has no locks, so no other process takes it by itself"
            self._losses.say("end", f"what was not delivered before the end waits in {self.spool.folder} {how}")

    def _say(self, error: OSError, what: str) -> None:
        self._losses.say("disk", f"{self.spool.folder}: {error.strerror or error}: {what}")
