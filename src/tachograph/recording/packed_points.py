"""Packed points: those of gauges' curves and of ``log()``, in columns, on their way to our own hub.

One record of the journal a point would cost more than recording it. Columns of one table leave as one record of bytes,
which the hub takes over as slices; another destination gets a record a point, and only where TACHOGRAPH_CURVES asks.
They wait where they were recorded, never in the journal, so that they displace none of its exact events.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol

from tachograph.recording.ids import random_hex
from tachograph.recording.interrupts import pass_on
from tachograph.recording.points import Attributes, AttributeValue

PACKED = "tachograph.points"  # event
ODD = ("nan_x", "posinf_x", "neginf_x")  # x of an interval's first NaN, infinity and minus infinity
INTERVALS = ("min", "min_x", "max", "max_x", "count", "nonfinite", *ODD)  # of points that stand for several values
PLAIN_COLUMNS = ("time", "x", "value", *INTERVALS[:6])  # of points that stand for several values, all finite
_NOT_ENCODED = 0, b""
CODES = {key: "q" if key in {"time", "count", "nonfinite"} else "d" for key in PLAIN_COLUMNS}  # as of array and struct
LEFT_OUT = "left_out"
OddPlaces = tuple[float, float, float]  # x of the first value of each kind in ODD; infinite where there is none
NOTHING_ODD: OddPlaces = (inf, inf, inf)


def odd_places(value: float, x: float) -> OddPlaces:
    """Return the places of one value that is NaN or infinite."""
    return (x, inf, inf) if value != value else (inf, x, inf) if value > 0 else (inf, inf, x)  # noqa: PLR0124 - NaN


def first_branch() -> int:
    """Return the number of each curve's first branch: how often torchelastic has started this rank again."""
    found = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(found) if found.isdecimal() else 0


class PackedPoints(NamedTuple):
    """Points of a table: a row each, with a value of every metric.

    Attributes:
        metrics: their names.
        group: theirs; empty for none.
        attributes: those that distinguish the table's curves from others of the metrics.
        units: of the one metric; empty for none.
        branch: its number.
        times: of the rows, in nanoseconds since 1970; ``array("q")``.
        x: of the rows, finite; ``array("d")``.
        values: metric after metric; ``array("d")``.
        more: further columns: of one metric those of :data:`INTERVALS`; :data:`LEFT_OUT`, of bytes, says 1 where a row
            has no value of a metric.
        execution: the number of the task; None where its points are of no ``Metric``.
    """

    metrics: tuple[str, ...]
    group: str
    attributes: Attributes
    units: str
    branch: int
    times: array[int]
    x: array[float]
    values: array[float]
    more: Mapping[str, Any]
    execution: int | None = None

    @property
    def size(self) -> int:
        """The number of points, those that were left out included: each has a number."""
        return len(self.values)

    @property
    def newest(self) -> int:
        """The time of the last row."""
        return self.times[-1]

    def packed(self) -> PackedPoints:
        """Return itself; see :class:`PlainPoints`."""
        return self

    def record(self) -> dict[str, AttributeValue]:
        """Return all of them as the attributes of one record."""
        found = _named(self, self.metrics, len(self.times))
        if self.execution is not None:
            found["execution"] = self.execution
        columns = {"time": self.times, "x": self.x, "value": self.values, **self.more}
        return found | {name: _little_endian(column) for name, column in columns.items()}

    def apart(self) -> Iterator[tuple[int, int, dict[str, AttributeValue]]]:
        """Yield each point for a record of its own: its place in the numbers, its time, and its attributes."""
        rows, left_out = len(self.times), self.more.get(LEFT_OUT)
        columns = {name: self.more[name] for name in INTERVALS if name in self.more}
        for place, value in enumerate(self.values):
            if left_out is not None and left_out[place]:
                continue
            metric, row = divmod(place, rows)
            found: dict[str, Any] = {"metric": self.metrics[metric]}
            if self.group:
                found["group"] = self.group
            if self.attributes:
                found["attributes"] = dict(self.attributes)
            found |= {"x": self.x[row], "value": value, "branch": self.branch}
            if columns and columns["count"][row] > 1:
                more = {name: column[row] for name, column in columns.items()}
                found |= {name: told for name, told in more.items() if isfinite(told) and (told or name != "nonfinite")}
            yield place, self.times[row], found


def _named(of: PackedPoints | PointHead, metrics: tuple[str, ...], rows: int) -> dict[str, Any]:
    """Return the attributes that tell whose points they are."""
    found: dict[str, Any] = {"metric": metrics, "group": of.group, "n": rows}
    if of.attributes:
        found["attributes"] = dict(of.attributes)
    if of.units:
        found["units"] = of.units
    if of.branch:
        found["branch"] = of.branch
    return found


def _little_endian(column: Any) -> bytes:
    if sys.byteorder == "big" and isinstance(column, array):
        column = array(column.typecode, column)
        column.byteswap()
    return bytes(column)


class PointHead:
    """The common parts of a curve's points.

    Attributes:
        metric: its name.
        group: its; empty for none.
        attributes: of the curve.
        units: of the metric; empty for none.
        branch: its number.
        encoded: all of it as an exporter sends it, for so many points as it has sent last; for 0 before.
    """

    __slots__ = ("attributes", "branch", "encoded", "group", "metric", "units")

    def __init__(self, metric: str, group: str, attributes: Attributes, units: str, branch: int) -> None:
        self.metric, self.group, self.attributes, self.units, self.branch = metric, group, attributes, units, branch
        self.encoded = _NOT_ENCODED


class PlainPoints(Mapping[str, AttributeValue]):
    """:class:`PackedPoints` of a few rows that stand for several values, all finite, as the attributes of their record.

    That is all that a curve has in an interval or three: this takes a fifth of the time that columns do.

    Attributes:
        head: of the curve.
        size: the number of points.
        numbers: a column after the other: times, x, values, least values and their x, greatest values and their x, how
            many values.
    """

    __slots__ = ("head", "numbers", "size")

    def __init__(self, head: PointHead, size: int, numbers: tuple[Any, ...]) -> None:
        self.head, self.size, self.numbers = head, size, numbers

    @property
    def newest(self) -> int:
        """The time of the last point."""
        found: int = self.numbers[self.size - 1]
        return found

    def packed(self) -> PackedPoints:
        """Return them in columns."""
        head, size, numbers = self.head, self.size, (*self.numbers, *[0] * self.size)
        more: dict[str, Any] = {
            key: array(CODES[key], numbers[place * size : (place + 1) * size])
            for place, key in enumerate(PLAIN_COLUMNS)
        }
        rows = more.pop("time"), more.pop("x"), more.pop("value")
        return PackedPoints((head.metric,), head.group, head.attributes, head.units, head.branch, *rows, more)

    def record(self) -> Mapping[str, AttributeValue]:
        """Return them as the attributes of a record."""
        return self

    def constants(self) -> dict[str, AttributeValue]:
        """Return the attributes that are the same for each so many points of the curve."""
        return _named(self.head, (self.head.metric,), self.size)

    def apart(self) -> Iterator[tuple[int, int, dict[str, AttributeValue]]]:
        """Yield them as :meth:`PackedPoints.apart` does."""
        return self.packed().apart()

    def __getitem__(self, key: str) -> AttributeValue:
        """Return an attribute."""
        return self.packed().record()[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the attributes' names."""
        return iter(self.packed().record())

    def __len__(self) -> int:
        """Return how many attributes there are."""
        return len(self.packed().record())


class PointSource(Protocol):
    """A source of packed points."""

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""

    def take(self, *, everything: bool) -> Iterator[PackedPoints | PlainPoints]:
        """Yield the points that are due, or all that were recorded so far; each leaves once."""

    def reset(self) -> None:
        """Forget everything, as a forked child does."""


class PointSources:
    """The sources of a process's packed points, and the stream that these leave by: its numbers are of points.

    Args:
        failed: called with the exception of a source: one that fails costs the others nothing.

    Attributes:
        wanted: whether any destination takes them; None as long as that is not known: they are kept.
        stream: random for each process start; see :class:`tachograph.recording.journal.LogEvent`.
    """

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        self._failed = failed
        self._sources: list[PointSource] = []
        self.reset()

    def add(self, source: PointSource) -> None:
        """Ask a source from now on."""
        self._sources.append(source)

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""
        return self.wanted is not False and any(source.waiting() for source in self._sources)

    def drain(self, *, everything: bool) -> Iterator[tuple[int, PackedPoints | PlainPoints]]:
        """Yield the points that are due, or all that were recorded so far, each with its first number."""
        for source in self._sources:
            for points in self._taken(source, everything=everything):
                with self._lock:
                    first = self._next
                    self._next += points.size
                yield first, points

    def _taken(self, source: PointSource, *, everything: bool) -> Iterator[PackedPoints | PlainPoints]:
        try:
            yield from source.take(everything=everything)
        except Exception as error:  # noqa: BLE001 - the caller has said what to do with it
            pass_on(error)
            with contextlib.suppress(MemoryError):
                self._failed(error)

    def begin_stream(self) -> None:
        """Begin a new stream: the points that wait are its first ones."""
        self._next, self.stream = 1, random_hex()

    def reset(self) -> None:
        """Forget everything and begin a new stream, as a forked child does."""
        self._lock = threading.Lock()
        self.begin_stream()
        self.wanted: bool | None = None
        for source in self._sources:
            source.reset()
