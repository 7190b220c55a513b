"""The tested launchers, and docs/launchers.md: the values that their ranks record compared with the stored ones.

``python tests/launchers.py`` runs a job with each launcher and writes the page; ``test_launchers.py`` runs the same
jobs and compares each with its row.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launches import RUN
from places import ROOT
from programs import environment, write
from tachograph import runs

PAGE = ROOT / "docs" / "launchers.md"
TIME_LIMIT = 75.0
TRIES = 2
BIN = Path(sys.executable).parent

# Each process writes each value to its own file before recording it, and each rank writes down its process id.
_TRAINING = """
    import os
    import tachograph

    def note(name, value):
        with open(f"{os.environ['NOTES']}/{os.getpid()}", "a") as file:
            file.write(f"{name} {float(value)!r}\\n")

    def early():
        note("seen", os.getpid())
        tachograph.put_metric("seen", os.getpid(), "train")

    def train(rank):
        with open(f"{os.environ['NOTES']}/rank-{rank}", "x") as file:
            file.write(str(os.getpid()))
        loss = tachograph.Metric("loss", throttle=None)
        for step in range(100):
            note("loss", rank + step / 128)
            loss.record(rank + step / 128, at=step)
        note("seen", rank)
        tachograph.put_metric("seen", rank, "train")
"""
_JOINS = """
    import os, sys, time
    import torch.distributed as dist
    from training import early, train
    early()
    time.sleep(float(os.environ.get("PAUSE", "0")))
    rank = int((*sys.argv, os.environ.get("RANK"))[1])
    dist.init_process_group("gloo", init_method="file://" + os.environ["NOTES"] + "/meeting", rank=rank, world_size=2)
    train(rank)
    dist.barrier()
    dist.destroy_process_group()
"""
_ALONE = """
    import subprocess, sys
    if len(sys.argv) == 1:
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in range(2)]
        sys.exit(any([rank.wait() for rank in ranks]))
"""
_SPAWNED = """
    import os, sys
    import torch.distributed as dist, torch.multiprocessing as mp
    from training import early, train

    def work(rank, meeting):
        early()
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
        train(rank)
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.start_processes(work, args=(os.environ["NOTES"] + "/meeting",), nprocs=2, start_method=sys.argv[1])
"""
_LIGHTNING = """
    import sys, warnings
    import lightning, torch
    from training import early, train

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            if number == 1:
                train(self.global_rank)
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if __name__ == "__main__":
        early()
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=1, barebones=True
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.zeros(4, 1)))
"""
_ACCELERATE = """
    from accelerate import Accelerator, debug_launcher
    from training import early, train

    def work():
        early()
        accelerator = Accelerator(cpu=True)
        train(accelerator.process_index)
        accelerator.wait_for_everyone()
        accelerator.end_training()

    if __name__ == "__main__":
        {call}
"""
# A rank starts a child process, which inherits its environment variables: a helper.
_OF_A_LAUNCHER = """
    import os, subprocess, sys
    from training import early, train
    early()
    if sys.argv[1:] != ["helper"]:
        train(int(os.environ[{variable!r}]))
        subprocess.run([sys.executable, __file__, "helper"], check=True)
"""
_STAND_IN = """
    import os, subprocess, sys
    if len(sys.argv) == 1:
        given = {given!r}
        each = [{{name: value.format(rank) for name, value in given.items()}} for rank in range(2)]
        ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env={{**os.environ, **own}}) for own in each]
        sys.exit(any([rank.wait() for rank in ranks]))
"""
_DEEPSPEED = {"RANK": "{}", "LOCAL_RANK": "{}", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0"}
_SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "{}",
    "SLURM_LOCALID": "{}",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
}
_PYTHON = (sys.executable,)
_TORCHRUN = (*_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_ACCELERATE_LAUNCH = (str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
_ACCELERATE_REST = ("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no")
_MPICH = (str(BIN / "mpiexec.hydra"), "-n", "2", *_PYTHON)
# Both wheels install an mpiexec. Open MPI's runs this program (mpirun(1), "prterun").
_OPEN_MPI = (str(BIN / "prterun"), "--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "-n", "2", *_PYTHON)
_AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}


class Launcher(NamedTuple):
    """A way to start two ranks.

    Attributes:
        title: its name on the page.
        rank_source: where the rank comes from, for the page.
        program: the program of the ranks, or of the process that starts them.
        command: the command before the program's path.
        arguments: the arguments after it.
        others: the roles of processes that are not ranks.
        rankless: the number of values stored without a rank.
        helpers: the number of values from helpers, which are dropped and counted.
        places: whether each rank knows its local rank.
        more: environment variables of the job.
    """

    title: str
    rank_source: str
    program: str
    command: tuple[str, ...] = _PYTHON
    arguments: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    rankless: int = 0
    helpers: int = 0
    places: bool = False
    more: Mapping[str, str] = {}


def _of_variables(title: str, given: Mapping[str, str], variable: str) -> Launcher:
    program = _STAND_IN.format(given=given) + _OF_A_LAUNCHER.format(variable=variable)
    return Launcher(title, f"`{variable}`", program, others=("",), helpers=2, places=True)


def _of_mpi(title: str, command: tuple[str, ...], variable: str, more: Mapping[str, str]) -> Launcher:
    program = _OF_A_LAUNCHER.format(variable=variable)
    return Launcher(title, f"`{variable}`", program, command, helpers=2, places=True, more=more)


_GROUP = "`init_process_group`"

LAUNCHERS = {
    "torchrun": Launcher("`torchrun`", "`RANK`", _JOINS, _TORCHRUN, others=("agent",), places=True),
    "accelerate": Launcher(
        "`accelerate launch`",
        "`RANK`",
        _ACCELERATE.format(call="work()"),
        (*_ACCELERATE_LAUNCH, *_ACCELERATE_REST),
        others=("agent",),
        places=True,
    ),
    "accelerate-function": Launcher(
        "Accelerate's `debug_launcher`",
        _GROUP,
        _ACCELERATE.format(call="debug_launcher(work, num_processes=2)"),
        others=("",),
    ),
    "lightning-ddp": Launcher('Lightning\'s `"ddp"`', _GROUP, _LIGHTNING, arguments=("ddp",), rankless=1),
    "lightning-spawn": Launcher(
        'Lightning\'s `"ddp_spawn"`', _GROUP, _LIGHTNING, arguments=("ddp_spawn",), others=("",), rankless=1
    ),
    "lightning-fork": Launcher(
        'Lightning\'s `"ddp_fork"`', _GROUP, _LIGHTNING, arguments=("ddp_fork",), others=("",), rankless=1
    ),
    "spawn": Launcher("`mp.spawn`", _GROUP, _SPAWNED, arguments=("spawn",), others=("",)),
    "fork": Launcher("`mp.start_processes`: fork", _GROUP, _SPAWNED, arguments=("fork",), others=("",)),
    "forkserver": Launcher(
        "`mp.start_processes`: forkserver", _GROUP, _SPAWNED, arguments=("forkserver",), others=("",)
    ),
    "spawn-below-a-rank": Launcher(
        "`mp.spawn` in a pod with `RANK=5`", _GROUP, _SPAWNED, arguments=("spawn",), others=("",), more={"RANK": "5"}
    ),
    "fork-below-a-rank": Launcher(
        "fork in a pod with `RANK=5`", _GROUP, _SPAWNED, arguments=("fork",), others=("",), more={"RANK": "5"}
    ),
    "group-alone": Launcher(
        "any, without variables", _GROUP, _ALONE + _JOINS, others=("",), rankless=2, more={"PAUSE": "2.5"}
    ),
    "open-mpi": _of_mpi("Open MPI's `mpirun`", _OPEN_MPI, "OMPI_COMM_WORLD_RANK", _AS_ROOT),
    "mpich": _of_mpi("MPICH's `mpiexec`", _MPICH, "PMI_RANK", {}),
    "deepspeed": _of_variables("DeepSpeed's variables", _DEEPSPEED, "RANK"),
    "srun": _of_variables("`srun`'s variables", _SRUN, "SLURM_PROCID"),
}


class Found(NamedTuple):
    """The result of a finished job.

    Attributes:
        recorded: how often each rank recorded each value, from the files that the processes wrote; the rank is
            None for processes that are not ranks.
        stored: the same, from the store.
        processes: the processes of the run, without those that later became a rank.
        said: the lines that ``tachograph run`` and the job wrote to stderr.
    """

    recorded: Counter[tuple[int | None, str, float]]
    stored: Counter[tuple[int | None, str, float]]
    processes: list[runs.Process]
    said: str

    @property
    def lost(self) -> str:
        """Return the losses in the last line of ``tachograph run``."""
        return re.findall(r"recorded [^;]+?, (?:lost: )?((?:none lost|[\d,]+ points?: ).*?); see it again", self.said)[
            -1
        ]


def run(launcher: Launcher, folder: Path) -> Found:
    """Run a launcher's job to its end.

    Raises:
        AssertionError: the job failed; the message is its stderr.
    """
    write(folder, _TRAINING, "training.py")
    done, number = job(folder, launcher.program, *launcher.arguments, command=launcher.command, **launcher.more)
    assert done.returncode == 0, done.stderr
    notes, store = folder / f"notes-{number}", folder / f"store-{number}"
    ranks = {path.read_text(): int(path.name.partition("-")[2]) for path in notes.glob("rank-*")}
    recorded = Counter(
        (ranks.get(path.name), name, float(value))
        for path in notes.glob("[0-9]*")
        for name, value in map(str.split, path.read_text().splitlines())
    )
    run = runs.open("job", store=store)
    stored = Counter((point.rank, name, point.value) for name in ("seen", "loss") for point in run.points(name))
    processes = [each for each in run.processes() if each.ended != "renamed"]
    return Found(recorded, stored, processes, done.stderr)


def job(
    folder: Path, program: str, *arguments: str, command: tuple[str, ...] = _PYTHON, **more: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a job to its end, and return the number of the attempt, which is part of the names of its folders.

    gloo sometimes hangs on a small machine, so a job that does not end is run again.

    Raises:
        TimeoutError: no attempt ended in time.
    """
    path = str(write(folder, program))
    for number in range(TRIES):
        (notes := folder / f"notes-{number}").mkdir()
        under = [*RUN, "--run-id", "job", "--store", str(folder / f"store-{number}"), "--"]
        wanted = environment(folder, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", NOTES=str(notes), **more)
        with subprocess.Popen(
            [*under, *command, path, *arguments],
            cwd=folder,
            env=wanted,
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
        return subprocess.CompletedProcess(process.args, process.returncode, out, err), number
    raise TimeoutError(f"the job did not end within {TIME_LIMIT:g} s, {TRIES} times")


def others_of(found: Found) -> list[runs.Process]:
    """Return the processes of a job that are not one of its two ranks."""
    return [each for each in found.processes if each.rank not in (0, 1)]


def row(launcher: Launcher, found: Found) -> str:
    """Return the row of a launcher on the page."""
    recorded = found.recorded.total()
    ranks = [sum(n for (rank, *_), n in found.stored.items() if rank == wanted) for wanted in (0, 1, None)]
    others = [
        (each.role or "the program") + ("" if each.rank is None else f", as rank {each.rank}")
        for each in others_of(found)
    ]
    cells = (launcher.title, launcher.rank_source, ", ".join(others) or "none", recorded, *ranks, found.lost)
    return "| " + " | ".join(map(str, cells)) + " |\n"


_HEAD = """# Launchers, ranks and values

<!-- Made by `python tests/launchers.py`; do not edit it here. -->

This page shows that Tachograph finds out the rank of each process with all common launchers, and stores each value once
and under the rank that recorded it. Each row is a job with two ranks under `tachograph run`. Rows that say *variables*
only set the launcher's environment variables; all others use the real launcher.

Each rank records one value before it joins its process group (with Lightning, the program does so before `fit()`) and
101 values after that. `tests/system/test_launchers.py` compares the stored values with those that each process wrote to
its own file.

| launcher | the rank is from | other processes | recorded | rank 0 | rank 1 | no rank | lost |
|---|---|---|--:|--:|--:|--:|---|
"""
_TAIL = """
- **Rank known late.** If a launcher or `multiprocessing` started the process, values from before the process group also
  get the rank, up to 10,000 of them. A program that you start directly may have no rank at all, so its values are sent
  after one second. Values from before its process group then have no rank, as with Lightning before `fit()`.
- **Agents.** The processes of torchrun and `accelerate launch` themselves have the role `agent` and no rank.
- **Helpers.** In the last four rows, each rank starts a child process, which inherits the environment variables but
  does not join the process group. Its value is dropped and counted with the reason `helper`. It is recorded only with
  `TACHOGRAPH_HELPERS=true`.

See also: [hub](hub.md) · [bridges](bridges.md) · [how zero-code recording works](zero-code.md)
"""


def main() -> None:
    """Run a job with each launcher and write the page."""
    rows = []
    for name, launcher in LAUNCHERS.items():
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(launcher, run(launcher, Path(folder))))
    PAGE.write_text(_HEAD + "".join(rows) + _TAIL, encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
