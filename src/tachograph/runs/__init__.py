"""Read recorded runs: ``tachograph.runs.list()`` and ``tachograph.runs.open(id)``.

Reading needs no hub and does not disturb one: you can read a run while a hub is writing it, up to the latest
transaction.

Internally, the hub, the Studio and the commands also use ``store``, ``file``, ``file_lock``, ``file_system`` and
``open_stores`` for files; ``catalogue``, ``annotations``, ``members``, ``ending``, ``kept_calls``, ``losses`` and
``run`` for runs; ``queries``, ``writer``, ``recorded``, ``recorded_series``, ``newest_points``, ``blocks``,
``buckets``, ``spread``, ``window`` and ``x_axis`` for their contents; ``point_records``, ``curve_writer``,
``sequence_numbers`` and ``thinning`` for what a hub stores; ``export``, ``parquet``, ``columns``, ``outline`` and
``filter`` for text and tables.
"""

from __future__ import annotations

from tachograph.runs.blocks import Bucket
from tachograph.runs.buckets import HistogramValues
from tachograph.runs.catalogue import Summary
from tachograph.runs.catalogue import listed as list  # noqa: A004 - as users type it: tachograph.runs.list()
from tachograph.runs.catalogue import opened as open  # noqa: A004 - the same
from tachograph.runs.drawing import CurveDrawing
from tachograph.runs.ending import Ending, Failure
from tachograph.runs.kept_calls import CallsOfFunction, ProfiledCall
from tachograph.runs.losses import Loss
from tachograph.runs.recorded import Curve, CurveSummary, Moment, Point, Process, RecordedMetric
from tachograph.runs.recorded_series import Interval, Reading, RecordedSeries
from tachograph.runs.run import Run

__all__ = [
    "Bucket",
    "CallsOfFunction",
    "Curve",
    "CurveDrawing",
    "CurveSummary",
    "Ending",
    "Failure",
    "HistogramValues",
    "Interval",
    "Loss",
    "Moment",
    "Point",
    "Process",
    "ProfiledCall",
    "Reading",
    "RecordedMetric",
    "RecordedSeries",
    "Run",
    "Summary",
    "list",
    "open",
]
