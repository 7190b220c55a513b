"""The ways out, and which sorts of things each of them carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from expected import Sort

WayName = Literal["page", "http", "grpc", "provider", "alone", "registry", "exporter", "handler", "hub"]

_NO_EVENTS = "an event is a log record, not a metric"
_NO_POINTS = "a point with its x is an event, not a metric"
_LAST_WINDOW = "it shows the last window; OTLP has each"
_NOT_TORCH = "torch.monitor's handlers get torch.monitor's events"
_RAW = "torchelastic's handlers get the points of its own API, as they are put"


class Way(NamedTuple):
    """A way out.

    Attributes:
        title: in the table.
        says: what it is, in a sentence.
        lacks: the sorts of things that it has no place for, and why.
        sent: whether things leave by themselves at the end of the process; else they are fetched while it runs.
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
        "our page after `start()`, fetched over HTTP and parsed with `prometheus_client`",
        _METRICS_ONLY,
        sent=False,
    ),
    "http": Way("OTLP/HTTP", 'our OTLP after `start(endpoint=…, protocol="http/protobuf")`', {"handed": _RAW}),
    "grpc": Way("OTLP/gRPC", 'our OTLP after `start(endpoint=…, protocol="grpc")`', {"handed": _RAW}),
    "provider": Way(
        "your providers",
        "the program's own `MeterProvider` with a `PeriodicExportingMetricReader`, and its `LoggerProvider`, and a "
        "`start()`",
        {"handed": _RAW, "windows": _LAST_WINDOW},
    ),
    "alone": Way(
        "… without `start()`",
        "the same, where the program only records",
        {"handed": _RAW, "windows": _LAST_WINDOW},
    ),
    "registry": Way(
        "your `CollectorRegistry`",
        "`tachograph.otel.PrometheusCollector()` in a registry of the program's own, without a `start()`",
        _METRICS_ONLY,
        sent=False,
    ),
    "exporter": Way(
        "`HandlerExporter`",
        "`start(metrics=[HandlerExporter(handler)])`: a handler gets the points of each collection",
        _METRICS_ONLY,
    ),
    "handler": Way(
        "handlers",
        "`configure(handler)` for the points of torchelastic's API, `register_event_handler` for the events of "
        "torch.monitor's, without a `start()`",
        {
            "metric": "it gets points, one by one; `HandlerExporter` gives one the metrics",
            "record": _NOT_TORCH,
            "curve": _NOT_TORCH,
            "windows": "it gets an event for each",
        },
    ),
    "hub": Way(
        "the hub's store",
        "a `tachograph hub`, and the file that it leaves, read back",
        {"handed": _RAW, "windows": "of a series it keeps a sample every ten seconds"},
    ),
}
