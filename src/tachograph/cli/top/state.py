"""What ``top`` knows of a run: its newest snapshot, the newest points of its curves, and its newest events."""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tachograph.cli.hub_client import RefusedError, UnavailableError
from tachograph.cli.top.source import RunSource, default_run
from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs import HistogramValues, NewestPoints, unpack_histogram
from tachograph.studio import TROUBLES, CurveOfRank, LastSample, MetricOfRun, RunEvent, RunReader, RunSnapshot

POINTS = 64  # of a curve, of which a sparkline shows as many as it has room for
_EVENTS = 200  # that are remembered
_NEWEST_EVENTS = 1000  # that are read at once, windows of Stats among them
_SNAPSHOTS = 4  # between the first and the last of these, points are counted for a rate
_CHOOSE_AGAIN = 5.0  # seconds after which the run to show is chosen again if none was named
_RETRY = 2.0  # seconds between two attempts to reach a source that is away
_SECOND = 1_000_000_000  # nanoseconds
# Windows of Stats and points of a MetricsLogger are data: as events they would push everything else out of sight.
_DATA = frozenset(
    {
        *("torch.monitor.Stat", "tachograph.point", "tachograph.points", "tachograph.metric"),
        *("tachograph.definition", "tachograph.steps"),
    }
)

# What reading an answer of another version raises: it lacks a field, or has another type.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)


class CurveLine(NamedTuple):
    """A metric in one rank.

    Attributes:
        points: how many all of its curves in this rank have.
        rate: how many of these have come per second lately; None while that is not known.
        values: the newest ones of its newest curve, that of the last start and task.
        x: of the last value; None if there is none.
    """

    rank: int | None
    points: int
    rate: float | None
    values: Sequence[float]
    x: float | None

    @property
    def value(self) -> float | None:
        """The newest value; None if there is none."""
        return self.values[-1] if self.values else None


class MetricRow(NamedTuple):
    """A metric of a run, in all its ranks."""

    group: str
    metric: str
    units: str
    x_units: str
    lines: list[CurveLine]

    def values(self) -> list[float]:
        """Return the newest value of each rank that has one."""
        return [line.value for line in self.lines if line.value is not None]


class RunView(NamedTuple):
    """A run as the screen shows it; it never changes.

    Attributes:
        where: the run is read from.
        snapshot: None before the first one.
        rows: the metrics, chart by chart.
        events: the newest last.
        trouble: in words, why the view is not up to date; empty if it is.
        refused: in words, why there will never be a snapshot; empty if there may be one.
    """

    where: str
    snapshot: RunSnapshot | None = None
    rows: Sequence[MetricRow] = ()
    events: Sequence[RunEvent] = ()
    trouble: str = ""
    refused: str = ""


class RunFollower:
    """Follows one run of a source; it is updated by one thread, and any thread may read :attr:`view`.

    Args:
        source: of the run.
        run: its id; None for the one that :func:`default_run` chooses.

    Attributes:
        view: as of the last update.
    """

    def __init__(self, source: RunSource, run: str | None) -> None:
        self.view = RunView(source.where)
        self._source = source
        self._run = run
        self._choose_at = 0.0
        self._start_over(run or "")

    def _start_over(self, run: str) -> None:
        self._reader = RunReader(self._source.ask, run)
        self._points: dict[int, tuple[int, NewestPoints | None]] = {}  # and the number of points that the curve had
        self._counts: deque[tuple[int, dict[int, int]]] = deque(maxlen=_SNAPSHOTS)
        self._events: deque[RunEvent] = deque(maxlen=_EVENTS)
        self._last_event = 0

    def follow(self, interval: float, stop: threading.Event, on_change: Callable[[], None]) -> None:
        """Update the view every ``interval`` seconds until ``stop`` is set, even if the source is away meanwhile."""
        while not stop.is_set():
            began = time.monotonic()
            trouble = self._try_to_update()
            if trouble:
                self.view = self.view._replace(trouble=f"{trouble}; trying again")
            on_change()
            # A hub that takes long to answer has a job to serve, and spends a third of its time on this at most.
            stop.wait(_RETRY if trouble else max(interval, 2 * (time.monotonic() - began)))

    def _try_to_update(self) -> str:
        """Update the view, and return in words why that failed; empty if it did not."""
        try:
            self.update()
        except UnavailableError as error:
            return str(error)
        except RefusedError as error:
            if self.view.snapshot is None:
                self.view = self.view._replace(refused=str(error))
            return str(error)
        except MALFORMED as error:
            return f"unexpected response from {self._source.where}: {type(error).__name__}: {error}"
        return ""

    def update(self) -> None:
        """Read the run once.

        Raises:
            UnavailableError: the source cannot be read now.
            RefusedError: there is no such run, or it may not be read.
            LookupError: the source is of another version; also ``TypeError``, ``ValueError`` and ``AttributeError``.
        """
        if self._run is None and time.monotonic() >= self._choose_at:
            listed = self._source.ask("/runs")
            chosen = default_run(listed["runs"], listed["run"])
            if not chosen:
                raise UnavailableError(self._source.no_run())
            if chosen != self._reader.run:
                self._start_over(chosen)
            self._choose_at = time.monotonic() + _CHOOSE_AGAIN
        snapshot = self._reader.read_snapshot()
        self._read_points(snapshot)
        self._read_events()
        self._counts.append((snapshot.now, {curve: points for curve, (points, _) in self._points.items()}))
        rows = [self._row(metric, is_running=snapshot.run.state == "running") for metric in snapshot.metrics]
        self.view = RunView(self._source.where, snapshot, rows, list(self._events))

    def _read_points(self, snapshot: RunSnapshot) -> None:
        """Read the newest points of the curves that have got some since the last snapshot."""
        counts = {curve.curve: curve.points for metric in snapshot.metrics for curve in metric.curves}
        changed = [curve for curve, points in counts.items() if self._points.get(curve, (0,))[0] != points]
        newest = {points.curve: points for points in self._reader.read_newest_points(changed, POINTS)}
        self._points.update({curve: (counts[curve], newest.get(curve)) for curve in changed})

    def _read_events(self) -> None:
        events = self._reader.read_newest_events(self._last_event, _NEWEST_EVENTS)
        self._last_event = events[-1].number if events else self._last_event
        self._events.extend(event for event in events if event.name not in _DATA)

    def _row(self, metric: MetricOfRun, *, is_running: bool) -> MetricRow:
        by_rank: dict[int | None, list[CurveOfRank]] = {}
        for curve in metric.curves:
            by_rank.setdefault(curve.rank, []).append(curve)
        lines = []
        for rank, curves in sorted(by_rank.items(), key=lambda pair: (pair[0] is None, pair[0] or 0)):
            newest = max(curves, key=lambda curve: (curve.start, curve.execution, curve.curve))
            _, points = self._points.get(newest.curve, (0, None))
            rate = self._rate([curve.curve for curve in curves]) if is_running else None
            values, x = (points.y, points.x[-1]) if points else ([], None)
            lines.append(CurveLine(rank, sum(curve.points for curve in curves), rate, values, x))
        return MetricRow(metric.group, metric.metric, metric.units, metric.x_units, lines)

    def _rate(self, curves: Iterable[int]) -> float | None:
        """Return how many points of curves have come per second; None before a second snapshot."""
        (began, first), (ended, last) = self._counts[0], self._counts[-1]
        if ended <= began:
            return None
        more = sum(last.get(curve, 0) - first.get(curve, 0) for curve in curves)
        return max(0, more) / ((ended - began) / _SECOND)


def count_troubles(samples: Iterable[LastSample]) -> list[tuple[str, str, float]]:
    """Return Tachograph's errors and values that are no numbers: name, attributes, count over all ranks."""
    counts: dict[tuple[str, str], float] = {}
    for sample in samples:
        if sample.name in TROUBLES and sample.value:
            words = ", ".join(f"{key}: {value}" for key, value in sorted(sample.attributes.items()))
            key = sample.name.removeprefix("tachograph."), words
            counts[key] = counts.get(key, 0) + sample.value
    return sorted(((*key, count) for key, count in counts.items()), key=lambda trouble: -trouble[2])


Durations = dict[tuple[str, str, str], dict[int | None, HistogramValues]]


def merge_durations(samples: Iterable[LastSample]) -> Durations:
    """Return the durations of each rank in its last interval, by scope, name and unit; of steps those of each phase."""
    durations: Durations = {}
    for sample in samples:
        if sample.name in TROUBLES or not sample.value or sample.total is None:
            continue
        values = HistogramValues(int(sample.value), sample.total, _spread(sample.spread) if sample.spread else None)
        ranks = durations.setdefault((sample.scope, _phase(sample) or sample.name, sample.unit), {})
        ranks[sample.rank] = ranks[sample.rank].plus(values) if sample.rank in ranks else values
    return durations


def _phase(sample: LastSample) -> str:
    """Return the phase of steps that a series is of; empty for none. All phases together would say nothing."""
    phase = sample.attributes.get("dl.step.phase")
    return f"phase {phase}{', device' * ('.device.' in sample.name)}" if phase else ""


@lru_cache(maxsize=4096)
def _spread(encoded: str) -> ExponentialHistogram | None:
    try:
        return unpack_histogram(base64.b64decode(encoded, validate=True))
    except ValueError:  # damaged: count and sum may be right
        return None
