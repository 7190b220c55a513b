"""A curve: the points of one metric in one execution, on their way into the journal.

Recording appends to a list; a fold takes the list's content out. Like the accumulators' it never waits for its lock
where its own thread may hold it, and who finds the lock taken leaves what it has to the one that folds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from tachograph.recording._throttle import STRIDE, CurvePoint, Throttled
from tachograph.recording.accumulators import LastValue
from tachograph.recording.journal import Journal, Raw
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number, Pending


class Arrived(NamedTuple):
    """The part of a chunk that has arrived.

    ``taken`` is how much of the chunk the ``chunk`` of numbers stands for: what cannot be read is not in it. ``newest``
    is the last number that has arrived, at ``moment``; None where a plain one was recorded after it.
    """

    chunk: list[Any]
    taken: int
    newest: Number | None
    moment: float


def arrived(chunk: list[Any], losses: SeriesLosses) -> Arrived:
    """Return the part of a chunk that has arrived: everything before the first value that is still on its way.

    Args:
        chunk: values, x and times in turn.
        losses: where those are counted that cannot be read: their device has failed.
    """
    found: list[Any] = []
    taken, newest, moment = len(chunk), None, -inf
    for place in range(0, len(chunk), STRIDE):
        value = chunk[place]
        if not isinstance(value, Pending):
            newest = None
        elif not value.ready():
            taken = place
            break
        else:
            value = losses.arrived(value)
            if value is None:
                continue
            newest, moment = value, chunk[place + 2]
        found += value, chunk[place + 1], chunk[place + 2]
    return Arrived(found, taken, newest, moment)


def plain(buffer: Sequence[Any], place: int) -> list[Number]:
    """Return the values from a place in a buffer on that come from no device."""
    values = buffer[place::STRIDE]
    if not set(map(type, values)) - {Pending}:
        return []
    return [value for value in values if not isinstance(value, Pending)]


POINT = "tachograph.metric"
CHUNK = 512 * STRIDE
LIMIT = 65_536 * STRIDE
_NANO = 1e9
_FAR = sys.float_info.max
# From CPython 3.11 on, other threads and signal handlers run only after a call or a jump back: a stretch without any is
# one step (Python/ceval.c, CHECK_EVAL_BREAKER). Without that, every value goes through the buffer.
ATOMIC = (
    sys.implementation.name == "cpython"
    and sys.version_info >= (3, 11)
    and getattr(sys, "_is_gil_enabled", lambda: True)()
)


class CurveRecorder:
    """The recorder of one metric's curve, in one execution.

    Attributes:
        buffer: what was recorded and is not folded: value, x or None, and time in turn, added in one step.
        due: when the next fold is due, on the execution's clock.
        until: to when a value is held back without the buffer, if it is a float and its x does not go back.
        x: of the value that was held back last, or of the last one before it.
        last, moment, low, low_x, high, high_x, count: what values come to that were held back without the buffer: the
            last one, its time, the extremes with their x, and how many there are. All of it is older than the buffer.
        start: when the execution began, on its clock.
        gauge: its accumulator, which takes over ``last``; what goes through the buffer is put there.
        shown: see :class:`tachograph.recording.accumulators.Followed`.
        labels: what each point says of the metric.
        late: values were recorded that are still on their way from a device.
        folded: when the last value was recorded that came through the buffer and is folded.

    Args:
        labels: see above.
        gauge: see above.
        journal: where the points go.
        registry: where losses are counted.
        clock: seconds; of the times in the buffer.
        start: when the execution began, on that clock.
        run_start: when the run began, in nanoseconds since 1970.
        branch: the number of the first branch.
    """

    __slots__ = (
        "_clock",
        "_interval",
        "_journal",
        "_lock",
        "_outgoing",
        "_registry",
        "_run_start",
        "_state",
        "buffer",
        "count",
        "due",
        "folded",
        "gauge",
        "high",
        "high_x",
        "labels",
        "last",
        "late",
        "low",
        "low_x",
        "moment",
        "shown",
        "start",
        "until",
        "x",
    )

    def __init__(
        self,
        labels: Mapping[str, AttributeValue],
        gauge: LastValue,
        *,
        journal: Journal,
        registry: Registry,
        clock: Callable[[], float],
        start: float,
        run_start: int,
        branch: int = 0,
    ) -> None:
        self.labels = labels
        self.gauge = gauge
        gauge.follow(self)
        self.late = False
        self.buffer: Any = []
        self.due = -inf
        self._interval = inf
        self.folded = -inf
        self._journal, self._registry = journal, registry
        self._clock, self.start, self._run_start = clock, start, run_start
        self._lock = threading.Lock()
        self._state = Throttled(branch=branch)
        self._outgoing: list[Raw] = []  # logged, but for an interrupt
        self.last = self.shown = self.moment = 0.0
        self.low_x: Number = 0
        self.high_x: Number = 0
        self.x: Number = inf
        self.until = -inf
        self.count = 0
        self.low, self.high = inf, -inf

    def _take(self) -> None:
        """Fold what was held back without the buffer; nothing more is, until the end of the fold."""
        # Without a call up to the second line, so that ATOMIC holds here, too.
        found = self.last, self.x, self.moment, self.low, self.low_x, self.high, self.high_x, self.count
        self.until, self.count, self.low, self.high = -inf, 0, inf, -inf
        last, x, moment, low, low_x, high, high_x, count = found
        if count:
            place = self._state.branch, low, _place(low_x), high, _place(high_x), count, 0
            self._state = self._state.hold(CurvePoint(last, _place(x), moment, *place), timed=x.__class__ is float)

    def allow(self, a_second: float | None) -> None:
        """Let so many points a second through, if that is more than so far; None for all."""
        interval, before = 0.0 if a_second is None else 1 / a_second, self._interval
        if interval >= before:
            return
        with self._lock:
            self._interval = interval
            if before < inf:
                self.due = self._state.due - (before - interval) if interval else -inf
                self._state = self._state._replace(due=self.due)

    def fold(self, now: float) -> None:
        """Fold what was recorded until now, and let go what is due by then."""
        for _ in range(2):  # another time for what came while the lock was held, whose thread has not waited for it
            if self._lock.locked():
                break
            with self._lock:
                arrived = self._fold()
                self._send(now)
            if not self.buffer or not arrived:
                break
        if len(self.buffer) >= LIMIT:
            self._drop_half()

    def _drop_half(self) -> None:
        """Make room where nothing can be folded: the values of a device do not arrive."""
        if self._lock.locked():
            return
        with self._lock:
            lost = len(self.buffer) // 2 // STRIDE
            del self.buffer[: lost * STRIDE]
        self._registry.count_dropped("overflow", "journal", lost)

    def pass_on(self, *, everything: bool = False) -> bool:
        """Fold, and let go what is due now.

        Args:
            everything: what is held back, too: somebody wants all that was recorded so far.

        Returns:
            False where a fold is under way, or values are still on their way from a device.
        """
        if self._lock.locked():
            return False
        if not (self.buffer or self.count or self._state.held or self._state.ready or self._outgoing):
            return True
        with self._lock:
            arrived = self._fold()
            state, interval = self._state, self._interval
            now = self._clock()
            self._state = state.let_go(now, interval)
            if everything:
                self._state = self._state.let_all_go(interval)
            self._send(now)
        return arrived

    def name(self, labels: Mapping[str, AttributeValue], gauge: LastValue) -> None:
        """Say something else of the metric from now on, and show it elsewhere."""
        self.gauge.leave(self)
        self.labels, self.gauge = labels, gauge
        gauge.follow(self)

    def end(self) -> None:
        """Leave the gauge as it is: nothing new is recorded here; who is in the middle of recording logs that."""
        if not self._lock.locked():
            with self._lock:
                self._interval, self._state = 0.0, self._state._replace(due=-inf)
                self.due = self.until = -inf
        self.pass_on(everything=True)
        self.gauge.leave(self)

    def give_up(self, reason: Reason) -> None:
        """Count what has not arrived from a device, or could not leave: the process ends."""
        held = self._state.held
        lost = len(self.buffer) // STRIDE + self.count + sum(point.values for point in held) + len(self._outgoing)
        if lost:
            self._outgoing.clear()
            self.until, self.count, self.low, self.high = -inf, 0, inf, -inf
            self.buffer.clear()
            if held:
                self._state = self._state._replace(held=())
            self._registry.count_dropped(reason, "journal", lost)

    def _fold(self) -> bool:
        """Fold what is in the buffer, up to the first value that has not arrived; False where there is one."""
        buffer = self.buffer
        self._take()
        left = len(buffer)  # a trace function that records adds to it all the while
        while left > 0 and buffer:
            chunk = buffer[: min(CHUNK, left)]
            taken = len(chunk)
            if self.late:
                found = arrived(chunk, self.gauge.losses)
                chunk, taken = found.chunk, found.taken
                if not taken:
                    return False
                self._show(found)
            before = self._state
            self.folded = buffer[taken - 1]
            left -= taken
            del buffer[:taken]
            try:
                self._state = before.fold(chunk, self.start, self._interval)
            except BaseException:  # an interrupt: the chunk is either folded or back in the buffer
                if self._state is before:
                    buffer[:0] = chunk
                raise
        if not buffer:
            self.late = False
        return True

    def _show(self, arrived: Arrived) -> None:
        """Show the last value that has arrived, unless a later one is there: in the buffer, or recorded elsewhere."""
        value, size = arrived.newest, len(self.buffer)
        if value is None or plain(self.buffer, arrived.taken):
            return
        gauge = self.gauge
        for other in gauge.followed:
            if (
                isinstance(other, CurveRecorder)
                and other is not self
                and max(other.folded, other.moment) > arrived.moment
            ):
                return
        self.shown = self.last  # which is older
        gauge.current = value
        if len(self.buffer) > size:
            for later in plain(self.buffer, size)[-1:]:
                gauge.current = later

    def _send(self, now: float) -> None:
        """Log the points that are ready."""
        state, losses, outgoing = self._state, self.gauge.losses, self._outgoing
        if self._interval:
            self.due = state.due
        logged, rest = self._logged(state.ready, now), state.taken()
        # One step (see ATOMIC), so that an interrupt leaves no point in both places, and none in neither.
        self._state = rest
        losses.nonfinite += state.nonfinite
        outgoing += logged
        if outgoing:
            self._journal.take_over(outgoing)
        if ATOMIC and not self.buffer:
            self.x, self.until = state.x, self.due

    def _logged(self, points: Sequence[CurvePoint], now: float) -> list[Raw]:
        if not points:
            return []
        wall, labels, run_start = time.time_ns(), self.labels, self._run_start
        times = [wall if point.moment == now else wall - int((now - point.moment) * _NANO) for point in points]
        return [
            (POINT, at, wall, (_attributes, labels, point, at - run_start), 0, 0, 0)
            for at, point in zip(times, points, strict=True)
        ]


def _place(x: Number) -> float:
    """Return x as a float: one that is held back has not been looked at."""
    try:
        return float(x)
    except OverflowError:
        return _FAR


def _attributes(
    labels: Mapping[str, AttributeValue], point: CurvePoint, nanoseconds: int
) -> Mapping[str, AttributeValue]:
    """Return a point as it leaves."""
    return {**labels, **point.attributes(), "elapsed": nanoseconds / _NANO}


class _Nowhere(CurveRecorder):
    """Takes everything, and keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.buffer = deque(maxlen=0)
        self.due = inf
        self.gauge = LastValue(SeriesLosses(""))
        self.late = False
        self.last = self.shown = 0.0
        self.start, self.until = 0.0, -inf


NOWHERE: CurveRecorder = _Nowhere()
