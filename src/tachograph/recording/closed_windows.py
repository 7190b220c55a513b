"""Windows that have closed and that readers have still to get: no reader's collection takes one from another reader.

A closing thread appends its window, without a lock; readers take slices, each from its own position on. Windows that
all of them have are let go of, and nothing is kept while there is no reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tachograph.recording.values import Number

MOST_OF_A_STAT = 65_536  # windows: more than a minute of the shortest, of 1 ms
MOST = 98_304  # windows of all Stats; one takes 280 to 650 bytes, so that they stay below 64 MiB
_SHARE = 64  # one part in so many goes at once: a list is slow to give up its first element alone

# A window that has ended: as how manieth of the process, when it was closed, how many values it had, their sum, its
# event's data (a small window's is made when it is asked for), and between which times it lies. Times are nanoseconds
# since 1970. A plain tuple: a named one takes three times as long to make.
Closed = tuple[int, int, int, Number, dict[str, float] | tuple[Any, ...], int, int]
ORDER: Final = 0
COUNT: Final = 2
SUM: Final = 3
DATA: Final = 4
START: Final = 5
END: Final = 6


class WindowHistory:
    """The closed windows of one Stat's name, the oldest first, as far as a reader may still ask for them.

    Attributes:
        wanted: there is a reader: windows are to be added.
        first: the number of the oldest that is kept, counted from 0.
        records: those that are kept.
    """

    __slots__ = ("_all", "first", "records", "wanted")

    def __init__(self, everything: ClosedWindows) -> None:
        self._all = everything
        self.wanted = False
        self.first = 0
        self.records: list[Closed] = []

    def add(self, closed: Closed) -> None:
        """Keep a window. Never waits, as it runs wherever a Stat is destroyed; the same one again changes nothing."""
        records, everything = self.records, self._all
        if records and records[-1] is closed:  # an interrupt came between closing it and logging it
            return
        records.append(closed)
        everything.kept += 1
        if everything.kept > everything.most or len(records) > everything.most_of_a_stat:
            everything.make_room(self)

    def end(self) -> int:
        """Return the number that the next window will have, or a lower one while the oldest ones go.

        Takes no lock: a signal handler may collect in the middle of a collection of its own thread.
        """
        return self.first + len(self.records)

    def newest(self, until: int) -> int:
        """Return the end of the last window before the number ``until``; 0 where it is not kept any more."""
        last = self.records[max(until - self.first - 1, 0) : max(until - self.first, 0)]
        return last[0][END] if last else 0


class Windowed(NamedTuple):
    """The windows behind a gauge that shows the last one.

    Attributes:
        until: the number of the first window that had not closed at this collection.
        value: returns the gauge's value of a window; None where the window has none.
    """

    history: WindowHistory
    until: int
    value: Callable[[Closed], Number | None]


class Cursor:
    """The position of one reader.

    Args:
        lost: called with a number of windows that went before the reader took them.
    """

    __slots__ = ("lost", "positions")

    def __init__(self, lost: Callable[[int], object]) -> None:
        self.lost = lost
        self.positions: dict[WindowHistory, int] = {}


class ClosedWindows:
    """All histories of a registry, and its readers.

    Args:
        most_of_a_stat: windows that may wait of one Stat's name.
        most: windows that may wait in all.

    Attributes:
        lock: held while positions change, for microseconds.
        kept: how many windows are kept in all. Two threads that add at once may get it wrong by one, which
            :meth:`recount` puts right.
    """

    def __init__(self, *, most_of_a_stat: int = MOST_OF_A_STAT, most: int = MOST) -> None:
        self.most_of_a_stat, self.most = most_of_a_stat, most
        self.lock = threading.Lock()
        self.kept = 0
        self._histories: list[WindowHistory] = []
        self._cursors: list[Cursor] = []

    def history(self) -> WindowHistory:
        """Return a new history."""
        made = WindowHistory(self)
        with self.lock:
            made.wanted = bool(self._cursors)
            self._histories.append(made)
        return made

    def attach(self, cursor: Cursor) -> None:
        """Keep windows for one more reader, from the next one on that closes."""
        with self.lock:
            cursor.positions = {each: each.first + len(each.records) for each in self._histories}
            self._cursors.append(cursor)
            for history in self._histories:
                history.wanted = True

    def detach(self, cursor: Cursor) -> None:
        """Keep nothing more for a reader; does nothing where it was not attached."""
        with self.lock:
            self._cursors = [other for other in self._cursors if other is not cursor]
            for history in self._histories:
                if not self._cursors:
                    history.wanted = False
                self._let_go(history)

    def take(self, cursor: Cursor, history: WindowHistory, until: int) -> list[Closed]:
        """Return the windows up to the number ``until`` that a reader has not taken yet."""
        with self.lock:
            position = max(cursor.positions.get(history, 0), history.first)
            found = history.records[position - history.first : max(until - history.first, 0)]
            cursor.positions[history] = position + len(found)
            self._let_go(history)
        return found

    def _let_go(self, history: WindowHistory) -> None:
        """Forget the windows that every reader has taken."""
        end = history.first + len(history.records)
        taken = min([cursor.positions.get(history, 0) for cursor in self._cursors], default=end) - history.first
        if taken > 0:
            del history.records[:taken]
            history.first += taken
            self.kept -= taken

    def make_room(self, history: WindowHistory) -> None:
        """Forget the oldest windows of a Stat that has too many, or is the one that adds to too many.

        Its newest one stays. Readers that had not taken them are told. If the lock is held, nothing happens until
        the next window.
        """
        count = max(1, len(history.records) // _SHARE)
        if count >= len(history.records) or not self.lock.acquire(blocking=False):
            return
        try:
            del history.records[:count]
            history.first += count
            self.kept -= count
            for cursor in self._cursors:
                missed = history.first - cursor.positions.get(history, 0)
                if missed > 0:
                    cursor.positions[history] = history.first
                    cursor.lost(missed)
        finally:
            self.lock.release()

    def recount(self) -> None:
        """Count the windows that are kept."""
        with self.lock:
            self.kept = sum([len(history.records) for history in self._histories])

    def reset_in_child(self) -> None:
        """Forget windows and readers after a fork: both are the parent process's."""
        self.lock = threading.Lock()
        self.kept = 0
        self._cursors = []
        for history in self._histories:
            history.wanted = False
            history.first += len(history.records)
            history.records = []
