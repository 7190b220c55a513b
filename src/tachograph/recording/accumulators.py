"""Accumulators: one a series takes its values. Recording appends; folding aggregates, at C speed, later.

An accumulator's ``record`` is all that runs while a program trains: for a gauge one assignment, else one append to a
plain list. :meth:`fold` takes the list's content out and adds it up. It never waits for its lock, since a signal
handler may record in the middle of a fold of its own thread. Everything that has been added up lives in one tuple that
is replaced as a whole, so that a reader, another thread or an interrupt never sees half a fold.
"""

from __future__ import annotations

import struct
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol

from tachograph.recording.exponential import ExponentialCounts, ExponentialHistogram
from tachograph.recording.interrupts import free_within
from tachograph.recording.intervals import NEVER, NO_COUNTS, NOTHING, Counted, IntervalReader, Intervals, Known
from tachograph.recording.kept_calls import KeptCalls
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.summary import (
    CHUNK,
    WORTH_PACKING,
    Exemplar,
    Total,
    ValueSummary,
    Wanted,
    no_buckets,
    ordered_summary_of,
    sorted_out,
    sum_of,
)
from tachograph.recording.switch import switch
from tachograph.recording.values import Number, Pending, is_finite

_WAITING_LIMIT = 64
LIMIT = 65_536
FOLD_WAIT = 0.2  # seconds that a collection waits for another thread's fold
_BACK_PRESSURE = 0.25


class Followed(Protocol):
    """A recorder elsewhere whose values a gauge shows: that costs it nothing."""

    def newest(self) -> float:
        """Return when its newest value was recorded, in seconds on a clock."""

    def unseen(self) -> tuple[float, float] | None:
        """Return when its last value was recorded, and that value; None where the gauge has it, or a later one."""


class Keeper(Protocol):
    """The keeper of all values of a gauge."""

    def show_newest(self) -> bool:
        """Have the gauge show the newest value; False where one is still on its way from a device."""

    def fold(self) -> bool:
        """Have the gauge show the newest value, once; False where one is still on its way from a device."""


class LastValue:
    """A gauge: the last value that was set.

    Attributes:
        current: that value; a recorder that it follows may set it, where it is newer.
        followed: the recorders whose values it shows, too.
        record: records one value: :meth:`set`, or its curve's.
        curve: keeps the values, too; None where nothing asks for them.
        waiting: values that are on their way from a device; None, or empty, where there are none.
    """

    __slots__ = ("current", "curve", "followed", "losses", "record", "start_unix_nano", "waiting")

    def __init__(self, losses: SeriesLosses) -> None:
        self.losses = losses
        self.start_unix_nano = time.time_ns()
        self.current: Number | None = None
        self.waiting: deque[Pending] | None = None
        self.followed: tuple[Followed, ...] = ()
        self.curve: Keeper | None = None
        self.record: Callable[[Any], None] = self.set

    def keep(self, curve: Keeper, record: Callable[[Any], None]) -> None:
        """Keep the values in a curve from now on, which records them."""
        self.curve, self.record = curve, record

    def set(self, value: Any) -> None:
        """Set the gauge. NaN and infinities are shown as they are, and counted."""
        if value.__class__ is float:
            self.current = value
            if value - value:  # NaN is true; finite numbers give 0.0
                self.losses.nonfinite += 1
            self.waiting = None
            return
        number = self.losses.read(value)
        if isinstance(number, Pending):
            if self.waiting is None:
                self.waiting = deque(maxlen=_WAITING_LIMIT)
            elif len(self.waiting) == _WAITING_LIMIT:
                self.fold()
            self.waiting.append(number)
        elif number is not None:
            self._set(number)
            self.waiting = None

    def _set(self, number: Number) -> None:
        self.current = number
        if not is_finite(number):
            self.losses.nonfinite += 1

    def follow(self, whose: Followed) -> None:
        """Show from now on the values of another recorder, too."""
        self.followed = (*self.followed, whose)

    def leave(self, whose: Followed) -> None:
        """Show the values of another recorder so far, and nothing later."""
        self._take_over()
        self.followed = tuple(other for other in self.followed if other is not whose)

    def show_late(self, value: Number, moment: float, whose: Followed) -> None:
        """Show a value that another recorder took at ``moment``, unless a later one of any other is there."""
        if all(other is whose or other.newest() <= moment for other in self.followed):
            self.current = value

    def _take_over(self) -> None:
        unseen = [found for other in self.followed if (found := other.unseen()) is not None]
        if unseen:
            self.current = max(reversed(unseen), key=itemgetter(0))[1]

    def fold(self) -> bool:
        """Take over values from elsewhere, and device values that have arrived; True where none is on its way."""
        waiting, curve = self.waiting, self.curve
        all_arrived = curve is None or curve.show_newest()
        if not switch.on:
            self.waiting = None
            return True
        if not (waiting or self.followed):
            return all_arrived
        if self.followed:
            self._take_over()
        while waiting and waiting[0].ready():
            try:
                arrived = waiting.popleft()
            except IndexError:  # another thread that folds took it
                break
            number = self.losses.arrived(arrived) if waiting is self.waiting else None
            if number is not None:
                self._set(number)
        return all_arrived and not waiting

    def value(self) -> Number | None:
        """Return the last value, or None where there was none yet."""
        return self.current

    def put_aside(self) -> tuple[Any, ...]:
        """Return the values for :meth:`put_back`, and begin anew; its curve and its followers go on."""
        self.fold()
        if self.curve is not None:
            self.curve.fold()
        before = self.current, self.waiting, self.start_unix_nano
        self.current, self.waiting, self.start_unix_nano = None, None, time.time_ns()
        return before

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Restore the values that were put aside."""
        self.current, self.waiting, self.start_unix_nano = before

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self.current = None
        self.waiting = None
        self.followed = ()
        self.start_unix_nano = time.time_ns()


class _Buffered:
    """An accumulator that records into a list, and folds it in chunks."""

    __slots__ = (
        "_buffer",
        "_folding",
        "_kept",
        "_late",
        "_lock",
        "_state",
        "losses",
        "record",
        "start_unix_nano",
        "tap",
    )
    _state: Any

    def __init__(self, losses: SeriesLosses) -> None:
        self.losses = losses
        self.start_unix_nano = time.time_ns()
        self.tap: Callable[[Sequence[Number]], None] | None = None
        self._lock = threading.Lock()
        self._buffer: list[Any] = []
        self._kept: list[Any] | None = None  # by a fold that was cut short
        self._late: list[Pending] = []
        self._folding = 0
        self.record = _recorder(self._buffer, losses, self._make_room)

    def _make_room(self) -> bool:
        if self.fold() or len(self._buffer) < LIMIT:
            return True
        # Another thread was interrupted in the middle of its fold: let it finish. This thread's own fold cannot.
        if self._folding != threading.get_ident() and self.fold(wait=_BACK_PRESSURE):
            return True
        self.losses.overflow += 1
        return False

    def fold(self, wait: float = 0.0) -> bool:
        """Add up the values recorded so far.

        Args:
            wait: seconds to wait for a fold that another thread has begun; never wait in a signal handler.

        Returns:
            False where another fold is under way: the values stay in the buffer.
        """
        if not switch.on:
            self._buffer.clear()
            return True
        if self._lock.locked():
            if not free_within(self._lock, wait):  # the holder is never this thread, from here on
                return False
        elif not (self._buffer or self._late or self._kept):
            return True
        with self._lock:
            self._folding = threading.get_ident()
            if self._late:
                self._take_late()
            self._fold_buffer()
            self._folding = 0
        return True

    def _fold_buffer(self) -> None:
        # Not in the with statement itself: see interrupts, of the table of exceptions.
        buffer = self._buffer
        left = len(buffer)  # a trace function that records adds to it all the while
        while self._kept or (left > 0 and buffer):
            before = self._state
            if self._kept:
                chunk, self._kept = self._kept, None
            else:
                chunk = buffer[: min(CHUNK, left)]
                left -= len(chunk)
                del buffer[: len(chunk)]
            try:
                self._fold_chunk(chunk)
            except BaseException:  # an interrupt, or no memory: the chunk is either added up or kept
                if self._state is before:
                    self._kept = chunk
                raise

    def rests(self) -> bool:
        """Tell whether nothing waits to be folded, and nothing is being folded."""
        return not (self._buffer or self._late or self._kept or self._lock.locked())

    def _fold_chunk(self, chunk: list[Any]) -> None:
        """Add up one chunk. Plain finite numbers are the case that is fast."""
        try:
            total: Number = sum(chunk)
            clean = total - total == 0
            if clean:
                self._absorb(chunk, total, 0)
        except (TypeError, OverflowError, struct.error):  # a device value, an integer beyond the range of floats
            clean = False
        if not clean:
            self._fold_sorted_out(chunk)
        tap = self.tap
        if tap is not None:
            tap(chunk)

    def _fold_sorted_out(self, chunk: list[Any]) -> None:
        numbers, late = sorted_out(chunk)
        finite = [number for number in numbers if is_finite(number)]
        self._absorb(finite, sum_of(finite), len(numbers) - len(finite))
        self._late += late
        chunk[:] = numbers

    def _take_late(self) -> None:
        arrived = [pending for pending in self._late if pending.ready()]
        if arrived:
            self._late = [pending for pending in self._late if pending not in arrived]
            self._fold_chunk([number for number in map(self.losses.arrived, arrived) if number is not None])

    def _absorb(self, finite: list[Any], total: Number, nonfinite: int) -> None:
        raise NotImplementedError

    def put_aside(self) -> tuple[Any, ...]:
        """Return the values for :meth:`put_back`, and begin anew."""
        with self._lock:
            self._folding = threading.get_ident()
            self._fold_buffer()
            before = self._state, self._late, self.tap, self.start_unix_nano
            self._state, self._late, self.tap, self.start_unix_nano = self._no_values(), [], None, time.time_ns()
            self._folding = 0
        return before

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Restore the values that were put aside."""
        with self._lock:
            self._state, self._late, self.tap, self.start_unix_nano = before

    def _no_values(self) -> Any:
        raise NotImplementedError

    def outstanding(self) -> int:
        """Return how many values wait to be folded, device values included."""
        return len(self._buffer) + len(self._late) + len(self._kept or ())

    def _reset_buffer(self) -> None:
        self._lock = threading.Lock()
        self._buffer.clear()
        self._kept = None
        self._late = []
        self.tap = None
        self.start_unix_nano = time.time_ns()


def _recorder(buffer: list[Any], losses: SeriesLosses, make_room: Callable[[], bool]) -> Callable[[object], None]:
    append = buffer.append
    border = losses.read

    def record(value: object) -> None:
        if value.__class__ is float and len(buffer) < CHUNK:
            buffer.append(value)  # specialised by CPython, unlike a bound append
            return
        if len(buffer) >= CHUNK and not make_room():
            return
        if value.__class__ is not float and value.__class__ is not int:
            value = border(value)
            if value is None:
                return
        append(value)

    return record


class Sum(_Buffered):
    """A counter: the sum of the values, exact for integers. Negative and non-finite ones are not added."""

    __slots__ = ()
    _state: tuple[Total, int]

    def __init__(self, losses: SeriesLosses) -> None:
        super().__init__(losses)
        self._state = self._no_values()

    def _no_values(self) -> tuple[Total, int]:
        return Total(), 0

    def _absorb(self, finite: list[Any], total: Number, nonfinite: int) -> None:
        if finite and min(finite) < 0:
            accepted = [number for number in finite if number >= 0]
            self.losses.refuse_negative(len(finite) - len(accepted))
            finite, total = accepted, sum_of(accepted)
        self.losses.nonfinite += nonfinite
        before, count = self._state
        self._state = (before.plus(total), count + len(finite))

    def value(self) -> Number | None:
        """Return the sum, or None where nothing was added yet."""
        total, count = self._state
        return total.value() if count else None

    def recorded(self) -> int:
        """Return how many values were added, those included that wait to be folded."""
        return self._state[1] + self.outstanding()

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._reset_buffer()
        self._state = self._no_values()


_ORDERED = Wanted(ordered=True)


@lru_cache(maxsize=64)
def _buckets(boundaries: tuple[float, ...]) -> Wanted:
    return Wanted(boundaries)


class Distribution(_Buffered):
    """A histogram: count, sum, minimum, maximum and buckets of the values.

    Args:
        losses: where values are counted that cannot be taken.
        boundaries: upper bounds of the buckets, ascending, a value on a bound counting below it; empty for none.
        intervals: the readers for which it counts the values by exponential buckets, too.

    Attributes:
        kept: sees the longest of the values: durations of a function's calls; None for all other values.
    """

    __slots__ = ("_intervals", "_wanted", "boundaries", "exemplars", "kept")
    _state: tuple[ValueSummary, Counted | None]

    def __init__(self, losses: SeriesLosses, boundaries: tuple[float, ...], intervals: Intervals = NEVER) -> None:
        super().__init__(losses)
        self.boundaries = boundaries
        self.exemplars: dict[int, Exemplar] | None = None
        self.kept: KeptCalls | None = None
        self._intervals = intervals
        self._wanted = _buckets(boundaries)
        self._state = self._no_values()
        if switch.made is not None:
            switch.made(self)

    def _no_values(self) -> tuple[ValueSummary, Counted | None]:
        return ValueSummary(buckets=no_buckets(self.boundaries)), None

    def put_aside(self) -> tuple[Any, ...]:
        """Return the values for :meth:`put_back`, and begin anew."""
        before = super().put_aside()
        exemplars, self.exemplars = self.exemplars, None
        return before, exemplars

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Restore the values that were put aside."""
        state, self.exemplars = before
        super().put_back(state)

    def _absorb(self, finite: list[Any], total: Number, nonfinite: int) -> None:
        summary, counted = self._state
        kept = self._intervals.kept
        ordered: Any = None
        if 0 < len(finite) < WORTH_PACKING:
            ordered = sorted(finite)
            added = summary.plus_ordered(ordered, total, self.boundaries, nonfinite)
            longest = ordered[-1]
        else:
            wanted = _ORDERED if kept and not self.boundaries else self._wanted
            more, ordered = ordered_summary_of(finite, total, wanted, nonfinite)
            added = summary.plus(more)
            longest = more.maximum
        if not kept:
            counted = None
        elif ordered is not None:
            counted = (counted or Counted()).plus(ordered)
        self._state = added, counted
        if self.kept is not None and longest > self.kept.least:
            self.kept.folded(finite)
        if nonfinite:
            self.losses.nonfinite += nonfinite

    def summary(self) -> ValueSummary:
        """Return the values that have been folded so far, added up."""
        return self._state[0]

    def read(
        self, reader: IntervalReader, wait: float = 0.0, known: Known | None = None
    ) -> tuple[ValueSummary, ExponentialHistogram | None]:
        """Return the values that have been folded so far, and those of a reader's interval, which ends with it.

        Args:
            reader: of the registry's intervals.
            wait: seconds to wait for a fold that another thread has begun; one of this thread is never waited for.
            known: what :func:`unread` returned, and its histogram.

        Returns:
            No histogram where a fold is under way: the interval goes on.
        """
        summary, counted = self._state
        if counted is not None and self.rests() and counted.is_read_by(reader):
            return summary, NOTHING
        if self._lock.locked() and (self._folding == threading.get_ident() or not free_within(self._lock, wait)):
            return self._state[0], None
        with self._lock:
            self._folding = threading.get_ident()
            summary, counted = self._state
            interval = NOTHING
            if counted is not None:
                interval, counted = counted.read(reader, self._intervals, known)
                self._state = summary, counted
            self._folding = 0
        return summary, interval

    def recorded(self) -> int:
        """Return how many values were recorded, those included that wait to be folded."""
        return self._state[0].added + self.outstanding()

    def note(self, exemplar: Exemplar) -> None:
        """Keep an exemplar: the latest one for each bucket."""
        if self.exemplars is None:
            self.exemplars = {}
        self.exemplars[bisect_left(self.boundaries, exemplar.value)] = exemplar

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._reset_buffer()
        self.exemplars = None
        self._state = self._no_values()


def to_be_folded(series: Sequence[Distribution]) -> list[Distribution]:
    """Return those of which something waits to be folded, or is being folded: each collection looks at all of them."""
    return [of for of in series if of._buffer or of._late or of._kept or of._lock.locked()]  # noqa: SLF001 - ours


def unread(series: Sequence[Distribution], reader: IntervalReader) -> list[tuple[int, ExponentialCounts]]:
    """Return the places of those that a reader has not read to the last fold, with the counts that none has read."""
    found: list[tuple[int, ExponentialCounts]] = []
    for place, of in enumerate(series):
        counted = of._state[1]  # noqa: SLF001 - ours
        if counted is not None and (counted.now is not NO_COUNTS or not counted.is_read_by(reader)):
            found.append((place, counted.now))
    return found


def summaries_of(series: Sequence[Distribution]) -> list[ValueSummary]:
    """Return the summary of each."""
    return [of._state[0] for of in series]  # noqa: SLF001 - ours


Accumulator = LastValue | Sum | Distribution
