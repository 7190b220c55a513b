"""The tracker for Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tachograph import metric
from tachograph.instrumentation.bridges.trainers import note
from tachograph.integrations._library import library

with library("accelerate", "accelerate"):
    from accelerate.tracking import GeneralTracker, on_main_process

_LIBRARY = "accelerate"


class TachographTracker(GeneralTracker):  # type: ignore[misc]
    """Record the values of ``Accelerator.log``: ``Accelerator(log_with=TachographTracker())``.

    After ``accelerate.tracking.register_tracker_class(TachographTracker)`` you can also use its name:
    ``Accelerator(log_with="tachograph")``. x is the step, or a running count of the values. As with
    Accelerate's own trackers, only the main process records.

    Args:
        run_name: the project name that ``init_trackers`` passes. It is not used, since the process already has a run.
    """

    name = "tachograph"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run_name: str = "", **_kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name

    @property
    def tracker(self) -> ModuleType:
        """The module ``tachograph.metric``, for ``get_tracker("tachograph", unwrap=True).log(…)``."""
        return metric

    @on_main_process  # type: ignore[untyped-decorator]
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the configuration of the run."""
        note(_LIBRARY, "config", values)

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: Mapping[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Record the numbers among the values; strings are ignored."""
        note(_LIBRARY, "take", values, step)
