"""Ranks that torchrun did not start: whichever launcher a job has, its values are stored under the right rank."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launches import RUN, base, metrics, run_program
from programs import environment, events, requests, value, write
from receivers import receiving
from tachograph import runs

pytestmark = pytest.mark.usefixtures("traced")

torch = pytest.importorskip("torch")
pytest.importorskip("uvicorn")

TIME_LIMIT = 120.0
TRIES = 3

SPAWNED = """
    import os, sys, time
    import torch.distributed as dist, torch.multiprocessing as mp
    import tachograph

    def work(rank, path):
        tachograph.put_metric("early", float(rank), "train")
        loss = tachograph.Metric("loss", throttle=None)
        loss.record(1.0, at=0)
        dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
        loss.record(0.5, at=1)
        tachograph.put_metric("late", float(rank), "train")
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.start_processes(work, args=(os.path.abspath(f"meeting-{os.getpid()}"),), nprocs=2, start_method=sys.argv[1])
"""


def job(folder: Path, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; gloo by itself hangs now and then on a small machine: the whole job is tried again."""
    for number in range(TRIES):
        command = [*RUN, "--run-id", "job", "--store", str(folder / f"store-{number}"), "--"]
        command += [sys.executable, str(write(folder, program)), *arguments]
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                continue
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    pytest.fail(f"the job did not end within {TIME_LIMIT:g} s, {TRIES} times")


def stored(folder: Path, metric: str) -> list[tuple[int | None, float]]:
    """Return rank and value of each point of a metric, as the last job of a folder has left them."""
    (*_, store) = sorted(folder.glob("store-*"))
    points = runs.open("job", store=store).points(metric)
    return sorted(((point.rank, point.value) for point in points), key=str)


@pytest.mark.parametrize(
    ("method", "rank"), [("spawn", ""), ("fork", ""), ("forkserver", ""), ("spawn", "5"), ("fork", "5")]
)
def test_children_of_multiprocessing_are_ranks_once_they_join(tmp_path: Path, method: str, rank: str) -> None:
    """What ranks of ``mp.start_processes`` record before and after they have joined is stored, under their own rank.

    So it is where the process above them has a RANK of its own, as a Kubernetes operator gives each pod.
    """
    done = job(tmp_path, SPAWNED, method, RANK=rank)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "early") == [(0, 0.0), (1, 1.0)]
    assert stored(tmp_path, "late") == [(0, 0.0), (1, 1.0)]
    assert stored(tmp_path, "loss") == [(0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]
    assert "8 points and 6 events were recorded, none lost; tachograph" in done.stderr


FABRIC = """
    import sys
    import tachograph
    from lightning.fabric import Fabric

    def train(fabric):
        tachograph.put_metric("late", float(fabric.global_rank), "train")
        fabric.barrier()

    if __name__ == "__main__":
        fabric = Fabric(accelerator="cpu", devices=2, strategy=sys.argv[1])
        if sys.argv[1] == "ddp":
            fabric.launch()
            train(fabric)
        else:
            fabric.launch(train)
"""


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_strategies_of_lightning(tmp_path: Path, strategy: str) -> None:
    """Lightning's own processes are ranks: a script that is started again, spawned and forked ones."""
    pytest.importorskip("lightning.fabric", reason="NOT TESTED: lightning is not installed")
    done = job(tmp_path, FABRIC, strategy)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "late") == [(0, 0.0), (1, 1.0)]


ACCELERATE = """
    import tachograph
    from accelerate import Accelerator, debug_launcher

    def train():
        tachograph.put_metric("early", 1.0, "train")
        accelerator = Accelerator(cpu=True)
        tachograph.put_metric("late", float(accelerator.process_index), "train")
        accelerator.wait_for_everyone()

    if __name__ == "__main__":
        debug_launcher(train, num_processes=2)
"""


def test_the_launcher_of_accelerate_forks(tmp_path: Path) -> None:
    """Accelerate's launcher for functions forks processes that join a group: ranks, with their first values."""
    pytest.importorskip("accelerate", reason="NOT TESTED: accelerate is not installed")
    done = job(tmp_path, ACCELERATE)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "early") == [(0, 1.0), (1, 1.0)]
    assert stored(tmp_path, "late") == [(0, 0.0), (1, 1.0)]


# The variables of each process, as its launcher sets them.
VARIABLES = {
    "DeepSpeed": {"RANK": "{}", "LOCAL_RANK": "{}", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_LOCAL_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2"},
    "MPICH": {"PMI_RANK": "{}", "MPI_LOCALRANKID": "{}", "PMI_SIZE": "2"},
    "srun": {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "{}",
        "SLURM_LOCALID": "{}",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
    },
}


@pytest.mark.parametrize("launcher", VARIABLES)
def test_the_variables_of_a_launcher(tmp_path: Path, launcher: str) -> None:
    """A process that finds its rank in the variables of its launcher has it; what it starts itself is its helper."""
    program = f"""
        import json, os, subprocess, sys
        import tachograph
        if len(sys.argv) == 1:
            given = {VARIABLES[launcher]!r}
            each = [{{name: value.format(n) for name, value in given.items()}} for n in range(2)]
            ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env={{**os.environ, **own}}) for own in each]
            sys.exit(any([rank.wait() for rank in ranks]))
        tachograph.put_metric("of." + sys.argv[1], 1.0)
        if sys.argv[1] == "rank":
            subprocess.run([sys.executable, __file__, "helper"], check=True)
    """
    with receiving() as receiver:
        done = run_program(tmp_path, program, options=("--quiet", "--endpoint", base(receiver)), timeout=120)
        found = [(point.name, point.resource) for point in metrics(receiver) if point.name.startswith("of.")]
    assert done.returncode == 0, done.stderr
    assert {name for name, _ in found} == {"of.rank"}
    said = {(each["dl.rank"], each["dl.local_rank"], each["dl.world_size"]) for _, each in found}
    assert said == {(0, 0, 2), (1, 1, 2)}
    assert len({each["service.instance.id"] for _, each in found}) == 2
    assert done.stderr.count("recorded in a helper process") == 2


def test_a_launcher_that_leaves_the_rank_to_torch(tmp_path: Path) -> None:
    """With LOCAL_RANK alone the first values wait for the rank; of a process that joins no group they have none."""
    program = """
        import os, subprocess, sys, time
        import torch.distributed as dist
        import tachograph
        if len(sys.argv) == 1:
            given = {**os.environ, "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}
            started = [subprocess.Popen([sys.executable, __file__, how], env=given) for how in ("joins", "never")]
            sys.exit(any([each.wait() for each in started]))
        tachograph.put_metric(sys.argv[1], 1.0, "train")
        time.sleep(1.5)
        if sys.argv[1] == "joins":
            dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('alone')}", rank=0, world_size=1)
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "joins") == [(0, 1.0)]
    assert stored(tmp_path, "never") == [(None, 1.0)]


def test_workers_of_a_data_loader_are_helpers(tmp_path: Path) -> None:
    """What they record is no rank's: it is counted, for all of them, and said once; nothing else is lost."""
    program = """
        import os
        import torch, tachograph
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Dataset

        class Items(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, place):
                tachograph.put_metric("decoded", float(place), "data")
                return torch.zeros(1)

        if __name__ == "__main__":
            dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('alone')}", rank=0, world_size=1)
            for method in ("fork", "spawn", "forkserver"):
                for _ in DataLoader(Items(), num_workers=2, multiprocessing_context=method):
                    tachograph.put_metric("step", 1.0, "train")
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path, "step") == [(0, 1.0)] * 24
    # Two events more where the process had been heard before it was a rank.
    assert re.search(r": 24 points and [24] events were recorded, lost: 24 points: helper 24; tachograph", done.stderr)
    assert done.stderr.count("recorded in a helper process") == 1
    assert re.search(r"^4 values were recorded in a helper process \(program, pid \d+\)", done.stderr, re.MULTILINE)


def test_a_start_before_the_rank_is_known(tmp_path: Path) -> None:
    """``start()`` takes the rank once the process joins: on its page, in what it sends, with one run id for all."""
    program = """
        import os, sys, urllib.request
        import torch.distributed as dist, torch.multiprocessing as mp
        import tachograph

        def work(rank, path):
            pipeline = tachograph.start(
                metrics=["prometheus", "jsonl"], logs="jsonl", jsonl=f"rank-{rank}.jsonl", prometheus_port=0
            )
            tachograph.Metric("loss").record(rank, at=0)
            dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
            page = urllib.request.urlopen(pipeline.metrics_url).read().decode()
            assert f'loss{{dl_rank="{rank}"' in page, page
            dist.barrier()

        if __name__ == "__main__":
            mp.spawn(work, args=(os.path.abspath("meeting"),), nprocs=2)
    """
    done = subprocess.run(
        [sys.executable, str(write(tmp_path, program))],
        cwd=tmp_path,
        env=environment(tmp_path, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_ids = set()
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.jsonl"
        assert [
            event["attributes"]["value"] for event in events(path) if event["eventName"] == "tachograph.metric"
        ] == [rank]
        resources = [
            {pair["key"]: value(pair["value"]) for pair in resource["resource"]["attributes"]}
            for request in requests(path)
            for resource in request.get("resourceLogs", []) + request.get("resourceMetrics", [])
        ]
        # On a busy machine some left before the rank was known.
        assert (resources[-1]["dl.rank"], resources[-1]["dl.world_size"]) == (rank, 2)
        run_ids |= {resource["dl.run.id"] for resource in resources}
    assert len(run_ids) == 1
