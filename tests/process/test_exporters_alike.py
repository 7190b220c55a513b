"""The official exporters compared with Tachograph's, from the same collections.

The tables of docs/design/exporters-compared.md are made here.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from places import ROOT
from programs import run
from receivers import receiving

PAGE = ROOT / "docs" / "design" / "exporters-compared.md"
REQUESTS: Mapping[str, tuple[Any, str]] = {
    "metrics": (ExportMetricsServiceRequest, "metrics"),
    "traces": (ExportTraceServiceRequest, "spans"),
    "logs": (ExportLogsServiceRequest, "log_records"),
}
NAMES = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}

RECORDING = """
import os, sys, time
import tachograph
from opentelemetry import metrics, trace
from tachograph.recording import journal

def record(rounds=1, after=lambda: None):
    load = tachograph.declare(
        "load", group="g", kind="histogram", unit="s", description="Loading.", boundaries=(0.01, 0.1, 1, 10)
    )
    meter = metrics.get_meter("library", "1.2")
    asked = meter.create_counter("requests", "{request}", "Asked.")
    took = meter.create_histogram("took", "s", "Took.")

    @tachograph.prof(group="g")
    def step(fails=False):
        if fails:
            raise ValueError("on purpose")

    for _ in range(rounds):
        for number in range(5):
            load.record(number / 3, {"split": "eval", "n": number % 2})
        odd = {"loss": 0.5, "nan": float("nan"), "inf": float("-inf"), "huge": 2**80, "flag": True, "int": 2**60}
        for name, value in odd.items():
            tachograph.put_metric(name, value, "g", attributes={"rank": 0, "f": 0.5, "b": True, "s": "x"})
        tachograph.put_metric("done.success", 3, "g")
        tachograph.put_metric("done.success", 3, "h", attributes={"x": 1})
        asked.add(3, {"code": 200})
        took.record(0.3)
        with trace.get_tracer("library", "1.2").start_as_current_span("outer", attributes={"a": [1, 2]}) as span:
            span.add_event("happened", {"k": 1})
            step()
            try:
                step(True)
            except ValueError:
                pass
        about = {"n": 1, "x": 0.5, "s": "t", "l": [1, 2], "b": True}
        journal.default.append("e", time.time_ns(), about, trace_id=5, span_id=6, trace_flags=1)
        after()
"""
OTLP = """
name, endpoint, protocol = sys.argv[1:]
chosen = ["otlp", name]
pipeline = tachograph.start(
    metrics=chosen, traces=chosen, logs=chosen, endpoint=endpoint, protocol=protocol, interval=3600, timeout=10,
    resource={"team": ["a", "b"]},
)
record(2, pipeline.flush)
os._exit(0)
"""
Sent = dict[str, list[Message]]


@contextmanager
def taking(protocol: str) -> Iterator[tuple[str, Sent]]:
    """Run a receiver of all signals; yields its endpoint, and what it was sent, which is there after the block."""
    sent: Sent = {signal: [] for signal in REQUESTS}
    if protocol != "grpc":
        with receiving() as receiver:
            yield receiver.url.removesuffix("/v1/metrics"), sent
            for path, headers, body in receiver.requests:
                signal = path.rpartition("/")[2]
                plain = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
                sent[signal].append(REQUESTS[signal][0].FromString(plain))
        return
    server = grpc.server(futures.ThreadPoolExecutor(3))
    for signal, (request, _) in REQUESTS.items():
        service = "Trace" if signal == "traces" else signal.capitalize()
        take = grpc.unary_unary_rpc_method_handler(_appending(sent[signal]), request_deserializer=request.FromString)
        name = f"opentelemetry.proto.collector.{service.lower()}.v1.{service}Service"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": take}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", sent
    finally:
        server.stop(1).wait(5)


def _appending(requests: list[Message]) -> Callable[[Message, Any], bytes]:
    def take(request: Message, _context: Any) -> bytes:
        requests.append(request)
        return b""

    return take


def parts(sent: Sent, signal: str) -> list[tuple[str, str, Any]]:
    """Return every metric, span or record with its resource and its scope, in the order of their texts."""
    inner = {"metrics": "metrics", "traces": "spans", "logs": "logs"}[signal]
    found = [
        (str(resource.resource) + resource.schema_url, str(scope.scope) + scope.schema_url, item)
        for request in sent[signal]
        for resource in getattr(request, f"resource_{inner}")
        for scope in getattr(resource, f"scope_{inner}")
        for item in getattr(scope, REQUESTS[signal][1])
    ]
    return sorted(found, key=lambda part: (part[1], str(part[2])))


def metrics_of(sent: Sent, *, ours: bool = True) -> list[Any]:
    """Return the metrics that are recorded with us, or those of the SDK's instruments."""
    return [metric for _, scope, metric in parts(sent, "metrics") if ('"library"' in scope) != ours]


def points_of(metric: Any) -> list[Any]:
    """Return the points of a metric."""
    return list(getattr(metric, metric.WhichOneof("data")).data_points)


def timeless(metric: Any) -> str:
    """Return a metric as text, but for the times of its points."""
    copied = type(metric).FromString(metric.SerializeToString())
    for point in points_of(copied):
        point.ClearField("time_unix_nano")
        point.ClearField("start_time_unix_nano")
    return str(copied)


def of_kind(kind: str) -> Callable[[Sent], object]:
    """Return a view of the points of one kind of metric, times and exemplars included."""
    return lambda sent: [
        (metric.name, str(getattr(metric, kind))) for metric in metrics_of(sent) if metric.WhichOneof("data") == kind
    ]


def exemplars(sent: Sent) -> list[str]:
    """Return all exemplars."""
    found = (point for metric in metrics_of(sent) for point in points_of(metric) if metric.HasField("histogram"))
    return [str(exemplar) for point in found for exemplar in point.exemplars]


def bodiless(sent: Sent) -> list[str]:
    """Return the events as text, but for an empty body."""
    copies = [type(record).FromString(record.SerializeToString()) for _, _, record in parts(sent, "logs")]
    for record in copies:
        if record.HasField("body") and not record.body.WhichOneof("value"):
            record.ClearField("body")
    return [str(record) for record in copies]


# What is compared, and, where it is not all, what is left out of the comparison, said in the table.
VIEWS: Mapping[str, tuple[Callable[[Sent], object], str]] = {
    "resource, scopes and their versions": (lambda sent: [part[:2] for part in parts(sent, "metrics")], ""),
    "names, units, descriptions of metrics": (
        lambda sent: [(metric.name, metric.unit, metric.description) for metric in metrics_of(sent)],
        "",
    ),
    "gauges: attributes with their types, times, NaN, infinities, large integers": (of_kind("gauge"), ""),
    "counters: values, attributes, start times": (of_kind("sum"), ""),
    "histograms: counts, sums, buckets, extremes": (of_kind("histogram"), ""),
    "exemplars of `@prof`": (exemplars, ""),
    "SDK instruments of other libraries": (
        lambda sent: [timeless(metric) for metric in metrics_of(sent, ours=False)],
        ", but for the moment at which each collects",
    ),
    "spans: all of them": (lambda sent: [(where, str(span)) for where, _, span in parts(sent, "traces")], ""),
    "events: names, times, attributes, trace context": (bodiless, ", with an empty body that `otlp` leaves out"),
}


def table(heading: str, rows: Mapping[str, tuple[str, ...]]) -> str:
    """Return a table of the page."""
    lines = [heading, "|---" * heading.count("|", 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def otlp_table(tmp_path: Path, preference: str) -> str:
    """Return what is equal of the official exporters and ours, by running both."""
    cells: dict[str, list[str]] = {name: [] for name in VIEWS}
    for protocol, exporter in NAMES.items():
        with taking(protocol) as (to_ours, ours), taking(protocol) as (to_theirs, theirs):
            done = run(
                tmp_path,
                RECORDING + OTLP,
                *(exporter, to_ours, protocol),
                OTEL_EXPORTER_OTLP_ENDPOINT=to_theirs,
                OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=preference,
            )
        assert (done.returncode, done.stderr) == (0, "")
        for name, (view, apart) in VIEWS.items():
            assert view(ours), f"{name}: nothing to compare"
            cells[name].append(f"equal{apart}" if view(ours) == view(theirs) else "DIFFERENT")
    return table("| | `otlp_proto_http` | `otlp_proto_grpc` |", {name: tuple(said) for name, said in cells.items()})


@pytest.mark.parametrize("preference", ["cumulative", "delta", "lowmemory"])
def test_the_official_otlp_exporters_send_what_ours_sends(tmp_path: Path, preference: str) -> None:
    """Over both protocols, in each temporality, the same arrives, bit for bit; the page has the table."""
    made = otlp_table(tmp_path, preference)
    assert made in PAGE.read_text(encoding="utf-8"), f"docs/design/exporters-compared.md lacks:\n{made}"


PULLED = """
import urllib.request
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

registry = CollectorRegistry()
pipeline = tachograph.start(
    metrics=["prometheus", PrometheusMetricReader(registry=registry)], traces=lambda batch: None, prometheus_port=0
)
record()
print(pipeline.metrics_url, flush=True)
if sys.argv[1:]:
    start_http_server(int(sys.argv[1]), "127.0.0.1", registry)
    print("serving", flush=True)
    sys.stdin.readline()
    os._exit(0)
accepts = {"plain": "text/plain", "openmetrics": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"}
for name, accept in accepts.items():
    asked = urllib.request.Request(pipeline.metrics_url, headers={"Accept": accept})
    with urllib.request.urlopen(asked) as answer:
        open(name, "wb").write(answer.read())
open("theirs", "wb").write(generate_latest(registry))
"""


def samples(page: str, *leave: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], str]:
    """Return the samples of a page by name and labels, some labels and what is about ourselves left out."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            kept = {key: said for key, said in sample.labels.items() if said and not key.startswith(leave or ("\n",))}
            if "le" in kept:
                kept["le"] = str(float(kept["le"]))
            if kept.get("otel_scope_name") != "tachograph":
                found[sample.name, tuple(sorted(kept.items()))] = repr(float(sample.value))
    return found


def families(page: str) -> dict[str, tuple[str, str]]:
    """Return the type and the help of each family that is not about ourselves."""
    found = text_string_to_metric_families(page)
    return {family.name: (family.type, family.documentation) for family in found if "tachograph" not in family.name}


def prometheus_table(ours: str, openmetrics: str, theirs: str) -> str:
    """Return what is equal of the official reader's page and ours."""

    def same(one: object, other: object) -> str:
        return "equal" if one == other else "DIFFERENT"

    pages = (ours, theirs)
    about = [{key: value for key, value in samples(page).items() if key[0] == "target_info"} for page in pages]
    series = [{key for (name, pairs) in samples(page) for key, _ in pairs if name != "target_info"} for page in pages]
    bounds = [set(re.findall(r'[{,]le="([^"]*)"', page)) for page in pages]
    lacking = ", ".join(f"`{key}`" for key in sorted(series[0] - series[1]))
    shown = {
        "names, values, NaN and infinities among them": (same(*(samples(page, "dl_") for page in pages)),),
        "types and help texts": (same(*map(families, pages)),),
        "`target_info`": (same(*about),),
        "labels of a series": (f"without {lacking}" if lacking and series[1] < series[0] else "DIFFERENT",),
        "names with a point, for Prometheus 3": (
            "`done_success_total`; on Tachograph's page `done.success_total`"
            if '{"done.success_total"' in openmetrics and '"done.success' not in theirs
            else "DIFFERENT",
        ),
        "`le` of a whole bound": (
            "`1.0`; on Tachograph's page `1`" if "1" in bounds[0] and "1.0" in bounds[1] else "DIFFERENT",
        ),
        "exemplars, for OpenMetrics": ("none" if " # {" in openmetrics and " # {" not in theirs else "DIFFERENT",),
    }
    return table("| | `PrometheusMetricReader` |", shown)


def test_the_official_prometheus_reader_shows_what_our_page_shows(tmp_path: Path) -> None:
    """The same names, values, types and help texts; the page has the table of what else differs."""
    done = run(tmp_path, RECORDING + PULLED, RANK="1", TACHOGRAPH_RUN="r", ROLE_NAME="trainer")
    assert (done.returncode, done.stderr) == (0, "")
    ours, openmetrics, theirs = ((tmp_path / name).read_text() for name in ("plain", "openmetrics", "theirs"))
    made = prometheus_table(ours, openmetrics, theirs)
    assert made in PAGE.read_text(encoding="utf-8"), f"docs/design/exporters-compared.md lacks:\n{made}"
