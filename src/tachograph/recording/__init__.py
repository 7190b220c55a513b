"""Recording: values, accumulators, instruments, curves and the journal; nothing here delivers anything.

A value passes from a front door into an :class:`~tachograph.recording.instrument.Instrument`, whose
:mod:`~tachograph.recording.accumulators` fold it, off the training thread where they can. The
:class:`~tachograph.recording.registry.Registry` has all instruments, and hands them to readers as
:class:`~tachograph.recording.points.MetricPoints`. Exact points and events wait in the
:class:`~tachograph.recording.journal.Journal`, throttled per curve by :mod:`~tachograph.recording.curve`.
"""
