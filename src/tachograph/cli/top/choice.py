"""The choice among many rows: a filter, and an order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from tachograph.cli.top.legible import printable
from tachograph.cli.top.state import MetricRow

SORTS = ("chart", "name", "value", "spread", "rate")
_FEW = 3  # ranks, from which on one can be apart from the others
_APART = 0.2  # of the median, at least
_DEVIATIONS = 5  # from the median, in units of the median deviation


class WrongFilter(ValueError):  # noqa: N818 - as HubRefused: an answer
    """A filter that cannot be read.

    Attributes:
        place: of the character from which on it cannot, from 0.
    """

    def __init__(self, text: str, why: str, place: int) -> None:
        shown = printable(text)
        mark = len(printable(text[:place]))
        super().__init__(f"invalid filter: {why} at character {place + 1}:\n  {shown}\n  {' ' * mark}^")
        self.why, self.place = why, place


class Choice(NamedTuple):
    """A choice among a run's rows.

    Attributes:
        filter: a text or a regular expression that the names of metrics and functions have in them; case is ignored.
        sort: one of :data:`SORTS`.
        by_rank: a row for each rank of a metric.
    """

    filter: str = ""
    sort: str = SORTS[0]
    by_rank: bool = False

    def takes(self, *names: str) -> bool:
        """Tell whether the filter finds any of these names; one that cannot be read takes all."""
        if not self.filter:
            return True
        try:
            pattern = compiled(self.filter)
        except WrongFilter:
            return True
        return any(pattern.search(name) for name in names)

    def rows(self, rows: Sequence[MetricRow]) -> list[MetricRow]:
        """Return the metrics that the filter takes, in order."""
        found = [row for row in rows if self.takes(row.metric, f"{row.group} / {row.metric}")]
        if self.sort == "name":
            return sorted(found, key=lambda row: (row.metric.lower(), row.group.lower()))
        key = {"value": _value, "spread": _spread, "rate": _rate}.get(self.sort)
        return found if key is None else sorted(found, key=key, reverse=True)

    def sorted_next(self) -> Choice:
        """Return the choice with the next order."""
        return self._replace(sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])


def compiled(text: str) -> re.Pattern[str]:
    """Return a filter as a regular expression.

    Raises:
        WrongFilter: it is none.
    """
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        place = getattr(error, "pos", None) or 0
        raise WrongFilter(text, getattr(error, "msg", str(error)), place) from None


def _values(row: MetricRow) -> list[float]:
    return [line.value for line in row.lines if line.value is not None]


def _value(row: MetricRow) -> float:
    """Return the largest value; NaN and infinities are beyond all."""
    found = _values(row)
    return max((value if isfinite(value) else inf for value in found), default=-inf)


def _spread(row: MetricRow) -> float:
    found = _values(row)
    if not all(map(isfinite, found)):
        return inf
    middle = abs(median(found)) if found else 0.0
    return (max(found) - min(found)) / middle if middle else 0.0


def _rate(row: MetricRow) -> float:
    return sum(line.rate or 0.0 for line in row.lines)


def apart(values: Sequence[float]) -> float:
    """Return how far from the median a value is that is apart from the others; infinity where there can be none."""
    if len(values) < _FEW:
        return inf
    middle = median(values)
    deviation = median([abs(value - middle) for value in values])
    return max(_DEVIATIONS * deviation, _APART * abs(middle))
