"""torch's CUDA allocator: one table, read from ``torch.cuda.memory_stats`` for each device that this process uses.

Only where the program itself has imported torch and initialised CUDA: no context is created, no device is waited for.
There are no semantic conventions for it; counters count since the process began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tachograph.hardware._nvml import initialised_cuda, uuid_of
from tachograph.hardware._sampler import Reading, Sensor, Values, read
from tachograph.recording.interrupts import pass_on
from tachograph.recording.naming import Kind

Stats = Mapping[str, Any]


def _one(key: str) -> Callable[[Stats], Values]:
    def row(stats: Stats) -> Values:
        if key in stats:
            yield {}, int(stats[key])

    return row


_NAME = "torch.cuda.memory"
_ROWS: tuple[tuple[str, str, Kind, str, str], ...] = (
    ("allocated", "By", "gauge", "allocated_bytes.all.current", "Memory allocated to tensors."),
    ("allocated.peak", "By", "gauge", "allocated_bytes.all.peak", "Peak memory allocated to tensors."),
    ("reserved", "By", "gauge", "reserved_bytes.all.current", "Memory reserved by the allocator."),
    ("reserved.peak", "By", "gauge", "reserved_bytes.all.peak", "Peak memory reserved by the allocator."),
    ("active", "By", "gauge", "active_bytes.all.current", "Memory of tensors, and of blocks waiting for a stream."),
    ("inactive_split", "By", "gauge", "inactive_split_bytes.all.current", "Memory lost to fragmentation."),
    ("segments", "{segment}", "gauge", "segment.all.current", "Segments allocated from CUDA."),
    ("allocations", "{allocation}", "counter", "allocation.all.allocated", "Allocated blocks."),
    ("alloc_retries", "{retry}", "counter", "num_alloc_retries", "Allocations retried after emptying the cache."),
    ("ooms", "{error}", "counter", "num_ooms", "Out-of-memory errors."),
)

TABLE: tuple[Sensor[Stats], ...] = tuple(
    Sensor(f"{_NAME}.{name}", unit, kind, description, _one(key)) for name, unit, kind, key, description in _ROWS
)


def readings(left_out: Callable[[str, Exception], None]) -> Iterator[Reading]:
    """Yield one sample of each device on which this process has memory; failures go to ``left_out``."""
    try:
        cuda = initialised_cuda()
        devices = range(cuda.device_count()) if cuda is not None else ()
    except Exception as error:  # noqa: BLE001 - the border to torch
        pass_on(error)
        left_out(_NAME, error)
        return
    for device in devices:
        try:
            stats = cuda.memory_stats(device)
            if not stats.get("reserved_bytes.all.peak") and not stats.get("segment.all.allocated"):
                continue  # another rank's device
            more = {"torch.cuda.device": str(device)}
            uuid = uuid_of(cuda, device)
            if uuid:
                more["hw.id"] = uuid
            for row in TABLE:
                yield read(row, stats, more)
        except Exception as error:  # noqa: BLE001 - the border to torch
            pass_on(error)
            left_out(_NAME, error)
