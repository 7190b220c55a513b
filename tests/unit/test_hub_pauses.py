"""The hub's own work does not stop its answers: losses are counted by its upkeep."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_requests import Clock, logs, metrics, number, rank
from tachograph.hub.hub import Hub


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
