"""Captures of CUDA graphs that are under way: meanwhile no thread of ours may query an event.

``cudaEventQuery`` of another thread spoils a capture in the mode ``global``, torch's default ("CUDA Runtime API",
stream management, ``cudaStreamBeginCapture``). Events are queried under the lock, which the begin of a capture waits
for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from tachograph.recording.interrupts import free_within
from tachograph.recording.wrapping import wraps

_WAIT = 0.01  # seconds


class Captures:
    """The graphs that are being captured, from the first value of a device on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: WeakSet[Any] = WeakSet()
        self._followed: Any = None

    def follow(self, cuda: Any) -> None:
        """Look after the captures of ``torch.cuda`` from now on: the begin and the end of one are patched, once."""
        graph = getattr(cuda, "CUDAGraph", None)
        if graph is self._followed or graph is None:
            return
        self._followed = graph
        begin, end = graph.capture_begin, graph.capture_end

        @wraps(begin)
        def capture_begin(self_: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._under_way.add(self_)
            try:
                return begin(self_, *args, **kwargs)
            except BaseException:
                self._under_way.discard(self_)
                raise

        @wraps(end)
        def capture_end(self_: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(self_, *args, **kwargs)
            finally:
                self._under_way.discard(self_)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def has_passed(self, query: Callable[[], bool]) -> bool:
        """Query an event; False while a graph is captured."""
        if not free_within(self._lock, _WAIT):  # a signal handler may ask in the middle of it
            return False
        with self._lock:
            return not self._under_way and query()


captures = Captures()
