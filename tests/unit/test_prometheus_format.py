"""Content negotiation: every generation of scraper is answered in the best format that it understands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.exporters.prometheus.format import TEXT, Format, accepts_gzip, negotiate

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,"
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
OPENMETRICS = Format(openmetrics=True, version="1.0.0")


@pytest.mark.parametrize(
    ("accept", "escaping", "expected"),
    [
        ("", None, TEXT),
        ("*/*", None, TEXT),
        (BROWSER, None, TEXT),
        ("nonsense;;=,,q", None, TEXT),
        (PROMETHEUS_2, None, OPENMETRICS),
        (PROMETHEUS_3, None, OPENMETRICS._replace(utf8=True)),
        (PROMETHEUS_3, "underscores", OPENMETRICS),
        (PROMETHEUS_3, "dots", OPENMETRICS),
        (BROWSER, "allow-utf-8", Format(version="1.0.0", utf8=True)),
        ("application/openmetrics-text", None, OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", None, Format(openmetrics=True, version="0.0.1")),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.5", None, TEXT),
        ("text/plain;version=0.0.4;escaping=allow-utf-8", None, TEXT),
        ('Text/Plain; Version="1.0.0"; Escaping=allow-utf-8', None, Format(version="1.0.0", utf8=True)),
        ("text/plain;version=1.0.0;escaping=values", None, Format(version="1.0.0")),
        ("application/openmetrics-text;version=1.0.0;q=0,text/plain;q=0.1", None, TEXT),
        ("application/openmetrics-text;version=1.0.0;q=much", None, TEXT),
        ("text/plain;q=0.5,application/openmetrics-text;version=1.0.0;q=0.6", None, OPENMETRICS),
    ],
)
def test_negotiation(accept: str, escaping: str | None, expected: Format) -> None:
    """The format of the highest weight that we write is chosen, and the classic text where there is none."""
    assert negotiate(accept, escaping) == expected


def test_content_types() -> None:
    """The content type names the version and, where the format knows of it, how names are escaped."""
    assert TEXT.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert OPENMETRICS.content_type.endswith("openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores")
    assert OPENMETRICS._replace(utf8=True).content_type.endswith("; escaping=allow-utf-8")


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("*", True), ("gzip;q=0, *", False), ("", False), ("br", False)],
)
def test_gzip(header: str, accepted: bool) -> None:
    """Gzip is sent only to those who take it."""
    assert accepts_gzip(header) is accepted


@given(st.text(), st.none() | st.text())
def test_any_header_is_answered(accept: str, escaping: str | None) -> None:
    """No header is so strange that there is no answer."""
    assert negotiate(accept, escaping).content_type
    accepts_gzip(accept)
