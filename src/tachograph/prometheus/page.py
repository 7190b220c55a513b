"""The page ``/metrics``: everything that was recorded, in one of Prometheus's text formats.

A line's name and labels are made once a series and format; a scrape only formats numbers.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.own_metrics import Reason
from tachograph.points import Attributes, HistogramPoint, MetricPoints, NumberPoint, identity
from tachograph.prometheus.family import Family, families
from tachograph.prometheus.format import Format
from tachograph.prometheus.sdk import SdkSample, sdk_families
from tachograph.prometheus.sheet import Sheet
from tachograph.prometheus.text import (
    LARGEST_PLAIN,
    SCOPE_LABEL,
    boundary,
    label_names,
    label_text,
    number,
    sample,
)
from tachograph.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

DESTINATION = "prometheus"
_ROWS_A_LOOK = 8  # rows between two looks at the clock
_CONFLICTS_KEPT = 10_000

_log = logging.getLogger("tachograph")


class _Row(NamedTuple):
    """The constant part of a series: for a number the beginning of its line, for a histogram a template of them all."""

    labels: str
    text: str
    boundaries: tuple[float, ...]


_Rows = dict[tuple[str, str, Any], _Row]  # by family, scope and attributes


class Page:
    """A process's page.

    Args:
        labels: labels on every series, which tell this process from others; an attribute of the same name wins.
        resource: attributes of ``target_info``.
        registry: where is counted what cannot be shown.
    """

    def __init__(self, labels: Mapping[str, str], resource: Mapping[str, object], registry: Registry) -> None:
        self._labels = sorted(labels.items())
        self._resource = sorted(resource.items())
        self._registry = registry
        self._rows: dict[tuple[bool, bool], _Rows] = {}
        self._conflicts: set[object] = set()
        self._said: set[str] = set()

    def render(
        self,
        metrics: Sequence[MetricPoints],
        sdk: MetricsData | None,
        form: Format,
        pace: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the page. Several threads may render at once.

        Series that would be written twice, and metrics whose name another kind of metric has already, are left out
        after the first: each is counted once (``tachograph.dropped``, reason ``name_conflict``).

        Args:
            metrics: what the registry holds, cumulative.
            sdk: what the SDK instruments of other libraries hold.
            form: the text format.
            pace: called between slices of at most about half a millisecond.
        """
        rendering = _Rendering(self, form, self._rows.get(form[::2], {}), pace)
        others = () if sdk is None else sdk_families(sdk, self._registry, self._left_out)
        target, found = families(metrics, others, form, self._conflict, rendering.breathe)
        if self._resource or self._labels:
            rendering.target(target, self._resource)
        for family in found:
            rendering.family(family)
        self._rows[form[::2]] = rendering.after  # what is no longer on the page is forgotten
        return rendering.done()

    def labels(self, form: Format, own: Mapping[str, str]) -> str:
        """Return the labels of a series: those of the page, and its own, which win."""
        return label_text({**label_names(self._labels, utf8=form.utf8), **own})

    def _conflict(self, name: str, why: str, count: int = 1, which: object = None) -> None:
        key = which or (name, why)
        if key in self._conflicts or len(self._conflicts) >= _CONFLICTS_KEPT:
            return
        self._conflicts.add(key)
        self._registry.count_dropped("name_conflict", DESTINATION, count)
        if name not in self._said:
            self._said.add(name)
            _log.warning("/metrics: %s %s; the later one is left out (further ones are counted)", name, why)

    def duplicate(self, name: str, labels: str, which: object) -> None:
        """Count a series that has the name and the labels of another one; ``which`` tells it from all others."""
        self._conflict(name, f"has two series with the labels {{{labels}}}", which=which)

    def _left_out(self, reason: Reason, name: str) -> None:
        key = (name, reason)
        if key not in self._conflicts and len(self._conflicts) < _CONFLICTS_KEPT:
            self._conflicts.add(key)
            self._registry.count_dropped(reason, DESTINATION)
            _log.warning("/metrics: the SDK instrument %s is left out: %s", name, reason.replace("_", " "))


class _Rendering(Sheet):
    """One page on its way."""

    def __init__(
        self,
        page: Page,
        form: Format,
        before: _Rows,
        pace: Callable[[], None] | None,
    ) -> None:
        super().__init__(form, pace)
        self.after: _Rows = {}
        self._page = page
        self._before = before

    def target(self, family: Family, resource: Sequence[tuple[str, object]]) -> None:
        """Write ``target_info``."""
        self.header(family)
        labels = self._page.labels(self.form, label_names(resource, utf8=self.form.utf8))
        self.lines.append(f"{sample(family.name, labels)}1\n")

    def family(self, family: Family) -> None:
        """Write a family: its header and its series."""
        self.header(family)
        seen: set[str] = set()
        for metric in family.metrics:
            self.breathe()
            self._metric(family, metric, seen)
        for other in family.sdk:
            self.breathe()
            self._sdk(family, other.samples, seen)

    def _metric(self, family: Family, metric: MetricPoints, seen: set[str]) -> None:
        append = self.lines.append
        for index, point in enumerate(metric.points):
            if index % _ROWS_A_LOOK == _ROWS_A_LOOK - 1:
                self.breathe()
            row = self._row(family, metric.scope, point)
            if row.labels in seen:
                which = (metric.scope, metric.name, metric.unit, identity(point.attributes))
                self._page.duplicate(family.name, row.labels, which)
                continue
            seen.add(row.labels)
            if isinstance(point, NumberPoint):
                value = point.value
                plain = -LARGEST_PLAIN <= value <= LARGEST_PLAIN
                append(f"{row.text}{value!r}\n" if plain else f"{row.text}{number(value)}\n")
            else:
                append(self._histogram(row, point))

    def _row(self, family: Family, scope: str, point: NumberPoint | HistogramPoint) -> _Row:
        key: tuple[str, str, Any] = (family.name, scope, point.attributes)
        row = self._before.get(key)
        if row is None:  # rows with other values than text are kept by identity, since 1 equals True
            key = (family.name, scope, identity(point.attributes))
            row = self._before.get(key)
        boundaries = point.boundaries if isinstance(point, HistogramPoint) else ()
        if row is None or row.boundaries != boundaries:
            row = self._new_row(family, scope, point.attributes, boundaries)
            if all(type(value) is str for _, value in point.attributes):
                key = (family.name, scope, point.attributes)
        self.after[key] = row
        return row

    def _new_row(self, family: Family, scope: str, attributes: Attributes, boundaries: tuple[float, ...]) -> _Row:
        own = label_names(((SCOPE_LABEL, scope),), utf8=True)
        reserved = "le" if family.kind == "histogram" else ""
        own.update(label_names(attributes, utf8=self.form.utf8, reserved=reserved))
        labels = self._page.labels(self.form, own)
        if family.kind == "histogram":
            text = self._template(family.name, labels, boundaries)
        else:
            text = sample(family.name, labels)
        return _Row(labels, text, boundaries)

    def _template(self, name: str, labels: str, boundaries: tuple[float, ...]) -> str:
        bounds = [boundary(bound, openmetrics=self.form.openmetrics) for bound in boundaries]
        comma = "," if labels else ""
        starts = [sample(name + "_bucket", f'{labels}{comma}le="{bound}"') for bound in (*bounds, "+Inf")]
        starts += [sample(name + "_sum", labels), sample(name + "_count", labels)]
        return "".join(start.replace("%", "%%") + "%s\n" for start in starts)

    def _histogram(self, row: _Row, point: HistogramPoint) -> str:
        spread = point.spread
        values: list[object] = [*spread.at_most, spread.count, number(spread.total.value()), spread.count]
        if point.exemplars and self.form.openmetrics:
            newest = sorted(point.exemplars, key=lambda exemplar: exemplar.time_unix_nano)
            for place, exemplar in {bisect_left(row.boundaries, each.value): each for each in newest}.items():
                ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
                when = exemplar.time_unix_nano / 1e9
                values[place] = f"{values[place]} # {{{ids}}} {number(exemplar.value)} {when:.3f}"
        return row.text % tuple(values)

    def _sdk(self, family: Family, samples: Sequence[SdkSample], seen: set[str]) -> None:
        written: dict[str, str] = {}
        for found in samples:
            own = {name: value for name, value in found.labels.items() if value}
            bound = own.pop("le", "") if found.suffix == "_bucket" else ""
            series = labels = self._page.labels(self.form, own)
            if bound:
                bound = boundary(float(bound), openmetrics=self.form.openmetrics)
                labels += f'{"," if labels else ""}le="{bound}"'
            line = sample(family.name + found.suffix, labels)
            if series in seen or line in written:
                self._page.duplicate(family.name, series, ("sdk", family.name, series))
                continue
            written[line] = series
            self.lines.append(f"{line}{number(found.value)}\n")
        seen.update(written.values())
