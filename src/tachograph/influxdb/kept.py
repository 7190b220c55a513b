"""What is on the disk, on its way to the server."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.influxdb.delivery import Delivery, Write
from tachograph.influxdb.disk import Disk
from tachograph.influxdb.spooled import Spooled, records, spooled


class Kept:
    """Some lines of a spool, and what became of them.

    Args:
        disk: where they are; nobody else takes from it meanwhile.
        pace: called between slices of work.

    Attributes:
        delivery: what became of them.
        own: how many of the points that are settled this process recorded itself.
    """

    def __init__(self, disk: Disk, pace: Callable[[], None]) -> None:
        self._disk, self._pace = disk, pace
        self._parts: list[Spooled] = []
        self.delivery = Delivery()
        self.own = 0

    def take(self, points: int) -> None:
        """Read so many points, or some more, from one file."""
        count = 0
        with self._disk.lock:
            while count < points and (taken := self._disk.spool.take()):
                line, own = taken
                found = self._read(line)
                added = sum(len(part.events) + part.newer for part in found)
                self._parts += found
                count += added
                self.own += added if own else 0
                self._pace()

    def _read(self, line: bytes) -> list[Spooled]:
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the process that wrote it died")  # noqa: TRY301 - the same end for both
            found = spooled(line)
        except ValueError as error:
            self.delivery.lose(max(records(line), 1), "damaged", f"a line of the spool cannot be read: {error}")
            return []
        for part in found:
            if part.newer:
                self.delivery.lose(part.newer, "newer", "a later version of tachograph wrote it")
        return found

    def send(self, write: Write, timeout: Callable[[], float]) -> None:
        """Write what was read; see :meth:`Delivery.send`."""
        prepare, pace = self.delivery.prepare, self._pace
        items = [item for part in self._parts for item in prepare(part.events, part.resource, pace)]
        self.delivery.send(items, write, timeout)

    def settle(self) -> None:
        """Take from the disk what has arrived; where some of it has to be sent again, all of it has."""
        if self.delivery.again is not None:
            self.give_back()
            self.own, self.delivery.lost = 0, []
            return
        with self._disk.lock:
            self._disk.spool.accept()

    def give_back(self) -> None:
        """Leave all of it on the disk: it is taken again."""
        with self._disk.lock:
            self._disk.spool.give_back()
