"""OTLP over HTTP, and its answers.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response", "OTLP/HTTP Throttling" and "Partial Success".
"""

from __future__ import annotations

import contextlib
import http.client
import re
import select
import socket
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.version import __version__ as exporter_version
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tachograph.exporters._http import (
    LimitedResponse,
    TimeLimit,
    goes_direct,
    gzipped,
    limited_pools,
    no_proxies,
    root,
)
from tachograph.exporters.delivery import Retry
from tachograph.exporters.otlp.settings import READS, REPEAT, OtlpSettings, Signal
from tachograph.version import __version__

_RETRYABLE = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_REDIRECTS = {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
}
_REFUSES = int(HTTPStatus.BAD_REQUEST)
_DIGITS, _LENGTH_DIGITS = 4, 5
_STATUS = re.compile("[2-5][0-9][0-9]( |$)")
_NOT_PLAIN = {"transfer-encoding", "content-encoding", "connection", "trailer"}
_LONGEST_HEAD, _AT_ONCE = 2**15, 2**16
_LONGEST_ANSWER = 2**20
_LONGEST_REASON = 300
# OpenTelemetry specification, "OpenTelemetry Protocol Exporter", "User Agent": a distribution's product comes first.
USER_AGENT = f"Tachograph/{__version__} OTel-OTLP-Exporter-Python/{exporter_version}"


class Refused(Exception):  # noqa: N818 - the receiver's word, not a fault of the program
    """The receiver will never take this request."""


class _Answer(NamedTuple):
    """A receiver's answer; of the body as far as it can be read, nothing where it cannot: its status says the rest.

    Its headers are by their names in lower case.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class _Head(http.client.HTTPConnection):
    """The head of a request as ``http.client`` writes it, and checks it."""

    def __init__(self, host: str | None, port: int, path: str, headers: Mapping[str, str]) -> None:
        super().__init__(host or "", port)
        self.written = b""
        self.putrequest("POST", path)
        for name, value in headers.items():
            self.putheader(name, value)
        self.endheaders()

    def send(self, data: Any) -> None:
        self.written = data.removesuffix(b"\r\n")


def _plain_answer(received: bytes) -> tuple[_Answer | None, bool]:
    """Return the answer, None where it is not whole yet, and whether it is a plain one, of known length and final.

    Any other is for ``http.client``, whose parser takes four times as long.
    """
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return None, len(received) < _LONGEST_HEAD
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = headers.get("content-length", "")
    is_plain = (
        version == "HTTP/1.1"
        and _STATUS.match(status) is not None
        and length.isdecimal()
        and len(length) <= _LENGTH_DIGITS
        and len(headers) == len(lines)
        and _NOT_PLAIN.isdisjoint(headers)
    )
    if not is_plain or len(body) > int(length):
        return None, False
    return _Answer(int(status[:3]), status[4:], headers, body) if len(body) == int(length) else None, True


class _Direct:
    """Posts over plain HTTP and without a proxy, by one connection that is kept; used by one thread.

    That takes a tenth of the time that ``requests`` needs, which matters where a post a second is all that happens.

    Attributes:
        connected: how many connections it has made.
    """

    def __init__(self, url: SplitResult) -> None:
        self.connected = 0
        self._where = url.netloc.rpartition("@")[2]
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._host, self._port = url.hostname, url.port or 80
        self._limit = TimeLimit()
        self._connection = http.client.HTTPConnection(self._host or "", self._port)
        self._head: tuple[Mapping[str, str], bytes] | None = None
        self._is_busy = self._is_closed = False

    def __call__(self, body: bytes, headers: Mapping[str, str], seconds: float) -> _Answer:
        """Post, within so many seconds.

        Raises:
            Retry: no answer came.
        """
        connection, is_sent, keep = self._connection, False, False
        self._is_busy = True
        self._limit.begin(seconds)
        try:
            if connection.sock is not None and _is_readable(connection.sock):  # the receiver has closed it meanwhile
                connection.close()
            if connection.sock is None:
                connection.timeout = self._limit.left()
                connection.connect()
                self.connected += 1
            head, sock = self._headed(headers), connection.sock
            is_sent = True
            sock.settimeout(self._limit.left())  # for all of it: socket.sendall
            sock.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
            answer, keep = self._answer(sock)
        except (http.client.HTTPException, OSError) as error:
            is_gone = not isinstance(error, TimeoutError)
            raise Retry(None, f"{self._where}: {_said_by(error)}", uncertain=is_sent, is_gone=is_gone) from None
        else:
            return answer
        finally:
            if not keep or self._is_closed:
                connection.close()
            self._is_busy = False

    def _headed(self, headers: Mapping[str, str]) -> bytes:
        if self._head is None or self._head[0] is not headers:
            self._head = headers, _Head(self._host, self._port, self._path, headers).written
        return self._head[1]

    def _answer(self, sock: socket.socket) -> tuple[_Answer, bool]:
        """Return the answer, and whether the connection goes on after it."""
        received, is_plain = b"", True
        while is_plain:
            sock.settimeout(self._limit.left())
            more = sock.recv(_AT_ONCE)
            received += more
            answer, is_plain = _plain_answer(received)
            if answer is not None:
                return answer, True
            is_plain = is_plain and bool(more)
        with contextlib.closing(LimitedResponse(sock, limit=self._limit, received=received, method="POST")) as response:
            response.begin()
            body = self._body(response)
            # An answer that is not whole would be taken for the next one.
            goes_on = response.isclosed() and not response.will_close
        return _Answer(response.status, response.reason, _lower(response.headers), body), goes_on

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        try:
            found = response.read(_LONGEST_ANSWER)
        except (http.client.HTTPException, OSError):
            return b""
        return found if response.headers.get("Content-Encoding", "identity") == "identity" else b""

    def close(self) -> None:
        """Close the connection; one that a thread still uses is closed by that."""
        self._is_closed = True
        if not self._is_busy:
            self._connection.close()


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class _Session:
    """Posts by ``requests``, which knows TLS, proxies and credentials; used by one thread."""

    def __init__(self, settings: OtlpSettings) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        limit = TimeLimit()
        pools = limited_pools(limit)

        class Adapter(HTTPAdapter):
            """Connections that keep to a time limit for all of an exchange."""

            def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
                super().init_poolmanager(*arguments, **more)
                self.poolmanager.pool_classes_by_scheme = pools

            def proxy_manager_for(self, proxy: Any, **more: Any) -> Any:
                manager = super().proxy_manager_for(proxy, **more)
                if not proxy.lower().startswith("socks"):  # that one has connections of its own
                    manager.pool_classes_by_scheme = pools
                return manager

        self._settings, self._limit = settings, limit
        self._where = urlsplit(settings.endpoint).netloc.rpartition("@")[2]
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, Adapter())
        self._proxies: Any = no_proxies(settings.endpoint) if goes_direct(settings.endpoint) else None
        if "@" not in urlsplit(settings.endpoint).netloc:
            self._session.auth = _as_it_is  # else requests puts what ~/.netrc holds over the Authorization header

    def __call__(self, body: bytes, headers: Mapping[str, str], seconds: float) -> _Answer:
        """Post, within so many seconds.

        Raises:
            Retry: no answer came.
        """
        import requests

        settings = self._settings
        certificate = settings.client_certificate
        self._limit.begin(seconds)
        try:
            with self._session.post(
                settings.endpoint,
                data=body,
                headers=headers,
                timeout=(seconds, seconds),
                verify=settings.certificate or True,
                cert=(certificate, settings.client_key) if certificate and settings.client_key else certificate,
                proxies=self._proxies,
                allow_redirects=False,  # a redirect would carry the headers to another host
                stream=True,
            ) as response:
                return _Answer(response.status_code, response.reason, _lower(response.headers), self._body(response))
        except (requests.ConnectionError, requests.Timeout, OSError) as error:
            raise Retry(None, f"{self._where}: {_said_by(error)}", uncertain=self._may_have_arrived(error)) from None

    def _body(self, response: Any) -> bytes:
        import urllib3

        found = b""
        read = getattr(response.raw, "read1", response.raw.read)  # urllib3 has it since 2.0
        try:
            while len(found) < _LONGEST_ANSWER and (part := read(_LONGEST_ANSWER, decode_content=True)):
                found += part
        except (urllib3.exceptions.HTTPError, OSError):
            return b""
        return bytes(found)

    def _may_have_arrived(self, error: BaseException) -> bool:
        """Tell whether the receiver may have the request: not where no connection came about."""
        import requests
        import urllib3

        if isinstance(error, requests.ConnectTimeout | requests.exceptions.SSLError | requests.exceptions.ProxyError):
            return False
        reason = getattr(error.args[0], "reason", None) if error.args else None
        return not isinstance(reason, urllib3.exceptions.NewConnectionError)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


class HttpSender:
    """Posts encoded requests to one URL; used by one thread.

    Attributes:
        reads: the newest schema of ours that the receiver reads, by its last answer: 0 where it is no hub of ours, None
            before the first.
        repeat: seconds after which a series that has not changed is to be sent again, by its last answer; 0 where all
            of them are to be sent each time.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self.reads: int | None = None
        self.repeat = 0
        self._settings = settings
        url = urlsplit(settings.endpoint)
        self._host = url.netloc.rpartition("@")[2]
        is_plain = url.scheme == "http" and "@" not in url.netloc and goes_direct(settings.endpoint)
        self._post: _Direct | _Session = _Direct(url) if is_plain else _Session(settings)
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
        if self._settings.compression == "gzip":
            body = gzipped(body)
        answer = self._post(body, self._headers, min(timeout, self._settings.timeout))
        if answer.status in _RETRYABLE:
            raise Retry(
                _retry_after(answer.headers.get("retry-after", "")),
                self._said(answer),
                uncertain=answer.status == HTTPStatus.GATEWAY_TIMEOUT,
            )
        if answer.status >= _REFUSES or (answer.status in _REDIRECTS and "location" in answer.headers):
            raise Refused(self._said(answer))
        self.reads, self.repeat = _number(answer.headers.get(READS, "")), _number(answer.headers.get(REPEAT, ""))
        return answer.body

    @property
    def connected(self) -> int | None:
        """How many connections were made so far; None where that is not known."""
        return self._post.connected if isinstance(self._post, _Direct) else None

    def close(self) -> None:
        """Close the connections."""
        self._post.close()

    def _said(self, answer: _Answer) -> str:
        reason = answer.body.decode("utf-8", "replace")
        if "protobuf" in answer.headers.get("content-type", ""):
            try:
                reason = Status.FromString(answer.body).message
            except DecodeError:
                reason = ""
        reason = self._settings.without_secrets(reason)
        return f"{self._host} answered {answer.status} {answer.reason}: {reason[:_LONGEST_REASON].strip()}"


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _number(header: str) -> int:
    return int(header) if header.isdecimal() and len(header) <= _DIGITS else 0


def _as_it_is(request: Any) -> Any:
    return request


def _said_by(error: BaseException) -> str:
    found = root(error)
    return f"{type(found).__name__}: {found}" if isinstance(found, OSError) else type(found).__name__


def _retry_after(header: str) -> float | None:
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
    if not answer:
        return 0, ""
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
