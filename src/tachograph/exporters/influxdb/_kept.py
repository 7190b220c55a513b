"""What is on the disk, on its way to the server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from tachograph.exporters.influxdb._delivery import Item, Lost, Outcome, prepared
from tachograph.exporters.influxdb._disk import Disk
from tachograph.exporters.influxdb.spooled import records, spooled


class Kept:
    """Some lines of a spool, and how much of them has arrived.

    Args:
        disk: where they are; nobody else takes from it meanwhile.
        pace: called between slices of work.
    """

    def __init__(self, disk: Disk, pace: Callable[[], None]) -> None:
        self._disk, self._pace = disk, pace
        self._lines: deque[tuple[int, int]] = deque()  # bytes and items of each that has not arrived as a whole
        self._arrived = 0  # items of the first of them
        self._own = False

    def take(self, points: int) -> list[Item]:
        """Read so many points, or some more, from one file, without those that have arrived already."""
        items: list[Item] = []
        count = 0
        with self._disk.lock:
            while count < points and (taken := self._disk.spool.take()):
                found = self._read(taken.line)
                if not self._lines:
                    self._arrived, self._own = min(taken.arrived, len(found)), taken.own
                self._lines.append((len(taken.line), len(found)))
                items += islice(found, taken.arrived, None)
                count += sum(item.points for item in found)
                self._pace()
        return items

    def _read(self, line: bytes) -> list[Item]:
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the process that wrote it died")  # noqa: TRY301 - the same end for both
            found = spooled(line)
        except ValueError as error:
            points = max(records(line), 1)
            lost = Lost(points, "damaged", f"a line of the spool cannot be read: {error}")
            return [Item(lost=lost, points=points)]
        items = []
        for part in found:
            items += prepared(part.events, part.resource, self._pace)
            if part.newer:
                lost = Lost(part.newer, "newer", "a later version of tachograph wrote it")
                items.append(Item(lost=lost, points=part.newer))
        return items

    def settle(self, outcome: Outcome) -> int | None:
        """Note on the disk that the first of what is left has arrived.

        Returns:
            How many of its points this process recorded itself; None after the end, when the files are the next
            process's.
        """
        size, arrived = 0, self._arrived + outcome.items
        while self._lines and arrived >= self._lines[0][1]:
            line, items = self._lines.popleft()
            size, arrived = size + line, arrived - items
        self._arrived = arrived
        if not self._disk.advance(size, arrived):
            return None
        return outcome.points if self._own else 0

    def end(self) -> None:
        """Let go of the file: what has not arrived stays on the disk, and is taken again."""
        with self._disk.lock:
            if any(items for _, items in self._lines):
                self._disk.spool.give_back()
            else:
                self._disk.spool.accept()

    def give_back(self) -> None:
        """Let go of the file after an error: what has not arrived is taken again."""
        with self._disk.lock:
            self._disk.spool.give_back()
