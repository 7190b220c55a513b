"""Entries of a gauge's curve, of a few values each, into its points: one a value at first, then one an interval."""

from __future__ import annotations

from array import array
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
    place = _singly(entries, state, out) if state.singly > 0 else 0
    if place:
        singles = place // STRIDE
        entries, due = entries[place:], entries[place - 1] + interval
        state = state._replace(values=state.values + singles, singly=state.singly - singles, due=due)
    found = _at_once(entries, state, interval, out) or _one_by_one(entries, state, interval, out)
    if not keeps:
        return CurveState(found.values, found.singly, found.due)
    return CurveState(*found[:-1], state.points + out) if out else found


def _at_once(entries: Sequence[Any], state: CurveState, interval: float, out: array[float]) -> CurveState | None:
    """Add a point for each interval that is over; None where :func:`_one_by_one` has to: nothing was added then."""
    x, singly, due, held, points = state
    if singly > 0 or len(points) + len(out) + len(entries) // STRIDE * COLUMNS > _MOST:
        return None
    low, low_x, high, high_x, count = inf, 0.0, -inf, 0.0, 0
    if held is not None:
        if held.nonfinite:
            return None
        low, low_x, high, high_x, count = held[3:8]
    rows: list[float] = []
    last, moment = 0.0, due
    each = iter(entries)
    for lowest, highest, last, many, moment in zip(each, each, each, each, each, strict=True):
        if not -_EXACT <= lowest <= highest <= _EXACT:  # NaN, an infinity, or an integer that is no float of its own
            return None
        x += many
        count += many
        if lowest < low:  # an extreme that the last value is not was at the beginning, as far as is known
            low, low_x = lowest, x - 1 if last == lowest else x - many
        if highest > high:
            high, high_x = highest, x - 1 if last == highest else x - many
        if moment >= due:
            rows += x - 1, moment, last, low, low_x, high, high_x, count, 0, *NOTHING_ODD
            low, high, count, due = inf, -inf, 0, moment + interval
    out.extend(rows)
    if not entries or count == 0:
        return CurveState(x, singly, due, held if not entries else None, points)
    numbers = float(x - 1), moment, float(last), float(low), float(low_x), float(high), float(high_x), count, 0
    return CurveState(x, singly, due, _made(HeldValues, (*numbers, *NOTHING_ODD)), points)


def _one_by_one(entries: Sequence[Any], state: CurveState, interval: float, out: array[float]) -> CurveState:
    """Add a point for each value that is to be one, and for each interval that is over; of any numbers."""
    values, singly, due, held, points = state
    each = iter(entries)
    for low, high, last, many, moment in zip(each, each, each, each, each, strict=True):
        if not many:  # its device has lost it
            continue
        value = as_float(last)
        bad = many == 1 and value - value != 0
        limits = (inf, -inf) if bad else (as_float(low), as_float(high))
        new = _entry(float(values + many - 1), moment, value, limits, many)
        values += new.values
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
    return CurveState(values, singly, due, held, points)


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
