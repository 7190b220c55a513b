"""Make the dashboards that come along with Tachograph, by Grafana's typed builders.

    python scripts/dashboards [FOLDER]

Without a folder they are written where the package keeps them. Needs Python 3.11 and grafana-foundation-sdk.
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

PLACE = Path(__file__).resolve().parents[2] / "src" / "tachograph" / "cli" / "dashboards" / "fixed"


class _Made(NamedTuple):
    uid: str
    title: str
    about: str
    fill: Callable[[Board], Board]
    kind: str = PROMETHEUS


_ALL = (
    _Made("tachograph-training", "Training", "The program's own records, by rank.", training),
    _Made("tachograph-torchrun", "torchrun", "Restarts, workers, lost processes, the telemetry itself.", torchrun),
    _Made("tachograph-functions", "Functions", "Calls, durations and failures of profiled functions.", functions),
    _Made("tachograph-machine", "GPUs and machine", "Hardware beside the training.", machine),
    _Made("tachograph-hub", "Hubs", "Traffic, refusals and losses of hubs.", hub),
    _Made("tachograph-points", "Points", "Points of MetricsLogger by step, role and uid.", points, INFLUXDB),
)


def main(folder: Path) -> None:
    """Write them all."""
    for made in _ALL:
        datasource = PROMETHEUS_UID if made.kind == PROMETHEUS else INFLUXDB_UID
        board = Board(made.uid, f"Tachograph: {made.title}", made.about, kind=made.kind, datasource=datasource)
        if made.kind == PROMETHEUS:
            for label in ("run", "role", "rank"):
                matchers = '{dl_run_id=~"$run"}' if label != "run" else ""
                query = f"label_values(target_info{matchers}, dl_{label}{'_id' * (label == 'run')})"
                board.choice(label, label.capitalize(), query)
        (folder / f"{made.uid}.json").write_text(made.fill(board).text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PLACE)
