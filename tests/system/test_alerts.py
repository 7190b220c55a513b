"""Alerts of ``deploy/prometheus/rules``: faults are done to a real torchrun job, and a real Prometheus names the rank.

The files are those that are shipped, with their windows, and scrapes and evaluations every five seconds: nothing is
scaled, only the hub's port is another one. The healthy ten minutes are 35 seconds of a real job's page, over and over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors import running as collector
from places import ROOT
from programs import environment, write
from servers import api, find, instant, prometheus, wait_until
from watched_jobs import DEPLOY, WITHIN, fired, fires, firing, running, watched

pytest.importorskip("torch")
# A job has to start and each alert has its minute.
pytestmark = [pytest.mark.prometheus, pytest.mark.torch, pytest.mark.usefixtures("untraced"), pytest.mark.timeout(300)]


@pytest.mark.long
def test_the_alert_of_start_here(tmp_path: Path) -> None:
    """The last program of that page, run as it says beside the files of its fourth step, fires the alert it names."""
    page = (ROOT / "docs" / "start.md").read_text()
    program = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[-1]
    command = [sys.executable, "-m", "tachograph", "init", "prometheus", "--output", str(tmp_path / "prometheus")]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True)
    config = tmp_path / "prometheus" / "hub.yml"
    command = [sys.executable, "-m", "tachograph", "run", "--run-id", "nan", "--linger", "0", "--"]
    command += [sys.executable, "-i", str(write(tmp_path, program, "nan.py"))]
    with prometheus(config) as base:
        job = subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            wait_until(lambda: instant(base, "tachograph_nonfinite_total"), WITHIN, lambda: api(base, "targets"))
            summary = fires(base, "TachographLossNotFinite", since=time.monotonic())
        finally:
            said = job.communicate(timeout=90)[1].decode()
    assert re.search(r"loss is NaN or infinite in run nan on \S+$", summary), said
    assert job.returncode == 0, said


@pytest.mark.long
def test_a_slow_rank_a_loss_that_is_no_number_and_a_stopped_rank(tmp_path: Path) -> None:
    """Each of three faults fires its alert within 60 s and names its rank and no other; before them none fires."""
    with running(tmp_path, ranks=3) as job, watched(job) as base:
        time.sleep(20)
        assert firing(base) == {}
        job.tell("slow-1")
        job.tell("nan-0")
        began = time.monotonic()
        assert "loss is NaN or infinite on rank 0 of run the run on " in fires(
            base, "TachographLossNotFinite", 0, since=began
        )
        assert "rank 1 of run the run on " in fires(base, "TachographStraggler", 1, since=began)
        assert "its mean load_duration is " in fires(base, "TachographSlowestRank", 1, since=began)
        assert {rank for name, rank in firing(base) if name != "TachographLossNotFinite"} == {"1"}
        os.kill(job.pid(2), signal.SIGSTOP)
        began = time.monotonic()
        assert "rank 2 of run the run on " in fires(base, "TachographProcessSilent", 2, since=began)
        assert {rank for name, rank in firing(base) if name == "TachographProcessSilent"} == {"2"}


@pytest.mark.long
def test_a_rank_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Where a rank is killed after each restart, the loop's alert fires within 60 s and names that rank alone."""
    with running(tmp_path, ranks=2, restarts=9) as job, watched(job) as base:
        began, killed = time.monotonic(), 0
        while killed < 2:
            pid = job.pid(1)
            os.kill(pid, signal.SIGKILL)
            killed += 1
            wait_until(lambda pid=pid: job.pid(1) != pid, 40, job.log)  # type: ignore[misc]
        summary = fires(base, "TachographRestartLoop", since=began)
        # gloo may fail by itself after a restart, which is one more
        assert re.search(r"the workers of run the run were restarted [2-6] times", summary)
        assert "rank 1 of run the run on " in fires(base, "TachographRankKilled", 1, since=began)
        assert {rank for name, rank in firing(base) if name == "TachographRankKilled"} == {"1"}
        assert "killed: rank 1" in firing(base)["TachographRestartLoop", ""]


@pytest.mark.long
def test_an_orderly_end_is_no_fault(tmp_path: Path) -> None:
    """A job that ends, and takes its page with it after a last scrape, fires no alert."""
    with running(tmp_path, ranks=2, linger=True) as job, watched(job) as base:
        job.tell("stop")
        assert fired(base, WITHIN + 20, lambda: job.process.poll() is not None) == set()
        assert job.process.returncode == 0, job.log()
        wait_until(lambda: instant(base, "up == 0"), 20)
        assert fired(base, 40) == set()


@pytest.mark.long
def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    """Where a node's page stands still while ranks train, the alert fires within 60 s and names the run and the host.

    One that is killed is no fault: ``tachograph run`` starts it again.
    """
    with running(tmp_path, ranks=2) as job, watched(job) as base:
        (hub,) = [each for each in psutil.Process(job.process.pid).children() if "hub" in each.cmdline()]
        began = time.monotonic()
        hub.suspend()
        try:
            assert "run the run on " in fires(base, "TachographDown", since=began)
        finally:
            hub.resume()


BEHIND_A_COLLECTOR = """
global: {scrape_interval: 5s}
rule_files: ["rules/*.yml"]
scrape_configs:
  - job_name: tachograph
    honor_labels: true
    static_configs: [{targets: ["%s"]}]
    params: {escaping: [underscores]}
"""


@pytest.mark.long
@pytest.mark.otelcol
def test_the_same_behind_a_collector(tmp_path: Path) -> None:
    """A slow rank and a stopped one are named within 60 s, too, where ranks send to a collector and there is no hub."""
    (tmp_path / "collector").mkdir()
    with collector(tmp_path / "collector") as to, running(tmp_path, ranks=3, to=to) as job:
        config = BEHIND_A_COLLECTOR % job.url.removeprefix("http://")
        with watched(job, config) as base:
            time.sleep(20)
            assert firing(base) == {}
            job.tell("slow-1")
            began = time.monotonic()
            assert "rank 1 of run the run on " in fires(base, "TachographStraggler", 1, since=began)
            os.kill(job.pid(2), signal.SIGSTOP)
            began = time.monotonic()
            assert "rank 2 of run the run on " in fires(base, "TachographRankMissing", 2, since=began)
            assert {rank for name, rank in firing(base) if name == "TachographRankMissing"} == {"2"}


EVERY = 5  # seconds between two scrapes
PAGES = 8
STEPS = 120  # ten minutes
TARGET = (("instance", "node"), ("job", "tachograph"))
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(page: str) -> Samples:
    """Return what a scrape of a page stores, buckets left out: no rule looks at them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def replayed(values: list[float]) -> str:
    """Return ten minutes of a series: what it did again and again, what only grows going on; then it stands still."""
    length = len(values) - 1
    growth = values[-1] - values[0] if all(a <= b for a, b in pairwise(values)) else 0.0
    told = [values[step % length] + growth * (step // length) for step in range(STEPS)]
    return " ".join([*(repr(value) for value in told), f"{told[-1]!r}x6", "stale"])


@pytest.mark.long
@pytest.mark.parametrize("major", [3, 2])
def test_ten_healthy_minutes(tmp_path: Path, major: int, healthy: list[Samples]) -> None:
    """Of a healthy job no alert fires in ten minutes, nor after it has ended and its page has gone."""
    shutil.copytree(DEPLOY / "rules", tmp_path / "rules")
    series = [
        {
            "series": name + "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in (*labels, *TARGET)) + "}",
            "values": replayed([page[name, labels] for page in healthy]),
        }
        for name, labels in healthy[0]
        if all((name, labels) in page for page in healthy)
    ]
    assert len(series) > 100
    up = {"series": 'up{job="tachograph",instance="node"}', "values": f"1x{STEPS + 6} 0x24"}
    alerts = [
        line.partition("alert: ")[2].strip()
        for path in (tmp_path / "rules").glob("*.yml")
        for line in path.read_text().splitlines()
        if "- alert: " in line
    ]
    assert len(alerts) > 15
    end = (STEPS + 30) * EVERY
    looked = [{"eval_time": f"{at}s", "alertname": name} for name in alerts for at in range(0, end, 3 * EVERY)]
    test = {"interval": f"{EVERY}s", "input_series": [*series, up], "alert_rule_test": looked}
    written = {"rule_files": ["rules/*.yml"], "evaluation_interval": f"{EVERY}s", "tests": [test]}
    (tmp_path / "healthy.yml").write_text(json.dumps(written))
    line = [find("promtool", major), "test", "rules", "healthy.yml"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    """Return what scrapes of a healthy job's page find."""
    found = []
    with running(tmp_path_factory.mktemp("healthy"), ranks=2) as job:
        time.sleep(10)
        for _ in range(PAGES):
            found.append(samples(job.page()))
            time.sleep(EVERY)
    return found
