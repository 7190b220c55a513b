"""Metric names in pages, dashboards, rules and collector files are names that the code creates."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

from places import ROOT
from tachograph.recording.own_metrics import REASONS, Reason

KNOWN: set[str] = runpy.run_path(str(ROOT / "scripts" / "dashboards" / "instruments.py"))["names"]()
FILES = [
    path
    for pattern in (
        "deploy/**/*",
        "collector-config/*",
        "docs/*.md",
        "README.md",
        "src/tachograph/cli/dashboards/fixed/*",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.suffix in {".yml", ".yaml", ".json", ".md", ".sh", ".service", ""}
]
# What begins like a metric of ours; a recording rule's result has colons.
OURS = re.compile(r"(?<![\w:])(?:tachograph|torchrun|function|hw|system|process|torch)_[a-z0-9_]+(?![\w:(])")
ACROSS = re.compile(r"_by_rank(_seconds)?$|_slowest_rank$|_all_ranks(?=_)")
# Attributes and their values, as Prometheus has them; and names of Python.
OTHERS = {
    *("hw_gpu_clock", "hw_gpu_index", "hw_gpu_task", "hw_gpu_throttle_reason", "hw_id", "hw_name", "hw_type"),
    *("hw_sensor_location", "hw_power_brake", "hw_slowdown", "hw_thermal", "hw_thermal_slowdown"),
    *("system_device", "system_filesystem_mountpoint", "system_memory_state", "system_paging_fault_type"),
    *("torch_cuda_device", "process_value", "system_metrics", "torch_monitor", "tachograph_wandb"),
}


def test_the_reference_is_what_the_code_says() -> None:
    """docs/metrics.md is the current output of ``python scripts/reference.py``."""
    page = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["page"]
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page()


def test_every_reason_is_explained() -> None:
    """Each reason for a drop has an explanation."""
    assert set(REASONS) == set(get_args(Reason))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_is_one_that_the_code_makes(path: Path) -> None:
    """No file uses an unknown metric of Tachograph, apart from the results of recording rules."""
    text = path.read_text(encoding="utf-8")
    named = set(OURS.findall(text)) - OTHERS
    whole = {name for name in named if name not in KNOWN and _counted(name) not in KNOWN}
    assert {name for name in whole if _across(name) not in KNOWN} == set()


def _counted(name: str) -> str:
    """Return the name of one of the series of a histogram."""
    return f"{name}_bucket"


def _across(name: str) -> str:
    """Return the histogram from which a metric across ranks is computed."""
    found = ACROSS.sub("", name)
    return f"{found}_bucket" if found.endswith("_seconds") else f"{found}_seconds_bucket"


def test_a_wrong_name_is_found() -> None:
    """The check finds a wrong name, such as a counter without its suffix."""
    assert OURS.findall("rate(torchrun_restart_total[5m])") == ["torchrun_restart_total"]
    assert "torchrun_restart_total" not in KNOWN
    assert "torchrun_restarts_total" in KNOWN
