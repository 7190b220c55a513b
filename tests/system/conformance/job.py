"""The process that records: ``python job.py WAY [ROW]``, in an empty folder; without a row, all that end in an exit.

``CONFORMANCE_ADDRESS`` is where its OTLP goes. Where things are fetched, it prints one line with the address of its
page, and goes on when a line comes in.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import tachograph
from kept import EMITTED, Keeping, folder, keep_event
from table import by_name, shared
from ways import WayName

SETTLE = 0.6  # seconds until the windows of the rows have closed, and one more after them has


def page() -> Callable[[], None]:
    """Serve Tachograph's page and wait until it has been fetched."""
    pipeline = tachograph.start(metrics="prometheus", traces="none", logs="none", prometheus_port=0)
    return lambda: announce(pipeline.metrics_url)


def announce(line: object) -> None:
    """Print a line and wait for one on stdin."""
    print(line, flush=True)  # noqa: T201 - the test reads it
    sys.stdin.readline()


def otlp(protocol: str) -> Callable[[], Callable[[], None]]:
    """Return a function that starts Tachograph's OTLP export; the last export is the one at process exit."""

    def begin() -> Callable[[], None]:
        address = os.environ["CONFORMANCE_ADDRESS"]
        tachograph.start(
            metrics="otlp", traces="none", logs="otlp", endpoint=address, protocol=protocol, compression="none"
        )
        return lambda: None

    return begin


def provider() -> Callable[[], None]:
    """Set up OpenTelemetry as in its documentation, and start Tachograph as well."""
    alone()
    tachograph.start()
    return lambda: None


def alone() -> Callable[[], None]:
    """Set up OpenTelemetry as in its documentation, with exporters that write to files."""
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader

    class Metrics(MetricExporter):
        def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
            write("metrics", encode_metrics(metrics_data).SerializeToString())
            return MetricExportResult.SUCCESS

        def force_flush(self, *_: Any, **__: Any) -> bool:
            return True

        def shutdown(self, *_: Any, **__: Any) -> None:
            pass

    class Logs(LogRecordExporter):
        def export(self, batch: Any) -> LogRecordExportResult:
            write("logs", encode_logs(batch).SerializeToString())
            return LogRecordExportResult.SUCCESS

        def force_flush(self, *_: Any, **__: Any) -> bool:
            return True

        def shutdown(self) -> None:
            pass

    set_meter_provider(MeterProvider([PeriodicExportingMetricReader(Metrics())]))
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(Logs()))
    set_logger_provider(logs)
    return lambda: None


def write(signal_name: str, body: bytes) -> None:
    """Write an encoded request to a separate file."""
    (folder() / f"{signal_name}-{time.time_ns()}.pb").write_bytes(body)


def registry() -> Callable[[], None]:
    """Register Tachograph's collector with the program's own registry, and write its page."""
    from prometheus_client import CollectorRegistry, generate_latest

    theirs = CollectorRegistry()
    theirs.register(tachograph.otel.PrometheusCollector())
    return lambda: void((folder() / "page.txt").write_bytes(generate_latest(theirs)))


def void(_: object) -> None:
    """Set up nothing."""


def exporter() -> Callable[[], None]:
    """Pass all collected metrics to a handler."""
    tachograph.start(metrics=[tachograph.otel.HandlerExporter(Keeping(EMITTED))], traces="none", logs="none")
    return lambda: None


def handler() -> Callable[[], None]:
    """Configure a torchelastic handler and register a torch.monitor handler."""
    tachograph.configure(Keeping())
    tachograph.monitor.register_event_handler(keep_event)
    return lambda: None


BEGIN: Mapping[WayName, Callable[[], Callable[[], None]]] = {
    "page": page,
    "http": otlp("http/protobuf"),
    "grpc": otlp("grpc"),
    "hub": otlp("http/protobuf"),
    "provider": provider,
    "alone": alone,
    "registry": registry,
    "exporter": exporter,
    "handler": handler,
}


def main(way: WayName, name: str = "") -> None:
    """Run the programs of the rows, and end the process as they specify."""
    finish = BEGIN[way]()
    if name:
        row = by_name(name)
        row.record()
        if row.ends == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        return
    for row in shared():
        row.record()
    time.sleep(SETTLE)
    finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
