"""The pipeline: ``start()`` and ``shutdown()``, what runs in this process, and how it ends.

:mod:`~tachograph.pipeline.starting` makes the process's one :class:`~tachograph.pipeline.pipeline.Pipeline` of its
:class:`~tachograph.pipeline.settings.Settings`. At each tick that collects what is recorded, and hands it to the
:mod:`~tachograph.pipeline.destinations`; :mod:`~tachograph.pipeline.event_feed` empties the journal into those that
take events. Exit, SIGTERM and fork are handled here, and nowhere else.
"""
