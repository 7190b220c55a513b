"""A run's own dashboard, on Prometheus: its groups, scales and progress bars as it has defined them."""

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
from tachograph.runs.run import Run

_REPEATED = re.compile(r"#\d+$")  # the journal's name of the second and further loops of a key, which share its gauges
_LOOK = 2  # points: the first of a loop may have no rate yet
_CHART = WIDTH // 2, 9
_HALF = WIDTH // 2
_LOWEST = 4  # height of the bars and numbers, at least
_LEGEND = "rank {{dl_rank}}"
_LOOP = "{{loop}}"  # loops that are nested in one of their own key have a number
# Grafana puts a variable's value into a regular expression without escaping these.
_SPOILS_REGEX = re.compile(r'["\\\x00-\x1f]')
_MARKDOWN = re.compile(r"[^\w\s]", re.ASCII)
_Placed = tuple[Json, int, int]  # a panel, its width and its height


class Axis(NamedTuple):
    """An axis as it was defined; ``name`` is that of a scale, empty where it has none."""

    name: str = ""
    units: str = ""
    lower: float | None = None
    upper: float | None = None


class Charted(NamedTuple):
    """A metric on a chart.

    Attributes:
        scope: the instrumentation scope of its gauge.
        gauge: the gauge's name in Prometheus.
        units: of the values.
        progress: whether it is a progress bar.
        loop: whether ``progress()`` made it: it has gauges for the rate and more.
        total: whether that loop knows how many items there are.
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
        """Return the name of a further gauge of a loop: ``rate``, ``total`` or ``eta``."""
        return prometheus_name(f"{self.name}.{part}", unit, "gauge")


class Chart(NamedTuple):
    """The metrics of a group, or one metric without a group, for which ``group`` is empty."""

    group: str
    x: Axis
    metrics: list[Charted]

    @property
    def title(self) -> str:
        """The group's name, or the metric's."""
        return self.group or self.metrics[0].name


def defined_charts(run: Run) -> list[Chart]:
    """Return the charts of a run, in the order in which they were first defined; the newest definition counts."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for about in sorted(run.definitions(), key=_time):
        newest[str(about.get("group", "")), str(about["metric"])] = about
    registry = Registry(enabled=True)  # knows the names of the gauges
    found: dict[tuple[str, str], Chart] = {}
    for (group, metric), about in newest.items():
        if not group and any(other and name == metric for other, name in newest):
            continue  # a group was named later
        key = _REPEATED.sub("", metric)
        if key != metric and (group, key) in newest:
            continue
        where = (group, "") if group else ("", metric)
        chart = found.setdefault(where, Chart(group, _x(group, newest), []))
        chart.metrics.append(_charted(run, registry, group, about))
    return list(found.values())


def _time(about: Mapping[str, Any]) -> int:
    return int(about["time_unix_nano"])


def _x(group: str, newest: Mapping[tuple[str, str], Mapping[str, Any]]) -> Axis:
    axes = [
        Axis("", str(about.get("x_units", "")), _bound(about, "x_lower"), _bound(about, "x_upper"))
        for (other, _), about in newest.items()
        if group and other == group
    ]
    return next((axis for axis in reversed(axes) if axis != Axis()), Axis())


def _bound(about: Mapping[str, Any], key: str) -> float | None:
    """Return a bound, where it is a finite number: any program may send a definition."""
    try:
        return finite(about[key], key)
    except (KeyError, TypeError, ValueError):
        return None


def _charted(run: Run, registry: Registry, group: str, about: Mapping[str, Any]) -> Charted:
    name, units = str(about["metric"]), str(about.get("units", ""))
    scale = Axis(str(about.get("scale", "")), units, _bound(about, "lower"), _bound(about, "upper"))
    scope = group or SCOPE
    try:
        gauge = registry.group(scope).declare(
            name, kind="gauge", unit=unit_of(units or None), description="", boundaries=None
        )
    except ValueError:  # "" and "tachograph.metric" are one scope
        gauge = registry.group(scope).instrument(name)
    charted = Charted(name, scope, prometheus_name(gauge.name, gauge.unit, "gauge"), units or gauge.unit, scale)
    if not about.get("progress"):
        return charted
    points = [point.more for point in islice(_points(run, name, group), _LOOK)]
    total = any("total" in more for more in points)
    return charted._replace(progress=True, loop=total or any("rate" in more for more in points), total=total)


def _points(run: Run, name: str, group: str) -> Iterable[Any]:
    try:
        return (point for point in run.points(name) if point.group == group)
    except LookupError:  # it was defined, and has no points
        return ()


def run_dashboard(run: str, charts: Sequence[Chart], datasource: str, *, ranks: bool = True) -> Json:
    """Return the dashboard of a run.

    Its variable ``run`` chooses this run at first; others of the same program can be chosen, too, and compared.

    Args:
        run: the id.
        charts: at least one.
        datasource: uid of the data source that is chosen at first.
        ranks: whether its processes have ranks: lines are named by them.
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
    about = "Made by 'tachograph init grafana' from the definitions of the run."
    return dashboard(uid, f"Run {literal(run)}", variables, placed(chain(panels.progress(), panels.lines())), about)


class _Panels:
    """The panels of a run's charts.

    Args:
        charts: see above.
        matchers: of every selector.
        legend: tells the lines of one metric apart.
    """

    def __init__(self, charts: Sequence[Chart], matchers: str, legend: str) -> None:
        self._charts, self._matchers, self._legend = charts, matchers, legend

    def progress(self) -> Iterator[_Placed]:
        """Yield the bars of everything that has an end, and the other gauges of loops."""
        metrics = [metric for chart in self._charts for metric in chart.metrics if metric.progress]
        bars = [self._bar(metric) for metric in metrics if metric.total or not metric.loop]
        numbers = [query for metric in metrics if metric.loop for query in self._numbers(metric)]
        height = max(_LOWEST, 1 + 2 * len(bars), 1 + len(numbers))
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
        asked = [("rate", metric.loop_gauge("rate", "{item}/s"), "{item}/s")]
        if metric.total:
            asked.append(("left", metric.loop_gauge("eta", "s"), "s"))
        else:
            asked.insert(0, ("done", metric.gauge, "{item}"))
        for what, gauge, unit in asked:
            name = self._named(metric, f": {what}", _LOOP)
            yield Query(self._of(metric, gauge), name, _look(unit, Axis()), instant=True)

    def lines(self) -> Iterator[_Placed]:
        """Yield the chart of each group."""
        for chart in self._charts:
            metrics = [metric for metric in chart.metrics if not metric.progress]
            if metrics:
                title, about = literal(chart.title), _over(chart.x)
                yield time_series(title, self._lines(metrics), description=about), *_CHART

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
        what, *labels = more or ("",)
        return " ".join(filter(None, [literal(metric.name) + what, *labels, self._legend]))

    def _of(self, metric: Charted, gauge: str) -> str:
        return selector(gauge, f"otel_scope_name={quoted(metric.scope)}", self._matchers)


def _scale(metric: Charted) -> tuple[str, str]:
    """Return the key of a scale in its group; one without a name is the metric's own."""
    return (metric.scale.name, "") if metric.scale.name else ("", metric.name)


def _axis(metric: Charted, place: int) -> Mapping[str, Any]:
    """Return where an axis is: Grafana makes one axis of those that have all in common."""
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


def _over(x: Axis) -> str:
    """Return a description of an x axis: series of Prometheus have only the time."""
    if x == Axis():
        return ""
    bounds = [f"{what} {bound:g}" for what, bound in (("from", x.lower), ("to", x.upper)) if bound is not None]
    words = [_MARKDOWN.sub(r"\\\g<0>", literal(x.units) or "x"), *bounds]
    return f"Recorded over {' '.join(words)}; Grafana shows it over time, the Studio over its own x-axis."
