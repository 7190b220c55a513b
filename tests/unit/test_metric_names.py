"""One registry of names: what pages, dashboards, rules and collector files say, the code makes."""

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
    """docs/metrics.md is as ``python scripts/reference.py`` makes it now."""
    page = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["page"]
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page()


def test_every_reason_is_explained() -> None:
    """Whoever sees a reason on the page finds it in the reference."""
    assert set(REASONS) == set(get_args(Reason))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_is_one_that_the_code_makes(path: Path) -> None:
    """No file names a metric of ours that there is not; a rule's own results are not ours."""
    text = path.read_text(encoding="utf-8")
    named = set(OURS.findall(text)) - OTHERS
    whole = {name for name in named if name not in KNOWN and _counted(name) not in KNOWN}
    assert {name for name in whole if _across(name) not in KNOWN} == set()


def _counted(name: str) -> str:
    """Return a name that stands for a whole histogram as that of one of its series."""
    return f"{name}_bucket"


def _across(name: str) -> str:
    """Return the histogram that a name across ranks is made of."""
    found = ACROSS.sub("", name)
    return f"{found}_bucket" if found.endswith("_seconds") else f"{found}_seconds_bucket"


def test_a_wrong_name_is_found() -> None:
    """The rule above finds what is there: a counter without its ending, say."""
    assert OURS.findall("rate(torchrun_restart_total[5m])") == ["torchrun_restart_total"]
    assert "torchrun_restart_total" not in KNOWN
    assert "torchrun_restarts_total" in KNOWN
