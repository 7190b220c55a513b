"""The samples that each process has sent, as Prometheus has to show them, and those that Prometheus shows."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from fleet_node import SERVICE
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric

from tachograph.identity.resource import SERIES_KEYS
from tachograph.recording.naming import prometheus_label, prometheus_name

RANGE = "2h"  # longer than any run of this program
ALL_RANKS = ".all_ranks"  # the suffix of gateway-aggregate.yaml
GATEWAY = "gateway"  # the instance under which it has the sums

Series = tuple[str, frozenset[tuple[str, str]]]  # name and labels, without those of the scraper
Samples = dict[int, float]  # value by time in milliseconds
Ask = Callable[[str], list[dict[str, Any]]]  # returns Prometheus's answer to an expression
# Left out of a comparison: the process is given by the query, and a scope has neither version nor schema.
_NOT_COMPARED = {"__name__", "job", "instance", "otel_scope_version", "otel_scope_schema_url"}


class Told(NamedTuple):
    """One data point as it was sent: of which metric, and with which labels."""

    name: str
    kind: str
    labels: dict[str, str]
    point: Any


# Made by the gateway, and by Prometheus's rules.
_NOT_SENT = "target_info|ALERTS|ALERTS_FOR_STATE|.*:.*"


def _value(attribute: KeyValue) -> str:
    value = getattr(attribute.value, attribute.value.WhichOneof("value") or "string_value")
    return value if isinstance(value, str) else json.dumps(value)


def told(bodies: Iterable[bytes], suffix: str = "") -> Iterator[Told]:
    """Yield every data point of some requests, its metric's name with a suffix."""
    for body in bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            all_of_it = {pair.key: _value(pair) for pair in resource.resource.attributes}
            who = {prometheus_label(key): all_of_it[key] for key in SERIES_KEYS if key in all_of_it}
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    yield from _of_metric(metric, {**who, "otel_scope_name": scope.scope.name}, suffix)


def _of_metric(metric: Metric, who: Mapping[str, str], suffix: str) -> Iterator[Told]:
    field = metric.WhichOneof("data") or "gauge"
    kind: Any = {"sum": "counter"}.get(field, field)
    name = prometheus_name(metric.name + suffix, metric.unit, kind)
    for point in getattr(metric, field).data_points:
        yield Told(name, kind, {**who, **{prometheus_label(a.key): _value(a) for a in point.attributes}}, point)


def buckets(point: HistogramDataPoint) -> dict[str, float]:
    """Return the cumulative counts of a histogram by upper bound."""
    bounds = [*map(str, map(float, point.explicit_bounds)), str(math.inf)]
    return dict(zip(bounds, accumulate(map(float, point.bucket_counts)), strict=True))


def series(name: str, labels: Mapping[str, str], **more: str) -> Series:
    """Return the key of a series."""
    return name, frozenset({**labels, **more}.items())


def expected(bodies: Iterable[bytes], *, aggregated: bool) -> dict[Series, Samples]:
    """Return every sample that the requests of one process have to become.

    Args:
        bodies: of its requests.
        aggregated: histograms of ranks have lost their buckets.
    """
    found: dict[Series, Samples] = defaultdict(dict)
    for name, kind, labels, point in told(bodies):
        at = point.time_unix_nano // 1_000_000
        if kind != "histogram":
            value = float(getattr(point, point.WhichOneof("value")))
            found[series(name, labels)][at] = value
            continue
        found[series(f"{name}_count", labels)][at] = float(point.count)
        found[series(f"{name}_sum", labels)][at] = point.sum
        shown = buckets(point)
        if aggregated and "dl_rank" in labels:
            shown = {str(math.inf): float(point.count)}
        for bound, count in shown.items():
            found[series(f"{name}_bucket", labels, le=bound)][at] = count
    return found


def over_all_ranks(sent: Iterable[Iterable[bytes]]) -> dict[Series, float]:
    """Return the expected totals of the histograms of all ranks: the last ones of each start of each rank."""
    lives: dict[tuple[Series, str, int], dict[Series, float]] = {}
    for number, bodies in enumerate(sent):
        for name, kind, labels, point in told(bodies, ALL_RANKS):
            if kind != "histogram" or "dl_rank" not in labels:
                continue
            without = {key: value for key, value in labels.items() if key != "dl_rank"}
            totals = {series(f"{name}_bucket", without, le=le): count for le, count in buckets(point).items()}
            totals[series(f"{name}_count", without)] = float(point.count)
            totals[series(f"{name}_sum", without)] = point.sum
            lives[series(name, without), str(number), point.start_time_unix_nano] = totals
    found: dict[Series, float] = defaultdict(float)
    for totals in lives.values():
        for key, value in totals.items():
            found[key] += value
    return found


def shown(ask: Ask, instance: str) -> dict[Series, Samples]:
    """Return every sample that Prometheus has of one process, without those that the scrape itself makes."""
    query = f'{{job="{SERVICE}",instance="{instance}",__name__!~"{_NOT_SENT}"}}[{RANGE}]'
    found: dict[Series, Samples] = {}
    for one in ask(query):
        labels = {key: value for key, value in one["metric"].items() if key not in _NOT_COMPARED}
        if "le" in labels:
            labels["le"] = str(float(labels["le"]))
        samples = {round(float(at) * 1000): float(value) for at, value in one["values"]}
        found[series(one["metric"]["__name__"], labels)] = samples
    return found


def last(ask: Ask, instance: str) -> dict[Series, float]:
    """Return the newest value of every series of one process."""
    return {key: samples[max(samples)] for key, samples in shown(ask, instance).items()}


def events_sent(bodies: Iterable[bytes]) -> int:
    """Return the number of events in some requests."""
    return sum(
        len(scope.log_records)
        for body in bodies
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
    )


def events_written(folder: Path) -> tuple[int, int]:
    """Return the number of events in the gateway's files, and the number of different ones."""
    seen = 0
    known: set[tuple[str, str]] = set()
    for path in folder.glob("telemetry*.jsonl"):
        with path.open() as lines:
            for line in (line for line in lines if line.endswith("\n")):  # the last one may be on its way
                for record in _records(json.loads(line)):
                    seen += 1
                    found = {pair["key"]: pair["value"] for pair in record["attributes"]}
                    stream, number = found["tachograph.stream"], found["tachograph.seq"]
                    known.add((stream["stringValue"], str(number["intValue"])))
    return seen, len(known)


def _records(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in request.get("resourceLogs", []):
        for scope in resource["scopeLogs"]:
            yield from scope["logRecords"]
