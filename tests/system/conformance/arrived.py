"""The data that arrived at one destination, in the form in which expectations read it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from prometheus_client.parser import text_string_to_metric_families

from tachograph.exporters.console import series_name
from tachograph.recording.naming import Kind, prometheus_label, prometheus_name

IDENTITY = ("dl_run_id", "dl_rank", "dl_role", "otel_scope_version", "otel_scope_schema_url")


class Series(NamedTuple):
    """The identity of a series in OpenTelemetry."""

    scope: str
    name: str
    kind: Kind
    unit: str = ""
    attributes: tuple[tuple[str, Any], ...] = ()


class Distribution(NamedTuple):
    """The state of a histogram; ``at_most`` counts the values up to each bound. None if a destination lacks a part."""

    count: int
    total: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    at_most: Mapping[float, int] | None = None


class Logged(NamedTuple):
    """An event: a log record, or a call of a registered handler."""

    name: str
    attributes: Mapping[str, Any]
    time_unix_nano: int


@dataclass
class Arrived:
    """All data that arrived at one destination; a destination sets the parts that it supports.

    Attributes:
        numbers: the last value of each gauge and counter.
        distributions: the last state of each histogram.
        points: all values of a number, by the time of their points.
        events: in the order in which they came.
        handed: the values that a handler was given, by group and name.
        failed: why nothing arrived at all; empty where the process ended as it should.
    """

    numbers: dict[Any, int | float] = field(default_factory=dict)
    distributions: dict[Any, Distribution] = field(default_factory=dict)
    points: dict[Any, dict[int, int | float]] = field(default_factory=dict)
    events: list[Logged] = field(default_factory=list)
    handed: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    failed: str = ""

    def key(self, series: Series) -> Any:
        """Return the key of a series at this destination."""
        return series.scope, series.name, series.attributes

    def number(self, series: Series) -> int | float | None:
        """Return the last value of a gauge or a counter."""
        return self.numbers.get(self.key(series))

    def distribution(self, series: Series) -> Distribution | None:
        """Return the last state of a histogram."""
        return self.distributions.get(self.key(series))

    def counted(self, name: str, attribute: str, value: str) -> int | float:
        """Return the value of one of Tachograph's own counters, summed over its other attributes."""
        return sum(
            found
            for (scope, metric, attributes), found in self.numbers.items()
            if (scope, metric) == ("tachograph", name) and (attribute, value) in attributes
        )

    def near(self, series: Series) -> list[str]:
        """Return keys with similar names in the scope of a series."""
        keys = [str(key[1:]) for key in (*self.numbers, *self.distributions, *self.handed) if key[0] == series.scope]
        return get_close_matches(str(self.key(series)[1:]), keys, cutoff=0.3)

    def names(self, scope: str) -> set[str]:
        """Return the metrics of a scope with their names at this destination."""
        return {key[1] for key in (*self.numbers, *self.distributions) if key[0] == scope}


class Page(Arrived):
    """A page in the Prometheus text format, with names and labels by the OpenTelemetry-to-Prometheus rules."""

    @classmethod
    def read(cls, text: str) -> Page:
        """Parse a page with prometheus_client's parser."""
        page = cls()
        parts: dict[Any, dict[str, Any]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {key: value for key, value in sample.labels.items() if key not in IDENTITY}
                scope, bound = labels.pop("otel_scope_name", ""), labels.pop("le", None)
                if family.type != "histogram":
                    page.numbers[scope, sample.name, _sorted(labels)] = sample.value
                    continue
                part = parts.setdefault((scope, family.name, _sorted(labels)), {"at_most": {}})
                if bound is not None:
                    part["at_most"][float(bound)] = int(sample.value)
                else:
                    part[sample.name.removeprefix(family.name)] = sample.value
        for key, part in parts.items():
            count = part.get("_count", part["at_most"].get(math.inf, 0))
            page.distributions[key] = Distribution(int(count), part.get("_sum"), at_most=part["at_most"])
        return page

    def key(self, series: Series) -> Any:
        """Return the name of the family, and the labels."""
        labels = {prometheus_label(key): label(value) for key, value in series.attributes}
        return series.scope, prometheus_name(series.name, series.unit, series.kind), _sorted(labels)

    def counted(self, name: str, attribute: str, value: str) -> int | float:
        """Return the value of one of Tachograph's own counters, summed over its other labels."""
        return super().counted(prometheus_name(name, "", "counter"), attribute, value)


class Emitted(Arrived):
    """The points that an exporter passed to a handler; names include attributes, and a histogram is four points."""

    def number(self, series: Series) -> int | float | None:
        """Return the last value of a gauge or a counter."""
        return self._last(series, "")

    def distribution(self, series: Series) -> Distribution | None:
        """Return the last state of a histogram."""
        count = self._last(series, ".count")
        if count is None:
            return None
        return Distribution(count, *(self._last(series, suffix) for suffix in (".sum", ".min", ".max")))

    def _last(self, series: Series, suffix: str) -> Any:
        values = self.handed.get((series.scope, series_name(series.name + suffix, dict(series.attributes))))
        return values[-1] if values else None

    def counted(self, name: str, attribute: str, value: str) -> int | float:
        """Return the value of one of Tachograph's own counters, summed over its other attributes."""
        wanted = f"{attribute}={json.dumps(value)}"
        return sum(
            values[-1]
            for (group, named), values in self.handed.items()
            if group == "tachograph" and named.startswith(name + "{") and wanted in named
        )

    def names(self, scope: str) -> set[str]:
        """Return the names of a group's points."""
        return {name for group, name in self.handed if group == scope}


def from_otlp(metrics: Iterable[ExportMetricsServiceRequest], logs: Iterable[ExportLogsServiceRequest]) -> Arrived:
    """Return the data of cumulative OTLP requests; the newest point of a series counts, whatever their order."""
    arrived = Arrived()
    newest: dict[Any, int] = {}
    for key, kind, point in _points(metrics):
        is_newest = point.time_unix_nano >= newest.get(key, 0)
        newest[key] = max(point.time_unix_nano, newest.get(key, 0))
        if kind == "histogram":
            if is_newest:
                arrived.distributions[key] = _distribution(point)
            continue
        number = getattr(point, point.WhichOneof("value"))
        if point.start_time_unix_nano:  # else it says again what it was when the last window closed
            arrived.points.setdefault(key, {})[point.time_unix_nano] = number
        if is_newest:
            arrived.numbers[key] = number
    arrived.events = [
        Logged(record.event_name, values(record.attributes), record.time_unix_nano)
        for request in logs
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    return arrived


def _points(requests: Iterable[ExportMetricsServiceRequest]) -> Iterator[tuple[Any, str, Any]]:
    for request in requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        yield (scope.scope.name, metric.name, _sorted(values(point.attributes))), kind, point


def _distribution(point: Any) -> Distribution:
    bounds = [*point.explicit_bounds, math.inf]
    counts = [sum(point.bucket_counts[: place + 1]) for place in range(len(point.bucket_counts))]
    extremes = (point.min, point.max) if point.HasField("min") else (None, None)
    return Distribution(point.count, point.sum, *extremes, at_most=dict(zip(bounds, counts, strict=False)))


def values(pairs: Iterable[Any]) -> dict[str, Any]:
    """Return OTLP's attributes as a mapping."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(message: AnyValue) -> Any:
    kind = message.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in message.array_value.values]
    if kind == "kvlist_value":
        return values(message.kvlist_value.values)
    return getattr(message, kind) if kind else None


def label(value: Any) -> str:
    """Return an attribute's value as label text (OpenTelemetry encodes it as JSON)."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _sorted(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in attributes.items()))


def same(found: Any, wanted: Any) -> bool:
    """Return whether two values have the same type and value; NaN equals itself."""
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping) and set(found) == set(wanted) and all(same(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and equal(found, wanted)


def equal(found: Any, wanted: Any, *, within: float = 0.0) -> bool:
    """Return whether two numbers are equal; NaN equals itself."""
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == wanted) or (within > 0 and math.isclose(found, wanted, rel_tol=within))
