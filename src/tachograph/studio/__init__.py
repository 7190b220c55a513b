"""The Studio: the pages of runs, live and stored, and their API.

Other packages import the names below, and nothing else: :class:`Studio` serves the pages and the API,
:class:`RunReader` reads a run as the overview of its page, and :func:`make_shared_page` makes that page a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.studio.occurrences import read_incidents
    from tachograph.studio.share import make_shared_page
    from tachograph.studio.snapshot import (
        TIME_UNITS,
        TROUBLES,
        CurveOfRank,
        FunctionTimes,
        Json,
        LastSample,
        MetricOfRun,
        ProcessStatus,
        ProgressBar,
        RunEvent,
        RunFault,
        RunReader,
        RunSnapshot,
        answers_from_store,
    )
    from tachograph.studio.studio import Studio

__all__ = [
    "TIME_UNITS",
    "TROUBLES",
    "CurveOfRank",
    "FunctionTimes",
    "Json",
    "LastSample",
    "MetricOfRun",
    "ProcessStatus",
    "ProgressBar",
    "RunEvent",
    "RunFault",
    "RunReader",
    "RunSnapshot",
    "Studio",
    "answers_from_store",
    "make_shared_page",
    "read_incidents",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "occurrences": ("read_incidents",),
    "share": ("make_shared_page",),
    "snapshot": (
        "CurveOfRank",
        "FunctionTimes",
        "Json",
        "LastSample",
        "MetricOfRun",
        "ProcessStatus",
        "ProgressBar",
        "RunEvent",
        "RunFault",
        "RunReader",
        "RunSnapshot",
        "TIME_UNITS",
        "TROUBLES",
        "answers_from_store",
    ),
    "studio": ("Studio",),
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, name)
