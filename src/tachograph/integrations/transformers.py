"""The callback for the ``Trainer`` of transformers."""

from __future__ import annotations

from typing import Any

from tachograph.instrumentation.bridges.trainers import note
from tachograph.integrations._library import library

with library("transformers", "transformers"):
    from transformers.trainer_callback import TrainerCallback

_LIBRARY = "transformers"


class TachographCallback(TrainerCallback):  # type: ignore[misc]
    """Record the values of a ``Trainer``: ``Trainer(…, callbacks=[TachographCallback()])``.

    ``eval_loss`` is the metric ``loss`` of the group ``eval``, and ``loss`` that of the group ``train``; x is the
    global step. The training arguments become the configuration of the run. As with transformers' own callbacks, only
    rank zero records.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:  # noqa: ARG002 - as it is called
        """Record the training arguments as the configuration."""
        note(_LIBRARY, "on_train_begin", None, args, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_more: Any) -> None:
        """Record the values of one call of ``Trainer.log``."""
        note(_LIBRARY, "on_log", None, args, state, control, logs or {})
