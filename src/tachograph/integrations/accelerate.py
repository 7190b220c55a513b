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
    """Recorder of ``Accelerator.log``: ``Accelerator(log_with=TachographTracker())``.

    After ``accelerate.tracking.register_tracker_class(TachographTracker)`` its name serves as well:
    ``Accelerator(log_with="tachograph")``. x is the step, or without one the count of the metric's values. As with
    Accelerate's own trackers, the main process records.

    Args:
        run_name: of the project, as ``init_trackers`` gives it. It is not used: the process has one run already.
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
        """Take the configuration of the run."""
        note(_LIBRARY, "config", values)

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: Mapping[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Take the numbers among values; a text is left out."""
        note(_LIBRARY, "take", values, step)
