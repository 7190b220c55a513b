"""Pages for Prometheus, checked by their readers: both parsers of prometheus_client, and promtool 2 and 3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # real servers are found as tests find them

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import servers

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
# The requested formats: Accept and escaping.
FORMATS: Mapping[str, tuple[str, str | None]] = {
    "text": ("", None),
    "text of UTF-8": ("text/plain;version=1.0.0;escaping=allow-utf-8", None),
    "OpenMetrics": (OPENMETRICS, None),
    "OpenMetrics of UTF-8": (f"{OPENMETRICS};escaping=allow-utf-8", None),
}
_STYLE = 3  # promtool's exit status where a page is right, and could be prettier
_PATIENCE = 120.0


def complaints(
    pages: Mapping[str, bytes], parsed: Collection[str] | None = None, *, promtool: bool = False
) -> list[str]:
    """Return complaints about pages.

    Args:
        pages: by format.
        parsed: formats that the parsers of prometheus_client judge, which take seconds for a MiB; None for all.
        promtool: also check classic text with promtool, where it is installed.
    """
    found = []
    for form, page in pages.items():
        if parsed is not None and form not in parsed:
            continue
        parse = parse_openmetrics if form.startswith("OpenMetrics") else parse_text
        try:
            found += [f"{form}: a family without a name" for family in parse(page.decode()) if not family.name]
        except Exception as error:  # noqa: BLE001 - a parser may raise anything
            found.append(f"{form}: prometheus_client says {type(error).__name__}: {error!s:.500}")
    for major, program in promtools().items() if promtool else ():
        command = [program, "check", "metrics"]  # it knows of classic names only; the servers judge the others
        done = subprocess.run(command, input=pages["text"], capture_output=True, timeout=_PATIENCE, check=False)
        if done.returncode not in (0, _STYLE):
            found.append(f"text: promtool {major} says {done.stderr[-500:].decode('utf-8', 'replace')}")
    return found


@cache
def promtools() -> dict[int, str]:
    """Return the installed promtools, by their major version."""
    return {major: path for major in (2, 3) if (path := installed("promtool", major)) is not None}


def installed(program: str, major: int | None = None) -> str | None:
    """Return the path of a program that tests use, None where it is not installed."""
    try:
        return servers.find(program, major)
    except pytest.skip.Exception:
        return None
