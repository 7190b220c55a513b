"""The page ``/metrics``: everything that was recorded, in one of Prometheus's text formats.

A line's name and labels are made once a series and format; a scrape only formats numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.exporters.prometheus._external import ExternalFamily, sdk_families
from tachograph.exporters.prometheus.client import ClientRegistry
from tachograph.exporters.prometheus.conflicts import Conflicts
from tachograph.exporters.prometheus.family import Family, families
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.sheet import Sheet
from tachograph.exporters.prometheus.text import (
    LARGEST_PLAIN,
    SCOPE_LABEL,
    boundary,
    escaped,
    label_names,
    label_text,
    number,
    sample,
    sum_is_counter,
)
from tachograph.recording.naming import prometheus_label
from tachograph.recording.points import Attributes, HistogramPoint, MetricPoints, NumberPoint, identity
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

DESTINATION = "prometheus"
_ROWS_A_LOOK = 8  # rows between two looks at the clock


class _Row(NamedTuple):
    """The constant part of a series: for a number the beginning of its line, for a histogram a template of its buckets.

    Attributes:
        labels: all labels, as they stand between the braces.
        text: the beginning, or the template.
        boundaries: of a histogram.
        total: the template of a histogram's sum and count.
    """

    labels: str
    text: str
    boundaries: tuple[float, ...]
    total: str = ""


_Rows = dict[tuple[str, str, Any], _Row]  # by family, scope and attributes


class Page:
    """A process's page.

    Args:
        labels: labels on every series, which tell this process from others; an attribute of the same name wins.
        resource: attributes of ``target_info``.
        registry: where is counted what cannot be shown.
        client: the program's metrics in prometheus_client, which are shown, too; None for none.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        resource: Mapping[str, object],
        registry: Registry,
        *,
        client: ClientRegistry | None = None,
    ) -> None:
        self._labels = {utf8: label_names(sorted(labels.items()), utf8=utf8) for utf8 in (False, True)}
        self._resource = sorted(resource.items())
        self._registry = registry
        self._rows: dict[tuple[bool, bool], _Rows] = {}
        self._client = client
        self.conflicts = Conflicts(registry, DESTINATION, "/metrics")

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
        left_out = self.conflicts.left_out
        others: Iterable[ExternalFamily] = () if sdk is None else sdk_families(sdk, form, self._registry, left_out)
        if self._client is not None:
            others = chain(others, self._client.families(form, rendering.breathe, left_out))
        target, found = families(metrics, others, form, self.conflicts, rendering.breathe)
        if self._resource or self._labels[form.utf8] or target.external:
            rendering.target(target, self._resource)
        for family in found:
            rendering.family(family)
        self._rows[form[::2]] = rendering.after  # what is no longer on the page is forgotten
        return rendering.done()

    def labels(self, form: Format, own: Mapping[str, str]) -> str:
        """Return the labels of a series: those of the page, and its own, which win."""
        return label_text({**self._labels[form.utf8], **own})


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
        """Write ``target_info``: our attributes, and of other ones what ours do not say."""
        self.header(family)
        own = label_names(resource, utf8=self.form.utf8)
        spelled = {prometheus_label(name) for name in own}
        others = (pair for other in family.external for found in other.samples for pair in found.labels.items())
        theirs = {name: text for name, text in others if prometheus_label(name) not in spelled}
        labels = self._page.labels(self.form, {**theirs, **own})
        self.lines.append(f"{sample(family.name, labels)}1\n")

    def family(self, family: Family) -> None:
        """Write a family: its header and its series."""
        self.header(family)
        seen: set[str] = set()
        for metric in family.metrics:
            self.breathe()
            self._metric(family, metric, seen)
        for other in family.external:
            self._external(family, other, seen)

    def _metric(self, family: Family, metric: MetricPoints, seen: set[str]) -> None:
        append = self.lines.append
        for index, point in enumerate(metric.points):
            if index % _ROWS_A_LOOK == _ROWS_A_LOOK - 1:
                self.breathe()
            row = self._row(family, metric.scope, point)
            if row.labels in seen:
                which = (metric.scope, metric.name, metric.unit, identity(point.attributes))
                self._page.conflicts.duplicate(family.name, row.labels, which)
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
        if family.kind != "histogram":
            return _Row(labels, sample(family.name, labels), boundaries)
        bounds = [boundary(bound, openmetrics=self.form.openmetrics) for bound in boundaries]
        comma = "," if labels else ""
        buckets = [sample(f"{family.name}_bucket", f'{labels}{comma}le="{bound}"') for bound in (*bounds, "+Inf")]
        total = [sample(f"{family.name}_sum", labels), sample(f"{family.name}_count", labels)]
        return _Row(labels, _template(buckets), boundaries, _template(total))

    def _histogram(self, row: _Row, point: HistogramPoint) -> str:
        spread = point.summary
        values: list[object] = [*spread.at_most, spread.count]
        if point.exemplars and self.form.openmetrics:
            for place, exemplar in point.exemplars_by_bucket().items():
                ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
                when = exemplar.time_unix_nano / 1e9
                values[place] = f"{values[place]} # {{{ids}}} {number(exemplar.value)} {when:.3f}"
        text, total = row.text, spread.total.value()
        if not self.form.openmetrics or sum_is_counter(total, point.boundaries):
            text += row.total
            values += number(total), spread.count
        return text % tuple(values)

    def _external(self, family: Family, other: ExternalFamily, seen: set[str]) -> None:
        written: dict[str, str] = {}
        typed = family.written_kind != "unknown"
        samples = other.with_sums_that_count() if self.form.openmetrics else other.samples
        for index, found in enumerate(samples):
            if index % _ROWS_A_LOOK == 0:
                self.breathe()
            if not typed and found.name != family.name:  # a counter's _created, where the counter is no counter here
                continue
            series = labels = self._page.labels(self.form, found.labels)
            if found.le:
                labels += f'{"," if labels else ""}le="{escaped(found.le)}"'
            line = sample(found.name, labels)
            if series in seen or line in written:
                self._page.conflicts.duplicate(family.name, series, ("external", family.name, series))
                continue
            written[line] = series
            exemplar = found.exemplar if typed else ""
            self.lines.append(f"{line}{number(found.value)}{found.timestamp}{exemplar}\n")
        seen.update(written.values())


def _template(lines: Iterable[str]) -> str:
    return "".join(line.replace("%", "%%") + "%s\n" for line in lines)
