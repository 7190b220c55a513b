"""How far the loops of a run are, as bars."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from math import isfinite

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
