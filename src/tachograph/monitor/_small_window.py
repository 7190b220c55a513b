"""The short way for windows of few plain numbers: ten thousand may close at once.

What :mod:`tachograph.recording.tally` does in general is done here with plain tuples and a compiled dict display,
in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tachograph.monitor._aggregation import Aggregation
from tachograph.recording.spread import Total
from tachograph.recording.tally import Tally
from tachograph.recording.values import Number

# How many values; their sum as an int, as a float, and what rounding has lost of it; the least and the greatest one.
Sums = tuple[int, int, float, float, Number, Number]

_FORMULAS = {
    Aggregation.VALUE: "float(last)",
    Aggregation.MEAN: "total / count",
    Aggregation.COUNT: "float(count)",
    Aggregation.SUM: "float(total)",
    Aggregation.MAX: "float(high)",
    Aggregation.MIN: "float(low)",
}


def plus(sums: Sums | None, count: int, total: Any, low: Number, high: Number) -> Sums:
    """Return what all such windows come to, with one more."""
    if sums is None:
        return (count, total, 0.0, 0.0, low, high) if total.__class__ is int else (count, 0, total, 0.0, low, high)
    added, integers, floats, lost, lowest, highest = sums
    if total.__class__ is int:
        integers += total
    else:
        summed = floats + total
        if floats >= total >= -floats or floats <= total <= -floats:  # Neumaier, as in Total
            lost += (floats - summed) + total
        else:
            lost += (total - summed) + floats
        floats = summed
        if lost - lost:
            lost = 0.0
    return (
        added + count,
        integers,
        floats,
        lost,
        low if low < lowest else lowest,  # noqa: FURB136 - half the time of min()
        high if high > highest else highest,  # noqa: FURB136
    )


def total_of(sums: Sums) -> Tally:
    """Return them as what everything else is added up in."""
    added, integers, floats, lost, low, high = sums
    return Tally(added, 0, Total(integers, floats, lost), low, high, 0, (), 0.0, None)


def data_maker(aggregations: Sequence[Aggregation], keys: Sequence[str]) -> Callable[..., dict[str, float]]:
    """Return what makes an event's data of the last value, the sum, the count, the maximum and the minimum.

    Args:
        aggregations: what is asked for; those of the original only.
        keys: in the data, one for each.
    """
    made: Callable[..., dict[str, float]] = _compiled(tuple(aggregations))(*keys)
    return made


@lru_cache(maxsize=64)
def _compiled(aggregations: tuple[Aggregation, ...]) -> Callable[..., Any]:
    pairs = ", ".join(f"{asked.name}: {_FORMULAS[asked]}" for asked in aggregations)
    names = ", ".join(asked.name for asked in aggregations)
    source = f"lambda {names}: lambda last, total, count, high, low: {{{pairs}}}"
    return eval(source, {"float": float})  # type: ignore[no-any-return] # noqa: S307 - of the words above only
