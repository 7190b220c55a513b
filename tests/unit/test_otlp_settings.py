"""How OTLP is sent: endpoints, headers, time limits, as the specification has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.exporters.otlp.settings import NO_TIMEOUT, OtlpSettings
from tachograph.pipeline.settings import read_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def otlp(environ: Mapping[str, str], **arguments: Any) -> OtlpSettings:
    """Return how metrics leave, with an exporter named."""
    found = read_settings({"OTEL_METRICS_EXPORTER": "otlp", **environ}, **arguments).otlp_for("metrics")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environ", "endpoint", "insecure"),
    [
        ({"ENDPOINT": "http://c:4318"}, "http://c:4318/v1/metrics", True),
        ({"ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/metrics", True),
        ({"ENDPOINT": "https://c/otlp/?key=1"}, "https://c/otlp/v1/metrics?key=1", False),
        ({"METRICS_ENDPOINT": "http://c:4318"}, "http://c:4318/", True),
        ({"METRICS_ENDPOINT": "http://c/in", "ENDPOINT": "http://d"}, "http://c/in", True),
        ({"ENDPOINT": "http://c:4317", "PROTOCOL": "grpc"}, "http://c:4317", True),
        ({"ENDPOINT": "c:4317", "PROTOCOL": "GRPC"}, "https://c:4317", False),
        ({"ENDPOINT": "c:4317", "PROTOCOL": "grpc", "INSECURE": "true"}, "http://c:4317", True),
        ({"ENDPOINT": "https://c:4317", "PROTOCOL": "grpc", "INSECURE": "true"}, "https://c:4317", False),
        ({"ENDPOINT": "http://[::1]:4318"}, "http://[::1]:4318/v1/metrics", True),
    ],
)
def test_endpoints_are_as_the_specification_says(environ: dict[str, str], endpoint: str, insecure: bool) -> None:
    """The general endpoint gets the signal's path over HTTP, the signal's own is used as it is; the scheme wins."""
    found = otlp({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()})
    assert (found.endpoint, found.insecure) == (endpoint, insecure)


def test_a_signals_own_variables_win(tmp_path: Path) -> None:
    """Each OTLP setting can be made for one signal; the general variable serves the others."""
    pem = tmp_path / "ca.pem"
    pem.write_text("-")
    environ = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}
    for name, general, own in (
        ("HEADERS", "x=general", "Api-Key=s%20ecret%3D1, y = 2"),
        ("TIMEOUT", "1500", "0"),
        ("COMPRESSION", "gzip", "none"),
    ):
        environ |= {f"OTEL_EXPORTER_OTLP_{name}": general, f"OTEL_EXPORTER_OTLP_METRICS_{name}": own}
    environ |= {f"OTEL_EXPORTER_OTLP_{n}": str(pem) for n in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")}
    environ["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"] = "Delta"
    settings = read_settings(environ)
    metrics, traces = settings.otlp
    assert metrics.headers == (("api-key", "s ecret=1"), ("y", "2"))
    assert (metrics.timeout, metrics.compression, metrics.temporality) == (NO_TIMEOUT, "none", "delta")
    assert traces.headers == (("x", "general"),)
    assert (traces.timeout, traces.compression, traces.temporality) == (1.5, "gzip", "cumulative")
    assert (traces.certificate, traces.client_key, traces.client_certificate) == (str(pem),) * 3


def test_no_secret_is_printed() -> None:
    """Headers hold tokens: neither the settings' repr nor an error about them shows a value."""
    environ = {**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=tok123"}
    assert "tok123" not in repr(read_settings(environ))
    for wrong in ("tok123", "=tok123", "a b=tok123", "a=tok123%0Ab"):
        with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
            read_settings({**environ, "OTEL_EXPORTER_OTLP_HEADERS": wrong})
        assert "tok123" not in str(caught.value)


def test_the_defaults_are_those_of_the_specification() -> None:
    """Without any setting, OTLP is cumulative protobuf over HTTP to this machine, ten seconds a request."""
    assert otlp({}) == OtlpSettings(
        signal="metrics",
        protocol="http/protobuf",
        endpoint="http://localhost:4318/v1/metrics",
        timeout=10,
        insecure=True,
    )
    assert otlp({}, protocol="grpc").endpoint == "http://localhost:4317"
