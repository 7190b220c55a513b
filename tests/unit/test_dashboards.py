"""``tachograph init grafana``: the shipped dashboards, provisioning files, and errors."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from charted_runs import builders, training
from grafana import dashboards, metrics, queries, replaced, used, variables
from places import ROOT
from recorded_runs import points, record, spoil
from tachograph.cli import main
from tachograph.cli.init.grafana import datasources, provider

FIXED = ROOT / "src" / "tachograph" / "cli" / "dashboards" / "fixed"
SCRIPT = ROOT / "scripts" / "dashboards"
# Files are provisioned in the classic model, which every Grafana reads; its builders' package prefers the newest.
CLASSIC = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")


@pytest.fixture(scope="module")
def instruments() -> ModuleType:
    """Return the module with the instruments that the dashboards use."""
    spec = importlib.util.spec_from_file_location("dashboard_instruments", SCRIPT / "instruments.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
def test_those_that_come_along_are_what_the_builders_make(tmp_path: Path) -> None:
    """The committed dashboards are the output of scripts/dashboards, without manual edits."""
    builders()
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in FIXED.iterdir()}, "run python scripts/dashboards"


def test_those_to_deploy_are_what_the_command_writes(tmp_path: Path) -> None:
    """deploy/grafana contains the output of ``tachograph init grafana`` for a Grafana in a container."""
    influxdb = ("--influxdb", "http://localhost:8086", "--influxdb-database", "tplr")
    options = ("--output", str(tmp_path), "--path", "/var/lib/grafana/dashboards", *influxdb)
    assert main(["init", "grafana", "--force", *options]) == 0
    written, deployed = (
        {path.relative_to(folder): path.read_text() for path in folder.rglob("*.*") if path.is_file()}
        for folder in (tmp_path, ROOT / "deploy" / "grafana")
    )
    assert written == deployed, f"run tachograph init grafana --force --output deploy/grafana {shlex.join(options[2:])}"


def read_by_grafana(dashboard: Mapping[str, Any]) -> Any:
    """Return a dashboard after parsing and encoding it with Grafana's types."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(dashboard)))))


def lost(ours: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Yield the path of each value that was lost or changed."""
    if isinstance(ours, dict) and isinstance(kept, dict):
        for key, value in ours.items():
            yield from lost(value, kept.get(key), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(kept, list) and len(ours) == len(kept):
        for place, (one, other) in enumerate(zip(ours, kept, strict=True)):
            yield from lost(one, other, f"{where}[{place}]")
    elif ours != kept:
        yield f"{where}: {ours!r} became {kept!r}"


@CLASSIC
def test_grafana_knows_all_that_is_in_a_dashboard(tmp_path: Path) -> None:
    """Grafana's own types parse each dashboard, including that of a run, without losing anything."""
    builders()
    training(tmp_path)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 0
    )
    found = dashboards(tmp_path / "dashboards")
    assert len(found) == len(list(FIXED.iterdir())) + 1
    assert [place for each in found.values() for place in lost(each, read_by_grafana(each))] == []


def test_no_dashboard_names_a_metric_that_does_not_exist(instruments: ModuleType) -> None:
    """Each metric in an expression or variable is one of Tachograph's instruments, or selected by a variable."""
    found = dashboards(FIXED)
    there = instruments.names()
    named = {
        (name, metric)
        for name, dashboard in found.items()
        for asked in [*queries(name, dashboard), *variables(name, dashboard)]
        for metric in metrics(re.sub(r"\$\{\w+:raw\}\w*", "", asked.expression))
    }
    assert len(named) > 60
    assert [each for each in named if each[1] not in there] == []


def test_a_dashboard_cannot_be_made_with_a_metric_that_does_not_exist(instruments: ModuleType) -> None:
    """An unknown instrument, or an unknown series of an instrument, raises KeyError."""
    with pytest.raises(KeyError, match=r"hw\.gpu\.nothing"):
        instruments.prometheus("hw.gpu.nothing")
    with pytest.raises(KeyError, match="is a gauge"):
        instruments.prometheus("hw.power", "_bucket")
    assert instruments.prometheus("function.duration", "_bucket") == "function_duration_seconds_bucket"
    assert "hw_power_watts" in instruments.of_gpus()


def test_every_dashboard_chooses_run_role_rank_and_data_source() -> None:
    """Each Prometheus dashboard has variables for data source, run, role and rank, and uses only its own variables."""
    uids = set()
    for name, dashboard in dashboards(FIXED).items():
        there = [variable["name"] for variable in dashboard["templating"]["list"]]
        if name != "tachograph-points":
            assert there[:4] == ["datasource", "run", "role", "rank"]
        asked = [*queries(name, dashboard), *queries(name, dashboard, "query"), *variables(name, dashboard)]
        unknown = set().union(*(used(each.expression) for each in asked)) - {*there}
        assert unknown <= {"__rate_interval", "__range", "__interval", "timeFilter"}
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len({*ids}) == len(ids)
        uids.add(dashboard["uid"])
        assert len(dashboard["uid"]) <= 40
    assert len(uids) == 6


def test_data_sources_that_are_there_are_used(tmp_path: Path) -> None:
    """With the uid of an existing data source, all dashboards use it and none is created."""
    training(tmp_path)
    arguments = ["--datasource", "prom", "--influxdb-datasource", "influx", "--run", "one", "--store", str(tmp_path)]
    assert main(["init", "grafana", "--force", "--output", str(tmp_path), *arguments]) == 0
    chosen = {
        (variable["query"], variable["current"]["value"])
        for dashboard in dashboards(tmp_path / "dashboards").values()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert chosen == {("prometheus", "prom"), ("influxdb", "influx")}
    assert not tmp_path.joinpath("provisioning", "datasources").exists()


def test_provisioning_says_paths_and_urls_as_they_are() -> None:
    """A path or URL with special characters becomes one YAML string in which Grafana replaces no variable."""
    path = Path('/a "b"/$HOME')
    (line,) = (line for line in provider(path).splitlines() if "path:" in line)
    assert json.loads(line.partition(": ")[2]).replace("$$", "$") == str(path)
    text = datasources(prometheus="http://p:9090/$x", influxdb=None)
    assert 'url: "http://p:9090/$$x"' in text
    assert "influxdb" not in text


def test_an_unknown_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown run is an error with exit code 2, and no file is written."""
    record(tmp_path, "run-1", *points([1.0]))
    out = tmp_path / "out"
    assert main(["init", "grafana", "--force", "--output", str(out), "--run", "run-2", "--store", str(tmp_path)]) == 2
    assert "there is no run 'run-2'" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not writable is an error with exit code 2 that names the path."""
    path = tmp_path / "file"
    path.touch()
    assert main(["init", "grafana", "--force", "--output", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tachograph init grafana: ")
    assert str(path) in said


def test_a_run_without_metrics_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without definitions gets no dashboard; the other dashboards are written."""
    record(tmp_path, "bare", ("something", {"a": 1}))
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "bare", "--store", str(tmp_path)]) == 1
    )
    assert "'bare' has no Metric and no progress()" in capsys.readouterr().err
    assert {*dashboards(tmp_path / "dashboards")} == {path.stem for path in FIXED.iterdir()}


def test_a_damaged_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dashboard of a damaged run has what can be read, and the damage is reported."""
    training(tmp_path)
    assert spoil(tmp_path / "runs" / "one.db", lambda page: b"accuracy" in page and b"x_units" not in page)
    assert (
        main(["init", "grafana", "--force", "--output", str(tmp_path), "--run", "one", "--store", str(tmp_path)]) == 1
    )
    assert "is damaged, its dashboard shows what can be read: " in capsys.readouterr().err
    assert any(name.startswith("run-") for name in dashboards(tmp_path / "dashboards"))


def test_a_long_id_makes_a_file_all_the_same(tmp_path: Path) -> None:
    """A run ID that is too long for a file name is truncated and remains unique."""
    runs = ["é" * 35 + end for end in "ab"]
    for run in runs:
        training(tmp_path, run)
    chosen = [word for run in runs for word in ("--run", run)]
    assert main(["init", "grafana", "--force", "--output", str(tmp_path), *chosen, "--store", str(tmp_path)]) == 0
    assert sum(name.startswith("run-") for name in dashboards(tmp_path / "dashboards")) == 2


def test_variables_are_replaced_as_grafana_does() -> None:
    """The tests' stand-in for Grafana supports each notation for variables."""
    assert replaced("$a ${a} ${a:raw} x", {"a": "1"}) == "1 1 1 x"
    with pytest.raises(KeyError):
        replaced("$b", {"a": "1"})
