"""Tables in the cells of a terminal, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

_LEAST_NAME = 20  # cells of the column that takes the remaining room

Cells = Sequence[Text | str]


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: above it.
        width: in cells; 0 for the room that the others leave.
        right: align the cells at the right.
        drop: columns with higher numbers are dropped first if the terminal is narrow; 0 is never dropped.
    """

    title: str
    width: int
    right: bool = True
    drop: int = 0


class Section(NamedTuple):
    """A table.

    Attributes:
        columns: the first one's title is that of the section.
        rows: each makes its cells, one for each column.
    """

    columns: Sequence[Column]
    rows: Sequence[Callable[[], Cells]]

    @property
    def lines(self) -> int:
        """The title, the rows, and an empty line."""
        return len(self.rows) + 2


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Return the place and width of each column that fits, with one cell between them.

    The column of width 0 gets the room that is left, at least 20 cells if that is possible.

    Args:
        columns: of a section; one has width 0.
        width: of the terminal, in cells.
    """
    places = list(range(len(columns)))

    def left() -> int:
        return width - sum(columns[place].width + 1 for place in places if columns[place].width)

    while left() < _LEAST_NAME and (droppable := [place for place in places if columns[place].drop]):
        places.remove(max(droppable, key=lambda place: (columns[place].drop, place)))
    return [(place, columns[place].width or max(left(), 1)) for place in places]


def height_of(sections: Sequence[Section]) -> int:
    """Return the number of lines of sections, without the empty line after the last one."""
    return max(sum(section.lines for section in sections) - 1, 0)


def first_lines(sections: Sequence[Section]) -> list[int]:
    """Return the line in which each section begins."""
    return [sum(section.lines for section in sections[:place]) for place in range(len(sections))]


def draw_sections(
    sections: Sequence[Section], width: int, *, first: int = 0, lines: int | None = None
) -> Iterator[Text]:
    """Yield the lines of sections from ``first`` on; rows that are not shown are not made.

    Args:
        sections: one below the other.
        width: of the terminal, in cells.
        first: the first line.
        lines: their number; None for all.
    """
    end = height_of(sections) if lines is None else min(first + lines, height_of(sections))
    for section, top in zip(sections, first_lines(sections), strict=True):
        columns = fit_columns(section.columns, width)
        for place in range(max(0, first - top), min(section.lines, end - top)):
            if place == 0:
                yield _draw_row([Text(column.title, "bold") for column in section.columns], section, columns)
            elif place <= len(section.rows):
                yield _draw_row(section.rows[place - 1](), section, columns)
            else:
                yield Text()


def _draw_row(cells: Cells, section: Section, columns: Sequence[tuple[int, int]]) -> Text:
    line = Text(no_wrap=True)
    for number, (place, width) in enumerate(columns):
        cell = cells[place]
        text = cell if isinstance(cell, Text) else Text(cell)
        if cell_len(text.plain) > width:
            text = text.copy()
            text.truncate(width, overflow="ellipsis")
        blank = " " * (width - cell_len(text.plain))
        if number:
            line.append(" ")
        if section.columns[place].right:
            line.append(blank).append_text(text)
        else:
            line.append_text(text).append(blank)
    line.rstrip()
    return line
