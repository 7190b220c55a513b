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
from tachograph.hub._request import (
    JSON,
    PROTOBUF,
    SENDER,
    Refusal,
    RequestLimits,
    decode,
    encode,
    too_large,
    unpack_gzip,
)
from tachograph.hub.hub import Hub
from tachograph.recording.journal import SCHEMA
from tachograph.recording.log import LogOnce
from tachograph.runs import StoreError

if TYPE_CHECKING:  # else each hub would load the libraries with which few of them send
    from tachograph.hub.forwarding import Forwarding

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

    So the event loop waits neither for a store that another process has locked nor for a large body. JSON, of which
    8 MiB take seconds to decode, has a thread of its own: one body at a time is decoded and stored, so that its memory
    is bounded, and two requests of one sender never overtake each other.

    Args:
        hub: stores them.
        forwarding: passes them on; None for no forwarding.
        limits: of bodies.

    Attributes:
        last: time of the latest request, in seconds (monotonic).
    """

    def __init__(self, hub: Hub, forwarding: Forwarding | None = None, limits: RequestLimits | None = None) -> None:
        self._receivers: dict[Signal, Callable[[Any], Rejected]] = {
            "metrics": hub.receive_metrics,
            "logs": hub.receive_logs,
            "traces": hub.receive_traces,
        }
        self._hub = hub
        self._forwarding = forwarding
        self._limits = limits or RequestLimits()
        self._bytes_left = self._limits.under_way
        self._log_once = LogOnce()
        self._storing = ThreadPoolExecutor(1, "tachograph store")
        self._decoding = ThreadPoolExecutor(1, "tachograph json")
        # A receiver behind this hub has not got the series that were left out.
        self._headers = {READS: str(SCHEMA), REPEAT: str(0 if forwarding is not None else hub.repeat)}
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
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip or identity")
        passes_on = self._forwarding is not None and self._forwarding.sender != request.headers.get(SENDER)
        is_json = media_type == JSON
        body = await self._read(request)
        try:
            storing = asyncio.get_running_loop().run_in_executor(
                self._decoding if is_json else self._storing,
                self._store_json if is_json else self._store_protobuf,
                kind,
                body,
                encoding.endswith("gzip"),
                passes_on,
            )
            rejected = await asyncio.shield(storing)
        finally:
            self._bytes_left += len(body)
        answer = kind.response()
        if rejected.items:
            success = answer.partial_success  # type: ignore[attr-defined]
            setattr(success, kind.rejected, rejected.items)
            success.error_message = rejected.why
        return Response(encode(answer, media_type), headers=self._headers, media_type=media_type)

    async def _read(self, request: Request) -> bytes:
        """Return a request's body, as it was sent; its bytes are under way until they are stored."""
        if int(request.headers.get("content-length", 0)) > self._limits.sent:
            raise too_large(self._limits.sent)
        chunks: list[bytes] = []
        size = 0
        is_complete = False
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for chunk in request.stream():
                    self._admit(chunk, size)
                    size += len(chunk)
                    chunks.append(chunk)
            is_complete = True
        except TimeoutError:
            why = f"the body took longer than {self._limits.seconds:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, why) from None
        finally:
            if not is_complete:
                self._bytes_left += size
        return b"".join(chunks)

    def _admit(self, chunk: bytes, size: int) -> None:
        """Count a chunk of a body as under way; ``size`` is the number of bytes before it."""
        if size + len(chunk) > self._limits.sent:
            raise too_large(self._limits.sent)
        if len(chunk) > self._bytes_left:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", retry_after=1)
        self._bytes_left -= len(chunk)

    def _store_protobuf(self, kind: _Kind, body: bytes, is_gzip: bool, passes_on: bool) -> Rejected:
        body = _unpacked(body, self._limits.protobuf, is_gzip=is_gzip)
        if kind.signal == "metrics" and not passes_on:
            return self._store(kind, self._hub.read_metrics(body))
        return self._store_message(kind, decode(body, PROTOBUF, kind.request), body, passes_on=passes_on)

    def _store_json(self, kind: _Kind, body: bytes, is_gzip: bool, passes_on: bool) -> Rejected:
        message = decode(_unpacked(body, self._limits.json, is_gzip=is_gzip), JSON, kind.request)
        return self._storing.submit(self._store_message, kind, message, None, passes_on=passes_on).result()

    def _store_message(self, kind: _Kind, message: Message, body: bytes | None, *, passes_on: bool) -> Rejected:
        """Store a request, and pass it on: ``body``, if it is given and the other receiver can read all of it."""
        rejected = self._store(kind, message)
        if passes_on and self._forwarding is not None:
            changed = self._forwarding.adapt(kind.signal, message)
            encoded = message.SerializeToString() if body is None or changed else body
            self._forwarding(kind.signal, encoded, message)
        return rejected

    def close(self) -> None:
        """Wait until all received requests are stored."""
        self._decoding.shutdown()
        self._storing.shutdown()

    def _store(self, kind: _Kind, message: Message | list[SentResource]) -> Rejected:
        try:
            return self._receivers[kind.signal](message)
        except Exception as error:  # the border to the store: a full disk must not end the hub
            self._hub.count("tachograph.hub.failed", 1, signal=kind.signal)
            warning = (
                "the hub cannot store a request (further warnings are suppressed; see "
                "tachograph_hub_failed_total on /metrics): %s"
            )
            self._log_once("store", warning, error, exc_info=not isinstance(error, StoreError))
            why = f"cannot store it: {type(error).__name__}"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, retry_after=_RETRY_AFTER) from error

    def _refused(self, kind: _Kind, media_type: str, refusal: Refusal) -> Response:
        self._hub.count("tachograph.hub.refused", 1, signal=kind.signal, status=str(refusal.status.value))
        spoken = PROTOBUF if media_type == PROTOBUF else JSON
        status = Status(code=_CODES[refusal.status], message=str(refusal))
        headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
        return Response(encode(status, spoken), refusal.status, headers, media_type=spoken)


def _unpacked(body: bytes, limit: int, *, is_gzip: bool) -> bytes:
    if is_gzip:
        return unpack_gzip(body, limit)
    if len(body) > limit:
        raise too_large(limit)
    return body
