"""Sections of the screen, from top to bottom, made of a picture of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import zip_longest
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from rich.text import Text

from tachograph.cli.top.choice import Choice, apart
from tachograph.cli.top.legible import NOTHING, clock, count, lasting, per_second, printable, shown_number, took
from tachograph.cli.top.picture import UNITS, CurveLine, Json, MetricRow, Picture
from tachograph.runs.buckets import QUANTILE_ERROR, HistogramValues


class Column(NamedTuple):
    """A column of a section.

    Attributes:
        title: above it.
        width: in cells; 0 for the room that the others leave.
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


def named(group: str, metric: str, more: str = "", style: str = "dim") -> Text:
    """Return a name with its owner before it, and further remarks behind it."""
    found = Text(no_wrap=True, overflow="ellipsis")
    if group:
        found.append(f"{printable(group)} / ", style="dim")
    found.append(printable(metric))
    if more:
        found.append(f"  {printable(more)}", style=style)
    return found


def fitted(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Return the place and width of each column that there is room for, one cell between them.

    Those that go first have the highest rank. The rest is for the column of width 0, which gets at least 12 cells
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


_BAR = 24
_MOST = 16
_REPEATED = re.compile(r"#\d+$")
BLOCKS = "▁▂▃▄▅▆▇█"
TIMES = "\u00d7"
NO_NUMBER = TIMES  # NaN, or infinite
SPARK = 20
_EVENTS = 12
_WORDS = 300  # characters of a fault
_FAULTS = {
    "restart": "yellow",
    "slow": "yellow",
    "stalled": "bold yellow",
    "exception": "bold red",
    "lost": "bold red",
}  # by kind
_ROUGH = 9.995  # times the value: a percentile that may be off by more is rough
_SLOW = 1.2  # times the median, from which on the slowest rank is coloured
_ATTRIBUTES = 6
_VALUE = 10
Maker = Callable[[], Cells]
# The telling attributes of an event come first.
_WORTH = {
    "state": 0,
    "reason": 0,
    "severity_text": 0,
    "raw_error": 1,
    "body": 1,
    "message": 2,
    "agent_restarts": 3,
    "source": 4,
}


def progress(picture: Picture, *, by_rank: bool) -> Section:
    """Return the loops that go on, of ranks the slowest first, and of those that are done the last time of each."""
    columns = (
        Column("PROGRESS", 0, right=False),
        Column("", _BAR, right=False),
        Column("", 6),
        Column("DONE", 17, rank=2),
        Column("RATE", 9, rank=3),
        Column("LEFT", 9, rank=1),
        Column("", 10, right=False, rank=0 if by_rank else 4),
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
    if by_rank:
        going.sort(key=lambda some: min(map(_share, some)))
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
    done = shown_number(each["count"]) + (f" of {shown_number(each['total'])}" if has_total else "")
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


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values, each a block as high as the value is between the smallest and the largest.

    A curve that stays level is drawn at half height; values that are not finite as a cross.
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


def sections(picture: Picture, choice: Choice) -> list[Section]:
    """Return the sections, faults first, and empty ones left out.

    Args:
        picture: of the run; it must not change until the rows are made.
        choice: among its rows.
    """
    rows = choice.rows(picture.rows())
    found = [
        _faults(picture),
        _losses(picture),
        _troubles(picture),
        progress(picture, by_rank=choice.by_rank),
        _by_rank(rows) if choice.by_rank else _metrics(rows),
        _functions(picture, choice),
        _durations(picture, choice),
        _events(picture),
    ]
    return [section for section in found if section.rows]


def _faults(picture: Picture) -> Section:
    """Return the faults; points that are lost have a table of their own."""
    columns = (
        Column("PROBLEM", 0, right=False),
        Column("RANK", 5),
        Column("AT", 14, rank=2),
        Column("TIME", 8, rank=1),
    )
    return Section(columns, [partial(_fault, each) for each in picture.faults if each["kind"] != "dropped"])


def _fault(each: Json) -> Cells:
    words = Text(printable(each["title"], _WORDS), _FAULTS.get(each["kind"], "red"), no_wrap=True, overflow="ellipsis")
    if each["detail"]:
        words.append(f"  {printable(each['detail'], _WORDS)}", "dim")
    place, rank = each["place"], each["rank"]
    at = NOTHING if place is None else shown_number(place["x"])
    return (words, NOTHING if rank is None else str(rank), at, clock(each["time"]) if each["time"] else NOTHING)


def _metrics(rows: Sequence[MetricRow]) -> Section:
    many = any(len(row.lines) > 1 for row in rows)
    values = ("MIN", "MEDIAN", "MAX") if many else ("VALUE",)
    columns = (
        Column("METRIC", 0, right=False),
        *(Column(title, _VALUE) for title in values),
        *([Column("RANK", 5, rank=1)] if many else []),
        Column("UNIT", 9, right=False, rank=2),
        Column("RECENT", SPARK, right=False, rank=1),
        Column("AT", 14, rank=4),
        Column("POINTS/S", 9, rank=3),
        Column("POINTS", 9, rank=5),
    )
    return Section(columns, [partial(_metric, row, many=many) for row in rows])


def _metric(row: MetricRow, *, many: bool) -> Cells:
    lines = row.lines
    newest = [line.tail.value for line in lines if line.tail.value is not None]
    finite = [value for value in newest if isfinite(value)]
    name = named(row.group, row.metric, _broken(lines), "bold red")
    if many:
        found = (min(finite), median(finite), max(finite)) if finite else (newest[0] if newest else None,) * 3
        middle, far = (median(finite), apart(finite)) if finite else (0.0, inf)
        values = [_value(value, apart=value is not None and abs(value - middle) > far) for value in found]
        values.append(_of_rank(lines, found[2]))
    else:
        values = [_value(newest[0] if newest else None)]
    x = max((line.tail.x for line in lines if line.tail.x is not None), default=None)
    rates = [line.rate for line in lines if line.rate is not None]
    drawn = together([list(line.tail.values) for line in lines], SPARK)
    return (name, *values, *_about(row, drawn, x, sum(rates) if rates else None, sum(line.points for line in lines)))


def _about(row: MetricRow, drawn: list[float], x: float | None, rate: float | None, points: int) -> Cells:
    at = NOTHING if x is None else f"{shown_number(x)} {printable(row.x_units, 9)}".rstrip()
    unit = Text(printable(row.units), style="dim", no_wrap=True, overflow="ellipsis")
    return (unit, Text(sparkline(drawn, SPARK), style="cyan"), at, per_second(rate), count(points))


def _broken(lines: list[CurveLine]) -> str:
    """Say which ranks' newest value is no number, where others' are."""
    broken = [line for line in lines if line.tail.value is not None and not isfinite(line.tail.value)]
    if not broken or len(lines) == 1:
        return ""
    who = f"rank {broken[0].rank}" if len(broken) == 1 else f"{len(broken)} ranks"
    return f"{shown_number(broken[0].tail.value)} on {who}"


def _of_rank(lines: list[CurveLine], largest: float | None) -> Text:
    """Say which rank has the largest value; nothing where they are all alike, or there is one."""
    finite = {line.rank: line.tail.value for line in lines if line.tail.value is not None and isfinite(line.tail.value)}
    if len({*finite.values()}) < 2:  # noqa: PLR2004 - see above
        return Text()
    rank = next(rank for rank, value in finite.items() if value == largest)
    return Text(NOTHING if rank is None else str(rank), "dim")


def _value(value: float | None, *, apart: bool = False) -> Text:
    """Return a number: red where it is none, yellow where it is apart from those of the other ranks."""
    broken = value is not None and not isfinite(value)
    return Text(shown_number(value), style="bold red" if broken else "yellow" if apart else "default")


def _by_rank(rows: Sequence[MetricRow]) -> Section:
    columns = (
        Column("METRIC", 0, right=False),
        Column("RANK", 5),
        Column("VALUE", _VALUE),
        Column("UNIT", 9, right=False, rank=2),
        Column("RECENT", SPARK, right=False, rank=1),
        Column("AT", 14, rank=4),
        Column("POINTS/S", 9, rank=3),
        Column("POINTS", 9, rank=5),
    )
    return Section(columns, [partial(_line, *each) for row in rows for each in _lines(row)])


def _lines(row: MetricRow) -> Iterator[tuple[MetricRow, CurveLine, int, bool]]:
    """Yield the ranks of a metric, and whether each is apart from the others."""
    values = [line.tail.value for line in row.lines]
    finite = [value for value in values if value is not None and isfinite(value)]
    middle, far = (median(finite), apart(finite)) if finite else (0.0, inf)
    for place, (line, value) in enumerate(zip(row.lines, values, strict=True)):
        yield row, line, place, value is not None and abs(value - middle) > far


def _line(row: MetricRow, line: CurveLine, place: int, is_apart: bool) -> Cells:
    name = named(row.group, row.metric) if place == 0 else Text()
    rank = NOTHING if line.rank is None else str(line.rank)
    return (
        name,
        rank,
        _value(line.tail.value, apart=is_apart),
        *_about(row, list(line.tail.values), line.tail.x, line.rate, line.points),
    )


def _functions(picture: Picture, choice: Choice) -> Section:
    together = {(each["role"], each["function"]): each for each in picture.functions_together}
    off = _off([each["error"] for each in together.values() if each["p50"] is not None])
    columns = (
        Column("FUNCTION", 0, right=False),
        Column("CALLS", 9),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, rank=3),
        Column(f"P99{off}", 9, rank=2),
        Column("SLOWEST", 15, right=False, rank=1),
        Column("FAILED", 28, right=False, rank=4),
    )
    by_name: dict[tuple[str, str], list[Json]] = {}
    for each in filter(lambda each: choice.takes(each["function"]), picture.functions):
        by_name.setdefault(("agent" if each["role"] == "agent" else "", each["function"]), []).append(each)
    ordered = sorted(by_name.items(), key=lambda pair: (pair[0][0], -sum(_spent(each) for each in pair[1])))
    return Section(columns, [partial(_function, *key, some, together.get(key)) for key, some in ordered])


def _off(errors: Iterable[float | None]) -> str:
    """Return by how much the percentiles of a column may be off, where that is more than 2.2 %; for its title."""
    most = max((inf if error is None else error for error in errors), default=0.0)
    return "" if most <= QUANTILE_ERROR else f" ±{100 * most:.0f}%" if most < _ROUGH else " rough"


def _spent(each: Json) -> float:
    return float((each["mean"] or 0.0) * each["calls"])


def _function(role: str, name: str, some: list[Json], together: Json | None) -> Cells:
    calls = sum(each["calls"] for each in some)
    failures: dict[str, int] = {}
    for each in some:
        for error, times in each["failures"].items():
            failures[error] = failures.get(error, 0) + times
    failed = ", ".join(f"{times} {printable(error or 'error')}" for error, times in sorted(failures.items()))
    means = {each["rank"]: each["mean"] for each in some if each["mean"] is not None}
    return (
        named(role, name),
        count(calls),
        took(sum(_spent(each) for each in some) / calls if calls else None),
        took(together["p50"] if together else None),
        took(together["p99"] if together else None),
        _slowest(means),
        Text(failed, style="red", no_wrap=True, overflow="ellipsis"),
    )


def _slowest(means: dict[int | None, float]) -> Text:
    """Return the slowest rank, and how many times the median its mean is."""
    if len(means) < 2:  # noqa: PLR2004 - one rank is slower than none
        return Text("")
    rank, mean = max(means.items(), key=lambda pair: pair[1])
    middle = median(means.values())
    times = mean / middle if middle > 0 else 1.0
    who = "agent" if rank is None else f"rank {rank}"
    return Text(f"{who} {TIMES}{times:.2f}", style="yellow" if times >= _SLOW else "dim")


def _durations(picture: Picture, choice: Choice) -> Section:
    found = {key: ranks for key, ranks in picture.durations().items() if choice.takes(f"{key[0]} / {key[1]}")}
    off = _off(values.spread.error() for ranks in found.values() for values in ranks.values() if values.spread)
    columns = (
        Column("DURATION, LAST 10 S", 0, right=False),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, rank=2),
        Column(f"P99{off}", 9, rank=1),
        Column("FASTEST", 9, rank=3),
        Column("SLOWEST", 9),
        Column("", 15, right=False),
    )
    return Section(columns, [partial(_duration, *key, ranks) for key, ranks in sorted(found.items())])


def _duration(scope: str, name: str, unit: str, ranks: dict[int | None, HistogramValues]) -> Cells:
    means = {rank: values.mean * UNITS[unit] for rank, values in ranks.items()}
    middle = sum(means.values()) / len(means)
    parts = [each * UNITS[unit] for each in reduce(HistogramValues.plus, ranks.values()).quantiles((0.5, 0.99))]
    durations = (middle, *parts, min(means.values()), max(means.values()))
    return (named(scope, name), *map(took, durations), _slowest(means))


def _events(picture: Picture) -> Section:
    columns = (
        Column("EVENTS", 8, right=False),
        Column("", 34, right=False),
        Column("RANK", 5),
        Column("", 0, right=False),
    )
    return Section(columns, [partial(_event, each) for each in list(picture.events)[: -_EVENTS - 1 : -1]])


def _event(each: Json) -> Cells:
    said = each["attributes"].get("state", each["attributes"].get("severity_text", each["name"]))
    bad = any(word in str(said).upper() for word in ("FAIL", "LOST", "ERROR", "CRITICAL"))
    style = "red" if bad else "default"
    rank = each["rank"] if each["rank"] is not None else each["attributes"].get("global_rank", NOTHING)
    told = sorted(each["attributes"].items(), key=lambda pair: (_WORTH.get(pair[0], 9), pair[0]))[:_ATTRIBUTES]
    words = Text(no_wrap=True, overflow="ellipsis")
    for key, value in told:
        words.append(f"{printable(key, 40)}=", style="dim")
        words.append(f"{printable(value, 80)} ")
    name = Text(printable(each["name"]), style=style, no_wrap=True, overflow="ellipsis")
    return (clock(each["time"]), name, printable(rank, 5), words)


def _losses(picture: Picture) -> Section:
    columns = (Column("LOST", 0, right=False), Column("DESTINATION", 16, right=False, rank=1), Column("POINTS", 12))
    return Section(columns, [partial(_loss, *each) for each in picture.losses()])


def _loss(reason: str, destination: str, points: int) -> Cells:
    return (named("", reason), printable(destination or NOTHING, 16), Text(f"{points:,}", style="red"))


def _troubles(picture: Picture) -> Section:
    columns = (Column("ERROR", 0, right=False), Column("COUNT", 12), Column("", 12, right=False))
    return Section(columns, [partial(_trouble, *each) for each in picture.troubles()])


def _trouble(name: str, words: str, amount: float) -> Cells:
    return (named(name, words), Text(shown_number(amount), style="red"), "")
