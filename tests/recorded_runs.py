"""Runs in a store, as hubs leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hub_requests import SECOND, START, logs, rank
from tachograph.hub.hub import Hub

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"


def points(values: Sequence[float], metric: str = "loss", **more: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return points as a Metric logs them, one after the other."""
    return [(POINT, {"metric": metric, "x": float(x), "value": value, **more}) for x, value in enumerate(values)]


def record(store: Path, run: str, *sent: tuple[str, Mapping[str, Any]], number: int = 0, day: int = 0) -> None:
    """Record a run of one rank, on a day after the first one; again, to add the points of another rank to it."""
    hub = Hub(store, run=run, clock=lambda: START + day * 86_400 * SECOND)
    hub.receive_logs(logs(rank(number, run=run), *sent, stream=f"{run}-{number}"))
    hub.close()


def spoil(path: Path, wanted: Callable[[bytes], bool]) -> int:
    """Overwrite each page of a database, but the first, that is wanted; return how many there were."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")  # SQLite, "Database File Format", 1.3.2
    found = [at for at in range(size, len(content), size) if wanted(bytes(content[at : at + size]))]
    for at in found:
        content[at : at + size] = b"\xa5" * size
    path.write_bytes(content)
    return len(found)
