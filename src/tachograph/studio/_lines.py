"""The lines of a chart: what ``/curves`` answers."""

from __future__ import annotations

from math import inf
from typing import Any

from tachograph.runs.look import Look
from tachograph.runs.window import stretches
from tachograph.studio.charts import Drawn, curves, newest

MOST_PAIRS, LEAST_PAIRS = 200_000, 100  # in one answer; of a branch


def lines(
    look: Look,
    metric: str,
    *,
    group: str | None = None,
    rank: int | None = None,
    low: float = -inf,
    high: float = inf,
    pairs: int = 2000,
) -> list[dict[str, Any]]:
    """Return each branch of a metric's curves; of a task that is called, or a loop that is run, many times the newest.

    Args:
        look: at the file.
        metric: its name.
        group: only where it is in this group; empty for none, None for whatever group.
        rank: of this rank only.
        low: x where it begins; one point before it is there, too.
        high: x where it ends, the same.
        pairs: of a smallest and a largest value, at most, of each branch; fewer where there are very many curves.

    Raises:
        LookupError: there is no such metric, or no curve of it in this rank; the message names those that there are.
    """
    known = curves(look)
    of_metric = [each for each in known if metric in (each.named, each.metric) and group in (None, each.group)]
    wanted = newest(each for each in of_metric if each.number and rank in (None, each.rank))
    if not of_metric:
        raise LookupError(_unknown(metric, group, known))
    if not wanted and rank is not None:
        raise LookupError(f"the metric {metric!r:.200} has no points of rank {rank}")
    fair = max(LEAST_PAIRS, min(pairs, MOST_PAIRS // max(1, len(wanted))))
    return [line for each in wanted for line in _lines(look, each, fair, low, high)]


def _lines(look: Look, each: Drawn, pairs: int, low: float, high: float) -> list[dict[str, Any]]:
    named = {"curve": each.number, "metric": each.metric, "rank": each.rank}
    named |= {"execution": each.execution, "start": each.start}
    return [{**named, **stretch._asdict()} for stretch in stretches(look, each.number, pairs, low, high)]


def _unknown(metric: str, group: str | None, known: list[Drawn]) -> str:
    names = list(dict.fromkeys(each.metric for each in known))
    where = "" if group is None else f" in the group {group!r:.200}" if group else " without a group"
    there = ", ".join(f"{name!r:.100}" for name in names[:5]) or "none"
    return f"the run has no metric {metric!r:.200}{where}: there are {there}{', ...' if len(names) > 5 else ''}"  # noqa: PLR2004
