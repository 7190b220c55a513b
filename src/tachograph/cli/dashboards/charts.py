"""The charts of a run: its metric groups with their metrics and scales, and the names that these have in Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from tachograph.metric.execution import SCOPE
from tachograph.recording.chart import finite, unit_of
from tachograph.recording.naming import prometheus_name
from tachograph.recording.registry import Registry
from tachograph.runs.run import Run

_REPEATED = re.compile(r"#\d+$")  # the journal's name of the second and further loops of a key, which share its gauges
_LOOK = 2  # points: the first of a loop may have no rate yet


class Axis(NamedTuple):
    """What was said of an axis; ``name`` is that of a scale, empty where it has none."""

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

    def loop_gauge(self, what: str, unit: str) -> str:
        """Return the name of a further gauge of a loop: ``rate``, ``total`` or ``eta``."""
        return prometheus_name(f"{self.name}.{what}", unit, "gauge")


class Chart(NamedTuple):
    """The metrics of a group, or one metric without a group, for which ``group`` is empty."""

    group: str
    x: Axis
    metrics: list[Charted]

    @property
    def title(self) -> str:
        """The group's name, or the metric's."""
        return self.group or self.metrics[0].name


def charts(run: Run) -> list[Chart]:
    """Return the charts of a run, in the order in which they were first defined; the newest definition counts."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for about in sorted(run.definitions(), key=_time):
        newest[str(about.get("group", "")), str(about["metric"])] = about
    registry = Registry(enabled=True)  # knows what the names of the gauges are
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
