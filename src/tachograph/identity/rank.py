"""Ranks, and processes that only inherited a rank's environment.

DataLoader workers, compile workers and the user's own subprocesses inherit RANK. So a rank marks its environment with
``TACHOGRAPH_OWNER=<rank>:<restart>:<pid>``; a process that finds the mark with another pid is a helper, and records
nothing unless ``TACHOGRAPH_HELPERS=1``. torchrun's own process is no rank and leaves no mark: a restarted rank inherits
none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tachograph.identity.environment import text
from tachograph.identity.program import is_agent
from tachograph.recording.values import INT64_MAX

OWNER = "TACHOGRAPH_OWNER"
HELPERS = "TACHOGRAPH_HELPERS"

# Set by torchrun for a rank: torch.distributed.run, "Environment Variables".
_TORCHRUN = {
    "dl.rank": ("RANK",),
    "dl.local_rank": ("LOCAL_RANK",),
    "dl.node_rank": ("GROUP_RANK",),
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
_AGENT = {"dl.node_rank": ("PET_NODE_RANK", "SLURM_NODEID")}

_log = logging.getLogger("tachograph")


def rank_attributes(environ: Mapping[str, str], orig_argv: Sequence[str] | None = None) -> dict[str, str | int]:
    """Return the ``dl.*`` attributes of this process's place in the job, as far as they are known.

    torchrun's variables come first. Slurm's count only without a torchrun between Slurm and this process: else they
    describe torchrun's agent. A value that is no number from 0 to 2**63 - 1 is left out, and logged once.
    """
    if is_agent(orig_argv):
        return {"dl.role": "agent", **_numbers(environ, _AGENT)}
    found = _numbers(environ, _TORCHRUN)
    if not text(environ, "TORCHELASTIC_RUN_ID"):
        slurm = _numbers(environ, _SLURM)
        if found.get("dl.rank", slurm.get("dl.rank")) == slurm.get("dl.rank"):
            found = {**slurm, **found}
    role = text(environ, "ROLE_NAME")
    return {**found, "dl.role": role} if role and "dl.rank" in found else {**found}


def is_helper(environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether the process only inherited a rank's environment, and was not asked to record."""
    return descends_from_rank(environ, pid) and text(environ, HELPERS) != "1"


def descends_from_rank(environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether the environment carries the mark of another process; an invalid mark counts as none."""
    *owner, owner_pid = text(environ, OWNER).split(":")
    return len(owner) == 2 and _is_number(owner_pid) and int(owner_pid) != pid  # noqa: PLR2004 - rank and restart


def speaks_for_node(found: Mapping[str, object], environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether a process with these attributes reports its node's hardware.

    Under ``tachograph run`` the hub does; else local rank 0, and a process without a rank that is neither torchrun's
    own nor a helper.
    """
    if text(environ, "TACHOGRAPH_HUB") == "1" or found.get("dl.role") == "agent":
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
    is_task = "dl.rank" in _numbers(environ, _TORCHRUN) or text(environ, "SLURM_STEP_ID")
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
    _log.warning("%s is %.100r: a number from 0 was expected, it is left out", variable, value)
