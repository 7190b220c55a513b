"""The names that Tachograph gives by itself, under the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import hubs
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
from tachograph.recording.own_metrics import ALL
from tachograph.recording.registry import default

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
    assert complaints(page.stdout, major).keys() <= FIXED


RANK = """
import sys
import tachograph
from tachograph.recording.own_metrics import ALL, HUB
from tachograph.recording.registry import default

running = tachograph.start(metrics="otlp", logs="otlp", traces="none", endpoint=sys.argv[1], interval=60)
@tachograph.prof
def work():
    tachograph.put_metric("step.ms", 1.0)  # a user's name, with a user's unit

@tachograph.task()
def train():
    for _ in tachograph.progress([1, 2, 3], "epochs"):
        work()

for turn in range(2):  # the hub compares what ranks measure with what it had from them before
    for metric in ALL:
        if metric.name not in HUB:  # those it makes itself
            default.group(metric.group or "train").own(metric).record(1, dict.fromkeys(metric.attributes, "x"))
    tachograph.MetricsLogger().log("train", {}, {"loss": 1.0}, with_system_metrics=True)
    train()
    assert running.flush(20)
"""


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [2, 3])
def test_promtool_has_nothing_against_our_names_on_the_hubs_page(tmp_path: Path, major: int) -> None:
    """On the page of all ranks it complains of names that others have fixed, and of users' own."""
    with hubs.serving(tmp_path / "runs") as hub:
        for rank in "01":
            more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "TACHOGRAPH_SYSTEM_METRICS": "true"}
            done = programs.run(tmp_path, RANK, hub.url, timeout=120, TACHOGRAPH_RUN_ID="run", **more)
            assert done.returncode == 0, done.stderr
        assert (
            hubs.ask(hub.url, "/v1/metrics", b"no request", content_type=hubs.PROTOBUF).status == 400
        )  # it is counted
        page = hubs.ask(hub.url, "/metrics").body.decode()
    for there in ("function_duration_by_rank_seconds", "function_duration_slowest_rank", "step_by_rank_milliseconds"):
        assert f"# TYPE {there} gauge" in page
    for there in ("tachograph_hub_points_total", "tachograph_hub_refused_total", "tachograph_dropped_total"):
        assert f"# TYPE {there} counter" in page
    assert complaints(page, major).keys() - FIXED <= {
        f"step{each}_milliseconds" for each in ("", "_by_rank", "_by_rank_p50", "_by_rank_p99")
    }


def complaints(page: str, major: int) -> dict[str, str]:
    """Return what promtool says of a page, by the name of the metric."""
    checked = subprocess.run(
        [servers.find("promtool", major), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    return {line.split()[0]: line for line in (checked.stdout + checked.stderr).splitlines() if line}
