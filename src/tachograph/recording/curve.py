"""A curve: the points of one metric in one execution, thinned to so many a second, on their way into the journal.

:func:`recorder` makes the function that a program calls. A value that is held back goes into four fields of the
:class:`CurveRecorder` (lowest, highest, last, count); any other one into its buffer. A fold takes both to the throttle
(:mod:`tachograph.recording.throttle`), which says which points are ready; those are logged. Like the accumulators', a
fold never waits for its lock where its own thread may hold it, and a thread that finds the lock taken leaves its values
to the one that folds.

The clock takes as long as all else: where values with an x come faster than one a millisecond, it is looked at once in
about that time. So one that comes after a sudden rest may count for the interval before, until the next fold.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Mapping
from math import inf, nan
from typing import Any, Protocol

from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import finite
from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.journal import Journal, Raw
from tachograph.recording.logged_points import events_of
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.throttle import STRIDE, CurvePoint, Throttle
from tachograph.recording.values import Number, Pending

LIMIT = 65_536 * 3
_CHUNK = 512 * STRIDE
LOOK = 0.001  # seconds between two looks at the clock, about, where values with an x come faster
_FAR = sys.float_info.max
_WHOLE = 2**1023  # whole numbers below it are finite as floats


class CurveRecorder:
    """The recorder of one metric's curve, in one execution.

    Attributes:
        labels: the metric's own attributes, which each of its points has.
        gauge: its accumulator.
        due: when the next fold is due, on the execution's clock.

    Args:
        labels: see above.
        gauge: see above; it shows the values that are held back, too.
        journal: where the points go.
        registry: where losses are counted.
        clock: seconds; of the times in the buffer.
        start: when the execution began, on that clock.
        branch: the number of the first branch.
    """

    # For :func:`recorder`:
    #   buffer    values that are not folded: value, x or None, and time in turn, added in one step
    #   until     to when a value is held back without the buffer, if it is a float and its x does not go back
    #   looked    while `count` is below it, a value that has an x is held back without a look at the clock
    #   unlooked  how many are after each look: as many as came in LOOK seconds, when they were folded last
    #   x         of the value that was held back last, or of the last one before it
    #   last, moment, low, low_x, high, high_x, count    of the values that were held back without the buffer: the
    #             last one, the time of the last look, the extremes with their x, how many; all older than the buffer
    #   shown     the value of `last` that the gauge has, or that is older than the one that it has
    #   start     when the execution began
    #   late      values were recorded that are still on their way from a device
    __slots__ = (
        *("buffer", "due", "gauge", "labels", "late", "looked", "shown", "start", "unlooked", "until"),
        *("count", "high", "high_x", "last", "low", "low_x", "moment", "x"),
        *(
            "_allowed",
            "_clock",
            "_folded",
            "_interval",
            "_journal",
            "_kept",
            "_left",
            "_lock",
            "_outgoing",
            "_registry",
            "_throttle",
        ),
    )

    def __init__(
        self,
        labels: Mapping[str, AttributeValue],
        gauge: LastValue,
        *,
        journal: Journal,
        registry: Registry,
        clock: Callable[[], float],
        start: float,
        branch: int = 0,
    ) -> None:
        self.labels, self.gauge = labels, gauge
        self._journal, self._registry, self._clock, self.start = journal, registry, clock, start
        self._lock = threading.Lock()
        self._interval = self._allowed = inf  # seconds a point; and the shortest one that was asked for
        self._throttle = Throttle(branch=branch)
        self._outgoing: list[Raw] = []  # logged, but for an interrupt
        self._folded = -inf  # when the last value was recorded that came through the buffer
        self._left = -inf  # when the values were folded last that were held back without it
        self.buffer: Any = []
        self._kept: list[Any] | None = None  # by a fold that was cut short
        self.late = False
        self.due = self.until = -inf
        self.last = self.shown = self.moment = 0.0
        self.x: Number = inf
        self.low_x: Number = 0
        self.high_x: Number = 0
        self.low, self.high = inf, -inf
        self.count = self.looked = self.unlooked = 0
        gauge.follow(self)  # last: an interrupt in between leaves none that is half made

    def allow(self, a_second: float | None) -> None:
        """Let so many points a second through, if that is more than so far; None for all."""
        interval = 0.0 if a_second is None else 1 / a_second
        if interval >= self._allowed:
            return
        self._allowed = interval
        if not self._lock.locked():  # or the fold does it that holds the lock, maybe of this very thread
            with self._lock:
                self._adopt_interval()

    def _adopt_interval(self) -> None:
        interval, before = self._allowed, self._interval
        if interval < before:
            self._interval = interval
            if before < inf:
                self.due = self._throttle.due - (before - interval) if interval else -inf
                self._throttle = self._throttle._replace(due=self.due)

    def fold(self, now: float) -> None:
        """Fold everything recorded until now, and let go the points that are due by then."""
        for _ in range(2):  # once more for values from threads that found the lock held, and did not wait for it
            if self._lock.locked():
                break
            with self._lock:
                arrived = self._fold()
                self._send(now)
            if not self.buffer or not arrived:
                break
        if len(self.buffer) >= LIMIT and not self._lock.locked():
            with self._lock:  # nothing can be folded: the values of a device do not arrive
                lost = len(self.buffer) // 2 // STRIDE
                del self.buffer[: lost * STRIDE]
            self._registry.count_dropped("overflow", "journal", lost)

    def pass_on(self, *, everything: bool = False) -> bool:
        """Fold, and let go the points that are due now.

        Args:
            everything: values that are held back, too: a caller wants all that was recorded so far.

        Returns:
            False where a fold is under way, or values are still on their way from a device.
        """
        if self._lock.locked():
            return False
        if not (
            self.buffer or self._kept or self.count or self._throttle.held or self._throttle.ready or self._outgoing
        ):
            return True
        with self._lock:
            arrived = self._fold()
            now = self._clock()
            self._throttle = self._throttle.let_go(now, self._interval, everything=everything)
            self._send(now)
        return arrived

    def rename(self, labels: Mapping[str, AttributeValue], gauge: LastValue) -> None:
        """Give its points other labels from now on, and show its values in another gauge."""
        self.gauge.leave(self)
        self.labels, self.gauge = labels, gauge
        gauge.follow(self)

    def end(self) -> None:
        """Leave the gauge as it is: nothing new is recorded here; a thread that is at it right now logs its value."""
        if not self._lock.locked():
            with self._lock:
                self._interval, self._throttle = 0.0, self._throttle._replace(due=-inf)
                self.due = self.until = -inf
        self.pass_on(everything=True)
        self.gauge.leave(self)

    def give_up(self, reason: Reason) -> None:
        """Count the values that have not arrived from a device, or could not leave: the process ends."""
        held = self._throttle.held
        lost = (
            (len(self.buffer) + len(self._kept or ())) // STRIDE
            + self.count
            + sum(point.values for point in held)
            + len(self._outgoing)
        )
        if lost:
            self._outgoing.clear()
            self.until, self.count, self.looked, self.low, self.high = -inf, 0, 0, inf, -inf
            self.buffer.clear()
            self._kept = None
            if held:
                self._throttle = self._throttle._replace(held=())
            self._registry.count_dropped(reason, "journal", lost)

    def newest(self) -> float:
        """Return when the newest value was recorded that is folded, or was held back; on its clock."""
        return max(self._folded, self.moment)

    def unseen(self) -> tuple[float, float] | None:
        """Return when a value was held back last, and that value; None where the gauge has it, or a later one."""
        last = self.last
        if last is self.shown:
            return None
        self.shown = last
        return self.moment, last

    def _fold(self) -> bool:
        """Fold everything up to the first value that has not arrived; False where there is one."""
        # Nothing more is held back without the buffer until the end of the fold. No call up to the second line, so that
        # ATOMIC holds here, too.
        found = self.last, self.x, self.moment, self.low, self.low_x, self.high, self.high_x, self.count
        self.until, self.count, self.looked, self.low, self.high = -inf, 0, 0, inf, -inf
        last, x, moment, low, low_x, high, high_x, count = found
        since, self._left = self._left, max(moment, self._folded)
        if count and self._interval:
            self.unlooked = int(count * LOOK / max(self._left - since, self._interval))
        else:
            self.unlooked = 0
        if count:
            extremes = low, _place(low_x), high, _place(high_x)
            many = CurvePoint(last, _place(x), moment, self._throttle.branch, *extremes, count, 0)
            self._throttle = self._throttle.hold(many, timed=x.__class__ is float)
        buffer = self.buffer
        left = len(buffer)  # a trace function that records adds to it all the while
        while self._kept or (left > 0 and buffer):
            before = self._throttle
            if self._kept:
                chunk, self._kept = self._kept, None
            else:
                chunk = buffer[: min(_CHUNK, left)]
                taken = len(chunk)
                if self.late:
                    chunk, taken = self._arrived(chunk)
                    if not taken:
                        return False
                self._folded = buffer[taken - 1]
                left -= taken
                del buffer[:taken]
            try:
                self._throttle = before.fold(chunk, self.start, self._interval)
            except BaseException:  # an interrupt, or no memory: the chunk is either folded or kept
                if self._throttle is before:
                    self._kept = chunk
                raise
        if not buffer:
            self.late = False
        return True

    def _arrived(self, chunk: list[Any]) -> tuple[list[Any], int]:
        """Return the numbers before the first value that is still on its way, and how much of the chunk they were.

        A value that cannot be read is left out, and counted: its device has failed. The gauge shows the last one that
        has arrived, unless a later one is there: in the buffer, or recorded elsewhere.
        """
        found: list[Any] = []
        taken, newest, moment = len(chunk), None, -inf
        for place in range(0, len(chunk), STRIDE):
            value: Number | Pending | None = chunk[place]
            if not isinstance(value, Pending):
                newest = None
            elif not value.ready():
                taken = place
                break
            else:
                value = self.gauge.losses.arrived(value)
                if value is None:
                    continue
                newest, moment = value, chunk[place + 2]
            found += value, chunk[place + 1], chunk[place + 2]
        size = len(self.buffer)
        if newest is not None and not self._plain(taken):
            self.shown = self.last  # which is older
            self.gauge.show_late(newest, moment, self)
            for later in self._plain(size)[-1:]:
                self.gauge.current = later
        return found, taken

    def _plain(self, place: int) -> list[Number]:
        """Return the values from a place in the buffer on that come from no device."""
        return [value for value in self.buffer[place::STRIDE] if not isinstance(value, Pending)]

    def _send(self, now: float) -> None:
        """Log the points that are ready."""
        self._adopt_interval()
        throttle, losses, outgoing = self._throttle, self.gauge.losses, self._outgoing
        if self._interval:
            self.due = throttle.due
        logged, rest = events_of(throttle.ready, self.labels, now), throttle.taken()
        # One step (see ATOMIC), so that an interrupt leaves no point in both places, and none in neither. Only the
        # first one needs memory.
        outgoing += logged
        self._throttle = rest
        losses.nonfinite += throttle.nonfinite
        if outgoing:
            self._journal.take_over(outgoing)
        if ATOMIC and not self.buffer:
            self.x, self.until = throttle.x, self.due


def _place(x: Number) -> float:
    """Return x as a float: one that is held back has not been looked at."""
    try:
        return float(x)
    except OverflowError:
        return _FAR


class _NullCurve(CurveRecorder):
    """A curve that takes everything, and keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.buffer = deque(maxlen=0)
        self.due = inf
        self.gauge = LastValue(SeriesLosses(""))
        self.late = False
        self.last = self.shown = 0.0
        self.start, self.until, self.moment = 0.0, -inf, 0.0
        self.count = self.looked = self.unlooked = 0


NOWHERE: CurveRecorder = _NullCurve()


class Curves(Protocol):
    """The curves of one metric, one an execution.

    Attributes:
        home: the curve where it records unless a task is under way; None before its first value.
        at: names its x in messages.
    """

    home: CurveRecorder | None
    at: str

    @property
    def by_execution(self) -> Mapping[Any, CurveRecorder]:
        """Return them all."""

    def attach(self, execution: Any, value: object, at: object) -> CurveRecorder:
        """Return the curve of an execution for its first value."""

    def read(self, value: object) -> Number | Pending | None:
        """Return a value that is neither a float nor an int; None where the program's own object fails."""


def recorder(  # noqa: C901, PLR0915 - see record
    curves: Curves, execution: Callable[[], Any], elsewhere: Container[object], clock: Callable[[], float]
) -> Callable[..., None]:
    """Return ``record(value, *, at=None)``: variables of the function around it are read faster than attributes.

    Args:
        curves: where it records.
        execution: returns the one that runs.
        elsewhere: empty as long as only ``home`` can be meant.
        clock: of the curves.
    """
    by_execution, attach, border = curves.by_execution, curves.attach, curves.read
    plain, whole, chunk, never = float, int, _CHUNK, nan
    lowest, highest = -inf, inf
    what, far = curves.at, _WHOLE

    def record(value: Any, *, at: Any = None) -> None:  # noqa: C901, PLR0912, PLR0915 - a call costs as much as all
        curve = curves.home
        if elsewhere or curve is None:
            try:
                curve = by_execution[execution()]
            except KeyError:
                curve = attach(execution(), value, at)
        x: float
        if at.__class__ is whole:
            x = at
            if curve.count < curve.looked:
                now = curve.moment
            else:
                now = clock()
                if curve.unlooked:
                    curve.looked = curve.count + curve.unlooked
        else:
            now = clock()
            x = now - curve.start if at is None else never
        # Held back: no call in this block, see ATOMIC.
        if now < curve.until and value.__class__ is plain and x >= curve.x:
            if value <= curve.high:
                if value >= curve.low:
                    curve.x, curve.last, curve.moment = x, value, now
                    curve.count += 1
                    return
                if value > lowest:
                    curve.low, curve.low_x = value, x
                    curve.x, curve.last, curve.moment = x, value, now
                    curve.count += 1
                    return
            elif value < highest:
                curve.high, curve.high_x = value, x
                if value < curve.low:
                    curve.low, curve.low_x = value, x
                curve.x, curve.last, curve.moment = x, value, now
                curve.count += 1
                return
        if now == curve.moment:  # which may have been the time without a look
            now = clock()
        if value.__class__ is not plain and value.__class__ is not whole:
            value = border(value)
            if value is None:
                return
        if at.__class__ is whole:
            if not -far < at < far:
                at = finite(at, what)
        elif at is not None and (at.__class__ is not plain or at - at):
            at = finite(at, what)
        curve.until = -inf  # later values go the same way, so that they stay later
        buffer = curve.buffer
        buffer += value, at, now  # one step for all threads
        if value.__class__ is Pending:
            curve.late = True
        else:
            curve.shown = curve.last
            curve.gauge.current = value  # no method: a call takes as long as all of this
        if now >= curve.due or len(buffer) >= chunk:
            curve.fold(now)

    return record
