"""Series of /metrics pages, as a short table: one line a series, one column a rank."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

_TELLS_APART = ("code_function_name", "outcome", "error_type")


def page(url: str) -> str:
    """Return a /metrics page as Prometheus would get it."""
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - a rank's own address
        return str(response.read().decode())


def cells(text: str, group: str) -> dict[str, dict[str, float]]:
    """Return the values on one page by series and rank; a histogram gives its count and its sum."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("otel_scope_name") != group or sample.name.endswith(("_bucket", "_created")):
                continue
            series = " ".join([sample.name, *(sample.labels[key] for key in _TELLS_APART if key in sample.labels)])
            found.setdefault(series, {})[sample.labels.get("dl_rank", "")] = sample.value
    return found


def table(pages: Iterable[str], group: str) -> str:
    """Return the table for the pages of all ranks."""
    values: dict[str, dict[str, float]] = {}
    for text in pages:
        for series, by_rank in cells(text, group).items():
            values.setdefault(series, {}).update(by_rank)
    ranks = sorted({rank for by_rank in values.values() for rank in by_rank}, key=lambda rank: rank.zfill(9))
    lines = [
        ["", *(f"rank {rank}" for rank in ranks)],
        *([series, *(_number(values[series].get(rank)) for rank in ranks)] for series in sorted(values)),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in lines
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
