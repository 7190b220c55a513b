"""OTLP over HTTP. Source: OpenTelemetry protocol specification, "OTLP/HTTP Response" and "OTLP/HTTP Throttling"."""

from __future__ import annotations

import time
import zlib
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.version import __version__ as exporter_version

from tachograph.exporters._proxies import goes_direct, no_proxies
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.exporters.outbox import Retry
from tachograph.version import __version__

_RETRYABLE = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_LONGEST_ANSWER = 2**20
_LONGEST_REASON = 300
# OpenTelemetry specification, "OpenTelemetry Protocol Exporter", "User Agent": a distribution's product comes first.
USER_AGENT = f"Tachograph/{__version__} OTel-OTLP-Exporter-Python/{exporter_version}"


class Refused(Exception):  # noqa: N818 - the receiver's word, not a fault of the program
    """The receiver will never take this request."""


class HttpSender:
    """Posts encoded requests to one URL; used by one thread."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._host = urlsplit(settings.endpoint).netloc.rpartition("@")[2]
        self._session = requests.Session()
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
            timeout: seconds that it may take, besides what the settings say.

        Raises:
            Retry: it may succeed later.
            Refused: it never will.
        """
        settings = self._settings
        seconds = min(timeout, settings.timeout)
        if settings.compression == "gzip":
            body = _gzip(body)
        certificate = settings.client_certificate
        until = time.monotonic() + seconds
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
                answer = _body(response, until)
        except (requests.ConnectionError, requests.Timeout, OSError) as error:
            raise Retry(None, f"{self._host}: {_root(error)}") from None
        if response.status_code in _RETRYABLE:
            raise Retry(_retry_after(response.headers.get("Retry-After")), self._said(response, answer))
        if not response.ok or response.is_redirect:
            raise Refused(self._said(response, answer))
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


def _body(response: requests.Response, until: float) -> bytes:
    """Return what a receiver answers, as far as it can be read until then, nothing where it cannot be read.

    Whether it took the request, its status says. A time-out is one between two bytes: an answer that goes on for ever
    would hold up every further request.
    """
    found = b""
    read = getattr(response.raw, "read1", response.raw.read)  # urllib3 has it since 2.0
    try:
        while len(found) < _LONGEST_ANSWER and (part := read(_LONGEST_ANSWER, decode_content=True)):
            found += part
            if time.monotonic() > until:
                break
    except (urllib3.exceptions.HTTPError, OSError):
        return b""
    return bytes(found)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _gzip(body: bytes) -> bytes:
    # Unlike gzip.compress of CPython 3.10, this lets other threads run meanwhile.
    compressor = zlib.compressobj(level=1, wbits=31)
    return compressor.compress(body) + compressor.flush()


def _root(error: BaseException) -> str:
    """Return the innermost reason: the outer ones repeat the URL, which may hold a secret."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


def _retry_after(header: str | None) -> float | None:
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
