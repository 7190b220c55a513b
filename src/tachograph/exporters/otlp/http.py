"""OTLP over HTTP, and its answers.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response", "OTLP/HTTP Throttling" and "Partial Success".
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.version import __version__ as exporter_version
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter

from tachograph.exporters._http import TimeLimit, goes_direct, gzipped, limited_pools, no_proxies, root
from tachograph.exporters.delivery import Retry
from tachograph.exporters.otlp.settings import READS, OtlpSettings, Signal
from tachograph.version import __version__

_RETRYABLE = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_DIGITS = 4
_LONGEST_ANSWER = 2**20
_LONGEST_REASON = 300
# OpenTelemetry specification, "OpenTelemetry Protocol Exporter", "User Agent": a distribution's product comes first.
USER_AGENT = f"Tachograph/{__version__} OTel-OTLP-Exporter-Python/{exporter_version}"


class Refused(Exception):  # noqa: N818 - the receiver's word, not a fault of the program
    """The receiver will never take this request."""


class _Adapter(HTTPAdapter):
    """Connections that keep to a time limit for all of an exchange."""

    def __init__(self, limit: TimeLimit) -> None:
        self._pools = limited_pools(limit)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        super().init_poolmanager(*arguments, **more)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **more)
        if not proxy.lower().startswith("socks"):  # that one has connections of its own
            manager.pool_classes_by_scheme = self._pools
        return manager


class HttpSender:
    """Posts encoded requests to one URL; used by one thread.

    Attributes:
        reads: the newest schema of ours that the receiver reads, by its last answer: 0 where it is no hub of ours, None
            before the first.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self.reads: int | None = None
        self._settings = settings
        self._host = urlsplit(settings.endpoint).netloc.rpartition("@")[2]
        self._limit = TimeLimit()
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Adapter(self._limit))
        self._proxies: Any = no_proxies(settings.endpoint) if goes_direct(settings.endpoint) else None
        if "@" not in urlsplit(settings.endpoint).netloc:
            self._session.auth = _as_it_is  # else requests puts what ~/.netrc holds over the Authorization header
        self._headers = {
            "user-agent": USER_AGENT,
            **dict(settings.headers),  # a user's own agent replaces ours: their names are in lower case
            "Content-Type": "application/x-protobuf",
        }
        if settings.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"

    def __call__(self, body: bytes, timeout: float) -> bytes:
        """Post a request and return the answer's body.

        Args:
            body: the encoded request.
            timeout: seconds that all of it may take, besides what the settings say.

        Raises:
            Retry: it may succeed later.
            Refused: it never will.
        """
        settings = self._settings
        seconds = min(timeout, settings.timeout)
        if settings.compression == "gzip":
            body = gzipped(body)
        certificate = settings.client_certificate
        self._limit.begin(seconds)
        try:
            with self._session.post(
                settings.endpoint,
                data=body,
                headers=self._headers,
                timeout=(seconds, seconds),
                verify=settings.certificate or True,
                cert=(certificate, settings.client_key) if certificate and settings.client_key else certificate,
                proxies=self._proxies,
                allow_redirects=False,  # a redirect would carry the headers to another host
                stream=True,
            ) as response:
                answer = _body(response)
        except (requests.ConnectionError, requests.Timeout, OSError) as error:
            raise Retry(None, f"{self._host}: {_said_by(error)}", uncertain=_may_have_arrived(error)) from None
        if response.status_code in _RETRYABLE:
            raise Retry(
                _retry_after(response.headers.get("Retry-After")),
                self._said(response, answer),
                uncertain=response.status_code == HTTPStatus.GATEWAY_TIMEOUT,
            )
        if not response.ok or response.is_redirect:
            raise Refused(self._said(response, answer))
        said = response.headers.get(READS, "")
        self.reads = int(said) if said.isdecimal() and len(said) <= _DIGITS else 0
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _said(self, response: requests.Response, answer: bytes) -> str:
        reason = answer.decode("utf-8", "replace")
        if "protobuf" in response.headers.get("Content-Type", ""):
            try:
                reason = Status.FromString(answer).message
            except DecodeError:
                reason = ""
        reason = self._settings.without_secrets(reason)
        return f"{self._host} answered {response.status_code} {response.reason}: {reason[:_LONGEST_REASON].strip()}"


def _body(response: requests.Response) -> bytes:
    """Return a receiver's answer, as far as it can be read, nothing where it cannot: its status says the rest."""
    found = b""
    read = getattr(response.raw, "read1", response.raw.read)  # urllib3 has it since 2.0
    try:
        while len(found) < _LONGEST_ANSWER and (part := read(_LONGEST_ANSWER, decode_content=True)):
            found += part
    except (urllib3.exceptions.HTTPError, OSError):
        return b""
    return bytes(found)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _said_by(error: BaseException) -> str:
    found = root(error)
    return f"{type(found).__name__}: {found}" if isinstance(found, OSError) else type(found).__name__


def _may_have_arrived(error: BaseException) -> bool:
    """Tell whether the receiver may have the request: not where no connection came about."""
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.SSLError | requests.exceptions.ProxyError):
        return False
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return not isinstance(reason, urllib3.exceptions.NewConnectionError)


def _retry_after(header: str | None) -> float | None:
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def partial_success(signal: Signal, answer: bytes) -> tuple[int, str]:
    """Return how many items of a request the receiver rejected, and why; none where it answers something of its own.

    Args:
        signal: of the request.
        answer: the body of an answer that says success.
    """
    try:
        if signal == "metrics":
            metrics = ExportMetricsServiceResponse.FromString(answer).partial_success
            return max(metrics.rejected_data_points, 0), metrics.error_message
        if signal == "logs":
            logs = ExportLogsServiceResponse.FromString(answer).partial_success
            return max(logs.rejected_log_records, 0), logs.error_message
        spans = ExportTraceServiceResponse.FromString(answer).partial_success
        return max(spans.rejected_spans, 0), spans.error_message
    except DecodeError:
        return 0, ""
