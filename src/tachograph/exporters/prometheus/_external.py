"""Families that come from elsewhere: from SDK instruments of other libraries, from the program's prometheus_client.

Those of the SDK are made by the official exporter, one metric at a time: given several at once, it swaps labels between
scopes that use one name with different attributes, and one exponential histogram fails the whole scrape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import boundary, label_value, sum_is_counter
from tachograph.recording.interrupts import pass_on
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number

ExternalKind = Literal[
    "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown"
]  # fmt: skip


class ExternalSample(NamedTuple):
    """One line, ready but for the labels of the page.

    Attributes:
        name: the whole name, with ``_bucket``, ``_created`` and such.
        labels: all but ``le`` of a bucket.
        le: as it is written; empty where the line is no bucket's.
        timestamp: as it stands behind the value, with a blank before it; empty for the time of the scrape.
        exemplar: the same; only in OpenMetrics.
    """

    name: str
    labels: Mapping[str, str]
    value: Number
    le: str = ""
    timestamp: str = ""
    exemplar: str = ""


class ExternalFamily(NamedTuple):
    """Samples under one ``# TYPE``; the name is the one of the classic text format, ``_total`` included."""

    name: str
    kind: ExternalKind
    unit: str
    description: str
    samples: Sequence[ExternalSample]

    @property
    def series(self) -> int:
        """How many series it has, each of which may have several lines."""
        return len(
            {frozenset(pair for pair in found.labels.items() if pair[0] != "quantile") for found in self.samples}
        )

    def with_sums_that_count(self) -> Sequence[ExternalSample]:
        """Return the samples without the sums that OpenMetrics has no form for: see :func:`sum_is_counter`."""
        if self.kind not in ("histogram", "summary"):
            return self.samples
        refused = set()
        for found in self.samples:
            falls = found.name == self.name + "_sum" and not sum_is_counter(found.value, ())
            if falls or (found.le and float(found.le) < 0):
                refused.add(frozenset(found.labels.items()))
        if not refused:
            return self.samples
        ends = ("_sum", "_count") if self.kind == "histogram" else ("_sum",)
        names = [self.name + end for end in ends]
        return [
            found for found in self.samples if found.name not in names or frozenset(found.labels.items()) not in refused
        ]


if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

_KINDS = ("counter", "gauge", "histogram")


def sdk_families(
    data: MetricsData, form: Format, registry: Registry, left_out: Callable[[Reason, str], None]
) -> Iterator[ExternalFamily]:
    """Yield the families of SDK metrics; those that cannot be shown are left out.

    Args:
        data: a reader's collection.
        form: the format, on which the bounds of buckets depend.
        registry: where an error of the exporter is counted.
        left_out: called with the reason and the metric.
    """
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics.export import ExponentialHistogram
    from prometheus_client import CollectorRegistry

    collectors = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, registry=collectors)
    waiting: deque[MetricsData] = deque()
    reader._set_collect_callback(lambda *_, **__: waiting.popleft())  # noqa: SLF001 - it has no provider: we feed it
    for metric, alone in _one_by_one(data):
        if isinstance(metric.data, ExponentialHistogram):
            left_out("exponential_histogram", f"the SDK instrument {metric.name}")
            continue
        waiting.append(alone)
        try:
            found = list(collectors.collect())
        except Exception as error:  # noqa: BLE001 - the border to another library: one metric must not cost the page
            pass_on(error)
            registry.count_error("prometheus")
            left_out("not_exportable", f"the SDK instrument {metric.name}")
            continue
        yield from _families(found, form)


def _one_by_one(data: MetricsData) -> Iterator[tuple[Metric, MetricsData]]:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics

    for of_resource in data.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                scope = ScopeMetrics(of_scope.scope, [_without_le(metric)], of_scope.schema_url)
                yield metric, MetricsData([ResourceMetrics(of_resource.resource, [scope], of_resource.schema_url)])


def _without_le(metric: Metric) -> Metric:
    """Return a histogram whose attribute ``le`` is ``exported_le``, as on ours: it would be taken for the buckets'."""
    from opentelemetry.sdk.metrics.export import Histogram

    if not isinstance(metric.data, Histogram) or not any(
        "le" in (point.attributes or ()) for point in metric.data.data_points
    ):
        return metric
    points = []
    for point in metric.data.data_points:
        attributes = dict(point.attributes or {})
        name = "exported_le"
        while name in attributes:
            name = "exported_" + name
        if "le" in attributes:
            attributes[name] = attributes.pop("le")
        points.append(replace(point, attributes=attributes))
    return replace(metric, data=replace(metric.data, data_points=points))


def _families(found: Iterable[Any], form: Format) -> Iterator[ExternalFamily]:
    for family in found:
        if family.type not in _KINDS:
            continue
        name = family.name + "_total" if family.type == "counter" else family.name
        samples = []
        for sample in family.samples:
            labels = {key: label_value(value) for key, value in sample.labels.items() if value}
            bound = labels.pop("le", "") if sample.name == name + "_bucket" else ""
            le = boundary(float(bound), openmetrics=form.openmetrics) if bound else ""
            samples.append(ExternalSample(sample.name, labels, sample.value, le))
        yield ExternalFamily(name, family.type, family.unit, family.documentation or name, samples)
