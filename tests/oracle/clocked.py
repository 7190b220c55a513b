"""``python clocked.py MODULE…``: the ``tachograph`` command, with a clock that its caller sets.

Its time stands still but for the lines ``NANOSECONDS`` that come through the pipe named in ``ORACLE_PIPES``; each is
answered with a line once all that was due by then has been done, in order. The package's own ``time.time``,
``time.time_ns`` and ``time.monotonic`` tell this time, and its threads that wait for an event with a time-out wake by
it; other packages keep the machine's clock. Without the variable the time stands at ``ORACLE_TIME``.

``python clocked.py -`` runs one command after another, from lines of JSON, and answers with their code and output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import threading
import time
from typing import Any, NamedTuple

SECOND = 1_000_000_000
_SETTLES, _WORKS = 0.2, 60.0  # seconds in which threads begin, and in which one does what is due


class Sleeper(NamedTuple):
    """A thread that waits for the clock."""

    deadline: int
    name: str
    woken: threading.Event


_real_wait = threading.Event.wait
_real = {name: getattr(time, name) for name in ("time", "time_ns", "monotonic")}


class Clock:
    """A clock that is set; threads that wait for it are woken one after the other, each when the one before waits.

    Attributes:
        now: its time, in nanoseconds since the epoch.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._sleepers: dict[threading.Thread, Sleeper] = {}
        self._settled = False

    def install(self) -> None:
        """Put it in the place of the machine's clock, for the package alone."""
        ours = {
            "time": lambda: self.now / SECOND,
            "time_ns": lambda: self.now,
            "monotonic": lambda: self.now / SECOND,
        }
        for name, tell in ours.items():
            setattr(time, name, lambda tell=tell, real=_real[name]: tell() if _is_asked_by_package() else real())

        def wait(event: threading.Event, timeout: float | None = None) -> bool:
            if timeout is None or not _is_asked_by_package():
                return _real_wait(event, timeout)
            return self._sleep(event, timeout)

        threading.Event.wait = wait  # type: ignore[assignment,method-assign]

    def _sleep(self, event: threading.Event, seconds: float) -> bool:
        thread, woken = threading.current_thread(), threading.Event()
        with self._lock:
            self._sleepers[thread] = Sleeper(self.now + int(seconds * SECOND), thread.name, woken)
        while not _real_wait(woken, 0.02) and not event.is_set():
            pass
        with self._lock:
            self._sleepers.pop(thread, None)
        return event.is_set()

    def forward(self, to: int) -> None:
        """Let time pass."""
        if not self._settled:
            self._settled = True
            _real_wait(threading.Event(), _SETTLES)
        while True:
            with self._lock:
                due = [(each, thread) for thread, each in self._sleepers.items() if each.deadline <= to]
                if not due:
                    self.now = max(self.now, to)
                    return
                first, thread = min(due, key=lambda found: found[0][:2])
                self.now = max(self.now, first.deadline)
                del self._sleepers[thread]
            first.woken.set()
            self._await(thread)

    def _await(self, thread: threading.Thread) -> None:
        end = _real["monotonic"]() + _WORKS
        while thread.is_alive() and _real["monotonic"]() < end:
            with self._lock:
                if thread in self._sleepers:
                    return
            _real_wait(threading.Event(), 0.0005)

    def follow(self, reading: int, writing: int) -> None:
        """Set it as lines say."""
        with os.fdopen(reading) as lines:
            for line in lines:
                self.forward(int(line))
                os.write(writing, b"\n")


def _is_asked_by_package() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("tachograph.")


def _run(arguments: list[str]) -> int:
    sys.argv = ["tachograph", *arguments]
    try:
        runpy.run_module("tachograph", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _run_each() -> None:
    clock, told, answers = Clock(0), sys.stdin, sys.stdout
    clock.install()
    for line in told:
        asked: dict[str, Any] = json.loads(line)
        clock.now = asked["now"]
        found = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
        with contextlib.redirect_stdout(found[0]), contextlib.redirect_stderr(found[1]):
            code = _run(asked["arguments"])
        said = [each.buffer.getvalue().decode("utf-8", "replace") for each in found]
        answers.write(json.dumps([code, *said]) + "\n")
        answers.flush()


def main() -> int:
    """Run one command, or many."""
    if sys.argv[1:] == ["-"]:
        _run_each()
        return 0
    clock = Clock(int(os.environ["ORACLE_TIME"]))
    clock.install()
    reading, writing = map(int, os.environ["ORACLE_PIPES"].split(","))
    threading.Thread(target=clock.follow, args=(reading, writing), daemon=True).start()
    return _run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
