"""The bridges from trainers: transformers, Accelerate, Lightning and its Fabric.

A trainer hands its values on to loggers, or to none: its own call is seen in either case. Its calls come in every rank;
values are taken in the one that the trainer logs in. No callback, tracker or logger is added to its lists.

``note`` is for the classes of ours that a program names in such a list itself: they take the same notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tachograph.instrumentation._given_providers import EVERYWHERE
from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import Brought, calls, flattened, numbers_by_leaf
from tachograph.instrumentation.bridges._values import BridgedValues, Origin, bridged_values
from tachograph.recording.interrupts import pass_on


class TrainerNotes:
    """The notes of one trainer.

    Args:
        library: its name.
        values: where they go.
    """

    def __init__(self, library: str, values: BridgedValues) -> None:
        self._values, self._origin = values, values.origin(library, "", "")

    def close(self) -> None:
        """Do nothing: a trainer's notes hold nothing of it."""

    def take(self, metrics: Mapping[str, Any], step: object = None) -> None:
        """Take the numbers among values; without a step, x is their count.

        Nested values have a slash between their names. Those that the call of a bridge around this one records itself
        are passed over.
        """
        take = self._values.scalar if calls.outermost is None else self._take_inside
        for tag, value in flattened(metrics):
            if not isinstance(value, str | None):  # a tracker's own text
                take(self._origin, tag, value, step)

    def _take_inside(self, origin: Origin, tag: str, value: object, step: object) -> None:
        record = partial(self._values.scalar, origin, tag, value, step)
        if not self._values.passed_over(origin.library, tag, value, record):
            record()

    def distribution(self, tag: str, value: Any) -> None:
        """Take a value of a distribution."""
        self._values.distribution(self._origin, tag, [value])

    def config(self, values: Mapping[Any, Any]) -> None:
        """Take a configuration."""
        self._values.config(self._origin, values)


class TransformersNotes(TrainerNotes):
    """The notes of the ``CallbackHandler`` of transformers: its own calls, before it asks the callbacks."""

    def on_log(
        self, _handler: Any, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any], **_more: Any
    ) -> None:
        """Take the values of ``Trainer.log``: ``eval_loss`` is ``eval/loss``, ``loss`` is ``train/loss``."""
        if state.is_world_process_zero:
            self.take({_grouped(tag): value for tag, value in _whole(state, logs).items()}, state.global_step)

    @staticmethod
    def logs_bring(
        _handler: Any, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any], **_more: Any
    ) -> Brought:
        """Return the values by leaf, with the step, which W&B's callback logs as one."""
        return numbers_by_leaf({**logs, "global_step": state.global_step}) if state.is_world_process_zero else {}

    def on_train_begin(self, _handler: Any, args: Any, state: Any, *_more: Any, **_even_more: Any) -> None:
        """Take the arguments of the training as the configuration."""
        if state.is_world_process_zero:
            self.config(args.to_dict())


def _whole(state: Any, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a call as the trainer's history has them: its own callbacks take ``total_flos`` out."""
    last = state.log_history[-1] if state.log_history else {}
    if "total_flos" not in last or any(last.get(tag) is not value for tag, value in logs.items()):
        return logs
    return {tag: value for tag, value in last.items() if tag != "step"}


def _grouped(tag: str) -> str:
    """Return a tag with its group, as transformers' own callbacks name it (``rewrite_logs``)."""
    for group in ("eval", "test"):
        if tag.startswith(f"{group}_"):
            return f"{group}/{tag.removeprefix(f'{group}_')}"
    return f"train/{tag}"


class AccelerateNotes(TrainerNotes):
    """The notes of ``Accelerator``: with ``log_with=None``, too."""

    def log(
        self, accelerator: Any, values: Mapping[str, Any], step: object = None, *_more: Any, **_kwargs: Any
    ) -> None:
        """Take the values of one call; without a step, x is their count."""
        if accelerator.is_main_process:
            self.take(values, step)

    @staticmethod
    def values_bring(accelerator: Any, values: Mapping[str, Any], *_more: Any, **_kwargs: Any) -> Brought:
        """Return the values by leaf."""
        return numbers_by_leaf(values) if accelerator.trackers and accelerator.is_main_process else {}

    def init_trackers(self, accelerator: Any, _project: str, config: Any = None, *_more: Any, **_kwargs: Any) -> None:
        """Take the configuration."""
        if config and accelerator.is_main_process:
            self.config(config)


class LightningNotes(TrainerNotes):
    """The notes of Lightning's ``Trainer``, with ``logger=False``, too, and of ``Fabric``."""

    def lightning_log(self, connector: Any, metrics: Mapping[str, Any], step: object = None) -> None:
        """Take the values of ``self.log``; x is the step that the trainer's loggers get."""
        if connector.trainer.is_global_zero:
            self.take(
                {tag: value for tag, value in metrics.items() if tag != "step"}, _step_of(connector, metrics, step)
            )

    @staticmethod
    def lightning_brings(connector: Any, metrics: Mapping[str, Any], step: Any = None) -> Brought:
        """Return the values by leaf, with those that the trainer and W&B's logger add: the epoch and the step."""
        if not connector.trainer.loggers or not connector.trainer.is_global_zero:
            return {}
        added = {"epoch": connector.trainer.current_epoch, "global_step": _step_of(connector, metrics, step)}
        return numbers_by_leaf({**added, **metrics})

    def hyperparameters(self, trainer: Any) -> None:
        """Take the hyperparameters that the model and the data have saved."""
        for module in (trainer.lightning_module, trainer.datamodule):
            if trainer.is_global_zero and getattr(module, "hparams_initial", None):
                self.config(dict(module.hparams_initial))

    @staticmethod
    def placeholder(_trainer: Any) -> Brought:
        """Return the value that the logger of TensorBoard gives its table of hyperparameters before there is one."""
        return {"hp_metric": [-1]}

    def fabric_log(self, fabric: Any, metrics: Mapping[str, Any], step: object = None) -> None:
        """Take the values of ``fabric.log``; without a step, x is their count."""
        if fabric.is_global_zero:
            self.take(metrics, step)

    @staticmethod
    def fabric_brings(fabric: Any, metrics: Mapping[str, Any], step: Any = None) -> Brought:  # noqa: ARG004 - as it is called
        """Return the values by leaf."""
        return numbers_by_leaf(metrics) if fabric.loggers and fabric.is_global_zero else {}


def _step_of(connector: Any, metrics: Mapping[str, Any], step: Any) -> Any:
    """Return the step of a call by the rule of ``_LoggerConnector.log_metrics``."""
    if step is None:
        step = metrics.get("step")
    return connector.trainer.fit_loop.epoch_loop._batches_that_stepped if step is None else int(step)  # noqa: SLF001


_NOTES: Mapping[str, type[TrainerNotes]] = {
    "accelerate": AccelerateNotes,
    "lightning": LightningNotes,
    "transformers": TransformersNotes,
}


def note(library: str, method: str, *args: Any) -> None:
    """Take note of a call that a library makes to a class of ours, which the program has put into its list.

    Values go where all of the process's values go. An error of ours is counted and said once, and the library never
    notices.

    Args:
        library: whose bridge has the notes; those of one without a bridge are :class:`TrainerNotes`.
        method: of the notes.
        *args: of the call.
    """
    values = bridged_values(EVERYWHERE)
    try:
        getattr(_NOTES.get(library, TrainerNotes)(library, values), method)(*args)
    except Exception as error:  # noqa: BLE001 - the border to the objects of the program
        pass_on(error)
        values.failed(library, error)


class TransformersInstrumentor(BridgeInstrumentor):
    """Record the values that the ``Trainer`` of transformers logs, with any ``report_to``."""

    library = "transformers"

    def notes(self, values: BridgedValues) -> TransformersNotes:  # noqa: D102 - as the base class says
        return TransformersNotes(self.library, values)


class AccelerateInstrumentor(BridgeInstrumentor):
    """Record the values of ``Accelerator.log``, with any ``log_with``."""

    library = "accelerate"

    def notes(self, values: BridgedValues) -> AccelerateNotes:  # noqa: D102 - as the base class says
        return AccelerateNotes(self.library, values)


class LightningInstrumentor(BridgeInstrumentor):
    """Record the values that a ``LightningModule`` or ``Fabric`` logs, with any logger, under both package names."""

    library = "lightning"

    def notes(self, values: BridgedValues) -> LightningNotes:  # noqa: D102 - as the base class says
        return LightningNotes(self.library, values)
