"""Trace and profile functions that record themselves: each fold of a buffer ends, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import count, events, exported, number, run

PROGRAM = """
import sys
from datetime import timedelta
import tachograph
from tachograph.elastic import put_metric
from tachograph.monitor import Aggregation, Stat
from tachograph.recording.registry import default

tachograph.start(metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl")
curve = tachograph.Metric("curve", throttle=None)
held = tachograph.Metric("held")
stat = Stat("stat", [Aggregation.COUNT], timedelta(seconds=1))
calls = 0

def tell(*_):
    global calls
    calls += 1
    put_metric("step.ms", 1.0)
    put_metric("step.success", 1)
    curve.record(1.0)
    held.record(1.0)
    stat.add(1.0)
    return tell

getattr(sys, sys.argv[1])(tell)
for turn in range(2000):
    sum(range(3))
    if turn % 200 == 0:
        default.collect()
        stat.count
getattr(sys, sys.argv[1])(None)
del stat
print(calls)
"""


@pytest.mark.parametrize("hook", ["setprofile", "settrace"])
def test_a_function_that_records_at_each_call(hook: str, tmp_path: Path) -> None:
    """A fold takes what was there when it began, so that it ends though folding itself records; all of it arrives."""
    ended = run(tmp_path, PROGRAM, hook, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    calls = int(ended.stdout)
    metrics = exported(tmp_path / "out.jsonl")
    assert count(metrics["torchelastic", "step"]) == calls
    assert number(metrics["torchelastic", "step.success"]) == calls
    said = events(tmp_path / "out.jsonl")
    points = [event["attributes"] for event in said if event["eventName"] == "tachograph.metric"]
    for metric in ("curve", "held"):
        assert sum(point.get("count", 1) for point in points if point["metric"] == metric) == calls
    windows = [event["attributes"] for event in said if event["eventName"] == "torch.monitor.Stat"]
    assert sum(window["stat.count"] for window in windows) == calls
