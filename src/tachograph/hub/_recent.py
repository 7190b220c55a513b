"""Which runs a hub takes over from the one before it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import unquote

from tachograph.identity.run_id import file_safe
from tachograph.runs.claim import in_use
from tachograph.runs.store import SUFFIX


def left_behind(folder: Path, since: int) -> list[str]:
    """Return the runs of a store that were written of late, and that no other hub writes.

    Args:
        folder: the store.
        since: nanoseconds since the epoch.
    """
    paths = sorted(folder.joinpath("runs").glob("*" + SUFFIX))
    names = [_name_of(path) for path in paths if _written(path) >= since and not in_use(path)]
    return [name for name in names if name is not None]


def _name_of(path: Path) -> str | None:
    """Return the run of a file; None where its name was too long to be read back."""
    name = unquote(path.stem)
    return name if file_safe(name) == path.stem else None


def _written(path: Path) -> int:
    """Return when a run's file, or its log, was written last: nanoseconds since the epoch."""
    found = 0
    for each in (path, path.with_name(path.name + "-wal")):
        with contextlib.suppress(OSError):
            found = max(found, each.stat().st_mtime_ns)
    return found
