"""Which of Prometheus's text formats a scraper is answered in: content negotiation by its ``Accept`` header."""

from __future__ import annotations

from typing import NamedTuple

_OPENMETRICS, _TEXT = "application/openmetrics-text", "text/plain"
_VERSIONS = {_OPENMETRICS: ("1.0.0", "0.0.1"), _TEXT: ("0.0.4", "1.0.0")}  # the first one where none is named
_ALLOW_UTF8 = "allow-utf-8"


class Format(NamedTuple):
    """A text format of metrics: the media type, its version, and whether names keep all their characters."""

    openmetrics: bool = False
    version: str = "0.0.4"
    utf8: bool = False

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of a page in this format."""
        media_type = _OPENMETRICS if self.openmetrics else _TEXT
        # The term exists in the formats that know of UTF-8 names: prometheus.io, "Content Negotiation".
        escaping = f"; escaping={_ALLOW_UTF8 if self.utf8 else 'underscores'}" if self.version == "1.0.0" else ""
        return f"{media_type}; version={self.version}; charset=utf-8{escaping}"


TEXT = Format()


def negotiate(accept: str, escaping: str | None = None) -> Format:
    """Return the format that a scraper wants most among those that we write; the classic text where it names none.

    Args:
        accept: the ``Accept`` header, several joined by commas, or the empty string.
        escaping: the scheme in the URL's query, before the header: ``allow-utf-8`` or any other scheme, all of which
            are answered with underscores.
    """
    best, best_quality = TEXT, 0.0
    for clause in accept.split(","):
        media_type, parameters = parse_clause(clause)
        quality = quality_of(parameters)
        found = _format(media_type, parameters)
        if found is not None and quality > best_quality:
            best, best_quality = found, quality
    if escaping is None:
        return best
    if escaping == _ALLOW_UTF8:
        return best._replace(version="1.0.0", utf8=True)
    return best._replace(utf8=False)


def _format(media_type: str, parameters: dict[str, str]) -> Format | None:
    if media_type in ("*/*", "text/*"):
        return TEXT
    known = _VERSIONS.get(media_type, ())
    version = parameters.get("version", known[0] if known else "")
    if version not in known:
        return None
    utf8 = version == "1.0.0" and parameters.get("escaping") == _ALLOW_UTF8
    return Format(media_type == _OPENMETRICS, version, utf8)


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether an ``Accept-Encoding`` header takes gzip."""
    clauses = dict(parse_clause(clause) for clause in accept_encoding.split(","))
    wanted = clauses.get("gzip", clauses.get("*"))
    return wanted is not None and quality_of(wanted) > 0


def parse_clause(clause: str) -> tuple[str, dict[str, str]]:
    """Return the name and the parameters in one part of a negotiation header, in lower case."""
    name, *terms = (term.strip().lower() for term in clause.split(";"))
    pairs = (term.partition("=") for term in terms)
    return name, {key.strip(): value.strip().strip('"') for key, _, value in pairs}


def quality_of(parameters: dict[str, str]) -> float:
    """Return the weight ``q`` between 0 and 1; 0 where it is no such number."""
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
