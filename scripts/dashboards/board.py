"""A dashboard as Grafana's typed builders make it, with the look that all of ours share."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

with warnings.catch_warnings():
    # Files are provisioned in the classic model: every Grafana reads it, and the newer one only the newest.
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
    """One expression of a panel; ``unit`` where it is not that of the panel."""

    expression: str
    legend: str
    unit: str = ""
    right: bool = False


class Board:
    """One dashboard; panels stand in the order in which they are added, three in a row.

    Args:
        uid: names the file, too.
        title: of the dashboard.
        about: what it shows.
        kind: of its data source.
        datasource: uid of the data source that is chosen at first.
    """

    def __init__(self, uid: str, title: str, about: str, *, kind: str, datasource: str) -> None:
        self.uid = uid
        self._kind = kind
        self._ids = 0
        self._made = (
            dashboard.Dashboard(title)
            .uid(uid)
            .description(about)
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
        self._made.with_variable(
            dashboard.DatasourceVariable(DATASOURCE).label("Data source").type(kind).current(chosen)
        )

    @property
    def source(self) -> Any:
        """The reference to the data source that is chosen."""
        return shapes.DataSourceRef(type_val=self._kind, uid=f"${{{DATASOURCE}}}")

    def choice(
        self, name: str, label: str, query: str, *, several: bool = True, regex: str = "", every: str | None = ALL
    ) -> None:
        """Add a variable; several values can be chosen, and all are at first, unless ``several`` is false.

        Args:
            name: of the variable.
            label: what stands beside it.
            query: what gives its values.
            several: see above.
            regex: takes the value out of what the query gives.
            every: a regular expression that stands for all of them, or None for the list of them.
        """
        made = dashboard.QueryVariable(name).label(label).datasource(self.source).query(query)
        made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(several).include_all(several)
        if several:
            made.current(_ALL)
            if every is not None:
                made.all_value(every)
        if regex:
            made.regex(regex)
        self._made.with_variable(made)

    def variable(self, made: Any) -> None:
        """Add a variable of another kind."""
        self._made.with_variable(made)

    def row(self, title: str, *, repeat: str = "") -> None:
        """Begin a row; ``repeat`` names the variable for each of whose values there is one."""
        made = dashboard.Row(title).id(self._next())
        if repeat:
            made.repeat(repeat)
        self._made.with_row(made)

    def lines(
        self, title: str, *queries: Query, unit: str = "short", stacked: bool = False, repeat: str = "", **look: Any
    ) -> None:
        """Add lines over time; ``look`` as in :meth:`_add`."""
        made = timeseries.Panel().legend(_legend()).tooltip(_tooltip()).span_nulls(False)
        if stacked:
            made.fill_opacity(40).stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
        if repeat:
            made.repeat(repeat).repeat_direction("h").max_per_row(3)
        self._add(made, title, queries, unit, **look)

    def numbers(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add the newest value of each series, in large digits."""
        made = stat.Panel().reduce_options(_newest()).graph_mode(shapes.BigValueGraphMode.AREA)
        made.color_mode(shapes.BigValueColorMode.VALUE).text_mode(shapes.BigValueTextMode.VALUE_AND_NAME)
        self._add(made, title, queries, unit, **look)

    def bars(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add a bar for the newest value of each series."""
        made = bargauge.Panel().reduce_options(_newest()).orientation(shapes.VizOrientation.HORIZONTAL)
        self._add(made, title, queries, unit, instant=True, **look)

    def states(self, title: str, *queries: Query, unit: str = "short", **look: Any) -> None:
        """Add a band for each series, which is coloured while it is 1."""
        made = statetimeline.Panel().legend(_legend()).tooltip(_tooltip()).merge_values(True)
        self._add(made, title, queries, unit, **look)

    def _add(
        self,
        made: Any,
        title: str,
        queries: Sequence[Query],
        unit: str,
        *,
        low: float | None = None,
        high: float | None = None,
        width: int = _THIRD,
        height: int = 8,
        about: str = "",
        instant: bool = False,
        alarm: float | None = None,
        on: bool = False,
    ) -> None:
        """Add a panel.

        Args:
            made: of its kind.
            title: of the panel.
            queries: at least one.
            unit: Grafana's id.
            low: where the axis begins.
            high: where it ends.
            width: of the 24 columns.
            height: in Grafana's units.
            about: what there is to say besides.
            instant: ask for the newest values only.
            alarm: from this value on it is red.
            on: green is for 1 and above only.
        """
        made.title(title).id(self._next()).datasource(self.source).unit(unit).span(width).height(height)
        made.thresholds(_thresholds(alarm, on=on))
        if about:
            made.description(about)
        if low is not None:
            made.min(low)
        if high is not None:
            made.max(high)
        for place, query in enumerate(queries):
            target = prometheus.Dataquery().ref_id(ref_id(place)).expr(query.expression).legend_format(query.legend)
            target.datasource(self.source)
            if instant:
                target.instant()
            made.with_target(target)
            look = [DynamicConfigValue("unit", query.unit)] if query.unit else []
            look += [DynamicConfigValue("custom.axisPlacement", "right")] if query.right else []
            if look:
                made.override_by_query(ref_id(place), look)
        self._made.with_panel(made)

    def add(self, made: Any) -> None:
        """Add a panel that has all but its number, its data source and its colours."""
        made.thresholds(_thresholds(None, on=False))
        self._made.with_panel(made.id(self._next()).datasource(self.source))

    def _next(self) -> int:
        self._ids += 1
        return self._ids

    def text(self) -> str:
        """Return the dashboard as JSON."""
        encoded = JSONEncoder().encode(self._made.build())
        return json.dumps(json.loads(encoded), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _legend() -> Any:
    made = common.VizLegendOptions().show_legend(True)
    return made.display_mode(shapes.LegendDisplayMode.LIST).placement(shapes.LegendPlacement.BOTTOM)


def _tooltip() -> Any:
    return common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING)


def _newest() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(alarm: float | None, *, on: bool) -> Any:
    """Return from which value on what has which colour: without any, Grafana makes red what is above 80."""
    steps = [Threshold(value=None, color="transparent" if on else "green")]
    steps += [Threshold(value=1, color="green")] if on else []
    steps += [Threshold(value=alarm, color="red")] if alarm is not None else []
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
