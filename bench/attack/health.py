"""Times of a hub's ``/healthz`` while it is attacked, and the machine's share of them."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from wire import Answer, Wire, request

PATIENCE = 60.0  # seconds for an answer
_REST = 0.02
_SECOND = 1e9  # nanoseconds


class Sample(NamedTuple):
    """One question, in seconds.

    Attributes:
        wait: until the answer.
        withheld: time in which threads of the hub were ready to run meanwhile, and the machine ran others; 0 where the
            system does not report it.
        late: by which the watcher woke up too late before it.
    """

    wait: float
    withheld: float
    late: float


def watch(address: tuple[str, int], pid: int, told: Connection) -> None:
    """Ask again and again until ``told`` has a message; then send all samples."""
    samples: list[Sample] = []
    wire = Wire(address, PATIENCE)
    sent = request("GET", "/healthz", {})
    late = 0.0
    while not told.poll():
        before, began = _withheld(pid), time.perf_counter()
        answer = Answer(0, "", b"")
        with contextlib.suppress(OSError):
            answer = wire.ask(sent)
        wait = time.perf_counter() - began if answer.status == 200 else PATIENCE
        samples.append(Sample(wait, _withheld(pid) - before, late))
        began = time.perf_counter()
        time.sleep(_REST)
        late = time.perf_counter() - began - _REST
    told.send(samples)


def _withheld(pid: int) -> float:
    """Return for how many seconds all threads of a process have waited for a processor.

    Linux, Documentation/scheduler/sched-stats.rst: the second number of ``schedstat`` has nanoseconds.
    """
    found = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # the thread has ended
            found += int(file.read_text().split()[1])
    return found / _SECOND


def outcome(samples: list[Sample]) -> tuple[dict[str, float], float, float]:
    """Return milliseconds by their words, the 99.9th percentile without the withheld time, and that of ``late``."""
    waits, late = [each.wait for each in samples], [each.late for each in samples]
    own = percentile([max(0.0, each.wait - each.withheld) for each in samples], 0.999)
    control = percentile(late, 0.999)
    words = {
        "median {:.1f} ms": percentile(waits, 0.5),
        "99.9th percentile {:,.0f} ms": percentile(waits, 0.999),
        "at most {:,.0f} ms": max(waits),
        "99.9th percentile without waiting for a processor {:,.0f} ms": own,
        "of a process that only sleeps, late by {:,.0f} ms": control,
    }
    return {each: seconds * 1e3 for each, seconds in words.items()}, own, control


def percentile(samples: list[float], share: float) -> float:
    """Return the sample below which that share of them lies."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]
