"""Steps of several ranks: DDP, accumulation without synchronisation, FSDP, a pipeline; and the rank that is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import programs
from tachograph.diagnosis.verdict_run import Diagnosis, StepStream, diagnose_run, step_streams
from tachograph.runs.file import RunFile, look

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Each part has a model of its own; the last one, in which rank 1 is slow, has most of the steps.
JOB = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
x, y = torch.randn(40, 64), torch.arange(40) % 10

def net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def batches():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)

def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)

def pipeline():
    part = nn.Linear(64, 64) if rank == 0 else nn.Linear(64, 10)
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    for x, y in batches():
        optimizer.zero_grad()
        if rank == 0:
            out = part(x)
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            given = torch.empty(len(x), 64)
            dist.recv(given, 0)
            given.requires_grad_()
            loss(part, given, y).backward()
            dist.send(given.grad, 0)
        optimizer.step()

def accumulated():
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(batches()):
        if number % 2 == 0:
            with model.no_sync():
                loss(model, x, y).backward()
        else:
            loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()

def slow():
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20):
        for x, y in batches():
            if rank == 1:
                time.sleep(0.015)
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()

for part in (pipeline, accumulated, sharded, slow):
    part()
dist.destroy_process_group()
"""
STEPS = 10 + 5 + 10 + 200


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the job under ``tachograph run``, and return the run's file."""
    folder = tmp_path_factory.mktemp("ranks")
    script = programs.write(folder, JOB)
    tachograph = [sys.executable, "-m", "tachograph", "run", "--store", str(folder), "--run-id", "job", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*tachograph, *torchrun, str(script)],
        env=programs.environment(folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "tachograph: Rank 1 slows the others down by " in done.stderr
    return folder / "runs" / "job.db"


@pytest.fixture(scope="module")
def streams(ran: Path) -> list[StepStream]:
    """Return the totals of each rank."""
    with look(RunFile(ran)) as reading:
        return step_streams(reading, recent=False)


@pytest.fixture(scope="module")
def diagnosed(ran: Path) -> Diagnosis:
    """Return the diagnosis of the run."""
    with look(RunFile(ran)) as reading:
        return diagnose_run(reading, 0, recent=False)


def test_each_rank_has_the_steps_of_the_program(streams: list[StepStream]) -> None:
    """A pipeline's halves, ``no_sync``, shards and replicas have as many steps as the program takes."""
    assert {stream.rank: stream.last["steps"] for stream in streams} == {0: STEPS, 1: STEPS}
    assert {stream.rank: stream.last["samples"] for stream in streams} == {0: 920, 1: 920}


def test_phases_add_up_on_each_rank(streams: list[StepStream]) -> None:
    """All time between the first mark and the end of the last step is in a phase of a step."""
    for stream in streams:
        assert sum(stream.last["phases"]) == stream.last["end"] - stream.last["begin"]


def test_communication_is_timed_on_each_rank(streams: list[StepStream]) -> None:
    """DDP's own figures of its timed steps are read, on the ranks' training threads."""
    for stream in streams:
        samples, waited = stream.last["communication"]
        assert 1 <= samples <= STEPS / 10
        assert 0 <= waited < stream.last["end"] - stream.last["begin"]


def test_the_slow_rank_is_named(diagnosed: Diagnosis) -> None:
    """Both ranks' steps last as long, and the verdict names the one that the other waits for, and its phase."""
    found = diagnosed.verdicts[0]
    assert (found.name, found.ranks, found.severity) == ("straggler", (1,), "critical")
    assert "more per step in forward, and the others wait" in found.evidence
    assert diagnosed.scores[1] > 0.3 > diagnosed.scores[0]
