"""Metrics of this process: one table, read through psutil and the kernel's own accounting.

Names and units are those of the OpenTelemetry semantic conventions for processes (``process.*``). Counters count since
the process began.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tachograph.hardware._sampler import Reading, Sensor, Values, tried

_LEAST_WINDOW = 1.0  # seconds


class ProcessState:
    """The state of this process, which the table reads.

    Args:
        clock: seconds, monotonic.

    Raises:
        ImportError: psutil is missing.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        psutil: Any = import_module("psutil")
        self.of: Any = psutil.Process()
        self.began = int(self.of.create_time() * 1e9)
        self.cpus: int = psutil.cpu_count() or 1
        self._clock = clock
        self._before, self._read_at = self._spent(), clock()
        self._share: dict[str, float] = {}
        self.anew()

    def anew(self) -> None:
        """Forget all answers."""
        self.usage = resource.getrusage(resource.RUSAGE_SELF)
        self.memory: Any = self.of.memory_info()

    @staticmethod
    def _spent() -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {"user": usage.ru_utime, "system": usage.ru_stime}

    def share(self) -> dict[str, float]:
        """Return the CPU time a second and CPU since an earlier reading, at least a second ago."""
        passed = self._clock() - self._read_at
        if passed >= _LEAST_WINDOW:
            spent = self._spent()
            self._share = {mode: (spent[mode] - self._before[mode]) / passed / self.cpus for mode in spent}
            self._before, self._read_at = spent, self._clock()
        return self._share


def _cpu_time(process: ProcessState) -> Values:
    yield {"cpu.mode": "user"}, process.usage.ru_utime
    yield {"cpu.mode": "system"}, process.usage.ru_stime


def _cpu_share(process: ProcessState) -> Values:
    for mode, value in process.share().items():
        yield {"cpu.mode": mode}, value


def _resident(process: ProcessState) -> Values:
    yield {}, process.memory.rss


def _virtual(process: ProcessState) -> Values:
    yield {}, process.memory.vms


def _threads(process: ProcessState) -> Values:
    yield {}, process.of.num_threads()


def _open_files(process: ProcessState) -> Values:
    yield {}, process.of.num_fds()


def _disk_io(process: ProcessState) -> Values:
    counters = process.of.io_counters()
    yield {"disk.io.direction": "read"}, counters.read_bytes
    yield {"disk.io.direction": "write"}, counters.write_bytes


def _faults(process: ProcessState) -> Values:
    yield {"system.paging.fault.type": "major"}, process.usage.ru_majflt
    yield {"system.paging.fault.type": "minor"}, process.usage.ru_minflt


def _switches(process: ProcessState) -> Values:
    yield {"process.context_switch.type": "voluntary"}, process.usage.ru_nvcsw
    yield {"process.context_switch.type": "involuntary"}, process.usage.ru_nivcsw


def _uptime(process: ProcessState) -> Values:
    yield {}, max(0.0, time.time() - process.began / 1e9)


_SWITCHES = "Context switches."

TABLE: tuple[Sensor[ProcessState], ...] = (
    Sensor("process.cpu.time", "s", "counter", "CPU time, by mode.", _cpu_time),
    Sensor("process.cpu.utilization", "1", "gauge", "CPU time per second and CPU, by mode.", _cpu_share),
    Sensor("process.memory.usage", "By", "gauge", "Resident memory.", _resident),
    Sensor("process.memory.virtual", "By", "gauge", "Virtual memory.", _virtual),
    Sensor("process.thread.count", "{thread}", "gauge", "Threads.", _threads),
    Sensor("process.unix.file_descriptor.count", "{file_descriptor}", "gauge", "Open file descriptors.", _open_files),
    Sensor("process.disk.io", "By", "counter", "Bytes read from and written to disks.", _disk_io),
    Sensor("process.paging.faults", "{fault}", "counter", "Page faults; major ones read from disk.", _faults),
    Sensor("process.context_switches", "{context_switch}", "counter", _SWITCHES, _switches),
    Sensor("process.uptime", "s", "gauge", "Time since the process started.", _uptime),
)


def readings(process: ProcessState, left_out: Callable[[str, Exception], None]) -> Iterator[Reading]:
    """Yield one sample; a row that fails is left out, and its error goes to ``left_out``."""
    process.anew()
    for row in TABLE:
        yield from tried(row, process, {}, left_out)
