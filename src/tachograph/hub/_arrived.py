"""Which numbers of a stream have arrived: ranges, of which there is one where nothing is missing."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable


class Arrived:
    """The numbers of one stream that have arrived.

    Args:
        ranges: first and last number of each range that is known, in any order.

    Attributes:
        count: how many have arrived.
    """

    __slots__ = ("_changed", "_first", "_gone", "_last", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        known = sorted(ranges)
        self._first = [first for first, _ in known]
        self._last = [last for _, last in known]
        self.count = sum(last - first + 1 for first, last in known)
        self._changed: set[int] = set()
        self._gone: set[int] = set()

    @property
    def highest(self) -> int:
        """The highest number that has arrived; 0 before the first."""
        return self._last[-1] if self._last else 0

    def add(self, number: int) -> bool:
        """Note that a number has arrived; False where it had already."""
        first, last = self._first, self._last
        after = bisect_right(first, number)
        if after and number <= last[after - 1]:
            return False
        self.count += 1
        if after < len(first) and first[after] == number + 1:  # it lies right before a range
            self._gone.add(first[after])
            self._changed.discard(first[after])
            first[after] = number
        else:
            first.insert(after, number)
            last.insert(after, number)
        if after and last[after - 1] == number - 1:  # and right behind another
            last[after - 1] = last[after]
            del first[after], last[after]
            after -= 1
        self._changed.add(first[after])
        return True

    def save(self, connection: sqlite3.Connection, stream: int) -> None:
        """Write what has changed since the last time, in the transaction of ``connection``."""
        connection.executemany(
            "DELETE FROM arrived WHERE stream = ? AND first = ?", [(stream, first) for first in self._gone]
        )
        ends = dict(zip(self._first, self._last, strict=True)) if len(self._changed) > 1 else None
        rows = [
            (stream, first, ends[first] if ends else self._last[bisect_right(self._first, first) - 1])
            for first in self._changed
        ]
        connection.executemany("INSERT OR REPLACE INTO arrived VALUES (?, ?, ?)", rows)
        self._gone.clear()
        self._changed.clear()


def arrived(connection: sqlite3.Connection, stream: int) -> Arrived:
    """Return what a file says of a stream."""
    return Arrived(connection.execute("SELECT first, last FROM arrived WHERE stream = ?", (stream,)))
