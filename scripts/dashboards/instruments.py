"""All instruments of Tachograph itself, from the tables that the code records with, and their names in Prometheus."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from collections.abc import Iterator

from tachograph.hardware import _cuda_memory as cuda_memory
from tachograph.hardware import _filesystem as filesystem
from tachograph.hardware import _gpu as gpu
from tachograph.hardware import _process as process
from tachograph.hardware import _system as system
from tachograph.recording import own_metrics
from tachograph.recording.naming import Kind, prometheus_name

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def _instruments() -> Iterator[tuple[str, str, Kind]]:
    for table in (cuda_memory.TABLE, filesystem.TABLE, gpu.TABLE, process.TABLE, system.TABLE):
        for row in table:
            yield row.name, row.unit, row.kind
    for metric in own_metrics.ALL:
        yield metric.name, metric.unit, metric.kind


INSTRUMENTS: dict[str, tuple[str, Kind]] = {name: (unit, kind) for name, unit, kind in _instruments()}


def prometheus(recorded: str, suffix: str = "") -> str:
    """Return the name of a series; ``suffix`` selects one of a histogram's series.

    Raises:
        KeyError: the instrument does not exist, or has no such suffix.
    """
    unit, kind = INSTRUMENTS[recorded]
    if suffix not in _SUFFIXES.get(kind, ("",)):
        raise KeyError(f"{recorded} is a {kind}: it has no {suffix!r}")
    return prometheus_name(recorded, unit, kind) + suffix


def names() -> set[str]:
    """Return the names of all of Tachograph's own series, and of target_info."""
    own = {
        prometheus(recorded, suffix)
        for recorded, (_, kind) in INSTRUMENTS.items()
        for suffix in _SUFFIXES.get(kind, ("",))
    }
    return {"target_info", *own}


def of_gpus() -> set[str]:
    """Return the names that exist only on a machine with a GPU."""
    return {prometheus_name(row.name, row.unit, row.kind) for table in (gpu.TABLE, cuda_memory.TABLE) for row in table}
