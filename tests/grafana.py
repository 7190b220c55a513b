"""What Grafana does with a dashboard before a data source is asked: it finds the queries, and replaces variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_TEXT = re.compile(r'"(?:\\.|[^"\\])*"')
_SELECTED = re.compile(r"([a-zA-Z_:][\w:]*)\{")
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")


class Asked(NamedTuple):
    """One query of a panel, or of a variable."""

    dashboard: str
    title: str
    expression: str


def dashboards(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the dashboards of a folder by the name of their file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def queries(name: str, dashboard: Mapping[str, Any], key: str = "expr") -> Iterator[Asked]:
    """Yield what the panels ask; ``key`` is ``expr`` of Prometheus, ``query`` of InfluxDB."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            if key in target:
                yield Asked(name, panel["title"], target[key])


def variables(name: str, dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    """Yield what the variables ask, in their order; the title is the variable's name."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Asked(name, variable["name"], variable["query"])


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Return a query with its variables replaced; one that has no value is a KeyError."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], text)


def used(text: str) -> set[str]:
    """Return the variables of a query."""
    return {one or other for one, other in _VARIABLE.findall(text)}


def metrics(expression: str) -> set[str]:
    """Return the metrics that an expression of PromQL selects by name; each of ours has a selector's braces."""
    return set(_SELECTED.findall(_TEXT.sub('""', expression)))
