"""The numbers of a stream's records that have arrived.

A record that is sent twice is stored once, and a gap between the numbers is a loss.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class SequenceNumbers:
    """The numbers of one stream that have arrived.

    Args:
        ranges: first and last number of each stored range, in any order.

    Attributes:
        count: of those that have arrived.
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

    def add_range(self, low: int, high: int) -> list[tuple[int, int]]:
        """Note that numbers have arrived; return the first and the last of each range of them that had not."""
        first, last = self._first, self._last
        begin, end = bisect_left(last, low - 1), bisect_right(first, high + 1)  # of the ranges that it touches
        new, after = list[tuple[int, int]](), low
        for known, until in zip(first[begin:end], last[begin:end], strict=True):
            if known > after:
                new.append((after, min(known - 1, high)))
            after = max(after, until + 1)
        if after <= high:
            new.append((after, high))
        if new:
            touched = first[begin:end]
            low, high = min([low, *touched[:1]]), max([high, *last[begin:end][-1:]])
            self.count += sum(until - start + 1 for start, until in new)
            self._gone.update(touched)
            self._changed.difference_update(touched)
            self._changed.add(low)
            first[begin:end], last[begin:end] = [low], [high]
        return new

    def save(self, connection: sqlite3.Connection, stream: int) -> None:
        """Write the changes since the last call, in the transaction of ``connection``."""
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


def read_sequence_numbers(connection: sqlite3.Connection, stream: int) -> SequenceNumbers:
    """Return the numbers of a stream that are in a file."""
    return SequenceNumbers(connection.execute("SELECT first, last FROM arrived WHERE stream = ?", (stream,)))
