"""Recording: values, accumulators, instruments, curves and the journal; nothing here delivers anything.

A value passes from a front door into an :class:`~tachograph.recording.instrument.Instrument`, whose
:mod:`~tachograph.recording.accumulators` fold it, off the training thread where they can. The
:class:`~tachograph.recording.registry.Registry` has all instruments, and hands them to readers as
:class:`~tachograph.recording.points.MetricPoints`. Exact points and events wait in the
:class:`~tachograph.recording.journal.Journal`, throttled per curve by :mod:`~tachograph.recording.curve`.

Its face, by subject: ``values``, ``summary``, ``naming`` and ``points`` for values; ``accumulators``, ``instrument``,
``registry``, ``closed_windows`` and ``own_metrics`` for metrics; ``chart`` and ``curve`` for curves; ``journal`` for
events; ``losses`` and ``log`` for trouble; ``switch``, ``wishes``, ``forking``, ``interrupts``, ``timer`` and
``gil_yield`` for the process that all of this runs in.
"""
