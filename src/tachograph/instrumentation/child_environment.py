"""The environment of a job: variables that ``tachograph run`` and ``torchrun --logs-specs tachograph`` add to it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph.identity.environment import JOB_ENDPOINT, JOB_HUB, system_text
from tachograph.identity.program import FOLDER
from tachograph.identity.rank import OWNER

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


def child_environment(
    environ: Mapping[str, str],
    *,
    hub: str,
    endpoint: str,
    run_id: str,
    interval: float,
    prof: Sequence[str] = (),
    instrument: str = "own",
    wait_counters: bool = False,
    started: Path | None = None,
) -> dict[str, str]:
    """Return the variables for a job whose processes send to a hub, to an endpoint, or to both.

    Args:
        environ: the variables that it would have without Tachograph; ``OTEL_*`` stay as they are.
        hub: the URL of the job's hub, to which the user's ``OTEL_EXPORTER_*`` do not apply; empty for none.
        endpoint: the base URL of the endpoint that the user named; empty for none.
        run_id: the run's id.
        interval: seconds between two exports.
        prof: patterns of functions to profile.
        instrument: ``own`` or ``all``.
        wait_counters: measure torch's WaitCounters.
        started: the folder for the processes' start marks; None for no marks.
    """
    made = {
        **with_bootstrap(environ, run_id=run_id, instrument=instrument),
        "TACHOGRAPH__INTERVAL": f"{interval * 1000:g}",
        "TACHOGRAPH__PROF": "\n".join(prof),
    }
    if hub:
        made[JOB_HUB] = hub
    if endpoint:
        made[JOB_ENDPOINT] = endpoint
    if wait_counters:
        made["TACHOGRAPH_WAIT_COUNTERS"] = "true"
    if started is not None:
        made[FOLDER] = str(started)
    return made


def with_bootstrap(environ: Mapping[str, str], *, run_id: str, instrument: str) -> dict[str, str]:
    """Return the variables with which zero code begins in each Python process of a job.

    Args:
        environ: the variables that the job would have without Tachograph.
        run_id: the run's id.
        instrument: ``own`` or ``all``.
    """
    made = {
        **environ,
        "TACHOGRAPH_RUN": system_text(run_id),
        "TACHOGRAPH__START_NS": environ.get("TACHOGRAPH__START_NS") or str(time.time_ns()),
        "TACHOGRAPH__INSTRUMENT": instrument,
        "PYTHONPATH": _in_front(str(BOOTSTRAP), environ.get("PYTHONPATH", "")),
    }
    # A run inside of a run is a job of its own: it sends nothing to the hub around it, and the mark of a rank around it
    # would silence all of it.
    for variable in (OWNER, FOLDER, JOB_HUB, JOB_ENDPOINT):
        made.pop(variable, None)
    return made


def _in_front(folder: str, path: str) -> str:
    # An empty PYTHONPATH counts as unset; a trailing separator would stand for the working directory.
    return (
        os.pathsep.join([folder, *(entry for entry in path.split(os.pathsep) if entry != folder)]) if path else folder
    )
