"""A week of a machine's samples, one each ten seconds, put into a run's file as a hub writes them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from hub_requests import SECOND, START, metrics, number
from tachograph.hub.hub import Hub
from tachograph.runs.store import run_path

WEEK = 7 * 86_400
EVERY = 10  # seconds
SPIKE = 31_234  # the number of the sample in which all processors are busy


class Watched(NamedTuple):
    """A series of the machine: its value by the number of its sample."""

    name: str
    unit: str
    kind: str
    attributes: Mapping[str, Any]
    value: Callable[[int], float]


def _wave(number: int) -> float:
    return 0.5 + 0.4 * math.sin(number / 3000)


_IDLE, _USER = {"cpu.mode": "idle"}, {"cpu.mode": "user"}
MACHINE = [
    Watched("system.cpu.utilization", "1", "gauge", _IDLE, lambda at: _wave(at) if at != SPIKE else 0.0),
    Watched("system.cpu.utilization", "1", "gauge", _USER, lambda at: 1 - _wave(at)),
    Watched("system.cpu.logical.count", "{cpu}", "gauge", {}, lambda _: 8.0),
    Watched("system.memory.utilization", "1", "gauge", {"system.memory.state": "used"}, lambda _: 0.25),
    Watched("system.memory.limit", "By", "gauge", {}, lambda _: 16.0 * 2**30),
    *(
        Watched(
            "system.network.io",
            "By",
            "counter",
            {"network.interface.name": name, "network.io.direction": direction},
            lambda at, speed=speed: 10.0 * 2**20 * at * speed,  # type: ignore[misc]
        )
        for name, direction, speed in (("eth0", "receive", 1), ("eth0", "transmit", 2), ("lo", "receive", 100))
    ),
]


def store_week(store: Path, run: str, watched: list[Watched] | None = None, seconds: int = WEEK) -> None:
    """Record a machine for a week; its last sample is at the hub's clock."""
    wanted = MACHINE if watched is None else watched
    hub = Hub(store, run=run, clock=lambda: START)
    node = {"service.instance.id": "node", "dl.run.id": run, "dl.role": "node"}
    sent = [
        number(each.name, each.value(0), kind=each.kind, unit=each.unit, attributes=each.attributes) for each in wanted
    ]
    hub.receive_metrics(metrics(node, *sent, scope="tachograph.hardware"))
    hub.tick()
    hub.close()
    many = seconds // EVERY
    with closing(sqlite3.connect(run_path(store, run))) as connection:
        known = [
            row
            for (row,) in connection.execute("SELECT id FROM series WHERE scope = 'tachograph.hardware' ORDER BY id")
        ]
        connection.execute(f"DELETE FROM sample WHERE series IN ({', '.join('?' * len(known))})", known)  # noqa: S608
        for row, each in zip(known, wanted, strict=True):
            begin = START - many * EVERY * SECOND
            samples = ((row, begin + at * EVERY * SECOND, each.value(at)) for at in range(many + 1))
            connection.executemany("INSERT INTO sample (series, time, value) VALUES (?, ?, ?)", samples)
        connection.commit()
