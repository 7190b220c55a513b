"""A gauge's curve: every value of its first thousand, then a point an interval with the extremes of all of its values.

:meth:`GaugeCurve.record` is all that runs while a program trains. Values are held in five variables of a closure,
without a look at the clock: lowest, highest, last, how many, and for how many there is room. Whatever has no room, or
is no finite number, takes the slow way, which reads the clock, and puts what was held, and itself, into a buffer; it
opens the room again, so that it comes about twenty times a second. A fold takes the buffer into points.

x is the number of values before.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.packed_points import PackedPoints, PointSources
from tachograph.recording.switch import switch
from tachograph.recording.values import Pending, as_float

if TYPE_CHECKING:
    from tachograph.recording.accumulators import LastValue
    from tachograph.recording.points import Attributes

FIRST = 1000  # values of a series that are a point each
FEW = 100  # series of a process; with more, an interval is longer
INTERVAL, LONG_INTERVAL = 1.0, 10.0  # seconds a point
_GLANCE = 0.05  # seconds between two looks at the clock, about
_ROOM = 65_536  # values between them, at most
_STRIDE = 5  # of a buffer: lowest, highest, last, how many, and when the last one was recorded
_CHUNK = 512 * _STRIDE
_LIMIT = 65_536 * _STRIDE
_WAIT = 2.0  # seconds for which points wait for others, to leave together
_COLUMNS = 7  # of a point that waits: x, when, value, lowest, highest, how many, how many not finite
_MOST = (FIRST + 24) * _COLUMNS  # of those that wait; beyond, one point goes on for as long as it takes


class _Held(NamedTuple):
    """Values of one interval; ``low`` and ``high`` are of the finite ones."""

    x: float
    moment: float
    value: float
    low: float
    high: float
    values: int
    nonfinite: int

    def with_later(self, later: _Held) -> _Held:
        low, high = min(self.low, later.low), max(self.high, later.high)
        values, nonfinite = self.values + later.values, self.nonfinite + later.nonfinite
        return _Held(later.x, later.moment, later.value, low, high, values, nonfinite)


class _State(NamedTuple):
    """The state of a curve. Replaced as a whole: an interrupt finds it before a step or after it."""

    values: int = 0  # so far
    singly: int = FIRST  # values that are still to be a point each
    due: float = -inf  # when the interval is over
    held: _Held | None = None


class GaugeCurve:
    """The curve of one series of a gauge.

    Attributes:
        record: records one value.

    Args:
        gauge: see above.
        interval: returns the seconds a point.
        sources: say whether points are wanted at all.
        clock: seconds, monotonic.
    """

    __slots__ = (
        *("_buffer", "_clock", "_gauge", "_glanced", "_interval", "_late", "_lock", "_open", "_out", "_shown"),
        *("_show", "_sources", "_state", "_take", "record"),
    )

    def __init__(
        self,
        gauge: LastValue,
        interval: Callable[[], float],
        sources: PointSources,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauge, self._interval, self._sources, self._clock = gauge, interval, sources, clock
        self._buffer: list[Any] = []
        self.record, self._show, self._take, self._open = _recorder(gauge, self._buffer, self._record_slowly)
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.Lock()
        self._take(0.0)
        self._buffer.clear()
        self._state = _State()
        self._out = array("d")
        self._late = False
        self._glanced = self._shown = -inf

    def _record_slowly(self, value: Any) -> None:
        gauge = self._gauge
        if value.__class__ is not float and value.__class__ is not int:
            value = gauge.losses.read(value)
            if value is None:
                return
        now = self._clock()
        count = self._take(now) + 1
        if value.__class__ is Pending:
            self._late = True
        else:
            gauge.current = value
            self._shown = now
        buffer = self._buffer
        buffer += value, value, value, 1, now
        since, self._glanced = now - self._glanced, now
        if len(buffer) >= _CHUNK:
            self.fold()
        if ATOMIC and not self._late and not gauge.followed and (self._state.singly <= 0 or not self._wanted()):
            room = int(count * _GLANCE / since) if since >= _GLANCE else 2 * count
            self._open(min(room, _ROOM))

    def _wanted(self) -> bool:
        return self._sources.wanted is not False

    def show_newest(self) -> bool:
        """Have the gauge show the newest value; False where one is still on its way from a device."""
        self._show()
        return not self._late or self.fold()

    def fold(self) -> bool:
        """Fold the values recorded so far; False where one is still on its way from a device."""
        if self._lock.locked():  # by another thread, or by this one, which was interrupted: it has its turn
            return False
        with self._lock:
            now = self._clock()
            if self._take(now):
                self._shown = now
            if not switch.on:
                self._buffer.clear()
            return self._fold()

    def _fold(self) -> bool:
        buffer = self._buffer
        left = len(buffer)  # a trace function that records adds to it all the while
        while left > 0 and buffer:
            chunk = buffer[: min(_CHUNK, left)]
            entries = self._arrived(chunk) if self._late else chunk
            taken = len(entries)
            if not taken:
                self._bound()
                return False
            state, more = self._points(entries, self._state)
            out = self._out if self._wanted() else array("d")
            left -= taken
            # No call in these lines, see interrupts.ATOMIC: an interrupt neither loses nor doubles anything.
            del buffer[:taken]
            self._state = state
            out += more
            self._out = out
        self._late = False
        return True

    def _bound(self) -> None:
        """Give up the oldest half where a device holds everything up."""
        if len(self._buffer) > _LIMIT:
            lost = len(self._buffer) // 2 // _STRIDE
            del self._buffer[: lost * _STRIDE]
            self._gauge.losses.overflow += lost

    def _arrived(self, chunk: list[Any]) -> list[Any]:
        """Return the entries before the first value that is still on its way; NaN for one that its device has lost."""
        found: list[Any] = []
        for place in range(0, len(chunk), _STRIDE):
            entry = chunk[place : place + _STRIDE]
            pending = entry[0]
            if isinstance(pending, Pending):
                if not pending.ready():
                    break
                number = self._gauge.losses.arrived(pending)
                entry[:3] = [nan if number is None else number] * 3
                if number is not None and entry[4] >= self._shown:
                    self._gauge.current, self._shown = number, entry[4]
                if number is None:
                    entry[3] = 0
            found += entry
        return found

    def _points(self, entries: Sequence[Any], state: _State) -> tuple[_State, array[float]]:
        """Return the state after entries, and the points that are ready."""
        count, singly, due, held = state
        out, interval, nonfinite = array("d"), self._interval(), 0
        wanted = self._wanted()
        for place in range(0, len(entries), _STRIDE):
            low, high, last, many, moment = entries[place : place + _STRIDE]
            if not many:  # its device has lost it
                continue
            count += many
            value = as_float(last)
            bad = many == 1 and value - value != 0
            nonfinite += bad
            if not wanted:
                continue
            limits = (inf, -inf) if bad else (as_float(low), as_float(high))
            new = _Held(float(count - 1), moment, value, *limits, many, int(bad))
            full = len(self._out) + len(out) >= _MOST
            if singly > 0 and many == 1 and held is None and not full:
                singly -= 1
                out.extend(new)
                due = moment + interval
                continue
            held = new if held is None else held.with_later(new)
            if moment >= due and not full:
                out.extend(held)
                held, due = None, moment + interval
        self._gauge.losses.nonfinite += nonfinite
        return _State(count, singly, due, held), out

    def take(self, *, everything: bool) -> array[float]:
        """Return the points that are due, or all that were recorded so far, in rows of :data:`_COLUMNS`."""
        self.fold()
        if self._lock.locked():
            return array("d")
        with self._lock:
            state, now = self._state, self._clock()
            held = state.held
            if held is not None and (everything or now >= state.due):
                more = array("d", held)
                due = max(state.due, held.moment) + self._interval()
                rest = _State(state.values, state.singly, due)
                self._state = rest
                self._out += more
            out = self._out
            if not out or not (everything or now - out[1] >= _WAIT or len(out) >= _CHUNK):
                return array("d")
            self._out = array("d")
            return out


def _recorder(  # noqa: C901 - each call would cost as much as all of it
    gauge: LastValue, buffer: list[Any], slowly: Callable[[Any], None]
) -> tuple[Callable[[Any], None], Callable[[], None], Callable[[float], int], Callable[[int], None]]:
    """Return functions that share their variables, which are read faster than attributes.

    Returns:
        ``record(value)``; ``show()``, after which the gauge shows the last value; ``take(now)``, which puts what is
        held into the buffer, closes the room, and returns how many values were held; ``open(room)``.
    """
    low, high, last, count, room = inf, -inf, 0.0, 0, 0
    plain, whole, highest, lowest = float, int, inf, -inf
    entries = buffer

    # No call in any of these, but for the slow way: each is one step for all threads, see
    # tachograph.recording.interrupts.ATOMIC.
    def record(value: Any) -> None:
        nonlocal low, high, last, count
        if count < room and (value.__class__ is plain or value.__class__ is whole):
            if low <= value <= high:
                last = value
                count += 1
                return
            if value < highest:  # not for NaN
                if value > high:
                    high = value
                    low = min(low, value)
                    last = value
                    count += 1
                    return
                if value > lowest:
                    low = value
                    last = value
                    count += 1
                    return
        slowly(value)

    def show() -> None:
        if count:
            gauge.current = last

    def take(now: float) -> int:
        nonlocal low, high, count, room, entries
        held = count
        if held:
            gauge.current = last
            entries += low, high, last, held, now
        low, high, count, room = highest, lowest, 0, 0
        return held

    def open_room(values: int) -> None:
        nonlocal room
        room = values

    return record, show, take, open_room


class GaugeCurves:
    """The curves of a process's gauges.

    Args:
        sources: ask it for points.
    """

    def __init__(self, sources: PointSources) -> None:
        self._sources = sources
        self._curves: dict[GaugeCurve, tuple[str, str, str, Attributes]] = {}
        self._branch = _restarts()
        sources.add(self)

    def interval(self) -> float:
        """Return the seconds a point."""
        return INTERVAL if len(self._curves) <= FEW else LONG_INTERVAL

    def follow(self, gauge: LastValue, group: str, name: str, unit: str, attributes: Attributes) -> GaugeCurve:
        """Return the curve of a gauge's series, new."""
        made = GaugeCurve(gauge, self.interval, self._sources)
        self._curves[made] = (name, group, unit, attributes)
        return made

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""
        return bool(self._curves)

    def take(self, *, everything: bool) -> Iterator[PackedPoints]:
        """Yield the points that are due, or all that were recorded so far."""
        for curve, (name, group, unit, attributes) in list(self._curves.items()):
            rows = curve.take(everything=everything)
            if rows:
                yield self._packed(rows, name, group, unit, attributes)

    def _packed(self, rows: array[float], name: str, group: str, unit: str, attributes: Attributes) -> PackedPoints:
        x, moments, values, low, high, count, nonfinite = (rows[place::_COLUMNS] for place in range(_COLUMNS))
        wall, now = time.time_ns(), time.monotonic()
        times = array("q", [wall - int((now - moment) * 1e9) for moment in moments])
        more: dict[str, Any] = {}
        if max(count) > 1:
            for key, column in (("min", low), ("max", high)):
                more[key] = array("d", [bound if isfinite(bound) else nan for bound in column])
            for key, column in (("count", count), ("nonfinite", nonfinite)):
                more[key] = array("q", map(int, column))
        return PackedPoints((name,), group, attributes, unit, self._branch, times, x, values, more)

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        for curve in list(self._curves):
            curve.reset()


def _restarts() -> int:
    found = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(found) if found.isdecimal() else 0
