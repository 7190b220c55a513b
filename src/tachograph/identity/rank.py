"""Ranks, and processes that only inherited a rank's environment.

DataLoader workers, compile workers and the user's own subprocesses inherit RANK. So a rank marks its environment with
``TACHOGRAPH__OWNER=<rank>:<restart>:<pid>``; a process that finds the mark with another pid is a helper unless it joins
a process group itself, and delivers nothing unless ``TACHOGRAPH_HELPERS=true``. torchrun's own process is no rank and
leaves no mark: a restarted rank inherits none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tachograph.identity.environment import JOB_ENDPOINT, JOB_HUB, text
from tachograph.identity.process_group import Membership, group_watch
from tachograph.identity.program import is_agent
from tachograph.recording.forking import helpers_record
from tachograph.recording.values import INT64_MAX

OWNER = "TACHOGRAPH__OWNER"

# Set by torchrun for a rank: torch.distributed.run, "Environment Variables". DeepSpeed's launcher sets the same but for
# GROUP_RANK. Lightning's sets LOCAL_RANK and NODE_RANK alone (lightning.fabric, LightningEnvironment).
_TORCHRUN = {
    "dl.rank": ("RANK",),
    "dl.local_rank": ("LOCAL_RANK",),
    "dl.node_rank": ("GROUP_RANK", "NODE_RANK"),
    "dl.world_size": ("WORLD_SIZE",),
    "dl.restart_count": ("TORCHELASTIC_RESTART_COUNT",),
}
# Set by srun for a task: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
_SLURM = {
    "dl.rank": ("SLURM_PROCID",),
    "dl.local_rank": ("SLURM_LOCALID",),
    "dl.node_rank": ("SLURM_NODEID",),
    "dl.world_size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "dl.restart_count": ("SLURM_RESTART_COUNT",),
}
# Set by mpirun and mpiexec for a process: Open MPI ("Environment variables that are set for each process"), MVAPICH2's
# user guide, MPICH's and Intel's Hydra, PMIx, and HPE's PALS (pals(7)).
_MPI = {
    "dl.rank": ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID"),
    "dl.local_rank": (
        *("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        "PALS_LOCAL_RANKID",
    ),
    "dl.node_rank": ("PALS_NODEID",),
    "dl.world_size": ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"),
}
# Variables by which a launcher gives a process its rank; the ancestor without them is the launcher.
RANK_VARIABLES = ("RANK", *_MPI["dl.rank"])
_AGENT = {"dl.node_rank": ("PET_NODE_RANK", "SLURM_NODEID")}

_log = logging.getLogger("tachograph")


def rank_attributes(
    environ: Mapping[str, str], orig_argv: Sequence[str] | None = None, *, group: Membership | None = None
) -> dict[str, str | int]:
    """Return the ``dl.*`` attributes of this process's place in the job, as far as they are known.

    torchrun's variables come first, then MPI's and Slurm's: without a torchrun between them and this process, else they
    describe torchrun's agent. A process group that this process has joined has the last word, but where torchrun has
    started the process itself. A value that is no number from 0 to 2**63 - 1 is left out, and logged once.

    Args:
        environ: environment variables.
        orig_argv: the command with the interpreter and its options; by default this process's.
        group: the process's place in its process group; by default as torch says.
    """
    if is_agent(orig_argv):
        return {"dl.role": "agent", **_numbers(environ, _AGENT)}
    found = _numbers(environ, _TORCHRUN)
    by_torchrun = bool(text(environ, "TORCHELASTIC_RUN_ID"))
    if not by_torchrun:
        for launcher in (_MPI, _SLURM):  # of an mpirun in a batch script, Slurm's variables are those of the script
            placed = _numbers(environ, launcher)
            if found.get("dl.rank", placed.get("dl.rank")) == placed.get("dl.rank"):
                found = {**placed, **found}
    group = group_watch.joined() if group is None else group
    is_torchruns_own = by_torchrun and "dl.rank" in found and not _inherits_mark(environ, os.getpid())
    if group is not None and found.get("dl.rank") != group.rank and not is_torchruns_own:
        # The node's variables beside another rank are those of the process which had it.
        of_node = () if "dl.rank" in found else ("dl.local_rank", "dl.node_rank")
        found = {key: value for key, value in found.items() if key in of_node}
        found |= {"dl.rank": group.rank, "dl.world_size": group.world_size}
    role = text(environ, "ROLE_NAME")
    return {**found, "dl.role": role} if role and "dl.rank" in found else {**found}


def is_helper(environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether the process only inherited a rank's environment, and was not asked to record."""
    return descends_from_rank(environ, pid) and not helpers_record(environ)


def descends_from_rank(environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether the environment carries the mark of another process, and this one has joined no process group."""
    return _inherits_mark(environ, pid) and group_watch.joined() is None


def awaits_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher has given the process a place on its node, and leaves its rank to ``torch.distributed``.

    So does Lightning: it sets LOCAL_RANK alone.
    """
    found = rank_attributes(environ)
    return "dl.local_rank" in found and "dl.rank" not in found


def _inherits_mark(environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether the environment carries the mark of another process; an invalid mark counts as none."""
    *owner, owner_pid = text(environ, OWNER).split(":")
    return len(owner) == 2 and _is_number(owner_pid) and int(owner_pid) != pid  # noqa: PLR2004 - rank and restart


def is_slurm_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether the process's place is that of its Slurm task: no launcher below ``srun`` has given it another one.

    A script may set RANK and WORLD_SIZE from Slurm's variables, and ``srun --mpi`` sets those of MPI.
    """
    if not text(environ, "SLURM_STEP_ID") or text(environ, "TORCHELASTIC_RUN_ID"):
        return False
    rank = text(environ, *RANK_VARIABLES)
    ranks = text(environ, "WORLD_SIZE", *_MPI["dl.world_size"])
    tasks = text(environ, *_SLURM["dl.world_size"])
    return rank in ("", text(environ, "SLURM_PROCID")) and ranks in ("", tasks)


def speaks_for_node(found: Mapping[str, object], environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether a process with these attributes reports its node's hardware.

    Under ``tachograph run`` the hub does, unless the user named an endpoint, which gets only what the job's processes
    send. Else local rank 0 does, and a process without a rank that is neither torchrun's own nor a helper.
    """
    is_hubs_task = text(environ, JOB_HUB) and not text(environ, JOB_ENDPOINT)
    if is_hubs_task or found.get("dl.role") == "agent":
        return False
    return found.get("dl.local_rank", found.get("dl.rank", 0)) == 0 and not descends_from_rank(environ, pid)


def owner_mark(environ: Mapping[str, str], pid: int, orig_argv: Sequence[str] | None = None) -> str | None:
    """Return the mark for this process's environment; ``None`` where it is no rank.

    A batch script of Slurm has SLURM_PROCID, too, but no step: it is no rank, and its tasks (``srun``) must find no
    mark.
    """
    if is_agent(orig_argv) or descends_from_rank(environ, pid):
        return None
    found = rank_attributes(environ, orig_argv)
    is_task = text(environ, *RANK_VARIABLES, "SLURM_STEP_ID") or group_watch.joined()
    if "dl.rank" not in found or not is_task:
        return None
    return f"{found['dl.rank']}:{found.get('dl.restart_count', 0)}:{pid}"


def _numbers(environ: Mapping[str, str], variables: Mapping[str, Sequence[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, names in variables.items():
        for name in names:
            value = text(environ, name)
            if _is_number(value):
                found.setdefault(key, int(value))
            elif value:
                _say_ignored(name, value)
    return found


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= len(str(INT64_MAX)) and int(value) <= INT64_MAX


@lru_cache(maxsize=64)
def _say_ignored(variable: str, value: str) -> None:
    _log.warning("ignoring %s=%.100r: expected a whole number, 0 or more", variable, value)
