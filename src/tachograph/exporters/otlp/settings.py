"""Destination and form of one signal as OTLP: OpenTelemetry specification, "OpenTelemetry Protocol Exporter"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from tachograph.identity.environment import Setting, pairs, setting, system_text
from tachograph.recording.log import log

Signal = Literal["metrics", "traces", "logs"]
SIGNALS: tuple[Signal, ...] = ("metrics", "traces", "logs")
Protocol = Literal["http/protobuf", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
Compression = Literal["none", "gzip"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip")
Temporality = Literal["cumulative", "delta", "lowmemory"]
TEMPORALITIES: tuple[Temporality, ...] = ("cumulative", "delta", "lowmemory")
Aggregation = Literal["explicit_bucket_histogram", "base2_exponential_bucket_histogram"]
AGGREGATIONS: tuple[Aggregation, ...] = ("explicit_bucket_histogram", "base2_exponential_bucket_histogram")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TIMEOUT = 10.0
NO_TIMEOUT = 86400.0
READS = "tachograph-reads"  # header of our own hub's answers: the newest schema of records that it reads
REPEAT = "tachograph-repeat"  # another one: seconds for which it keeps a series that has not changed and is not sent

_DEFAULT_PORT = {"http/protobuf": 4318, "grpc": 4317}
# RFC 9110, "Tokens"; of values, what both HTTP and gRPC metadata carry as it is.
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Settings of one signal, already read.

    Args:
        signal: which is sent.
        protocol: how it is sent.
        endpoint: a URL with ``http`` or ``https``: over HTTP the complete one to post to; over gRPC its host and
            port count.
        headers: names (in lower case) and values, sent with each request. They may hold secrets: no ``repr`` has them.
        timeout: seconds that one request may take.
        compression: of the request's body.
        certificate: path of a PEM file with the authorities that vouch for the server; else the system's.
        client_key: path of a PEM file with the client's private key, for mutual TLS.
        client_certificate: path of a PEM file with the client's certificate chain, for mutual TLS.
        insecure: no TLS; always so where the endpoint's scheme is ``http``, never where it is ``https``.
        temporality: of metrics; ``lowmemory`` is delta for synchronous counters and histograms.
        aggregation: of histograms.
    """

    signal: Signal
    protocol: Protocol
    endpoint: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = TIMEOUT
    compression: Compression = "none"
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None
    insecure: bool = False
    temporality: Temporality = "cumulative"
    aggregation: Aggregation = "explicit_bucket_histogram"

    def without_secrets(self, said: str) -> str:
        """Return a receiver's message, for the log: it may repeat the headers that it was sent."""
        for _, secret in self.headers:
            said = said.replace(secret, "…") if secret else said
        return said


def endpoint_variables(signal: Signal) -> tuple[str, str]:
    """Return the variables that say where a signal goes: its own, which wins, and the general one."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", ENDPOINT


def read_otlp_settings(
    signal: Signal,
    environ: Mapping[str, str],
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    compression: str | None = None,
) -> OtlpSettings:
    """Return the settings of one signal: arguments win over the signal's own variables, these over the general ones.

    Args:
        signal: which is sent.
        environ: environment variables.
        endpoint: as OTEL_EXPORTER_OTLP_ENDPOINT: over HTTP ``/v1/<signal>`` is appended to it.
        protocol: ``http/protobuf`` or ``grpc``.
        headers: names and values.
        timeout: seconds, above 0. The variables give milliseconds, and 0 there means no limit: a day.
        compression: ``gzip`` or ``none``.

    Raises:
        ValueError: a wrong value; the message names where it was given, and what is allowed.
        TypeError: an argument of a wrong type.
    """

    def find(name: str, keyword: str = "", value: object = None) -> Setting | None:
        own, general = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"
        return setting(environ, keyword, value, own, general)

    chosen = find("PROTOCOL", "protocol", protocol)
    how = chosen.choice(PROTOCOLS) if chosen else PROTOCOLS[0]
    where = find("ENDPOINT", "endpoint", endpoint) or Setting(ENDPOINT, f"http://localhost:{_DEFAULT_PORT[how]}")
    url = _endpoint(where, signal, how, insecure=_flag(find("INSECURE")))
    sent = find("HEADERS", "headers", headers)
    limit = find("TIMEOUT", "timeout", timeout)
    squeezed = find("COMPRESSION", "compression", compression)
    key, certificate = find("CLIENT_KEY"), find("CLIENT_CERTIFICATE")
    if key and not certificate:
        raise key.wrong("a client key needs a certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")
    preferred = setting(environ, "", None, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
    return OtlpSettings(
        signal=signal,
        protocol=how,
        endpoint=url,
        headers=_headers(sent) if sent else (),
        timeout=_timeout(limit) if limit else TIMEOUT,
        compression=squeezed.choice(COMPRESSIONS) if squeezed else "none",
        certificate=_file(find("CERTIFICATE")),
        client_key=_file(key),
        client_certificate=_file(certificate),
        insecure=url.startswith("http://"),
        temporality=preferred.choice(TEMPORALITIES) if preferred and signal == "metrics" else "cumulative",
        aggregation=_aggregation(environ) if signal == "metrics" else AGGREGATIONS[0],
    )


def _aggregation(environ: Mapping[str, str]) -> Aggregation:
    """OpenTelemetry specification, "Environment Variable Specification", "Enum": an unknown value is not an error."""
    given = setting(environ, "", None, "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION")
    try:
        return given.choice(AGGREGATIONS) if given else AGGREGATIONS[0]
    except ValueError as error:
        log.warning("%s; using %r", error, AGGREGATIONS[0])
        return AGGREGATIONS[0]


def _flag(given: Setting | None) -> bool:
    return given is not None and given.choice(("true", "false")) == "true"


def _timeout(given: Setting) -> float:
    """OpenTelemetry specification, "Environment Variable Specification", "Timeout": 0 stands for no limit."""
    return NO_TIMEOUT if given.is_variable and given.value == "0" else min(given.seconds(), NO_TIMEOUT)


def _endpoint(given: Setting, signal: Signal, protocol: Protocol, *, insecure: bool) -> str:
    value = given.string()
    if "://" not in value and protocol == "grpc":
        value = f"{'http' if insecure else 'https'}://{value}"
    try:
        url = urlsplit(value)
        reachable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        reachable = False
    if not reachable or any(letter.isspace() for letter in value):
        raise given.wrong("it must be a URL such as 'http://localhost:4318'")
    own = given.is_variable and given.source != ENDPOINT
    return value if protocol == "grpc" else _posted_to(url, "" if own else f"v1/{signal}").geturl()


def _posted_to(url: SplitResult, appended: str) -> SplitResult:
    """Append to the path of a URL; a URL without a path gets the root's."""
    if appended:
        return url._replace(path=f"{url.path.removesuffix('/')}/{appended}")
    return url._replace(path=url.path or "/")


def _headers(given: Setting) -> tuple[tuple[str, str], ...]:
    if given.is_variable:
        found, wrong = pairs(given.string())
        if wrong:
            raise ValueError(
                f"{given.source} has {wrong[0]!r}: it must be name=value pairs separated by commas, with values "
                "percent-encoded"
            )
    elif isinstance(given.value, Mapping):
        found = {}
        for name, value in given.value.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"headers= must map strings to strings, not {name!r:.100} to {type(value).__name__}")
            found[name] = value
    else:
        raise TypeError(f"headers= must be a mapping of strings, not {type(given.value).__name__}")
    for name, value in found.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"{given.source} has the invalid header {name!r:.100}: letters, digits and hyphens are "
                "allowed in a name, printable ASCII in a value"
            )
    return tuple((name.lower(), value.strip()) for name, value in found.items())


def _file(given: Setting | None) -> str | None:
    if given is None:
        return None
    path = system_text(given.string())
    if not Path(path).is_file():
        raise given.wrong("it must be the path of a PEM file, which does not exist")
    return path
