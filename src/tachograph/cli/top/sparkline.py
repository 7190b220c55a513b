"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import isfinite
from statistics import median

BLOCKS = "▁▂▃▄▅▆▇█"
TIMES = "\u00d7"
NO_NUMBER = TIMES  # NaN, or infinite


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values, each a block as high as the value is between the smallest and the largest.

    A curve that stays level is drawn at half height; what is not finite as a cross.
    """
    shown = values[-width:] if width > 0 else ()
    finite = [value for value in shown if isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(value, low, high) for value in shown)


def _block(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return NO_NUMBER
    if low == high:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    span = high - low
    # Halves, where the difference of two floats is beyond their range; those of the smallest floats are 0.
    share = (value - low) / span if isfinite(span) else (value / 2 - low / 2) / (high / 2 - low / 2)
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def together(curves: Sequence[Sequence[float]], width: int) -> list[float]:
    """Return the median of several curves' last values, the newest of all at the same place; NaN where none is finite.

    Args:
        curves: each with its newest value last.
        width: so many values at most.
    """
    if len(curves) == 1:
        return list(curves[0])
    found = []
    backwards = [curve[: -width - 1 : -1] for curve in curves] if width else []
    for column in zip_longest(*backwards, fillvalue=float("nan")):
        finite = [value for value in column if isfinite(value)]
        found.append(median(finite) if finite else float("nan"))
    return found[::-1]
