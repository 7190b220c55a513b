"""Runs in a store, as hubs leave them."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hub_requests import SECOND, START, Clock, histogram, logs, metrics, rank
from tachograph.hub.hub import Hub
from tachograph.recording.exponential import BUCKETS, ExponentialCounts, ExponentialHistogram
from tachograph.runs.spread import packed
from tachograph.runs.store import path_of

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"


def points(values: Sequence[float], metric: str = "loss", **more: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return points as a Metric logs them, one after the other."""
    return [(POINT, {"metric": metric, "x": float(x), "value": value, **more}) for x, value in enumerate(values)]


def record(store: Path, run: str, *sent: tuple[str, Mapping[str, Any]], number: int = 0, day: int = 0) -> None:
    """Record a run of one rank, on a day after the first one; again, to add the points of another rank to it."""
    hub = Hub(store, run=run, clock=lambda: START + day * 86_400 * SECOND)
    hub.receive_logs(logs(rank(number, run=run), *sent, stream=f"{run}-{number}"))
    hub.close()


BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def spread_of(values: Sequence[float], most: int = BUCKETS) -> ExponentialHistogram:
    """Return the exponential histogram of some values."""
    return ExponentialCounts(most).plus(sorted(values)).histogram()


class Recorded(NamedTuple):
    """A histogram of durations of one rank.

    Attributes:
        intervals: the values of each sample, ten seconds apart.
        exact: with exponential histograms; False for a client without them.
        most: buckets of these.
    """

    name: str
    intervals: Sequence[Sequence[float]]
    rank: int = 0
    attributes: Mapping[str, Any] = MappingProxyType({})
    scope: str = "training"
    exact: bool = True
    most: int = BUCKETS


def record_histograms(store: Path, run: str, *recorded: Recorded) -> None:
    """Record histograms as a hub leaves them, all of a run at once."""
    clock = Clock()
    hub = Hub(store, run=run, clock=clock)
    for turn in range(max(len(each.intervals) for each in recorded)):
        for each in recorded:
            values = [value for some in each.intervals[: turn + 1] for value in some]
            counts = [0] * (len(BOUNDS) + 1)
            for value in values:
                counts[bisect_left(BOUNDS, value)] += 1
            about = {"bounds": BOUNDS, "attributes": each.attributes, "time": clock.now}
            sent = histogram(each.name, counts, total=sum(values), **about)
            hub.receive_metrics(metrics(rank(each.rank, run=run), sent, scope=each.scope))
        hub.tick()
        clock.forward(10)
    hub.close()
    for each in recorded:
        if each.exact:
            spreads = [spread_of(values, each.most) for values in each.intervals]
            _put_spreads(path_of(store, run), each.name, each.rank, each.attributes, spreads)


def _put_spreads(
    path: Path, name: str, number: int, attributes: Mapping[str, Any], spreads: Sequence[ExponentialHistogram]
) -> None:
    """Put exponential histograms beside the samples and the state of a series."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        ((series, data),) = connection.execute(
            "SELECT series.id, data FROM series JOIN state ON series = series.id JOIN process ON process.id = process"
            " WHERE name = ? AND json_extract(resource, '$.\"dl.rank\"') = ? AND attributes = ?",
            (name, number, json.dumps(sorted(attributes.items()), separators=(",", ":"))),
        )
        times = [
            time for (time,) in connection.execute("SELECT time FROM sample WHERE series = ? ORDER BY time", (series,))
        ]
        assert len(times) == len(spreads)
        put = "UPDATE sample SET spread = ? WHERE series = ? AND time = ?"
        connection.executemany(put, [(packed(each), series, time) for each, time in zip(spreads, times, strict=True)])
        (*_, whole) = accumulate(spreads, ExponentialHistogram.plus)
        state = [*json.loads(data)[:8], base64.b64encode(packed(whole)).decode()]
        connection.execute("UPDATE state SET data = ? WHERE series = ?", (json.dumps(state), series))


def spoil(path: Path, wanted: Callable[[bytes], bool]) -> int:
    """Overwrite each page of a database, but the first, that is wanted; return how many there were."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")  # SQLite, "Database File Format", 1.3.2
    found = [at for at in range(size, len(content), size) if wanted(bytes(content[at : at + size]))]
    for at in found:
        content[at : at + size] = b"\xa5" * size
    path.write_bytes(content)
    return len(found)
