"""MetricsLogger: points of MetricsLogger, and curves of Metric, in InfluxDB, by step, role and uid.

The queries are InfluxQL because InfluxDB 1, 2 and 3 all support it (2 needs a database mapping); 3 has no Flux.
"""
# ruff: noqa: INP001, S608 - modules of one program: python scripts/dashboards; it queries no database itself

from __future__ import annotations

from typing import Any

from board import Board
from grafana_foundation_sdk.builders import bargauge, common, dashboard, timeseries, xychart
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import xychart as xy
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, VariableOption

from tachograph.logger._identity import COUNTING

_TAGS = "role", "uid", "dl.rank"  # dl.rank: only the curves of a Metric have it
_BY = ", ".join(f'"{tag}"' for tag in _TAGS)
_WHERE = '$timeFilter AND "role" =~ /^${role:regex}$/ AND "uid" =~ /^${uid:regex}$/'
_ALIAS = " ".join(f"$tag_{tag}" for tag in _TAGS[:2])
_X = list(dict.fromkeys(["step", *COUNTING, "x"]))  # "x" is the field of a Metric's curves


class InfluxQL(Dataquery):
    """A query for Grafana's InfluxDB data source; the builders have no type for it."""

    def __init__(self, source: Any, query: str, *, table: bool = False, alias: str = "") -> None:
        self._json = {
            "refId": "A",
            "datasource": source.to_json(),
            "query": query,
            "rawQuery": True,
            "resultFormat": "table" if table else "time_series",
            "alias": alias,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the query."""
        return self._json


class _Built(Builder[Dataquery]):
    def __init__(self, query: InfluxQL) -> None:
        self._query = query

    def build(self) -> InfluxQL:
        return self._query


def points(board: Board) -> Board:
    """Fill the dashboard."""
    board.choice("measurement", "Measurement", "SHOW MEASUREMENTS", several=False)
    board.choice("field", "Field", 'SHOW FIELD KEYS FROM "$measurement"', several=False)
    xs = [VariableOption(text=name, value=name, selected=name == _X[0]) for name in _X]
    board.variable(
        dashboard.CustomVariable("x")
        .label("x-axis")
        .values(",".join(_X))
        .options(xs)
        .current(VariableOption(text=_X[0], value=_X[0]))
    )
    for tag in ("role", "uid"):
        board.choice(tag, tag.capitalize(), f'SHOW TAG VALUES FROM "$measurement" WITH KEY = "{tag}"')
    source = board.source
    by_x = f'SELECT "$field" AS "value", "$x" AS "x" FROM "$measurement" WHERE {_WHERE} GROUP BY {_BY}'
    board.add(_by_x(InfluxQL(source, by_x, table=True)))
    by_time = f'SELECT mean("$field") FROM "$measurement" WHERE {_WHERE} GROUP BY time($__interval), {_BY} fill(none)'
    board.add(_over_time("$measurement: $field over time", InfluxQL(source, by_time, alias=_ALIAS), span=14))
    latest = f'SELECT last("$field") FROM "$measurement" WHERE {_WHERE} GROUP BY {_BY}'
    board.add(_latest("$measurement: latest $field", InfluxQL(source, latest, alias=_ALIAS), span=10))
    for title, name, unit in (
        ("CPU", "sys_cpu_usage", "percent"),
        ("Memory", "sys_mem_used", "mbytes"),
        ("GPU memory", "gpu_mem_allocated_mb", "mbytes"),
    ):
        # Searches all measurements: any of them may have been logged with system metrics.
        query = f'SELECT mean("{name}") FROM /.+/ WHERE {_WHERE} GROUP BY time($__interval), {_BY} fill(none)'
        panel = _over_time(title, InfluxQL(source, query, alias=_ALIAS), span=8).unit(unit).min(0)
        board.add(panel)
    return board


def _by_x(query: InfluxQL) -> Any:
    panel = xychart.Panel().title("$measurement: $field over $x").span(24).height(11).with_target(_Built(query))
    # x is a tag, which InfluxDB stores as text, unless the logger has counting_tags="field".
    to_number = {"fields": {}, "conversions": [{"targetField": "x", "destinationType": "number"}]}
    panel.with_transformation(DataTransformerConfig(id_val="convertFieldType", options=to_number))
    panel.with_transformation(DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": "x"}]}))
    partition = {"fields": list(_TAGS), "keepFields": False, "naming": {"asLabels": True}}
    panel.with_transformation(DataTransformerConfig(id_val="partitionByValues", options=partition))
    series = (
        xychart.XYSeriesConfig()
        .x(xychart.XychartXYSeriesConfigX().matcher(_match_field("x")))
        .y(xychart.XychartXYSeriesConfigY().matcher(_match_field("value")))
    )
    panel.mapping(xy.SeriesMapping.AUTO).series([series]).show(xy.XYShowMode.POINTS_AND_LINES)
    return panel.legend(_legend()).tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.SINGLE))


def _match_field(field: str) -> Any:
    return xychart.MatcherConfig().id("byName").options(field)


def _over_time(title: str, query: InfluxQL, *, span: int) -> Any:
    panel = timeseries.Panel().title(title).span(span).height(8).with_target(_Built(query)).legend(_legend())
    return panel.tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI))


def _latest(title: str, query: InfluxQL, *, span: int) -> Any:
    panel = bargauge.Panel().title(title).span(span).height(8).with_target(_Built(query))
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).orientation(
        shapes.VizOrientation.HORIZONTAL
    )


def _legend() -> Any:
    legend = common.VizLegendOptions().show_legend(True)
    return legend.display_mode(shapes.LegendDisplayMode.LIST).placement(shapes.LegendPlacement.BOTTOM)
