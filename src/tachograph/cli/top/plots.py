"""Plots of metrics in the lines of a terminal that tables leave free: one line of dots each, in braille."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from rich.text import Text

from tachograph.cli.top.legible import printable, shortened, shown_number
from tachograph.cli.top.sections import NO_NUMBER, together
from tachograph.cli.top.state import POINTS, MetricRow

_WIDTH, _LABEL, _GAP = 56, 10, 2  # cells: the least of a plot, of its numbers, and between two
_LEAST = 6  # lines of a plot with its title
_ACROSS, _DOWN = 2, 4  # dots in a cell
_BRAILLE = 0x2800
# Unicode 8.6: the bits of the dots of a cell, column by column from the top.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def plots(rows: Sequence[MetricRow], width: int, lines: int) -> Iterator[Text]:
    """Yield lines that plot the first metrics, as many as there is room for; nothing where there is too little.

    Args:
        rows: the metrics, those that matter most first.
        width: of the terminal, in cells.
        lines: that are free.
    """
    drawn = [row for row in rows if any(len(line.values) > 1 for line in row.lines)]
    across = max(1, (width + _GAP) // (_WIDTH + _GAP))
    down = min(lines // _LEAST, -(-len(drawn) // across))
    if not drawn or down < 1:
        return
    for first in range(0, down * across, across):
        some = drawn[first : first + across]
        each = (width - _GAP * (len(some) - 1)) // len(some)
        beside = [_plot(row, each, lines // down) for row in some]
        for parts in zip(*beside, strict=True):
            line = Text(no_wrap=True)
            for place, part in enumerate(parts):
                line.append(" " * _GAP if place else "")
                line.append_text(part)
            yield line


def _plot(row: MetricRow, width: int, lines: int) -> list[Text]:
    """Return a plot of one metric's newest points, the median of its ranks: a title, then the dots."""
    values = together([line.values for line in row.lines if line.values], POINTS)
    finite = [value for value in values if isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    name = f"{printable(row.group)} / {printable(row.metric)}" if row.group else printable(row.metric)
    newest = shown_number(values[-1] if values else None)
    title = Text(no_wrap=True)
    title.append(shortened(name, max(width - len(newest) - 2, 1)), "bold")
    title.append(f"  {newest}", "default" if not values or isfinite(values[-1]) else "bold red")
    found = [_padded(title, width)]
    cells, broken = _dots(values, (low, high), width - _LABEL - 1, lines - 1)
    labels = {0: shown_number(high), lines - 2: shown_number(low)}
    for place, dots in enumerate(cells):
        line = Text(f"{labels.get(place, ''):>{_LABEL}} ", "dim", no_wrap=True)
        line.append(dots, "cyan")
        found.append(line)
    for place in broken:
        found[-1].plain = f"{found[-1].plain[: _LABEL + 1 + place]}{NO_NUMBER}{found[-1].plain[_LABEL + 2 + place :]}"
        found[-1].stylize("bold red", _LABEL + 1 + place, _LABEL + 2 + place)
    return found


def _padded(text: Text, width: int) -> Text:
    text.append(" " * max(width - text.cell_len, 0))
    return text


def _between(values: Sequence[float], share: float) -> float:
    """Return the value at a share of the way, on the line between two; no number where one of these is none."""
    place = share * (len(values) - 1)
    before, part = values[int(place)], place - int(place)
    return before if not part else before * (1 - part) + values[int(place) + 1] * part


def _dots(values: Sequence[float], limits: tuple[float, float], width: int, lines: int) -> tuple[list[str], list[int]]:
    """Return the cells of a plot, line by line, and the columns in which a value is no number."""
    low, high = limits
    span = high / 2 - low / 2  # halves: the difference of two floats may be beyond their range
    bits = [[0] * width for _ in range(lines)]
    top = lines * _DOWN - 1
    columns = max(width * _ACROSS - 1, 1)
    broken, before = list[int](), -1
    for column in range(columns + 1):
        value = _between(values, column / columns)
        if not isfinite(value):
            broken.append(column // _ACROSS)
            before = -1
            continue
        row = round((1 - (value / 2 - low / 2) / span) * top) if span else top // 2
        for each in range(min(row, before + 1), max(row, before - 1) + 1) if before >= 0 else (row,):
            bits[each // _DOWN][column // _ACROSS] |= _BITS[column % _ACROSS][each % _DOWN]
        before = row
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in line) for line in bits], sorted({*broken})
