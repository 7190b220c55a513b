"""OTLP over gRPC. Source: OpenTelemetry protocol specification, "OTLP/gRPC Response" and "OTLP/gRPC Throttling"."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tachograph.exporters._http import goes_direct
from tachograph.exporters.delivery import Retry
from tachograph.exporters.otlp.http import USER_AGENT, Refused
from tachograph.exporters.otlp.settings import OtlpSettings, Signal

_SERVICES: dict[Signal, str] = {
    "metrics": "metrics.v1.MetricsService",
    "traces": "trace.v1.TraceService",
    "logs": "logs.v1.LogsService",
}
_RETRYABLE = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    # Attempts are paced by the queue; gRPC's own back-off grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcSender:
    """Sends encoded requests to one server; used by one thread.

    The channel is made by the first request, in the process that sends it.
    """

    reads: int | None = 0  # our own hub has no gRPC
    repeat = 0
    connected: int | None = None

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._channel: grpc.Channel | None = None

    def __call__(self, body: bytes, timeout: float) -> bytes:
        """Send a request and return the answer's bytes.

        Args:
            body: the encoded request.
            timeout: seconds that it may take, besides what the settings say.

        Raises:
            Retry: it may succeed later.
            Refused: it never will.
        """
        settings = self._settings
        if self._channel is None:
            self._channel = _open(settings)
        path = f"/opentelemetry.proto.collector.{_SERVICES[settings.signal]}/Export"
        try:
            answer: bytes = self._channel.unary_unary(path, None, None)(
                body, timeout=min(timeout, settings.timeout), metadata=settings.headers
            )
        except grpc.RpcError as error:
            raise _reason(error, settings) from None
        return answer

    def close(self) -> None:
        """Close the channel; a request that is on its way ends at once."""
        if self._channel is not None:
            self._channel.close()


def _open(settings: OtlpSettings) -> grpc.Channel:
    url = urlsplit(settings.endpoint)
    target = url.netloc or settings.endpoint
    # Metadata cannot say the agent: gRPC puts its own there, behind this one.
    agent = dict(settings.headers).get("user-agent", USER_AGENT)
    proxied = int(not goes_direct(settings.endpoint))
    options = (*_OPTIONS, ("grpc.enable_http_proxy", proxied), ("grpc.primary_user_agent", agent))
    compression = grpc.Compression.Gzip if settings.compression == "gzip" else grpc.Compression.NoCompression
    if url.scheme == "http" or (url.scheme != "https" and settings.insecure):
        return grpc.insecure_channel(target, options=options, compression=compression)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(settings.certificate),
        private_key=_read(settings.client_key),
        certificate_chain=_read(settings.client_certificate),
    )
    return grpc.secure_channel(target, credentials, options=options, compression=compression)


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _reason(error: grpc.RpcError, settings: OtlpSettings) -> Exception:
    said = settings.without_secrets(f"{error.code().name}: {error.details() or ''}")
    after = _retry_delay(error)
    exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None
    if not exhausted and error.code() not in _RETRYABLE:
        return Refused(said)
    is_unsent = error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "").lower()
    return Retry(after, said, uncertain=not exhausted and not is_unsent and after is None)


def _retry_delay(error: grpc.RpcError) -> float | None:
    details = [item.value for item in error.trailing_metadata() or () if item.key == "grpc-status-details-bin"]
    if not details:
        return None
    info = RetryInfo()
    try:
        for detail in Status.FromString(details[0]).details:
            if detail.Unpack(info):
                return float(info.retry_delay.seconds) + float(info.retry_delay.nanos) / 1e9
    except DecodeError:
        pass
    return None
