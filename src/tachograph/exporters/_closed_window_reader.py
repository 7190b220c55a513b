"""Windows: what one reader has not seen yet of gauges that show the last window only.

As with :mod:`tachograph.exporters._deltas`, readers keep their own state: each gets every window once, whatever its
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tachograph.recording.closed_windows import END, START, Closed, Cursor, Windowed, WindowHistory
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.registry import Registry

_APART = 1_000_000  # ns; Prometheus refuses a whole request for a second value in the same millisecond
_AHEAD = 1_000_000_000  # ns that points may be ahead of the clock before it counts as set back
_RECENT = 1_000_000_000  # ns ago that the newest window may have ended which gives a collection its time
_SLICE = 64


class ClosedWindowReader:
    """Gives one reader each closed window as a point of its own, from when the reader is made.

    A window's point has the window's start and end as its times. Where no window has closed since the last collection,
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
            metrics: what the registry returned.
            now: when it was collected, in nanoseconds since the epoch.
        """
        if not metrics:  # a batch of spans or events
            return now
        self._before = self._newest if self._newest < now + _AHEAD else 0
        end = max((found.windows.history.newest(found.windows.until) for found in metrics if found.windows), default=0)
        if self._before < end <= now < end + _RECENT:
            now = end
        self._newest = max(now, self._before + _APART)
        return self._newest

    def read(self, metrics: Sequence[MetricPoints], now: int, pace: Callable[[], None]) -> Iterator[MetricPoints]:
        """Yield the metrics of a collection, those of windows with all the points that are new.

        Args:
            metrics: what the registry returned.
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
        """Return what is new, each window with its point's time."""
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
        """Forget what was seen, as a forked child does; windows are kept again from the next collection on."""
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
