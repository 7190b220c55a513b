"""Sections of the screen, from top to bottom, made of a view of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import zip_longest
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from rich.text import Text

from tachograph.cli.top.choice import Choice, apart
from tachograph.cli.top.legible import NOTHING, clock, count, lasting, per_second, printable, shown_number, took
from tachograph.cli.top.state import CurveLine, MetricRow, RunView, count_troubles, merge_durations
from tachograph.runs.buckets import QUANTILE_ERROR, HistogramValues
from tachograph.runs.losses import Loss
from tachograph.studio.snapshot import TIME_UNITS, FunctionTimes, ProgressBar, RunEvent, RunFault, RunSnapshot


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


def _progress(snapshot: RunSnapshot, *, by_rank: bool) -> Section:
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
    loops: dict[tuple[object, ...], list[ProgressBar]] = {}
    for bar in snapshot.progress:
        loops.setdefault((bar.metric, *_loop(bar, by_rank=by_rank)), []).append(bar)
    newest = [_newest_of_each_rank(bars) for bars in loops.values()]
    going = [bars for bars in newest if not all(bar.done for bar in bars)]
    # Of a loop that was gone through again and again, the last time is enough.
    done = {_loop(bars[0], by_rank=by_rank): bars for bars in newest if bars not in going}
    for bars in going:
        done.pop(_loop(bars[0], by_rank=by_rank), None)
    if by_rank:
        going.sort(key=lambda bars: min(map(_share, bars)))
    return Section(columns, [partial(_bar, bars) for bars in [*going, *done.values()][:_MOST]])


def _loop(bar: ProgressBar, *, by_rank: bool) -> tuple[object, ...]:
    """Return which loop it is, whether gone through for the first time or again: see tachograph.progress on ``#2``."""
    return bar.group, _REPEATED.sub("", bar.metric), bar.task, bar.rank if by_rank else None


def _newest_of_each_rank(bars: Iterable[ProgressBar]) -> list[ProgressBar]:
    return list({bar.rank: bar for bar in sorted(bars, key=lambda bar: (bar.execution, bar.curve))}.values())


def _bar(bars: list[ProgressBar]) -> Cells:
    """Return the bar of the rank that is behind all others."""
    slowest = min(bars, key=_share)
    share = _share(slowest)
    has_total = slowest.total is not None
    filled = round(share * _BAR)
    drawn = Text("━" * filled, style="green" if slowest.done else "cyan") + Text("━" * (_BAR - filled), style="dim")
    who = "" if slowest.rank is None else f"rank {slowest.rank}"
    is_level = len(bars) > 1 and len({bar.completed for bar in bars}) == 1
    return (
        named(slowest.group, slowest.metric, slowest.task or ""),
        drawn if has_total else Text("·" * _BAR, style="dim"),
        f"{100 * share:.0f} %" if has_total else "",
        shown_number(slowest.completed) + (f" of {shown_number(slowest.total)}" if has_total else ""),
        per_second(slowest.rate),
        Text("done", style="green") if slowest.done else lasting(slowest.eta),
        Text(f"{len(bars)} ranks" if is_level else who, style="dim"),
    )


def _share(bar: ProgressBar) -> float:
    if not bar.total:
        return 1.0 if bar.done else 0.0
    share = bar.completed / bar.total
    return min(max(share, 0.0), 1.0) if isfinite(share) else 0.0


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


def sections(view: RunView, choice: Choice) -> list[Section]:
    """Return the sections of a run, faults first, without empty ones.

    Args:
        view: of the run.
        choice: among its rows.
    """
    snapshot = view.snapshot
    if snapshot is None:
        return []
    rows = choice.rows(view.rows)
    found = [
        _faults(snapshot),
        _losses(snapshot),
        _troubles(snapshot),
        _progress(snapshot, by_rank=choice.by_rank),
        _by_rank(rows) if choice.by_rank else _metrics(rows),
        _functions(snapshot, choice),
        _durations(snapshot, choice),
        _events(view),
    ]
    return [section for section in found if section.rows]


def _faults(snapshot: RunSnapshot) -> Section:
    """Return the faults; points that are lost have a table of their own."""
    columns = (
        Column("PROBLEM", 0, right=False),
        Column("RANK", 5),
        Column("AT", 14, rank=2),
        Column("TIME", 8, rank=1),
    )
    return Section(columns, [partial(_fault, fault) for fault in snapshot.faults if fault.kind != "dropped"])


def _fault(fault: RunFault) -> Cells:
    words = Text(printable(fault.title, _WORDS), _FAULTS.get(fault.kind, "red"), no_wrap=True, overflow="ellipsis")
    if fault.detail:
        words.append(f"  {printable(fault.detail, _WORDS)}", "dim")
    return (words, _rank(fault.rank), shown_number(fault.x), clock(fault.time) if fault.time else NOTHING)


def _rank(rank: int | None) -> str:
    return NOTHING if rank is None else str(rank)


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
    newest = [line.value for line in lines if line.value is not None]
    finite = [value for value in newest if isfinite(value)]
    name = named(row.group, row.metric, _broken(lines), "bold red")
    if many:
        found = (min(finite), median(finite), max(finite)) if finite else (newest[0] if newest else None,) * 3
        middle, far = (median(finite), apart(finite)) if finite else (0.0, inf)
        values = [_value(value, apart=value is not None and abs(value - middle) > far) for value in found]
        values.append(_of_rank(lines, found[2]))
    else:
        values = [_value(newest[0] if newest else None)]
    x = max((line.x for line in lines if line.x is not None), default=None)
    rates = [line.rate for line in lines if line.rate is not None]
    drawn = together([list(line.values) for line in lines], SPARK)
    return (name, *values, *_about(row, drawn, x, sum(rates) if rates else None, sum(line.points for line in lines)))


def _about(row: MetricRow, drawn: list[float], x: float | None, rate: float | None, points: int) -> Cells:
    at = NOTHING if x is None else f"{shown_number(x)} {printable(row.x_units, 9)}".rstrip()
    unit = Text(printable(row.units), style="dim", no_wrap=True, overflow="ellipsis")
    return (unit, Text(sparkline(drawn, SPARK), style="cyan"), at, per_second(rate), count(points))


def _broken(lines: list[CurveLine]) -> str:
    """Say which ranks' newest value is no number, where others' are."""
    broken = [line for line in lines if line.value is not None and not isfinite(line.value)]
    if not broken or len(lines) == 1:
        return ""
    who = f"rank {broken[0].rank}" if len(broken) == 1 else f"{len(broken)} ranks"
    return f"{shown_number(broken[0].value)} on {who}"


def _of_rank(lines: list[CurveLine], largest: float | None) -> Text:
    """Say which rank has the largest value; nothing where they are all alike, or there is one."""
    finite = {line.rank: line.value for line in lines if line.value is not None and isfinite(line.value)}
    if len({*finite.values()}) < 2:  # noqa: PLR2004 - see above
        return Text()
    return Text(_rank(next(rank for rank, value in finite.items() if value == largest)), "dim")


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
    values = [line.value for line in row.lines]
    finite = [value for value in values if value is not None and isfinite(value)]
    middle, far = (median(finite), apart(finite)) if finite else (0.0, inf)
    for place, (line, value) in enumerate(zip(row.lines, values, strict=True)):
        yield row, line, place, value is not None and abs(value - middle) > far


def _line(row: MetricRow, line: CurveLine, place: int, is_apart: bool) -> Cells:
    name = named(row.group, row.metric) if place == 0 else Text()
    return (
        name,
        _rank(line.rank),
        _value(line.value, apart=is_apart),
        *_about(row, list(line.values), line.x, line.rate, line.points),
    )


def _functions(snapshot: RunSnapshot, choice: Choice) -> Section:
    together = {(times.role, times.function): times for times in snapshot.functions_together}
    off = _off(times.error for times in together.values() if times.p50 is not None)
    columns = (
        Column("FUNCTION", 0, right=False),
        Column("CALLS", 9),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, rank=3),
        Column(f"P99{off}", 9, rank=2),
        Column("SLOWEST", 15, right=False, rank=1),
        Column("FAILED", 28, right=False, rank=4),
    )
    by_name: dict[tuple[str, str], list[FunctionTimes]] = {}
    for times in snapshot.functions:
        if choice.takes(times.function):
            role = "agent" if times.role == "agent" else ""
            by_name.setdefault((role, times.function), []).append(times)
    ordered = sorted(by_name.items(), key=lambda pair: (pair[0][0], -sum(map(_spent, pair[1]))))
    return Section(columns, [partial(_function, *key, ranks, together.get(key)) for key, ranks in ordered])


def _off(errors: Iterable[float | None]) -> str:
    """Return by how much the percentiles of a column may be off, where that is more than 2.2 %; for its title."""
    most = max((inf if error is None else error for error in errors), default=0.0)
    return "" if most <= QUANTILE_ERROR else f" ±{100 * most:.0f}%" if most < _ROUGH else " rough"


def _spent(times: FunctionTimes) -> float:
    return (times.mean or 0.0) * times.calls


def _function(role: str, name: str, ranks: list[FunctionTimes], together: FunctionTimes | None) -> Cells:
    calls = sum(times.calls for times in ranks)
    failures: Counter[str] = Counter()
    for times in ranks:
        failures.update(times.failures)
    failed = ", ".join(f"{many} {printable(error or 'error')}" for error, many in sorted(failures.items()))
    return (
        named(role, name),
        count(calls),
        took(sum(map(_spent, ranks)) / calls if calls else None),
        took(together.p50 if together else None),
        took(together.p99 if together else None),
        _slowest({times.rank: times.mean for times in ranks if times.mean is not None}),
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


def _durations(snapshot: RunSnapshot, choice: Choice) -> Section:
    durations = merge_durations(snapshot.samples)
    chosen = {key: ranks for key, ranks in durations.items() if choice.takes(f"{key[0]} / {key[1]}")}
    off = _off(values.spread.error() for ranks in chosen.values() for values in ranks.values() if values.spread)
    columns = (
        Column("DURATION, LAST 10 S", 0, right=False),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, rank=2),
        Column(f"P99{off}", 9, rank=1),
        Column("FASTEST", 9, rank=3),
        Column("SLOWEST", 9),
        Column("", 15, right=False),
    )
    return Section(columns, [partial(_duration, *key, ranks) for key, ranks in sorted(chosen.items())])


def _duration(scope: str, name: str, unit: str, ranks: dict[int | None, HistogramValues]) -> Cells:
    seconds = TIME_UNITS[unit]
    means = {rank: values.mean * seconds for rank, values in ranks.items()}
    percentiles = [value * seconds for value in reduce(HistogramValues.plus, ranks.values()).quantiles((0.5, 0.99))]
    shown = (sum(means.values()) / len(means), *percentiles, min(means.values()), max(means.values()))
    return (named(scope, name), *map(took, shown), _slowest(means))


def _events(view: RunView) -> Section:
    columns = (
        Column("EVENTS", 8, right=False),
        Column("", 34, right=False),
        Column("RANK", 5),
        Column("", 0, right=False),
    )
    return Section(columns, [partial(_event, event) for event in view.events[: -_EVENTS - 1 : -1]])


def _event(event: RunEvent) -> Cells:
    attributes = event.attributes
    outcome = str(attributes.get("state", attributes.get("severity_text", event.name))).upper()
    style = "red" if any(word in outcome for word in ("FAIL", "LOST", "ERROR", "CRITICAL")) else "default"
    rank = event.rank if event.rank is not None else attributes.get("global_rank", NOTHING)
    words = Text(no_wrap=True, overflow="ellipsis")
    for key, value in sorted(attributes.items(), key=lambda pair: (_WORTH.get(pair[0], 9), pair[0]))[:_ATTRIBUTES]:
        words.append(f"{printable(key, 40)}=", style="dim")
        words.append(f"{printable(value, 80)} ")
    name = Text(printable(event.name), style=style, no_wrap=True, overflow="ellipsis")
    return (clock(event.time), name, printable(rank, 5), words)


def _losses(snapshot: RunSnapshot) -> Section:
    columns = (Column("LOST", 0, right=False), Column("DESTINATION", 16, right=False, rank=1), Column("POINTS", 12))
    return Section(columns, [partial(_loss, loss) for loss in snapshot.losses])


def _loss(loss: Loss) -> Cells:
    return (
        named("", loss.reason),
        printable(loss.destination or NOTHING, 16),
        Text(f"{loss.points:,}", style="red"),
    )


def _troubles(snapshot: RunSnapshot) -> Section:
    columns = (Column("ERROR", 0, right=False), Column("COUNT", 12), Column("", 12, right=False))
    return Section(columns, [partial(_trouble, *trouble) for trouble in count_troubles(snapshot.samples)])


def _trouble(name: str, words: str, amount: float) -> Cells:
    return (named(name, words), Text(shown_number(amount), style="red"), "")
