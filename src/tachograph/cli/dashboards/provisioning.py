"""The files by which Grafana finds data sources and dashboards: Grafana documentation, "Provision Grafana"."""

from __future__ import annotations

import json
from pathlib import PurePath

from tachograph.cli.dashboards.panel import INFLUXDB, PROMETHEUS

PROMETHEUS_UID, INFLUXDB_UID = "tachograph-prometheus", "tachograph-influxdb"
PROMETHEUS_URL, INFLUXDB_URL = "http://localhost:9090", "http://localhost:8086"
_DATABASE = "tplr"  # where MetricsLogger writes unless it is told otherwise
_INTERVAL = "5s"  # between two scrapes, as in deploy/prometheus: $__rate_interval follows from it


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


def _text(value: str) -> str:
    """Return a string of YAML; Grafana would put an environment variable behind a ``$``."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")
