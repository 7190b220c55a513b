"""One test point for each destination that the settings name."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from tachograph.exporters.otel_exporters import EntryPointExporter
from tachograph.exporters.otlp.settings import SIGNALS, OtlpSettings, Signal, read_otlp_settings
from tachograph.logger.influx_target import InfluxTarget
from tachograph.pipeline.settings import GROUP, Settings
from tachograph.recording.ids import random_hex
from tachograph.recording.journal import LogEvent
from tachograph.recording.own_metrics import OWN_GROUP

NAME = "tachograph.check"
_METRIC = "tachograph_check"
_OURS: set[object] = {"otlp", "prometheus", "console", "jsonl", "influxdb", "tensorboard"}
_LAST_PORT = 65_535


class TestPoint(NamedTuple):
    """A test of one destination.

    Attributes:
        name: of the exporter, and of the signal.
        where: the address, the file or the object that the point goes to.
        send: sends the point within a number of seconds and returns a remark, which may be empty; it raises if the
            point does not arrive.
        is_sent: a server answers it.
    """

    name: str
    where: str
    send: Callable[[float], str]
    is_sent: bool = False


def probes(settings: Settings, influx: InfluxTarget | None, hub: str) -> Iterator[TestPoint]:
    """Yield a test for everything that is configured.

    Args:
        settings: those of a ``start()``.
        influx: the target of MetricsLogger and of the exporter ``influxdb``; None if no host is set.
        hub: the endpoint of the hub that ``tachograph run`` started; empty if there is none.
    """
    for otlp in settings.otlp:
        yield TestPoint(f"otlp {otlp.signal}", otlp.endpoint, _otlp(otlp), is_sent=True)
    for signal in SIGNALS if hub else ():
        otlp = read_otlp_settings(signal, {}, endpoint=hub)
        yield TestPoint(f"hub {signal}", otlp.endpoint, _otlp(otlp), is_sent=True)
    if influx is not None:
        yield TestPoint("influxdb", f"{influx.url}, database {influx.database!r}", _influxdb(influx), is_sent=True)
    exporters = {name for names in (settings.metrics, settings.traces, settings.logs) for name in names}
    if "prometheus" in exporters:
        host, port = settings.prometheus_host, settings.prometheus_port
        yield TestPoint("prometheus", f"http://{host}:{port}/metrics", lambda _: _free(host, port))
    if "jsonl" in exporters:
        yield TestPoint("jsonl", str(settings.jsonl_path()), lambda _: _writable(settings.jsonl_path()))
    if "tensorboard" in exporters:
        folder = settings.tensorboard_folder()
        yield TestPoint("tensorboard", str(folder), lambda _: _writable(folder / "events"))
    if "console" in exporters:
        yield TestPoint("console", "standard output", lambda _: "nothing to check")
    yield from _installed(settings, exporters)


def _installed(settings: Settings, exporters: set[object]) -> Iterator[TestPoint]:
    """Yield a test for each exporter that another package provides as an entry point."""
    for entry_point in entry_points(group=GROUP):
        if entry_point.name in exporters - _OURS:
            yield TestPoint(entry_point.name, entry_point.value, _loaded(entry_point.load))
    for signal, of_signal in zip(SIGNALS, (settings.metrics, settings.traces, settings.logs), strict=True):
        for exporter in of_signal:
            if isinstance(exporter, EntryPointExporter):
                yield TestPoint(f"{exporter.name} {signal}", exporter.entry_point().value, _loaded(exporter.make))


def _otlp(settings: OtlpSettings) -> Callable[[float], str]:
    def send(timeout: float) -> str:
        if settings.protocol == "grpc":
            from tachograph.exporters.otlp.grpc import GrpcSender as Sender
        else:
            from tachograph.exporters.otlp.http import HttpSender as Sender  # type: ignore[assignment]
        sender = Sender(settings)
        try:
            sender(_request(settings.signal), timeout)
        finally:
            sender.close()
        return ""

    return send


def _request(signal: Signal) -> bytes:
    from tachograph.exporters.otlp.values import scope_and_schema

    now = time.time_ns()
    host = socket.gethostname()
    resource = {"service.name": "tachograph doctor", "host.name": host}
    own, schema_url = scope_and_schema(OWN_GROUP)
    if signal == "logs":
        from tachograph.exporters.otlp.logs import log_requests

        event = LogEvent(NAME, now, now, {"host": host}, 1, 0, 0, 0, random_hex())
        ((request, _),) = log_requests([event], resource, lambda *_: None, lambda: None)
        return request.SerializeToString()
    if signal == "metrics":
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        metrics = ExportMetricsServiceRequest()
        scope = metrics.resource_metrics.add().scope_metrics.add(scope=own, schema_url=schema_url)
        scope.metrics.add(name=NAME).gauge.data_points.add(as_int=1, time_unix_nano=now)
        return metrics.SerializeToString()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    traces = ExportTraceServiceRequest()
    spans = traces.resource_spans.add().scope_spans.add(scope=own, schema_url=schema_url)
    ids = {"trace_id": bytes.fromhex(random_hex(16)), "span_id": bytes.fromhex(random_hex(8))}
    spans.spans.add(name=NAME, start_time_unix_nano=now, end_time_unix_nano=now + 1, **ids)
    return traces.SerializeToString()


def _influxdb(target: InfluxTarget) -> Callable[[float], str]:
    def send(timeout: float) -> str:
        from tachograph.exporters.influxdb.server import Server

        server = Server(target)
        server.connect()
        server.write(f"{_METRIC} ok=1i {time.time_ns()}".encode(), timeout)
        server.close()
        return "" if target.token else "without a token"

    return send


def _loaded(make: Callable[[], object]) -> Callable[[float], str]:
    def load(_: float) -> str:
        make()
        return "can be created; not tested whether its data arrives"

    return load


def _free(host: str, port: int) -> str:
    """Return which port the page would have, as the endpoint looks for one."""
    from tachograph.exporters.prometheus.endpoint import NEXT_PORTS

    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    for candidate in range(port, min(port + NEXT_PORTS, _LAST_PORT) + 1):
        try:
            with socket.create_server((str(address[0]), candidate), family=family):
                return "the port is free" if candidate == port else f"the port is in use, start() will use {candidate}"
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return "the port and those after it are in use, start() will use any free one"


def _writable(path: Path) -> str:
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable")
    return ""
