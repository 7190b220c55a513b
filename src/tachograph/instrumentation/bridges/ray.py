"""The end of a worker of Ray Train: Ray kills it once its training has ended, without an exit handler."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._values import BridgedValues

_PATIENCE = 5.0  # seconds; Ray asks a worker again and again, and waits a minute for an answer


class WorkerNotes:
    """The notes of the thread in which a worker trains."""

    def __init__(self) -> None:
        self._delivered: WeakSet[Any] = WeakSet()

    def close(self) -> None:
        """Do nothing: the notes hold nothing of the worker."""

    def is_running(self, runner: Any) -> None:
        """Deliver the last values of the worker, before Ray's controller is told that the training has ended."""
        thread = runner._thread  # noqa: SLF001 - the runner has no other name for it
        if thread is None or thread.is_alive() or runner in self._delivered:
            return
        self._delivered.add(runner)
        from tachograph.pipeline import running_pipeline  # needs the SDK, and instrumentors do not

        pipeline = running_pipeline()
        if pipeline is not None:
            pipeline.flush(_PATIENCE)


class RayInstrumentor(BridgeInstrumentor):
    """Export the last values of a Ray Train worker at the end of its training, before Ray kills it.

    It records no values itself: :class:`tachograph.integrations.ray.TachographCallback` records those of
    ``ray.train.report``.
    """

    library = "ray"

    def notes(self, values: BridgedValues) -> WorkerNotes:  # noqa: ARG002, D102 - as the base class says
        return WorkerNotes()
