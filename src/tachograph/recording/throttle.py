"""The throttle of a curve: one point an interval, with its extremes.

The first value is a point at once, then there is one point an interval: its last value, with its smallest and its
largest one and their x, so that no spike vanishes, and the x of the first NaN and infinity of each sign. When points
leave follows from the times at which the values were recorded, not from the times of folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from tachograph.recording.packed_points import NOTHING_ODD, ODD, OddPlaces, odd_places
from tachograph.recording.values import as_float

STRIDE = 3  # of a chunk: a value, its x (None: the time), and when it was recorded
_FEW = 8 * STRIDE
_BRANCHES = 16  # of one interval that wait for their turn


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


class Throttle(NamedTuple):
    """The state of a curve's throttle. Replaced as a whole: an interrupt finds it before a step or after it."""

    due: float = -inf  # when the interval is over; before that, values are held back
    branch: int = 0
    x: float = -inf  # of the last value; minus infinity before the first
    timed: bool = False  # that one was the time
    held: tuple[CurvePoint, ...] = ()  # the oldest first: more than one only where `at` went back within an interval
    ready: tuple[CurvePoint, ...] = ()  # not in the journal yet
    nonfinite: int = 0  # how many of the values folded since the last point left

    def fold(self, chunk: Sequence[Any], start: float, interval: float) -> Throttle:
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

    def fold_each(self, chunk: Sequence[Any], start: float, interval: float) -> Throttle:
        """Return the state after a chunk, value by value: see :meth:`fold`."""
        due, branch, last, timed, held, ready, nonfinite = self
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
        return Throttle(due, branch, last, timed, tuple(waiting), tuple(out), nonfinite)

    def fold_held(self, chunk: Sequence[Any], start: float) -> Throttle | None:
        """Return the state after plain values of the interval and the branch that wait, at C speed; None for others.

        Recording past the end of an interval folds at once, so that only the last value may be past it.
        """
        due, branch, last, timed, held, ready, nonfinite = self
        if not held or held[-1].branch != branch or chunk[-1] >= due:
            return None
        values, xs, offset = chunk[0::STRIDE], chunk[1::STRIDE], 0.0
        if xs[0] is None:
            if not timed or xs.count(None) != len(xs):
                return None
            xs, offset = chunk[2::STRIDE], start
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
        return Throttle(due, branch, x, timed, (*held[:-1], many), ready, nonfinite)

    def hold(self, many: CurvePoint, *, timed: bool) -> Throttle:
        """Return the state after many values that go on where it is, within the interval."""
        waiting = list(self.held)
        _hold(waiting, many)
        return Throttle(self.due, self.branch, many.x, timed, tuple(waiting), self.ready, self.nonfinite)

    def let_go(self, now: float, interval: float, *, everything: bool) -> Throttle:
        """Return the state once the points have left whose intervals are over, or everything.

        Points that are early count for the intervals to come.
        """
        due, _, _, _, held, ready, _ = self
        leaving = 0
        while leaving < len(held) and (everything or now >= due):
            leaving += 1
            due += interval
        return self._replace(due=due, held=held[leaving:], ready=ready + held[:leaving]) if leaving else self

    def taken(self) -> Throttle:
        """Return the state once its points are in the journal."""
        return Throttle(self.due, self.branch, self.x, self.timed, self.held, (), 0)


def _hold(waiting: list[CurvePoint], point: CurvePoint) -> None:
    if waiting and waiting[-1].branch == point.branch:
        waiting[-1] = waiting[-1].with_later(point)
        return
    waiting.append(point)
    if len(waiting) > _BRANCHES:
        waiting[:2] = [waiting[0].with_later(waiting[1])]
