"""Real torchrun jobs whose ranks do what is wrong when they are told, and a real Prometheus with the shipped rules."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors import Collector
from hubs import ask, scraping
from places import ROOT
from programs import environment, write
from servers import api, free_port, instant, prometheus, wait_until

DEPLOY = ROOT / "deploy" / "prometheus"
WITHIN = 60.0  # seconds from a fault to its alert

PROGRAM = """
import math, os, time
from pathlib import Path
import torch
import torch.distributed as dist
import tachograph

rank = int(os.environ["RANK"])
Path(f"new-{rank}").write_text(str(os.getpid()))
os.replace(f"new-{rank}", f"pid-{rank}")

def told(what):
    return Path(what).exists()

@tachograph.prof
def work():
    began = time.monotonic()
    time.sleep(0.4 if told(f"slow-{rank}") else 0.03)
    tachograph.put_metric("load.duration.ms", (time.monotonic() - began) * 1000, "train")

@tachograph.prof
def all_reduce(go):
    dist.all_reduce(go, dist.ReduceOp.MIN)

dist.init_process_group("gloo")
number, go = 0, torch.ones(1)
while go.item():
    work()
    go.fill_(float(not told("stop")))
    all_reduce(go)
    number += 1
    loss = math.nan if told(f"nan-{rank}") else 1 / (number + 3) + 0.1 * (number % 7)
    tachograph.put_metric("loss", loss, "train")
    tachograph.put_metric("step", number, "train")
dist.destroy_process_group()
"""


@dataclass
class Job:
    """A torchrun job under ``tachograph run``, and where its page is: its hub's, or a collector's."""

    folder: Path
    url: str
    process: subprocess.Popen[bytes]

    def pid(self, rank: int) -> int:
        """Return the process of a rank; that of its last start."""
        return int((self.folder / f"pid-{rank}").read_text())

    def tell(self, what: str) -> None:
        """Have the ranks do something."""
        (self.folder / what).touch()

    def page(self) -> str:
        """Return its page in classic names."""
        return ask(self.url, "/metrics?escaping=underscores").body.decode()

    def steps(self) -> int:
        """Return how many ranks show a step."""
        with contextlib.suppress(OSError):
            return sum(line.startswith("step{") for line in self.page().splitlines())
        return 0

    def log(self) -> str:
        """Return what it has said."""
        return (self.folder / "log").read_text()


@contextmanager
def running(
    folder: Path, *, ranks: int, restarts: int = 0, linger: bool = False, to: Collector | None = None
) -> Iterator[Job]:
    """Run a job until its ranks train; it ends with the block.

    Args:
        folder: of this job alone.
        ranks: how many.
        restarts: that torchrun may make.
        linger: leave its hub's page for as long as is usual.
        to: a collector that has everything; there is no hub then.
    """
    port = free_port() if to is None else to.prometheus
    command = [sys.executable, "-m", "tachograph", "run", "--run-id", "the run"]
    command += ["--port", str(port)] if to is None else ["--no-hub", "--endpoint", f"http://127.0.0.1:{to.http}"]
    command += [] if linger or to else ["--linger", "0"]
    command += ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.5", str(write(folder, PROGRAM))]
    env = environment(folder, OMP_NUM_THREADS="1", TACHOGRAPH_SYSTEM_METRICS="")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    job = Job(folder, f"http://127.0.0.1:{port}", process)
    try:
        wait_until(lambda: job.steps() == ranks or process.poll() is not None, WITHIN, job.log)
        assert process.poll() is None, job.log()
        yield job
    finally:
        job.tell("stop")
        _end(job, ranks)


def _end(job: Job, ranks: int) -> None:
    for rank in range(ranks):
        with contextlib.suppress(OSError):
            os.kill(job.pid(rank), signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.process.wait(15)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if job.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(15)


@contextmanager
def watched(job: Job, given: str = "") -> Iterator[str]:
    """Run Prometheus with the shipped files, or a given configuration; yield its address once it has scraped ranks."""
    config = job.folder / "prometheus.yml"
    config.write_text(given or scraping(job.url))
    shutil.copytree(DEPLOY / "rules", job.folder / "rules")
    with prometheus(config) as base:
        wait_until(lambda: instant(base, "step"), WITHIN, lambda: api(base, "targets"))
        yield base


def firing(base: str) -> dict[tuple[str, str], str]:
    """Return the summaries of the alerts that fire, by name and rank."""
    found: list[dict[str, Any]] = api(base, "alerts")["alerts"]
    return {
        (each["labels"]["alertname"], each["labels"].get("dl_rank", "")): each["annotations"]["summary"]
        for each in found
        if each["state"] == "firing"
    }


def fired(base: str, seconds: float, until: Callable[[], bool] = lambda: False) -> set[tuple[str, str]]:
    """Return all alerts that fire within so many seconds, or until something holds."""
    found: set[tuple[str, str]] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        found.update(firing(base))
        time.sleep(1)
    return found


def fires(base: str, name: str, rank: int | None = None, *, since: float) -> str:
    """Wait for an alert on a rank, until so many seconds after its fault; return its summary."""
    key = name, "" if rank is None else str(rank)
    wait_until(lambda: key in firing(base), since + WITHIN - time.monotonic(), lambda: api(base, "alerts"))
    took = time.monotonic() - since
    print(f"{name} fired {took:.0f} s after the fault")  # noqa: T201 - what issue 9 asks for, in pytest -s
    return firing(base)[key]
