"""The bridges from TensorBoard: ``torch.utils.tensorboard`` and tensorboardX, whose writers are alike."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import Brought, calls, numbers_by_leaf
from tachograph.instrumentation.bridges._values import BridgedValues, ByObject, Origin, unix_nano


class WriterNotes:
    """The notes of ``SummaryWriter``: each method has the arguments of the writer's own.

    Every other ``add_…`` is counted as not taken, under its name.

    Args:
        library: its name.
        values: where they go.
    """

    def __init__(self, library: str, values: BridgedValues) -> None:
        self._library, self._values = library, values
        self._origins: ByObject[Origin] = ByObject()

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("add_")
        if kind == name:
            raise AttributeError(name)
        return partial(self._not_taken, kind)

    def close(self) -> None:
        """Forget the writers."""
        self._origins.clear()

    def _not_taken(self, kind: str, *_args: Any, **_kwargs: Any) -> None:
        self._values.not_taken(self._library, kind)

    def _origin(self, writer: Any) -> Origin:
        found = self._origins.get(id(writer))
        if found is None:
            folder = os.fspath(getattr(writer, "log_dir", "") or getattr(writer, "logdir", ""))
            name = os.path.basename(folder.rstrip("/"))  # noqa: PTH119 - may be the URL of a bucket
            found = self._origins.keep(writer, self._values.origin(self._library, folder, name or folder))
        return found

    def add_scalar(  # noqa: D102 - as the writer's
        self,
        writer: Any,
        tag: str,
        scalar_value: object,
        global_step: object = None,
        walltime: object = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        if global_step is None or walltime is None:
            said: Mapping[str, object] = getattr(writer, "_default_metadata", {})  # use_metadata() of tensorboardX
            if said:
                global_step = said.get("global_step") if global_step is None else global_step
                walltime = said.get("walltime") if walltime is None else walltime
        at = None if walltime is None else unix_nano(walltime)
        if calls.outermost is None:
            self._values.scalar(self._origin(writer), tag, scalar_value, global_step, time_unix_nano=at)
            return
        record = partial(self._record, writer, tag, scalar_value, global_step, at)
        if not self._values.passed_over(self._library, tag, scalar_value, record):
            record()

    def _record(self, writer: Any, tag: str, value: object, step: object, at: int | None) -> None:
        self._values.scalar(self._origin(writer), tag, value, step, time_unix_nano=at)

    def add_scalars(  # noqa: D102 - as the writer's
        self,
        writer: Any,
        main_tag: str,
        tag_scalar_dict: Mapping[str, object],
        global_step: object = None,
        walltime: object = None,
    ) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(writer, f"{main_tag}/{tag}", value, global_step, walltime)

    def add_histogram(  # noqa: D102 - as the writer's
        self, writer: Any, tag: str, values: Any, global_step: object = None, *_args: Any, **_kwargs: Any
    ) -> None:
        self._values.distribution(self._origin(writer), tag, values, global_step)

    def add_hparams(  # noqa: D102 - as the writer's, which logs the metrics to a writer of its own
        self, writer: Any, hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, Any], *_args: Any, **_kwargs: Any
    ) -> None:
        self._values.config(self._origin(writer), hparam_dict)
        self._values.summary(self._origin(writer), metric_dict)

    @staticmethod
    def hparams_bring(
        _writer: Any, _hparam_dict: Any, metric_dict: Mapping[str, Any], *_args: Any, **_kwargs: Any
    ) -> Brought:
        """Return the results, by leaf, which the writer logs as values, too."""
        return numbers_by_leaf(metric_dict)


class TensorBoardInstrumentor(BridgeInstrumentor):
    """Record the values of ``torch.utils.tensorboard.SummaryWriter``.

    ``add_scalar`` and ``add_scalars`` become curves over the step, ``add_hparams`` the configuration and the results of
    the run, and ``add_histogram`` a histogram and a curve of the mean, minimum and maximum over the step. A second
    writer with another folder becomes a group.
    """

    library = "tensorboard"

    def notes(self, values: BridgedValues) -> WriterNotes:  # noqa: D102 - as the base class says
        return WriterNotes(self.library, values)


class TensorBoardXInstrumentor(BridgeInstrumentor):
    """Record the values of ``tensorboardX.SummaryWriter``, like :class:`TensorBoardInstrumentor`."""

    library = "tensorboardx"

    def notes(self, values: BridgedValues) -> WriterNotes:  # noqa: D102 - as the base class says
        return WriterNotes(self.library, values)
