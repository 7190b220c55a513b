"""The run's id: one for all processes and restarts of a run."""

from __future__ import annotations

import calendar
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tachograph.identity.environment import clean, resource_variable, text
from tachograph.identity.program import is_agent, program_name, worker_parent
from tachograph.identity.rank import RANK_VARIABLES
from tachograph.recording.ids import random_hex

_ANCESTORS = 64
_FILE_NAME_LENGTH = 200  # file systems take 255 bytes; suffixes such as .db-wal follow


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
    unless it is ``none``; Slurm's ``<job>.<step>``, the job alone in a batch script; the Kubernetes job's uid, where
    the pod's specification puts it into K8S_JOB_UID (see :mod:`tachograph.identity.resource`).

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
    job, step = text(environ, "SLURM_JOB_ID"), text(environ, "SLURM_STEP_ID")
    if job:
        return f"{job}.{step}" if step else job
    uid = text(environ, "K8S_JOB_UID")
    if uid:
        return uid
    return _minted(program_name(orig_argv), _launcher(environ, orig_argv))


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
    mark = f"{'TORCHELASTIC_RUN_ID' if 'TORCHELASTIC_RUN_ID' in environ else given}=".encode()
    current = _above_workers()
    if not given:
        return current
    if current == os.getpid():
        if given not in RANK_VARIABLES and not _was_given(current, mark):
            return current
        current = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            parent = int(_stat(current)[1])
        except (OSError, ValueError, IndexError):
            break
        if parent <= 0 or not _was_given(current, mark):
            break
        current = parent
    return current


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
