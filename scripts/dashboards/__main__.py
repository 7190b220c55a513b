"""Write the Grafana dashboards that Tachograph ships, with Grafana's typed builders.

    python scripts/dashboards [FOLDER]

The default folder is the one in the package. Requires Python 3.11 and grafana-foundation-sdk.
"""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from board import Board
from functions import functions
from hub import hub
from machine import machine
from points import points
from torchrun import torchrun
from training import training

from tachograph.cli.dashboards.panel import INFLUXDB, PROMETHEUS
from tachograph.cli.init.grafana import INFLUXDB_UID, PROMETHEUS_UID

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "tachograph" / "cli" / "dashboards" / "fixed"


class _Dashboard(NamedTuple):
    uid: str
    title: str
    description: str
    fill: Callable[[Board], Board]
    kind: str = PROMETHEUS


_DASHBOARDS = (
    _Dashboard("tachograph-training", "Training", "All metrics that your program records, by rank.", training),
    _Dashboard(
        "tachograph-torchrun", "torchrun", "Restarts, workers, lost processes, and dropped telemetry.", torchrun
    ),
    _Dashboard("tachograph-functions", "Functions", "Calls, durations and failures of profiled functions.", functions),
    _Dashboard("tachograph-machine", "GPUs and machine", "GPUs, CPU, memory, disks and network of each node.", machine),
    _Dashboard("tachograph-hub", "Hubs", "Data received, rejected and lost by hubs.", hub),
    _Dashboard("tachograph-points", "MetricsLogger", "MetricsLogger points by step, role and uid.", points, INFLUXDB),
)


def main(folder: Path) -> None:
    """Write all dashboards to a folder."""
    for each in _DASHBOARDS:
        datasource = PROMETHEUS_UID if each.kind == PROMETHEUS else INFLUXDB_UID
        board = Board(each.uid, f"Tachograph: {each.title}", each.description, kind=each.kind, datasource=datasource)
        if each.kind == PROMETHEUS:
            for label in ("run", "role", "rank"):
                matchers = '{dl_run_id=~"$run"}' if label != "run" else ""
                query = f"label_values(target_info{matchers}, dl_{label}{'_id' * (label == 'run')})"
                board.choice(label, label.capitalize(), query)
        (folder / f"{each.uid}.json").write_text(each.fill(board).text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
