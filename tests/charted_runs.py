"""A recorded run with charts of every kind, and whether Grafana's typed builders are there to check what it becomes."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from recorded_runs import DEFINITION, points, record


def builders() -> None:
    """Skip where Grafana's typed builders are not installed."""
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        if os.environ.get("CI"):
            pytest.fail("grafana-foundation-sdk is not installed: the dashboards cannot be checked")
        pytest.skip("NOT TESTED: grafana-foundation-sdk is not installed")


def training(store: Path, run: str = "one", **more: Any) -> None:
    """Record a run with a group of two scales, a progress bar, a loop, and a metric of its own."""
    group = {"group": "training", "x_units": "epoch", "x_lower": 0.0, "x_upper": 10.0}
    percent = {**group, "scale": "quality", "units": "%", "lower": 0.0, "upper": 100.0}
    loop = {"units": "item", "lower": 0.0, "progress": True}
    told = [
        {"metric": "accuracy", **percent},
        {"metric": "recall", **percent},
        {"metric": "loss", "group": "training"},
        {"metric": "bytes", "group": "training", "units": "By/s"},
        {"metric": "warm-up", "group": "training", "units": "step", "lower": 0.0, "upper": 4.0, "progress": True},
        {"metric": "steps", **loop},
        {"metric": "steps#2", **loop},
        {"metric": "stream", **loop},
        {"metric": "late"},
        {"metric": "late", "group": "training"},
        {"metric": "alone", "units": "Cel", **more},
    ]
    loops = [*points([0, 1], "steps", total=10, rate=1.0), *points([0, 1], "stream", rate=1.0)]
    record(
        store, run, *((DEFINITION, each) for each in told), *points([1.0, 2.0], "accuracy", group="training"), *loops
    )
