"""Build the Prometheus dashboard of one run from the groups, scales and progress bars that it defined."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from tachograph.cli.dashboards.panel import (
    WHO,
    WIDTH,
    Json,
    Query,
    bar_gauge,
    dashboard,
    datasource_variable,
    grafana_unit,
    label_variable,
    literal,
    placed,
    quoted,
    selector,
    stat,
    time_series,
)
from tachograph.metric.execution import SCOPE
from tachograph.recording.chart import finite, unit_of
from tachograph.recording.naming import prometheus_name
from tachograph.recording.registry import Registry
from tachograph.runs import Run

_REPEATED = re.compile(r"#\d+$")  # the journal's names of further loops with the same key, which share its gauges
_INSPECTED_POINTS = 2  # the first point of a loop may have no rate yet
_CHART = WIDTH // 2, 9
_HALF = WIDTH // 2
_MINIMUM_HEIGHT = 4  # of the bars and numbers
_LEGEND = "rank {{dl_rank}}"
_LOOP = "{{loop}}"  # distinguishes nested loops with the same key
# Grafana does not escape these when it puts a variable's value into a regular expression.
_SPOILS_REGEX = re.compile(r'["\\\x00-\x1f]')
_MARKDOWN = re.compile(r"[^\w\s]", re.ASCII)
_Placed = tuple[Json, int, int]  # a panel, its width and its height


class Axis(NamedTuple):
    """An axis as the program defined it; ``name`` is the name of its scale, or empty."""

    name: str = ""
    units: str = ""
    lower: float | None = None
    upper: float | None = None


class Charted(NamedTuple):
    """A metric on a chart.

    Attributes:
        scope: the instrumentation scope of its gauge.
        gauge: the gauge's name in Prometheus.
        units: the unit of the values.
        progress: whether it is a progress bar.
        loop: whether it comes from ``progress()`` and therefore has more gauges, such as the rate.
        total: whether the number of items is known.
    """

    name: str
    scope: str
    gauge: str
    units: str
    scale: Axis
    progress: bool = False
    loop: bool = False
    total: bool = False

    def loop_gauge(self, part: str, unit: str) -> str:
        """Return the name of another gauge of the loop: ``rate``, ``total`` or ``eta``."""
        return prometheus_name(f"{self.name}.{part}", unit, "gauge")


class Chart(NamedTuple):
    """The metrics of a group, or one metric without a group (then ``group`` is empty)."""

    group: str
    x: Axis
    metrics: list[Charted]

    @property
    def title(self) -> str:
        """The group's name, or the metric's."""
        return self.group or self.metrics[0].name


def defined_charts(run: Run) -> list[Chart]:
    """Return the charts of a run in the order of their first definition; the latest definition applies."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for definition in sorted(run.definitions(), key=_time):
        newest[str(definition.get("group", "")), str(definition["metric"])] = definition
    registry = Registry(enabled=True)  # to derive the names of the gauges
    charts: dict[tuple[str, str], Chart] = {}
    for (group, metric), definition in newest.items():
        if not group and any(other and name == metric for other, name in newest):
            continue  # the metric was added to a group later
        base_name = _REPEATED.sub("", metric)
        if base_name != metric and (group, base_name) in newest:
            continue
        chart_key = (group, "") if group else ("", metric)
        chart = charts.setdefault(chart_key, Chart(group, _x(group, newest), []))
        chart.metrics.append(_charted(run, registry, group, definition))
    return list(charts.values())


def _time(definition: Mapping[str, Any]) -> int:
    return int(definition["time_unix_nano"])


def _x(group: str, newest: Mapping[tuple[str, str], Mapping[str, Any]]) -> Axis:
    axes = [
        Axis("", str(definition.get("x_units", "")), _bound(definition, "x_lower"), _bound(definition, "x_upper"))
        for (other, _), definition in newest.items()
        if group and other == group
    ]
    return next((axis for axis in reversed(axes) if axis != Axis()), Axis())


def _bound(definition: Mapping[str, Any], key: str) -> float | None:
    """Return a bound if it is a finite number, else None; definitions can come from any program."""
    try:
        return finite(definition[key], key)
    except (KeyError, TypeError, ValueError):
        return None


def _charted(run: Run, registry: Registry, group: str, definition: Mapping[str, Any]) -> Charted:
    name = str(definition["metric"])
    units = str(definition.get("units", ""))
    scale = Axis(str(definition.get("scale", "")), units, _bound(definition, "lower"), _bound(definition, "upper"))
    scope = group or SCOPE
    try:
        gauge = registry.group(scope).declare(
            name, kind="gauge", unit=unit_of(units or None), description="", boundaries=None
        )
    except ValueError:  # "" and "tachograph.metric" are one scope
        gauge = registry.group(scope).instrument(name)
    charted = Charted(name, scope, prometheus_name(gauge.name, gauge.unit, "gauge"), units or gauge.unit, scale)
    if not definition.get("progress"):
        return charted
    points = [point.more for point in islice(_points(run, name, group), _INSPECTED_POINTS)]
    total = any("total" in more for more in points)
    return charted._replace(progress=True, loop=total or any("rate" in more for more in points), total=total)


def _points(run: Run, name: str, group: str) -> Iterable[Any]:
    try:
        return (point for point in run.points(name) if point.group == group)
    except LookupError:  # defined, but without points
        return ()


def run_dashboard(run: str, charts: Sequence[Chart], datasource: str, *, ranks: bool = True) -> Json:
    """Return the dashboard of a run.

    The variable ``run`` selects this run by default. The user can select other runs of the same program to compare.

    Args:
        run: the run ID.
        charts: at least one.
        datasource: uid of the data source that is selected by default.
        ranks: whether the processes have ranks, which are then part of the legend.
    """
    pinned = _SPOILS_REGEX.search(run) is not None
    of_run = f"dl_run_id={quoted(run)}" if pinned else 'dl_run_id=~"$run"'
    variables = [datasource_variable(datasource)]
    if not pinned:
        variables.append(label_variable("run", "label_values(target_info, dl_run_id)", "Run", run))
    for label in ("role", "rank"):
        query = f"label_values({selector('target_info', of_run)}, dl_{label})"
        variables.append(label_variable(label, query, label.capitalize()))
    panels = _Panels(charts, WHO.replace('dl_run_id=~"$run"', of_run), _LEGEND if ranks else "")
    uid = f"tachograph-run-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
    description = "Written by `tachograph init grafana --run` from the metrics that the run defined."
    return dashboard(
        uid, f"Run {literal(run)}", variables, placed(chain(panels.progress(), panels.lines())), description
    )


class _Panels:
    """The panels of a run's charts.

    Args:
        charts: at least one.
        matchers: label matchers for all selectors.
        legend: distinguishes the lines of one metric.
    """

    def __init__(self, charts: Sequence[Chart], matchers: str, legend: str) -> None:
        self._charts, self._matchers, self._legend = charts, matchers, legend

    def progress(self) -> Iterator[_Placed]:
        """Yield the progress bars, and a panel with the rates and remaining times of loops."""
        metrics = [metric for chart in self._charts for metric in chart.metrics if metric.progress]
        bars = [self._bar(metric) for metric in metrics if metric.total or not metric.loop]
        numbers = [query for metric in metrics if metric.loop for query in self._numbers(metric)]
        height = max(_MINIMUM_HEIGHT, 1 + 2 * len(bars), 1 + len(numbers))
        if bars:
            yield bar_gauge("Progress", bars, defaults={"min": 0}), _HALF if numbers else WIDTH, height
        if numbers:
            yield stat("Loops", numbers, defaults={"decimals": 1}), _HALF if bars else WIDTH, height

    def _bar(self, metric: Charted) -> Query:
        value, name = self._of(metric, metric.gauge), self._named(metric, "", _LOOP if metric.loop else "")
        if metric.loop:
            value = f"100 * {value} / ({self._of(metric, metric.loop_gauge('total', '{item}'))} > 0)"
            return Query(value, name, _look("%", Axis("", "", 0, 100)), instant=True)
        return Query(value, name, _look(metric.units, metric.scale), instant=True)

    def _numbers(self, metric: Charted) -> Iterator[Query]:
        gauges = [("rate", metric.loop_gauge("rate", "{item}/s"), "{item}/s")]
        if metric.total:
            gauges.append(("remaining", metric.loop_gauge("eta", "s"), "s"))
        else:
            gauges.insert(0, ("done", metric.gauge, "{item}"))
        for what, gauge, unit in gauges:
            name = self._named(metric, f": {what}", _LOOP)
            yield Query(self._of(metric, gauge), name, _look(unit, Axis()), instant=True)

    def lines(self) -> Iterator[_Placed]:
        """Yield a chart for each group."""
        for chart in self._charts:
            metrics = [metric for metric in chart.metrics if not metric.progress]
            if metrics:
                description = _describe_x(chart.x)
                yield time_series(literal(chart.title), self._lines(metrics), description=description), *_CHART

    def _lines(self, metrics: Sequence[Charted]) -> list[Query]:
        scales = list(dict.fromkeys(map(_scale, metrics)))
        return [
            Query(
                self._of(metric, metric.gauge),
                self._named(metric),
                {**_look(metric.units, metric.scale), **_axis(metric, scales.index(_scale(metric)))},
            )
            for metric in metrics
        ]

    def _named(self, metric: Charted, *more: str) -> str:
        suffix, *labels = more or ("",)
        return " ".join(filter(None, [literal(metric.name) + suffix, *labels, self._legend]))

    def _of(self, metric: Charted, gauge: str) -> str:
        return selector(gauge, f"otel_scope_name={quoted(metric.scope)}", self._matchers)


def _scale(metric: Charted) -> tuple[str, str]:
    """Return the key of a metric's scale within its group; a scale without a name belongs to one metric."""
    return (metric.scale.name, "") if metric.scale.name else ("", metric.name)


def _axis(metric: Charted, place: int) -> Mapping[str, Any]:
    """Return the placement of an axis; Grafana merges axes with equal settings."""
    return {
        "custom.axisPlacement": "right" if place % 2 else "left",
        "custom.axisLabel": literal(metric.scale.name or metric.name),
    }


def _look(units: str, scale: Axis) -> Mapping[str, Any]:
    look: dict[str, Any] = {"unit": grafana_unit(units)}
    if scale.lower is not None:
        look["min"] = scale.lower
    if scale.upper is not None:
        look["max"] = scale.upper
    return look


def _describe_x(x: Axis) -> str:
    """Describe the x-axis that the run defined; Prometheus series have only the time."""
    if x == Axis():
        return ""
    bounds = [f"{what} {bound:g}" for what, bound in (("from", x.lower), ("to", x.upper)) if bound is not None]
    words = [_MARKDOWN.sub(r"\\\g<0>", literal(x.units) or "x"), *bounds]
    return f"Recorded over {' '.join(words)}. Grafana plots it over time; the Studio uses the recorded x-axis."
