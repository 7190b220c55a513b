"""Rows of process ends in the middle of recording, and of a fork."""

from __future__ import annotations

import os
import signal
import time

from expected import Counter, Gauge, Handed, Happened, Histogram
from rows import Section, differently
from tachograph import Metric, put_metric
from tachograph.monitor import Aggregation, Stat

section = Section("Process end and fork")
row = section.row

EVERY_KIND = (
    Gauge("x", "loss", 0.5),
    Counter("x", "sent.success", 7),
    Histogram("x", "fetch", 3, 6.0, 1.0, 3.0, "s"),
    Histogram("torch.monitor", "x.stat", 1, 2.0, 2.0, 2.0),
    Happened("torch.monitor.Stat", {"x.stat.mean": 2.0}),
    Happened("tachograph.metric", {"metric": "x.curve", "x": 1.0, "value": 0.25}),
    Handed("x", "loss", [0.5]),
)

_kept: list[object] = []


def record() -> None:
    """Record a value of each kind."""
    put_metric("loss", 0.5, "x")
    put_metric("sent.success", 7, "x")
    for value in (1.0, 2.0, 3.0):
        put_metric("fetch_seconds", value, "x")
    stat = Stat("x.stat", [Aggregation.MEAN], 3600.0)
    stat.add(2.0)
    curve = Metric("x.curve", group="x")
    curve.record(0.25, at=1)
    _kept.extend((stat, curve))


@row(
    *EVERY_KIND,
    otherwise={
        ("handler",): differently(
            "the event of a window that is open at SIGTERM requires `start()`, which handles the signal",
            Handed("x", "loss", [0.5]),
        )
    },
    ends="sigterm",
)
def sigterm() -> None:
    """At SIGTERM, all recorded data is delivered, and the process is terminated by the signal."""
    record()


@row(*EVERY_KIND, ends="exception")
def an_exception() -> None:
    """If the program ends with an exception, all recorded data is delivered."""
    record()
    raise RuntimeError("the training has failed")


@row(Counter("x.fork", "parent.success", 3))
def a_fork() -> None:
    """A forked child, such as a data loader worker, does not hang and does not count values of its parent twice.

    It records nothing unless `TACHOGRAPH_HELPERS=true` is set.
    """
    put_metric("parent.success", 1, "x.fork")
    child = os.fork()
    if not child:
        put_metric("parent.success", 100, "x.fork")
        os._exit(0)
    deadline = time.monotonic() + 10
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            raise TimeoutError("the forked child hangs")
        time.sleep(0.01)
    put_metric("parent.success", 2, "x.fork")


@row(Counter("x.exit", "last.success", 1), Handed("x.exit", "last.success", [1]))
def an_exit() -> None:
    """Values recorded just before the process exits are delivered."""
    put_metric("last.success", 1, "x.exit")
