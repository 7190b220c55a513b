"""The fields that a MetricsLogger adds on request: from a cache, renewed while somebody asks."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpus
import programs
from tachograph.hardware._nvml import chosen
from tachograph.hardware.snapshot import Snapshot, system_fields

# torch's documented functions, on two devices of which the process uses the second one. There is no GPU here: this
# stands for torch, and says nothing about torch's own behaviour.
TORCH = """
import json, sys, time, types
from types import SimpleNamespace as Namespace

stats = {"allocated_bytes.all.current": 3 << 20, "allocated_bytes.all.peak": 5 << 20,
         "reserved_bytes.all.current": 8 << 20, "reserved_bytes.all.peak": 8 << 20,
         "segment.all.current": 4, "segment.all.allocated": 6, "num_ooms": 1}
used = []

def refuse(*_):
    used.append("touched")
    raise RuntimeError("CUDA was touched before the program did")

def bring(initialised):
    cuda = types.ModuleType("torch.cuda")
    cuda.is_initialized = lambda: initialised
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: 1
    cuda.memory_stats = lambda device: stats if device == 1 else {}
    cuda.get_device_properties = lambda device: Namespace(
        name="Fake H100", total_memory=70 << 30, uuid=f"0000000{device}-fake")
    cuda.synchronize = cuda.init = refuse
    if not initialised:
        cuda.device_count = cuda.current_device = cuda.memory_stats = cuda.get_device_properties = refuse
    torch = types.ModuleType("torch")
    torch.cuda = cuda
    sys.modules["torch"], sys.modules["torch.cuda"] = torch, cuda
"""


@pytest.fixture(name="nvml", scope="session")
def compiled_nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a driver's library."""
    return str(gpus.compiled(tmp_path_factory.mktemp("nvml")))


def told(folder: Path, program: str, **environ: str) -> Any:
    """Run a program that prints JSON, with a ``torch`` that it may bring."""
    done = programs.run(folder, TORCH + program, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_system_fields_are_the_documented_ones() -> None:
    """CPU usage in percent, memory in MB, from the first call on."""
    fields = system_fields()
    assert set(fields) == {"cpu_usage", "mem_used", "mem_total"}
    assert 0 <= float(fields["cpu_usage"]) <= 100
    assert fields["mem_total"] == psutil.virtual_memory().total / 2**20


def test_asking_costs_the_training_thread_little() -> None:
    """Asked for again, the fields come out of the cache within 50 µs, and are the caller's own."""
    system_fields().clear()
    times = []
    for _ in range(200):
        began = time.perf_counter()
        assert system_fields()
        times.append(time.perf_counter() - began)
    assert sorted(times)[100] < 50e-6


def test_fields_are_renewed_while_somebody_asks() -> None:
    """A thread reads again and again; some time after the last question it ends, and with the next one it is back."""
    count = 0

    def read() -> dict[str, int | float | str]:
        nonlocal count
        count += 1
        return {"count": count}

    snapshot = Snapshot(every=0.02, within=0.2)
    assert snapshot.get("it", read) == {"count": 1}
    time.sleep(0.15)
    assert int(snapshot.get("it", read)["count"]) >= 3
    _wait_until(lambda: not snapshot.renews)
    ended = count
    time.sleep(0.1)
    assert count == ended
    snapshot.get("it", read)
    _wait_until(lambda: count > ended)


def test_what_cannot_be_read_is_left_out() -> None:
    """A reading that fails gives no fields and no exception; what was renewed meanwhile is not lost by it."""

    def read() -> dict[str, int | float | str]:
        raise OSError("the driver is gone")

    snapshot = Snapshot(every=0.02, within=0.1)
    assert snapshot.get("it", read) == {}
    assert snapshot.get("it", read, at_once=False) == {}


def _wait_until(it_is: Any) -> None:
    deadline = time.monotonic() + 10
    while not it_is():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_a_gpu_there_are_no_fields(tmp_path: Path) -> None:
    """No driver: the fields stay empty, and nothing is raised."""
    program = """
from tachograph.hardware.snapshot import gpu_fields
found = [gpu_fields()]
time.sleep(0.3)
print(json.dumps([*found, gpu_fields()]))
"""
    assert told(tmp_path, program, LD_LIBRARY_PATH="") == [{}, {}]


@pytest.mark.parametrize("with_torch", [False, True])
def test_before_cuda_is_initialised_nvml_tells(tmp_path: Path, nvml: str, *, with_torch: bool) -> None:
    """The card of LOCAL_RANK, among those that CUDA may see; CUDA itself is not touched."""
    program = f"""
if {with_torch}:
    bring(initialised=False)
from tachograph.hardware.snapshot import gpu_fields
until = time.monotonic() + 20
while not gpu_fields() and time.monotonic() < until:
    time.sleep(0.05)
print(json.dumps([gpu_fields(), used]))
"""
    environ = {"LD_LIBRARY_PATH": nvml, "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "3,GPU-00000002"}
    fields, used = told(tmp_path, program, FAKE_NVML_DEVICES="4", **environ)
    assert fields == {"gpu_mem_total_mb": 80 * 1024, "gpu_name": "Fake H100 80GB", "gpu_id": 1}
    assert used == []


def test_torch_tells_where_it_has_initialised_cuda(tmp_path: Path) -> None:
    """The current device's allocator and card, from the first call on; no device is waited for."""
    program = """
bring(initialised=True)
from tachograph.hardware.snapshot import gpu_fields
print(json.dumps([gpu_fields(), used]))
"""
    fields, used = told(tmp_path, program, LD_LIBRARY_PATH="")
    assert fields == {
        "gpu_mem_segments": 4,
        "gpu_mem_allocated_mb": 3.0,
        "gpu_mem_cached_mb": 8.0,
        "gpu_mem_total_mb": 70 * 1024.0,
        "gpu_name": "Fake H100",
        "gpu_id": 1,
    }
    assert used == []


def test_the_allocator_leaves_once_cuda_is_there(tmp_path: Path) -> None:
    """``torch.cuda.memory.*`` is there for the devices that this process uses, as soon as it has initialised CUDA."""
    program = """
from tachograph.hardware import observe
from tachograph.recording.registry import Registry
registry = Registry()
observe(registry, node=False, process=True)

def memory():
    return {m.name: [[dict(p.attributes), p.value] for p in m.points]
            for m in registry.collect() if m.name.startswith("torch.")}

found = [memory()]
for initialised in (False, True):
    bring(initialised)
    found.append(memory())
print(json.dumps([*found, used]))
"""
    without, before, after, used = told(tmp_path, program, LD_LIBRARY_PATH="")
    assert (without, before, used) == ({}, {}, [])
    here = {"torch.cuda.device": "1", "hw.id": "GPU-00000001-fake"}
    assert after["torch.cuda.memory.allocated"] == [[here, 3 << 20]]
    assert after["torch.cuda.memory.reserved.peak"] == [[here, 8 << 20]]
    assert after["torch.cuda.memory.segments"] == [[here, 4]]
    assert after["torch.cuda.memory.ooms"] == [[here, 1]]
    assert "torch.cuda.memory.alloc_retries" not in after  # this torch does not tell


def test_what_torch_refuses_is_left_out_and_counted(tmp_path: Path) -> None:
    """Where torch raises, a point and a collection go on without its numbers."""
    program = """
from tachograph.hardware import observe
from tachograph.hardware.snapshot import gpu_fields
from tachograph.recording import registry
observe(registry.default, node=False, process=True)
bring(initialised=True)
cuda = sys.modules["torch"].cuda
kept, cuda.memory_stats = cuda.memory_stats, refuse
found = [gpu_fields(), len(list(registry.default.collect()))]
cuda.current_device = cuda.device_count = refuse
found += [gpu_fields(), len(list(registry.default.collect()))]
errors = {point.attributes[0][1]: point.value for metric in registry.default.collect()
          if metric.name == "tachograph.errors" for point in metric.points}
print(json.dumps([*found, errors]))
"""
    refused, some, again, others, errors = told(tmp_path, program, LD_LIBRARY_PATH="")
    assert (refused, again) == ({}, {})
    assert min(some, others) > 5
    assert errors["gpu"] >= 4


@pytest.mark.parametrize(
    ("visible", "device", "which"),
    [
        (None, 2, 2),
        ("", 0, None),
        ("-1", 0, None),
        ("3,1", 0, 3),
        ("3,1", 1, 1),
        ("3,1", 2, None),
        ("3,-1,1", 1, None),
        ("GPU-abc,2", 0, "GPU-abc"),
        ("MIG-abc", 0, "MIG-abc"),
    ],
)
def test_visible_devices_are_read_as_cuda_does(visible: str | None, device: int, which: int | str | None) -> None:
    """Indices and beginnings of UUIDs, up to the first entry that is neither."""
    assert chosen(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == which


@given(visible=st.text(alphabet="0123456789,- GPUMIGabc", max_size=30), device=st.integers(-1, 8))
def test_any_setting_chooses_one_device_or_none(visible: str, device: int) -> None:
    """Whatever the variable says, there is an index from 0, a UUID's beginning, or nothing; never an error."""
    which = chosen(device, {"CUDA_VISIBLE_DEVICES": visible})
    assert which is None or (isinstance(which, int) and which >= 0) or str(which).startswith(("GPU-", "MIG-"))


@pytest.mark.usefixtures("untraced")
def test_a_forked_child_has_its_own(tmp_path: Path) -> None:
    """After a fork the fields are renewed in the child, by a thread of its own."""
    program = """
import os, threading
from tachograph.hardware.snapshot import system_fields
system_fields()
child = os.fork()
if not child:
    fields = system_fields()
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    print(json.dumps([fields, names]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    fields, names = told(tmp_path, program)
    assert set(fields) == {"cpu_usage", "mem_used", "mem_total"}
    assert "tachograph hardware" in names


def test_the_thread_ends_with_the_program() -> None:
    """The thread keeps no program alive."""
    system_fields()
    (thread,) = [each for each in threading.enumerate() if each.name == "tachograph hardware"][:1]
    assert thread.daemon
