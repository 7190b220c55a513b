"""Drawings of values in the cells of a terminal: sparklines of blocks, and plots of one line of dots, in braille."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import isfinite
from statistics import median

from rich.text import Text

from tachograph.cli.top.legible import printable, shortened, shown_number
from tachograph.cli.top.state import POINTS, MetricRow

BLOCKS = "▁▂▃▄▅▆▇█"
NO_NUMBER = "\u00d7"  # a cross: NaN, or infinite
_LEAST_WIDTH = 56  # cells of a plot
_LABEL = 10  # cells of its numbers
_GAP = 2  # cells between two plots
_LEAST_LINES = 6  # of a plot with its title
_ACROSS, _DOWN = 2, 4  # dots in a cell
_BRAILLE = 0x2800
# Unicode 8.6: the bits of the dots of a cell, column by column from the top.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def merge_ranks(curves: Sequence[Sequence[float]], width: int) -> list[float]:
    """Return the median of several curves' last values, aligned at the newest ones; NaN where none is finite.

    Args:
        curves: each with its newest value last.
        width: the number of values at most.
    """
    if len(curves) == 1:
        return list(curves[0])
    medians = []
    backwards = [curve[: -width - 1 : -1] for curve in curves] if width else []
    for column in zip_longest(*backwards, fillvalue=float("nan")):
        finite = [value for value in column if isfinite(value)]
        medians.append(median(finite) if finite else float("nan"))
    return medians[::-1]


def draw_sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values, each as a block whose height is between those of the smallest and the largest.

    A level curve is drawn at half height; values that are not finite are crosses.
    """
    shown = values[-width:] if width > 0 else ()
    low, high = _limits(shown)
    return "".join(_block(value, low, high) for value in shown)


def _block(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return NO_NUMBER
    if low == high:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    return BLOCKS[min(int(_share(value, low, high) * len(BLOCKS)), len(BLOCKS) - 1)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest finite value."""
    finite = [value for value in values if isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _share(value: float, low: float, high: float) -> float:
    """Return where a value is between two others, from 0 to 1."""
    span = high - low
    if isfinite(span):
        return (value - low) / span
    # Halves: the difference of these two is beyond the range of floats.
    return (value / 2 - low / 2) / (high / 2 - low / 2)


def draw_plots(rows: Sequence[MetricRow], width: int, lines: int) -> Iterator[Text]:
    """Yield lines that plot the first metrics, as many as fit; nothing if there is too little room.

    Args:
        rows: the metrics, those that matter most first.
        width: of the terminal, in cells.
        lines: that are free.
    """
    plotted = [row for row in rows if any(len(line.values) > 1 for line in row.lines)]
    across = max(1, (width + _GAP) // (_LEAST_WIDTH + _GAP))
    down = min(lines // _LEAST_LINES, -(-len(plotted) // across))
    if not plotted or down < 1:
        return
    for first in range(0, down * across, across):
        beside = plotted[first : first + across]
        width_of_plot = (width - _GAP * (len(beside) - 1)) // len(beside)
        for parts in zip(*(_draw_plot(row, width_of_plot, lines // down) for row in beside), strict=True):
            yield Text(" " * _GAP, no_wrap=True).join(parts)


def _draw_plot(row: MetricRow, width: int, lines: int) -> list[Text]:
    """Return a plot of one metric's newest points, the median of its ranks: a title, then the dots."""
    values = merge_ranks([line.values for line in row.lines if line.values], POINTS)
    low, high = _limits(values)
    name = f"{printable(row.group)} / {printable(row.metric)}" if row.group else printable(row.metric)
    newest = shown_number(values[-1] if values else None)
    title = Text(no_wrap=True)
    title.append(shortened(name, max(width - len(newest) - 2, 1)), "bold")
    title.append(f"  {newest}", "default" if not values or isfinite(values[-1]) else "bold red")
    title.append(" " * max(width - title.cell_len, 0))
    drawn = [title]
    cells, crosses = _draw_dots(values, (low, high), width - _LABEL - 1, lines - 1)
    labels = {0: shown_number(high), lines - 2: shown_number(low)}
    for place, dots in enumerate(cells):
        line = Text(f"{labels.get(place, ''):>{_LABEL}} ", "dim", no_wrap=True)
        line.append(dots, "cyan")
        drawn.append(line)
    for column in crosses:
        place = _LABEL + 1 + column
        last = drawn[-1]
        last.plain = f"{last.plain[:place]}{NO_NUMBER}{last.plain[place + 1 :]}"
        last.stylize("bold red", place, place + 1)
    return drawn


def _value_at(values: Sequence[float], share: float) -> float:
    """Return the value at a share of the way, on the line between two; NaN if one of these is."""
    place = share * (len(values) - 1)
    before = values[int(place)]
    part = place - int(place)
    return before if not part else before * (1 - part) + values[int(place) + 1] * part


def _draw_dots(
    values: Sequence[float], limits: tuple[float, float], width: int, lines: int
) -> tuple[list[str], list[int]]:
    """Return the cells of a plot, line by line, and the columns in which a value is not finite."""
    low, high = limits
    bits = [[0] * width for _ in range(lines)]
    bottom = lines * _DOWN - 1
    last_column = max(width * _ACROSS - 1, 1)
    crosses = set[int]()
    row_before: int | None = None
    for column in range(last_column + 1):
        value = _value_at(values, column / last_column)
        if not isfinite(value):
            crosses.add(column // _ACROSS)
            row_before = None
            continue
        row = round((1 - _share(value, low, high)) * bottom) if low != high else bottom // 2
        first = last = row
        if row_before is not None:  # the dots of a line without gaps
            first = min(row, row_before + 1)
            last = max(row, row_before - 1)
        for each in range(first, last + 1):
            bits[each // _DOWN][column // _ACROSS] |= _BITS[column % _ACROSS][each % _DOWN]
        row_before = row
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in line) for line in bits], sorted(crosses)
