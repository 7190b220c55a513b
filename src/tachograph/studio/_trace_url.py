"""The address of a trace, elsewhere: ``TACHOGRAPH_TRACE_URL=https://…/{trace_id}``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

from tachograph.recording.log import log

NAME = "TACHOGRAPH_TRACE_URL"
TRACE_ID = "{trace_id}"


def trace_url(environ: Mapping[str, str]) -> str:
    """Return the pattern of the environment; empty where there is none, or where it is none, which is logged once."""
    given = environ.get(NAME, "")
    why = refused(given) if given else ""
    if why:
        _say(why)
        return ""
    return given


def refused(given: str) -> str:
    """Return why a pattern is none; empty for one that is."""
    try:
        parts = urlsplit(given)
    except ValueError as error:
        return f"{NAME} is not a valid URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return f"{NAME} must be an http:// or https:// URL, not {given!r:.200}"
    if TRACE_ID not in given.partition(parts.netloc)[2]:
        return f"{NAME} must have {TRACE_ID} in its path or query, not {given!r:.200}"
    return ""


@cache
def _say(why: str) -> None:
    log.warning("%s; traces are not linked", why)
