"""Rows of the table: a documented behaviour, a program that shows it, and what is to arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from expected import Expected
from ways import WAYS, WayName

End = Literal["exit", "sigterm", "exception"]

PROVIDERS: tuple[WayName, ...] = ("provider", "alone")
NO_NAN = "the SDK takes no NaN and no infinity: the gauge has no point, `tachograph.nonfinite` counts it"


@dataclass(frozen=True)
class Counted:
    """It does not arrive here as it was recorded: what arrives instead is counted, and documented."""

    why: str
    expected: tuple[Expected, ...]


@dataclass(frozen=True)
class Differently:
    """It arrives, and a note says what is different here."""

    why: str
    expected: tuple[Expected, ...]


@dataclass(frozen=True)
class Without:
    """It does not concern this way out."""

    why: str


@dataclass(frozen=True)
class Later:
    """It does not arrive yet, though it should; a strict expected failure until it does."""

    topic: str


Otherwise = Counted | Differently | Without | Later


def counted(why: str, *expected: Expected) -> Counted:
    """Return a cell where something else arrives, and is counted."""
    return Counted(why, expected)


def differently(why: str, *expected: Expected) -> Differently:
    """Return a cell where it arrives, with a difference that is documented."""
    return Differently(why, expected)


@dataclass(frozen=True)
class Row:
    """A documented behaviour.

    Attributes:
        section: the API.
        name: short and unique.
        says: the documented sentence, in our words.
        record: the program.
        expected: what is to arrive.
        otherwise: where a way out differs from that.
        ends: how the program's process ends. All rows that end in an exit share one process.
        torch: whether it needs PyTorch.
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
        """Return what is to arrive by one way out, exactly; or how that differs."""
        if way in self.otherwise:
            return self.otherwise[way]
        if self.ends != "exit" and not WAYS[way].sent:
            return Without("it is fetched while the process runs; pushing ways have the last values")
        return self.carried(way) or Without(WAYS[way].lacks[self.expected[0].sort])

    def carried(self, way: WayName) -> tuple[Expected, ...]:
        """Return that part of what is expected which one way out has a place for."""
        return tuple(each for each in self.expected if each.sort not in WAYS[way].lacks)


class Section:
    """The rows of one API; :meth:`row` is the decorator of their programs."""

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
        """Add a row: the function's name is its name, the docstring the documented sentence."""

        def add(record: Callable[[], None]) -> Callable[[], None]:
            says = " ".join((record.__doc__ or "").split())
            cells = {way: cell for ways, cell in (otherwise or {}).items() for way in ways}
            name = record.__name__.replace("_", " ")
            self.rows.append(Row(self.title, name, says, record, expected, cells, ends, torch))
            return record

        return add
