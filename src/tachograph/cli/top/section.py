"""A table on the screen, whose rows are made only when they are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from tachograph.cli.top.legible import legible


class Column(NamedTuple):
    """A column of a section.

    Attributes:
        title: above it.
        width: in cells; 0 for what the others leave.
        right: numbers end at the same place.
        rank: columns of a higher one go first where the terminal is narrow; 0 stays.
    """

    title: str
    width: int
    right: bool = True
    rank: int = 0


Cells = Sequence[Text | str]


class Section(NamedTuple):
    """A table.

    Attributes:
        columns: the first one's title is that of the section.
        rows: each makes its cells, one a column.
    """

    columns: Sequence[Column]
    rows: Sequence[Callable[[], Cells]]


def named(group: str, metric: str, more: str = "") -> Text:
    """Return a name with what it belongs to before it, and what else there is to say behind it."""
    found = Text(no_wrap=True, overflow="ellipsis")
    if group:
        found.append(f"{legible(group)} / ", style="dim")
    found.append(legible(metric))
    if more:
        found.append(f"  {legible(more)}", style="dim")
    return found


def fitted(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Return the place and width of each column that there is room for, one cell between them.

    Those that go first have the highest rank. What is left is for the column of width 0, which gets at least 12 cells
    where that can be.

    Args:
        columns: of a section; one has width 0.
        width: of the terminal, in cells.
    """
    places = list(range(len(columns)))

    def left() -> int:
        return width - sum(columns[place].width + 1 for place in places if columns[place].width)

    while left() < _LEAST and (some := [place for place in places if columns[place].rank]):
        places.remove(max(some, key=lambda place: (columns[place].rank, place)))
    return [(place, columns[place].width or max(left(), 1)) for place in places]


_LEAST = 20
