"""Every instrument that Tachograph itself has, from the tables of the code that records, and its name in Prometheus."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from collections.abc import Iterator

from tachograph.hardware import cuda_memory, filesystem, gpu, process, system
from tachograph.hub import hub
from tachograph.instrumentation import torchrun_series
from tachograph.naming import Kind, prometheus_name
from tachograph.registry import OWN_GROUP, Registry

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
# Written where they are recorded, in no table: registry.py, function_calls.py, hub/processes.py, hub/receiver.py.
_OTHERS: tuple[tuple[str, str, Kind], ...] = (
    ("function.duration", "s", "histogram"),
    ("function.calls", "{call}", "counter"),
    ("tachograph.nonfinite", "{value}", "counter"),
    ("tachograph.process.last_export", "s", "gauge"),
    ("tachograph.process.lost", "{process}", "counter"),
    ("tachograph.hub.failed", "", "counter"),
    ("tachograph.hub.refused", "", "counter"),
    # What every launch of torchrun goes through; others are named by how workers end.
    ("torchrun.rendezvous.duration", "s", "histogram"),
    ("torchrun.assign_worker_ranks.duration", "s", "histogram"),
)


def _instruments() -> Iterator[tuple[str, str, Kind]]:
    for table in (cuda_memory.TABLE, filesystem.TABLE, gpu.TABLE, process.TABLE, system.TABLE):
        for row in table:
            yield row.name, row.unit, row.kind
    named = (torchrun_series._STATE, torchrun_series._RESTARTS, torchrun_series._STATUS)  # noqa: SLF001 - their only home
    for meaning in (*torchrun_series._POINTS.values(), *named):  # noqa: SLF001 - the same
        yield meaning.name, meaning.unit, meaning.kind
    for instrument in Registry(enabled=True).group(OWN_GROUP).instruments.values():
        yield instrument.name, instrument.unit, instrument.kind
    for name in hub._ABOUT:  # noqa: SLF001 - the same
        yield name, "", "counter"
    yield from _OTHERS


INSTRUMENTS: dict[str, tuple[str, Kind]] = {name: (unit, kind) for name, unit, kind in _instruments()}


def prometheus(recorded: str, suffix: str = "") -> str:
    """Return the name of a series; ``suffix`` is one of a histogram's.

    Raises:
        KeyError: there is no such instrument, or it has no such suffix.
    """
    unit, kind = INSTRUMENTS[recorded]
    if suffix not in _SUFFIXES.get(kind, ("",)):
        raise KeyError(f"{recorded} is a {kind}: it has no {suffix!r}")
    return prometheus_name(recorded, unit, kind) + suffix


def names() -> set[str]:
    """Return the names of all series of Tachograph's own, and of what stands for a process."""
    own = {
        prometheus(recorded, suffix)
        for recorded, (_, kind) in INSTRUMENTS.items()
        for suffix in _SUFFIXES.get(kind, ("",))
    }
    return {"target_info", *own}


def of_gpus() -> set[str]:
    """Return the names that only a machine with a GPU has."""
    return {prometheus_name(row.name, row.unit, row.kind) for table in (gpu.TABLE, cuda_memory.TABLE) for row in table}
