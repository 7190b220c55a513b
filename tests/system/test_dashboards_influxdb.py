"""The dashboard of MetricsLogger's points, asked of a real InfluxDB that has taken such points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grafana import dashboards, queries, replaced, variables
from places import ROOT
from programs import run
from servers import influxdb1, influxql

DASHBOARDS = ROOT / "src" / "tachograph" / "cli" / "dashboards" / "fixed"
NAME = "tachograph-points"
# As Grafana gives them.
GIVEN = {"timeFilter": "time > now() - 1h", "__interval": "10s", "role": ".*", "uid": ".*"}
STEPS = 20
PROGRAM = """
import sys
from tachograph import MetricsLogger

for uid in ("u 1", "u'2"):
    for kind in ("tag", "field"):
        host, port = sys.argv[1], int(sys.argv[2])
        with MetricsLogger(host=host, port=port, role="miner", uid=uid, counting_tags=kind) as logger:
            for step in range(20):
                tags, fields = {"step": step, "window": step // 4}, {"loss": 1 / (1 + step), "text": "words"}
                logger.log(kind + "s", tags, fields, with_system_metrics=step % 10 == 0)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run InfluxDB, and a program that logs points of two uids: once with the step as a tag, once as a field."""
    folder = tmp_path_factory.mktemp("points")
    with influxdb1(folder / "influxdb") as url:
        host, _, port = url.rpartition(":")
        done = run(folder, PROGRAM, host, port)
        assert done.returncode == 0, done.stderr
        yield url


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    return dashboards(DASHBOARDS)[NAME]


def answers(base: str, **chosen: str) -> dict[str, list[dict[str, Any]]]:
    """Return the series that each panel gets."""
    values = {**GIVEN, "measurement": "tags", "field": "loss", "x": "step", **chosen}
    asked = queries(NAME, dashboard(), "query")
    return {each.title: influxql(base, replaced(each.expression, values)) for each in asked}


def test_every_query_returns_data(base: str) -> None:
    """Each query of each panel gives series of what was logged; but for GPUs, which this machine need not have."""
    found = answers(base)
    assert {title for title, series in found.items() if not series} <= {"GPU memory"}
    assert len(found) == 6


@pytest.mark.parametrize("kind", ["tags", "fields"])
def test_points_are_drawn_by_step_and_uid(base: str, kind: str) -> None:
    """The chart over x has each point of each uid with its step, whether that is a tag or a field of the line."""
    found = answers(base, measurement=kind)["$measurement: $field over $x"]
    points = {series["tags"]["uid"]: sorted((int(x), value) for _, value, x in series["values"]) for series in found}
    expected = [(step, 1 / (1 + step)) for step in range(STEPS)]
    assert points == {"u 1": expected, "u'2": expected}
    assert found[0]["columns"] == ["time", "value", "x"]


def test_one_uid_can_be_chosen(base: str) -> None:
    """A choice of role and uid leaves the others out of every panel."""
    for series in answers(base, uid="(u 1)", role="miner").values():
        assert {each["tags"]["uid"] for each in series} <= {"u 1"}
    assert answers(base, uid="nobody")["$measurement: latest $field"] == []


def test_another_x_can_be_chosen(base: str) -> None:
    """Whatever else counts up can be x."""
    found = answers(base, x="window")["$measurement: $field over $x"]
    assert {int(x) for series in found for _, _, x in series["values"]} == {*range(5)}


def test_every_variable_has_values(base: str) -> None:
    """Each choice above the dashboard offers what was logged."""
    values = {**GIVEN, "measurement": "tags"}
    found = {
        asked.title: {row[-1 if asked.title in ("role", "uid") else 0] for row in series["values"]}
        for asked in variables(NAME, dashboard())
        for series in influxql(base, replaced(asked.expression, values))
    }
    assert found["measurement"] == {"tags", "fields"}
    assert {"loss", "sys_cpu_usage"} <= found["field"]
    assert found["role"] == {"miner"}
    assert found["uid"] == {"u 1", "u'2"}
