"""Receivers of OTLP on free loopback ports, that behave as a test wants, and what to send them."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.recording.registry import Registry

SECRET = "s3cr3t-t0k3n"  # noqa: S105 - it is what must not be found in the log


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers with what the server's ``answers`` say, one a request, and 200 after that."""

    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        """Take a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay)
        self.server.requests.append((self.path, dict(self.headers), body))
        status, headers, answer = self.server.answers.pop(0) if self.server.answers else (200, {}, b"")
        self.send_response(status)
        for name, value in {"Content-Length": str(len(answer)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Receiver(http.server.ThreadingHTTPServer):
    """An HTTP server on a free loopback port that keeps what it was sent."""

    daemon_threads = True
    delay = 0.0  # seconds before each answer

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1/metrics"


@contextmanager
def receiving(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Receiver]:
    """Run a receiver."""
    with Receiver(*answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[int]:
    """Accept connections and never answer; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


Behaviour = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def grpc_receiving(behaviour: Behaviour, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """Run a gRPC server with the metrics service; yields its port."""
    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        {"Export": grpc.unary_unary_rpc_method_handler(behaviour)},
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait(5)


def over_grpc(port: int, **more: Any) -> OtlpSettings:
    """Return settings for metrics over gRPC."""
    return OtlpSettings(signal="metrics", protocol="grpc", endpoint=f"http://127.0.0.1:{port}", **more)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return a key and a certificate for 127.0.0.1 that vouches for itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT TESTED: openssl was not found, so there is no certificate to test TLS with")
    key, made = folder / "key.pem", folder / "certificate.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made]  # type: ignore[list-item]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key, made


def recorded() -> Registry:
    """Return a registry in which one value was recorded."""
    made = Registry()
    made.group("g").instrument("loss").record(0.5)
    return made


def over_http(url: str, **more: Any) -> OtlpSettings:
    """Return settings for metrics over HTTP."""
    return OtlpSettings(signal="metrics", protocol="http/protobuf", endpoint=url, **more)


def batch(registry: Registry) -> Batch:
    """Return a batch of what was recorded by now, losses and durations apart."""
    return Batch([metric for metric in registry.collect() if metric.scope == "g"], None, [], {}, time.time_ns())


def send(settings: OtlpSettings, registry: Registry, *, timeout: float = 10) -> bool:
    """Send one batch, close, and tell whether it arrived."""
    exporter = OtlpExporter({settings.signal: settings}, registry)
    exporter(batch(registry))
    arrived = exporter.flush(timeout)
    exporter.close(1)
    return arrived


def dropped(registry: Registry) -> dict[str, float]:
    """Return what was dropped, by reason."""
    return {
        str(dict(point.attributes)["reason"]): point.value  # type: ignore[union-attr]
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
    }


def values(body: bytes) -> list[float]:
    """Return the gauges' values in an encoded request."""
    request = ExportMetricsServiceRequest.FromString(body)
    return [
        point.as_double
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    ]
