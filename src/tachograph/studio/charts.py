"""The charts of a run: its metrics by group, their axes, and their curves."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

from tachograph.recording.own_metrics import TORCH_MONITOR
from tachograph.runs.blocks import exact
from tachograph.runs.file import Look
from tachograph.runs.members import mapping, pairs, rank_of
from tachograph.runs.queries import (
    CurveExtent,
    StoredSample,
    read_curve_extents,
    read_curves,
    read_definitions,
    read_newest_samples,
    read_sample_time_before,
    read_samples,
    read_samples_since,
    read_series,
    read_shape,
    read_streams,
)
from tachograph.runs.recorded import stat_definition, stat_units
from tachograph.runs.spread import extremes, unpacked
from tachograph.runs.window import Drawing, stretches
from tachograph.runs.x_axis import XAxis
from tachograph.studio.thinned_samples import MOST as MOST_STRETCHES
from tachograph.studio.thinned_samples import thinned

_X = (("units", "x_units"), ("lower", "x_lower"), ("upper", "x_upper"))
_Y = (("units", "units"), ("lower", "lower"), ("upper", "upper"))
_REPEATED = re.compile(r"(.+)#\d+", re.DOTALL)  # see tachograph.progress
AGREE = 50.0  # metrics without a scale share an axis where the sizes of their values differ by this factor at most
MOST_AXES = 2  # of y in a chart
STEP = "step"  # of an x that is the number of the value, where the program gave no step: as the page's choice names it
MOST_REPEATED = 100  # listed curves of a metric in one rank: calls of a task, loops, sets of attributes; the newest
_NUMBERS = ("lower", "upper", "x_lower", "x_upper")
_TEXTS = ("group", "scale", "task", "units", "x_units")
_NO_POINTS = {"branches": 0, "points": 0, "x0": None, "x1": None, "min": None, "max": None, "nonfinite": 0}


class Drawn(NamedTuple):
    """A curve: one metric in one start of a process and one task.

    Attributes:
        number: in the file; 0 for a metric that is defined and has no points.
        attributes: those that distinguish it from other curves of the metric.
        start: the number of the start of its process, from 0.
        about: its latest definition: bounds are finite numbers, names and units texts; other values are left out.
        said: the time of that definition.
        kind: ``gauge`` for the curve of a gauge, as ``put_metric`` makes it, where the run also has a ``Metric`` of
            this name; empty for all others. Their x differ: they are no branches of one curve.
        numbered: its own x is the number of the value, or a step that the program gave.
    """

    number: int
    metric: str
    group: str
    attributes: Mapping[str, Any]
    rank: int | None
    execution: int
    start: int
    about: Mapping[str, Any]
    said: int
    kind: str = ""
    numbered: bool = False

    @property
    def named(self) -> str:
        """The name of the metric that shows it: repeated loops are one metric."""
        found = _REPEATED.fullmatch(self.metric) if self.about.get("progress") else None
        return found[1] if found else self.metric


def curves(look: Look, named: str | None = None) -> list[Drawn]:
    """Return the curves of a run, and the metrics that are defined only.

    Args:
        look: at the file.
        named: only those of a metric, and of its repetitions as a loop; None for all.
    """
    streams = _streams(look)
    said = {
        (each.stream, each.execution, each.group, each.metric): (_defined(each.about), each.time)
        for each in read_definitions(look.rows, named)
    }
    found = []
    units = stat_units(look.rows)
    gauges = set[int]()
    for number, stream, execution, group, metric, attributes in read_curves(look.rows, named):
        about, time = said.get((stream, execution, group, metric), ({}, 0))
        start, rank, packed = streams.get(stream, (0, None, False))
        if group == TORCH_MONITOR and not packed:
            about = {**stat_definition(metric, units), **about}
        found.append(Drawn(number, metric, group, pairs(attributes), rank, execution, start, about, time, "", packed))
        if packed:
            gauges.add(number)
    metrics = {(each.group, each.metric) for each in found if each.number not in gauges}
    found = [
        each._replace(kind="gauge") if each.number in gauges and (each.group, each.metric) in metrics else each
        for each in found
    ]
    have = {(each.group, each.metric) for each in found}
    for (stream, execution, group, metric), (about, time) in said.items():
        start, rank, _ = streams.get(stream, (0, None, False))
        if (group, metric) not in have:
            found.append(Drawn(0, metric, group, {}, rank, execution, start, about, time))
    return found


def _defined(about: Any) -> dict[str, Any]:
    """Return the valid parts of a definition: any program may send one."""
    said = mapping(about)
    found = {name: said[name] for name in _TEXTS if isinstance(said.get(name), str)}
    bounds = {name: finite(said.get(name)) for name in _NUMBERS}
    found |= {name: value for name, value in bounds.items() if value is not None}
    return found | ({"progress": True} if said.get("progress") is True else {})


def finite(value: Any) -> int | float | None:
    """Return a finite number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:
        return None


def _streams(look: Look) -> dict[int, tuple[int, int | None, bool]]:
    """Return, by stream, the number of the start of its process, the process's rank, and whether it is of gauges."""
    found: dict[int, tuple[int, int | None, bool]] = {}
    starts: dict[int, dict[str, int]] = {}
    for stream, name, process, resource in read_streams(look.rows):
        if name.lower().startswith("content:"):  # records without a number
            continue
        of_process = starts.setdefault(process, {})
        main, _, points = name.partition(".")  # points of gauges and of log() have a stream beside it
        found[stream] = of_process.setdefault(main, len(of_process)), rank_of(mapping(resource)), bool(points)
    return found


def newest(drawn: Iterable[Drawn], most: int = MOST_REPEATED) -> list[Drawn]:
    """Return the newest ``most`` curves of each metric, rank and start."""
    kept: list[Drawn] = []
    counts: dict[tuple[Any, ...], int] = {}
    for each in sorted(drawn, key=lambda each: each.number, reverse=True):
        key = each.group, each.named, each.rank, each.start, each.kind
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= most:
            kept.append(each)
    return kept[::-1]


def charts(look: Look, drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Return the charts in the API's form, those of a group one after the other.

    Metrics that were defined with a ``MetricGroup`` share a chart of two axes at most; what has no place on these, and
    every other metric, has a chart of its own.
    """
    extents = read_curve_extents(look.rows)
    recorded = Counter((each.group, each.named, each.kind) for each in drawn if each.number)
    shared = {(each.group, each.named) for each in drawn if each.about.get("group")}
    by_group: dict[str, dict[tuple[str | None, str], list[Drawn]]] = {}
    for each in newest(drawn):
        alone = None if (each.group, each.named) in shared and not each.kind else each.named
        by_group.setdefault(each.group, {}).setdefault((alone, each.kind), []).append(each)
    return [
        {"group": group, "shared": alone is None and not place, "kind": kind, **part}
        for group, of_group in by_group.items()
        for (alone, kind), listed in of_group.items()
        for place, part in enumerate(_parted(_chart(listed, extents, recorded)))
    ]


def _parted(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a chart's parts: the first two axes with their metrics, and each further axis as a chart.

    Metrics without a scale share an axis where their values are of one size, and otherwise have a chart each.
    """
    of = {each["scale"]: each for each in chart["scales"]}
    axes: dict[str, list[dict[str, Any]]] = {}
    for metric in chart["metrics"]:
        axes.setdefault(metric["scale"], []).append(metric)
    drawn = [name for name in axes if not all(metric["progress"] for metric in axes[name])]
    plain = [name for name in drawn if not any(value is not None for key, value in of[name].items() if key != "scale")]
    first, *others = _agreeing({name: _size(axes[name]) for name in plain}) or [""]
    for other in others:
        axes[first] += [{**metric, "scale": first} for metric in axes.pop(other)]
    kept = [name for name in drawn if name == first or name not in plain][:MOST_AXES]
    alone = [name for name in drawn if name in axes and name not in kept]
    parts = [[name for name in axes if name not in alone], *([name] for name in alone)]
    return [
        {**chart, "scales": [of[name] for name in part], "metrics": [each for name in part for each in axes[name]]}
        for part in parts
    ]


def _size(metrics: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest of the finite values of metrics, without its sign; 0 where there is none."""
    ends = (curve[end] for metric in metrics for curve in metric["curves"] for end in ("min", "max"))
    return max((abs(end) for end in ends if end is not None and isfinite(end)), default=0.0)


def _agreeing(sizes: Mapping[str, float]) -> list[str]:
    """Return as many names as possible whose sizes agree, in their order; those without a value agree with any."""
    known = sorted(filter(None, sizes.values()))
    most, least = 0, inf
    for place, size in enumerate(known):
        many = bisect_right(known, AGREE * size) - place
        if many > most:
            most, least = many, size
    return [name for name, size in sizes.items() if not size or least <= size <= AGREE * least]


def _chart(
    listed: list[Drawn], extents: Mapping[int, CurveExtent], recorded: Mapping[tuple[str, str, str], int]
) -> dict[str, Any]:
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
        drawn = [_curve(each, extents.get(each.number)) for each in some if each.number]
        left_out = recorded[some[0].group, metric, some[0].kind] - len(drawn)
        named = {"metric": metric, "scale": scale, "progress": "progress" in about}
        metrics.append({**named, "curves": drawn, "left_out": left_out})
    x = _axis(listed, _X)
    if x["units"] is None and all(each.numbered for each in listed):
        x["units"] = STEP
    return {"x": x, "scales": list(scales.values()), "metrics": metrics}


def _curve(each: Drawn, extent: CurveExtent | None) -> dict[str, Any]:
    about = {"curve": each.number, "attributes": exact(dict(each.attributes)), "rank": each.rank}
    about |= {"execution": each.execution, "start": each.start}
    numbers = _NO_POINTS if extent is None else {key: getattr(extent, key) for key in _NO_POINTS}
    return {**about, "task": each.about.get("task"), **numbers}


def _axis(listed: list[Drawn], keys: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return units and bounds of an axis: each from the latest definition of any metric on it."""
    found: dict[str, Any] = {key: None for key, _ in keys}
    for each in sorted(listed, key=lambda each: each.said):
        found.update({key: each.about[name] for key, name in keys if name in each.about})
    return found


MOST_SERIES = 20_000  # that are listed
_KINDS = {"sum": "gauge"}


def series(look: Look) -> list[dict[str, Any]]:
    """Return the series in the order of their arrival; at most :data:`MOST_SERIES`."""
    found = []
    for number, scope, name, unit, shape, attributes, resource, _ in read_series(look.rows, limit=MOST_SERIES):
        try:
            told = dict(json.loads(attributes))
        except (ValueError, TypeError) as error:
            look.file.note(f"the attributes of a series {name!r}: {error}")
            continue
        who = mapping(resource)
        about = {"series": number, "scope": scope, "name": name, "unit": unit, "kind": _KINDS.get(shape, shape)}
        found.append({**about, "attributes": exact(told), "rank": rank_of(who), "role": str(who.get("dl.role", ""))})
    return found


PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_SPREADS, LEAST_SPREADS = 2000, 50  # of all series in an answer, each some tenths of a millisecond; of a series


def samples(
    look: Look,
    numbers: Sequence[int],
    *,
    low: int = 0,
    high: int = 2**63 - 1,
    most: int = MOST_SPREADS,
    stretches: int = MOST_STRETCHES,
) -> list[dict[str, Any]]:
    """Return the samples of series: times in nanoseconds, and values, or of histograms those since the sample before.

    Of histograms these are counts and sums, and quantiles and extremes where the store has them, with ``error``, the
    largest share by which a quantile may be off. If there are very many samples, ``joined`` neighbours are one: its
    count, sum and extremes are those of all, its quantiles those of the one with the largest value. Very many of a
    gauge are its means, with ``min`` and ``max``; of a counter the last ones of stretches of time.

    Args:
        look: at the file.
        numbers: of the series.
        low: beginning of the window in time; one sample before it is included.
        high: end of the window.
        most: of samples of histograms, over all series; more where these are very many.
        stretches: of time, for each gauge and counter.
    """
    found = []
    fair = max(LEAST_SPREADS, most // max(1, len(numbers)))
    for number in numbers:
        shape = read_shape(look.rows, number)
        if shape is None:
            continue
        if shape != "histogram":
            few = thinned(look, number, shape, (low, high), stretches)
            found.append(few or sampled(number, _samples(look, number, low, high), histogram=False))
        else:
            rows = _samples(look, number, low, high)
            joined = -(-len(rows) // fair) or 1
            intervals = [_interval(look, rows[place : place + joined]) for place in range(0, len(rows), joined)]
            found.append({"series": number, "joined": joined, **_columns(intervals)})
    return found


def _samples(look: Look, number: int, low: int, high: int) -> list[StoredSample]:
    """Return the samples of a series between two times, and the one before them."""
    before = read_sample_time_before(look.rows, number, low)
    return list(read_samples(look.rows, number, low=low if before is None else before, high=high))


def _interval(look: Look, rows: Sequence[StoredSample]) -> dict[str, Any]:
    """Return neighbouring samples of a histogram as one."""
    interval: dict[str, Any] = {
        "time": rows[-1].time,
        "count": sum(row.value or 0 for row in rows),
        "total": _finite(sum(row.total or 0.0 for row in rows)),
    }
    try:
        known = [(*extremes(row.spread), row.spread) for row in rows if row.spread]
        if known:
            spread = unpacked(max(known, key=lambda each: each[1] if isfinite(each[1]) else -inf)[2])
            interval |= zip(PARTS, map(_finite, spread.quantiles(list(PARTS.values()))), strict=True)
            interval |= {"min": min((low for low, _, _ in known if isfinite(low)), default=None)}
            interval |= {"max": max((high for _, high, _ in known if isfinite(high)), default=None)}
            interval |= {"error": spread.error()}
    except ValueError as error:
        look.file.note(f"a sample of {rows[0].time}: {error}")
    return interval


def _columns(intervals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    told = {name: [each.get(name) for each in intervals] for name in ("time", "count", "total", *PARTS, "min", "max")}
    return {**told, "error": finite(max((each["error"] for each in intervals if "error" in each), default=None))}


def newest_samples(look: Look, numbers: Iterable[int], most: int) -> list[dict[str, Any]]:
    """Return the newest ``most`` samples of series as :func:`news` has them."""
    found = []
    for number in numbers:
        shape = read_shape(look.rows, number)
        if shape is not None:
            rows = read_newest_samples(look.rows, number, most)
            found.append(sampled(number, rows, histogram=shape == "histogram"))
    return found


def news(look: Look, since: int, known: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the new samples; of histograms with the newest exponential histogram as it is stored, in base64.

    Args:
        look: at the file.
        since: nanoseconds since the epoch: only newer samples are read.
        known: the time of each series' newest sample that was seen.
    """
    by_series: dict[int, tuple[str, list[StoredSample]]] = {}
    for number, shape, sample in read_samples_since(look.rows, since):
        if sample.time > known.get(number, 0):
            by_series.setdefault(number, (shape, []))[1].append(sample)
    return [sampled(number, rows, histogram=shape == "histogram") for number, (shape, rows) in by_series.items()]


def sampled(number: int, rows: Sequence[StoredSample], *, histogram: bool) -> dict[str, Any]:
    """Return a series' samples in the API's form."""
    found: dict[str, Any] = {"series": number, "time": [row.time for row in rows]}
    if not histogram:
        return {**found, "value": [_finite(row.value) for row in rows]}
    found |= {"count": [row.value for row in rows], "total": [_finite(row.total) for row in rows]}
    spread = rows[-1].spread if rows else None
    return {**found, "spread": base64.b64encode(spread).decode() if spread else None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


MOST_PAIRS, LEAST_PAIRS = 200_000, 100  # in one answer; of a branch
DRAWN = Drawing(2000)


def lines(
    look: Look,
    metric: str,
    *,
    group: str | None = None,
    rank: int | None = None,
    how: Drawing = DRAWN,
) -> list[dict[str, Any]]:
    """Return each branch of a metric's curves; of repeated tasks and loops, those of the newest calls.

    Args:
        look: at the file.
        metric: its name.
        group: only where it is in this group; empty for no group, None for any.
        rank: of this rank only.
        how: they are drawn: one point on each side of the window is included, there are fewer pairs of a smallest and
            a largest value where there are very many curves, and the number of a value is the x of curves that are
            numbered by their own: those of gauges and of ``log()``.

    Raises:
        LookupError: there is no such metric, or no curve of it in this rank; the message names the existing ones.
    """
    known = curves(look, metric)
    of_metric = [each for each in known if metric in (each.named, each.metric) and group in (None, each.group)]
    wanted = newest(each for each in of_metric if each.number and rank in (None, each.rank))
    if not of_metric:
        raise LookupError(_unknown(metric, group, curves(look)))
    if not wanted and rank is not None:
        raise LookupError(f"the metric {metric!r:.200} has no points of rank {rank}")
    how = how._replace(pairs=max(LEAST_PAIRS, min(how.pairs, MOST_PAIRS // max(1, len(wanted)))))
    return [line for each in wanted for line in _lines(look, each, how)]


def _lines(look: Look, each: Drawn, how: Drawing) -> list[dict[str, Any]]:
    if each.numbered and how.axis.kind == "number":
        how = how._replace(axis=XAxis())
    named = {"curve": each.number, "metric": each.metric, "attributes": exact(dict(each.attributes)), "rank": each.rank}
    named |= {"execution": each.execution, "start": each.start, "kind": each.kind}
    return [{**named, **stretch._asdict()} for stretch in stretches(look, each.number, how)]


def _unknown(metric: str, group: str | None, known: list[Drawn]) -> str:
    names = list(dict.fromkeys(each.metric for each in known))
    where = "" if group is None else f" in the group {group!r:.200}" if group else " without a group"
    there = ", ".join(f"{name!r:.100}" for name in names[:5]) or "none"
    return f"the run has no metric {metric!r:.200}{where}; its metrics are {there}{', ...' if len(names) > 5 else ''}"  # noqa: PLR2004
