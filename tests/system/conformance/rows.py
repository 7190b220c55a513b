"""Rows of the table: a documented behavior, a program that shows it, and the expected data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from expected import Expected
from ways import WAYS, WayName

End = Literal["exit", "sigterm", "exception"]

PROVIDERS: tuple[WayName, ...] = ("provider", "alone")
NO_NAN = "the SDK does not accept NaN or infinity: the gauge has no point, and `tachograph.nonfinite` counts the value"


@dataclass(frozen=True)
class Counted:
    """The data does not arrive as it was recorded; the loss is counted and documented."""

    why: str
    expected: tuple[Expected, ...]


@dataclass(frozen=True)
class Differently:
    """The data arrives with a difference that the note describes."""

    why: str
    expected: tuple[Expected, ...]


@dataclass(frozen=True)
class Without:
    """The behavior does not apply to this destination."""

    why: str


@dataclass(frozen=True)
class Later:
    """Not supported yet: a strict expected failure until it is."""

    topic: str


Otherwise = Counted | Differently | Without | Later


def counted(why: str, *expected: Expected) -> Counted:
    """Return a cell for data that does not arrive but is counted."""
    return Counted(why, expected)


def differently(why: str, *expected: Expected) -> Differently:
    """Return a cell for data that arrives with a documented difference."""
    return Differently(why, expected)


@dataclass(frozen=True)
class Row:
    """A documented behavior.

    Attributes:
        section: the API.
        name: short and unique.
        says: the sentence on the page.
        record: the program.
        expected: the data that has to arrive.
        otherwise: destinations that differ from that.
        ends: how the program's process ends. All rows that end in an exit share one process.
        torch: whether the program needs PyTorch.
    """

    section: str
    name: str
    says: str
    record: Callable[[], None]
    expected: tuple[Expected, ...]
    otherwise: Mapping[WayName, Otherwise] = field(default_factory=dict)
    ends: End = "exit"
    torch: bool = False

    def cell(self, way: WayName) -> tuple[Expected, ...] | Otherwise:
        """Return the exact data that has to arrive at a destination, or how it differs."""
        if way in self.otherwise:
            return self.otherwise[way]
        if self.ends != "exit" and not WAYS[way].sent:
            return Without(
                "this destination is fetched while the process runs; exporters that push also get the last values"
            )
        return self.carried(way) or Without(WAYS[way].lacks[self.expected[0].sort])

    def carried(self, way: WayName) -> tuple[Expected, ...]:
        """Return the expected data that a destination can carry."""
        return tuple(each for each in self.expected if each.sort not in WAYS[way].lacks)


class Section:
    """The rows of one API; decorate their programs with :meth:`row`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[Row] = []

    def row(
        self,
        *expected: Expected,
        otherwise: Mapping[tuple[WayName, ...], Otherwise] | None = None,
        ends: End = "exit",
        torch: bool = False,
    ) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Add a row; its name is the function's name, its sentence the function's docstring."""

        def add(record: Callable[[], None]) -> Callable[[], None]:
            says = " ".join((record.__doc__ or "").split())
            cells = {way: cell for ways, cell in (otherwise or {}).items() for way in ways}
            name = record.__name__.replace("_", " ")
            self.rows.append(Row(self.title, name, says, record, expected, cells, ends, torch))
            return record

        return add
