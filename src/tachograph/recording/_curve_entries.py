"""Entries of a gauge's curve, of a few values each, into its points: one a value at first, then one an interval."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain, repeat
from math import inf, isfinite
from typing import Any, NamedTuple

from tachograph.recording.packed_points import NOTHING_ODD, ODD, odd_places
from tachograph.recording.values import as_float

STRIDE = 5  # of a buffer: lowest, highest, last, how many, and when the last one was recorded
# Columns of a point that waits: x, when, value, lowest and highest with their x, how many, how many not finite, and the
# x of those.
COLUMNS = 12
_MOST = 1024 * COLUMNS  # of those that wait; beyond, one point goes on for as long as it takes
_made: Any = tuple.__new__  # a named tuple in half of the time: each point takes several


class HeldValues(NamedTuple):
    """Values of one interval; ``low`` and ``high`` are of the finite ones; for the x of others see ODD."""

    x: float
    moment: float
    value: float
    low: float
    low_x: float
    high: float
    high_x: float
    values: int
    nonfinite: int
    nan_x: float
    posinf_x: float
    neginf_x: float

    def with_later(self, later: HeldValues) -> HeldValues:
        """Return one for both."""
        low, high = self if self.low <= later.low else later, self if self.high >= later.high else later
        values, nonfinite = self.values + later.values, self.nonfinite + later.nonfinite
        x, moment, value = later[:3]
        odd = map(min, self[-len(ODD) :], later[-len(ODD) :]) if nonfinite else NOTHING_ODD
        numbers = x, moment, value, low.low, low.low_x, high.high, high.high_x, values, nonfinite, *odd
        found: HeldValues = _made(HeldValues, numbers)
        return found


NONE = array("d")
_ONE = 1
_EXACT = 2**53  # integers up to it are floats of their own


class CurveState(NamedTuple):
    """The state of a curve. Replaced as a whole: an interrupt finds it before a step or after it."""

    values: int  # so far
    singly: int  # values that are still to be a point each
    due: float = -inf  # when the interval is over
    held: HeldValues | None = None
    points: array[float] = NONE  # that wait, in rows of COLUMNS; never changed


def _entry(x: float, moment: float, value: float, limits: tuple[float, float], values: int) -> HeldValues:
    """Return the values of an entry: an extreme that the last value is not was at its beginning, as far as is known."""
    low, high = limits
    first = x - (values - 1)
    low_x, high_x = x if low == value else first, x if high == value else first
    odd = odd_places(value, x) if low > high else NOTHING_ODD
    return HeldValues(x, moment, value, low, low_x, high, high_x, values, int(low > high), *odd)


def _together(entries: Sequence[Any], before: int) -> HeldValues | None:
    """Return the values of several entries at once; None where one of them is no finite number.

    Args:
        entries: of :data:`STRIDE`.
        before: values before them.
    """
    lows, highs, many = entries[::STRIDE], entries[1::STRIDE], entries[3::STRIDE]
    try:
        total = sum(lows, 0.0) + sum(highs, 0.0)
    except OverflowError:  # an integer beyond the range of floats
        return None
    if total - total or not all(many):
        return None
    low, high = min(lows), max(highs)
    first, last = (
        _ends(low, _place(low, lows), entries, many, before),
        _ends(high, _place(high, highs), entries, many, before),
    )
    count = sum(many)
    x, value = float(before + count - 1), as_float(entries[-3])
    numbers = x, entries[-1], value, float(low), first, float(high), last, count, 0, *NOTHING_ODD
    found: HeldValues = _made(HeldValues, numbers)
    return found


def _place(extreme: float, found: Sequence[Any]) -> int:
    """Return where the extreme was first: integers that are the same float are the same value."""
    if -_EXACT <= extreme <= _EXACT:
        return found.index(extreme)
    return [*map(float, found)].index(float(extreme))


def _ends(extreme: float, place: int, entries: Sequence[Any], many: Sequence[int], before: int) -> float:
    """Return the x of an extreme in an entry: its end, where it is the last value, else its beginning."""
    end = before + sum(many[: place + 1]) - 1
    return float(end if as_float(entries[place * STRIDE + 2]) == float(extreme) else end - (many[place] - 1))


def point_of(entries: Sequence[Any], before: int, held: HeldValues | None) -> tuple[Any, ...] | None:
    """Return one point for held values and a few entries, in half of the time of :func:`after`.

    Args:
        entries: of :data:`STRIDE`, few, at least one.
        before: values before them, those that are held included.
        held: see above.

    Returns:
        Its x, moment, value, lowest and highest value with their x, and how many values; None where one is not finite
        or so large that an integer is no float of its own.
    """
    x = before
    if held is None:
        low, low_x, high, high_x = inf, 0.0, -inf, 0.0
    elif held.nonfinite:
        return None
    else:
        low, low_x, high, high_x = held[3:7]
    each = iter(entries)
    for lowest, highest, last, many, _ in zip(each, each, each, each, each, strict=True):
        if not lowest <= highest:  # NaN
            return None
        x += many
        if lowest < low:
            low, low_x = lowest, x - 1 if last == lowest else x - many
        if highest > high:
            high, high_x = highest, x - 1 if last == highest else x - many
    if low < -_EXACT or high > _EXACT:
        return None
    return x - 1, entries[-1], entries[-3], low, low_x, high, high_x, x - before + (held.values if held else 0)


def after(entries: Sequence[Any], state: CurveState, interval: float, *, keeps: bool) -> CurveState:
    """Return the state after entries.

    Args:
        entries: of :data:`STRIDE`.
        state: before them.
        interval: seconds a point.
        keeps: points wait; else none is wanted.
    """
    out = array("d")
    place = tried = _singly(entries, state, out) if state.singly > 0 else 0
    values, singly, due, held, points = state
    if place:
        singles = place // STRIDE
        values, singly, due = values + singles, singly - singles, entries[place - 1] + interval
    moments = entries[STRIDE - 1 :: STRIDE]
    while place < len(entries):
        new = None
        if singly <= 0 and place >= tried:  # all up to the one that ends the interval
            tried = min((bisect_left(moments, due, place // STRIDE) + 1) * STRIDE, len(entries))
            new, end = _together(entries[place:tried], values), tried
        if new is None:
            end = place + STRIDE
            low, high, last, many, moment = entries[place:end]
            if not many:  # its device has lost it
                place = end
                continue
            value = as_float(last)
            bad = many == 1 and value - value != 0
            limits = (inf, -inf) if bad else (as_float(low), as_float(high))
            new = _entry(float(values + many - 1), moment, value, limits, many)
        values, place, moment = values + new.values, end, new.moment
        full = len(points) + len(out) >= _MOST
        if singly > 0 and new.values == 1 and held is None and not full:
            singly -= 1
            out.extend(new)
            due = moment + interval
            continue
        held = new if held is None else held.with_later(new)
        if moment >= due and not full:
            out.extend(held)
            held, due = None, moment + interval
    if not keeps:
        return CurveState(values, singly, due)
    return CurveState(values, singly, due, held, points + out if out else points)


def _singly(entries: Sequence[Any], state: CurveState, out: array[float]) -> int:
    """Add a point for each of the first entries, where each has one finite value; return the place behind them."""
    room = min(state.singly, (_MOST - len(state.points)) // COLUMNS, len(entries) // STRIDE)
    if room <= 0 or state.held is not None:
        return 0
    entries = entries[: room * STRIDE]
    if any(map(_ONE.__ne__, entries[3::STRIDE])):
        return 0
    try:
        found = array("d", entries[2::STRIDE])
    except OverflowError:  # an integer beyond the range of floats
        return 0
    if not all(map(isfinite, found)):
        return 0
    x = array("d", range(state.values, state.values + len(found)))
    more = map(repeat, (1.0, 0.0, *NOTHING_ODD))
    columns = x, entries[STRIDE - 1 :: STRIDE], found, found, x, found, x, *more
    out.extend(chain.from_iterable(zip(*columns, strict=False)))
    return len(entries)
