"""Points for InfluxDB's exporter, and what a registry says was lost of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tachograph.exporters.batch import Batch
from tachograph.exporters.influxdb import InfluxDB
from tachograph.exporters.influxdb._line import encoded
from tachograph.exporters.influxdb.old_spool import SIZE, Delivered, first_line
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.spool import Spool
from tachograph.exporters.spool_format import Framed, SpoolRecord, after
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
    for start in range(0, len(found), 32):
        lines, _ = encoded(found[start : start + 32], resource or {}, lambda: None)
        spool.append(SpoolRecord("lines", b"\n".join(lines), len(lines)))


def leave_as_before(
    file: Path, found: Sequence[LogEvent], resource: dict[str, Any] | None = None, *, arrived: int = 0
) -> Path:
    """Leave points in a file as earlier versions did, so many of which have arrived, and return the file."""
    lines = []
    for start in range(0, len(found), 32):
        for request, _ in log_requests(found[start : start + 32], resource or {}, print, lambda: None):
            lines.append(JsonText(lambda: None).line(request))
    whole, rest = divmod(arrived, 32)
    done = Delivered(SIZE + sum(map(len, lines[:whole])), rest)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(first_line(done) + b"".join(lines))
    return file


def records_in(files: Iterable[Path]) -> Iterator[SpoolRecord]:
    """Yield what waits in files of a spool: what has not arrived."""
    form = Framed()
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            place = form.begin(file.fileno(), size)
            while place is not None and (record := form.read(file.fileno(), place, size)) is not None:
                yield record
                place = after(place, record)


def lines_in(files: Iterable[Path]) -> list[str]:
    """Return the lines that wait in files of a spool."""
    return [line for record in records_in(files) if record.payload for line in record.payload.decode().split("\n")]


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
    return sorted(path for path in (folder / "spool").rglob("*") if path.is_file())
