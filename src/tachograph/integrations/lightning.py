"""The logger for Lightning's ``Trainer`` and ``Fabric``, by either name of the package."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tachograph import metric
from tachograph.identity.resource import file_safe, resource_attributes
from tachograph.instrumentation.bridges.trainers import note
from tachograph.integrations._library import library
from tachograph.pipeline import running_pipeline

# The two packages have the same classes twice: those count that the program has imported, or else can.
_OLD = "pytorch_lightning"
if not sys.modules.get("lightning.pytorch") and (
    sys.modules.get(_OLD) or (find_spec("lightning") is None and find_spec(_OLD) is not None)
):
    from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
    from pytorch_lightning.utilities.rank_zero import rank_zero_only
else:
    with library("lightning", "lightning"):
        from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
        from lightning.pytorch.utilities.rank_zero import rank_zero_only

_LIBRARY = "lightning"


class TachographLogger(Logger):  # type: ignore[misc]
    """Record the values of a ``LightningModule`` or ``Fabric``: ``Trainer(logger=TachographLogger())``.

    ``train/loss`` is the metric ``loss`` of the group ``train``; x is the step that Lightning passes to its loggers. As
    with Lightning's own loggers, only rank zero records. Checkpoints are in
    ``<default_root_dir>/<name>/<version>/checkpoints``.

    Args:
        name: the name of the experiment.
        version: the version of the experiment; by default the run id.
    """

    def __init__(self, name: str = "tachograph", version: str | None = None) -> None:
        super().__init__()
        self._name, self._version = name, version

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self._name

    @property
    def version(self) -> str:
        """The version of the experiment: by default the run id, as a valid folder name."""
        if self._version is None:
            pipeline = running_pipeline()
            run = pipeline.settings.run_id if pipeline is not None else str(resource_attributes()["dl.run.id"])
            self._version = file_safe(run)
        return self._version

    @property
    @rank_zero_experiment  # type: ignore[untyped-decorator]
    def experiment(self) -> ModuleType:
        """The module ``tachograph.metric``, for ``self.logger.experiment.log(…)``; a dummy in other ranks."""
        return metric

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record the values of one call; without a step, x is a running count of the metric's values."""
        note(_LIBRARY, "take", metrics, step)

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace | None, *_args: Any, **_kwargs: Any) -> None:
        """Record hyperparameters as the configuration of the run."""
        if params is not None:
            note(_LIBRARY, "config", params)
