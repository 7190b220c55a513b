"""A real torchrun job logs through the real torch.monitor; real servers get all of it, exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import servers
from collectors import running
from programs import events
from test_torchrun import torchrun

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.otelcol, pytest.mark.prometheus]

PROMETHEUS = """
global: {scrape_interval: 1s, metric_name_validation_scheme: legacy}
scrape_configs:
  - job_name: ranks
    file_sd_configs: [{files: ["store/targets/*.json"]}]
"""
# What the ranks log: ten events each, and one Stat with three windows.
JOB = """
import os, pathlib, sys, time
import tachograph
from tachograph.instrumentation import TorchMonitorInstrumentor

TorchMonitorInstrumentor().instrument(wait_counters=True)
assert "torch" not in sys.modules
tachograph.start(prometheus_port=0, endpoint=sys.argv[1], metrics="prometheus", logs="otlp", traces="none")

import torch.distributed as dist
from datetime import datetime, timedelta
from torch import monitor

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
asked = [monitor.MEAN, monitor.COUNT, monitor.SUM, monitor.MIN, monitor.MAX]
for window in range(3):
    stat = monitor.Stat("step.loss", asked, timedelta(hours=1), 4)
    for value in range(4):
        stat.add(100 * rank + 10 * window + value + 0.5)
for index in range(10):
    data = {"rank": rank, "index": index, "lr": 0.1 * index, "phase": "train"}
    monitor.log_event(monitor.Event("job.progress", datetime.fromtimestamp(1_800_000_000 + index), data))
dist.barrier()
while not pathlib.Path("seen").exists():
    time.sleep(0.05)
dist.destroy_process_group()
"""


def gauge(base: str, name: str) -> dict[str, float]:
    """Return a metric's value for each rank."""
    return {labels["dl_rank"]: value for labels, value in servers.instant(base, name)}


def test_all_that_a_job_logs_arrives_at_real_servers(tmp_path: Path) -> None:
    """Prometheus shows the Stats of both ranks, the collector has each event and window of both: every value exact."""
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS)
    (tmp_path / "store" / "targets").mkdir(parents=True)  # Prometheus watches a folder that is there
    with (
        running(tmp_path) as collector,
        servers.prometheus(tmp_path / "prometheus.yml") as base,
        ThreadPoolExecutor(1) as pool,
    ):
        job = pool.submit(torchrun, tmp_path, JOB, f"http://127.0.0.1:{collector.http}")
        try:
            servers.wait_until(
                lambda: job.done() or set(gauge(base, "step_loss_window_count")) == {"0", "1"},
                60,
                lambda: servers.api(base, "targets"),
            )
            servers.wait_until(lambda: job.done() or gauge(base, "step_loss_count") == {"0": 12, "1": 12}, 20)
            expected = {"mean": 22.0, "min": 20.5, "max": 23.5, "window_count": 4, "window_sum": 88.0}
            for suffix, value in expected.items():
                per_window = {"window_count": 0, "window_sum": 400}.get(suffix, 100)
                assert gauge(base, f"step_loss_{suffix}") == {"0": value, "1": value + per_window}
            total = sum(10 * window + value + 0.5 for window in range(3) for value in range(4))
            assert gauge(base, "step_loss_sum") == {"0": total, "1": total + 1200}
            waits = gauge(base, 'torch_wait_duration_seconds_count{name=~".*c10d.init_process_group"}')
            assert waits == {"0": 1, "1": 1}
            scopes = {labels["otel_scope_name"] for labels, _ in servers.instant(base, "step_loss_mean")}
            assert scopes == {"torch.monitor"}
        finally:
            (tmp_path / "seen").touch()
        done = job.result()
        assert done.returncode == 0, done.stderr
        servers.wait_until(lambda: len(events(collector.file)) >= 26, 20, collector.server.log)
        check_events(collector.file)


def check_events(file: Path) -> None:
    """Check every log record: ten events and three windows a rank, each once."""
    found = events(file)
    assert len(found) == 26
    for rank in (0, 1):
        progress = [one for one in found if one["eventName"] == "job.progress" and one["attributes"]["rank"] == rank]
        assert [one["attributes"]["index"] for one in progress] == list(range(10))
        assert [one["attributes"]["lr"] for one in progress] == [0.1 * index for index in range(10)]
        assert [int(one["timeUnixNano"]) for one in progress] == [(1_800_000_000 + i) * 10**9 for i in range(10)]
        assert {one["attributes"]["phase"] for one in progress} == {"train"}
        assert len({one["attributes"]["tachograph.stream"] for one in progress}) == 1
    windows = [one["attributes"] for one in found if one["eventName"] == "torch.monitor.Stat"]
    means = sorted(window["step.loss.mean"] for window in windows)
    assert means == [2.0, 12.0, 22.0, 102.0, 112.0, 122.0]
    assert {window["step.loss.count"] for window in windows} == {4}
    sequences = sorted((one["attributes"]["tachograph.stream"], one["attributes"]["tachograph.seq"]) for one in found)
    assert [seq for _, seq in sequences] == [*range(1, 14)] * 2
