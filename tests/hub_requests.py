"""OTLP requests as the processes of a job send them to the hub."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families

from tachograph.exporters.otlp.values import add_attributes
from tachograph.recording.exponential import ExponentialCounts

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
RANK_0 = {
    "service.instance.id": "r0",
    "dl.run.id": "run",
    "dl.role": "trainer",
    "dl.rank": 0,
    "process.pid": 100,
    "dl.restart_count": 0,
}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * SECOND)


def rank(number: int, **others: Any) -> dict[str, Any]:
    """Return the resource of a rank; ``pid`` and ``restart`` are those of its start."""
    named = {"pid": "process.pid", "restart": "dl.restart_count", "run": "dl.run.id"}
    own = {"service.instance.id": f"r{number}", "dl.rank": number, "process.pid": 100 + number}
    return {**RANK_0, **own, **{named.get(key, key): value for key, value in others.items()}}


def number(
    name: str,
    value: float,
    *,
    kind: str = "gauge",
    time: int = START,
    start: int = 1,
    delta: bool = False,
    unit: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> Metric:
    """Return a gauge, a ``counter`` or an ``updown`` with one point."""
    metric = Metric(name=name, unit=unit, description=f"About {name}.")
    if kind == "gauge":
        point = metric.gauge.data_points.add(time_unix_nano=time)
    else:
        metric.sum.is_monotonic = kind == "counter"
        metric.sum.aggregation_temporality = _temporality(delta=delta)
        point = metric.sum.data_points.add(time_unix_nano=time, start_time_unix_nano=start)
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    add_attributes(point.attributes, (attributes or {}).items())
    return metric


def histogram(
    name: str,
    counts: Sequence[int],
    *,
    total: float = 0.0,
    bounds: Sequence[float] = (1.0, 2.0),
    time: int = START,
    start: int = 1,
    delta: bool = False,
    unit: str = "s",
    attributes: Mapping[str, Any] | None = None,
) -> Metric:
    """Return a histogram with one point."""
    metric = Metric(name=name, unit=unit, description=f"About {name}.")
    metric.histogram.aggregation_temporality = _temporality(delta=delta)
    point = metric.histogram.data_points.add(
        time_unix_nano=time,
        start_time_unix_nano=start,
        count=sum(counts),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=bounds,
    )
    add_attributes(point.attributes, (attributes or {}).items())
    return metric


def exponential(
    name: str,
    values: Sequence[float],
    *,
    time: int = START,
    start: int = 1,
    delta: bool = True,
    beside: bool = False,
    unit: str = "s",
    attributes: Mapping[str, Any] | None = None,
) -> Metric:
    """Return an exponential histogram of some values, one point; ``beside`` as our own client sends it."""
    metric = Metric(name=name, unit=unit, description=f"About {name}.")
    if beside:
        metric.metadata.add(key="tachograph.beside").value.bool_value = True
    found = ExponentialCounts().plus(sorted(values)).histogram()
    metric.exponential_histogram.aggregation_temporality = _temporality(delta=delta)
    point = metric.exponential_histogram.data_points.add(
        time_unix_nano=time,
        start_time_unix_nano=start,
        count=len(values),
        sum=math.fsum(values),
        scale=found.scale,
        zero_count=found.zeros,
        min=found.minimum,
        max=found.maximum,
    )
    for side, buckets in ((point.positive, found.positive), (point.negative, found.negative)):
        side.offset = buckets.offset
        side.bucket_counts.extend(buckets.counts)
    add_attributes(point.attributes, (attributes or {}).items())
    return metric


def _temporality(*, delta: bool) -> Any:
    return AGGREGATION_TEMPORALITY_DELTA if delta else AGGREGATION_TEMPORALITY_CUMULATIVE


def metrics(resource: Mapping[str, Any], *sent: Metric, scope: str = "train") -> ExportMetricsServiceRequest:
    """Return a request of one process, encoded and decoded as on the way."""
    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    add_attributes(of_resource.resource.attributes, resource.items())
    of_scope = of_resource.scope_metrics.add()
    of_scope.scope.name = scope
    of_scope.metrics.extend(sent)
    return ExportMetricsServiceRequest.FromString(request.SerializeToString())


def logs(
    resource: Mapping[str, Any],
    *events: tuple[str, Mapping[str, Any]],
    stream: str = "s",
    first: int = 1,
    seqs: Iterable[int] | None = None,
    apart: int = 1,
    time: int = START,
) -> ExportLogsServiceRequest:
    """Return a request with events, numbered from ``first`` on, so many ns apart; without a stream without a number."""
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    add_attributes(of_resource.resource.attributes, resource.items())
    of_scope = of_resource.scope_logs.add()
    of_scope.scope.name = "tachograph"
    for seq, (name, attributes) in zip(seqs or itertools.count(first), events, strict=False):
        at = time + seq * apart
        record = of_scope.log_records.add(time_unix_nano=at, observed_time_unix_nano=START, event_name=name)
        ours = {"tachograph.schema": 1, "tachograph.stream": stream, "tachograph.seq": seq} if stream else {}
        add_attributes(record.attributes, {**attributes, **ours}.items())
    return ExportLogsServiceRequest.FromString(request.SerializeToString())


def shown(page: bytes, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the values of a sample on a page by its other labels."""
    return {
        tuple(sorted((key, value) for key, value in sample.labels.items() if key not in labels)): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def only(page: bytes, name: str, **labels: str) -> float:
    """Return the value of the one sample of this name with these labels."""
    (value,) = shown(page, name, **labels).values()
    return value
