"""Pages of ``/metrics``: everything that was recorded, in one of Prometheus's text formats.

The page of a process and that of a hub are written by one renderer. A line's name and labels are made once a series and
format; a scrape only formats numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from math import isfinite
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.exporters.prometheus._external import ExternalFamily, sdk_families
from tachograph.exporters.prometheus.client import ClientRegistry
from tachograph.exporters.prometheus.family import Conflicts, Family, families
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.sliced_text import SlicedText
from tachograph.exporters.prometheus.text import (
    SCOPE_LABEL,
    boundary,
    escaped,
    family_name,
    help_text,
    label_names,
    label_text,
    label_value,
    number,
    sample,
    sum_is_counter,
)
from tachograph.recording.naming import Kind, prometheus_label
from tachograph.recording.points import Attributes, HistogramPoint, MetricPoints, identity
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

Resource = tuple[Mapping[str, str], Mapping[str, object]]  # a process's labels, and its attributes

DESTINATION = "prometheus"
_AT_ONCE = 8  # series between two looks at the clock
_NUMBERS = 64  # series of one line each that are written together
_PAIRS = 2**17  # labels whose text is kept: those of 200,000 series repeat each other
_KEPT = 600.0  # seconds that the rows of a format are kept for which no scraper has asked


class _Row(NamedTuple):
    """The constant parts of a series' lines.

    Attributes:
        attributes: those of which it was made.
        labels: all labels, as they stand between the braces.
        start: of a number its line up to the value; of a histogram a bucket's line up to the bound.
        sum_start: of a histogram the line of its sum up to the value.
        count_start: of a histogram the line of its count up to the value.
    """

    attributes: Attributes
    labels: str
    start: str
    sum_start: str = ""
    count_start: str = ""


class _Block:
    """The rows of some series that follow each other on the page.

    Args:
        rows: in the order of their points.

    Attributes:
        attributes: those of the rows, of numbers.
        labels: the same.
        starts: the same.
        last: the values and the text that were written last; finite floats.
    """

    __slots__ = ("attributes", "labels", "last", "rows", "starts")

    def __init__(self, rows: list[_Row], *, are_numbers: bool) -> None:
        self.rows = rows
        self.last: tuple[tuple[float, ...], str] = (), ""
        if are_numbers:
            self.attributes: tuple[Attributes, ...] = tuple(row.attributes for row in rows)
            self.labels = frozenset(row.labels for row in rows)
            self.starts = tuple(row.start for row in rows)


# By family and by the metric's scope, name, unit and kind; in the order of its points, mostly the same as last time.
_Blocks = dict[tuple[str, tuple[str, str, str, Kind]], list[_Block]]


class Renderer:
    """The writer of pages, which keeps the constant parts of their lines from one to the next.

    Args:
        registry: where metrics that cannot be shown are counted.
        labels: labels on every series, which tell this process from others; an attribute of the same name wins.
        clock: returns seconds.

    Attributes:
        conflicts: everything that was left out.
    """

    def __init__(
        self, registry: Registry, labels: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        ordered = sorted((labels or {}).items())
        self.labels = {utf8: label_names(ordered, utf8=utf8) for utf8 in (False, True)}
        self.conflicts = Conflicts(registry, DESTINATION, "/metrics")
        self._clock = clock
        self._rows: dict[tuple[bool, bool], tuple[float, _Blocks]] = {}

    def render(
        self,
        text: SlicedText,
        form: Format,
        metrics: Sequence[MetricPoints],
        external: Iterable[ExternalFamily] = (),
        resources: Sequence[Resource] = (),
    ) -> bytes:
        """Return the page. Several threads may render at once.

        Series that would be written twice, and metrics whose name another kind of metric has already, are left out
        after the first: each is counted once (``tachograph.dropped``, reason ``name_conflict``).

        Args:
            text: a new one, in which the page is written.
            form: the text format.
            metrics: everything that was recorded, cumulative; of a number's point only attributes and value are read.
            external: families from elsewhere.
            resources: each has a line of ``target_info``.
        """
        _, before = self._rows.get(form[::2], (0.0, {}))
        rendering = _Rendering(self, text, form, before)
        target, found = families(metrics, external, form, self.conflicts, text.breathe)
        if resources or target.external:
            rendering.target(target, resources or [({}, {})])
        for family in found:
            rendering.family(family)
        now = self._clock()
        self._rows[form[::2]] = now, rendering.after  # a series that is no longer on the page is forgotten
        for other, (asked, _) in list(self._rows.items()):
            if now - asked > _KEPT:
                self._rows.pop(other, None)
        return text.done(b"# EOF\n" if form.openmetrics else b"")


class _Rendering:
    """One page on its way."""

    def __init__(self, renderer: Renderer, text: SlicedText, form: Format, before: _Blocks) -> None:
        self.after: _Blocks = {}
        self._before = before
        self._boundaries: tuple[float, ...] | None = None  # those of the last histogram, and the lines of its buckets
        self._buckets = ""
        self._conflicts = renderer.conflicts
        self._text = text
        self._form = form
        self._shared = renderer.labels[form.utf8]
        self._shared_texts = {name: label_text({name: value}) for name, value in self._shared.items()}

    def target(self, family: Family, resources: Iterable[Resource]) -> None:
        """Write ``target_info``, a line for each resource: its attributes, and of others' those that it has not."""
        self._header(family)
        others = [pair for other in family.external for found in other.samples for pair in found.labels.items()]
        for index, (labels, resource) in enumerate(resources):
            if index % _AT_ONCE == _AT_ONCE - 1:
                self._text.breathe()
            own = label_names(sorted(resource.items()), utf8=self._form.utf8)
            spelled = {prometheus_label(name) for name in own} if others else ()
            theirs = {name: value for name, value in others if prometheus_label(name) not in spelled}
            every = {**label_names(sorted(labels.items()), utf8=self._form.utf8), **theirs, **own}
            self._text.lines.append(f"{sample(family.name, label_text(every))}1\n")

    def _header(self, family: Family) -> None:
        name = family_name(family.header)
        text = help_text(family.description, openmetrics=self._form.openmetrics)
        self._text.lines.append(f"# HELP {name} {text}\n# TYPE {name} {family.written_kind}\n")
        if self._form.openmetrics and family.unit and family.header.endswith("_" + family.unit):
            self._text.lines.append(f"# UNIT {name} {family.unit}\n")

    def family(self, family: Family) -> None:
        """Write a family: its header and its series."""
        self._header(family)
        seen: set[str] = set()
        for metric in family.metrics:
            self._metric(family, metric, seen)
        for other in family.external:
            self._external(family, other, seen)

    def _metric(self, family: Family, metric: MetricPoints, seen: set[str]) -> None:
        key = family.name, metric[:4]
        before: list[_Block] = self._before.get(key, [])
        known: dict[object, _Row] = {}
        after = self.after.setdefault(key, [])
        are_numbers = family.kind != "histogram"
        size = _NUMBERS if are_numbers else _AT_ONCE
        for begin, block in zip(range(0, len(metric.points), size), chain(before, repeat(None)), strict=False):
            self._text.breathe()
            if self._text.is_full:
                self._text.omitted += len(metric.points) - begin
                break
            points = metric.points[begin : begin + size]
            if block is not None and are_numbers and self._again(points, block, seen):
                after.append(block)
                continue
            rows: list[_Row] = []
            for point, last in zip(points, chain(block.rows if block else (), repeat(None)), strict=False):
                if len(rows) % _AT_ONCE == _AT_ONCE - 1:
                    self._text.breathe()
                attributes = point[0]  # by place: a hub's numbers are pairs
                if last is not None and last.attributes is attributes:
                    row = last
                else:
                    if before and not known:
                        known = {identity(each.attributes): each for some in before for each in some.rows}
                    found = known.get(identity(attributes)) if known else None
                    row = found or self._new_row(family, metric.scope, attributes)
                rows.append(row)
                self._point(family, metric, point, row, seen)
            after.append(_Block(rows, are_numbers=are_numbers))

    def _point(self, family: Family, metric: MetricPoints, point: Any, row: _Row, seen: set[str]) -> None:
        if row.labels in seen:
            which = (metric.scope, metric.name, metric.unit, identity(point[0]))
            self._conflicts.duplicate(family.name, row.labels, which)
            return
        seen.add(row.labels)
        of_histogram = isinstance(point, HistogramPoint)
        self._text.lines.append(self._histogram(row, point) if of_histogram else f"{row.start}{number(point[1])}\n")

    def _again(self, points: Sequence[Sequence[Any]], block: _Block, seen: set[str]) -> bool:
        """Write numbers that have the rows of the last page, in calls that do it for all of them.

        If any of them has another row, is there twice or is no finite float, nothing is written, and the result is
        False. Text of the last page is written again where all values are the same objects.
        """
        attributes, values = islice(zip(*points, strict=True), 2)
        if len(attributes) != len(block.rows) or not all(map(is_, attributes, block.attributes)):
            return False
        if len(block.labels) < len(attributes) or not seen.isdisjoint(block.labels):
            return False
        written, text = block.last
        if not written or not all(map(is_, values, written)):
            try:
                numbers = map(float.__repr__, values)
                text = "".join(chain.from_iterable(zip(block.starts, numbers, repeat("\n"))))
            except TypeError:  # an integer
                return False
            if not isfinite(sum(values)):  # one is an infinity or NaN, or they are too large to be added
                return False
            block.last = values, text
        seen |= block.labels
        self._text.lines.append(text)
        return True

    def _new_row(self, family: Family, scope: str, attributes: Attributes) -> _Row:
        is_histogram = family.kind == "histogram"
        labels = self._labels(scope, attributes, "le" if is_histogram else "")
        if not is_histogram:
            return _Row(attributes, labels, sample(family.name, labels))
        bucket = sample(f"{family.name}_bucket", f'{labels},le=""' if labels else 'le=""').removesuffix('"} ')
        ends = sample(f"{family.name}_sum", labels), sample(f"{family.name}_count", labels)
        return _Row(attributes, labels, bucket, *ends)

    def _labels(self, scope: str, attributes: Attributes, reserved: str) -> str:
        utf8 = self._form.utf8
        texts = [
            _label(key, value if type(value) is str else label_value(value), utf8, reserved)
            for key, value in attributes
        ]
        own = dict(filter(None, texts))
        if len(own) < len(texts):  # keys that become one label share it, and an empty value may be one of theirs
            own = {
                name: label_text({name: value})
                for name, value in label_names(attributes, utf8=utf8, reserved=reserved).items()
            }
        scope_text = _label(SCOPE_LABEL, scope, utf8, "")
        found = {**self._shared_texts, **dict((scope_text,) if scope_text else ()), **own}
        return ",".join([found[name] for name in sorted(found)])

    def _histogram(self, row: _Row, point: HistogramPoint) -> str:
        summary, openmetrics = point.summary, self._form.openmetrics
        values: Sequence[object] = (*summary.at_most, summary.count)
        if point.exemplars and openmetrics:
            values = list(values)
            for place, exemplar in point.exemplars_by_bucket().items():
                ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
                when = exemplar.time_unix_nano / 1e9
                values[place] = f"{values[place]} # {{{ids}}} {number(exemplar.value)} {when:.3f}"
        if point.boundaries is not self._boundaries:
            self._boundaries, self._buckets = point.boundaries, _buckets(point.boundaries, openmetrics)
        lines = (self._buckets % tuple(values)).replace("\0", row.start)
        total = summary.total.value()
        if not openmetrics or sum_is_counter(total, point.boundaries):
            return f"{lines}{row.sum_start}{number(total)}\n{row.count_start}{summary.count}\n"
        return lines

    def _external(self, family: Family, other: ExternalFamily, seen: set[str]) -> None:
        written: dict[str, str] = {}
        typed = family.written_kind != "unknown"
        samples = other.with_sums_that_count() if self._form.openmetrics else other.samples
        for index, found in enumerate(samples):
            if index % _AT_ONCE == 0:
                self._text.breathe()
            if not typed and found.name != family.name:  # a counter's _created, where the counter is no counter here
                continue
            series = labels = label_text({**self._shared, **found.labels})
            if found.le:
                labels += f'{"," if labels else ""}le="{escaped(found.le)}"'
            line = sample(found.name, labels)
            if series in seen or line in written:
                self._conflicts.duplicate(family.name, series, ("external", family.name, series))
                continue
            written[line] = series
            exemplar = found.exemplar if typed else ""
            self._text.lines.append(f"{line}{number(found.value)}{found.timestamp}{exemplar}\n")
        seen.update(written.values())


@lru_cache(maxsize=_PAIRS)
def _label(key: str, value: str, utf8: bool, reserved: str) -> tuple[str, str] | None:
    """Return a label's name and its text; None where it is empty."""
    for name, text in label_names(((key, value),), utf8=utf8, reserved=reserved).items():
        return name, label_text({name: text})
    return None


@lru_cache(maxsize=1024)
def _buckets(boundaries: tuple[float, ...], openmetrics: bool) -> str:
    """Return the lines of a histogram's buckets, with NUL in the place of their beginning, ``%s`` in that of counts."""
    bounds = (*(boundary(bound, openmetrics=openmetrics) for bound in boundaries), "+Inf")
    return "".join(f'\0{bound}"}} %s\n' for bound in bounds)


class Page:
    """The page of a process.

    Args:
        labels: labels on every series, which tell this process from others; an attribute of the same name wins.
        resource: attributes of ``target_info``.
        registry: where metrics that cannot be shown are counted.
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
        self._registry = registry
        self._client = client
        self.name(labels, resource)

    def name(self, labels: Mapping[str, str], resource: Mapping[str, object]) -> None:
        """Have other labels and attributes from the next scrape on; as :class:`Page` has them."""
        self._resources = [(labels, resource)] if resource or any(labels.values()) else []
        self._renderer = Renderer(self._registry, labels)

    def render(
        self,
        metrics: Sequence[MetricPoints],
        sdk: MetricsData | None,
        form: Format,
        pace: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the page, as :meth:`Renderer.render` does.

        Args:
            metrics: everything in the registry, cumulative.
            sdk: everything in the SDK instruments of other libraries.
            form: the text format.
            pace: called between slices of at most about half a millisecond.
        """
        text = SlicedText(pace)
        left_out = self._renderer.conflicts.left_out
        others: Iterable[ExternalFamily] = () if sdk is None else sdk_families(sdk, form, self._registry, left_out)
        if self._client is not None:
            others = chain(others, self._client.families(form, text.breathe, left_out))
        return self._renderer.render(text, form, metrics, others, self._resources)
