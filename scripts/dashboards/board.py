"""A dashboard made with Grafana's typed builders, in the style that all shipped dashboards share."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

with warnings.catch_warnings():
    # Use the classic model: all versions of Grafana read it, while only the newest ones read the newer model.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        bargauge,
        common,
        dashboard,
        prometheus,
        stat,
        statetimeline,
        timeseries,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common as shapes
    from grafana_foundation_sdk.models.dashboard import (
        DashboardCursorSync,
        DashboardLinkType,
        DynamicConfigValue,
        Threshold,
        ThresholdsMode,
        VariableOption,
        VariableRefresh,
    )

from tachograph.cli.dashboards.panel import ALL, ref_id

DATASOURCE = "datasource"
_ALL = VariableOption(text="All", value="$__all")
_THIRD = 8


class Query(NamedTuple):
    """One expression of a panel; ``unit`` overrides the unit of the panel."""

    expression: str
    legend: str
    unit: str = ""
    right: bool = False


class Board:
    """One dashboard; panels appear in the order in which they are added, three per row.

    Args:
        uid: the dashboard's uid, also used as the file name.
        title: the dashboard's title.
        description: what the dashboard shows.
        kind: the type of its data source.
        datasource: uid of the data source that is selected by default.
    """

    def __init__(self, uid: str, title: str, description: str, *, kind: str, datasource: str) -> None:
        self.uid = uid
        self._kind = kind
        self._ids = 0
        self._dashboard = (
            dashboard.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags(["tachograph"])
            .editable()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .time("now-1h", "now")
            .refresh("10s")
            .link(
                dashboard.DashboardLink("Tachograph")
                .type(DashboardLinkType.DASHBOARDS)
                .tags(["tachograph"])
                .as_dropdown(True)
                .keep_time(True)
                .include_vars(True)
            )
        )
        chosen = VariableOption(text=datasource, value=datasource)
        self._dashboard.with_variable(
            dashboard.DatasourceVariable(DATASOURCE).label("Data source").type(kind).current(chosen)
        )

    @property
    def source(self) -> Any:
        """The reference to the selected data source."""
        return shapes.DataSourceRef(type_val=self._kind, uid=f"${{{DATASOURCE}}}")

    def choice(
        self, name: str, label: str, query: str, *, several: bool = True, regex: str = "", every: str | None = ALL
    ) -> None:
        """Add a variable that the user can select values of.

        Args:
            name: the variable's name.
            label: the label next to its menu.
            query: returns its values.
            several: allow several values, and select all of them by default.
            regex: extracts the value from what the query returns.
            every: the regular expression to use if all are selected, or None for a list of all values.
        """
        variable = dashboard.QueryVariable(name).label(label).datasource(self.source).query(query)
        variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(several).include_all(several)
        if several:
            variable.current(_ALL)
            if every is not None:
                variable.all_value(every)
        if regex:
            variable.regex(regex)
        self._dashboard.with_variable(variable)

    def variable(self, variable: Any) -> None:
        """Add a variable of another kind."""
        self._dashboard.with_variable(variable)

    def row(self, title: str, *, repeat: str = "") -> None:
        """Start a row; with ``repeat``, there is one row for each value of that variable."""
        row = dashboard.Row(title).id(self._next())
        if repeat:
            row.repeat(repeat)
        self._dashboard.with_row(row)

    def lines(
        self, title: str, *queries: Query, unit: str = "short", stacked: bool = False, repeat: str = "", **look: Any
    ) -> None:
        """Add a panel of lines over time; ``look`` as in :meth:`_add`."""
        panel = timeseries.Panel().legend(_legend()).tooltip(_tooltip()).span_nulls(False)
        if stacked:
            panel.fill_opacity(40).stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
        if repeat:
            panel.repeat(repeat).repeat_direction("h").max_per_row(3)
        self._add(panel, title, queries, unit, **look)

    def numbers(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add a panel with the latest value of each series in large digits."""
        panel = stat.Panel().reduce_options(_newest()).graph_mode(shapes.BigValueGraphMode.AREA)
        panel.color_mode(shapes.BigValueColorMode.VALUE).text_mode(shapes.BigValueTextMode.VALUE_AND_NAME)
        self._add(panel, title, queries, unit, **look)

    def bars(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add a panel with a bar for the latest value of each series."""
        panel = bargauge.Panel().reduce_options(_newest()).orientation(shapes.VizOrientation.HORIZONTAL)
        self._add(panel, title, queries, unit, instant=True, **look)

    def states(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add a panel with a band for each series, which is colored while the value is 1."""
        panel = statetimeline.Panel().legend(_legend()).tooltip(_tooltip()).merge_values(True)
        self._add(panel, title, queries, unit, **look)

    def _add(
        self,
        panel: Any,
        title: str,
        queries: Sequence[Query],
        unit: str,
        *,
        low: float | None = None,
        high: float | None = None,
        width: int = _THIRD,
        height: int = 8,
        description: str = "",
        instant: bool = False,
        alarm: float | None = None,
        on: bool = False,
    ) -> None:
        """Add a panel.

        Args:
            panel: the builder of the panel.
            title: the panel's title.
            queries: at least one.
            unit: Grafana's id of the unit.
            low: minimum of the axis.
            high: maximum of the axis.
            width: how many of the 24 columns the panel takes.
            height: in Grafana's units.
            description: shown as a tooltip next to the title.
            instant: query the latest values only.
            alarm: color values from this one on red.
            on: color only values of 1 and above green.
        """
        panel.title(title).id(self._next()).datasource(self.source).unit(unit).span(width).height(height)
        panel.thresholds(_thresholds(alarm, on=on))
        if description:
            panel.description(description)
        if low is not None:
            panel.min(low)
        if high is not None:
            panel.max(high)
        for place, query in enumerate(queries):
            target = prometheus.Dataquery().ref_id(ref_id(place)).expr(query.expression).legend_format(query.legend)
            target.datasource(self.source)
            if instant:
                target.instant()
            panel.with_target(target)
            look = [DynamicConfigValue("unit", query.unit)] if query.unit else []
            look += [DynamicConfigValue("custom.axisPlacement", "right")] if query.right else []
            if look:
                panel.override_by_query(ref_id(place), look)
        self._dashboard.with_panel(panel)

    def add(self, panel: Any) -> None:
        """Add a finished panel; this sets its id, its data source and its colors."""
        panel.thresholds(_thresholds(None, on=False))
        self._dashboard.with_panel(panel.id(self._next()).datasource(self.source))

    def _next(self) -> int:
        self._ids += 1
        return self._ids

    def text(self) -> str:
        """Return the dashboard as JSON."""
        encoded = JSONEncoder().encode(self._dashboard.build())
        return json.dumps(json.loads(encoded), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _legend() -> Any:
    legend = common.VizLegendOptions().show_legend(True)
    return legend.display_mode(shapes.LegendDisplayMode.LIST).placement(shapes.LegendPlacement.BOTTOM)


def _tooltip() -> Any:
    return common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING)


def _newest() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(alarm: float | None, *, on: bool) -> Any:
    """Return the color thresholds; without any, Grafana colors values above 80 red."""
    steps = [Threshold(value=None, color="transparent" if on else "green")]
    steps += [Threshold(value=1, color="green")] if on else []
    steps += [Threshold(value=alarm, color="red")] if alarm is not None else []
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
