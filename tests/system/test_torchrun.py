"""A real torchrun job: what its ranks record leaves, also when a peer dies under them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from programs import count, environment, exported, number, write

pytest.importorskip("torch")

TIME_LIMIT = 90.0
TRIES = 3


def torchrun(
    folder: Path, program: str, *arguments: str, ranks: int = 2, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a job; gloo by itself hangs now and then on a small machine: the job is tried again, never the assertion."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(write(folder, program)), *arguments]
    for _ in range(TRIES):
        for old in folder.glob("rank-*"):
            old.unlink()
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, OMP_NUM_THREADS="1", **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            try:
                out, err = job.communicate(timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
                continue
        return subprocess.CompletedProcess(command, job.returncode, out, err)
    pytest.fail(f"the job did not end within {TIME_LIMIT:g} s, {TRIES} times")


PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import tachograph

rank = int(os.environ["RANK"])
tachograph.start(metrics="jsonl", jsonl=f"rank-{rank}.jsonl")

@tachograph.prof
def step(number):
    dist.all_reduce(torch.ones(2))
    tachograph.put_metric("step.duration.ms", number)
    tachograph.put_metric("x.success", 1)

dist.init_process_group("gloo")
for number in range(300):
    step(number)
if sys.argv[1] == "crash":
    if rank == 1:
        os._exit(7)
    dist.broadcast(torch.ones(2), src=2)
    time.sleep(60)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", [pytest.param("well", marks=pytest.mark.long), "crash"])
def test_every_rank_delivers_everything(tmp_path: Path, how: str) -> None:
    """Ranks that end well, and ranks that torchrun terminates in a collective since a peer crashed, lose nothing."""
    done = torchrun(tmp_path, PROGRAM, how, ranks=3)
    assert (done.returncode == 0) == (how == "well"), done.stderr
    for rank in (0, 1, 2) if how == "well" else (0, 2):
        found = exported(tmp_path / f"rank-{rank}.jsonl")
        assert number(found["torchelastic", "x.success"]) == 300
        assert count(found["torchelastic", "step.duration"]) == 300
        assert count(found["torchelastic", "function.duration"]) == 300


@pytest.mark.long  # six processes of a rank, each with torch; test_launchers.py has those of one
def test_data_loader_workers_record_nothing_and_hang_nowhere(tmp_path: Path) -> None:
    """Workers of a DataLoader, forked or spawned, run code that records and are no ranks."""
    done = torchrun(
        tmp_path,
        """
import os
import torch
from torch.utils.data import DataLoader, Dataset
import tachograph

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        tachograph.put_metric("load.success", 1)
        return torch.tensor(float(index))

if __name__ in ("__main__", "__mp_main__"):
    rank = int(os.environ["RANK"])
    tachograph.start(metrics="jsonl", jsonl=f"rank-{rank}-{os.getpid()}.jsonl")
if __name__ == "__main__":
    tachograph.put_metric("main.success", 1)
    for context in ("fork", "spawn"):
        loader = DataLoader(Numbers(), 8, num_workers=2, multiprocessing_context=context)
        total = sum(batch.sum().item() for batch in loader)
        assert total == sum(range(64))
""",
    )
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("rank-*.jsonl"))
    assert len(files) == 2
    for file in files:
        assert number(exported(file)["torchelastic", "main.success"]) == 1
        assert ("torchelastic", "load.success") not in exported(file)
