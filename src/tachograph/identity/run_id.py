"""The run's id: one for all processes and restarts of a run."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TextIO
from urllib.parse import quote

from tachograph.identity.environment import clean, resource_variable, store, text
from tachograph.identity.program import is_agent, program_name, worker_parent
from tachograph.identity.rank import OWNER, RANK_VARIABLES, is_slurm_rank
from tachograph.recording.ids import random_hex

_ANCESTORS = 64
_FILE_NAME_LENGTH = 200  # file systems take 255 bytes; suffixes such as .db-wal follow
_COUNTS_ARE_KEPT = 30 * 24 * 3600.0  # seconds, for the commands of a Slurm job


class _Started(NamedTuple):
    unix_seconds: float
    identity: str


class _Begun(NamedTuple):
    pid: int
    launcher: int
    started: _Started


_begun: _Begun | None = None  # the run for which this process, or the one it was forked from, has minted an id


def run_id(environ: Mapping[str, str], *, explicit: str | None = None, orig_argv: Sequence[str] | None = None) -> str:
    """Return the run's id: given, or from the launcher or scheduler, or else minted.

    In this order: ``explicit``; ``dl.run.id`` of OTEL_RESOURCE_ATTRIBUTES; TACHOGRAPH_RUN; torchelastic's run id
    unless it is ``none``; Slurm's ``<job>.<step>`` in a step of several tasks; the Kubernetes job's uid, where the
    pod's specification puts it into K8S_JOB_UID (see :mod:`tachograph.identity.resource`).

    The tasks of one ``srun`` share ``<job>.<step>``. If a task runs several commands one after the other, they are
    different runs: the second one of each task has ``<job>.<step>-2``, the third one ``-3``. A single task mints an id
    for each program, as do a batch script, ``srun --pty bash`` and a notebook.

    A minted id is ``<program>-<UTC yyyymmdd-HHMMSS>-<4 hex>``, from the start of the process that began the run: the
    launcher of a rank, found as the next ancestor that is no rank itself, or else this process. So all ranks of one
    torchrun, mpirun or ``mp.spawn`` on a node mint the same one, now and after a restart, as the agent itself does.
    A forked child belongs to the run for which its parent has minted one.
    """
    given = explicit or resource_variable(environ).get("dl.run.id") or text(environ, "TACHOGRAPH_RUN")
    if given:
        return clean(given)
    elastic = text(environ, "TORCHELASTIC_RUN_ID")
    if elastic and elastic.lower() != "none":
        return elastic
    launcher = _launcher(environ, orig_argv)
    step = _shared_step(environ)
    if step:
        number = _command_number(environ, step, launcher)
        return step if number == 1 else f"{step}-{number}"
    uid = text(environ, "K8S_JOB_UID")
    if uid:
        return uid
    return _minted(program_name(orig_argv), launcher)


def run_id_of_command(environ: Mapping[str, str], command: Sequence[str], *, explicit: str | None = None) -> str:
    """Return the id of a run that will be started: as :func:`run_id`, and ``--rdzv-id`` before torchelastic's.

    Args:
        environ: environment variables.
        command: the command that will be run.
        explicit: the user's id.
    """
    given = explicit or resource_variable(environ).get("dl.run.id") or text(environ, "TACHOGRAPH_RUN")
    rendezvous = _rendezvous(command)
    if not given and rendezvous.lower() not in ("", "none"):
        return clean(rendezvous)
    return run_id(environ, explicit=explicit, orig_argv=command)


def _rendezvous(command: Sequence[str]) -> str:
    """Return the value of torchrun's ``--rdzv-id``, which it also takes as ``--rdzv_id``."""
    for place, argument in enumerate(command):
        name, equals, value = argument.partition("=")
        if name in ("--rdzv-id", "--rdzv_id"):
            return value if equals else (*command[place + 1 :], "")[0]
    return ""


def file_safe(name: str) -> str:
    """Return a file name for a run's id, or for any text, without a separator; percent-encoded.

    Different ids have different names; an over-long one ends in a digest instead of its last characters.
    """
    encoded = quote(clean(name), safe="")
    if not encoded.strip("."):
        encoded = "%2E" * len(encoded) or "%"
    if len(encoded) <= _FILE_NAME_LENGTH:
        return encoded
    return f"{encoded[: _FILE_NAME_LENGTH - 34]}%-{hashlib.sha256(clean(name).encode()).hexdigest()[:32]}"


def _shared_step(environ: Mapping[str, str]) -> str:
    """Return ``<job>.<step>`` in a Slurm step of several tasks, which is one job of several ranks; otherwise nothing.

    All programs of an allocation have SLURM_JOB_ID, and all that a shell or a notebook in it starts have a step.
    """
    job = text(environ, "SLURM_JOB_ID")
    step = text(environ, "SLURM_STEP_ID")
    tasks = text(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    several = tasks.isdecimal() and tasks.lstrip("0") not in ("", "1")
    return f"{job}.{step}" if job and step and several else ""


def _command_number(environ: Mapping[str, str], step: str, command: int) -> int:
    """Return which command of its Slurm task a process is: 1 for the first one that asks.

    A file for each task lists its commands in the order in which they asked. Each node counts the commands of its own
    tasks, so that the iterations of a loop have the same number on all nodes. All processes that a listed command has
    started have its number. A requeued job counts anew: its first command continues the run.

    Args:
        environ: environment variables.
        step: ``<job>.<step>``.
        command: the process that asks, or that has started it as a rank.
    """
    ancestry = _ancestry_in_task(command)
    if not ancestry:
        return 1
    parts = (step, text(environ, "SLURM_PROCID"), text(environ, "SLURM_RESTART_COUNT"))
    try:
        with (
            _counts_of_job(environ)
            .joinpath(file_safe(".".join(filter(None, parts))))
            .open("a+", encoding="utf-8") as file
        ):
            number = _listed_number(file, ancestry)
            if number is None:
                file.write(f"{ancestry[0]}\n")  # one short line, appended whole: another process may append its own
                file.flush()
                number = _listed_number(file, ancestry)
    except OSError:
        return 1
    return number or 1


def _ancestry_in_task(pid: int) -> list[str]:
    """Return the identities of a process and its ancestors that belong to a Slurm task, the process's own first.

    It is empty if the process was not started in a task, but is asked about the environment of another process.
    """
    ancestry: list[str] = []
    while len(ancestry) < _ANCESTORS and pid > 0 and _was_given(pid, b"SLURM_PROCID="):
        started = _from_proc(pid)
        if started is None:
            break
        ancestry.append(started.identity)
        pid = _parent(pid)
    return ancestry


def _listed_number(file: TextIO, ancestry: Sequence[str]) -> int | None:
    """Return the place in a file of commands of the nearest process that it lists, from 1 on; None if it lists none.

    Commands of another boot of the node are of another job: Slurm gives an id again one day.
    """
    file.seek(0)
    node, _, _ = ancestry[0].rsplit(":", 2)
    commands = [line for line in dict.fromkeys(file.read().splitlines()) if line.rsplit(":", 2)[0] == node]
    return next((commands.index(identity) + 1 for identity in ancestry if identity in commands), None)


def _counts_of_job(environ: Mapping[str, str]) -> Path:
    """Return the folder with the commands of a Slurm job's tasks; remove those of old jobs when a job begins.

    Raises:
        OSError: it cannot be made.
    """
    jobs = store(environ) / "slurm"
    jobs.mkdir(parents=True, exist_ok=True)
    folder = jobs / file_safe(text(environ, "SLURM_JOB_ID"))
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    oldest = time.time() - _COUNTS_ARE_KEPT
    for job in jobs.iterdir():
        with contextlib.suppress(OSError):
            if job.stat().st_mtime < oldest:
                shutil.rmtree(job)
    return folder


def _minted(program: str, launcher: int) -> str:
    global _begun  # noqa: PLW0603 - of the process, as its start is
    own = os.getpid()
    if _begun is None or (launcher != _begun.launcher and (launcher != own or _begun.pid == own)):
        _begun = _Begun(own, launcher, _from_proc(launcher) or _from_ps(launcher) or _unknown_start())
    started = _begun.started
    day = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started.unix_seconds))
    return f"{program}-{day}-{hashlib.sha256(started.identity.encode()).hexdigest()[:4]}"


def _launcher(environ: Mapping[str, str], orig_argv: Sequence[str] | None) -> int:
    """Return the pid of the process that began the run.

    Between a rank and the launcher there may be a shell (``torchrun --no-python``), and above a helper its rank: all
    of them were started with the rank's variables. Children of multiprocessing may have none, and belong to the run of
    their parent; Lightning's first rank gets its own only once it runs.
    """
    given = next((name for name in (*RANK_VARIABLES, "LOCAL_RANK") if text(environ, name)), "")
    if is_agent(orig_argv):
        return os.getpid()
    if is_slurm_rank(environ):  # srun starts the shell of a loop with the rank's variables, too: no mark of a launcher
        return _first_without(f"{OWNER}=".encode(), _above_workers())
    mark = f"{'TORCHELASTIC_RUN_ID' if 'TORCHELASTIC_RUN_ID' in environ else given}=".encode()
    current = _above_workers()
    if not given:
        return current
    if current == os.getpid():
        if given not in RANK_VARIABLES and not _was_given(current, mark):
            return current
        current = os.getppid()
    return _first_without(mark, current)


def _first_without(mark: bytes, pid: int) -> int:
    """Return the first of a process and its ancestors that was not started with a variable; see :func:`_was_given`."""
    for _ in range(_ANCESTORS):
        parent = _parent(pid)
        if parent <= 0 or not _was_given(pid, mark):
            break
        pid = parent
    return pid


def _parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if it has none, or none that can be seen."""
    try:
        return int(_stat(pid)[1])
    except (OSError, ValueError, IndexError):
        return 0


def _was_given(pid: int, mark: bytes) -> bool:
    """Tell whether a process was started with a variable, given with its equals sign."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(mark) for variable in variables)


def _above_workers() -> int:
    """Return the pid of the process above this one and those between that multiprocessing has started; or this one."""
    current = worker_parent()
    if current is None:
        return os.getpid()
    for _ in range(_ANCESTORS):
        try:
            words = Path(f"/proc/{current}/cmdline").read_bytes().split(b"\0")
            above = int(_stat(current)[1])
        except (OSError, ValueError, IndexError):
            break
        if b"--multiprocessing-fork" not in words or above <= 0:
            break
        current = above
    return current


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state (the third) on: proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _from_proc(pid: int) -> _Started | None:
    try:
        ticks = int(_stat(pid)[19])
        system = Path("/proc/stat").read_text(encoding="ascii")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        booted = next(int(line.split()[1]) for line in system.splitlines() if line.startswith("btime "))
        after = ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return _Started(booted + after, f"{socket.gethostname()}:{boot}:{pid}:{ticks}")


def _from_ps(pid: int) -> _Started | None:
    """Return the start of a process where there is no ``/proc``: macOS."""
    path = os.environ.get("PATH", os.defpath)
    try:
        said = subprocess.run(  # noqa: S603 - a fixed command and a number
            ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607 - wherever the system has it
            env={"LC_ALL": "C", "TZ": "UTC", "PATH": path},
            capture_output=True,
            check=True,
            timeout=5,
            text=True,
        ).stdout.strip()
        started = calendar.timegm(time.strptime(said, "%a %b %d %H:%M:%S %Y"))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Started(started, f"{socket.gethostname()}:{pid}:{started}")


@lru_cache(maxsize=1)
def _unknown_start() -> _Started:
    return _Started(time.time(), random_hex())
