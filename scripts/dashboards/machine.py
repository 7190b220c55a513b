"""GPUs and machine: hardware metrics of GPUs, torch's allocator, the node, and the processes."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from board import Board, Query
from expressions import of, rate, total

_GPU = "{{hw_gpu_index}}"
_RANK = "{{dl_role}} {{dl_rank}}"
_DIRECTION = "{{network_interface_name}} {{network_io_direction}}"


def machine(board: Board) -> Board:
    """Fill the dashboard."""
    _gpus(board)
    _allocator(board)
    _node(board)
    _processes(board)
    return board


def _gpus(board: Board) -> None:
    board.row("GPUs")
    general = of("hw.gpu.utilization", 'hw_gpu_task="general"')
    board.lines("Utilization", Query(general, _GPU), unit="percentunit", low=0, high=1)
    board.lines("Memory used", Query(of("hw.gpu.memory.usage"), _GPU), unit="bytes", low=0)
    board.lines("Memory utilization", Query(of("hw.gpu.memory.utilization"), _GPU), unit="percentunit", low=0, high=1)
    board.lines(
        "Power",
        Query(of("hw.power"), _GPU),
        Query(of("hw.power.limit"), f"{_GPU} limit"),
        unit="watt",
        low=0,
    )
    board.lines(
        "Temperature",
        Query(of("hw.temperature"), f"{_GPU} {{{{hw_sensor_location}}}}"),
        Query(of("hw.temperature.limit"), f"{_GPU} slowdown limit"),
        unit="celsius",
    )
    board.lines("Clocks", Query(of("hw.gpu.clock.frequency"), f"{_GPU} {{{{hw_gpu_clock}}}}"), unit="hertz", low=0)
    throttled = of("hw.gpu.throttled")
    board.states("Throttled", Query(throttled, f"{_GPU} {{{{hw_gpu_throttle_reason}}}}"), unit="bool_yes_no", alarm=1)
    board.lines("PCIe", Query(rate("hw.gpu.io"), f"{_GPU} {{{{network_io_direction}}}}"), unit="binBps", low=0)
    board.lines("NVLink", Query(rate("hw.gpu.nvlink.io"), f"{_GPU} {{{{network_io_direction}}}}"), unit="binBps", low=0)
    board.lines("Errors", Query(rate("hw.errors"), f"{_GPU} {{{{error_type}}}}"), unit="cps", low=0)
    activity = of("hw.gpu.memory.activity")
    board.lines("Memory activity", Query(activity, _GPU), unit="percentunit", low=0, high=1)
    board.numbers("Total energy", Query(total(of("hw.energy"), "hw_gpu_index"), _GPU), unit="joule")


def _allocator(board: Board) -> None:
    name = "torch.cuda.memory"
    board.row("CUDA memory allocator (torch)")
    board.lines(
        "Allocated",
        Query(of(f"{name}.allocated"), _RANK),
        Query(of(f"{name}.allocated.peak"), f"{_RANK} peak"),
        unit="bytes",
        low=0,
    )
    board.lines(
        "Reserved",
        Query(of(f"{name}.reserved"), _RANK),
        Query(of(f"{name}.reserved.peak"), f"{_RANK} peak"),
        unit="bytes",
        low=0,
    )
    board.lines("Lost to fragmentation", Query(of(f"{name}.inactive_split"), _RANK), unit="bytes", low=0)
    board.lines("Allocations", Query(rate(f"{name}.allocations"), _RANK), unit="cps", low=0)
    board.lines("Allocation retries", Query(rate(f"{name}.alloc_retries"), _RANK), unit="cps", low=0)
    board.numbers("Out-of-memory errors", Query(of(f"{name}.ooms"), _RANK), alarm=1)


def _node(board: Board) -> None:
    board.row("Node")
    cpu = of("system.cpu.utilization", 'cpu_mode!="idle"')
    board.lines("CPU by mode", Query(cpu, "{{cpu_mode}}"), unit="percentunit", low=0, stacked=True)
    memory = of("system.memory.usage")
    board.lines("Memory by state", Query(memory, "{{system_memory_state}}"), unit="bytes", low=0, stacked=True)
    available = of("system.linux.memory.available")
    board.lines(
        "Available memory",
        Query(available, "available"),
        Query(of("system.memory.limit"), "total"),
        unit="bytes",
        low=0,
    )
    disk = "{{system_device}} {{disk_io_direction}}"
    board.lines("Disk throughput", Query(rate("system.disk.io"), disk), unit="binBps", low=0)
    board.lines("Disk operations", Query(rate("system.disk.operations"), disk), unit="iops", low=0)
    busy = rate("system.disk.io_time")
    board.lines("Disk busy time", Query(busy, "{{system_device}}"), unit="percentunit", low=0, high=1)
    board.lines("Network", Query(rate("system.network.io"), _DIRECTION), unit="binBps", low=0)
    board.lines(
        "Network errors and drops",
        Query(rate("system.network.errors"), f"{_DIRECTION} errors"),
        Query(rate("system.network.packet.dropped"), f"{_DIRECTION} dropped"),
        unit="pps",
        low=0,
    )
    space = of("system.filesystem.utilization")
    mounted = "{{system_filesystem_mountpoint}}"
    board.bars("File system usage", Query(space, mounted), unit="percentunit", low=0, high=1, alarm=0.9)


def _processes(board: Board) -> None:
    board.row("Processes")
    cpu = f"sum without (cpu_mode) ({rate('process.cpu.time')})"
    board.lines("CPUs used", Query(cpu, _RANK), low=0)
    board.lines("Resident memory", Query(of("process.memory.usage"), _RANK), unit="bytes", low=0)
    board.lines("Threads", Query(of("process.thread.count"), _RANK), low=0)
    board.lines("Open file descriptors", Query(of("process.unix.file_descriptor.count"), _RANK), low=0)
    io = rate("process.disk.io")
    board.lines("Disk throughput by process", Query(io, f"{_RANK} {{{{disk_io_direction}}}}"), unit="binBps", low=0)
    faults = rate("process.paging.faults", 'system_paging_fault_type="major"')
    board.lines("Major page faults", Query(faults, _RANK), unit="cps", low=0)
