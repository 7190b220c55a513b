"""OTLP over gRPC, against a receiver that behaves well or badly."""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.version import __version__ as exporter_version

from receivers import SECRET, Behaviour, batch, dropped, grpc_receiving, over_grpc, recorded, self_signed, send, values
from servers import free_port
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.recording.registry import Registry
from tachograph.version import __version__


@pytest.fixture
def registry() -> Registry:
    """Return a registry in which one value was recorded."""
    return recorded()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_grpc_carries_the_request_as_specified(registry: Registry, compression: Any) -> None:
    """A request is sent once, with the user's headers as metadata and a deadline."""
    seen: list[tuple[list[float], dict[str, Any], float]] = []

    def export(body: bytes, call: grpc.ServicerContext) -> bytes:
        seen.append((values(body), dict(call.invocation_metadata()), call.time_remaining()))
        return b""

    with grpc_receiving(export) as port:
        settings = over_grpc(port, headers=(("x-key", "k"),), compression=compression, timeout=5)
        assert send(settings, registry)
    ((found, metadata, left),) = seen
    assert found == [0.5]
    assert metadata["x-key"] == "k"
    assert 4 < left < 5.5  # gRPC sends the time left rounded up


def test_grpc_says_which_product_sends(registry: Registry) -> None:
    """The agent is Tachograph, the exporter for Python, both with versions, and gRPC; a user's own one comes first."""
    agents: list[str] = []

    def export(_body: bytes, call: grpc.ServicerContext) -> bytes:
        agents.append(str(dict(call.invocation_metadata())["user-agent"]))
        return b""

    with grpc_receiving(export) as port:
        assert send(over_grpc(port), registry)
        assert send(over_grpc(port, headers=(("user-agent", "mine/1"),)), registry)
    ours, mine = agents
    assert ours.startswith(f"Tachograph/{__version__} OTel-OTLP-Exporter-Python/{exporter_version} grpc-python/")
    assert mine.startswith("mine/1 grpc-python/")


def failing_once(code: grpc.StatusCode, details: bytes = b"", message: str = "busy") -> tuple[list[float], Behaviour]:
    """Return a behaviour that fails at first, and the times of its calls."""
    calls: list[float] = []

    def export(_body: bytes, call: grpc.ServicerContext) -> bytes:
        calls.append(time.monotonic())
        if len(calls) == 1:
            if details:
                call.set_trailing_metadata((("grpc-status-details-bin", details),))
            call.abort(code, message)
        return b""

    return calls, export


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "DATA_LOSS", "OUT_OF_RANGE", "CANCELLED"]
)
def test_grpc_tries_again_where_the_protocol_says_so(registry: Registry, code: str) -> None:
    """The codes that the protocol calls retryable are tried again."""
    calls, export = failing_once(grpc.StatusCode[code])
    with grpc_receiving(export) as port:
        assert send(over_grpc(port), registry)
    assert len(calls) == 2
    assert dropped(registry) == {}


def test_grpc_throttling_is_retried_only_with_a_delay(registry: Registry) -> None:
    """RESOURCE_EXHAUSTED is tried again, after the time it names, where it names one; else it is a refusal."""
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=Duration(nanos=700_000_000)))
    calls, export = failing_once(
        grpc.StatusCode.RESOURCE_EXHAUSTED, Status(code=8, details=[detail]).SerializeToString()
    )
    with grpc_receiving(export) as port:
        assert send(over_grpc(port), registry)
    assert calls[1] - calls[0] >= 0.7
    _, export = failing_once(grpc.StatusCode.RESOURCE_EXHAUSTED)
    with grpc_receiving(export) as port:
        assert not send(over_grpc(port), registry)
    assert dropped(registry) == {"rejected": 1}


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "UNAUTHENTICATED", "UNIMPLEMENTED", "INTERNAL"])
def test_grpc_refusals_are_counted(registry: Registry, code: str, caplog: pytest.LogCaptureFixture) -> None:
    """Any other code is a refusal: counted, and logged once without the user's secrets."""
    calls, export = failing_once(grpc.StatusCode[code], message=f"bad key {SECRET}")
    with grpc_receiving(export) as port:
        assert not send(over_grpc(port, headers=(("authorization", SECRET),)), registry)
    assert len(calls) == 1
    assert dropped(registry) == {"rejected": 1}
    assert code in caplog.text
    assert SECRET not in caplog.text


def test_grpc_reaches_a_receiver_that_starts_late(registry: Registry) -> None:
    """A collector that comes up after the first attempt still gets everything."""
    seen: list[bytes] = []

    def export(body: bytes, _call: grpc.ServicerContext) -> bytes:
        seen.append(body)
        return b""

    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        {"Export": grpc.unary_unary_rpc_method_handler(export)},
    )
    port = free_port()
    exporter = OtlpExporter({"metrics": over_grpc(port)}, registry)
    exporter(batch(registry))
    time.sleep(1)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    assert exporter.flush(10)
    exporter.close(1)
    server.stop(0).wait(5)
    assert [values(body) for body in seen] == [[0.5]]
    assert dropped(registry) == {}


def test_grpc_trusts_the_certificate_that_was_named(registry: Registry, tmp_path: Path) -> None:
    """With https the channel is encrypted and verified, client certificate included."""
    key, made = self_signed(tmp_path)
    pem, chain = key.read_bytes(), made.read_bytes()
    credentials = grpc.ssl_server_credentials([(pem, chain)], root_certificates=chain, require_client_auth=True)
    with grpc_receiving(lambda _body, _call: b"", credentials) as port:
        settings = OtlpSettings(
            signal="metrics",
            protocol="grpc",
            endpoint=f"https://127.0.0.1:{port}",
            certificate=str(made),
            client_key=str(key),
            client_certificate=str(made),
        )
        assert send(settings, registry)
        assert not send(replace(settings, client_key=None, client_certificate=None), registry, timeout=0.5)
