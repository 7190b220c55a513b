"""``tachograph init grafana``: write dashboards, and the provisioning files that load them and their data sources."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path, PurePath
from urllib.parse import quote

from tachograph.cli.command_line import add_store
from tachograph.cli.dashboards.panel import INFLUXDB, PROMETHEUS
from tachograph.cli.dashboards.run_dashboard import defined_charts, run_dashboard
from tachograph.runs import Run, open_run

PROMETHEUS_UID, INFLUXDB_UID = "tachograph-prometheus", "tachograph-influxdb"
PROMETHEUS_URL = "http://localhost:9090"
_INTERVAL = "5s"  # scrape interval of deploy/prometheus, from which Grafana derives $__rate_interval
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
_LONGEST_NAME = 100  # characters of a run ID in a file name


def provider(path: PurePath) -> str:
    """Return the provisioning file that makes Grafana load the dashboards of a folder and reload them on changes."""
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


def datasources(*, prometheus: str | None, influxdb: str | None, database: str = "") -> str:
    """Return the provisioning file for the data sources with these URLs (None omits one), or "" if there is none."""
    parts = []
    if prometheus is not None:
        parts.append(_PROMETHEUS.format(uid=PROMETHEUS_UID, kind=PROMETHEUS, url=_text(prometheus), every=_INTERVAL))
    if influxdb is not None:
        parts.append(_INFLUXDB.format(uid=INFLUXDB_UID, kind=INFLUXDB, url=_text(influxdb), database=_text(database)))
    return "".join(["apiVersion: 1\ndatasources:\n", *parts]) if parts else ""


def _text(value: str) -> str:
    """Return a YAML string; ``$`` is escaped, because Grafana would insert an environment variable."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def contents(options: argparse.Namespace, out: Path) -> tuple[dict[str, Path | str], list[str]]:
    """Return the text of each file by its path, and a message for each problem with a run.

    Raises:
        LookupError: a run does not exist.
        ValueError: an option is missing.
        OSError: the store cannot be read.
    """
    check_options(options)
    runs = [open_run(name, options.store) for name in dict.fromkeys(options.run)]
    dashboards = {_file_name(run): _dashboard(run, options.datasource or PROMETHEUS_UID) for run in runs}
    problems = [problem for run in runs for problem in _problems(run, empty=dashboards[_file_name(run)] is None)]
    return dict(_files(options, out, dashboards)), problems


def _dashboard(run: Run, datasource: str) -> str | None:
    found = defined_charts(run)
    if not found:
        return None
    ranks = any(process.rank is not None for process in run.processes())
    return _json(run_dashboard(run.id, found, datasource, ranks=ranks))


def _problems(run: Run, *, empty: bool) -> Iterator[str]:
    if empty:
        yield f"run {run.id!r:.200} has no Metric and no progress(), so it gets no dashboard"
    if run.damage:
        yield f"{run.path} is damaged, its dashboard shows what can be read: {run.damage[0]}"


def _files(
    options: argparse.Namespace, out: Path, run_dashboards: Mapping[str, str | None]
) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file."""
    chosen = {PROMETHEUS: options.datasource, INFLUXDB: options.influxdb_datasource}
    fixed = files("tachograph.cli.dashboards").joinpath("fixed").iterdir()
    for path in sorted(fixed, key=lambda each: each.name):
        if path.name.endswith(".json"):
            yield f"dashboards/{path.name}", _with_datasource(path.read_text(encoding="utf-8"), chosen)
    for name, text in run_dashboards.items():
        if text is not None:
            yield f"dashboards/{name}", text
    yield "provisioning/dashboards/tachograph.yaml", provider(options.path or (out / "dashboards").absolute())
    sources = datasources(
        prometheus=None if options.datasource else options.prometheus,
        influxdb=None if options.influxdb_datasource else options.influxdb,
        database=options.influxdb_database or os.environ.get("INFLUXDB_DATABASE", ""),
    )
    if sources:
        yield "provisioning/datasources/tachograph.yaml", sources


def _with_datasource(text: str, chosen: dict[str, str | None]) -> str:
    """Return a dashboard with another default data source."""
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


def add_options(to: argparse.ArgumentParser) -> None:
    """Add the options of ``tachograph init grafana``."""
    add = to.add_argument
    run = "Add a dashboard with the charts of this run (may be repeated)"
    add("--run", metavar="RUN", action="append", default=[], help=run)
    add_store(to)
    path = "Where Grafana will see the dashboards, if that is another path (in a container)"
    add("--path", type=Path, metavar="DIR", help=path)
    add("--datasource", metavar="UID", help="Use this Prometheus data source of your Grafana")
    prometheus = "Create a data source for this Prometheus (default: %(default)s)"
    add("--prometheus", metavar="URL", default=PROMETHEUS_URL, help=prometheus)
    add("--influxdb-datasource", metavar="UID", help="Use this InfluxDB data source of your Grafana")
    add("--influxdb", metavar="URL", help="Create a data source for this InfluxDB")
    add("--influxdb-database", metavar="NAME", help="The database for --influxdb (default: INFLUXDB_DATABASE)")


def check_options(options: argparse.Namespace) -> None:
    """Check that ``--influxdb`` comes with a database.

    Raises:
        ValueError: the database is missing.
    """
    if options.influxdb and not (options.influxdb_database or os.environ.get("INFLUXDB_DATABASE")):
        raise ValueError("--influxdb needs --influxdb-database NAME or INFLUXDB_DATABASE")
