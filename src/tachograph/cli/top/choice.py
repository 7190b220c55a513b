"""The choice among many rows: a filter, and an order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from tachograph.cli.top.legible import printable
from tachograph.cli.top.state import MetricRow

SORTS = ("chart", "name", "value", "spread", "rate")
_FEWEST_RANKS = 3  # of which one can be an outlier
_LEAST_DISTANCE = 0.2  # of an outlier, as a share of the median
_DEVIATIONS = 5  # of an outlier from the median, in median deviations


class PatternError(ValueError):
    """A filter that is not a regular expression.

    Attributes:
        why: in words.
        place: of the first wrong character, from 0.
    """

    def __init__(self, text: str, why: str, place: int) -> None:
        mark = " " * len(printable(text[:place])) + "^"
        super().__init__(f"invalid filter: {why} at character {place + 1}:\n  {printable(text)}\n  {mark}")
        self.why = why
        self.place = place


class Choice(NamedTuple):
    """A choice among a run's rows.

    Attributes:
        filter: a text or a regular expression that must occur in the name of a metric or function; case is ignored.
        sort: one of :data:`SORTS`.
        by_rank: show one row for each rank of a metric.
    """

    filter: str = ""
    sort: str = SORTS[0]
    by_rank: bool = False

    def matches(self, *names: str) -> bool:
        """Return whether the filter occurs in any of these names; an invalid filter occurs in all."""
        if not self.filter:
            return True
        try:
            pattern = compile_filter(self.filter)
        except PatternError:
            return True
        return any(pattern.search(name) for name in names)

    def rows(self, rows: Sequence[MetricRow]) -> list[MetricRow]:
        """Return the metrics that match the filter, in order."""
        matching = [row for row in rows if self.matches(row.metric, f"{row.group} / {row.metric}")]
        if self.sort == "name":
            return sorted(matching, key=lambda row: (row.metric.lower(), row.group.lower()))
        key = {"value": _largest_value, "spread": _spread_of_ranks, "rate": _total_rate}.get(self.sort)
        return matching if key is None else sorted(matching, key=key, reverse=True)

    def with_next_sort(self) -> Choice:
        """Return the choice with the next order."""
        return self._replace(sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])


def compile_filter(text: str) -> re.Pattern[str]:
    """Return a filter as a regular expression.

    Raises:
        PatternError: it is not one.
    """
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        place = getattr(error, "pos", None) or 0
        raise PatternError(text, getattr(error, "msg", str(error)), place) from None


def _largest_value(row: MetricRow) -> float:
    """Return the largest value; NaN and infinities are larger than all."""
    return max((value if isfinite(value) else inf for value in row.values()), default=-inf)


def _spread_of_ranks(row: MetricRow) -> float:
    values = row.values()
    if not all(map(isfinite, values)):
        return inf
    middle = abs(median(values)) if values else 0.0
    return (max(values) - min(values)) / middle if middle else 0.0


def _total_rate(row: MetricRow) -> float:
    return sum(line.rate or 0.0 for line in row.lines)


def outlier_check(values: Sequence[float]) -> Callable[[float], bool]:
    """Return a function that tells whether one of these finite values is far from all others."""
    if len(values) < _FEWEST_RANKS:
        return lambda _: False
    middle = median(values)
    deviation = median([abs(value - middle) for value in values])
    limit = max(_DEVIATIONS * deviation, _LEAST_DISTANCE * abs(middle))
    return lambda value: abs(value - middle) > limit
