"""The callback for Ray Train, whose version 2 has the class ``UserCallback``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.instrumentation.bridges.trainers import note
from tachograph.integrations._library import library
from tachograph.pipeline import running_pipeline

with library("ray", "ray[train]"):
    from ray.train import UserCallback

_LIBRARY = "ray"
_STEPS = ("global_step", "step", "iteration", "epoch")
_PATIENCE, _PAUSE = 1.0, 30.0  # seconds: of a delivery, and until the next one after one that took longer


class TachographCallback(UserCallback):  # type: ignore[misc]
    """Record the values of ``ray.train.report``: ``RunConfig(callbacks=[TachographCallback()])``.

    As in ``Result.metrics``, the values are those of the worker with rank zero; names of nested values are joined with
    a slash. x is the first of global_step, step, iteration and epoch that is present, otherwise the number of the
    value.

    Ray calls this in the process of the training's controller. That process records under ``tachograph run``; a
    ``start()`` in the driver does not reach it. Values are exported at once, because Ray kills the process at the end.
    """

    _next = 0.0  # of monotonic time: of the next delivery

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: Any) -> None:  # noqa: ARG002 - as it is called
        """Record the values of one ``ray.train.report``."""
        first = metrics[0] if metrics else None
        if isinstance(first, Mapping):
            step = next((first[name] for name in _STEPS if name in first), None)
            note(_LIBRARY, "take", first, step)
            pipeline = running_pipeline()
            if pipeline is not None and time.monotonic() >= self._next and not pipeline.flush(_PATIENCE):
                self._next = time.monotonic() + _PAUSE
