"""What waits in memory for one server: bounded, the oldest going first.

A batch of points comes at once, and may be more than the queue takes: then those of the batches before go, and it
stays, as a server that is there takes it in a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tachograph.exporters.influxdb._parcel import Parcel


class Backlog:
    """Parcels in the order in which they came; not for several threads at once.

    Args:
        queue_size: points that may wait, or as many as came last.
        limit_bytes: bytes that they may take.

    Attributes:
        points: how many wait.
    """

    def __init__(self, queue_size: int, limit_bytes: int) -> None:
        self._queue_size, self._limit_bytes = queue_size, limit_bytes
        self._parcels: deque[Parcel] = deque()
        self.points = self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parcels)

    @property
    def load(self) -> float:
        """How full it is, from 0 to 1."""
        return max(self.points / self._queue_size, self._bytes / self._limit_bytes)

    @property
    def since(self) -> float:
        """When the oldest came."""
        return self._parcels[0].since

    def push(self, parcel: Parcel) -> int:
        """Add a parcel, and return how many points had to go."""
        self._parcels.append(parcel)
        self._add(parcel, 1)
        dropped = 0
        while self._bytes > self._limit_bytes or (
            self.points > self._queue_size and self._parcels[0].since != parcel.since
        ):
            dropped += self._pop().points
        return dropped

    def put_back(self, parcels: Iterable[Parcel]) -> None:
        """Let parcels be the oldest again."""
        parcels = list(parcels)
        self._parcels.extendleft(reversed(parcels))
        for parcel in parcels:
            self._add(parcel, 1)

    def take(self, points: int) -> list[Parcel]:
        """Take out the oldest parcels, so many points at most, but at least one parcel."""
        taken = [self._pop()]
        left = points - taken[0].points
        while self._parcels and self._parcels[0].points <= left:
            taken.append(self._pop())
            left -= taken[-1].points
        return taken

    def take_all(self) -> list[Parcel]:
        """Take out everything."""
        return [self._pop() for _ in range(len(self._parcels))]

    def _pop(self) -> Parcel:
        parcel = self._parcels.popleft()
        self._add(parcel, -1)
        return parcel

    def _add(self, parcel: Parcel, sign: int) -> None:
        self.points += sign * parcel.points
        self._bytes += sign * len(parcel.data)
