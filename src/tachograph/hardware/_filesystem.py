"""File systems that a training writes to, and their usage: one table, read with ``statvfs``.

That call blocks for as long as a network file system does not answer. Names and units are those of the OpenTelemetry
semantic conventions for systems (``system.filesystem.*``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tachograph.hardware._sampler import Reading, Sensor, Values, read


def _usage(found: os.statvfs_result) -> Values:
    size = found.f_frsize
    yield {"system.filesystem.state": "used"}, (found.f_blocks - found.f_bfree) * size
    yield {"system.filesystem.state": "free"}, found.f_bavail * size
    yield {"system.filesystem.state": "reserved"}, (found.f_bfree - found.f_bavail) * size


def _limit(found: os.statvfs_result) -> Values:
    yield {}, found.f_blocks * found.f_frsize


def _share(found: os.statvfs_result) -> Values:
    reachable = found.f_blocks - found.f_bfree + found.f_bavail  # as df counts
    if reachable:
        yield {"system.filesystem.state": "used"}, (found.f_blocks - found.f_bfree) / reachable


TABLE: tuple[Sensor[os.statvfs_result], ...] = (
    Sensor("system.filesystem.usage", "By", "gauge", "Space of a file system, by state.", _usage),
    Sensor("system.filesystem.limit", "By", "gauge", "Size of a file system.", _limit),
    Sensor("system.filesystem.utilization", "1", "gauge", "Share of a file system in use.", _share),
)


def find(folders: Iterable[str]) -> dict[str, Callable[[], list[Reading]]]:
    """Return a reader for each file system that holds one of the folders, by mount point."""
    return {point: partial(_read, point) for point in dict.fromkeys(map(_mount_point, filter(os.path.isdir, folders)))}


def _mount_point(folder: str) -> str:
    path = Path(folder).resolve()
    while not path.is_mount():
        path = path.parent
    return str(path)


def _read(mount_point: str) -> list[Reading]:
    found = os.statvfs(mount_point)
    more = {"system.filesystem.mountpoint": mount_point}
    return [read(row, found, more) for row in TABLE]
