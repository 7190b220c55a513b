"""WaitCounters: how long torch waits is measured where it was asked for, and else nothing is touched."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import run
from tachograph.instrumentation.torch_monitor import WaitCounters
from tachograph.recording.summary import ValueSummary
from tachograph.testing import Captured, capture

monitor = pytest.importorskip("torch.monitor")
pytestmark = pytest.mark.torch

WAITED = "torch.wait.duration"


@pytest.fixture
def captured() -> Iterator[Captured]:
    """Measure, and see what was recorded."""
    with capture() as found:
        counters = WaitCounters(monitor)
        try:
            yield found
        finally:
            counters.close()


def waited(captured: Captured, name: str) -> ValueSummary:
    """Return what was measured under a name."""
    found = captured.value(WAITED, "torch.monitor", name=name)
    assert isinstance(found, ValueSummary)
    return found


def test_a_wait_is_measured(captured: Captured) -> None:
    """Each wait is one value in seconds, under its counter's name, also where one counter waits several times."""
    for name in ("a", "a", "b"):
        with monitor._WaitCounter(name).guard():
            time.sleep(0.01)
    counter = monitor._WaitCounter("c")
    for _ in range(3):
        with counter.guard():
            pass
    assert [waited(captured, name).count for name in "abc"] == [2, 1, 3]
    assert 0.01 <= waited(captured, "b").total.value() < 5


def test_a_wait_that_fails_is_measured(captured: Captured) -> None:
    """What is raised inside of a wait comes out of it, and the wait counts."""
    with pytest.raises(KeyError), monitor._WaitCounter("failing").guard():
        raise KeyError
    assert waited(captured, "failing").count == 1


def test_torchs_own_waits_are_measured(captured: Captured, tmp_path: Path) -> None:
    """Modules that imported the class before count through it all the same."""
    filelock = pytest.importorskip("torch.utils._filelock")
    with filelock.FileLock(str(tmp_path / "lock")):
        time.sleep(0.01)
    assert waited(captured, "pytorch.filelock.enter").count == 1
    assert waited(captured, "pytorch.filelock.region").total.value() >= 0.01
    assert waited(captured, "pytorch.filelock.exit").count == 1


def test_a_wait_may_end_in_another_thread(captured: Captured) -> None:
    """Begun in one thread and ended in another, as torch's compile workers do, it is one wait."""
    tracker = monitor._WaitCounter("threads").guard()
    tracker.__enter__()
    thread = threading.Thread(target=tracker.__exit__)
    thread.start()
    thread.join()
    assert waited(captured, "threads").count == 1


def test_a_counter_from_before_goes_on() -> None:
    """A counter made before anybody measured, whose name nobody knows, works and is not measured."""
    counter = monitor._WaitCounter("before")
    with capture() as captured:
        counters = WaitCounters(monitor)
        with counter.guard():
            pass
        counters.close()
        assert "torch.wait.duration" not in captured.names("torch.monitor")


def test_the_class_is_as_it_was_in_the_end() -> None:
    """Closing puts torch's own methods back; a counter made meanwhile goes on, unmeasured."""
    before = dict(vars(monitor._WaitCounter))
    with capture() as captured:
        counters = WaitCounters(monitor)
        assert dict(vars(monitor._WaitCounter)) != before
        held = monitor._WaitCounter("held")
        counters.close()
        counters.close()
        assert dict(vars(monitor._WaitCounter)) == before
        with held.guard(), monitor._WaitCounter("new").guard():
            pass
        assert "torch.wait.duration" not in captured.names("torch.monitor")


TOTALS = """
import json, os, sys, threading, time
from tachograph.instrumentation.torch_monitor import WaitTotals
from tachograph.recording.registry import Registry
registry = Registry(enabled=True)
assert WaitTotals(registry)._read is None and "torch" not in sys.modules
import torch
from torch.distributed import TCPStore
counter = torch.monitor._WaitCounter("mine")
for _ in range(3):
    with counter.guard():
        time.sleep(0.02)
held = torch.monitor._WaitCounter("held").guard()
held.__enter__()
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("key", "value")
store.get("key")

def found():
    told = {}
    for metric in registry.collect():
        if metric.name.startswith("torch.wait"):
            for point in metric.points:
                told.setdefault(dict(point.attributes)["name"], {})[metric.name] = point.value
    return told

totals = WaitTotals(registry)
told = found()
print(json.dumps([told["mine"], told["held"], sorted(name for name in told if "TCPStore" in name)]))
print([(each.kind, each.unit) for each in registry.collect() if each.name.startswith("torch.wait")])
child = os.fork()
if not child:
    os._exit(len(found()))
assert os.waitpid(child, 0)[1] == 0
for number in range(2100):
    with torch.monitor._WaitCounter(f"c{number}").guard():
        pass
held.__exit__(None, None, None)
begin = time.process_time()
many = found()
assert len(many) == 2000 and many["held"]["torch.wait.active"] == 0, many["held"]
(dropped,) = [each for each in registry.collect() if each.name == "tachograph.dropped"]
assert dict(dropped.points[0].attributes)["reason"] == "cardinality"
totals.close()
totals.close()
assert not found()
"""


def test_torchs_own_totals(tmp_path: Path) -> None:
    """Each collection has calls, seconds and waits under way, of waits in C++ too; forked children have none."""
    done = run(tmp_path, TOTALS)
    assert done.returncode == 0, done.stderr
    told, kinds = done.stdout.splitlines()
    mine, held, stores = json.loads(told)
    assert (mine["torch.wait.calls"], mine["torch.wait.active"]) == (3, 0)
    assert 0.06 <= mine["torch.wait.time"] < 30
    assert (held["torch.wait.calls"], held["torch.wait.time"], held["torch.wait.active"]) == (1, 0, 1)
    assert stores
    assert kinds == "[('counter', '{call}'), ('counter', 's'), ('gauge', '{call}')]"


SETTING = """
import os, sys
from tachograph.instrumentation import TorchMonitorInstrumentor
from tachograph.recording import registry
arguments = {"": {}, "on": {"wait_counters": True}, "off": {"wait_counters": False}}
for case in sys.argv[1:]:
    argument, os.environ["TACHOGRAPH_WAIT_COUNTERS"] = case.split(",")
    instrumentor = TorchMonitorInstrumentor()
    instrumentor.instrument(**arguments[argument])
    import torch.monitor as monitor
    with monitor._WaitCounter(case).guard():
        pass
    method = type(monitor._WaitCounter.__dict__["guard"]).__name__
    instrumentor.uninstrument()
    measured = [
        metric.name for metric in registry.default.collect() if metric.scope == "torch.monitor"
        for point in metric.points if dict(point.attributes)["name"] == case
    ]
    print(case, measured, method, type(monitor._WaitCounter.__dict__["guard"]).__name__)
"""
MEASURED = {
    ",": False,
    ",true": True,
    ",false": False,
    ",1": True,
    ",0": False,
    "on,": True,
    "off,true": False,
    ",maybe": False,
}


def test_one_setting_turns_it_on(tmp_path: Path) -> None:
    """The argument goes before the variable; without either, and with a wrong one, torch's class is not touched.

    One process for all of them: each would import torch.
    """
    done = run(tmp_path, SETTING, *MEASURED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{case} {[WAITED]} function instancemethod" if measured else f"{case} [] instancemethod instancemethod"
        for case, measured in MEASURED.items()
    ]
    assert done.stderr.count("TACHOGRAPH_WAIT_COUNTERS") == 1
    assert "maybe" in done.stderr


def test_a_wrong_argument_is_a_type_error(tmp_path: Path) -> None:
    """The call says at once what is wrong with its argument."""
    program = """
    from tachograph.instrumentation import TorchMonitorInstrumentor
    TorchMonitorInstrumentor().instrument(wait_counters="yes")
    """
    done = run(tmp_path, program)
    assert "TypeError: wait_counters= must be a bool, not str: 'yes'" in done.stderr
