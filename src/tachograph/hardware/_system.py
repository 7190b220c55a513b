"""System metrics of the whole node: one table, read through psutil.

Names and units are those of the OpenTelemetry semantic conventions for systems (``system.*``). Counters count since
the boot.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from tachograph.hardware._sampler import Reading, Sensor, Values, tried

# psutil's names, and the conventions' where they differ; "guest" time is part of "user" already.
_MODES = {"user": "user", "system": "system", "nice": "nice", "idle": "idle", "iowait": "iowait", "steal": "steal"}
_INTERRUPTS = ("irq", "softirq")
_STATES = ("used", "free", "cached", "buffers")
# No disks, or a copy of another disk's traffic.
_NO_DISK = ("loop", "ram", "zram", "dm-", "md", "fd", "sr")
# The loopback, and the host's ends of containers' interfaces: each byte of theirs is counted at another one, too.
_NO_INTERFACE = ("lo", "veth", "docker", "br-", "virbr", "cali", "cilium", "lxc", "flannel", "cni", "tunl")
_PARTITION = re.compile(r"(?<=\d)p\d+$|(?<=[a-z])\d+$")  # of nvme0n1p2, of sda1
_LEAST_WINDOW = 1.0  # seconds


class Machine:
    """The state of the machine, which the table reads; the system is asked once a sample.

    Args:
        psutil: the module, or an object with its functions.
        clock: seconds, monotonic.

    Raises:
        ImportError: psutil is missing.

    Attributes:
        cpus: how many.
        booted: the time of the boot in nanoseconds since the epoch, to a second; 0 where the system does not tell. The
            same for every process: with another start time a receiver would add all that was counted before once more.
    """

    def __init__(self, psutil: Any = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.psutil: Any = import_module("psutil") if psutil is None else psutil
        self.cpus: int = self.psutil.cpu_count() or 1
        self.booted = 0
        with contextlib.suppress(OSError, RuntimeError, AttributeError):  # a container may hide it
            self.booted = int(self.psutil.boot_time()) * 10**9
        self._clock = clock
        self._before = self._times()
        self._read_at = clock()
        self._shares: dict[str, float] = {}

    def _times(self) -> dict[str, float]:
        times = self.psutil.cpu_times()._asdict()
        found = {mode: times[name] for name, mode in _MODES.items() if name in times}
        return {**found, "interrupt": sum(times.get(name, 0.0) for name in _INTERRUPTS)}

    def anew(self) -> None:
        """Forget all answers."""
        for name in ("times", "memory", "swap", "disks", "interfaces"):
            self.__dict__.pop(name, None)

    @cached_property
    def times(self) -> dict[str, float]:
        """Seconds of all CPUs together, by mode."""
        return self._times()

    @cached_property
    def memory(self) -> Any:
        """The state of the memory."""
        return self.psutil.virtual_memory()

    @cached_property
    def swap(self) -> Any:
        """The state of the swap."""
        return self.psutil.swap_memory()

    @cached_property
    def disks(self) -> list[tuple[str, Any]]:
        """The counters of each disk; those of its partitions are in them."""
        found = self.psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        return [
            (name, found[name])
            for name in sorted(found)
            if not name.startswith(_NO_DISK) and _PARTITION.sub("", name, count=1) not in {*found} - {name}
        ]

    @cached_property
    def interfaces(self) -> list[tuple[str, Any]]:
        """The counters of each interface through which the machine speaks with others."""
        found = self.psutil.net_io_counters(pernic=True, nowrap=False)
        return [(name, found[name]) for name in sorted(found) if not name.startswith(_NO_INTERFACE)]

    def shares(self) -> dict[str, float]:
        """Return the share of each mode since an earlier reading, at least a second ago."""
        now = self._clock()
        if now - self._read_at >= _LEAST_WINDOW or not self._shares:
            passed = {mode: max(0.0, value - self._before[mode]) for mode, value in self.times.items()}
            total = sum(passed.values())
            if total > 0:
                self._shares = {mode: value / total for mode, value in passed.items()}
                self._before, self._read_at = self.times, now
        return self._shares


def _cpu_time(machine: Machine) -> Values:
    for mode, value in machine.times.items():
        yield {"cpu.mode": mode}, value


def _cpu_share(machine: Machine) -> Values:
    for mode, value in machine.shares().items():
        yield {"cpu.mode": mode}, value


def _cpu_count(machine: Machine) -> Values:
    yield {}, machine.cpus


def _memory(machine: Machine) -> Values:
    for state in _STATES:
        value = getattr(machine.memory, state, None)
        if value is not None:
            yield {"system.memory.state": state}, value


def _memory_share(machine: Machine) -> Values:
    for attributes, value in _memory(machine):
        yield attributes, value / machine.memory.total


def _memory_limit(machine: Machine) -> Values:
    yield {}, machine.memory.total


def _memory_available(machine: Machine) -> Values:
    yield {}, machine.memory.available


def _swap(machine: Machine) -> Values:
    if machine.swap.total:
        yield {"system.paging.state": "used"}, machine.swap.used
        yield {"system.paging.state": "free"}, machine.swap.free


def _swap_share(machine: Machine) -> Values:
    for attributes, value in _swap(machine):
        yield attributes, value / machine.swap.total


def _disk_io(machine: Machine) -> Values:
    for name, disk in machine.disks:
        yield {"system.device": name, "disk.io.direction": "read"}, disk.read_bytes
        yield {"system.device": name, "disk.io.direction": "write"}, disk.write_bytes


def _disk_operations(machine: Machine) -> Values:
    for name, disk in machine.disks:
        yield {"system.device": name, "disk.io.direction": "read"}, disk.read_count
        yield {"system.device": name, "disk.io.direction": "write"}, disk.write_count


def _disk_time(machine: Machine) -> Values:
    for name, disk in machine.disks:
        if hasattr(disk, "busy_time"):
            yield {"system.device": name}, disk.busy_time / 1e3


def _network(unit: str) -> Callable[[Machine], Values]:
    """Return a reader of two of psutil's counters: ``bytes_sent`` and ``bytes_recv``, or ``errout`` and ``errin``."""
    sent, received = _PAIRS[unit]

    def row(machine: Machine) -> Values:
        for name, counters in machine.interfaces:
            of = {"network.interface.name": name}
            yield {**of, "network.io.direction": "transmit"}, getattr(counters, sent)
            yield {**of, "network.io.direction": "receive"}, getattr(counters, received)

    return row


_PAIRS = {
    "bytes": ("bytes_sent", "bytes_recv"),
    "packets": ("packets_sent", "packets_recv"),
    "errors": ("errout", "errin"),
    "dropped": ("dropout", "dropin"),
}

TABLE: tuple[Sensor[Machine], ...] = (
    Sensor("system.cpu.utilization", "1", "gauge", "Share of the CPU time of all CPUs, by mode.", _cpu_share),
    Sensor("system.cpu.time", "s", "counter", "CPU time of all CPUs, by mode.", _cpu_time),
    Sensor("system.cpu.logical.count", "{cpu}", "gauge", "Logical CPUs.", _cpu_count),
    Sensor("system.memory.usage", "By", "gauge", "Memory, by state.", _memory),
    Sensor("system.memory.utilization", "1", "gauge", "Share of the memory, by state.", _memory_share),
    Sensor("system.memory.limit", "By", "gauge", "Size of the memory.", _memory_limit),
    Sensor("system.linux.memory.available", "By", "gauge", "Memory available without swapping.", _memory_available),
    Sensor("system.paging.usage", "By", "gauge", "Swap space, by state.", _swap),
    Sensor("system.paging.utilization", "1", "gauge", "Share of the swap space, by state.", _swap_share),
    Sensor("system.disk.io", "By", "counter", "Bytes read from and written to a disk.", _disk_io),
    Sensor("system.disk.operations", "{operation}", "counter", "Reads and writes of a disk.", _disk_operations),
    Sensor("system.disk.io_time", "s", "counter", "Time a disk was busy.", _disk_time),
    Sensor("system.network.io", "By", "counter", "Bytes transferred over a network interface.", _network("bytes")),
    Sensor(
        "system.network.packet.count",
        "{packet}",
        "counter",
        "Packets transferred over a network interface.",
        _network("packets"),
    ),
    Sensor("system.network.errors", "{error}", "counter", "Errors of a network interface.", _network("errors")),
    Sensor("system.network.packet.dropped", "{packet}", "counter", "Dropped packets.", _network("dropped")),
)


def readings(machine: Machine, left_out: Callable[[str, Exception], None]) -> Iterator[Reading]:
    """Yield one sample; a row that fails is left out, and its error goes to ``left_out``."""
    machine.anew()
    for row in TABLE:
        yield from tried(row, machine, {}, left_out)
