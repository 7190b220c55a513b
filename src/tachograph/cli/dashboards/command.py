"""``tachograph dashboards``: its command line, and the files by which Grafana finds dashboards and data sources."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path, PurePath
from urllib.parse import quote

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser, reason
from tachograph.cli.dashboards.panel import INFLUXDB, PROMETHEUS
from tachograph.cli.dashboards.run_dashboard import defined_charts, run_dashboard
from tachograph.runs.catalogue import opened
from tachograph.runs.run import Run

PROMETHEUS_UID, INFLUXDB_UID = "tachograph-prometheus", "tachograph-influxdb"
PROMETHEUS_URL, INFLUXDB_URL = "http://localhost:9090", "http://localhost:8086"
_DATABASE = "tplr"  # where MetricsLogger writes unless it is told otherwise
_INTERVAL = "5s"  # between two scrapes, as in deploy/prometheus: $__rate_interval follows from it
_PROMETHEUS = """\
  - name: Tachograph Prometheus
    uid: {uid}
    type: {kind}
    access: proxy
    url: {url}
    jsonData:
      httpMethod: POST
      timeInterval: {every}
"""
_INFLUXDB = """\
  - name: Tachograph InfluxDB
    uid: {uid}
    type: {kind}
    access: proxy
    url: {url}
    jsonData:
      version: InfluxQL
      dbName: {database}
      httpMode: POST
"""
_LONGEST_NAME = 100  # characters of a run's id in a file name


def provider(path: PurePath) -> str:
    """Return the file that has Grafana load all dashboards of a folder, and again when they change."""
    return f"""\
apiVersion: 1
providers:
  - name: tachograph
    folder: Tachograph
    type: file
    allowUiUpdates: true
    updateIntervalSeconds: 10
    options:
      path: {_text(str(path))}
"""


def datasources(*, prometheus: str | None, influxdb: str | None) -> str:
    """Return the file that makes data sources, each for the URL of a server; None leaves one out. Empty without any."""
    parts = []
    if prometheus is not None:
        parts.append(_PROMETHEUS.format(uid=PROMETHEUS_UID, kind=PROMETHEUS, url=_text(prometheus), every=_INTERVAL))
    if influxdb is not None:
        parts.append(_INFLUXDB.format(uid=INFLUXDB_UID, kind=INFLUXDB, url=_text(influxdb), database=_DATABASE))
    return "".join(["apiVersion: 1\ndatasources:\n", *parts]) if parts else ""


def _text(value: str) -> str:
    """Return a string of YAML; Grafana would put an environment variable behind a ``$``."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def command(arguments: Sequence[str]) -> int:
    """Write dashboards, and return the exit code: 1 where a run's could not be made in full, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        runs = [opened(name, options.store) for name in dict.fromkeys(options.run)]
        made = {_file_name(run): _of_run(run, options.datasource or PROMETHEUS_UID) for run in runs}
        for path, text in _files(options, made):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")
    except (LookupError, OSError) as error:
        return fail("dashboards", reason(error), WRONG_USAGE)
    problems = [problem for run in runs for problem in _problems(run, empty=made[_file_name(run)] is None)]
    for problem in problems:
        fail("dashboards", problem, FAILED)
    return FAILED if problems else 0


def _of_run(run: Run, datasource: str) -> str | None:
    found = defined_charts(run)
    if not found:
        return None
    ranks = any(process.rank is not None for process in run.processes())
    return _json(run_dashboard(run.id, found, datasource, ranks=ranks))


def _problems(run: Run, *, empty: bool) -> Iterator[str]:
    if empty:
        yield f"run {run.id!r:.200} has defined no Metric and no progress(): it has no dashboard of its own"
    if run.damage:
        yield f"{run.path} is damaged, what can be read of it is on its dashboard: {run.damage[0]}"


def _files(options: argparse.Namespace, of_runs: dict[str, str | None]) -> Iterator[tuple[Path, str]]:
    """Yield each file and its contents: nothing is written where reading fails."""
    out: Path = options.out
    folder = out / "dashboards"
    chosen = {PROMETHEUS: options.datasource, INFLUXDB: options.influxdb_datasource}
    fixed = files("tachograph.cli.dashboards").joinpath("fixed").iterdir()
    for path in sorted(fixed, key=lambda each: each.name):
        if path.name.endswith(".json"):
            yield folder / path.name, _with_datasource(path.read_text(encoding="utf-8"), chosen)
    for name, text in of_runs.items():
        if text is not None:
            yield folder / name, text
    provisioning = out / "provisioning"
    yield provisioning / "dashboards" / "tachograph.yaml", provider(options.path or folder.absolute())
    sources = datasources(
        prometheus=None if options.datasource else options.prometheus,
        influxdb=None if options.influxdb_datasource else options.influxdb,
    )
    if sources:
        yield provisioning / "datasources" / "tachograph.yaml", sources


def _with_datasource(text: str, chosen: dict[str, str | None]) -> str:
    """Return a dashboard in which another data source is chosen at first."""
    made = json.loads(text)
    for variable in made["templating"]["list"]:
        uid = chosen.get(variable["query"]) if variable["type"] == "datasource" else None
        if uid:
            variable["current"] = {"text": uid, "value": uid}
    return _json(made)


def _json(made: object) -> str:
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _file_name(run: Run) -> str:
    name = quote(run.id, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(run.id.encode()).hexdigest()[:16]}"
    return f"run-{name}.json"


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "dashboards",
        "Write dashboards for Grafana, and the files by which it finds them and their data sources.",
        "DIR/dashboards has the dashboards; DIR/provisioning belongs into Grafana's provisioning folder.",
    )
    add = made.add_argument
    add("--out", type=Path, metavar="DIR", required=True, help="the folder to write to; files of the same name go")
    add("--run", metavar="ID", action="append", default=[], help="a dashboard from what this run has defined, too")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: TACHOGRAPH_STORE)")
    add("--path", type=Path, metavar="DIR", help="where Grafana will see DIR/dashboards, if elsewhere: in a container")
    add("--datasource", metavar="UID", help="a Prometheus data source that Grafana has already")
    add("--prometheus", metavar="URL", default=PROMETHEUS_URL, help=f"else where it is (default {PROMETHEUS_URL})")
    add("--influxdb-datasource", metavar="UID", help="an InfluxDB data source that Grafana has already")
    add("--influxdb", metavar="URL", default=INFLUXDB_URL, help=f"else where it is (default {INFLUXDB_URL})")
    return made
