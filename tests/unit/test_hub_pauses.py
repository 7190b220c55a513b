"""The hub's own work does not stop its answers: garbage is collected in small parts, and losses are counted aside."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub_requests import Clock, logs, metrics, number, rank
from tachograph.hub._survivors import Survivors
from tachograph.hub.hub import Hub


class Node:
    """One of two objects that hold each other, as a process and its series do."""

    def __init__(self) -> None:
        self.other: Node | None = None


def pair() -> Node:
    """Return one of two that hold each other."""
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one


@contextmanager
def surviving() -> Iterator[Survivors]:
    """Keep the garbage collector from what survives."""
    survivors = Survivors()
    try:
        yield survivors
    finally:
        survivors.close()


def test_no_collection_looks_at_everything() -> None:
    """While a hundred thousand pairs come and stay, the longest collection is a part of one that looks at them all."""
    pauses: list[float] = []
    began = 0.0

    def note(phase: str, _: dict[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            pauses.append(time.thread_time() - began)

    with surviving():
        gc.collect()  # all that other tests have left
        gc.callbacks.append(note)
        kept = [pair() for _ in range(100_000)]
        gc.callbacks.remove(note)
    began = time.thread_time()
    gc.collect()
    assert max(pauses) < (time.thread_time() - began) / 2
    assert len(kept) == 100_000


def test_what_has_gone_is_freed_once_it_is_much() -> None:
    """Objects that hold each other, and were kept from the collector, are not kept for ever."""
    with surviving() as survivors:
        one = pair()
        gone = weakref.ref(one)
        gc.freeze()  # as after a long collection
        del one
        for number_, known in ((10_000, 0), (50_000, 100_000)):
            survivors.look(number_, known)
            assert gone() is not None
        survivors.look(50_001, 100_000)
        assert gone() is None


@pytest.mark.parametrize("many", ["series", "processes"])
def test_many_losses_are_counted_by_the_tick(tmp_path: Path, many: str) -> None:
    """With many processes, or series of their losses, /healthz, which the event loop answers, is a second behind."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock)
    hub.receive_logs(logs(rank(0), ("tachograph.process.start", {})))
    hub.receive_metrics(metrics(rank(0), number("", 1.0)))
    assert hub.health()["dropped"] == 1
    if many == "series":
        sent = [number("tachograph.dropped", 1, kind="counter", attributes={"n": n}) for n in range(2_000)]
        hub.receive_metrics(metrics(rank(1), *sent, scope="tachograph"))
    else:
        for each in range(1, 1_001):
            dropped = number("tachograph.dropped", 2, kind="counter") if each == 1 else number("m", 1)
            hub.receive_metrics(metrics(rank(each), dropped, scope="tachograph"))
    clock.forward(60)
    before = hub.health()
    assert (before["dropped"], before["lost"]) == (1, 0)
    hub.tick()
    after = hub.health()
    assert (after["dropped"], after["lost"]) == (2_001 if many == "series" else 3, 1)
    hub.close()
