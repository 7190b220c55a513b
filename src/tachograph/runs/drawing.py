"""Drawings of a run for a notebook: one SVG each, with nothing from elsewhere, in the colours of the Studio.

A drawing shows itself where it is the last value of a cell (``_repr_html_``); :meth:`CurveDrawing.save` writes it to a
file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.recording.table import table_html
from tachograph.runs.recorded import Curve
from tachograph.runs.window import Stretch

WIDTH, HEIGHT = 640, 260
MOST_DRAWN = 6  # metrics of a run that are drawn unasked
_MOST_KEYS = 12  # of a configuration
_MOST_LINES = 12  # that have a name
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 28, 40
_TICKS = 5
_FAR, _TINY = 1e307, 1e-290  # what is beyond is drawn at the edge; what differs by less is one value
_ROW = 18  # pixels of a line of the legend
_LONG, _LONGEST = 20, 44  # letters of a label: beyond, the legend has fewer columns; beyond, it is cut
# As in the Studio's theme.css: light, and dark.
COLOURS = (
    *(("#0b72b0", "#57b0e6"), ("#c9540a", "#f0894a"), ("#00866a", "#34c39f"), ("#a8428a", "#d987c0")),
    *(("#a67c00", "#e3be4b"), ("#2a9bd0", "#8fd0f2"), ("#7a4fc4", "#ab8cf0"), ("#6b7a1e", "#b3c45c")),
)
_DASHES = ("", "9 3", "4 3", "9 3 2 3")


# Reads the branches of a metric's curves as the Studio draws them.
ReadStretches = Callable[[str], list[tuple[Curve, Stretch]]]


class DrawnLine(NamedTuple):
    """One line of a drawing.

    Attributes:
        label: its name in the legend; lines of one name have one colour and one entry.
        places: x and y, in the order of x; a NaN makes a gap.
    """

    label: str
    places: Sequence[tuple[float, float]]


class CurveDrawing:
    """A line chart as one SVG; a notebook displays it as the value of a cell.

    Args:
        title: the title above the chart.
        lines: the lines, in drawing order.
        x: the label of the x-axis.

    Attributes:
        svg: the SVG text.
    """

    def __init__(self, title: str, lines: Sequence[DrawnLine], x: str = "") -> None:
        self.title, self.lines = title, lines
        self.svg = "".join(_svg(title, lines, x))

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<drawing of {self.title!r}: {len(self.lines)} lines>"

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg, encoding="utf-8")


def drawing(runs: Sequence[tuple[str, ReadStretches]], names: Sequence[str]) -> CurveDrawing:
    """Return curves of one or several runs in one drawing.

    Args:
        runs: the name of each run and what reads its curves; if there are several, each line has its run's name.
        names: of the metrics.

    Raises:
        LookupError: the first run has no such metric, or none of this rank; others may lack it.
    """
    lines: list[DrawnLine] = []
    x = ""
    for place, (run, read_stretches) in enumerate(runs):
        for name in names:
            try:
                curves = read_stretches(name)
            except LookupError:
                if not place:
                    raise
                continue
            has_ranks = len({curve.rank for curve, _ in curves}) > 1
            for curve, stretch in curves:
                x = x or str(curve.definition.get("x_units", ""))
                label = [name] if len(names) > 1 or not (has_ranks or len(runs) > 1) else []
                label += [f"rank {curve.rank}"] if has_ranks else []
                label += [f"{key}={value}" for key, value in sorted(curve.attributes.items())]
                label += [run] if len(runs) > 1 else []
                lines.append(DrawnLine(" ".join(label) or name, _places(stretch)))
    return CurveDrawing(", ".join(names), lines, x)


def _places(stretch: Stretch) -> list[tuple[float, float]]:
    gaps = [(x, math.nan) for x, _ in stretch.nonfinite]
    points = zip(stretch.x, stretch.y, strict=True)
    return sorted([*gaps, *points], key=lambda place: place[0])


def run_html(
    about: Mapping[str, object],
    dictionaries: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[str],
    plot: Callable[[str], CurveDrawing],
) -> str:
    """Return a run as HTML: tables of its state, configuration and results, and its first curves.

    Args:
        about: rows of the table.
        dictionaries: tables of their own, by title.
        metrics: names of those that have curves.
        plot: draws one.
    """
    parts = [table_html(about), *(_dictionary(title, of) for title, of in dictionaries.items())]
    parts += [plot(name).svg for name in metrics[:MOST_DRAWN]]
    rest = ", ".join(f"<code>{escape(name)}</code>" for name in metrics[MOST_DRAWN : MOST_DRAWN + _MOST_KEYS])
    if rest:
        parts.append(f'<p>Not shown: {rest}. Use <code>run.plot("NAME")</code>.</p>')
    return "".join(parts)


def _dictionary(title: str, of: Mapping[str, object]) -> str:
    if not of:
        return ""
    more = {"…": f"{len(of) - _MOST_KEYS} more"} if len(of) > _MOST_KEYS else {}
    return f"<p><b>{title}</b></p>{table_html({**dict(list(of.items())[:_MOST_KEYS]), **more})}"


def _svg(title: str, lines: Sequence[DrawnLine], x: str) -> Iterator[str]:
    named = list(dict.fromkeys(line.label for line in lines))
    columns = 2 if any(len(label) > _LONG for label in named) else 3
    below = -(-min(len(named), _MOST_LINES) // columns) * _ROW
    frame = _Frame(lines)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tachograph" viewBox="0 0 {WIDTH} {HEIGHT + below}"'
        f' width="{WIDTH}" style="max-width:100%;height:auto" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>"
    )
    yield f"<style>{_style()}</style>"
    yield f'<rect class="surface" width="{WIDTH}" height="{HEIGHT + below}" rx="6"/>'
    yield f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>'
    for value, place in frame.marks_y():
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield f'<text class="quiet" x="{_LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{value}</text>'
    for value, place in frame.marks_x():
        yield f'<text class="quiet" x="{place:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value}</text>'
    yield f'<text class="quiet" x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(x)}</text>'
    for line in lines:
        place = named.index(line.label)
        yield f'<path class="curve c{place % len(COLOURS)}" {_dash(place)}d="{frame.path(line.places)}"/>'
    for place, label in enumerate(named[:_MOST_LINES]):
        left = _LEFT + place % columns * (WIDTH - _LEFT) // columns
        top = HEIGHT + place // columns * _ROW
        yield f'<path class="curve c{place % len(COLOURS)}" {_dash(place)}d="M{left} {top}h18"/>'
        yield f'<text x="{left + 24}" y="{top + 4}">{escape(label[:_LONGEST])}</text>'
    yield "</svg>"


def _dash(place: int) -> str:
    dash = _DASHES[place // len(COLOURS) % len(_DASHES)]
    return f'stroke-dasharray="{dash}" ' if dash else ""


def _style() -> str:
    """Return the style; each rule names the drawing's class, as a page has many."""

    def rules(surface: str, text: str, quiet: str, grid: str, curves: Iterable[str]) -> str:
        plain = {"text": f"fill:{text}", ".surface": f"fill:{surface}", ".grid": f"stroke:{grid}"}
        plain |= {"text.quiet": f"fill:{quiet}"}
        plain |= {f".c{place}": f"stroke:{colour}" for place, colour in enumerate(curves)}
        return "".join(f".tachograph {name}{{{how}}}" for name, how in plain.items())

    light = rules("#ffffff", "#17201f", "#5c6a6b", "#edf0f0", (one for one, _ in COLOURS))
    dark = rules("#171d1f", "#e4eaea", "#94a3a5", "#222b2d", (other for _, other in COLOURS))
    line = ".tachograph .curve{fill:none;stroke-width:1.7;stroke-linecap:round}"
    font = '.tachograph text{font:12px system-ui,"Segoe UI",Roboto,sans-serif}.tachograph .title{font-weight:600}'
    return f"{font}{line}{light}@media(prefers-color-scheme:dark){{{dark}}}"


class _Frame:
    """The place of values in a drawing."""

    def __init__(self, lines: Sequence[DrawnLine]) -> None:
        places = [place for line in lines for place in line.places]
        self._x = _span([x for x, _ in places], wider=0.0)
        self._y = _span([y for _, y in places], wider=0.04)

    def marks_x(self) -> Iterator[tuple[str, float]]:
        """Yield the round values of x, and where they are."""
        return ((text, self._left(value)) for value, text in _round(*self._x))

    def marks_y(self) -> Iterator[tuple[str, float]]:
        """Yield the round values of y, and where they are."""
        return ((text, self._top(value)) for value, text in _round(*self._y))

    def path(self, places: Sequence[tuple[float, float]]) -> str:
        """Return the way of a line; a NaN is a gap."""
        parts: list[list[str]] = [[]]
        for x, y in places:
            if math.isfinite(x) and math.isfinite(y):
                parts[-1].append(f"{self._left(x):.1f} {self._top(y):.1f}")
            elif parts[-1]:
                parts.append([])
        dot = "h.1"  # with its round ends
        return "".join("M" + "L".join(part) + (dot if len(part) == 1 else "") for part in parts if part)

    def _left(self, x: float) -> float:
        low, high = self._x
        return _LEFT + (_clipped(x) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def _top(self, y: float) -> float:
        low, high = self._y
        return HEIGHT - _BOTTOM - (_clipped(y) - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP)


def _span(values: Iterable[float], wider: float) -> tuple[float, float]:
    """Return the range of the finite values, somewhat wider; never empty."""
    finite = [_clipped(value) for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    size = max(abs(low), abs(high))
    more = (high - low) * wider
    if high - low <= max(size * 1e-12, _TINY):  # one value, as far as can be drawn
        more = max(size * 0.05, _TINY) if size > _TINY else 0.5
    return low - more, high + more


def _clipped(value: float) -> float:
    return min(max(value, -_FAR), _FAR)


def _round(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Yield round values within a range, and how they are written: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    for place in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield place * step, f"{place * step:.6g}"
