"""Training: all gauges and durations that the program records, by rank."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from board import Board, Query
from expressions import RATE, growth, or_zero, total

from tachograph.cli.dashboards.panel import WHO, selector

_PROGRAM = 'dl_run_id=~"$run",otel_scope_name!~"tachograph|tachograph[.](hardware|exporters)|torchelastic"'
_NO_GAUGE = '__name__!~".+_(bucket|sum|count|total|created|slowest_rank|by_rank|by_rank_.+)"'
_WHERE = f'otel_scope_name=~"$group",{WHO}'


def training(board: Board) -> Board:
    """Fill the dashboard."""
    board.choice("group", "Group", f"label_values({{{_PROGRAM}}}, otel_scope_name)")
    names = f'label_values({{{_PROGRAM},otel_scope_name=~"$group",{_NO_GAUGE}}}, __name__)'
    board.choice("metric", "Metric", names, every=None)
    durations = 'label_values({__name__=~".+_(seconds|milliseconds)_bucket",' + _PROGRAM + "}, __name__)"
    board.choice("duration", "Duration", durations, regex="/(.+?)_(?:milli)?seconds_bucket/", every=None)
    board.row("Overview")
    ranks = f'count(count by (dl_run_id, dl_rank) (target_info{{{WHO},dl_rank!=""}}))'
    board.numbers("Ranks", Query(ranks, "ranks"), height=5)
    nonfinite = total(growth("tachograph.nonfinite"), "metric")
    board.bars("NaN and infinite values", Query(nonfinite, "{{metric}}"), height=5, low=0, alarm=1)
    dropped = or_zero(total(growth("tachograph.dropped")))
    board.numbers("Dropped items", Query(dropped, "dropped"), height=5, alarm=1)
    board.row("Metrics")
    metric = selector("", '__name__="${metric:raw}"', _WHERE)
    board.lines("$metric", Query(metric, "{{dl_run_id}} {{dl_role}} {{dl_rank}}"), repeat="metric")
    board.row("Duration of $duration", repeat="duration")
    _durations(board)
    return board


def _durations(board: Board) -> None:
    by = "dl_run_id", "dl_rank"
    means = _either(lambda name: f"{_rate(name + '_sum', by)} / {_rate(name + '_count', by)}")
    board.lines("Mean by rank", Query(means, "rank {{dl_rank}}"), unit="s", low=0, description="Always in seconds.")
    extremes = (("slowest", f"max({means})"), ("median", f"quantile(0.5, {means})"), ("fastest", f"min({means})"))
    board.lines("Across ranks", *(Query(expression, name) for name, expression in extremes), unit="s", low=0)
    shares = [Query(_either(partial(_quantile, share)), f"p{share * 100:g}") for share in (0.5, 0.9, 0.99)]
    board.lines("Quantiles over all ranks", *shares, unit="s", low=0)
    slowest = f"topk by (dl_run_id) (1, {means})"
    board.numbers(
        "Slowest rank",
        Query(slowest, "rank {{dl_rank}}"),
        unit="s",
        height=6,
        description="The rank with the longest mean.",
    )
    by_hub = selector("${duration:raw}_slowest_rank", WHO.rpartition(",")[0])
    board.lines(
        "Slowest rank over time",
        Query(by_hub, "{{dl_run_id}} {{code_function_name}}"),
        unit="none",
        low=0,
        height=6,
        description="Reported by the hub, which sees all ranks of its node.",
    )
    frequency = _either(lambda name: _rate(name + "_count", by), times=False)
    board.lines("Frequency", Query(frequency, "rank {{dl_rank}}"), unit="ops", low=0, height=6)


def _either(expression: Callable[[str], str], *, times: bool = True) -> str:
    """Return an expression for a duration in seconds; the metric's name tells in which unit it was recorded."""
    seconds, milliseconds = (expression(f"${{duration:raw}}_{unit}") for unit in ("seconds", "milliseconds"))
    return f"({seconds}) or ({milliseconds}) / 1000" if times else f"({seconds}) or ({milliseconds})"


def _rate(name: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) (rate({selector(name, WHO)}[{RATE}]))"


def _quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share}, {_rate(name + '_bucket', ('le',))})"
