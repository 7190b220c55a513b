"""Diagnosis: where a training run's time goes, and why it stands still.

Two rows: on the rank's side hooks and clocks, which import nothing but recording and identity; on the hub's side rules,
which read a run's file. The step: :mod:`~tachograph.diagnosis.phases` makes steps and their phases of marks,
:mod:`~tachograph.diagnosis.anatomy` has the training thread append those,
:mod:`~tachograph.diagnosis.anatomy_series` has the timer fold them, and
:mod:`~tachograph.diagnosis.verdict_run` reads them back from a run's file, for the rules of ``verdict``, which
look at a ``window`` of each rank, and of ``goodput``.

A job that stands still: a rank makes a :mod:`~tachograph.diagnosis.pulse` a second, which the pipeline sends. The hub's
:mod:`~tachograph.diagnosis.doctor` aligns those of all ranks, looks at the processes from outside, reads stacks by
:mod:`~tachograph.diagnosis.doctor_stack`, and keeps one :mod:`~tachograph.diagnosis.incident` for each time that the
job stands still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.diagnosis.anatomy_series import AnatomyOfSteps
    from tachograph.diagnosis.doctor import Doctor
    from tachograph.diagnosis.doctor_stack import PySpy
    from tachograph.diagnosis.goodput import CATEGORIES
    from tachograph.diagnosis.incident import HANG, Incident, incident_attributes, parse_incident
    from tachograph.diagnosis.phases import PHASES
    from tachograph.diagnosis.verdict import CRITICAL, OF_RANKS
    from tachograph.diagnosis.verdict_run import Diagnosis, diagnose_run

__all__ = [
    "CATEGORIES",
    "CRITICAL",
    "HANG",
    "OF_RANKS",
    "PHASES",
    "AnatomyOfSteps",
    "Diagnosis",
    "Doctor",
    "Incident",
    "PySpy",
    "diagnose_run",
    "incident_attributes",
    "parse_incident",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "anatomy_series": ("AnatomyOfSteps",),
    "doctor": ("Doctor",),
    "doctor_stack": ("PySpy",),
    "goodput": ("CATEGORIES",),
    "incident": ("HANG", "Incident", "incident_attributes", "parse_incident"),
    "phases": ("PHASES",),
    "verdict": ("CRITICAL", "OF_RANKS"),
    "verdict_run": ("Diagnosis", "diagnose_run"),
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, name)
