"""The charts of a run: its metrics by group, their axes, and which curves each has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from tachograph.runs.look import Look
from tachograph.runs.members import mapping, rank_of

_X = (("units", "x_units"), ("lower", "x_lower"), ("upper", "x_upper"))
_Y = (("units", "units"), ("lower", "lower"), ("upper", "upper"))
_REPEATED = re.compile(r"(.+)#\d+", re.DOTALL)  # see tachograph.progress
MOST_REPEATED = 100  # calls of a task, or repeated loops, of one rank that are listed: the newest ones
_NUMBERS = ("lower", "upper", "x_lower", "x_upper")
_TEXTS = ("group", "scale", "task", "units", "x_units")
_EXTENT = ("branches", "points", "x0", "x1", "min", "max", "nonfinite")


class Drawn(NamedTuple):
    """A curve: one metric in one start of a process and one task.

    Attributes:
        number: in the file; 0 for a metric that is defined and has no points.
        start: which start of its process, from 0.
        about: what was said of it last: bounds are finite numbers, names and units texts, and all else is left out.
        said: when that was.
    """

    number: int
    metric: str
    group: str
    rank: int | None
    execution: int
    start: int
    about: Mapping[str, Any]
    said: int

    @property
    def named(self) -> str:
        """The metric that it is shown as: repeated loops are one, whatever their number."""
        found = _REPEATED.fullmatch(self.metric) if self.about.get("progress") else None
        return found[1] if found else self.metric


def curves(look: Look) -> list[Drawn]:
    """Return the curves of a run, and the metrics that are defined only."""
    streams = _streams(look)
    said = {
        (stream, execution, metric): (_defined(about), time)
        for stream, execution, metric, time, about in look.rows(
            "SELECT stream, execution, metric, time, about FROM definition ORDER BY stream, time"
        )
    }
    found = []
    for number, stream, execution, metric, chart in look.rows(
        "SELECT id, stream, execution, metric, chart FROM curve ORDER BY id"
    ):
        about, time = said.pop((stream, execution, metric), ({}, 0))
        start, rank = streams.get(stream, (0, None))
        group = chart or about.get("group", "")
        found.append(Drawn(number, metric, group, rank, execution, start, about, time))
    have = {(each.group, each.metric) for each in found}
    for (stream, execution, metric), (about, time) in said.items():
        start, rank = streams.get(stream, (0, None))
        each = Drawn(0, metric, about.get("group", ""), rank, execution, start, about, time)
        if (each.group, each.metric) not in have:
            found.append(each)
    return found


def _defined(about: Any) -> dict[str, Any]:
    """Return what a definition says, as far as it is what a definition may say: any program may send one."""
    said = mapping(about)
    found = {name: said[name] for name in _TEXTS if isinstance(said.get(name), str)}
    bounds = {name: finite(said.get(name)) for name in _NUMBERS}
    found |= {name: value for name, value in bounds.items() if value is not None}
    return found | ({"progress": True} if said.get("progress") is True else {})


def finite(value: Any) -> int | float | None:
    """Return a number; None for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:
        return None


def _streams(look: Look) -> dict[int, tuple[int, int | None]]:
    """Return which start of its process each stream is of, and that one's rank."""
    found: dict[int, tuple[int, int | None]] = {}
    starts: dict[int, int] = {}
    for stream, process, resource in look.rows(
        "SELECT stream.id, process.id, resource FROM stream JOIN process ON process.id = process"
        " WHERE stream.name NOT LIKE 'content:%' ORDER BY stream.id"
    ):
        found[stream] = starts.get(process, 0), rank_of(mapping(resource))
        starts[process] = found[stream][0] + 1
    return found


def newest(drawn: Iterable[Drawn], most: int = MOST_REPEATED) -> list[Drawn]:
    """Return the curves without those of which there are ``most`` newer ones: of the same metric, rank and start."""
    kept: list[Drawn] = []
    counts: dict[tuple[Any, ...], int] = {}
    for each in sorted(drawn, key=lambda each: each.number, reverse=True):
        key = each.group, each.named, each.rank, each.start
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= most:
            kept.append(each)
    return kept[::-1]


def charts(look: Look, drawn: Iterable[Drawn]) -> list[dict[str, Any]]:
    """Return the charts as the API has them: one for each group, and one for each metric without a group."""
    extents = {
        row[0]: dict(zip(_EXTENT, row[1:], strict=True))
        for row in look.rows(
            "SELECT curve, count(DISTINCT branch), sum(n), min(x0), max(x1), min(min), max(max), sum(nonfinite)"
            " FROM block GROUP BY curve"
        )
    }
    by_chart: dict[tuple[str, str], list[Drawn]] = {}
    for each in newest(drawn):
        by_chart.setdefault((each.group, "" if each.group else each.named), []).append(each)
    return [_chart(group, listed, extents) for (group, _), listed in by_chart.items()]


def _chart(group: str, listed: list[Drawn], extents: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    by_metric: dict[str, list[Drawn]] = {}
    for each in listed:
        by_metric.setdefault(each.named, []).append(each)
    scales: dict[str, dict[str, Any]] = {}
    metrics = []
    for metric, some in by_metric.items():
        about = max(some, key=lambda each: each.said).about
        name = about.get("scale", "")
        scale = f"scale:{name}" if name else f"metric:{metric}"
        shared = [each for each in listed if each.about.get("scale", "") == name] if name else some
        scales.setdefault(scale, {"scale": scale, "name": name or None, **_axis(shared, _Y)})
        drawn = [_curve(each, extents.get(each.number, {})) for each in some if each.number]
        metrics.append({"metric": metric, "scale": scale, "progress": "progress" in about, "curves": drawn})
    return {"group": group, "x": _axis(listed, _X), "scales": list(scales.values()), "metrics": metrics}


def _curve(each: Drawn, extent: Mapping[str, Any]) -> dict[str, Any]:
    about = {"curve": each.number, "rank": each.rank, "execution": each.execution, "start": each.start}
    nothing = {key: 0 if key in ("branches", "points", "nonfinite") else None for key in _EXTENT}
    return {**about, "task": each.about.get("task"), **nothing, **extent}


def _axis(listed: list[Drawn], keys: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return units and bounds of an axis: of each, what was said last of any metric on it."""
    found: dict[str, Any] = {key: None for key, _ in keys}
    for each in sorted(listed, key=lambda each: each.said):
        found.update({key: each.about[name] for key, name in keys if name in each.about})
    return found
