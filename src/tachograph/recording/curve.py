"""A curve: the points of one metric in one execution, thinned to so many a second, on their way into the journal.

:func:`recorder` makes the function that a program calls. A value that is held back goes into four fields of the
:class:`CurveRecorder` (lowest, highest, last, count); any other one into its buffer. A fold takes both to the throttle,
which says which points are ready; those are logged. Like the accumulators', a fold never waits for its lock where its
own thread may hold it, and a thread that finds the lock taken leaves its values to the one that folds.

The throttle: the first value is a point at once, then there is one point an interval: its last value, with its smallest
and its largest one and their x, so that no spike vanishes, and the x of the first NaN and infinity of each sign. When
points leave follows from the times at which the values were recorded, not from the times of folds. The clock takes as
long as all else: where values with an x come faster than one a millisecond, it is looked at once in about that time. So
one that comes after a sudden rest may count for the interval before, until the next fold.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import groupby
from math import inf, nan
from typing import Any, NamedTuple, Protocol

from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import finite
from tachograph.recording.interrupts import ATOMIC
from tachograph.recording.journal import Journal, Raw
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.own_metrics import Reason
from tachograph.recording.packed_points import NOTHING_ODD, ODD, OddPlaces, PackedPoints, odd_places
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number, Pending, as_float

POINT = "tachograph.metric"
LIMIT = 65_536 * 3
_STRIDE = 3  # of a buffer: a value, its x (None: the time), and when it was recorded
_CHUNK = 512 * _STRIDE
_FEW = 8 * _STRIDE
LOOK = 0.001  # seconds between two looks at the clock, about, where values with an x come faster
_WORTH_PACKING = 4  # points
_BRANCHES = 16  # of one interval that wait for their turn
_NANO = 1e9
_FAR = sys.float_info.max
_WHOLE = 2**1023  # whole numbers below it are finite as floats


def _run_start() -> int:
    found = os.environ.get("TACHOGRAPH_START_NS", "")
    return int(found) if found.isdecimal() else time.time_ns()


RUN_START = _run_start()  # nanoseconds since 1970


def elapsed(time_unix_nano: int) -> float:
    """Return the seconds from the start of the run to a time."""
    return (time_unix_nano - RUN_START) / _NANO


class CurvePoint(NamedTuple):
    """A point of a curve, for one value or for an interval.

    ``moment`` is when ``value`` was recorded, on the clock of the curve; ``low`` and ``high`` are the extremes of the
    finite ones among its ``values``; where all are ``nonfinite``, there are none. ``odd`` says where these were.
    """

    value: float
    x: float
    moment: float
    branch: int
    low: float
    low_x: float
    high: float
    high_x: float
    values: int
    nonfinite: int
    odd: OddPlaces = NOTHING_ODD

    def attributes(self) -> dict[str, float | int]:
        """Return the point's own attributes in the journal."""
        found: dict[str, float | int] = {"x": self.x, "value": self.value, "branch": self.branch}
        if self.values > 1:
            if self.values > self.nonfinite:
                found |= {"min": self.low, "min_x": self.low_x, "max": self.high, "max_x": self.high_x}
            found["count"] = self.values
            if self.nonfinite:
                found["nonfinite"] = self.nonfinite
                found |= {name: x for name, x in zip(ODD, self.odd, strict=True) if x < inf}
        return found

    def with_later(self, later: CurvePoint) -> CurvePoint:
        """Return one point for this one and a later one."""
        low, high = self if self.low <= later.low else later, self if self.high >= later.high else later
        values, nonfinite = self.values + later.values, self.nonfinite + later.nonfinite
        value, x, moment, branch = later.value, later.x, later.moment, later.branch
        odd = self.odd if later.odd is NOTHING_ODD else _first(self.odd, later.odd)
        return CurvePoint(value, x, moment, branch, low.low, low.low_x, high.high, high.high_x, values, nonfinite, odd)


def _first(one: OddPlaces, other: OddPlaces) -> OddPlaces:
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])


class _Throttle(NamedTuple):
    """The state of a curve's throttle. Replaced as a whole: an interrupt finds it before a step or after it."""

    due: float = -inf  # when the interval is over; before that, values are held back
    branch: int = 0
    x: float = -inf  # of the last value; minus infinity before the first
    timed: bool = False  # that one was the time
    held: tuple[CurvePoint, ...] = ()  # the oldest first: more than one only where `at` went back within an interval
    ready: tuple[CurvePoint, ...] = ()  # not in the journal yet
    nonfinite: int = 0  # how many of the values folded since the last point left

    def fold(self, chunk: Sequence[Any], start: float, interval: float) -> _Throttle:
        """Return the state after a chunk of values.

        Args:
            chunk: values, x and times in turn: numbers; x may be None, for the time since ``start``.
            start: of x, on the clock of the times.
            interval: seconds a point; 0 for a point each value.
        """
        state = self
        for few in (0, _FEW) if interval else ():  # the first ones may be at the end of an interval
            if len(chunk) > few + _FEW:
                state, chunk = state.fold_each(chunk[:few], start, interval), chunk[few:]
                many = state.fold_held(chunk, start)
                if many is not None:
                    return many
        return state.fold_each(chunk, start, interval)

    def fold_each(self, chunk: Sequence[Any], start: float, interval: float) -> _Throttle:
        """Return the state after a chunk, value by value: see :meth:`fold`."""
        due, branch, last, timed, held, ready, nonfinite = self
        waiting, out = list(held), list(ready)
        for place in range(0, len(chunk), _STRIDE):
            value, at, moment = chunk[place], chunk[place + 1], chunk[place + 2]
            if value.__class__ is not float:
                value = as_float(value)
            x = moment - start if at is None else at if at.__class__ is float else as_float(at)
            if x < last:
                if timed and at is None:  # two threads, in a hurry
                    x = last
                else:
                    branch += 1
            last, timed = x, at is None
            if value - value:  # NaN is true; finite numbers give 0.0
                nonfinite += 1
                point = CurvePoint(value, x, moment, branch, inf, x, -inf, x, 1, 1, odd_places(value, x))
            else:
                point = CurvePoint(value, x, moment, branch, value, x, value, x, 1, 0)
            while waiting and moment >= due:
                out.append(waiting.pop(0))
                due += interval
            if waiting or moment < due:
                _hold(waiting, point)
                continue
            out.append(point)
            if interval:
                due = moment + interval
        return _Throttle(due, branch, last, timed, tuple(waiting), tuple(out), nonfinite)

    def fold_held(self, chunk: Sequence[Any], start: float) -> _Throttle | None:
        """Return the state after plain values of the interval and the branch that wait, at C speed; None for others.

        Recording past the end of an interval folds at once, so that only the last value may be past it.
        """
        due, branch, last, timed, held, ready, nonfinite = self
        if not held or held[-1].branch != branch or chunk[-1] >= due:
            return None
        values, xs, offset = chunk[0::_STRIDE], chunk[1::_STRIDE], 0.0
        if xs[0] is None:
            if not timed or xs.count(None) != len(xs):
                return None
            xs, offset = chunk[2::_STRIDE], start
        elif None in {xs[0], xs[-1]} or xs[0] < last:
            return None
        try:
            total = sum(values)
            if total - total or (not offset and sorted(xs) != xs):  # NaN or infinite; or x goes back
                return None
        except (OverflowError, TypeError):  # an integer beyond the range of floats; None among x
            return None
        low, high, before = min(values), max(values), held[-1]
        low_x, high_x, timed = before.low_x, before.high_x, chunk[1] is None
        if low < before.low:
            low_x = max(as_float(xs[values.index(low)]) - offset, last)
        if high > before.high:
            high_x = max(as_float(xs[values.index(high)]) - offset, last)
        value, x, moment = as_float(values[-1]), max(as_float(xs[-1]) - offset, last), chunk[-1]
        low, high, count = min(as_float(low), before.low), max(as_float(high), before.high), before.values + len(values)
        many = CurvePoint(value, x, moment, branch, low, low_x, high, high_x, count, before.nonfinite, before.odd)
        return _Throttle(due, branch, x, timed, (*held[:-1], many), ready, nonfinite)

    def hold(self, many: CurvePoint, *, timed: bool) -> _Throttle:
        """Return the state after many values that go on where it is, within the interval."""
        waiting = list(self.held)
        _hold(waiting, many)
        return _Throttle(self.due, self.branch, many.x, timed, tuple(waiting), self.ready, self.nonfinite)

    def let_go(self, now: float, interval: float, *, everything: bool) -> _Throttle:
        """Return the state once the points have left whose intervals are over, or everything.

        Points that are early count for the intervals to come.
        """
        due, _, _, _, held, ready, _ = self
        leaving = 0
        while leaving < len(held) and (everything or now >= due):
            leaving += 1
            due += interval
        return self._replace(due=due, held=held[leaving:], ready=ready + held[:leaving]) if leaving else self

    def taken(self) -> _Throttle:
        """Return the state once its points are in the journal."""
        return _Throttle(self.due, self.branch, self.x, self.timed, self.held, (), 0)


def _hold(waiting: list[CurvePoint], point: CurvePoint) -> None:
    if waiting and waiting[-1].branch == point.branch:
        waiting[-1] = waiting[-1].with_later(point)
        return
    waiting.append(point)
    if len(waiting) > _BRANCHES:
        waiting[:2] = [waiting[0].with_later(waiting[1])]


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
        self._throttle = _Throttle(branch=branch)
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
                lost = len(self.buffer) // 2 // _STRIDE
                del self.buffer[: lost * _STRIDE]
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
            (len(self.buffer) + len(self._kept or ())) // _STRIDE
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
        for place in range(0, len(chunk), _STRIDE):
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
        return [value for value in self.buffer[place::_STRIDE] if not isinstance(value, Pending)]

    def _send(self, now: float) -> None:
        """Log the points that are ready."""
        self._adopt_interval()
        throttle, losses, outgoing = self._throttle, self.gauge.losses, self._outgoing
        if self._interval:
            self.due = throttle.due
        logged, rest = self._logged(throttle.ready, now), throttle.taken()
        # One step (see ATOMIC), so that an interrupt leaves no point in both places, and none in neither. Only the
        # first one needs memory.
        outgoing += logged
        self._throttle = rest
        losses.nonfinite += throttle.nonfinite
        if outgoing:
            self._journal.take_over(outgoing)
        if ATOMIC and not self.buffer:
            self.x, self.until = throttle.x, self.due

    def _logged(self, points: Sequence[CurvePoint], now: float) -> list[Raw]:
        if not points:
            return []
        wall, labels = time.time_ns(), self.labels
        times = [wall if point.moment == now else wall - int((now - point.moment) * _NANO) for point in points]
        return [
            (POINT, at, wall, (_attributes, labels, point, at), 0, 0, 0)
            for at, point in zip(times, points, strict=True)
        ]


def _place(x: Number) -> float:
    """Return x as a float: one that is held back has not been looked at."""
    try:
        return float(x)
    except OverflowError:
        return _FAR


def _attributes(
    labels: Mapping[str, AttributeValue], point: CurvePoint, time_unix_nano: int
) -> Mapping[str, AttributeValue]:
    """Return a point as it leaves."""
    return {**labels, **point.attributes(), "elapsed": elapsed(time_unix_nano)}


def values_of(event: Raw) -> int:
    """Return how many values of a ``Metric`` an event stands for; 0 for any other event."""
    later: Any = event[3]
    return later[2].values if later.__class__ is tuple and later[0] is _attributes else 0


def packed(events: Sequence[Raw]) -> tuple[list[PackedPoints], list[Raw]]:
    """Return the points among events packed, a table a curve and branch, and the other events.

    All points of a curve are packed, or none, so that their numbers stay in order: none where they are few, or where
    one stands for several values, as its extremes have an x of their own.
    """
    curves: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    apart = set[tuple[str, int]]()
    for event in events:
        later: Any = event[3]
        if later.__class__ is tuple and later[0] is _attributes:
            curves[_named(later[1])].append(later)
            if later[2].values > 1:
                apart.add(_named(later[1]))
    apart.update(named for named, points in curves.items() if len(points) < _WORTH_PACKING)
    found = [
        _table(list(points))
        for named, of_curve in curves.items()
        if named not in apart
        for _, points in groupby(of_curve, lambda later: (id(later[1]), later[2].branch))
    ]
    return found, list(events) if not found else [event for event in events if not _is_packed(event[3], apart)]


def _named(labels: Mapping[str, Any]) -> tuple[str, int]:
    """Return the metric and its execution: a metric that gets its group later has other labels from then on."""
    return labels["metric"], labels.get("execution", 0)


def _is_packed(later: Any, apart: Container[tuple[str, int]]) -> bool:
    return later.__class__ is tuple and later[0] is _attributes and _named(later[1]) not in apart


def _table(laters: Sequence[Any]) -> PackedPoints:
    labels, points = laters[0][1], [later[2] for later in laters]
    times = array("q", [later[3] for later in laters])
    x, values = array("d", [point.x for point in points]), array("d", [point.value for point in points])
    group, execution = labels.get("group", ""), labels.get("execution", 0)
    return PackedPoints((labels["metric"],), group, (), "", points[0].branch, times, x, values, {}, execution)


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

    record.__qualname__ = "Metric.record"  # as CPython's own TypeErrors name it
    return record
