"""Differences and windows: the news for one reader of a registry that is cumulative and resets nothing.

Readers keep their own state: each gets every window of a gauge once, whatever its interval.
Source: OpenTelemetry specification, "Metrics Data Model", "Temporality".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tachograph.exporters._spreads import Spreads
from tachograph.recording.closed_windows import END, START, Closed, Cursor, Windowed, WindowHistory
from tachograph.recording.forking import at_fork
from tachograph.recording.naming import Kind
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.points import HistogramPoint, MetricPoints, NumberPoint, series_key
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar, Total, ValueSummary
from tachograph.recording.values import Number


@dataclass(slots=True)
class _Seen:
    time_unix_nano: int
    state: Number | ValueSummary
    exemplars: Sequence[Exemplar] = ()


class Deltas:
    """Last points that one reader has seen of each series, from which its differences are made.

    Args:
        kinds: the kinds of instruments that the reader wants as differences; gauges have none.
    """

    def __init__(self, kinds: frozenset[Kind]) -> None:
        self.kinds = kinds
        self._seen: dict[tuple[object, ...], _Seen] = {}

    def since(
        self, metric: MetricPoints, point: NumberPoint | HistogramPoint, now: int
    ) -> NumberPoint | HistogramPoint | None:
        """Return the difference to this series' last point, its start being that time; None where there is none.

        The minimum and maximum of the interval are known only where they are those of the whole time, too; else they
        are NaN.
        """
        key = series_key(metric, point)
        before = self._seen.get(key)
        found: NumberPoint | HistogramPoint | None = point
        if before is not None:
            found = _difference(point, before)
        if found is not None:
            if isinstance(point, NumberPoint):
                self._seen[key] = _Seen(now, point.value)
            else:
                self._seen[key] = _Seen(now, point.summary, point.exemplars)
        return found

    def forget(self) -> None:
        """Forget the last points, as a forked child does."""
        self._seen = {}


class Left(NamedTuple):
    """The state that an ended reader leaves to the next one for the same receiver."""

    deltas: Deltas | None
    spreads: Spreads | None


_left: WeakKeyDictionary[Registry, dict[tuple[object, ...], Left]] = WeakKeyDictionary()


def leave(registry: Registry, receiver: tuple[object, ...], state: Left) -> None:
    """Leave the state of a reader that has ended to the next one for the same receiver: the process goes on."""
    _left.setdefault(registry, {})[receiver] = state


def left(registry: Registry, receiver: tuple[object, ...]) -> Left:
    """Return the state of the last reader for this receiver: a ``shutdown()`` and a ``start()`` send nothing twice."""
    return _left.get(registry, {}).pop(receiver, Left(None, None))


at_fork("otlp_differences", in_child=_left.clear)


def _difference(point: NumberPoint | HistogramPoint, before: _Seen) -> NumberPoint | HistogramPoint | None:
    start = before.time_unix_nano
    if isinstance(point, NumberPoint):
        if isinstance(before.state, ValueSummary) or point.value == before.state:
            return None
        if point.value < before.state:  # it began anew
            return point
        return NumberPoint(point.attributes, point.value - before.state, start)
    if not isinstance(before.state, ValueSummary) or point.summary.count == before.state.count:
        return None
    if point.summary.count < before.state.count:
        return point
    return point._replace(
        summary=_added(point.summary, before.state),
        start_unix_nano=start,
        exemplars=tuple(seen for seen in point.exemplars if seen not in before.exemplars),
    )


def _added(now: ValueSummary, before: ValueSummary) -> ValueSummary:
    nan = float("nan")
    total = Total(now.total.integers - before.total.integers, now.total.floats, now.total.lost)
    return ValueSummary(
        now.count - before.count,
        total.plus(-before.total.floats).plus(-before.total.lost),
        now.minimum if now.minimum < before.minimum else nan,
        now.maximum if now.maximum > before.maximum else nan,
        tuple(map(int.__sub__, now.buckets, before.buckets)),
        now.nonfinite - before.nonfinite,
    )


_APART = 1_000_000  # ns; Prometheus refuses a whole request for a second value in the same millisecond
_AHEAD = 1_000_000_000  # ns that points may be ahead of the clock before it counts as set back
_RECENT = 1_000_000_000  # ns ago that the newest window may have ended which gives a collection its time
_SLICE = 64


class ClosedWindowReader:
    """Gives one reader each closed window as a point of its own, from when the reader is made.

    A window's point has the window's start and end as its times. If no window has closed since the last collection,
    the gauge is as it was: the point of the last window, at the time of the collection, so that what watches the series
    does not take it for gone. Points of a series come in order and at least a millisecond apart: where Stats of one
    name close together, or a window late, the later point's time is moved.

    Args:
        registry: whose windows; where it is counted what the reader came too late for.
        destination: whose losses those are.
    """

    def __init__(self, registry: Registry, destination: str) -> None:
        self._closed = registry.closed_windows
        lost = registry.group(OWN_GROUP).own(DROPPED).bind(reason="windows_full", destination=destination)
        self._cursor = Cursor(lost)
        self._attached = True
        self._times: dict[WindowHistory, int] = {}
        self._newest = self._before = 0  # of all points: of the last collection, and of the one before
        self._closed.attach(self._cursor)

    def time_of(self, metrics: Sequence[MetricPoints], now: int) -> int:
        """Return the time of a new collection: at least a millisecond after every point of the one before.

        It is the end of its newest window, where that is less than a second ago: windows that a busy machine closes
        late still lie after it. Prometheus gives ``target_info`` the oldest and the newest time of a request. It takes
        nothing of a request in which one of them is older than the newest one before, or in which a series has another
        value in the same millisecond.

        Args:
            metrics: as the registry returned them.
            now: when it was collected, in nanoseconds since the epoch.
        """
        self._before = self._newest if self._newest < now + _AHEAD else 0
        end = max((found.windows.history.newest(found.windows.until) for found in metrics if found.windows), default=0)
        if self._before < end <= now < end + _RECENT:
            now = end
        self._newest = max(now, self._before + _APART)
        return self._newest

    def read(self, metrics: Sequence[MetricPoints], now: int, pace: Callable[[], None]) -> Iterator[MetricPoints]:
        """Yield the metrics of a collection, those of windows with all the points that are new.

        Args:
            metrics: as the registry returned them.
            now: when it was collected, in nanoseconds since the epoch.
            pace: called between slices of windows.
        """
        if not self._attached:
            self._attached = True
            self._closed.attach(self._cursor)
        taken: dict[WindowHistory, list[tuple[int, Closed]]] = {}
        repeats: dict[WindowHistory, bool] = {}
        for metric in metrics:
            windowed = metric.windows
            if windowed is None:
                yield metric
                continue
            history = windowed.history
            if history not in taken:
                taken[history] = self._take(history, windowed.until, now, pace)
                repeats[history] = not self._follows(history, now, now)
            points = _points(windowed, taken[history], pace)
            if points:
                yield metric._replace(points=points, windows=None)
            elif repeats[history]:
                self._times[history] = now
                yield metric._replace(windows=None)
        if taken:
            self._closed.recount()

    def _take(self, history: WindowHistory, until: int, now: int, pace: Callable[[], None]) -> list[tuple[int, Closed]]:
        """Return the news, each window with its point's time."""
        found: list[tuple[int, Closed]] = []
        for number, closed in enumerate(self._closed.take(self._cursor, history, until)):
            if number % _SLICE == _SLICE - 1:
                pace()
            time = max(closed[END], self._before)
            if self._follows(history, time, now):
                time = self._times[history] + _APART
            self._times[history] = time
            self._newest = max(time, self._newest)
            found.append((time, closed))
        return found

    def _follows(self, history: WindowHistory, time: int, now: int) -> bool:
        """Tell whether a point at a time would come too close to the one before it, or before that."""
        last = self._times.get(history, 0)
        return time < last + _APART and last < now + _AHEAD

    def forget(self) -> None:
        """Forget the last points, as a forked child does; windows are kept again from the next collection on."""
        self._times, self._newest, self._before = {}, 0, 0
        self._attached = False

    def close(self) -> None:
        """Ask for no more windows."""
        self._closed.detach(self._cursor)


def _points(windowed: Windowed, windows: list[tuple[int, Closed]], pace: Callable[[], None]) -> list[NumberPoint]:
    found: list[NumberPoint] = []
    for number, (time, closed) in enumerate(windows):
        if number % _SLICE == _SLICE - 1:
            pace()
        value = windowed.value(closed)
        if value is not None:
            found.append(NumberPoint((), value, min(closed[START], time), time))
    return found
