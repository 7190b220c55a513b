"""The open window of a Stat, the summary of its windows, and their aggregations.

A fold takes values out of the buffer, :meth:`StatWindow.end` closes. As in :mod:`tachograph.recording.accumulators`,
the sums lie in one tuple that is replaced as a whole, and folding never waits for its lock where its own thread may
hold it.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tachograph.monitor.event import Event
from tachograph.recording.accumulators import LIMIT
from tachograph.recording.closed_windows import Closed, WindowHistory
from tachograph.recording.ids import NumberSequence
from tachograph.recording.interrupts import free_within
from tachograph.recording.journal import Later, Raw
from tachograph.recording.summary import CHUNK, Bare, ValueSummary, Wanted, bare_plus, dressed, summary_of_chunk
from tachograph.recording.values import Number, Pending, as_float

UNLIMITED = 2**63 - 1
_BACK_PRESSURE = 0.25
_SMALL = 64
STAT_EVENT = "torch.monitor.Stat"
# An event on its way: for the journal, and for handlers; what has arrived is not in there any more.
Entry = tuple[list[Raw], list[Event]]
# Takes the name, the time in nanoseconds since 1970, and the data of an event.
Log = Callable[[str, int, dict[str, Any] | Later], Entry]
_order = NumberSequence()
# The state of a Stat: its open window; all closed ones together, and the small ones among them apart; the last one; the
# number of values that the open one still takes (0 where it was closed before its time); device values that have not
# arrived; the event of the window that is closed and not logged yet. A plain tuple: a named one takes three times as
# long to make.
_State = tuple[
    ValueSummary | None, ValueSummary | None, Bare | None, Closed | None, int, tuple[Pending, ...], Entry | None
]


class Aggregation(enum.Enum):
    """A summary value that a :class:`~tachograph.monitor.Stat` computes for each window.

    The first six members and their numbers are those of ``torch.monitor.Aggregation``; percentiles and the standard
    deviation are additions. All except ``COUNT`` and ``VALUE`` cover the finite values.
    """

    VALUE = 0
    """The last value that was added."""
    MEAN = 2
    COUNT = 3
    """How many values were added, NaN and infinities included."""
    SUM = 4
    MAX = 5
    MIN = 6
    P50 = 7
    """The median: exact to 4,096 values a window, then within 1 %; between two values it is interpolated linearly."""
    P90 = 8
    P99 = 9
    STDDEV = 10
    """The standard deviation of the window's values as a population: divided by their number, not by one less."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


QUANTILES = {Aggregation.P50: 0.5, Aggregation.P90: 0.9, Aggregation.P99: 0.99}


def aggregates(found: ValueSummary, asked: Sequence[Aggregation]) -> list[float]:
    """Return the aggregates of a summary; NaN for those that need a finite value where there is none."""
    total = found.total.value()
    mean, high, low = (found.mean(), found.maximum, found.minimum) if found.count else (math.nan,) * 3
    row: list[Number] = [found.last, 0, mean, found.added, total, high, low]  # by the aggregations' numbers
    if found.sketch is not None:
        row += [min(max(part, low), high) for part in found.sketch.quantiles(list(QUANTILES.values()))]
    else:
        row += [math.nan] * len(QUANTILES)
    row.append(found.deviation())
    return [as_float(row[one.value]) for one in asked]


# The positions of an event's values in a window's last value, mean, sum, count, maximum and minimum.
_PLACES = {
    Aggregation.VALUE: 0,
    Aggregation.MEAN: 1,
    Aggregation.COUNT: 3,
    Aggregation.SUM: 2,
    Aggregation.MAX: 4,
    Aggregation.MIN: 5,
}


def data_maker(aggregations: Sequence[Aggregation], keys: Sequence[str]) -> Callable[..., dict[str, float]]:
    """Return the function that makes an event's data of the last value, the sum, the count, the maximum and minimum.

    Args:
        aggregations: of ``torch.monitor`` only.
        keys: in the data, one for each.
    """
    places = tuple((key, _PLACES[asked]) for key, asked in zip(keys, aggregations, strict=True))

    def data(last: Number, total: Number, count: int, high: Number, low: Number) -> dict[str, float]:
        row = (last, total / count, total, count, high, low)
        return {key: float(row[place]) for key, place in places}

    return data


class StatWindow:
    """A Stat's open window and its totals, which may outlive the Stat.

    Attributes:
        buffer: the values that ``add`` appends.
        threshold: its only element is the length of the buffer at which ``add`` calls :meth:`make_room`.
        ended: the Stat is gone: the values that are left are to be logged.
        slot: the number of the open window, by the wall clock.
        start: the beginning of the open window, in nanoseconds since 1970: a multiple of its size, or the time at which
            ``max_samples`` closed the previous one; for the first one the time at which the Stat was made.
        shown: the last window that was not empty.

    Args:
        name: the Stat's name.
        aggregations: of the Stat, each once.
        max_samples: values that close a window before its time.
        boundaries: of the cumulative histogram's buckets; empty for none.
        history: keeps closed windows for readers.
        entry: returns the event of a window that closes; it neither waits nor calls into the program.
        enter: logs that event, each part of it once, however often it is called; neither waits nor calls, either.
        capped: called with the number of values that came after the last sample.
        overflowed: called with the number of values that had no room.
        arrived: reads a value that has arrived from its device; None where it cannot be read.
        clock: nanoseconds since 1970.
    """

    __slots__ = (
        "_arrived",
        "_capped",
        "_clock",
        "_data",
        "_enter",
        "_entry",
        "_folding",
        "_history",
        "_kept",
        "_keys",
        "_lock",
        "_overflowed",
        "_state",
        "_wanted",
        "aggregations",
        "buffer",
        "ended",
        "max_samples",
        "shown",
        "slot",
        "start",
        "threshold",
    )

    def __init__(
        self,
        name: str,
        aggregations: Sequence[Aggregation],
        max_samples: int,
        boundaries: tuple[float, ...],
        history: WindowHistory,
        *,
        entry: Log,
        enter: Callable[[Entry], None],
        capped: Callable[[int], None],
        overflowed: Callable[[int], None],
        arrived: Callable[[Pending], Number | None],
        clock: Callable[[], int],
    ) -> None:
        self.aggregations = tuple(aggregations)
        self.max_samples = max_samples
        self.ended = False
        self.slot = self.start = 0
        self._history = history
        self._keys = tuple(f"{name}.{asked.name.lower()}" for asked in aggregations)
        sketch = any(asked in QUANTILES for asked in aggregations)
        self._wanted = Wanted(boundaries, squares=Aggregation.STDDEV in aggregations, sketch=sketch)
        self._data = data_maker(aggregations, self._keys) if self._wanted.bare() else None
        self._entry, self._enter, self._clock = entry, enter, clock
        self._capped, self._overflowed, self._arrived = capped, overflowed, arrived
        self.buffer: list[Any] = []
        self.threshold = [CHUNK]
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.Lock()
        self._folding = 0
        self._kept: list[Any] | None = None  # by a fold that was cut short
        self.buffer.clear()
        self.shown: Closed | None = None
        self._set((None, None, None, None, self.max_samples, (), None))

    def _set(self, state: _State) -> None:
        self._state = state
        if self.max_samples < UNLIMITED:  # values after the last sample are only counted
            self.threshold[0] = min(CHUNK, state[4]) or CHUNK

    @property
    def latest(self) -> Closed | None:
        """The window that ended last; None where there is none, or it was empty."""
        return self._state[3]

    def values(self) -> dict[Aggregation, float]:
        """Return the aggregates of the window that ended last, zeros where there is none or it was empty."""
        if len(self.buffer) >= self.threshold[0]:
            self.fold(wait=_BACK_PRESSURE)
        latest = self.latest
        return dict.fromkeys(self.aggregations, 0.0) if latest is None else self.aggregates_of(latest)

    def aggregates_of(self, closed: Closed) -> dict[Aggregation, float]:
        """Return the aggregates of a window of this Stat."""
        data = closed[4]
        if isinstance(data, tuple):
            data = data[0](*data[1:])
        return dict(zip(self.aggregations, data.values(), strict=True))

    def has_values(self) -> bool:
        """Tell whether the open window has taken any value."""
        return bool(self.buffer or self._kept or self._state[0] or self._state[5])

    def count(self) -> int:
        """Return how many values the open window has taken."""
        self.fold(wait=_BACK_PRESSURE)
        opened, *_, late, _ = self._state
        return (0 if opened is None else opened.added) + len(late)

    def summary(self) -> ValueSummary | None:
        """Return the summary of all values that were folded so far, those of the open window included."""
        opened, found, sums, *_ = self._state
        for more in (None if sums is None else dressed(sums), opened):
            found = found or more if found is None or more is None else found.plus(more)
        return found

    def make_room(self) -> None:
        """Fold, where the buffer is full; while another thread folds the buffer grows, up to a limit."""
        if self.fold() or len(self.buffer) < LIMIT:
            return
        # Another thread was interrupted in the middle of its fold: let it finish. This thread's own fold cannot.
        if not self.fold(wait=_BACK_PRESSURE):
            self.buffer.pop()
            self._overflowed(1)

    def fold(self, wait: float = 0.0) -> bool:
        """Fold the buffered values; closes the window where they reach ``max_samples``.

        Args:
            wait: seconds to wait for a fold in another thread.

        Returns:
            False where another fold is under way: the values stay in the buffer.
        """
        *_, room, late, unsent = self._state
        if not self.buffer and not self._kept and room and not late and unsent is None:
            return True
        if self._lock.locked() and not self._free(wait):
            return False
        with self._lock:
            self._folding = threading.get_ident()
            self._fold()
            self._folding = 0
        return True

    def end(self, now: int, end: int | None = None, wait: float = 0.0) -> bool:
        """Close the window, whose time is over.

        An empty window logs nothing, nor does the rest of one that ``max_samples`` has closed.

        Args:
            now: the clock's time.
            end: the end of the window's time; None for now.
            wait: seconds to wait for a fold in another thread.

        Returns:
            False where a fold in another thread keeps it open.
        """
        if self._lock.locked() and not self._free(wait):
            return False
        with self._lock:
            self._folding = threading.get_ident()
            self._fold()
            state = self._state
            if state[4]:
                self._close(state, now, now if end is None else end, self.max_samples)
            else:
                self._set((*state[:4], self.max_samples, *state[5:]))
            self._folding = 0
        return True

    def end_small(self, now: int, end: int, thread: int) -> bool:
        """Close the window in a single step, where it holds few plain numbers or none.

        Returns:
            False where :meth:`end` is needed; nothing has changed then.
        """
        opened, closed, sums, latest, room, late, unsent = before = self._state
        if opened is not None or late or unsent is not None or not room or self._kept:
            return False
        buffer, make = self.buffer, self._data
        if not buffer:
            return latest is None
        if make is None or not len(buffer) <= _SMALL < room or self._lock.locked():
            return False
        self._lock.acquire()  # no with statement, which takes 100 ns more: this thread is not one that is interrupted
        try:
            self._folding = thread
            chunk = buffer[:_SMALL] if self._state is before else []
            del buffer[: len(chunk)]
            try:
                total = sum(chunk)
                if not chunk or total - total:
                    raise OverflowError  # noqa: TRY301 - as an integer does that is beyond the range of floats
                ordered = sorted(chunk)
                low, high, count = ordered[0], ordered[-1], len(chunk)
                data = (make, chunk[-1], total, count, high, low)
                latest = (_order.next(), now, count, total, data, self.start, end)
                sums = bare_plus(sums, count, total, low, high)
                entry = self._entry(STAT_EVENT, end, data)
                self._state = (None, closed, sums, latest, room, (), entry)
            except BaseException as error:
                if self._state is before:  # otherwise an interrupt came after all was done
                    self._kept = chunk
                if isinstance(error, TypeError | OverflowError):  # other numbers than plain finite ones
                    return False
                raise
            self.shown = latest
            if self._history.wanted:
                self._history.add(latest)
            self._enter(entry)
            self._state = (None, closed, sums, latest, room, (), None)
        finally:
            self._lock.release()
        return True

    def _free(self, wait: float) -> bool:
        """Wait until no other thread folds; never for a fold of this thread, which a signal handler interrupts."""
        return self._folding != threading.get_ident() and free_within(self._lock, wait)

    def _fold(self) -> None:
        *_, room, late, unsent = self._state
        if unsent is not None:  # an interrupt came between closing a window and logging it, or in the middle of that
            self._send(self._state)
        if late and room:
            self._take_late()
        buffer = self.buffer
        left = len(buffer)  # a trace function that adds refills it all the while
        while self._kept or (left > 0 and buffer) or not self._state[4]:
            before = self._state
            room = before[4]
            if not room:
                self._refuse(before)
                return
            if self._kept:
                chunk, self._kept = self._kept, None
            else:
                chunk = buffer[: min(CHUNK, room, left)]
                left -= len(chunk)
                del buffer[: len(chunk)]
            try:
                self._take(before, chunk, len(chunk))
            except BaseException:  # an interrupt, or no memory: the chunk is either added up or kept
                if self._state is before:
                    self._kept = chunk
                raise

    def _refuse(self, state: _State) -> None:
        """Close the window that has all its samples, and count the values after them as dropped."""
        if state[0] is not None:
            now = self._clock()
            self._close(state, now, now, 0)
        count = len(self.buffer)
        if count:
            del self.buffer[:count]
            self._capped(count)

    def _take(self, state: _State, chunk: list[Any], samples: int) -> None:
        """Add up one chunk."""
        opened, closed, sums, latest, room, late, unsent = state
        found, more = summary_of_chunk(chunk, self._wanted, None if opened is None else opened.sketch)
        if opened is not None:
            found = opened if found is None else opened.plus(found, squares=self._wanted.squares)
        self._set((found, closed, sums, latest, room - samples, late + more, unsent))

    def _take_late(self) -> None:
        opened, closed, sums, latest, room, late, unsent = self._state
        arrived = [pending for pending in late if pending.ready()]
        if arrived:
            rest = tuple(pending for pending in late if pending not in arrived)
            read = [number for number in map(self._arrived, arrived) if number is not None]
            state = opened, closed, sums, latest, room, rest, unsent
            if read:
                self._take(state, read, 0)
            else:
                self._set(state)

    def _close(self, state: _State, now: int, end: int, room: int) -> None:
        opened, closed, sums, _, _, late, _ = state
        if opened is None:
            self._set((None, closed, sums, None, room, late, None))
            return
        rest = opened if opened.sketch is None else opened._replace(sketch=None)
        closed = rest if closed is None else closed.plus(rest)
        data = dict(zip(self._keys, aggregates(opened, self.aggregations), strict=True))
        latest = (_order.next(), now, opened.added, opened.total.value(), data, self.start, end)
        entry = self._entry(STAT_EVENT, end, data)
        # No call in these lines, see interrupts.ATOMIC: the next window begins where this one ends.
        self.start = end
        self._state = (None, closed, sums, latest, room, late, entry)
        self._send(self._state)

    def _send(self, state: _State) -> None:
        closed, entry = state[3], state[6]
        if closed is None or entry is None:
            return
        self.shown = closed
        if self._history.wanted:
            self._history.add(closed)
        self._enter(entry)
        self._set((*state[:6], None))
