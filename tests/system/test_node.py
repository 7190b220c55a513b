"""A real torchrun job whose script knows nothing of Tachograph: all of it, of eight ranks too, is on one page."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import collectors
from programs import environment, write
from servers import api, instant, prometheus

pytest.importorskip("torch")

RANKS = 8
FEWER = 3  # where the number of them is not what is tested: each takes five seconds of a processor
STEPS = 20
RUN = "node-test"
TIME_LIMIT = 150.0
TRIES = 2

# Trains twice: the first time one rank dies after it, so that torchrun starts all of them again.
SCRIPT = """
import os, signal, sys, time
from datetime import datetime
import torch
import torch.distributed as dist
import torch.monitor as monitor
from torch.distributed.elastic.metrics import prof, put_metric

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

@prof(group="train")
def step(number):
    dist.all_reduce(torch.ones(4))
    put_metric("loss", rank + number / 4, "train")
    put_metric("step.success", 1, "train")

torch.set_num_threads(1)
# A file of its own for each attempt: over torchrun's store, gloo finds addresses of the attempt before.
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/gloo-{attempt}", rank=rank, world_size=RANKS)
for number in range(STEPS):
    step(number)
monitor.log_event(monitor.Event("epoch", datetime.now(), {"rank": rank, "attempt": attempt}))
if attempt == 0:
    dist.barrier()
    time.sleep(3)  # more than an export interval: what is lost with a rank is bounded, and here it is nothing
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
open(f"trained-{rank}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
"""


class Failed(Exception):  # noqa: N818 - the job is tried again
    """The job itself did not come far enough: gloo on a small machine."""


@contextlib.contextmanager
def job(folder: Path, ranks: int, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run it under ``tachograph run``, and yield when every rank has trained for the second time."""
    for old in (*folder.glob("trained-*"), *folder.glob("go"), *folder.glob("gloo-*")):
        old.unlink()
    program = SCRIPT.replace("STEPS", str(STEPS)).replace("VICTIM", str(ranks - 1)).replace("RANKS", str(ranks))
    script = write(folder, program, "train.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, "-m", "tachograph", "run", "--port", "0", "--run-id", RUN, "--linger", "0", "--"]
    with (folder / "err.txt").open("w") as err:
        started = subprocess.Popen(
            [*command, *torchrun, "--max-restarts=1", str(script)],
            cwd=folder,
            env=environment(folder, OMP_NUM_THREADS="1", **settings),
            stderr=err,
            text=True,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + TIME_LIMIT
        while len(list(folder.glob("trained-*"))) < ranks:
            if time.monotonic() > deadline or started.poll() is not None:
                raise Failed((folder / "err.txt").read_text()[-3000:])
            time.sleep(0.1)
        yield started
        (folder / "go").touch()
        assert started.wait(60) == 0, (folder / "err.txt").read_text()[-3000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def tried(attempt: Callable[[], None]) -> None:
    """Run a job and what is asserted of it; only the job is tried again."""
    for turn in range(TRIES):
        try:
            attempt()
        except Failed as failed:
            if turn == TRIES - 1:
                pytest.fail(f"the job did not train, {TRIES} times: {failed}")
        else:
            return


def page_address(folder: Path) -> str:
    """Return the host and port that ``tachograph run`` has printed."""
    first = (folder / "err.txt").read_text().splitlines()[0]
    return first.partition("http://")[2].split("/")[0]


@pytest.mark.prometheus
@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [FEWER, pytest.param(RANKS, marks=pytest.mark.long)])
def test_prometheus_finds_every_process_of_a_node_on_one_page(tmp_path: Path, ranks: int) -> None:
    """Through /sd one target: each rank's series, exact over a restart, the agent's, and how often it restarted."""

    def attempt() -> None:
        with job(tmp_path, ranks):
            config = tmp_path / "prometheus.yml"
            discovery = {"url": f"http://{page_address(tmp_path)}/sd", "refresh_interval": "1s"}
            scrape = {"job_name": "tachograph", "http_sd_configs": [discovery], "params": {"escaping": ["underscores"]}}
            config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
            with prometheus(config) as base:
                look(base)

    def look(base: str) -> None:
        expected = {(str(rank), float(2 * STEPS)) for rank in range(ranks)}
        deadline = time.monotonic() + 30
        steps: list[tuple[dict[str, str], float]] = []
        while {(labels["dl_rank"], value) for labels, value in steps} != expected and time.monotonic() < deadline:
            time.sleep(0.5)
            steps = instant(base, "step_success_total")
        assert {(labels["dl_rank"], value) for labels, value in steps} == expected
        assert len(steps) == ranks
        assert {labels["dl_run_id"] for labels, _ in steps} == {RUN}
        assert len(api(base, "targets")["activeTargets"]) == 1
        losses = {labels["dl_rank"]: value for labels, value in instant(base, "loss")}
        assert losses == {str(rank): rank + (STEPS - 1) / 4 for rank in range(ranks)}
        agents = instant(base, 'function_calls_total{dl_role="agent"}')
        assert any("rendezvous" in labels["code_function_name"] for labels, _ in agents), agents
        assert [value for _, value in instant(base, "max(torchrun_restarts_total)")] == [1.0]
        assert len(instant(base, 'function_duration_seconds_count{code_function_name=~".*step"}')) == ranks

    tried(attempt)


@pytest.mark.long
@pytest.mark.otelcol
@pytest.mark.timeout(400)
def test_a_collector_gets_the_job_by_one_variable(tmp_path: Path) -> None:
    """With an OTLP endpoint in the environment the same job also reports to the OpenTelemetry Collector."""

    def attempt() -> None:
        with collectors.running(tmp_path) as collector:
            with job(tmp_path, FEWER, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.http}"):
                pass
            time.sleep(1)
            samples = collector.samples("train")
            by_rank = {labels["dl_rank"]: value for name, labels, value in samples if name == "step_success_total"}
            assert set(by_rank) == {str(rank) for rank in range(FEWER)}
            assert all(value in (STEPS, 2 * STEPS) for value in by_rank.values()), by_rank
            restarts = [value for name, _, value in samples if name == "torchrun_restarts_total"]
            assert restarts
            assert max(restarts) == 1
            epochs = [found for line in collector.file.read_text().splitlines() for found in records(line)]
            assert sorted(epochs) == sorted((rank, attempt) for rank in range(FEWER) for attempt in range(2))

    tried(attempt)


def records(line: str) -> Iterator[tuple[int, int]]:
    """Yield rank and attempt of each ``epoch`` event in a request."""
    for resource in json.loads(line).get("resourceLogs", []):
        for scope in resource["scopeLogs"]:
            for record in scope["logRecords"]:
                if record.get("eventName") == "epoch":
                    values = {each["key"]: each["value"] for each in record["attributes"]}
                    yield int(values["rank"]["intValue"]), int(values["attempt"]["intValue"])
