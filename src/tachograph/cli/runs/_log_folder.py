"""A run as a folder of TensorBoard's: an event file for each rank, with its curves and histograms, and hyperparameters.

TensorBoard keeps values in single precision, whole steps, and times to a fraction of a microsecond. Beside these each
value has what they do not say, in a field that other readers skip: ``tachograph runs import`` gets back each point.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tachograph.exporters.event_file import (
    FAILURE,
    HPARAMS,
    SESSION_END,
    SESSION_START,
    SUCCESS,
    Event,
    HParams,
    nanoseconds,
)
from tachograph.exporters.tensorboard import VERSION, framed, record
from tachograph.identity.run_id import file_safe
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.recorded import Point
from tachograph.runs.recorded_series import Interval
from tachograph.runs.run import Run

_SECOND = 1e9
_EXPONENT, _TINY = 1022, 2.0**-1022
_STEPS = 2**63 - 1
_ELSEWHERE = -1  # no rank
_STATUS = {"finished": SUCCESS, "failed": FAILURE, "killed": FAILURE}
_OWN = frozenset({"tachograph", "tachograph.hardware"})  # groups


class _Named(NamedTuple):
    """The identity of a curve in a file; ``attributes`` are JSON: pairs."""

    group: str
    metric: str
    attributes: str
    execution: int


class _Tags:
    """The tags of a file: one of its own for each curve, though ``a/b`` and ``c`` join to the same text as others."""

    def __init__(self) -> None:
        self._known: dict[_Named, bytes] = {}
        self._taken: set[bytes] = set()

    def tag(self, named: _Named) -> tuple[bytes, bool]:
        """Return a curve's tag, and whether it is new."""
        known = self._known.get(named)
        if known is not None:
            return known, False
        told = ",".join(f"{key}={value}" for key, value in json.loads(named.attributes))
        words = [f"{{{told}}}" if told else "", f" #{named.execution}" if named.execution else ""]
        plain = "".join([f"{named.group}/{named.metric}" if named.group else named.metric, *words])
        found, number = _text(plain), 1
        while found in self._taken:
            number += 1
            found = _text(f"{plain} ({number})")
        self._known[named] = found
        self._taken.add(found)
        return found, True


def write_log_folder(run: Run, root: Path, metrics: Sequence[str] | None = None) -> None:
    """Write a run into a folder named after it; an earlier export of the run is replaced.

    Args:
        run: see above.
        root: of all log folders.
        metrics: the names of those that are wanted; None for all.

    Raises:
        OSError: it cannot be written.
    """
    folder = root / file_safe(run.id)
    began = min((each.first_export for each in run.processes()), default=0)
    name = f"events.out.tfevents.{began // 10**9:010d}.{file_safe(run.id)}"
    names = None if metrics is None else set(metrics)
    found = [each for each in run.curves() if names is None or names & {each.metric, f"{each.group}/{each.metric}"}]
    series = [
        each
        for each in run.series(kind="histogram")
        if each.group not in _OWN and (names is None or names & {each.name, f"{each.group}/{each.name}"})
    ]
    numbers = {each.number: each.rank for each in series}
    there = {each.rank for each in (*found, *series)}  # type: ignore[attr-defined] # mypy joins them to tuples
    ranks = sorted(there or {None}, key=lambda rank: (rank is not None, rank or 0))
    for place, rank in enumerate(ranks):
        of_rank = {f"{each.group}/{each.metric}" for each in found if each.rank == rank}
        with _replaced(folder / ("" if rank is None else f"rank{rank}") / name) as out:
            out.write(record(began / _SECOND, VERSION))
            if not place:
                out.writelines(_hparams(run, began))
            tags = _Tags()
            for metric in (None,) if of_rank and names is None else sorted(of_rank):
                points = run.points(metric, rank=rank)  # None stands for all ranks
                out.writelines(_point(point, tags) for point in points if point.rank == rank)
            steps: Counter[int] = Counter()
            for interval in run.intervals(rank=rank) if rank in numbers.values() else ():
                number = interval.series.number
                if interval.count and numbers.get(number, _ELSEWHERE) == rank:
                    out.write(_histogram(interval, steps[number], tags))
                    steps[number] += 1


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Lend a file that takes the place of another one once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"part-{os.getpid()}")  # no name of an event file
    try:
        with part.open("wb") as out:
            yield out
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _point(point: Point, tags: _Tags) -> bytes:
    """Return the record of a point; the first one of a tag says which curve it is."""
    attributes = json.dumps(list(point.attributes.items()))
    named = _Named(point.group, point.metric, attributes, point.execution)
    tag, is_new = tags.tag(named)
    event = Event(wall_time=point.time_unix_nano / _SECOND, step=max(-_STEPS, min(int(point.x), _STEPS)))
    value = event.summary.value.add(tag=tag, simple_value=point.value)
    if _bits(value.simple_value) != _bits(point.value):
        value.point.value = point.value
    if _bits(event.step) != _bits(point.x):
        value.point.x = point.x
    if nanoseconds(event.wall_time, 0) != point.time_unix_nano:
        value.point.time_unix_nano = point.time_unix_nano
    if point.branch:
        value.point.branch = point.branch
    if is_new:
        of = value.curve
        of.group, of.metric, of.units = _text(point.group), _text(point.metric), _text(point.units)
        of.attributes, of.execution = attributes.encode(), point.execution
    return framed(event.SerializeToString())


def _histogram(interval: Interval, step: int, tags: _Tags) -> bytes:
    """Return the record of an interval of a histogram, its buckets the exponential ones; the step is its number."""
    of, spread = interval.series, interval.values.spread or ExponentialHistogram()
    event = Event(wall_time=interval.time_unix_nano / _SECOND, step=step)
    named = _Named(of.group, of.name, json.dumps(list(of.attributes.items())), 0)
    value = event.summary.value.add(tag=tags.tag(named)[0])
    histo = value.histo
    histo.num, histo.sum = interval.count, interval.total
    for low, high, count in _buckets(spread):
        if not histo.bucket_limit or low > histo.bucket_limit[-1]:  # an empty one before it
            histo.bucket_limit.append(low)
            histo.bucket.append(0)
        histo.bucket_limit.append(high)
        histo.bucket.append(count)
    ends = histo.bucket_limit or [math.nan]
    histo.min = ends[0] if math.isnan(spread.minimum) else spread.minimum
    histo.max = ends[-1] if math.isnan(spread.maximum) else spread.maximum
    return framed(event.SerializeToString())


def _buckets(spread: ExponentialHistogram) -> Iterator[tuple[float, float, int]]:
    """Yield both ends and the count of each bucket that has any, from the lowest on."""

    def end(index: int) -> float:
        return float(2.0 ** max(-_EXPONENT, min(math.ldexp(index, -spread.scale), _EXPONENT)))

    for index, count in reversed([*enumerate(spread.negative.counts, spread.negative.offset)]):
        if count:
            yield -end(index + 1), -end(index), count
    if spread.zeros:
        yield -_TINY, _TINY, spread.zeros
    for index, count in enumerate(spread.positive.counts, spread.positive.offset):
        if count:
            yield end(index), end(index + 1), count


def _hparams(run: Run, began: int) -> Iterator[bytes]:
    """Yield the records of a run's configuration, and of its end where that is known."""
    said = HParams()
    start = said.session_start_info
    start.start_time_secs = began / _SECOND
    for key, given in run.config.items():
        value = start.hparams.add(key=_text(key)).value
        if isinstance(given, bool):
            value.bool_value = given
        elif isinstance(given, int | float):
            value.number_value = given
        else:
            value.string_value = _text(given if isinstance(given, str) else json.dumps(given))
    if run.config:
        yield _of_plugin(SESSION_START, said, began / _SECOND)
    status = _STATUS.get(run.ended.state)
    if status:
        ended = max(each.last_export for each in run.processes()) / _SECOND
        end = HParams()
        end.session_end_info.status, end.session_end_info.end_time_secs = status, ended
        yield _of_plugin(SESSION_END, end, ended)


def _of_plugin(tag: str, said: Any, seconds: float) -> bytes:
    event = Event(wall_time=seconds)
    plugin = event.summary.value.add(tag=tag.encode()).metadata.plugin_data
    plugin.plugin_name, plugin.content = HPARAMS.encode(), said.SerializeToString()
    return framed(event.SerializeToString())


def _bits(number: float) -> bytes:
    return struct.pack("<d", number)


def _text(said: str) -> bytes:
    return said.encode("utf-8", "backslashreplace")
