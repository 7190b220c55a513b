"""What is on the disk, on its way to the server."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.influxdb.delivery import Delivery, Write
from tachograph.influxdb.spool import Spool
from tachograph.influxdb.spooled import Spooled, records, spooled


class Kept:
    """Some lines of a spool, and what became of them.

    Args:
        spool: where they are; nobody else takes from it meanwhile.
        pace: called between slices of work.

    Attributes:
        delivery: what became of them.
        own: how many of the points that are settled this process recorded itself.
    """

    def __init__(self, spool: Spool, pace: Callable[[], None]) -> None:
        self._spool, self._pace = spool, pace
        self._parts: list[Spooled] = []
        self.delivery = Delivery()
        self.own = 0

    def take(self, points: int) -> None:
        """Read so many points, or some more, from one file."""
        count = 0
        while count < points and (taken := self._spool.take()):
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
        if self.delivery.again is None:
            self._spool.accept()
            return
        self._spool.give_back()
        self.own, self.delivery.lost = 0, []
