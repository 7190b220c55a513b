"""What runs is called, and which run it is: in one process, and alike in all processes of a run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.identity.environment import clean
from tachograph.identity.program import program_name
from tachograph.identity.resource import file_safe, run_id, service_name
from tachograph.identity.run_id import _from_proc, _from_ps, _minted

TASK_5 = {
    "SLURM_JOB_ID": "991",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_JOB_NAME": "pretrain",
}
TORCHRUN = ["python", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "-m", "x"], "train"),
        (["/usr/bin/python3.12", "-u", "/jobs/fine.tune.py"], "fine.tune"),
        (["python", "-m", "pkg.mod", "--lr", "1"], "pkg.mod"),
        (["python", "-um", "pkg.mod"], "pkg.mod"),
        (["python", "-mpkg.mod"], "pkg.mod"),
        (["python", "-m", "pkg.__main__"], "pkg"),
        (["python", "-W", "error", "-Xdev", "-X", "importtime", "train.py"], "train"),
        (["python", "--check-hash-based-pycs", "always", "train.py"], "train"),
        (["python", "jobs/train/__main__.py"], "train"),
        (["/venv/bin/python", "/venv/bin/my-trainer"], "my-trainer"),
        (["/opt/frozen/trainer", "--lr", "1"], "trainer"),
        (TORCHRUN, "train"),
        (["python", "/venv/bin/torchrun", "--standalone", "-t3", "--rdzv-id=7", "-m", "pkg.mod", "x.py"], "pkg.mod"),
        (["python", "-m", "torch.distributed.run", "-r", "3", "--no-python", "bin/train.sh"], "train"),
        (["python", "/lib/torch/distributed/run.py", "--nnodes=2", "--", "train.py"], "train"),
        (["python", "/venv/bin/torchrun"], "torch.distributed.run"),
    ],
)
def test_a_program_is_called_by_its_script_or_module(command: Sequence[str], name: str) -> None:
    """The service's name is the script's stem or the module; torchrun goes by the name of what it launches."""
    assert program_name(command) == name
    assert service_name({}, orig_argv=command) == name


@pytest.mark.parametrize("command", [["python"], ["python", "-"], ["python", "-c", "pass"], ["python", "-i"], [], [""]])
def test_a_program_without_a_name_is_python(command: Sequence[str]) -> None:
    """A service has a name even where the program has none, and it is never unknown_service."""
    assert program_name(command, argv=["-c"], main=object()) == "python"
    assert program_name(command) == "python"  # and not this process's name, as of tachograph run itself


def test_a_process_that_multiprocessing_made_has_its_parents_name() -> None:
    """A spawned process, whose command is the interpreter's own, is called like the program that made it."""
    command = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]
    assert program_name(command, argv=["/jobs/train.py"], main=object()) == "train"
    assert program_name(command, argv=["/lib/json/tool.py"], main=importlib.util.find_spec("json.tool")) == "tool"
    assert program_name(command, argv=["/lib/json/tool.py"], main=importlib.import_module("json.tool")) == "json.tool"


@given(st.lists(st.text()))
def test_every_command_has_a_name_that_can_be_sent(command: list[str]) -> None:
    """Whatever the command is, the service's name is not empty and valid Unicode."""
    assert program_name(command, argv=["-c"], main=object()).encode()


def test_the_run_id_comes_from_the_nearest_that_knows_it() -> None:
    """The order is: argument, dl.run.id, TACHOGRAPH_RUN, torchelastic, Slurm, Kubernetes."""
    environ = {
        "K8S_JOB_UID": "6d0f",
        **TASK_5,
        "TORCHELASTIC_RUN_ID": "job-7",
        "TACHOGRAPH_RUN": "mine",
        "OTEL_RESOURCE_ATTRIBUTES": "dl.run.id=a%2Fb",
    }
    assert run_id(environ, explicit="given") == "given"
    for variable, expected in (
        ("OTEL_RESOURCE_ATTRIBUTES", "a/b"),
        ("TACHOGRAPH_RUN", "mine"),
        ("TORCHELASTIC_RUN_ID", "job-7"),
        ("SLURM_STEP_ID", "991.0"),
        ("K8S_JOB_UID", "6d0f"),
    ):
        assert run_id(environ) == expected
        del environ[variable]
    assert run_id({**TASK_5, "TORCHELASTIC_RUN_ID": "none", "RANK": "0"}) == "991.0"


def test_a_minted_run_id_stays_the_same_and_names_the_program() -> None:
    """Without anybody who knows it, the id is made of the program, the start in UTC, and four hexadecimal digits."""
    first = run_id({}, orig_argv=["python", "train.py"])
    assert first == run_id({}, orig_argv=["python", "train.py"])
    name, day, clock, digits = first.rsplit("-", 3)
    assert (name, len(day), len(clock)) == ("train", 8, 6)
    assert day.isdigit()
    assert clock.isdigit()
    assert len(bytes.fromhex(digits)) == 2


SAYS_ITS_RUN = """
import os, subprocess, sys
from tachograph.identity.resource import run_id
print(run_id(os.environ), flush=True)
if sys.argv[1:] == ["ranks"]:
    for rank in ("0", "1"):
        ranked = {**os.environ, "RANK": rank, "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
        subprocess.run([sys.executable, __file__], env=ranked, check=True)
elif sys.argv[1:] == ["helper"]:
    owned = {**os.environ, "TACHOGRAPH__OWNER": f"0:0:{os.getpid()}"}
    subprocess.run([sys.executable, __file__], env=owned, check=True)
"""


def runs_of_task(folder: Path, shell: str, **slurm: str) -> list[str]:
    """Return the ids of the runs that a shell's programs belong to, as one task of ``srun`` on a node."""
    (folder / "train.py").write_text(SAYS_ITS_RUN)
    (folder / "torchrun").write_text(SAYS_ITS_RUN)
    environ = {"PATH": os.environ["PATH"], "TACHOGRAPH_STORE": str(folder / "store"), "PYTHON": sys.executable}
    step = {"SLURM_JOB_ID": "991", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    command = ["bash", "-c", f"{shell}\n:"]  # so that bash does not become its last command
    done = subprocess.run(
        command, cwd=folder, env={**environ, **step, **slurm}, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


LOOP = "for seed in 1 2 3; do $PYTHON train.py; done"


@pytest.mark.process
@pytest.mark.parametrize(
    "slurm",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},
        {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"},  # MpiDefault=pmix
        {"SLURM_STEP_NUM_TASKS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"SLURM_STEP_ID": "", "SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "8"},
    ],
    ids=["srun --pty bash", "in an allocation of 8", "with PMIx", "with a rank", "batch script"],
)
def test_programs_of_a_single_slurm_task_are_runs_of_their_own(tmp_path: Path, slurm: dict[str, str]) -> None:
    """Each program that a shell, a notebook or a batch script of an allocation starts mints an id of its own."""
    found = runs_of_task(tmp_path, LOOP, **slurm)
    assert len(set(found)) == 3
    assert all(run.startswith("train-") for run in found)


@pytest.mark.process
@pytest.mark.parametrize(
    "shell",
    [
        LOOP,
        f"export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS LOCAL_RANK=0; {LOOP}",
        f"export PMIX_RANK=$SLURM_PROCID; bash -c '{LOOP}\n:'",
        "$PYTHON train.py; exec bash -c '$PYTHON train.py; $PYTHON train.py; :'",
    ],
    ids=["loop", "exported rank", "nested shell", "exec"],
)
def test_a_loop_in_the_tasks_of_a_slurm_step_is_a_run_for_each_iteration(tmp_path: Path, shell: str) -> None:
    """All tasks of one ``srun`` call the first command ``<job>.<step>``, and the next ones ``-2`` and ``-3``."""
    for task in ("0", "1"):
        assert runs_of_task(tmp_path, shell, SLURM_PROCID=task) == ["991.0", "991.0-2", "991.0-3"]
    assert runs_of_task(tmp_path, LOOP, SLURM_STEP_ID="1")[0] == "991.1"


@pytest.mark.process
def test_all_processes_of_a_command_of_a_slurm_task_share_its_run(tmp_path: Path) -> None:
    """A torchrun on each node and its ranks, or a rank and its helper, are one command of their task."""
    shell = "for seed in 1 2; do $PYTHON torchrun ranks; done; $PYTHON train.py helper"
    expected = [*["991.0"] * 3, *["991.0-2"] * 3, *["991.0-3"] * 2]
    for task in ("0", "1"):
        assert runs_of_task(tmp_path, shell, SLURM_PROCID=task, SLURM_NODEID=task) == expected


@pytest.mark.process
def test_a_requeued_slurm_job_continues_its_runs(tmp_path: Path) -> None:
    """After a requeue the commands of a task are counted from the first one again."""
    for restarts in ("", "1", "2"):
        assert runs_of_task(tmp_path, LOOP, SLURM_RESTART_COUNT=restarts) == ["991.0", "991.0-2", "991.0-3"]


@pytest.mark.process
@pytest.mark.parametrize("given", [{"TACHOGRAPH_RUN": "mine"}, {"TORCHELASTIC_RUN_ID": "job-7"}])
def test_a_run_id_that_was_given_holds_for_all_commands_of_a_slurm_task(tmp_path: Path, given: dict[str, str]) -> None:
    """``TACHOGRAPH_RUN`` and torchelastic's run id are not numbered: a restart continues its run."""
    for tasks in ("1", "2"):
        assert set(runs_of_task(tmp_path, LOOP, SLURM_STEP_NUM_TASKS=tasks, **given)) == set(given.values())


@pytest.mark.process
def test_the_commands_of_old_slurm_jobs_are_removed(tmp_path: Path) -> None:
    """The first command of a job removes what was counted for jobs of more than 30 days ago."""
    jobs = tmp_path / "store" / "slurm"
    for job, days in (("5", 31), ("6", 29)):
        (jobs / job).mkdir(parents=True)
        (jobs / job / f"{job}.0.0").write_text("")
        os.utime(jobs / job, times=(time.time() - days * 86400,) * 2)
    assert runs_of_task(tmp_path, "$PYTHON train.py") == ["991.0"]
    assert sorted(path.name for path in jobs.iterdir()) == ["6", "991"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps")
def test_a_start_is_known_without_proc() -> None:
    """Where there is no /proc, as on macOS, ps tells the start of a process, to the second and always the same."""
    by_ps, by_proc = _from_ps(os.getpid()), _from_proc(os.getpid())
    assert by_ps is not None
    assert by_ps == _from_ps(os.getpid())
    assert abs(by_ps.unix_seconds - (by_proc.unix_seconds if by_proc else time.time())) < 60


@pytest.mark.process
def test_a_start_that_nobody_knows_is_now() -> None:
    """Where the launcher is out of sight, the id is of this process alone, and stays the same in it."""
    nobody = 2**30
    assert _minted("train", nobody) == _minted("train", nobody)
    assert _minted("train", nobody).startswith("train-")


@pytest.mark.process
def test_all_ranks_of_one_torchrun_mint_the_same_run_id(tmp_path: Path) -> None:
    """The agent, its ranks, a rank behind a shell and a rank's helper agree on the id; another torchrun has another."""
    say = "import os; from tachograph.identity.resource import run_id; print(run_id(os.environ), flush=True)\n"
    train = tmp_path / "train.py"
    train.write_text(
        f"import subprocess, sys\n{say}"
        "if len(sys.argv) == 1: subprocess.run([sys.executable, __file__, 'helper'], check=True)\n"
    )
    agent = tmp_path / "torchrun"
    agent.write_text(
        f"import subprocess, sys\n{say}"
        "env = {**os.environ, 'TORCHELASTIC_RUN_ID': 'none', 'RANK': '0'}\n"
        f"subprocess.run([sys.executable, '-u', {str(train)!r}], env=env, check=True)\n"
        f"shell = f'{{sys.executable}} {train}; exit $?'\n"
        "subprocess.run(['sh', '-c', shell], env={**env, 'RANK': '1'}, check=True)\n"
    )
    environ = {"PATH": os.environ["PATH"]}
    command = [sys.executable, str(agent), "--nproc-per-node", "2", str(train)]
    runs = [
        subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout.split()
        for _ in range(2)
    ]
    assert [len(said) for said in runs] == [5, 5]
    assert [len(set(said)) for said in runs] == [1, 1]
    assert runs[0][0] != runs[1][0]
    assert runs[0][0].startswith("train-")


@given(st.text(), st.text())
def test_different_runs_have_different_file_names(one: str, other: str) -> None:
    """A run's id becomes one file name, never a path, and no two ids share it."""
    for name in (one, other):
        assert Path(file_safe(name)).name == file_safe(name)
        assert 0 < len(file_safe(name).encode()) <= 200
    assert (file_safe(one) == file_safe(other)) == (clean(one) == clean(other))


def test_file_names_can_be_read() -> None:
    """The encoding is percent-encoding, so that the id can be read back; over-long ids are cut and stay apart."""
    assert file_safe("train-20261121-101500-ab12") == "train-20261121-101500-ab12"
    assert unquote(file_safe("a/b c:ü")) == "a/b c:ü"
    assert file_safe("..") == "%2E%2E"
    assert file_safe("x" * 300 + "1") != file_safe("x" * 300 + "2")


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.timeout(120)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_real_torchrun_makes_one_run_of_distinct_ranks(tmp_path: Path) -> None:
    """Under a real torchrun without a run id, ranks share the minted one and differ in rank and instance."""
    train = tmp_path / "train.py"
    train.write_text(
        "import json, os, pathlib\nfrom tachograph.identity.resource import resource_attributes\n"
        "pathlib.Path(os.environ['SAID'], os.environ['RANK']).write_text(json.dumps(resource_attributes()))\n"
    )
    rendezvous = ["--rdzv-id", "none", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous, str(train)]
    environ = {**os.environ, "SAID": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=100)
    said = [json.loads((tmp_path / rank).read_text()) for rank in ("0", "1")]
    assert [found["dl.rank"] for found in said] == [0, 1]
    assert [found["dl.role"] for found in said] == ["default", "default"]
    assert {found["service.name"] for found in said} == {"train"}
    assert len({found["dl.run.id"] for found in said}) == 1
    assert said[0]["dl.run.id"].startswith("train-")
    assert len({found["service.instance.id"] for found in said}) == 2
