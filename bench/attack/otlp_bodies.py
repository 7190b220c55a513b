"""OTLP requests of hostile parts, as protobuf messages: metrics, logs and traces.

Most values come from a small vocabulary, so that points meet existing series, and that the page of a hub stays as small
as that of a real one; about one point in a hundred makes a new series.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from hostile import SECOND, TEXTS, integer, moment, number, text, unsigned

NAMES = (
    *(
        "loss",
        "lr",
        "x",
        "x.total",
        "x_total",
        "x.count",
        "x_sum",
        "x_bucket",
        "tokens",
        "step.duration",
        "step.duration.ms",
    ),
    *("checkpoint.success", "checkpoint.failure", "a.b", "a_b", "a/b", "outer.<locals>.inner", "target", "target_info"),
    *("tachograph.dropped", "tachograph.process.lost", "function.duration", "function.calls", "hw.gpu.utilization"),
    *("torch.wait.duration", "up", "le", "x_created", "x_info", "é", "1st", "_", ":"),
)
UNITS = ("", "", "s", "ms", "By", "1", "{token}", "%", "KiBy/s", "total", "é", "\n", "{", "s/s/s")
SCOPES = ("train", "torchelastic", "tachograph", "", "é\n")
RUNS = ("default", "run", "run 2", "../up", "a/b", "é", ".", "a\nb")
ROLES = ("trainer", "agent", "node", "", "é")
KEYS = ("i", "le", "quantile", "dl.rank", "dl_rank", "a.b", "a_b", "otel_scope_name", "__name__", "é", "reason")
EVENTS = (
    *("tachograph.metric", "tachograph.metric", "tachograph.definition", "tachograph.process.start"),
    *("tachograph.process.end", "tachograph.point", "torch.monitor.Stat", "torchelastic.worker.status", ""),
)
SAID = (
    *("metric", "group", "x", "value", "branch", "execution", "min", "max", "min_x", "max_x", "nonfinite", "reason"),
    *("x_units", "x_lower", "x_upper", "scale", "units", "lower", "upper", "progress", "total", "name", "state"),
    *("tachograph.stream", "tachograph.seq", "tachograph.schema", "tachograph.tags", "tachograph.fields"),
)
BOUNDS = ((), (1.0, 2.0), (0.1, 0.5, 1.0, 5.0), (1.0, 1.0), (2.0, 1.0), (float("nan"),), (-1.0, float("inf")))
_DEEP = (2, 3, 5, 20, 28, 44, 60)  # protobuf's own limit is 100 messages: an array is two, a map is three


def value(random: Random, into: Any, depth: int = 2) -> None:
    """Set an ``AnyValue``, nested now and then."""
    chosen = random.randrange(12)
    if chosen < 4:
        into.string_value = random.choice(TEXTS[:20]) if random.random() < 0.9 else text(random)
    elif chosen < 6:
        into.int_value = integer(random)
    elif chosen < 8:
        into.double_value = number(random)
    elif chosen == 8:
        into.bool_value = random.random() < 0.5
    elif chosen == 9:
        into.bytes_value = random.randbytes(random.randrange(9))
    elif chosen == 10 and depth:
        into.array_value.SetInParent()
        for _ in range(random.randrange(3)):
            value(random, into.array_value.values.add(), depth - 1)
    elif depth:
        into.kvlist_value.SetInParent()
        for _ in range(random.randrange(3)):
            value(random, into.kvlist_value.values.add(key=text(random)).value, depth - 1)


def deep(random: Random, into: Any) -> None:
    """Nest an ``AnyValue`` deep: in maps, in arrays, or in both."""
    maps = random.choice((0.0, 0.5, 1.0))
    for _ in range(random.choice(_DEEP)):
        into = into.kvlist_value.values.add(key="a").value if random.random() < maps else into.array_value.values.add()
    into.int_value = 1


def attributes(random: Random, into: Any) -> None:
    """Add the attributes of a point: of few sets, seldom another one."""
    chosen = random.random()
    if chosen < 0.4:
        return
    if chosen < 0.985:
        key = random.choice(KEYS)
        into.add(key=key).value.string_value = TEXTS[len(key) % 3 * 7]
        return
    for _ in range(random.randrange(1, 4)):
        value(random, into.add(key=random.choice(KEYS) if random.random() < 0.5 else text(random)).value)
    if random.random() < 0.1:
        deep(random, into.add(key="deep").value)


def resource(random: Random, into: Any) -> None:
    """Fill in a resource: of one of a dozen processes, or with arbitrary names."""
    plain = random.random() < 0.95
    rank = random.randrange(4)
    named = {
        "service.instance.id": f"i{rank}",
        "service.name": "fuzz",
        "dl.run.id": random.choice(RUNS[:3]),
        "dl.role": "trainer",
        "host.name": "host",
    }
    numbers = {"dl.rank": rank, "process.pid": 100 + rank, "dl.restart_count": 0}
    if not plain:
        named["dl.run.id"] = random.choice(RUNS)
        named["dl.role"] = random.choice(ROLES)
        if random.random() < 0.3:
            named[random.choice(list(named))] = text(random)
        numbers[random.choice(list(numbers))] = integer(random)
        if random.random() < 0.01:
            named["dl.run.id"] = f"run {random.getrandbits(30)}"
    for key, each in named.items():
        into.attributes.add(key=key).value.string_value = each
    for key, whole in numbers.items():
        into.attributes.add(key=key).value.int_value = whole
    if not plain and random.random() < 0.3:
        key = random.choice((*named, *numbers, text(random, huge=0.02)))
        value(random, into.attributes.add(key=key).value)


def metrics(random: Random) -> ExportMetricsServiceRequest:
    """Return a request with metrics."""
    made = ExportMetricsServiceRequest()
    for _ in range(_few(random)):
        of_resource = made.resource_metrics.add()
        resource(random, of_resource.resource)
        for _ in range(_few(random)):
            of_scope = of_resource.scope_metrics.add()
            _scope(random, of_scope)
            for _ in range(_few(random) + 1):
                _metric(random, of_scope.metrics.add())
    return made


def _few(random: Random) -> int:
    return random.choice((1, 1, 1, 1, 1, 2, 2, 3, 0))


def _scope(random: Random, of_scope: Any) -> None:
    of_scope.scope.name = random.choice(SCOPES) if random.random() < 0.995 else text(random)
    if random.random() < 0.02:
        of_scope.scope.version = of_scope.schema_url = text(random)
        value(random, of_scope.scope.attributes.add(key=text(random)).value)


def _metric(random: Random, metric: Any) -> None:
    place = random.randrange(len(NAMES))
    usual = random.random() < 0.97
    metric.name = NAMES[place] if random.random() < 0.995 else text(random, huge=0.05)
    metric.unit = UNITS[place % len(UNITS)] if usual else random.choice(UNITS)
    metric.description = f"About {place}." if usual else text(random)
    data = _DATA[place % 3] if usual else random.choice(_DATA)
    of_data = getattr(metric, data)
    of_data.SetInParent()
    if hasattr(of_data, "aggregation_temporality"):
        of_data.aggregation_temporality = random.choice((2, 2, 1, 1, 0, 7)) if not usual else 2 - place % 2
    if data == "sum":
        of_data.is_monotonic = place % 4 > 0 if usual else random.random() < 0.5
    if random.random() < 0.02:
        value(random, metric.metadata.add(key=text(random)).value)
    if random.random() < (0.5 if data == "exponential_histogram" else 0.01):
        metric.metadata.add(key="tachograph.beside").value.bool_value = random.random() < 0.95
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        _point(random, data, of_data.data_points.add())


_DATA = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def _point(random: Random, data: str, point: Any) -> None:
    point.time_unix_nano = moment(random)
    point.start_time_unix_nano = random.choice((0, 1, time.time_ns() - 10 * SECOND, moment(random)))
    if random.random() < 0.05:
        point.flags = random.choice((1, 2, 2**32 - 1))
    attributes(random, point.attributes)
    if data in ("gauge", "sum"):
        chosen = random.random()
        if chosen < 0.5:
            point.as_double = number(random)
        elif chosen < 0.98:
            point.as_int = integer(random)
    else:
        point.count = unsigned(random)
        point.sum = number(random)
        _POINTS[data](random, point)
    if data != "summary" and random.random() < 0.05:
        _exemplar(random, point.exemplars.add())


def _histogram(random: Random, point: Any) -> None:
    bounds = random.choice(BOUNDS[:3]) if random.random() < 0.9 else random.choice(BOUNDS)
    if random.random() < 0.003:
        bounds = tuple(map(float, range(random.choice((999, 1000, 1001, 20_000)))))
    point.explicit_bounds.extend(bounds)
    apart = 1 if random.random() < 0.95 else random.choice((0, 2, 50))
    counts = [unsigned(random) for _ in range(min(len(bounds), 40) + apart)]
    point.bucket_counts.extend((counts * (len(bounds) // 40 + 1))[: len(bounds) + apart])
    if random.random() < 0.9:
        point.count = min(sum(counts), 2**64 - 1)
    if random.random() < 0.3:
        point.min, point.max = number(random), number(random)


def _exponential(random: Random, point: Any) -> None:
    """Fill a point as SDKs do, in half of the cases; else with scales and buckets beyond all floats."""
    honest = random.random() < 0.5
    point.scale = random.choice(range(-10, 21)) if honest else random.choice((21, -11, 2**31 - 1, -(2**31)))
    point.zero_count, point.zero_threshold = random.choice((0, 3, unsigned(random))), number(random)
    if random.random() < 0.7:
        point.min = number(random)
    if random.random() < 0.7:
        point.max = number(random)
    for side in (point.positive, point.negative):
        side.offset = random.choice((0, 3, -3) if honest else (2**31 - 1, -(2**31), 300_000))
        counts = [0, 1, random.choice((1, 300, unsigned(random)))] * random.randrange(60)
        if random.random() < 0.003:
            counts *= random.choice((50, 400))
        side.bucket_counts.extend(counts)
    if honest and random.random() < 0.8:
        total = point.zero_count + sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts)
        point.count = min(total, 2**64 - 1)


def _summary(random: Random, point: Any) -> None:
    for _ in range(random.randrange(4)):
        point.quantile_values.add(quantile=number(random), value=number(random))


_POINTS: dict[str, Callable[[Random, Any], None]] = {
    "histogram": _histogram,
    "exponential_histogram": _exponential,
    "summary": _summary,
}


def _exemplar(random: Random, exemplar: Any) -> None:
    exemplar.time_unix_nano = moment(random)
    exemplar.as_double = number(random)
    exemplar.trace_id, exemplar.span_id = _id(random, 16), _id(random, 8)
    value(random, exemplar.filtered_attributes.add(key=text(random)).value)


def _id(random: Random, length: int) -> bytes:
    return random.randbytes(length if random.random() < 0.9 else random.choice((0, 1, 7, 40)))


def logs(random: Random) -> ExportLogsServiceRequest:
    """Return a request with log records: events of ours, right and wrong, and any others."""
    made = ExportLogsServiceRequest()
    for _ in range(_few(random)):
        of_resource = made.resource_logs.add()
        resource(random, of_resource.resource)
        for _ in range(_few(random)):
            of_scope = of_resource.scope_logs.add()
            _scope(random, of_scope)
            for _ in range(_few(random) + 1):
                _record(random, of_scope.log_records.add())
    return made


def _record(random: Random, record: Any) -> None:
    record.time_unix_nano, record.observed_time_unix_nano = moment(random), moment(random)
    record.event_name = random.choice(EVENTS) if random.random() < 0.97 else text(random)
    record.severity_number = random.choice((0, 9, 99))
    if random.random() < 0.1:
        value(random, record.body)
        record.severity_text = text(random)
    if random.random() < 0.1:
        record.trace_id, record.span_id, record.flags = _id(random, 16), _id(random, 8), random.getrandbits(32)
    said: dict[str, Any] = {"metric": random.choice(NAMES[:8]), "group": random.choice(SCOPES)}
    said |= {
        "x": random.choice((number(random), integer(random))),
        "value": number(random),
        "branch": random.randrange(3),
    }
    if random.random() < 0.5:
        said |= {random.choice(SAID[:22]): random.choice((number(random), integer(random), text(random)))}
    said |= {"tachograph.schema": random.choice((1, 1, 1, 1, 1, 0, 2, -1, 2**63 - 1))}
    if random.random() < 0.9:
        said["tachograph.stream"] = f"stream-{random.randrange(40)}"
        said["tachograph.seq"] = random.randrange(1, 1_000_000) if random.random() < 0.97 else integer(random)
    for key, each in said.items():
        into = record.attributes.add(key=key).value
        if isinstance(each, str):
            into.string_value = each
        elif isinstance(each, float):
            into.double_value = each
        else:
            into.int_value = each
    if random.random() < 0.15:  # a valid attribute gets another type, or is there twice
        value(random, record.attributes.add(key=random.choice(SAID)).value)
    if random.random() < 0.01:
        deep(random, record.attributes.add(key="deep").value)


def traces(random: Random) -> ExportTraceServiceRequest:
    """Return a request with spans."""
    made = ExportTraceServiceRequest()
    for _ in range(_few(random)):
        of_resource = made.resource_spans.add()
        resource(random, of_resource.resource)
        for _ in range(_few(random)):
            of_scope = of_resource.scope_spans.add()
            _scope(random, of_scope)
            for _ in range(random.randrange(3)):
                span = of_scope.spans.add(name=text(random), trace_id=_id(random, 16), span_id=_id(random, 8))
                span.start_time_unix_nano, span.end_time_unix_nano = moment(random), moment(random)
                value(random, span.attributes.add(key=text(random)).value)
                span.events.add(name=text(random), time_unix_nano=moment(random))
                span.status.code = random.choice((0, 1, 2, 99))
    return made


SIGNALS: dict[str, Callable[[Random], Message]] = {"metrics": metrics, "logs": logs, "traces": traces}
