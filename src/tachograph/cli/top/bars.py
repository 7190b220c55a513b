"""How far the loops of a run are, as bars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from math import isfinite
from statistics import median

from rich.text import Text

from tachograph.cli.top.legible import lasting, number, per_second
from tachograph.cli.top.picture import Json, Picture
from tachograph.cli.top.section import Cells, Column, Section, named

_BAR = 24
_MOST = 16
_REPEATED = re.compile(r"#\d+$")


def progress(picture: Picture, *, by_rank: bool) -> Section:
    """Return the loops that go on, and of those that are done the last time of each."""
    columns = (
        Column("PROGRESS", 0, right=False),
        Column("", _BAR, right=False),
        Column("", 6),
        Column("DONE", 17, rank=2),
        Column("RATE", 9, rank=3),
        Column("LEFT", 9, rank=1),
        Column("", 10, right=False, rank=4),
    )
    bars: dict[tuple[object, ...], list[Json]] = {}
    for each in picture.progress:
        bars.setdefault((each["metric"], *_loop(each, by_rank=by_rank)), []).append(each)
    newest = [_newest_of_each_rank(some) for some in bars.values()]
    going = [some for some in newest if not all(each["done"] for each in some)]
    # Of a loop that was gone through again and again, the last time is enough.
    done = {_loop(some[0], by_rank=by_rank): some for some in newest if some not in going}
    for some in going:
        done.pop(_loop(some[0], by_rank=by_rank), None)
    return Section(columns, [partial(_bar, some) for some in [*going, *done.values()][:_MOST]])


def _loop(each: Json, *, by_rank: bool) -> tuple[object, ...]:
    """Return which loop it is, be it gone through for the first time or again: see tachograph.progress on ``#2``."""
    return each["group"], _REPEATED.sub("", each["metric"]), each["task"], each["rank"] if by_rank else None


def _newest_of_each_rank(some: Iterable[Json]) -> list[Json]:
    found = {each["rank"]: each for each in sorted(some, key=lambda each: (each["execution"], each.get("curve", 0)))}
    return list(found.values())


def _bar(some: list[Json]) -> Cells:
    """Return the bar of the rank that is behind all others."""
    each = min(some, key=_share)
    share = _share(each)
    has_total = each["total"] is not None
    filled = round(share * _BAR)
    colour = "green" if each["done"] else "cyan"
    bar = Text("━" * filled, style=colour) + Text("━" * (_BAR - filled), style="dim")
    done = number(each["count"]) + (f" of {number(each['total'])}" if has_total else "")
    who = "" if each["rank"] is None else f"rank {each['rank']}"
    level = len(some) > 1 and len({one["count"] for one in some}) == 1
    return (
        named(each["group"], each["metric"], _task(each)),
        bar if has_total else Text("·" * _BAR, style="dim"),
        f"{100 * share:.0f} %" if has_total else "",
        done,
        per_second(each["rate"]),
        Text("done", style="green") if each["done"] else lasting(each["eta"]),
        Text(f"{len(some)} ranks" if level else who, style="dim"),
    )


def _share(each: Json) -> float:
    if not each["total"]:
        return 1.0 if each["done"] else 0.0
    share = each["count"] / each["total"]
    return min(max(share, 0.0), 1.0) if isfinite(share) else 0.0


def _task(each: Json) -> str:
    return str(each["task"] or "")


BLOCKS = "▁▂▃▄▅▆▇█"
TIMES = "\u00d7"
NO_NUMBER = TIMES  # NaN, or infinite


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values, each a block as high as the value is between the smallest and the largest.

    A curve that stays level is drawn at half height; what is not finite as a cross.
    """
    shown = values[-width:] if width > 0 else ()
    finite = [value for value in shown if isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(value, low, high) for value in shown)


def _block(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return NO_NUMBER
    if low == high:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    span = high - low
    # Halves, where the difference of two floats is beyond their range; those of the smallest floats are 0.
    share = (value - low) / span if isfinite(span) else (value / 2 - low / 2) / (high / 2 - low / 2)
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def together(curves: Sequence[Sequence[float]], width: int) -> list[float]:
    """Return the median of several curves' last values, the newest of all at the same place; NaN where none is finite.

    Args:
        curves: each with its newest value last.
        width: so many values at most.
    """
    if len(curves) == 1:
        return list(curves[0])
    found = []
    backwards = [curve[: -width - 1 : -1] for curve in curves] if width else []
    for column in zip_longest(*backwards, fillvalue=float("nan")):
        finite = [value for value in column if isfinite(value)]
        found.append(median(finite) if finite else float("nan"))
    return found[::-1]
