"""The dashboard of a run: its groups, scales and progress bars, with arbitrary names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from charted_runs import builders, training
from grafana import dashboards, used
from hub_requests import START, logs, rank
from recorded_runs import DEFINITION, record
from tachograph.cli import main
from tachograph.cli.dashboards.panel import _IDS, grafana_unit, literal, quoted
from tachograph.hub.hub import Hub

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEMPLATES = ["$rank", "${run}", "[[role]]", "{{x}}", '"', "\\", "\n", "🦀"]
HOSTILE = st.one_of(TEXT, st.lists(st.sampled_from(TEMPLATES)).map("".join))


def panels(folder: Path) -> dict[str, Any]:
    """Return the panels of the only run's dashboard, by title."""
    (dashboard,) = (each for name, each in dashboards(folder / "dashboards").items() if name.startswith("run-"))
    return {panel["title"]: panel for panel in dashboard["panels"]}


def looks(panel: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the overrides of each query of a panel, by the metric that it selects."""
    by_ref = {
        each["matcher"]["options"]: {one["id"]: one["value"] for one in each["properties"]}
        for each in panel["fieldConfig"]["overrides"]
    }
    return {target["expr"].partition("{")[0]: by_ref[target["refId"]] for target in panel["targets"]}


def test_groups_become_panels_and_scales_axes(tmp_path: Path) -> None:
    """A group is a panel with all its metrics; metrics with the same scale share an axis with its units and bounds."""
    training(tmp_path)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    found = panels(tmp_path)
    assert list(found) == ["Progress", "Loops", "training", "alone"]
    shown_as = looks(found["training"])
    quality = {"unit": "percent", "min": 0, "max": 100, "custom.axisPlacement": "left", "custom.axisLabel": "quality"}
    assert shown_as["accuracy_percent"] == shown_as["recall_percent"] == quality
    assert shown_as["loss"] == {"unit": "short", "custom.axisPlacement": "right", "custom.axisLabel": "loss"}
    assert shown_as["bytes_per_second"]["unit"] == "binBps"
    assert shown_as["late"]["custom.axisLabel"] == "late"
    assert "over epoch from 0 to 10" in found["training"]["description"]
    assert 'otel_scope_name="tachograph.metric"' in found["alone"]["targets"][0]["expr"]
    assert found["alone"]["targets"][0]["legendFormat"] == "alone rank {{dl_rank}}"


def test_progress_becomes_bars(tmp_path: Path) -> None:
    """A progress scale is a bar within its bounds, a loop a bar in percent; a stream has only numbers."""
    training(tmp_path)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    found = panels(tmp_path)
    assert found["Progress"]["type"] == "bargauge"
    assert looks(found["Progress"]) == {
        "warm_up": {"unit": "suffix:step", "min": 0, "max": 4},
        "100 * steps": {"unit": "percent", "min": 0, "max": 100},
    }
    assert [target["legendFormat"].partition(" {{")[0] for target in found["Loops"]["targets"]] == [
        "steps: rate",
        "steps: remaining",
        "stream: done",
        "stream: rate",
    ]


def test_a_run_whose_id_would_spoil_a_query_is_pinned(tmp_path: Path) -> None:
    """A variable selects the run and can select others; a run ID with quotes is written into each query instead."""
    for run, expected in (("one", 'dl_run_id=~"$run"'), ('a"b$run', r'dl_run_id="a\x22b\x24run"')):
        store = tmp_path / str(len(run))
        training(store, run)
        assert main(["init", "grafana", "--force", "--output", str(store), "--run", run, "--store", str(store)]) == 0
        found = panels(store)
        assert found
        assert all(expected in target["expr"] for each in found.values() for target in each["targets"])


@given(HOSTILE)
def test_a_name_is_one_string_of_promql_and_no_template(name: str) -> None:
    """In a query, any name is one string for Prometheus and contains no variable for Grafana."""
    literal = quoted(name)
    assert re.fullmatch(r'"(?:[^"\\\n]|\\x[0-9a-f]{2})*"', literal)
    assert re.sub(r"\\x(..)", lambda match: chr(int(match[1], 16)), literal[1:-1]) == name
    assert used(literal) == set()
    assert "[[" not in literal


@given(HOSTILE)
def test_a_name_in_a_title_is_no_template(name: str) -> None:
    """In titles and legends, Grafana shows a name unchanged."""
    text = literal(name)
    assert text.replace("\u2060", "") == name.replace("\u2060", "")
    assert used(text) == set()
    assert not re.search(r"\[\[|\{\{", text)


def test_units_are_those_of_grafana() -> None:
    """Known units have an id of Grafana; other text becomes a suffix."""
    builders()
    from grafana_foundation_sdk.models import units

    assert {*_IDS.values()} - {value for value in vars(units).values() if isinstance(value, str)} == set()
    assert grafana_unit("{epoch}") == grafana_unit("epoch") == "suffix:epoch"
    assert grafana_unit(None) == grafana_unit("{}") == "short"


def test_ranks_that_say_something_else_share_a_chart(tmp_path: Path) -> None:
    """The latest definition of a metric applies, even if only one rank set a group."""
    group = {"metric": "loss", "group": "training", "units": "%"}
    for number, told in enumerate(({"metric": "loss"}, {"metric": "loss", "group": "training"}, group)):
        record(tmp_path, "one", (DEFINITION, told), number=number)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    found = panels(tmp_path)
    assert list(found) == ["training"]
    assert looks(found["training"]).keys() <= {"loss", "loss_percent"}


def test_a_group_named_as_the_scope_of_those_without_one(tmp_path: Path) -> None:
    """A group can have the name of the scope for metrics without a group; the first definition sets the unit."""
    told = [{"metric": "loss", "units": "s"}, {"metric": "loss", "group": "tachograph.metric", "units": "%"}]
    for number, each in enumerate(told):
        record(tmp_path, "one", (DEFINITION, each), number=number)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    assert list(panels(tmp_path)) == ["tachograph.metric"]


def test_a_bound_that_is_no_number_is_none(tmp_path: Path) -> None:
    """Invalid bounds in a definition are ignored."""
    about = {"metric": "m", "group": "g", "x_lower": "a", "x_upper": float("nan"), "lower": [1], "upper": True}
    hub = Hub(tmp_path)
    hub.receive_logs(logs(rank(0), ("tachograph.definition", about)))
    hub.close()
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "run", "--store", str(tmp_path)]) == 0
    )
    (look,) = looks(panels(tmp_path)["g"]).values()
    assert look.keys().isdisjoint({"min", "max"})


def test_lines_without_ranks_are_named_by_the_metric(tmp_path: Path) -> None:
    """In a run without ranks, the legend is the name of the metric."""
    hub = Hub(tmp_path, run="one", clock=lambda: START)
    who = {key: value for key, value in rank(0, run="one").items() if key != "dl.rank"}
    hub.receive_logs(logs(who, (DEFINITION, {"metric": "loss"}), stream="s"))
    hub.close()
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    assert [target["legendFormat"] for target in panels(tmp_path)["loss"]["targets"]] == ["loss"]


def test_a_definition_without_points_has_its_place(tmp_path: Path) -> None:
    """A progress bar without points has a panel."""
    record(tmp_path, "one", (DEFINITION, {"metric": "steps", "progress": True, "upper": 5.0}))
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    assert looks(panels(tmp_path)["Progress"]) == {"steps": {"unit": "short", "max": 5}}
