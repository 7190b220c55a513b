"""System and process metrics: what leaves of this machine and of this process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

import programs
from tachograph.hardware import _cuda_memory as cuda_memory
from tachograph.hardware import _filesystem as filesystem
from tachograph.hardware import _gpu as gpu
from tachograph.hardware import _process as process
from tachograph.hardware import _system as system
from tachograph.hardware._calls import BlockingCalls
from tachograph.hardware._observation import Observation
from tachograph.hardware._system import Machine
from tachograph.recording.naming import prometheus_name
from tachograph.recording.registry import Registry

TABLES: tuple[tuple[Any, ...], ...] = (system.TABLE, process.TABLE, filesystem.TABLE, gpu.TABLE)
EXTENSIONS = {
    "hw.gpu.memory.activity",
    "hw.gpu.nvlink.io",
    "hw.gpu.clock.frequency",
    "hw.gpu.throttled",
    "hw.power.limit",
}


@pytest.fixture(name="registry")
def observed_registry() -> Iterator[Registry]:
    """Return a registry that says what the hardware does, for one test."""
    registry = Registry()
    observation = Observation(registry, node=True, process=True, folders=("/", "/no/such/folder"))
    yield registry
    observation.close()


def collected(registry: Registry) -> dict[tuple[str, ...], float]:
    """Return the values by name and the attributes' values, in the order of their keys."""
    return {
        (metric.name, *(str(value) for _, value in point.attributes)): point.value
        for metric in registry.collect()
        for point in metric.points
        if hasattr(point, "value")
    }


def test_names_are_those_of_the_conventions() -> None:
    """Every metric has a name of the semantic conventions, but for those that are listed as ours."""
    known: set[str] = set()
    for part in ("system", "process", "hw"):
        module = import_module(f"opentelemetry.semconv._incubating.metrics.{part}_metrics")
        known |= {value for value in vars(module).values() if isinstance(value, str)}
    assert {row.name for table in TABLES for row in table} - known == EXTENSIONS


def test_one_name_has_one_meaning() -> None:
    """Rows of one name agree in unit and kind, and no two names become one in Prometheus."""
    rows = {(row.name, row.unit, row.kind, row.description) for table in (*TABLES, cuda_memory.TABLE) for row in table}
    assert len({name for name, *_ in rows}) == len(rows)
    assert len({prometheus_name(name, unit, kind) for name, unit, kind, _ in rows}) == len(rows)


def test_what_the_system_says_leaves(registry: Registry) -> None:
    """Memory, CPUs, disks, network and file systems of this machine are there, as psutil has them."""
    found = collected(registry)
    assert found["system.memory.limit",] == psutil.virtual_memory().total
    assert found["system.cpu.logical.count",] == psutil.cpu_count()
    assert found["system.linux.memory.available",] == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert found["system.cpu.time", "user"] == pytest.approx(psutil.cpu_times().user, abs=5)
    assert found["system.filesystem.limit", "/"] == psutil.disk_usage("/").total
    assert 0 < found["system.filesystem.utilization", "/", "used"] <= 1
    states = [value for key, value in found.items() if key[0] == "system.memory.utilization"]
    assert all(0 <= value <= 1 for value in states)
    assert not [key for key in found if "lo" in key[1:]]


def test_utilization_is_of_the_time_between() -> None:
    """The shares of the CPUs' modes add up to one, and stay until a second has passed."""
    now = 100.0
    machine = Machine(clock=lambda: now)
    time.sleep(0.1)
    first = machine.shares()
    assert sum(first.values()) == pytest.approx(1)
    machine.anew()
    assert machine.shares() is first
    now += 1.5
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:
        pass
    machine.anew()
    assert machine.shares() is not first
    assert sum(machine.shares().values()) == pytest.approx(1)


def test_partitions_and_copies_are_not_counted_twice() -> None:
    """Of a disk and its partitions only the disk is shown, and no loop or mapped device."""

    class Disks:
        names = ("sda", "sda1", "nvme0n1", "nvme0n1p2", "nvme10n1", "dm-0", "loop3", "vdb1", "md127")

        def __getattr__(self, name: str) -> Any:
            return getattr(psutil, name)

        def disk_io_counters(self, **_: bool) -> Mapping[str, str]:
            return dict.fromkeys(self.names, "counters")

        def net_io_counters(self, **_: bool) -> Mapping[str, str]:
            return dict.fromkeys(("lo", "eth0", "ib0", "veth12ab", "docker0"), "counters")

    machine = Machine(Disks())
    assert [name for name, _ in machine.disks] == ["nvme0n1", "nvme10n1", "sda", "vdb1"]
    assert [name for name, _ in machine.interfaces] == ["eth0", "ib0"]


def test_what_this_process_does_leaves(registry: Registry) -> None:
    """CPU time, memory, threads and open files are this process's, and its counters only grow."""
    before = collected(registry)
    wasted, deadline = bytearray(50_000_000), time.process_time() + 0.2
    while time.process_time() < deadline:
        wasted[::4096] = b"x" * len(wasted[::4096])
    after = collected(registry)
    spent = sum(after["process.cpu.time", mode] - before["process.cpu.time", mode] for mode in ("user", "system"))
    assert spent >= 0.2
    assert after["process.memory.usage",] > before["process.memory.usage",] + 40_000_000
    assert after["process.thread.count",] >= threading.active_count()
    assert after["process.unix.file_descriptor.count",] > 2
    assert after["process.uptime",] > before["process.uptime",]


def test_the_share_of_a_process_is_of_all_cpus() -> None:
    """CPU utilization is CPU time a second and CPU, as the conventions have it; there is none before a second."""
    now = 100.0
    this = process.ProcessState(clock=lambda: now)
    assert this.share() == {}
    deadline = time.process_time() + 0.3
    while time.process_time() < deadline:
        pass
    now += 2.0
    assert 0.3 / 2 / this.cpus <= sum(this.share().values()) < 1 / this.cpus
    assert this.share() is this.share()


def test_a_row_that_fails_is_left_out() -> None:
    """Where a part of /proc cannot be read, its rows are missing, and each is told; the others are there."""
    told: list[tuple[str, str]] = []
    found = list(system.readings(Machine(_Forbidden()), lambda name, error: told.append((name, str(error)))))
    refused = [row.name for row in system.TABLE if row.name.startswith("system.disk.")]
    assert [name for name, _ in told] == refused
    assert "Permission denied" in told[0][1]
    names = {reading.row.name for reading in found}
    assert "system.memory.limit" in names
    assert not names & set(refused)


class _Forbidden:
    """psutil in a sandbox."""

    def __getattr__(self, name: str) -> Any:
        return getattr(psutil, name)

    def disk_io_counters(self, **_: bool) -> Mapping[str, str]:
        """Refuse."""
        raise PermissionError(13, "Permission denied", "/proc/diskstats")


def test_two_collections_at_once_are_well(registry: Registry) -> None:
    """A scrape and an export may collect at the same time: each gets everything."""
    time.sleep(0.1)  # so much that the CPUs' clocks have ticked
    counts: list[int] = []

    def collect() -> None:
        counts.extend(len(collected(registry)) for _ in range(10))

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(counts) == 40
    assert max(counts) - min(counts) <= 5  # the process's own shares, after a second, and the count of the missing NVML


def test_a_registry_that_is_switched_off_costs_nothing() -> None:
    """With ``OTEL_SDK_DISABLED`` no thread is started."""
    before = set(threading.enumerate())  # one of an earlier test may end meanwhile
    observation = Observation(Registry(enabled=False), node=True, process=True, folders=("/",))
    assert set(threading.enumerate()) <= before
    observation.close()


@pytest.mark.process
def test_nothing_heavy_is_imported() -> None:
    """Importing the hardware's modules loads neither psutil, nor NVML, nor the SDK, NumPy or torch."""
    program = """
import json, sys
import tachograph.hardware._observation, tachograph.hardware.snapshot
heavy = ("psutil", "pynvml", "numpy", "torch", "opentelemetry.sdk", "opentelemetry.trace")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


@pytest.mark.process
def test_all_of_it_is_exported(tmp_path: Path) -> None:
    """What is observed in the default registry leaves through the pipeline like any metric, in valid OTLP."""
    program = """
import time
import tachograph
from tachograph.recording import registry
from tachograph.hardware import observe

with tachograph.start(metrics="jsonl", logs="none", traces="none", jsonl="out.jsonl"):
    observation = observe(registry.default, node=True, process=True)
    time.sleep(0.3)
observation.close()
"""
    done = programs.run(tmp_path, program, LD_LIBRARY_PATH="")
    assert done.returncode == 0, done.stderr
    found = {name: metric for (scope, name), metric in programs.exported(tmp_path / "out.jsonl").items() if "." in name}
    assert found["system.cpu.time"]["unit"] == "s"
    assert found["system.cpu.time"]["sum"]["isMonotonic"]
    assert {"process.cpu.time", "system.network.io", "system.filesystem.usage"} <= set(found)
    (point,) = found["process.memory.usage"]["gauge"]["dataPoints"]
    assert int(point["asInt"]) > 1_000_000
    (boot, *_) = (int(point["startTimeUnixNano"]) for point in found["system.cpu.time"]["sum"]["dataPoints"])
    assert abs(boot / 1e9 - psutil.boot_time()) < 60


def test_a_call_that_fails_is_said_once_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """An error in the thread of blocking calls is logged the first time, and no call ends by it."""
    failed, others = list[int](), list[int]()

    def fail() -> None:
        failed.append(1)
        raise OSError("no such device")

    calls = BlockingCalls()
    repeated = [calls.every(0.01, fail), calls.every(0.01, lambda: others.append(1))]
    deadline = time.monotonic() + 60
    while min(len(failed), len(others)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [calls.close(call, 60) for call in repeated] == [True, True]
    assert min(len(failed), len(others)) >= 4
    assert [
        record.levelname for record in caplog.records if "could not read hardware metrics" in record.getMessage()
    ] == ["ERROR"]
