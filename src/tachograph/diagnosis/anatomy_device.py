"""The device's side of a step: timing events of CUDA, recorded at the marks of some steps and read later.

All calls are made by the training thread, and never while its stream captures: a query of another thread would spoil a
capture (``cudaStreamCaptureModeGlobal`` forbids it). An event is read once ``query()`` has said that it has passed;
nothing here synchronises. Twenty steps a second at most are timed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tachograph.diagnosis.phases import OPTIMIZER, OPTIMIZER_END, Mark, Phases, split

EVERY = 50_000_000  # nanoseconds between the begins of two timed steps
_MEMORY_EVERY = 1_000_000_000  # nanoseconds between two looks at the allocator
_MOST_MARKS = 512  # of a timed step: one with more is given up
_MOST_WAITING = 8  # timed steps that the device has not reached


class DeviceStep(NamedTuple):
    """A timed step: its phases on the device's clock and on the host's, in nanoseconds."""

    device: Phases
    host: Phases


class _Timed:
    """A step that is being timed: its marks, and an event for each."""

    __slots__ = ("events", "marks", "place")

    def __init__(self, place: tuple[Any, ...]) -> None:
        self.place = place  # the device, and its stream
        self.marks: list[Mark] = []
        self.events: list[Any] = []


class DeviceClock:
    """Times some steps of one thread on its CUDA device.

    Args:
        torch: the module; its part ``cuda`` is used once the program has initialised it.
        failed: called with an exception of the device, after which nothing more is timed.

    Attributes:
        steps: timed steps that have been read; take them out.
        allocated: the memory of tensors at the end of a step, in bytes; None where it was not read yet.
    """

    def __init__(self, torch: Any, failed: Callable[[Exception], object]) -> None:
        self._cuda, self._failed = torch.cuda, failed
        self.steps: deque[DeviceStep] = deque(maxlen=1024)
        self.allocated: int | None = None
        self._next_memory = 0
        self._timed: _Timed | None = None
        self._waiting: deque[_Timed] = deque()
        self._pools: dict[int, list[Any]] = {}
        self._optimizer = 0  # of the end of which a timed step begins and ends
        self._off = False

    def mark(self, mark: Mark) -> bool:
        """Record an event for a mark; tell whether the step goes on to be timed."""
        timed = self._timed
        if timed is None:
            return False
        try:
            if len(timed.marks) >= _MOST_MARKS or self._place() != timed.place:
                self._give_up()
                return False
            self._record(timed, mark)
            if mark[0] == OPTIMIZER_END and mark[2] == self._optimizer:
                self._waiting.append(timed)
                self._timed = None
                return False
        except Exception as error:  # noqa: BLE001 - the border to the driver
            self._fail(error)
            return False
        return True

    def stepped(self, now: int, optimizer: int) -> bool:
        """Read the events that have passed, and tell whether a step is timed from now on: an optimizer has stepped.

        Args:
            now: nanoseconds.
            optimizer: its id.
        """
        if self._off or not self._cuda.is_initialized():
            return False
        try:
            place = self._place()
            if place is None:  # it captures: nothing of CUDA may be called
                return self._timed is not None
            self._read()
            if now >= self._next_memory:
                self._next_memory = now + _MEMORY_EVERY
                self.allocated = int(self._cuda.memory_allocated())
            if self._timed is None and len(self._waiting) < _MOST_WAITING:
                self._timed, self._optimizer = _Timed(place), optimizer
                # The end of the step before is where this one begins.
                self._record(self._timed, (OPTIMIZER_END, now, optimizer))
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        return self._timed is not None

    def _place(self) -> tuple[Any, ...] | None:
        """Return the current device and its stream; None while that captures a graph."""
        cuda = self._cuda
        if cuda.is_current_stream_capturing():
            return None
        return cuda.current_device(), cuda.current_stream().cuda_stream

    def _record(self, timed: _Timed, mark: Mark) -> None:
        pool = self._pools.setdefault(timed.place[0], [])
        event = pool.pop() if pool else self._cuda.Event(enable_timing=True)
        event.record()
        timed.events.append(event)
        timed.marks.append(mark)

    def _give_up(self) -> None:
        timed, self._timed = self._timed, None
        if timed is not None:
            self._pools[timed.place[0]] += timed.events

    def _read(self) -> None:
        """Turn timed steps whose last event has passed into phases."""
        while self._waiting and self._waiting[0].events[-1].query():
            timed = self._waiting.popleft()
            first = timed.events[0]
            times = [0, *(round(first.elapsed_time(event) * 1e6) for event in timed.events[1:])]
            self._pools[timed.place[0]] += timed.events
            begin = (OPTIMIZER, times[0], self._optimizer)
            on_device = [(mark[0], at, *mark[2:]) for mark, at in zip(timed.marks, times, strict=True)]
            host = timed.marks
            self.steps.append(
                DeviceStep(split([begin, *on_device]), split([(OPTIMIZER, host[0][1], self._optimizer), *host]))
            )

    def _fail(self, error: Exception) -> None:
        self._off = True
        self._timed = None
        self._waiting.clear()
        self._failed(error)
