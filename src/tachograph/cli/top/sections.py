"""Sections of the screen, from top to bottom, made of a view of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from math import inf, isfinite
from statistics import median

from rich.text import Text

from tachograph.cli.top.choice import Choice, outlier_check
from tachograph.cli.top.legible import NOTHING, clock, count, lasting, per_second, printable, shown_number, took
from tachograph.cli.top.plots import draw_sparkline, merge_ranks
from tachograph.cli.top.state import CurveLine, MetricRow, RunView, count_troubles, merge_durations
from tachograph.cli.top.tables import Cells, Column, Section
from tachograph.runs import HistogramValues, Loss
from tachograph.runs.buckets import QUANTILE_ERROR
from tachograph.studio.snapshot import TIME_UNITS, FunctionTimes, ProgressBar, RunEvent, RunFault, RunSnapshot

_BAR = 24  # cells
_SPARKLINE = 20  # cells
_VALUE = 10  # cells
_MOST_LOOPS = 16
_MOST_EVENTS = 12
_MOST_ATTRIBUTES = 6  # of an event
_WORDS = 300  # characters of a fault
_ROUGH = 9.995  # times the value: a percentile that may be off by more is rough
_SLOW = 1.2  # times the median, from which on the slowest rank is colored
_TIMES = "\u00d7"
_REPEATED = re.compile(r"#\d+$")
_FAULT_STYLES = {
    "restart": "yellow",
    "slow": "yellow",
    "stalled": "bold yellow",
    "exception": "bold red",
    "lost": "bold red",
}
_FAILURES = ("FAIL", "LOST", "ERROR", "CRITICAL")  # in the state or the severity of an event
# The attributes that say most of an event come first.
_ATTRIBUTE_ORDER = {
    "state": 0,
    "reason": 0,
    "severity_text": 0,
    "raw_error": 1,
    "body": 1,
    "message": 2,
    "agent_restarts": 3,
    "source": 4,
}
_CURVE_COLUMNS = (
    Column("UNIT", 9, right=False, drop=2),
    Column("RECENT", _SPARKLINE, right=False, drop=1),
    Column("AT", 14, drop=4),
    Column("POINTS/S", 9, drop=3),
    Column("POINTS", 9, drop=5),
)


def sections_of(view: RunView, choice: Choice) -> list[Section]:
    """Return the sections of a run, faults first, without empty ones.

    Args:
        view: of the run.
        choice: among its rows.
    """
    snapshot = view.snapshot
    if snapshot is None:
        return []
    rows = choice.rows(view.rows)
    listed = [
        _faults(snapshot),
        _losses(snapshot),
        _troubles(snapshot),
        _progress(snapshot, by_rank=choice.by_rank),
        _metrics_by_rank(rows) if choice.by_rank else _metrics(rows),
        _functions(snapshot, choice),
        _durations(snapshot, choice),
        _events(view),
    ]
    return [section for section in listed if section.rows]


def _name(group: str, metric: str, remark: str = "", style: str = "dim") -> Text:
    """Return a name after its group, with a remark behind it."""
    name = Text(no_wrap=True, overflow="ellipsis")
    if group:
        name.append(f"{printable(group)} / ", style="dim")
    name.append(printable(metric))
    if remark:
        name.append(f"  {printable(remark)}", style=style)
    return name


def _rank(rank: int | None) -> str:
    return NOTHING if rank is None else str(rank)


def _faults(snapshot: RunSnapshot) -> Section:
    """Return the faults; points that are lost have a table of their own."""
    columns = (
        Column("PROBLEM", 0, right=False),
        Column("RANK", 5),
        Column("AT", 14, drop=2),
        Column("TIME", 8, drop=1),
    )
    return Section(columns, [partial(_fault, fault) for fault in snapshot.faults if fault.kind != "dropped"])


def _fault(fault: RunFault) -> Cells:
    words = Text(
        printable(fault.title, _WORDS), _FAULT_STYLES.get(fault.kind, "red"), no_wrap=True, overflow="ellipsis"
    )
    if fault.detail:
        words.append(f"  {printable(fault.detail, _WORDS)}", "dim")
    return (words, _rank(fault.rank), shown_number(fault.x), clock(fault.time) if fault.time else NOTHING)


def _progress(snapshot: RunSnapshot, *, by_rank: bool) -> Section:
    """Return the loops that go on, of ranks the slowest first, and of those that are done the last time of each."""
    columns = (
        Column("PROGRESS", 0, right=False),
        Column("", _BAR, right=False),
        Column("", 6),
        Column("DONE", 17, drop=2),
        Column("RATE", 9, drop=3),
        Column("LEFT", 9, drop=1),
        Column("", 10, right=False, drop=0 if by_rank else 4),
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
    return Section(columns, [partial(_bar, bars) for bars in [*going, *done.values()][:_MOST_LOOPS]])


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
        _name(slowest.group, slowest.metric, slowest.task or ""),
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


def _metrics(rows: Sequence[MetricRow]) -> Section:
    many = any(len(row.lines) > 1 for row in rows)
    values = [Column(title, _VALUE) for title in (("MIN", "MEDIAN", "MAX") if many else ("VALUE",))]
    rank = [Column("RANK", 5, drop=1)] if many else []
    columns = (Column("METRIC", 0, right=False), *values, *rank, *_CURVE_COLUMNS)
    return Section(columns, [partial(_metric, row, many=many) for row in rows])


def _metric(row: MetricRow, *, many: bool) -> Cells:
    values = row.values()
    finite = [value for value in values if isfinite(value)]
    if many:
        shown = [min(finite), median(finite), max(finite)] if finite else [values[0] if values else None] * 3
        is_outlier = outlier_check(finite)
        cells = [_value(value, is_outlier=value is not None and is_outlier(value)) for value in shown]
        cells.append(_rank_with(shown[-1], row.lines))
    else:
        cells = [_value(values[0] if values else None)]
    rates = [line.rate for line in row.lines if line.rate is not None]
    together = CurveLine(
        rank=None,
        points=sum(line.points for line in row.lines),
        rate=sum(rates) if rates else None,
        values=merge_ranks([line.values for line in row.lines], _SPARKLINE),
        x=max((line.x for line in row.lines if line.x is not None), default=None),
    )
    return (_name(row.group, row.metric, _nonfinite(row.lines), "bold red"), *cells, *_curve(row, together))


def _curve(row: MetricRow, line: CurveLine) -> Cells:
    """Return the cells of :data:`_CURVE_COLUMNS`."""
    return (
        Text(printable(row.units), style="dim", no_wrap=True, overflow="ellipsis"),
        Text(draw_sparkline(line.values, _SPARKLINE), style="cyan"),
        NOTHING if line.x is None else f"{shown_number(line.x)} {printable(row.x_units, 9)}".rstrip(),
        per_second(line.rate),
        count(line.points),
    )


def _nonfinite(lines: list[CurveLine]) -> str:
    """Return in words which of several ranks have a newest value that is not finite."""
    broken = [line for line in lines if line.value is not None and not isfinite(line.value)]
    if not broken or len(lines) == 1:
        return ""
    who = f"rank {broken[0].rank}" if len(broken) == 1 else f"{len(broken)} ranks"
    return f"{shown_number(broken[0].value)} on {who}"


def _rank_with(largest: float | None, lines: list[CurveLine]) -> Text:
    """Return the rank that has the largest value; nothing if all values are the same."""
    ranks = {line.value: line.rank for line in reversed(lines) if line.value is not None and isfinite(line.value)}
    return Text(_rank(ranks[largest]), "dim") if largest is not None and len(ranks) > 1 else Text()


def _value(value: float | None, *, is_outlier: bool = False) -> Text:
    is_broken = value is not None and not isfinite(value)
    return Text(shown_number(value), style="bold red" if is_broken else "yellow" if is_outlier else "default")


def _metrics_by_rank(rows: Sequence[MetricRow]) -> Section:
    columns = (Column("METRIC", 0, right=False), Column("RANK", 5), Column("VALUE", _VALUE), *_CURVE_COLUMNS)
    return Section(columns, [make_cells for row in rows for make_cells in _lines(row)])


def _lines(row: MetricRow) -> Iterator[Callable[[], Cells]]:
    """Yield the makers of the rows of a metric's ranks."""
    is_outlier = outlier_check([value for value in row.values() if isfinite(value)])
    for place, line in enumerate(row.lines):
        is_apart = line.value is not None and isfinite(line.value) and is_outlier(line.value)
        yield partial(_line, row, line, is_first=place == 0, is_outlier=is_apart)


def _line(row: MetricRow, line: CurveLine, *, is_first: bool, is_outlier: bool) -> Cells:
    name = _name(row.group, row.metric) if is_first else Text()
    return (name, _rank(line.rank), _value(line.value, is_outlier=is_outlier), *_curve(row, line))


def _functions(snapshot: RunSnapshot, choice: Choice) -> Section:
    together = {(times.role, times.function): times for times in snapshot.functions_together}
    off = _off(times.error for times in together.values() if times.p50 is not None)
    columns = (
        Column("FUNCTION", 0, right=False),
        Column("CALLS", 9),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, drop=3),
        Column(f"P99{off}", 9, drop=2),
        Column("SLOWEST", 15, right=False, drop=1),
        Column("FAILED", 28, right=False, drop=4),
    )
    by_name: dict[tuple[str, str], list[FunctionTimes]] = {}
    for times in snapshot.functions:
        if choice.matches(times.function):
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
        _name(role, name),
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
    return Text(f"{who} {_TIMES}{times:.2f}", style="yellow" if times >= _SLOW else "dim")


def _durations(snapshot: RunSnapshot, choice: Choice) -> Section:
    durations = merge_durations(snapshot.samples)
    chosen = {key: ranks for key, ranks in durations.items() if choice.matches(f"{key[0]} / {key[1]}")}
    off = _off(values.spread.error() for ranks in chosen.values() for values in ranks.values() if values.spread)
    columns = (
        Column("DURATION, LAST 10 S", 0, right=False),
        Column("MEAN", 9),
        Column(f"P50{off}", 9, drop=2),
        Column(f"P99{off}", 9, drop=1),
        Column("FASTEST", 9, drop=3),
        Column("SLOWEST", 9),
        Column("", 15, right=False),
    )
    return Section(columns, [partial(_duration, *key, ranks) for key, ranks in sorted(chosen.items())])


def _duration(scope: str, name: str, unit: str, ranks: dict[int | None, HistogramValues]) -> Cells:
    seconds = TIME_UNITS[unit]
    means = {rank: values.mean * seconds for rank, values in ranks.items()}
    percentiles = [value * seconds for value in reduce(HistogramValues.plus, ranks.values()).quantiles((0.5, 0.99))]
    shown = (sum(means.values()) / len(means), *percentiles, min(means.values()), max(means.values()))
    return (_name(scope, name), *map(took, shown), _slowest(means))


def _events(view: RunView) -> Section:
    columns = (
        Column("EVENTS", 8, right=False),
        Column("", 34, right=False),
        Column("RANK", 5),
        Column("", 0, right=False),
    )
    return Section(columns, [partial(_event, event) for event in view.events[: -_MOST_EVENTS - 1 : -1]])


def _event(event: RunEvent) -> Cells:
    attributes = event.attributes
    outcome = str(attributes.get("state", attributes.get("severity_text", event.name))).upper()
    style = "red" if any(word in outcome for word in _FAILURES) else "default"
    rank = event.rank if event.rank is not None else attributes.get("global_rank", NOTHING)
    words = Text(no_wrap=True, overflow="ellipsis")
    ordered = sorted(attributes, key=lambda key: (_ATTRIBUTE_ORDER.get(key, 9), key))
    for key in ordered[:_MOST_ATTRIBUTES]:
        words.append(f"{printable(key, 40)}=", style="dim")
        words.append(f"{printable(attributes[key], 80)} ")
    name = Text(printable(event.name), style=style, no_wrap=True, overflow="ellipsis")
    return (clock(event.time), name, printable(rank, 5), words)


def _losses(snapshot: RunSnapshot) -> Section:
    columns = (Column("LOST", 0, right=False), Column("DESTINATION", 16, right=False, drop=1), Column("POINTS", 12))
    return Section(columns, [partial(_loss, loss) for loss in snapshot.losses])


def _loss(loss: Loss) -> Cells:
    return (
        _name("", loss.reason),
        printable(loss.destination or NOTHING, 16),
        Text(f"{loss.points:,}", style="red"),
    )


def _troubles(snapshot: RunSnapshot) -> Section:
    columns = (Column("ERROR", 0, right=False), Column("COUNT", 12), Column("", 12, right=False))
    return Section(columns, [partial(_trouble, *trouble) for trouble in count_troubles(snapshot.samples)])


def _trouble(name: str, words: str, amount: float) -> Cells:
    return (_name(name, words), Text(shown_number(amount), style="red"), "")
