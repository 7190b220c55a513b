"""The names that Tachograph gives by itself, under the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import programs
import servers

# Names that are not ours to choose: of the OpenTelemetry semantic conventions ("System metrics", "Process metrics"), of
# MetricsLogger's documented fields, and of the wire format (a loop's total, a Stat's window).
FIXED = {
    "process_thread_count",
    "process_unix_file_descriptor_count",
    "system_cpu_logical_count",
    "train_sys_mem_total",
    "epochs_total",
    "wait_window_count",
    "wait_window_sum",
}

PROGRAM = """
import sys, time, urllib.request
from datetime import timedelta
import tachograph
from tachograph.monitor import Aggregation, Stat
from tachograph.own_metrics import ALL
from tachograph.registry import default

running = tachograph.start(prometheus_port=0)
for metric in ALL:
    default.group(metric.group or "train").own(metric).record(1, dict.fromkeys(metric.attributes, "x"))
tachograph.MetricsLogger().log("train", {}, {"loss": 1.0}, with_system_metrics=True)
stat = Stat("wait", list(Aggregation)[:6], timedelta(seconds=1))
stat.add(1.0)

@tachograph.prof
def work():
    pass

@tachograph.task()
def train():
    for _ in tachograph.progress([1, 2, 3], "epochs"):
        work()

train()
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    with urllib.request.urlopen(running.metrics_url) as answer:
        page = answer.read().decode()
    if "wait_window_count" in page and "system_cpu_time" in page and "process_uptime" in page:
        break
    time.sleep(0.1)
sys.stdout.write(page)
"""


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [2, 3])
def test_promtool_has_nothing_against_our_names(tmp_path: Path, major: int) -> None:
    """On a page with all that we name ourselves it complains of nothing but the names that others have fixed."""
    page = programs.run(tmp_path, PROGRAM, timeout=120, TACHOGRAPH_SYSTEM_METRICS="true")
    assert page.returncode == 0, page.stderr
    for there in ("tachograph_dropped_total", "process_uptime_seconds", "epochs_eta_seconds", "torchrun_run_total"):
        assert f"# TYPE {there} " in page.stdout
    checked = subprocess.run(
        [servers.find("promtool", major), "check", "metrics"],
        input=page.stdout,
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = {line.split()[0]: line for line in (checked.stdout + checked.stderr).splitlines() if line}
    assert {name: line for name, line in complaints.items() if name not in FIXED} == {}
