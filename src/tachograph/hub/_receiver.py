"""The OTLP/HTTP receiver. Source: OpenTelemetry protocol specification, "OTLP/HTTP"."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tachograph.exporters.otlp.settings import READS, REPEAT, Signal
from tachograph.hub._layouts import SentResource
from tachograph.hub._rejections import Rejected
from tachograph.hub._request import JSON, JSON_LIMIT, LIMIT, PROTOBUF, SENDER, Decoder, Intake, Refusal, decode, encode
from tachograph.hub.hub import Hub
from tachograph.recording.journal import SCHEMA
from tachograph.recording.log import LogOnce
from tachograph.runs.store import StoreError

if TYPE_CHECKING:  # else each hub would load the libraries with which few of them send
    from tachograph.hub.forwarding import Forwarding

MOST_WAITING = 128 * 2**20  # bytes of bodies that wait to be stored
_RETRY_AFTER = 5  # seconds, after an error of ours

# google/rpc/code.proto
_CODES = {
    HTTPStatus.BAD_REQUEST: 3,
    HTTPStatus.REQUEST_TIMEOUT: 4,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: 8,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: 3,
    HTTPStatus.SERVICE_UNAVAILABLE: 14,
}


class _Kind(NamedTuple):
    """A signal: its path, its messages, and its partial success' name for rejected items."""

    signal: Signal
    request: type[Message]
    response: type[Message]
    rejected: str


_KINDS = (
    _Kind("metrics", ExportMetricsServiceRequest, ExportMetricsServiceResponse, "rejected_data_points"),
    _Kind("logs", ExportLogsServiceRequest, ExportLogsServiceResponse, "rejected_log_records"),
    _Kind("traces", ExportTraceServiceRequest, ExportTraceServiceResponse, "rejected_spans"),
)


class Receiver:
    """Hands requests to the hub, and accepted ones on to another receiver: in order, on a thread of its own.

    So the event loop waits neither for a store that another process has locked nor for a body of many small parts.

    Args:
        hub: stores them.
        forwarding: passes them on; None for no forwarding.
        intake: bounds of bodies.
        decoder: of bodies in JSON.

    Attributes:
        last: time of the latest request, in seconds (monotonic).
    """

    def __init__(
        self,
        hub: Hub,
        forwarding: Forwarding | None = None,
        *,
        intake: Intake | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self._keep: dict[Signal, Callable[[Any], Rejected]] = {
            "metrics": hub.receive_metrics,
            "logs": hub.receive_logs,
            "traces": hub.receive_traces,
        }
        self._hub = hub
        self._forwarding = forwarding
        self._intake = intake or Intake()
        self._decode = decoder or Decoder()
        self._log_once = LogOnce()
        self._keeper = ThreadPoolExecutor(1, "tachograph keep")
        self._left = MOST_WAITING
        # A receiver behind this hub has not got the series that were left out.
        self._said = {READS: str(SCHEMA), REPEAT: str(0 if forwarding is not None else hub.repeat)}
        self.last = time.monotonic()

    def routes(self) -> list[Route]:
        """Return the routes: one path for each signal."""
        return [Route(f"/v1/{kind.signal}", self._endpoint(kind), methods=["POST"]) for kind in _KINDS]

    def _endpoint(self, kind: _Kind) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            self.last = time.monotonic()
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            try:
                return await self._receive(kind, media_type, request)
            except Refusal as refusal:
                return self._refused(kind, media_type, refusal)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)

        return endpoint

    async def _receive(self, kind: _Kind, media_type: str, request: Request) -> Response:
        if media_type not in (PROTOBUF, JSON):
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {PROTOBUF} or {JSON}")
        body = await self._intake.read(request, JSON_LIMIT if media_type == JSON else LIMIT)
        if len(body) > self._left:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are waiting to be stored", retry_after=1)
        self._left -= len(body)
        try:
            found = body if media_type == PROTOBUF else await self._decode(body, media_type, kind.request)
            passes_on = self._forwarding is not None and self._forwarding.sender != request.headers.get(SENDER)
            keeping = asyncio.get_running_loop().run_in_executor(self._keeper, self._take, kind, found, passes_on)
            rejected = await asyncio.shield(keeping)
        except ValueError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        finally:
            self._left += len(body)
        answer = kind.response()
        if rejected.items:
            success = answer.partial_success  # type: ignore[attr-defined]
            setattr(success, kind.rejected, rejected.items)
            success.error_message = rejected.why
        return Response(encode(answer, media_type), headers=self._said, media_type=media_type)

    def _take(self, kind: _Kind, found: bytes | Message, passes_on: bool) -> Rejected:
        """Store a request, decoded first where it is bytes, and pass it on."""
        if kind.signal == "metrics" and isinstance(found, bytes) and not passes_on:
            read = self._hub.read_metrics(found)
            if read is not None:
                return self._kept(kind, read)
        message = decode(found, PROTOBUF, kind.request) if isinstance(found, bytes) else found
        rejected = self._kept(kind, message)
        if passes_on and self._forwarding is not None:
            changed = self._forwarding.adapt(kind.signal, message)
            body = found if isinstance(found, bytes) and not changed else message.SerializeToString()
            self._forwarding(kind.signal, body, message)
        return rejected

    def close(self) -> None:
        """Wait until all received requests are stored."""
        self._keeper.shutdown()

    def _kept(self, kind: _Kind, message: Message | list[SentResource]) -> Rejected:
        try:
            return self._keep[kind.signal](message)
        except Exception as error:  # the border to the store: a full disk must not end the hub
            self._hub.count("tachograph.hub.failed", 1, signal=kind.signal)
            warning = (
                "the hub cannot store a request (further warnings are suppressed; see "
                "tachograph_hub_failed_total on /metrics): %s"
            )
            self._log_once("keep", warning, error, exc_info=not isinstance(error, StoreError))
            why = f"cannot store it: {type(error).__name__}"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, retry_after=_RETRY_AFTER) from error

    def _refused(self, kind: _Kind, media_type: str, refusal: Refusal) -> Response:
        self._hub.count("tachograph.hub.refused", 1, signal=kind.signal, status=str(refusal.status.value))
        spoken = PROTOBUF if media_type == PROTOBUF else JSON
        status = Status(code=_CODES[refusal.status], message=str(refusal))
        headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
        return Response(encode(status, spoken), refusal.status, headers, media_type=spoken)
