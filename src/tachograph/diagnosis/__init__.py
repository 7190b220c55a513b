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
