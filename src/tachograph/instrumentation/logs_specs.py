"""torchrun's own way in: ``torchrun --logs-specs tachograph``, an entry point of the group ``torchrun.logs_specs``.

torchrun loads the class in its agent, before it starts any worker, and asks it for the files of the workers' output. So
zero code begins in the agent here, and logs the rank and the files of each worker. The workers get the variables and
the bootstrap folder that ``tachograph run`` gives its job: in the agent's own environment, which torchrun hands on. The
variables that torchrun passes here (``envs``) reach a worker that is a function (``--run-path``, ``elastic_launch``)
only after its interpreter has started.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tachograph.identity.environment import text
from tachograph.identity.rank import OWNER
from tachograph.identity.run_id import run_id_of_command
from tachograph.instrumentation._zero_code import begin, begun, instrument
from tachograph.instrumentation.child_environment import with_bootstrap
from tachograph.pipeline import running_pipeline
from tachograph.recording import journal, registry
from tachograph.recording.points import AttributeValue

OUTPUT = "torchelastic.worker.output"

_torch: Any = import_module("torch.distributed.elastic.multiprocessing")
_log = logging.getLogger("tachograph")


class TachographLogsSpecs(_torch.DefaultLogsSpecs):  # type: ignore[misc]
    """torchrun's default handling of its workers' output, and telemetry of the agent and its workers beside it.

    Arguments and files are those of ``torch.distributed.elastic.multiprocessing.DefaultLogsSpecs``. Each start of a
    worker is an event ``torchelastic.worker.output`` of the agent's: ``global_rank``, ``local_rank``, ``role``,
    ``restart_count``, and the paths ``stdout``, ``stderr`` and ``error_file``. A worker without a file of its own has
    torchrun's output: its path where that is a file; for a terminal or a pipe there is none.

    Errors of ours are counted, and one line in the log: torchrun goes on as without us.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            _begin()
        except Exception as error:  # noqa: BLE001 - the border to torchrun: the job starts, with telemetry or without
            registry.default.count_error("torchelastic")
            _log.warning("could not start telemetry, continuing without it: %r", error)

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return the files of the workers' output, as the default does, and log them."""
        found = super().reify(envs)
        try:
            for local_rank, environ in envs.items():
                journal.default.append(OUTPUT, time.time_ns(), _output(local_rank, environ, found))
        except Exception as error:  # noqa: BLE001 - as above
            registry.default.count_error("torchelastic")
            _log.warning("could not record the paths of the workers' output: %r", error)
        return found


def _begin() -> None:
    """Begin zero code in this process, and set the variables with which its workers begin.

    If zero code has begun already, its workers have these variables from there.
    """
    if begun():
        return
    running = running_pipeline()
    run_id = running.settings.run_id if running is not None else run_id_of_command(os.environ, sys.orig_argv)
    wanted = text(os.environ, "TACHOGRAPH__INSTRUMENT") or "own"
    os.environ.pop(OWNER, None)
    os.environ.update(with_bootstrap(os.environ, run_id=run_id, instrument=wanted))
    if running is None:
        begin(directly=False)
    else:  # a program that has started us itself, and launches workers with torch's API
        instrument()


def _output(local_rank: int, environ: Mapping[str, str], logs: Any) -> dict[str, AttributeValue]:
    """Return a worker's place in the job, and those files that it has."""
    found: dict[str, AttributeValue] = {"local_rank": local_rank}
    for key, variable in (("global_rank", "RANK"), ("restart_count", "TORCHELASTIC_RESTART_COUNT")):
        if environ.get(variable, "").isdecimal():
            found[key] = int(environ[variable])
    named = {
        "role": environ.get("ROLE_NAME", ""),
        "stdout": logs.stdouts.get(local_rank) or _inherited(1),
        "stderr": logs.stderrs.get(local_rank) or _inherited(2),
        "error_file": logs.error_files.get(local_rank, ""),
    }
    return {**found, **{key: value for key, value in named.items() if value}}


def _inherited(descriptor: int) -> str:
    """Return the file that this process writes to, as a batch system has set it up; empty for anything else."""
    try:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return str(path) if path.is_file() else ""
    except OSError:  # no /proc, or a closed descriptor
        return ""
