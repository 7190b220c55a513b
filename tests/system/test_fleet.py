"""A small fleet through real agents, a real gateway and a real Prometheus, as ``bench/fleet.py`` plays large ones."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from places import ROOT
from servers import find

pytest.importorskip("psutil")

BENCH = ROOT / "bench"
sys.path.append(str(BENCH))

from fleet import Fleet, lost, play  # noqa: E402 - it is beside the path's new entry
from fleet_servers import Way  # noqa: E402 - the same

pytestmark = [pytest.mark.otelcol, pytest.mark.prometheus]


def test_two_nodes_lose_nothing_while_they_are_replaced() -> None:
    """Each sample and event arrives once, and sums over all ranks are right, though ranks restart and a job ends."""
    find("otelcol")
    find("prometheus", 3)
    program = [sys.executable, str(BENCH / "fleet.py"), "--check", "--aggregate=yes", "--agents=2"]
    small = ["--nodes=2", "--interval=1", "--rounds=4", "--replaced=15"]
    done = subprocess.run([*program, *small], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing doubled" in done.stdout
    assert "2 nodes replaced, 1 jobs ended" in done.stdout


def test_what_did_not_arrive_is_found(tmp_path: Path) -> None:
    """One export that was never sent, or one event, and the comparison names it."""
    with ExitStack() as stack:
        way = Way(tmp_path, 1, stack, aggregate=False)
        played = play(way, Fleet(1, 0.0, 0.5), 1, 0.5)
        assert played.series > 2000
        assert lost(way, 20) == []
        instance = next(iter(way.metrics))
        never_sent = way.metrics[instance][-1]
        for bodies in way.metrics.values():
            bodies[:] = [body for body in bodies if body is not never_sent]
        way.logs[instance].append(way.logs[instance][0])
        wrong = lost(way, 0)
    assert any(line.startswith(instance) for line in wrong), wrong
    assert any("events sent" in line for line in wrong), wrong
