"""The throttle of a curve: the first value goes at once, then one point an interval.

The point of an interval is its last value, with the smallest and the largest one and their x: no spike vanishes. When
values leave follows from the times at which they were recorded, not from when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from tachograph.recording.values import as_float

STRIDE = 3  # a value, its x (None: the time), and when it was recorded
_WAITING = 16  # segments of branches that wait for their turn
_FEW = 8


class CurvePoint(NamedTuple):
    """One point of a curve, for one value or for an interval.

    ``moment`` is when ``value`` was recorded, on the clock of the curve; ``low`` and ``high`` are the extremes of the
    finite ones among its ``values``; where all are ``nonfinite``, there are none.
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

    def attributes(self) -> dict[str, float | int]:
        """Return what a point says of itself, as in the journal."""
        found: dict[str, float | int] = {"x": self.x, "value": self.value, "branch": self.branch}
        if self.values > 1:
            if self.values > self.nonfinite:
                found |= {"min": self.low, "min_x": self.low_x, "max": self.high, "max_x": self.high_x}
            found["count"] = self.values
            if self.nonfinite:
                found["nonfinite"] = self.nonfinite
        return found


class Throttled(NamedTuple):
    """The state of a curve. Replaced as a whole: an interrupt finds it before a step or after it."""

    due: float = -inf  # when the interval is over; before that, values are held back
    branch: int = 0
    x: float = -inf  # of the last value; minus infinity before the first
    timed: bool = False  # that one was the time
    held: tuple[CurvePoint, ...] = ()  # the oldest first: more than one only where `at` went back within an interval
    ready: tuple[CurvePoint, ...] = ()  # not in the journal yet
    nonfinite: int = 0  # how many of the values folded since the last point left

    def fold(self, chunk: Sequence[Any], start: float, interval: float) -> Throttled:
        """Return the state after a chunk of values.

        Args:
            chunk: values, x and times in turn: numbers; x may be None, for the time since ``start``.
            start: of x, on the clock of the times.
            interval: seconds a point; 0 for a point each value.
        """
        state = self
        for few in (0, _FEW * STRIDE) if interval else ():  # the first ones may be at the end of an interval
            if len(chunk) > few + _FEW * STRIDE:
                state, chunk = _fold_each(state, chunk[:few], start, interval), chunk[few:]
                quick = _fold_held(state, chunk, start)
                if quick is not None:
                    return quick
        return _fold_each(state, chunk, start, interval)

    def hold(self, many: CurvePoint, *, timed: bool) -> Throttled:
        """Return the state after many values that go on where it is, within the interval."""
        waiting = list(self.held)
        _hold(waiting, many)
        return Throttled(self.due, self.branch, many.x, timed, tuple(waiting), self.ready, self.nonfinite)

    def let_go(self, now: float, interval: float) -> Throttled:
        """Return the state once the points have left whose intervals are over."""
        due, _, _, _, held, ready, _ = self
        if not held or now < due:
            return self
        waiting, out = list(held), list(ready)
        while waiting and now >= due:
            out.append(waiting.pop(0))
            due += interval
        return self._replace(due=due, held=tuple(waiting), ready=tuple(out))

    def let_all_go(self, interval: float) -> Throttled:
        """Return the state once everything has left; the points that are early count for the intervals to come."""
        held = self.held
        if not held:
            return self
        return self._replace(due=self.due + interval * len(held), held=(), ready=self.ready + held)

    def taken(self) -> Throttled:
        """Return the state once its points are in the journal."""
        return Throttled(self.due, self.branch, self.x, self.timed, self.held, (), 0)


def _fold_each(state: Throttled, chunk: Sequence[Any], start: float, interval: float) -> Throttled:
    due, branch, last, timed, held, ready, nonfinite = state
    waiting, out = list(held), list(ready)
    for place in range(0, len(chunk), STRIDE):
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
            point = CurvePoint(value, x, moment, branch, inf, x, -inf, x, 1, 1)
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
    return Throttled(due, branch, last, timed, tuple(waiting), tuple(out), nonfinite)


def _hold(waiting: list[CurvePoint], point: CurvePoint) -> None:
    if waiting and waiting[-1].branch == point.branch:
        waiting[-1] = _together(waiting[-1], point)
        return
    waiting.append(point)
    if len(waiting) > _WAITING:
        waiting[:2] = [_together(*waiting[:2])]


def _fold_held(state: Throttled, chunk: Sequence[Any], start: float) -> Throttled | None:
    """Fold many plain values of one interval and branch at C speed; None where it is not that.

    Whoever records past the end of an interval folds at once, so that only the last value may be past it.
    """
    due, branch, last, timed, held, ready, nonfinite = state
    if not held or held[-1].branch != branch or chunk[-1] >= due:
        return None
    values, xs, offset = chunk[0::STRIDE], chunk[1::STRIDE], 0.0
    if xs[0] is None:
        if not timed or xs.count(None) != len(xs):
            return None
        xs, offset = chunk[2::STRIDE], start
    elif None in {xs[0], xs[-1]} or xs[0] < last or not _ascending(xs):
        return None
    else:
        timed = False
    try:
        total = sum(values)
    except OverflowError:  # an integer beyond the range of floats
        return None
    if total - total:  # NaN or infinite
        return None
    low, high, before = min(values), max(values), held[-1]
    low_x, high_x = before.low_x, before.high_x
    if low < before.low:
        low_x = max(as_float(xs[values.index(low)]) - offset, last)
    if high > before.high:
        high_x = max(as_float(xs[values.index(high)]) - offset, last)
    x = max(as_float(xs[-1]) - offset, last)
    many = CurvePoint(
        as_float(values[-1]),
        x,
        chunk[-1],
        branch,
        min(as_float(low), before.low),
        low_x,
        max(as_float(high), before.high),
        high_x,
        len(values) + before.values,
        before.nonfinite,
    )
    return Throttled(due, branch, x, timed, (*held[:-1], many), ready, nonfinite)


def _ascending(xs: Sequence[Any]) -> bool:
    try:
        return sorted(xs) == xs
    except TypeError:  # None among them
        return False


def _together(one: CurvePoint, later: CurvePoint) -> CurvePoint:
    low, high = one if one.low <= later.low else later, one if one.high >= later.high else later
    return CurvePoint(
        later.value,
        later.x,
        later.moment,
        later.branch,
        low.low,
        low.low_x,
        high.high,
        high.high_x,
        one.values + later.values,
        one.nonfinite + later.nonfinite,
    )
