"""Calls to hardware that may block, in one thread of the process for all of them."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.log import LogOnce

_CATCH_UP = 0.2


class Call:
    """A repeated call: from :meth:`BlockingCalls.every` until it is closed.

    Attributes:
        make: the function that is called.
        seconds: between two calls.
        patience: seconds that one call may take.
        blocked: called with the elapsed seconds of a call that takes too long; True: another thread repeats the call.
        due: time of the next call, in seconds of the monotonic clock.
        made: number of calls that have returned, or were given up.
    """

    __slots__ = ("blocked", "due", "made", "make", "patience", "seconds")

    def __init__(
        self, make: Callable[[], object], seconds: float, patience: float, blocked: Callable[[float], bool]
    ) -> None:
        self.make, self.seconds, self.patience, self.blocked = make, seconds, patience, blocked
        self.due = time.monotonic()
        self.made = 0


class BlockingCalls:
    """Makes each call when it is due, in turns.

    A call that does not return keeps its thread, and another thread goes on with the others; nothing else waits for it.
    The thread lives as long as there are calls.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all calls, as a forked child does: the thread is the parent's."""
        self._changed = threading.Condition(threading.RLock())
        self._calls: list[Call] = []
        self._busy: tuple[Call, float] | None = None
        self._thread: threading.Thread | None = None
        self._log_once = LogOnce()

    def every(
        self,
        seconds: float,
        make: Callable[[], object],
        *,
        patience: float = math.inf,
        blocked: Callable[[float], bool] = lambda _seconds: False,
    ) -> Call:
        """Make a call now and after each interval; see :class:`Call`. At the interpreter's end nothing is called."""
        call = Call(make, seconds, patience, blocked)
        with self._changed:
            self._calls.append(call)
            self._start()
            self._changed.notify_all()
        return call

    def _start(self) -> None:
        if self._thread is None and self._calls:
            thread = threading.Thread(target=self._run, name="tachograph hardware", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        me = threading.current_thread()
        while (call := self._next(me)) is not None:
            try:
                call.make()
            except Exception as error:  # noqa: BLE001 - the border to drivers and file systems: the other calls are made
                registries.default.count_error("system")
                message = (
                    "could not read hardware metrics, retrying (further warnings are suppressed; see "
                    "tachograph_errors_total on /metrics)"
                )
                self._log_once(type(error).__name__, message, level=logging.ERROR, exc_info=True)
            with self._changed:
                if self._thread is not me:
                    return  # it did not come back in time, and another thread goes on
                self._finish(call)

    def _next(self, me: threading.Thread) -> Call | None:
        with self._changed:
            while self._thread in (None, me) and self._calls:
                call = min(self._calls, key=lambda call: call.due)
                left = call.due - time.monotonic()
                if left <= 0 and self._thread is me:
                    self._busy = call, time.monotonic()
                    return call
                self._changed.wait(max(left, 0.0) if self._thread is me else _CATCH_UP)
            if self._thread is me:
                self._thread = None
            return None

    def _finish(self, call: Call) -> None:
        self._busy = None
        call.made += 1
        call.due = time.monotonic() + call.seconds
        self._changed.notify_all()

    def look(self) -> None:
        """Start another thread where a call has taken too long; then wait a moment for the others' turn."""
        busy = self._busy
        if busy is None or time.monotonic() - busy[1] <= busy[0].patience:
            return
        with self._changed:
            if self._busy is not busy:
                return
            call, since = busy
            self._finish(call)
            self._thread = None
            if not call.blocked(time.monotonic() - since):
                self.close(call, 0.0)
            others = [(other, other.made) for other in self._calls if other.due <= time.monotonic() or other is call]
            call.due = time.monotonic()
            self._start()
            self._changed.wait_for(lambda: all(other.made > made for other, made in others), _CATCH_UP)

    def close(self, call: Call, timeout: float) -> bool:
        """End a repeated call; tell whether none is under way, or it returned within ``timeout`` seconds."""
        with self._changed:
            if call in self._calls:
                self._calls.remove(call)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._busy is None or self._busy[0] is not call, timeout)


default = BlockingCalls()

at_fork("hardware_calls", in_child=default.forget)
