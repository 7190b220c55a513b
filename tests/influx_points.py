"""Points for InfluxDB's exporter, and what a registry says was lost of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tachograph.exporters.batch import Batch
from tachograph.exporters.influxdb import InfluxDB
from tachograph.exporters.influxdb._parcel import packed
from tachograph.exporters.influxdb._spool import Spool
from tachograph.exporters.influxdb._spooling import keep
from tachograph.logger.influx_target import InfluxTarget
from tachograph.logger.point import FIELDS, MEASUREMENT, TAGS, LoggerPoint
from tachograph.recording.journal import LogEvent
from tachograph.recording.registry import Registry

START = 1_700_000_000_000_000_000
STREAM = "00112233445566778899aabbccddeeff"


def event(
    number: int,
    fields: dict[str, Any] | None = None,
    tags: dict[str, str] | None = None,
    *,
    measurement: str = "train",
    to: InfluxTarget | None = None,
) -> LogEvent:
    """Return a point as a logger leaves it, with a time of its own."""
    attributes = {
        MEASUREMENT: measurement,
        TAGS: {"uid": "7", "role": "miner"} if tags is None else tags,
        FIELDS: {"loss": number / 7, "n": number, "s": f"no {number}"} if fields is None else fields,
    }
    at = START + number
    return LogEvent("tachograph.point", at, at + 5, LoggerPoint(attributes, to), number, 0, 0, 0, STREAM)


def events(start: int, stop: int) -> list[LogEvent]:
    """Return points with the numbers from ``start`` to below ``stop``."""
    return [event(number) for number in range(start, stop)]


def leave(spool: Spool, found: Sequence[LogEvent], resource: dict[str, Any] | None = None) -> None:
    """Put points into a spool."""
    waiting = deque(packed(found, resource or {}, 0.0, lambda *_: None))
    while waiting:
        keep(waiting, spool.append)


def feed(out: InfluxDB, found: Sequence[LogEvent], resource: dict[str, Any] | None = None) -> None:
    """Hand points over as a pipeline does."""
    for start in range(0, len(found), 2000):
        out(Batch([], None, [], resource or {}, START, found[start : start + 2000]))


def exporter(base: str, folder: Path, registry: Registry, **more: Any) -> InfluxDB:
    """Return an exporter that does not dawdle, with its store in ``folder``."""
    named = ("batch_size", "concurrency", "queue_size", "token")
    target = {"token": "t0k3n", **{key: more.pop(key) for key in named if key in more}}
    settings = {"first_back_off": 0.05, "flush_interval": 0.1, **more}
    return InfluxDB(InfluxTarget(base, **target), registry, store=folder, **settings)


def dropped(registry: Registry) -> dict[str, int]:
    """Return what was dropped on the way to InfluxDB, by reason."""
    points: Iterable[Any] = [
        point for metric in registry.collect() if metric.name == "tachograph.dropped" for point in metric.points
    ]
    return {
        dict(point.attributes)["reason"]: point.value
        for point in points
        if dict(point.attributes)["destination"] == "influxdb"
    }


def spool_files(folder: Path) -> list[Path]:
    """Return the files that wait on the disk."""
    return sorted((folder / "spool").rglob("*.jsonl"))
