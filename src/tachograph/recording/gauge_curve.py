"""A gauge's curve: every value of its first thousand, then a point an interval with the extremes of all of its values.

``record`` is all that runs while a program trains. Values are held in five variables of a closure,
without a look at the clock: lowest, highest, last, how many, and for how many there is room. One that has no room, or
is no finite number, takes the slow way, which reads the clock, and puts what was held, and itself, into a buffer; it
opens the room again, so that it comes about five times a second, or every two where intervals are long. A fold takes
the buffer into points.

x is the number of values before.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from math import inf, isfinite, nan
from typing import Any

from tachograph.recording._curve_entries import COLUMNS, NONE, STRIDE, CurveState, after, point_of
from tachograph.recording.accumulators import LastValue
from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.packed_points import (
    ODD,
    PackedPoints,
    PlainPoints,
    PointHead,
    PointSources,
    first_branch,
)
from tachograph.recording.points import Attributes
from tachograph.recording.switch import switch
from tachograph.recording.values import Pending, is_finite

FIRST = 1000  # values of a series that are a point each
FEW = 100  # series of a process; with more, an interval is longer
INTERVAL, LONG_INTERVAL = 1.0, 10.0  # seconds a point
_GLANCE, _LONG_GLANCE = 0.2, 2.0  # seconds between two looks at the clock, about
_ROOM = 65_536  # values between them, at most
_CHUNK = 512 * STRIDE
_LITTLE = 24 * STRIDE
_LIMIT = 65_536 * STRIDE
_FAR, _LEAST, _LOWEST = sys.float_info.max, -sys.float_info.max, -inf
_SHORTEST = 0.1  # seconds that an interval has lasted at least when a collection ends it
_AT_ONCE, _PART = 16, 8  # of many series that are due together, so many are taken at once, or one in so many
_VALUES = 7  # the column of how many
_PLAIN = 4  # points of a record that is made in the quick way, at most

_BEGUN = CurveState(0, FIRST)
Named = tuple[str, str, str]


class GaugeCurve:
    """The curve of one series of a gauge, in whose place it records.

    Attributes:
        gauge: shows the last value.
        buffer: entries of :data:`STRIDE` that wait for the next fold.
        next: when there is something to take, by the clock of the curves, unless the buffer is long before.
        head: of all its points.
        late: a value is still on its way from a device.
        show_newest: has the gauge show the newest value; False where one is still on its way from a device.

    Args:
        gauge: see above.
        curves: say how long an interval is, and whether points are wanted at all.
        head: see above.
    """

    __slots__ = (
        *("_curves", "_glanced", "_lock", "_settle", "_shown", "_state"),
        *("buffer", "gauge", "head", "late", "next", "show_newest"),
    )

    def __init__(self, gauge: LastValue, curves: GaugeCurves, head: PointHead) -> None:
        self.gauge, self._curves, self.head = gauge, curves, head
        self.buffer: list[Any] = []
        record, self._settle, self.show_newest = _recorder(self)
        self.reset()
        gauge.keep(self, record)

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.Lock()
        self._settle(0.0, 0, None)
        self.buffer.clear()
        self._state = _BEGUN
        self.late = False
        self._glanced = self._shown = self.next = -inf

    def record_slowly(self, value: Any) -> None:
        """Record one value with its time."""
        if not switch.on:  # in a forked child, which may have the lock as the parent's thread held it
            return
        gauge = self.gauge
        if value.__class__ is not float and value.__class__ is not int:
            value = gauge.losses.read(value)
            if value is None:
                return
        now = self._curves.clock()
        buffer = self.buffer
        if value.__class__ is not Pending and _LEAST <= value <= _FAR:
            count = self._settle(now, 0, value)
            self._shown = now
        else:
            count = self._settle(now, 0, None) + 1
            if value.__class__ is Pending:
                self.late, self.next = True, -inf
            else:
                gauge.current = value
                self._shown = now
                if value.__class__ is float:  # NaN, or an infinity; else an integer beyond the range of floats
                    gauge.losses.nonfinite += 1
            buffer += value, value, value, 1, now
        if self.next == inf:
            self.next = self._next_due()
        since, self._glanced = now - self._glanced, now
        if len(buffer) >= _CHUNK:
            self.fold()
        if ATOMIC and not self.late and not gauge.followed and (self._state.singly <= 0 or not self._wanted()):
            glance = self._curves.glance()
            room = int(count * glance / since) if since >= glance else 4 * count
            self._settle(now, min(room, _ROOM), None)

    def _wanted(self) -> bool:
        return self._curves.sources.wanted is not False

    def fold(self) -> bool:
        """Fold the values recorded so far; False where one is still on its way from a device."""
        if self._lock.locked():  # by another thread, or by this one, which was interrupted: it has its turn
            return False
        with self._lock:
            return self._fold(self._curves.clock())

    def _fold(self, now: float) -> bool:
        if self._settle(now, 0, None):
            self._shown = now
        buffer = self.buffer
        if not switch.on:
            buffer.clear()
        left = len(buffer)  # a trace function that records adds to it all the while
        while left > 0 and buffer:
            chunk = buffer[: min(_CHUNK, left)]
            entries = self._arrived(chunk) if self.late else chunk
            taken = len(entries)
            if not taken:
                self._bound()
                return False
            state = after(entries, self._state, self._curves.longest_interval(), keeps=self._wanted())
            left -= taken
            # No call in these lines, see interrupts.ATOMIC: an interrupt neither loses nor doubles anything.
            del buffer[:taken]
            self._state = state
        self.late = False
        return True

    def _bound(self) -> None:
        """Give up the oldest half where a device holds everything up."""
        if len(self.buffer) > _LIMIT:
            lost = len(self.buffer) // 2 // STRIDE
            del self.buffer[: lost * STRIDE]
            self.gauge.losses.overflow += lost

    def _arrived(self, chunk: list[Any]) -> list[Any]:
        """Return the entries before the first value that is still on its way; NaN for one that its device has lost."""
        found: list[Any] = []
        for place in range(0, len(chunk), STRIDE):
            entry = chunk[place : place + STRIDE]
            pending = entry[0]
            if isinstance(pending, Pending):
                if not pending.ready():
                    break
                number = self.gauge.losses.arrived(pending)
                entry[:3] = [nan if number is None else number] * 3
                if number is None:
                    entry[3] = 0
                elif entry[4] > self._shown:
                    self.gauge.current, self._shown = number, entry[4]
                if number is not None and not is_finite(number):
                    self.gauge.losses.nonfinite += 1
            found += entry
        return found

    def is_due(self, now: float) -> bool:
        """Tell whether there is something to take, or much to fold, which takes memory."""
        return now >= self.next or len(self.buffer) >= _LITTLE

    def take(self, *, everything: bool) -> array[float]:
        """Return the points that are due, or all that were recorded so far, in rows of :data:`COLUMNS`."""
        now = self._curves.clock()
        if self._lock.locked() or not (everything or self.is_due(now)):
            return NONE
        with self._lock:
            self._fold(now)
            values, singly, due, held, points = self._state
            if held is not None and (everything or now >= self._curves.soonest_end(due)):
                due = max(now, held.moment) + self._curves.longest_interval()
                points = points + array("d", held)
                held = None
            self._state = CurveState(values, singly, due, held)
            if held is None:
                self._wait_for_more()
            else:
                self.next = self._next_due()
            return points

    def take_one(self, now: float) -> tuple[Any, ...] | None:
        """Return the only point that is due, as :func:`point_of` does; None where :meth:`take` has to look."""
        if self._lock.locked():
            return None
        with self._lock:
            values, singly, due, held, points = self._state
            if singly > 0 or points or now < self._curves.soonest_end(due) or not switch.on:
                return None
            buffer = self.buffer
            room = 0
            longest, glance = self._curves.longest_interval(), self._curves.glance()
            if buffer and ATOMIC and not self.gauge.followed:  # for as many as come between two looks at the clock
                since = buffer[-1] - due + longest
                room = min(int(sum(buffer[3::STRIDE]) * glance / since), _ROOM) if since > glance else 0
            if self._settle(now, room, None):
                self._shown = now
            self._glanced = now if room else self._glanced
            entries = buffer[:_LITTLE]
            if not entries or len(buffer) > _LITTLE or self.late:
                return None
            found = point_of(entries, values, held)
            if found is None or found[-1] == 1:
                return None
            taken, state = len(entries), CurveState(found[0] + 1, singly, now + longest)
            # No call in these lines, as in a fold.
            del buffer[:taken]
            self._state = state
            if room:
                self.next = self._next_due()
            else:
                self._wait_for_more()
            return found

    def _next_due(self) -> float:
        """Return when the next point may leave."""
        if self.late or self._state.singly > 0:
            return -inf
        return self._curves.soonest_end(self._state.due)

    def _wait_for_more(self) -> None:
        """Have nothing taken before the next value, which goes the slow way."""
        self.next = inf
        if self.buffer or self.late:  # it has come
            self.next = self._next_due()


def _recorder(  # noqa: C901 - each call would cost as much as all of it
    curve: GaugeCurve,
) -> tuple[Callable[[Any], None], Callable[[float, int, Any], int], Callable[[], bool]]:
    """Return functions that share their variables, which are read faster than attributes.

    Returns:
        ``record(value)``; ``settle(now, room, more)``, which has the gauge show the last value, puts what is held, with
        one more unless that is None, into the buffer, makes room for so many, and returns how many values there were;
        and ``show_newest()``.
    """
    low, high, last, count, room = inf, -inf, 0.0, 0, 0

    # No call in any of these, but for the slow way: each is one step for all threads, see interrupts.ATOMIC.
    def record(value: Any) -> None:
        nonlocal low, high, last, count
        if count < room and (value.__class__ is float or value.__class__ is int):
            if low <= value <= high:
                last = value
                count += 1
                return
            if value <= _FAR:  # not for NaN
                if value > high:
                    high = value
                    if value < low:  # noqa: PLR1730 - min() would be a call
                        low = value
                    last = value
                    count += 1
                    return
                if value >= _LEAST:
                    low = value
                    last = value
                    count += 1
                    return
        curve.record_slowly(value)

    def settle(now: float, values: int, more: Any) -> int:
        nonlocal low, high, last, count, room
        held = count
        if more is not None:
            if more < low:  # noqa: PLR1730 - min() would be a call
                low = more
            if more > high:  # noqa: PLR1730
                high = more
            last = more
            held += 1
        if held:
            curve.gauge.current = last
            curve.buffer += low, high, last, held, now
        low, high, count, room = inf, _LOWEST, 0, values
        return held

    def show_newest() -> bool:
        if count:
            curve.gauge.current = last
        return not curve.late or curve.fold()

    return record, settle, show_newest


class GaugeCurves:
    """The curves of a process's gauges.

    Args:
        sources: ask it for points, and know whether they are wanted.
        clock: seconds, monotonic.

    Attributes:
        sources: see above.
        clock: see above.
    """

    def __init__(self, sources: PointSources, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.sources, self.clock = sources, clock
        self._curves: list[GaugeCurve] = []
        self._branch = first_branch()
        sources.add(self)

    def interval(self) -> float:
        """Return the seconds a point."""
        return INTERVAL if len(self._curves) <= FEW else LONG_INTERVAL

    def longest_interval(self) -> float:
        """Return the seconds after which an interval ends by itself: a collection a second ends a short one first."""
        interval = self.interval()
        return interval if interval > INTERVAL else interval + _GLANCE

    def soonest_end(self, due: float) -> float:
        """Return when a collection may end an interval that ends by itself at ``due``.

        A long one waits for its time: as many points as there are series would leave each second.
        """
        longest = self.longest_interval()
        return due if longest == LONG_INTERVAL else due - longest + _SHORTEST

    def glance(self) -> float:
        """Return the seconds between two looks at the clock, about."""
        return _GLANCE if self.interval() == INTERVAL else _LONG_GLANCE

    def follow(self, gauge: LastValue, named: Named, attributes: Attributes) -> GaugeCurve:
        """Return the curve of a gauge's series, new."""
        name, group, unit = named
        made = GaugeCurve(gauge, self, PointHead(name, group, attributes, unit, self._branch))
        self._curves.append(made)
        return made

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""
        return bool(self._curves)

    def take(self, *, everything: bool) -> Iterator[PackedPoints | PlainPoints]:
        """Yield the points that are due, or all that were recorded so far."""
        wall, now = time.time_ns(), self.clock()
        is_long = self.interval() > INTERVAL
        # If many are due at once they are spread over the next ones, and are due apart from then on.
        left = max(_AT_ONCE, len(self._curves) // _PART) if is_long else len(self._curves)
        for curve in list(self._curves):
            if not everything:
                at = curve.next
                if now < at and len(curve.buffer) < _LITTLE:  # as is_due(), which a call of it would double
                    continue
                if now >= at > -inf:
                    left -= 1
                    if left < 0:
                        continue
                if (found := curve.take_one(self.clock())) is not None:
                    x, moment, value, low, low_x, high, high_x, count = found
                    at_unix = wall - int((now - moment) * 1e9)
                    yield PlainPoints(curve.head, 1, (at_unix, x, value, low, low_x, high, high_x, count))
                    continue
            rows = curve.take(everything=everything)
            if not rows:
                continue
            few = len(rows) <= _PLAIN * COLUMNS and max(rows[_VALUES::COLUMNS]) > 1
            try:
                if few and not any(rows[_VALUES + 1 :: COLUMNS]):
                    times = [wall - int((now - moment) * 1e9) for moment in rows[1::COLUMNS]]
                    columns = [*rows[::COLUMNS], *chain.from_iterable([rows[at::COLUMNS] for at in range(2, _VALUES)])]
                    numbers = *times, *columns, *map(int, rows[_VALUES::COLUMNS])
                    yield PlainPoints(curve.head, len(times), numbers)
                    continue
                points = self._packed(rows, curve)
            except MemoryError:
                curve.gauge.losses.overflow += sum(map(int, rows[_VALUES::COLUMNS]))
                raise
            yield points

    def _packed(self, rows: array[float], curve: GaugeCurve) -> PackedPoints:
        columns = [rows[place::COLUMNS] for place in range(COLUMNS)]
        x, moments, values, low, low_x, high, high_x, count, nonfinite, *odd = columns
        wall, now = time.time_ns(), self.clock()
        times = array("q", [wall - int((now - moment) * 1e9) for moment in moments])
        more: dict[str, Any] = {}
        if max(count) > 1:
            more = {"min": low, "min_x": low_x, "max": high, "max_x": high_x}
            if not isfinite(sum(low) + sum(high)):  # an interval has no finite value, mostly
                for key, column, at in (("min", low, low_x), ("max", high, high_x)):
                    more[key] = array("d", [bound if isfinite(bound) else nan for bound in column])
                    found = zip(column, at, strict=True)
                    more[f"{key}_x"] = array("d", [x if isfinite(bound) else nan for bound, x in found])
            for key, column in (("count", count), ("nonfinite", nonfinite)):
                more[key] = array("q", map(int, column))
            more |= {
                key: array("d", [x if x < inf else nan for x in column])
                for key, column in zip(ODD, odd, strict=True)
                if min(column) < inf
            }
        head = curve.head
        return PackedPoints(
            (head.metric,), head.group, head.attributes, head.units, head.branch, times, x, values, more
        )

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        for curve in list(self._curves):
            curve.reset()
