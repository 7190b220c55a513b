"""The recorder of the random programs of ``ends.py``: by every door, with durable notes beside it.

It is loaded in the attacked process. A note is one ``write`` to a file, so it survives any end; its time is the wall
clock. A batch is noted before its first value and after its last one, so of a batch that an exception has cut short
any part may arrive, and of the others everything has to.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tachograph
from tachograph.monitor import Aggregation, Event, Stat, log_event

FOLDER = Path(os.environ["LEDGER"])
GROUP = "attack"
STRIDE = 100_000  # between the first numbers of two batches: the largest batch

Record = Callable[[int], object]


def _put(who: str) -> Record:
    attributes = {"who": who}
    return lambda _number: tachograph.put_metric("put.success", 1, GROUP, attributes=attributes)


def _gauge(who: str) -> Record:
    attributes = {"who": who}
    return lambda number: tachograph.put_metric("level", number, GROUP, attributes=attributes)


def _wait(who: str) -> Record:
    attributes = {"who": who}
    return lambda _number: tachograph.put_metric("wait_seconds", 1.0, GROUP, attributes=attributes)


def _bound(who: str) -> Record:
    add: Callable[[float], Any] = tachograph.declare("bound", group=GROUP, kind="counter", unit="{item}").bind(who=who)
    return lambda _number: add(1)


def _prof(who: str) -> Record:
    def work(number: int) -> None:
        if not number % 7:
            raise LookupError

    work.__qualname__ = f"attack.work {who}"  # with a dot it is the name as it is
    profiled: Callable[[int], None] = tachograph.prof(group=GROUP)(work)

    def record(number: int) -> None:
        try:
            profiled(number)
        except LookupError:
            return

    return record


def _stat(who: str) -> Record:
    stat = Stat(f"stat {who}", [Aggregation.COUNT, Aggregation.SUM], timedelta(seconds=0.25))
    return lambda _number: stat.add(1)


def _event(who: str) -> Record:
    return lambda number: log_event(Event("attack.event", datetime.now(UTC), {"who": who, "number": number}))


def _point(who: str) -> Record:
    logger = tachograph.MetricsLogger(role="attack")
    return lambda number: logger.log("attack", {"who": who}, {"number": number})


def _curve(who: str) -> Record:
    record = tachograph.Metric(f"curve {who}", throttle=None).record
    return lambda number: record(float(number), at=number)


def _throttled(who: str) -> Record:
    record = tachograph.Metric(f"throttled {who}").record
    return lambda number: record(float(number), at=number)


DOORS: dict[str, Callable[[str], Record]] = {
    "put": _put,
    "gauge": _gauge,
    "wait": _wait,
    "bound": _bound,
    "prof": _prof,
    "stat": _stat,
    "event": _event,
    "point": _point,
    "curve": _curve,
    "throttled": _throttled,
}


class Recorder:
    """Records by some doors under one name, from one thread at a time, with notes in ``<who>.notes``.

    Args:
        who: its name, which distinguishes its series from all others of the program.
        doors: of :data:`DOORS`.
    """

    def __init__(self, who: str, doors: Sequence[str]) -> None:
        self._notes = os.open(FOLDER / f"{who}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._records = [DOORS[door](who) for door in doors]
        self._batches = itertools.count()
        os.write(self._notes, f"doors {' '.join(doors)}\n".encode())

    def batch(self, size: int) -> None:
        """Record ``size`` numbers by each door."""
        first = next(self._batches) * STRIDE + 1
        numbers = range(first, first + size)
        os.write(self._notes, f"begun {first} {size} {time.time()}\n".encode())
        for record in self._records:
            for number in numbers:
                record(number)
        os.write(self._notes, f"done {first} {size} {time.time()}\n".encode())

    def work(self, seconds: float, size: int, pause: float) -> None:
        """Record batches for some seconds."""
        end = time.monotonic() + seconds
        while True:
            self.batch(size)
            if time.monotonic() >= end:
                return
            time.sleep(pause)

    async def work_in_turns(self, seconds: float, size: int, pause: float) -> None:
        """Record batches for some seconds, as a coroutine."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.batch(size)
            await asyncio.sleep(pause)

    def down(self, size: int) -> None:
        """Record batches in ever deeper calls, until RecursionError."""
        self.batch(size)
        self.down(size)


def begun(who: str) -> None:
    """Note that a process has begun."""
    _note(f"{who}.begun", f"{os.getpid()} {time.time()}\n")


def ending(who: str) -> None:
    """Note that the end of a process begins."""
    _note(f"{who}.ending", f"{time.time()}\n")


def ended(who: str, status: int | None) -> None:
    """Note the exit status of a child; None where it did not end."""
    _note(f"{who}.status", f"{status}\n")


def swallowed(who: str) -> None:
    """Note that an exception of the program's own, raised in the middle of values, never came out of them."""
    _note(f"{who}.swallowed", "1\n")


def _note(name: str, text: str) -> None:
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, text.encode())
    os.close(file)


def await_child(who: str, pid: int, seconds: float = 30.0) -> None:
    """Note the end of a forked child, which has some seconds for it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended(who, os.waitstatus_to_exitcode(status))
            return
        time.sleep(0.01)
    ended(who, None)


def hoard(step: int) -> None:
    """Allocate ``step`` bytes at a time until MemoryError, within 128 MiB more than there are (RLIMIT_AS)."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 128 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    kept = []
    while True:
        kept.append(bytearray(step))


class Finalized:
    """Records a batch at its garbage collection, in a cycle, at any point of the program."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._cycle = recorder, self

    def __del__(self) -> None:
        self._recorder.batch(3)
