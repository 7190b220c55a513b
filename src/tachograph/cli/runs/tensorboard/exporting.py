"""Write a run as a log folder of TensorBoard: an event file per rank, with its curves, histograms, hyperparameters."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.metadata import PLUGIN_NAME as HPARAMS
from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from tachograph.cli.runs.tensorboard.event_files import (
    CurveIdentity,
    ExactPoint,
    add_curve_identity,
    add_exact_point,
)
from tachograph.identity.run_id import file_safe
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.recording.points import encodable
from tachograph.runs import Interval, Point, Run

_SECOND = 1e9
_HIGHEST_EXPONENT = 1022  # of a bucket's end
_SMALLEST = 2.0**-_HIGHEST_EXPONENT
_HIGHEST_STEP = 2**63 - 1
_SESSION_STATUS = {"finished": STATUS_SUCCESS, "failed": STATUS_FAILURE, "killed": STATUS_FAILURE}
_OWN_GROUPS = frozenset({"tachograph", "tachograph.hardware"})


def write_log_folder(run: Run, root: Path, metrics: Sequence[str] | None = None) -> None:
    """Write a run into a folder named after it; an earlier export of the run is replaced.

    Args:
        run: to be written.
        root: the folder of all log folders.
        metrics: the names of the metrics to write; None for all.

    Raises:
        OSError: it cannot be written.
    """
    folder = root / file_safe(run.id)
    start = min((process.first_export for process in run.processes()), default=0)
    name = f"events.out.tfevents.{start // 10**9:010d}.{file_safe(run.id)}"
    names = None if metrics is None else set(metrics)
    curves = [curve for curve in run.curves() if _is_chosen(curve.group, curve.metric, names)]
    histograms = [
        series
        for series in run.series(kind="histogram")
        if series.group not in _OWN_GROUPS and _is_chosen(series.group, series.name, names)
    ]
    ranks = {curve.rank for curve in curves} | {series.rank for series in histograms} or {None}
    for place, rank in enumerate(sorted(ranks, key=lambda rank: (rank is not None, rank or 0))):
        with _replace_file(folder / ("" if rank is None else f"rank{rank}") / name) as write:
            write(Event(wall_time=start / _SECOND, file_version="brain.Event:2"))
            if place == 0:
                for event in _hparams_events(run, start):
                    write(event)
            tags = _Tags()
            of_rank = {f"{curve.group}/{curve.metric}" for curve in curves if curve.rank == rank}
            for metric in (None,) if of_rank and names is None else sorted(of_rank):
                for point in run.points(metric, rank=rank):
                    if point.rank == rank:  # without a rank, run.points() has the points of all
                        write(_point_event(point, tags))
            numbers = {series.number for series in histograms if series.rank == rank}
            steps: Counter[int] = Counter()
            for interval in run.intervals(rank=rank) if numbers else ():
                number = interval.series.number
                if interval.count and number in numbers:
                    write(_histogram_event(interval, steps[number], tags))
                    steps[number] += 1


def _is_chosen(group: str, metric: str, names: set[str] | None) -> bool:
    return names is None or not names.isdisjoint({metric, f"{group}/{metric}"})


@contextlib.contextmanager
def _replace_file(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes an event to a file, which replaces another file as soon as it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"part-{os.getpid()}")  # not the name of an event file
    try:
        with part.open("wb") as out:
            records = RecordWriter(out)
            yield lambda event: records.write(event.SerializeToString())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Tags:
    """The tags of a file: each curve has its own, even if the names of two curves join to the same text."""

    def __init__(self) -> None:
        self._tags: dict[str, str] = {}  # by the curve's identity as JSON, which tells 1 from True
        self._used: set[str] = set()

    def tag(self, curve: CurveIdentity) -> tuple[str, bool]:
        """Return the tag of a curve, and whether it is new."""
        identity = json.dumps(curve._replace(units=""))
        if identity in self._tags:
            return self._tags[identity], False
        name = f"{curve.group}/{curve.metric}" if curve.group else curve.metric
        if curve.attributes:
            name += "{" + ",".join(f"{key}={value}" for key, value in curve.attributes) + "}"
        if curve.execution:
            name += f" #{curve.execution}"
        name = tag = encodable(name)
        number = 1
        while tag in self._used:
            number += 1
            tag = f"{name} ({number})"
        self._tags[identity] = tag
        self._used.add(tag)
        return tag, True


def _point_event(point: Point, tags: _Tags) -> Any:
    """Return the event of a point; the first one of a tag says which curve it is."""
    curve = CurveIdentity(point.group, point.metric, point.units, tuple(point.attributes.items()), point.execution)
    tag, is_new = tags.tag(curve)
    step = max(-_HIGHEST_STEP, min(int(point.x), _HIGHEST_STEP))
    event = Event(wall_time=point.time_unix_nano / _SECOND, step=step)
    value = event.summary.value.add(tag=tag, simple_value=point.value)
    add_exact_point(value, ExactPoint(point.value, point.x, point.time_unix_nano, point.branch))
    if is_new:
        add_curve_identity(value, curve)
    return event


def _histogram_event(interval: Interval, step: int, tags: _Tags) -> Any:
    """Return the event of a histogram's interval, with the exponential buckets; the step is the interval's number."""
    series = interval.series
    exponential = interval.values.spread or ExponentialHistogram()
    tag, _ = tags.tag(CurveIdentity(series.group, series.name, "", tuple(series.attributes.items()), None))
    event = Event(wall_time=interval.time_unix_nano / _SECOND, step=step)
    histogram = event.summary.value.add(tag=tag).histo
    histogram.num = interval.count
    histogram.sum = interval.total
    limits: list[float] = []
    for left, right, count in _buckets(exponential):
        if not limits or left > limits[-1]:  # an empty bucket fills the gap before this one
            limits.append(left)
            histogram.bucket.append(0)
        limits.append(right)
        histogram.bucket.append(count)
    histogram.bucket_limit.extend(limits)
    lowest = limits[0] if limits else math.nan
    highest = limits[-1] if limits else math.nan
    histogram.min = lowest if math.isnan(exponential.minimum) else exponential.minimum
    histogram.max = highest if math.isnan(exponential.maximum) else exponential.maximum
    return event


def _buckets(exponential: ExponentialHistogram) -> Iterator[tuple[float, float, int]]:
    """Yield both ends and the count of each bucket that is not empty, in ascending order."""

    def end(index: int) -> float:
        exponent = math.ldexp(index, -exponential.scale)
        return float(2.0 ** max(-_HIGHEST_EXPONENT, min(exponent, _HIGHEST_EXPONENT)))

    for index, count in reversed([*enumerate(exponential.negative.counts, exponential.negative.offset)]):
        if count:
            yield -end(index + 1), -end(index), count
    if exponential.zeros:
        yield -_SMALLEST, _SMALLEST, exponential.zeros
    for index, count in enumerate(exponential.positive.counts, exponential.positive.offset):
        if count:
            yield end(index), end(index + 1), count


def _hparams_events(run: Run, start: int) -> Iterator[Any]:
    """Yield the events of a run's configuration, and of its end if that is known."""
    if run.config:
        session = HParamsPluginData()
        session.session_start_info.start_time_secs = start / _SECOND
        for key, setting in run.config.items():
            value = session.session_start_info.hparams[encodable(key)]
            if isinstance(setting, bool):
                value.bool_value = setting
            elif isinstance(setting, int | float):
                value.number_value = setting
            else:
                value.string_value = encodable(setting if isinstance(setting, str) else json.dumps(setting))
        yield _plugin_event(SESSION_START_INFO_TAG, session, start / _SECOND)
    if run.ended.state in _SESSION_STATUS:
        end = max(process.last_export for process in run.processes()) / _SECOND
        session = HParamsPluginData()
        session.session_end_info.status = _SESSION_STATUS[run.ended.state]
        session.session_end_info.end_time_secs = end
        yield _plugin_event(SESSION_END_INFO_TAG, session, end)


def _plugin_event(tag: str, session: Any, seconds: float) -> Any:
    event = Event(wall_time=seconds)
    plugin = event.summary.value.add(tag=tag).metadata.plugin_data
    plugin.plugin_name = HPARAMS
    plugin.content = session.SerializeToString()
    return event
