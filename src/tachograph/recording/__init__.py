"""Recording: values, accumulators, instruments, curves and the journal; nothing here delivers anything.

A value passes from a front door into an :class:`~tachograph.recording.instrument.Instrument`, whose
:mod:`~tachograph.recording.accumulators` fold it, off the training thread where they can. The
:class:`~tachograph.recording.registry.Registry` has all instruments, and hands them to readers as
:class:`~tachograph.recording.points.MetricPoints`, to the OTLP encoder in :mod:`~tachograph.recording.columns`.
A value with an x passes into a
:class:`~tachograph.recording.curve.CurveRecorder`, whose fold makes points of it, so many a second; with events they
wait in the :class:`~tachograph.recording.journal.Journal` for the feed of the pipeline, which asks the journal's
:class:`~tachograph.recording.holders.Holders` first. Those of a gauge without one wait in its
:class:`~tachograph.recording.gauge_curve.GaugeCurve`, and leave packed.

Its face, by subject: ``values``, ``summary``, ``naming``, ``points`` and ``ids`` for values; ``accumulators``,
``exponential``, ``intervals``, ``instrument``, ``group``, ``registry``, ``columns``, ``closed_windows`` and
``own_metrics`` for metrics; ``cuda_captures`` for values of a device; ``chart``, ``curve``, ``logged_points``,
``gauge_curve`` and ``packed_points`` for curves; ``journal`` and ``holders`` for events; ``kept_calls`` for profiled
functions; ``named_functions`` for pickles; ``wrapping`` for patches; ``table`` for notebooks; ``losses`` and
``log`` for trouble; ``lazy_names`` for the interfaces of packages; ``switch``, ``wishes``, ``pulse_source``,
``logged_tokens``, ``trace_context``, ``forking``,
``interrupts``, ``timer`` and ``gil_yield`` for the process that all of this runs in.
"""
