"""The same programs with ``torch.monitor`` and with ours: they print the same."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from functools import lru_cache

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch to compare with"),
]

PROGRAMS = {
    "documented": """
        stat = monitor.Stat("asdf", [monitor.Aggregation.SUM, monitor.Aggregation.COUNT], timedelta(hours=1))
        print(stat.name, stat.count, read(stat))
        stat.add(2); stat.add(v=3)
        print(stat.name, stat.count, read(stat))
    """,
    "max_samples": """
        stat = monitor.Stat("s", (monitor.MEAN, monitor.MAX, monitor.MIN, monitor.MEAN), 3600.0, 3)
        for value in (1, 2.5, True, 7, 8):
            stat.add(value)
            print(stat.count, read(stat))
        del stat
    """,
    "destroyed": """
        stat = monitor.Stat("s", {monitor.SUM, monitor.COUNT, monitor.MAX, monitor.MIN, monitor.MEAN}, 9e4)
        for value in (np.float32(1.5), np.int64(-2), np.array(4.0), torch.tensor(2.0), torch.tensor([1.0]), 2**70):
            stat.add(value)
        del stat
        stat = monitor.Stat("empty", [monitor.SUM], timedelta(days=3), max_samples=4)
        del stat
        stat = monitor.Stat("nothing asked", [], timedelta(days=3))
        stat.add(1)
        del stat
    """,
    "only add is kept": """
        add = monitor.Stat("s", [monitor.SUM], timedelta(days=3)).add
        add(4)
        print("kept")
        del add
    """,
    "handlers": """
        second = monitor.register_event_handler(lambda event: print("second", event.name))
        event = monitor.Event(name="e", timestamp=datetime(2026, 1, 2, 3, 4, 5, 678), data={"a": 1, "b": 0.5, "c": "x"})
        monitor.log_event(event)
        monitor.unregister_event_handler(second)
        event.name, event.data = "f", {}
        event.data["x"] = 1
        monitor.log_event(event)
        print(event == event, event == monitor.Event("f", event.timestamp, {}))
    """,
    "aggregations": """
        for name in ("VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"):
            member = getattr(monitor.Aggregation, name)
            print(repr(member), str(member), member.name, member.value, int(member), getattr(monitor, name) is member)
        print(monitor.Aggregation(2) == monitor.MEAN, monitor.MEAN == 2, monitor.MEAN != monitor.SUM)
        print(monitor.STAT_EVENT)
    """,
    "tensorboard": """
        class Writer:
            def add_scalar(self, key, value, walltime):
                print(key, value, type(walltime).__name__)
        board = monitor.register_event_handler(monitor.TensorboardEventHandler(Writer()))
        monitor.log_event(monitor.Event("torch.monitor.Stat", datetime(2026, 1, 1), {"a.mean": 2.5}))
        monitor.log_event(monitor.Event("other", datetime(2026, 1, 1), {"b": 2.5}))
        monitor.unregister_event_handler(board)
    """,
    "wait counters": """
        with monitor._WaitCounter("key").guard() as entered:
            print(entered)
    """,
    "errors": """
        hour, summed = timedelta(hours=1), [monitor.SUM]
        stat = monitor.Stat("s", summed, hour)
        moment = datetime(2026, 1, 1)
        refused(monitor.Stat, "s", summed, 1)
        refused(monitor.Stat, "s", [1], hour)
        refused(monitor.Stat, "s", monitor.SUM, hour)
        refused(monitor.Stat, 1, summed, hour)
        refused(monitor.Stat, "s", summed, hour, 1.5)
        refused(monitor.Stat, "s", summed, None)
        for value in ("1", None, 1j, [1]):
            refused(stat.add, value)
        refused(setattr, stat, "name", "t")
        refused(setattr, stat, "count", 1)
        refused(monitor.Event, "e", 1.0, {})
        refused(monitor.Event, 1, moment, {})
        refused(monitor.Event, "e", moment, {"a": None})
        refused(monitor.Event, "e", moment, {"a": [1]})
        refused(monitor.Event, "e", moment, {1: 1})
        refused(monitor.EventHandlerHandle)
        refused(monitor.register_event_handler, 5)
        refused(monitor.log_event, "e")
    """,
}

RUNNER = """
import gc
from datetime import datetime, timedelta
import numpy as np
import torch
import MODULE as monitor

def read(stat):
    return sorted((key.name, value) for key, value in stat.get().items())

def refused(call, *arguments):
    try:
        call(*arguments)
        print("not refused")
    except Exception as error:
        print(type(error).__name__)

def show(event):
    print(event.name, type(event.timestamp).__name__, event.timestamp.tzinfo, sorted(event.data.items()))

for name, program in programs.items():
    print("===", name)
    handle = monitor.register_event_handler(show)
    exec(program, dict(globals()))
    gc.collect()
    monitor.unregister_event_handler(handle)
"""


@lru_cache
def printed(module: str) -> dict[str, str]:
    """Return what each program prints with one of the modules."""
    programs = {name: textwrap.dedent(program) for name, program in PROGRAMS.items()}
    source = f"programs = {programs!r}\n{RUNNER.replace('MODULE', module)}"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(part.split("\n", 1) for part in ran.stdout.split("=== ")[1:])  # type: ignore[misc]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_the_same_with_both(program: str) -> None:
    """Changing the import changes nothing that the original documents."""
    ours = printed("tachograph.monitor")[program]
    assert ours
    assert ours == printed("torch.monitor")[program]
