"""Build panels and dashboards as JSON for Grafana's provisioning (the classic model, schema version 42).

Grafana's typed builders would be an extra dependency, so only the shipped dashboards use them (scripts/dashboards). A
test parses the dashboards made here with Grafana's types.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]

SCHEMA_VERSION = 42
WIDTH = 24  # columns of a dashboard
PROMETHEUS, INFLUXDB = "prometheus", "influxdb"  # Grafana's types of data source
DATASOURCE = {"type": PROMETHEUS, "uid": "${datasource}"}
ALL = ".*"
_ALL_CHOSEN = {"text": "All", "value": "$__all"}
# Without these, Grafana colors values above 80 red.
_THRESHOLDS = {"mode": "absolute", "steps": [{"color": "green", "value": None}]}
_ON_TIME_RANGE = 2  # update a variable whenever the time range changes
WHO = 'dl_run_id=~"$run",dl_role=~"$role",dl_rank=~"$rank"'  # the variables of every dashboard
_NOT_PLAIN = re.compile(r'["\\$\[\x00-\x1f\x7f]')
_TEMPLATE = re.compile(r"\$(?=[\w{])|\[(?=\[)|\{(?=\{)")
_JOINER = "\u2060"  # WORD JOINER: no width, and no line breaks there
# UCUM (and common spellings) to Grafana's ids: grafana/grafana-data, valueFormats/categories.ts.
_IDS = {
    "1": "none",
    "%": "percent",
    "ns": "ns",
    "us": "µs",
    "ms": "ms",
    "s": "s",
    "min": "m",
    "h": "h",
    "d": "d",
    "By": "bytes",
    "KiBy": "kbytes",
    "MiBy": "mbytes",
    "GiBy": "gbytes",
    "TiBy": "tbytes",
    "kBy": "deckbytes",
    "KBy": "deckbytes",
    "MBy": "decmbytes",
    "GBy": "decgbytes",
    "TBy": "dectbytes",
    "bit": "bits",
    "By/s": "binBps",
    "KiBy/s": "KiBs",
    "MiBy/s": "MiBs",
    "GiBy/s": "GiBs",
    "kBy/s": "KBs",
    "KBy/s": "KBs",
    "MBy/s": "MBs",
    "GBy/s": "GBs",
    "bit/s": "binbps",
    "m": "lengthm",
    "mm": "lengthmm",
    "km": "lengthkm",
    "mg": "massmg",
    "g": "massg",
    "kg": "masskg",
    "t": "masst",
    "K": "kelvin",
    "Cel": "celsius",
    "A": "amp",
    "mA": "mamp",
    "V": "volt",
    "mV": "mvolt",
    "mW": "mwatt",
    "W": "watt",
    "kW": "kwatt",
    "J": "joule",
    "Pa": "pressurepa",
    "Hz": "hertz",
    "kHz": "rotkhz",
    "MHz": "rotmhz",
    "GHz": "rotghz",
    "rad": "radian",
    "deg": "degree",
    "dB": "dB",
}


class Query(NamedTuple):
    """One expression of a panel.

    Attributes:
        expression: in PromQL.
        legend: the name of its series; Grafana replaces ``{{label}}``.
        overrides: field overrides of its series, by Grafana's property names.
        instant: query the latest value only.
    """

    expression: str
    legend: str
    overrides: Mapping[str, Any] = {}
    instant: bool = False


def ref_id(place: int) -> str:
    """Return the reference of a query by its position: A to Z, then AA, AB and so on, as in Grafana."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = string.ascii_uppercase[rest] + letters
    return letters


def panel(
    kind: str, title: str, queries: Sequence[Query], *, defaults: Json, options: Json, description: str = ""
) -> Json:
    """Return a panel without a position; ``defaults`` and ``options`` depend on its kind."""
    overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": ref_id(place)},
            "properties": [{"id": key, "value": value} for key, value in query.overrides.items()],
        }
        for place, query in enumerate(queries)
        if query.overrides
    ]
    result: Json = {
        "type": kind,
        "title": title,
        "transparent": False,
        "datasource": DATASOURCE,
        "targets": [_target(ref_id(place), query) for place, query in enumerate(queries)],
        "fieldConfig": {"defaults": {"thresholds": _THRESHOLDS, **defaults}, "overrides": overrides},
        "options": options,
    }
    return {**result, "description": description} if description else result


def _target(ref: str, query: Query) -> Json:
    target: Json = {"refId": ref, "expr": query.expression, "legendFormat": query.legend, "datasource": DATASOURCE}
    return {**target, "instant": True, "range": False} if query.instant else target


def time_series(title: str, queries: Sequence[Query], *, defaults: Json | None = None, description: str = "") -> Json:
    """Return a panel of lines over time."""
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel(
        "timeseries",
        title,
        queries,
        defaults={"custom": {}, **(defaults or {})},
        options=options,
        description=description,
    )


def bar_gauge(title: str, queries: Sequence[Query], *, defaults: Json, description: str = "") -> Json:
    """Return a panel with a horizontal bar for the latest value of each series."""
    options = {
        "displayMode": "gradient",
        "orientation": "horizontal",
        "valueMode": "color",
        "namePlacement": "auto",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 300,
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
    }
    return panel("bargauge", title, queries, defaults=defaults, options=options, description=description)


def stat(title: str, queries: Sequence[Query], *, defaults: Json | None = None, description: str = "") -> Json:
    """Return each series' newest value in large digits."""
    options = {
        "graphMode": "none",
        "colorMode": "value",
        "justifyMode": "auto",
        "textMode": "value_and_name",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
    }
    return panel("stat", title, queries, defaults=defaults or {}, options=options, description=description)


def placed(panels: Iterable[tuple[Json, int, int]]) -> list[Json]:
    """Place panels from left to right and top to bottom; each comes with its width and height in Grafana's units."""
    x = y = tallest = 0
    result = []
    for number, (panel_json, width, height) in enumerate(panels, 1):
        if x + width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        result.append({**panel_json, "id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, tallest = x + width, max(tallest, height)
    return result


def datasource_variable(datasource: str) -> Json:
    """Return the variable that selects the data source; the default is the one with this uid."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": PROMETHEUS,
        "current": {"text": datasource, "value": datasource},
    }


def label_variable(name: str, query: str, label: str, chosen: str | None = None) -> Json:
    """Return a variable that selects values of a label; the default is all, or only ``chosen``."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": query,
        "refresh": _ON_TIME_RANGE,
        "multi": True,
        "includeAll": True,
        "allValue": ALL,
        "current": _ALL_CHOSEN if chosen is None else {"text": [chosen], "value": [chosen]},
    }


def dashboard(uid: str, title: str, variables: Sequence[Json], panels: Sequence[Json], description: str) -> Json:
    """Return a dashboard; Grafana limits ``uid`` to 40 characters."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["tachograph"],
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "templating": {"list": list(variables)},
        "annotations": {},
        "panels": list(panels),
    }


def quoted(text: str) -> str:
    """Return text as a PromQL string literal.

    Source: Prometheus documentation, "Querying basics", "String literals".
    """
    return f'"{_NOT_PLAIN.sub(_numbered, text)}"'


def _numbered(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def literal(text: str) -> str:
    """Return text for a title or legend, escaped so that Grafana does not replace any part of it."""
    return _TEMPLATE.sub(lambda match: match[0] + _JOINER, text)


def selector(name: str, *matchers: str) -> str:
    """Return a selector of a metric by its classic name."""
    return f"{name}{{{','.join(matchers)}}}"


def grafana_unit(units: str | None) -> str:
    """Return Grafana's id for a unit; an unknown unit becomes a suffix of the number.

    Args:
        units: UCUM, an annotation such as ``{epoch}``, any text, or nothing.
    """
    if not units:
        return "short"
    unit_id = _IDS.get(units)
    if unit_id is not None:
        return unit_id
    words = units.replace("{", "").replace("}", "").strip()
    return f"suffix:{words}" if words else "short"
