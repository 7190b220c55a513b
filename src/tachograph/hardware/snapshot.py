"""The ``sys_*`` and ``gpu_*`` fields that ``MetricsLogger`` adds to a point on request, from a cache.

The thread of :mod:`tachograph.hardware._calls` renews them each second while they were asked for in the last minute, so
that asking costs the training thread one dictionary look-up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tachograph.hardware import _calls as calls
from tachograph.hardware._calls import BlockingCalls, Call
from tachograph.hardware._nvml import Nvml, chosen, find, initialised_cuda
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce, log

RENEWED_EVERY = 1.0  # seconds
PATIENCE = 5.0  # seconds that one reading may take before the others go on without it
ASKED_WITHIN = 60.0  # seconds without a question after which nothing is renewed
_TOO_OLD = 5.0
_MIB = 1 << 20

Fields = dict[str, int | float | str]


class Snapshot:
    """Fields by their source, renewed in the background while they are asked for.

    Args:
        every: seconds between two readings.
        within: seconds without a question after which nothing is renewed.
        clock: seconds, monotonic.
        calls: makes the readings.
    """

    def __init__(
        self,
        *,
        every: float = RENEWED_EVERY,
        within: float = ASKED_WITHIN,
        clock: Callable[[], float] = time.monotonic,
        calls: BlockingCalls = calls.default,
    ) -> None:
        self._every, self._within, self._clock, self._calls = every, within, clock, calls
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a forked child does: the thread is the parent's."""
        self._starting = threading.Lock()
        self._call: Call | None = None
        self._reading, self._blocked = "", set[str]()
        self._asked: dict[str, tuple[float, Callable[[], Fields]]] = {}
        self._latest: dict[str, tuple[float, Fields]] = {}
        self._failed: set[str] = set()
        self._log_once = LogOnce()

    def get(self, what: str, read: Callable[[], Fields], *, at_once: bool = True) -> Fields:
        """Return a copy of the latest reading; never raises.

        Args:
            what: the source, such as ``system``.
            read: reads its fields; called in the background.
            at_once: without a recent reading, read in this thread; else the fields are empty until the background
                has read.
        """
        now = self._clock()
        self._asked[what] = now, read
        found = self._latest.get(what)
        if at_once and (found is None or now - found[0] > _TOO_OLD):
            found = self._read(what, read)
        if self._call is None:
            with self._starting:
                if self._call is None:
                    self._call = self._calls.every(self._every, self._renew, patience=PATIENCE, blocked=self._give_up)
        self._calls.look()
        return dict(found[1]) if found is not None else {}

    def _read(self, what: str, read: Callable[[], Fields]) -> tuple[float, Fields]:
        try:
            fields = read()
        except Exception as error:  # noqa: BLE001 - the border to drivers: a point is written without these fields
            pass_on(error)
            fields = {}
            if not isinstance(error, ImportError) or what not in self._failed:
                registries.default.count_error(what)
            self._failed.add(what)
            message = (
                "points have no %s metrics: %s (further warnings are suppressed; see tachograph_errors_total on "
                "/metrics)"
            )
            self._log_once(what, message, what, error)
        self._latest[what] = found = self._clock(), fields
        return found

    @property
    def renews(self) -> bool:
        """Tell whether fields are renewed in the background."""
        return self._call is not None

    def _renew(self) -> None:
        for what, (asked, read) in list(self._asked.items()):
            if what in self._blocked:
                continue
            if self._clock() - asked > self._within:
                self._asked.pop(what, None)
                continue
            self._reading = what
            try:
                self._read(what, read)
            finally:
                self._blocked.discard(what)
        with self._starting:
            if not self._asked and self._call is not None:
                self._calls.close(self._call, 0.0)
                self._call = None

    def _give_up(self, seconds: float) -> bool:
        """Stop renewing the source that has not answered until it does; return True: there may be others."""
        self._blocked.add(self._reading)
        registries.default.count_error(self._reading)
        log.warning("%s metrics of points are out of date: no answer for %.1f s", self._reading, seconds)
        return True


_snapshot = Snapshot()


def system_fields() -> Fields:
    """Return ``cpu_usage`` (% of all CPUs), ``mem_used`` and ``mem_total`` (MB of 2**20 bytes) of this machine.

    CPU usage is that of the last second; at the first reading, that since the boot. Empty without psutil (extra
    ``hardware``). Never raises.
    """
    return _snapshot.get("system", _read_system)


class _Cpu:
    """The CPU's total and idle seconds at the latest reading, and the usage (%) up to it."""

    before = (0.0, 0.0)
    usage = 0.0


def _read_system() -> Fields:
    psutil = import_module("psutil")
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # Linux counts them in user and nice, too
    total, idle = sum(times) - guests, times.idle + getattr(times, "iowait", 0.0)
    passed, idled = total - _Cpu.before[0], idle - _Cpu.before[1]
    if passed > 0:  # the clock of these times ticks a hundred times a second
        _Cpu.before = total, idle
        _Cpu.usage = round(min(100.0, max(0.0, 100.0 * (1.0 - idled / passed))), 2)
    memory = psutil.virtual_memory()
    return {"cpu_usage": _Cpu.usage, "mem_used": memory.used / _MIB, "mem_total": memory.total / _MIB}


def gpu_fields(environ: Mapping[str, str] = os.environ) -> Fields:
    """Return the fields and tags of this process's GPU; empty without one. Never raises.

    ``gpu_name``, ``gpu_id`` (its index as torch counts), ``gpu_mem_total_mb`` and, of torch's caching allocator,
    ``gpu_mem_segments``, ``gpu_mem_allocated_mb`` and ``gpu_mem_cached_mb`` (reserved); MB of 2**20 bytes.

    The device is torch's current one where torch has initialised CUDA; total and name are torch's then, which for a MIG
    slice are the slice's. Before that it is the one of LOCAL_RANK (else the first), total and name come from NVML once
    the background has read them, and the allocator's fields are left out: it holds nothing yet. No CUDA context is
    created, and no device is waited for.
    """
    try:
        cuda = initialised_cuda()
        if cuda is not None:
            device = int(cuda.current_device())  # the calling thread's: known in this thread only
            return _snapshot.get(f"gpu {device}", lambda: _read_torch(cuda, device))
        device = _local_rank(environ)
    except Exception as error:  # noqa: BLE001 - the border to torch: a point is written without these fields
        pass_on(error)
        registries.default.count_error("gpu")
        return {}
    return _snapshot.get("gpu", lambda: _read_nvml(device, environ), at_once=False)


def _local_rank(environ: Mapping[str, str]) -> int:
    given = environ.get("LOCAL_RANK", "") or environ.get("SLURM_LOCALID", "")
    return int(given) if given.isascii() and given.isdigit() else 0


def _read_torch(cuda: Any, device: int) -> Fields:
    stats = cuda.memory_stats(device)
    properties = cuda.get_device_properties(device)
    return {
        "gpu_mem_segments": int(stats.get("segment.all.current", 0)),
        "gpu_mem_allocated_mb": stats.get("allocated_bytes.all.current", 0) / _MIB,
        "gpu_mem_cached_mb": stats.get("reserved_bytes.all.current", 0) / _MIB,
        "gpu_mem_total_mb": properties.total_memory / _MIB,
        "gpu_name": str(properties.name),
        "gpu_id": device,
    }


_nvml_read: dict[int, Fields] = {}  # name and total do not change: NVML is asked once


def _read_nvml(device: int, environ: Mapping[str, str]) -> Fields:
    found = _nvml_read.get(device)
    if found is None:
        found = _nvml_read[device] = {}
        try:
            nvml = Nvml()
        except Nvml.Missing:  # no GPU, or no driver: the point is written without these fields
            return found
        try:
            card = find(nvml.cards(), chosen(device, environ))
            if card is not None:
                total = card.memory().total
                found.update(gpu_mem_total_mb=total / _MIB, gpu_name=card.name, gpu_id=device)
        finally:
            nvml.close()
    return found


def _after_fork_in_child() -> None:
    _snapshot.forget()
    _nvml_read.clear()


at_fork("hardware_snapshot", in_child=_after_fork_in_child)
