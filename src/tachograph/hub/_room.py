"""Memory that the hub may take for what it shows, as far as it can be told in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tachograph.hub._series import Series

MOST_NAME = 1024  # characters of a name, a unit, a scope and a key: what our own API takes
MOST_BOUNDS = 1000  # of a histogram
MOST_RESOURCE = 64 * 2**10  # bytes of one resource

_SERIES = 2000  # bytes of one series beside its text, measured
_TEXT = 6  # times that a label's text is held: in labels, attributes, and in the rows of three formats
_BOUND = 300  # bytes of one bucket: counts now and before, and its line in each format


class Limits(NamedTuple):
    """What a hub holds at most in memory.

    Attributes:
        series: how many.
        memory: bytes that they take, as far as that is known.
        processes: how many; those that ended first make room.
        page: bytes.
    """

    series: int = 200_000
    memory: int = 2 * 2**30
    processes: int = 20_000
    page: int = 256 * 2**20


class Room:
    """How much of the memory is taken by series.

    Args:
        limits: how much there is.
    """

    def __init__(self, limits: Limits) -> None:
        self._most_series = limits.series
        self._most_memory = limits.memory
        self._series = 0
        self._taken = 0

    def add(self, text: int) -> bool:
        """Make room for a series with so many characters of labels and name; False where there is none."""
        needed = _SERIES + _TEXT * text
        if self._series >= self._most_series or self._taken + needed > self._most_memory:
            return False
        self._series += 1
        self._taken += needed
        return True

    def grow(self, series: Series, bounds: int) -> bool:
        """Make room for a histogram's buckets; False where there is none."""
        needed = _BOUND * (bounds - series.bounds)
        if self._taken + needed > self._most_memory:
            return False
        self._taken += needed
        series.bounds = bounds
        return True

    def remove(self, text: int, bounds: int) -> None:
        """Give back the room of a series."""
        self._series -= 1
        self._taken -= _SERIES + _TEXT * text + _BOUND * bounds
