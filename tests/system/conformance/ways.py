"""The destinations of the conformance table, and which kinds of data each of them carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from expected import Sort

WayName = Literal["page", "http", "grpc", "provider", "alone", "registry", "exporter", "handler", "hub"]

_NO_EVENTS = "events are log records, not metrics"
_NO_POINTS = "points with an x value are events, not metrics"
_LAST_WINDOW = "this destination shows the last window; OTLP gets every window"
_NOT_TORCH = "handlers of torch.monitor get only torch.monitor events"
_RAW = "handlers of torchelastic get the points of its API as they were passed"


class Way(NamedTuple):
    """A destination.

    Attributes:
        title: the column header.
        says: a description for the page.
        lacks: the kinds of data that it cannot carry, and why.
        sent: whether the process pushes the data; otherwise it is fetched while the process runs.
    """

    title: str
    says: str
    lacks: Mapping[Sort, str]
    sent: bool = True


_METRICS_ONLY: Mapping[Sort, str] = {
    "event": _NO_EVENTS,
    "record": _NO_EVENTS,
    "curve": _NO_POINTS,
    "handed": _RAW,
    "windows": _LAST_WINDOW,
}

WAYS: Mapping[WayName, Way] = {
    "page": Way(
        "`/metrics`",
        "Tachograph's page after `start()`, fetched over HTTP and parsed with `prometheus_client`",
        _METRICS_ONLY,
        sent=False,
    ),
    "http": Way(
        "OTLP/HTTP", 'Tachograph\'s OTLP exporter after `start(endpoint=…, protocol="http/protobuf")`', {"handed": _RAW}
    ),
    "grpc": Way(
        "OTLP/gRPC", 'Tachograph\'s OTLP exporter after `start(endpoint=…, protocol="grpc")`', {"handed": _RAW}
    ),
    "provider": Way(
        "your providers",
        "the program's own `MeterProvider` with a `PeriodicExportingMetricReader`, and its own `LoggerProvider`, after "
        "`start()`",
        {"handed": _RAW, "windows": _LAST_WINDOW},
    ),
    "alone": Way(
        "… without `start()`",
        "the same, but the program never calls `start()`",
        {"handed": _RAW, "windows": _LAST_WINDOW},
    ),
    "registry": Way(
        "your `CollectorRegistry`",
        "`tachograph.otel.PrometheusCollector()` in the program's own registry, without `start()`",
        _METRICS_ONLY,
        sent=False,
    ),
    "exporter": Way(
        "`HandlerExporter`",
        "`start(metrics=[HandlerExporter(handler)])`, which passes the points of each collection cycle to a handler",
        _METRICS_ONLY,
    ),
    "handler": Way(
        "handlers",
        "`configure(handler)` for points of the torchelastic API, and `register_event_handler` for events of the "
        "torch.monitor API, without `start()`",
        {
            "metric": "handlers get single points; use `HandlerExporter` to pass metrics to a handler",
            "record": _NOT_TORCH,
            "curve": _NOT_TORCH,
            "windows": "handlers get an event for each window",
        },
    ),
    "hub": Way(
        "the hub's store",
        "the file that a `tachograph hub` writes, read back",
        {"handed": _RAW, "windows": "the hub stores one sample per series every ten seconds"},
    ),
}
