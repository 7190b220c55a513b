"""Programs without a rank that run side by side: each is a process of its own; a restart goes on with its series."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hub_requests import shown
from hubs import Command, ask, command
from programs import environment, write
from tachograph import runs
from tachograph.instrumentation.child_environment import child_environment

PROGRAM = """
    import sys, time
    import tachograph

    for i in range(int(sys.argv[2])):
        tachograph.put_metric("level", float(sys.argv[1]))
        tachograph.put_metric("step.duration.ms", 1.0)
        time.sleep(0.02)
    if sys.argv[1] == "-1":
        time.sleep(3600)
"""


def start(folder: Path, hub: Command, number: int, steps: int) -> subprocess.Popen[str]:
    """Start a program, as ``tachograph run`` does, that says its number so many times; -1 does not end by itself."""
    env = child_environment(environment(folder), hub=hub.url, endpoint="", run_id="sweep", interval=0.2)
    return subprocess.Popen([sys.executable, write(folder, PROGRAM), str(number), str(steps)], env=env, text=True)


def lost(page: bytes) -> float:
    """Return how many starts a page says are lost."""
    return sum(shown(page, "tachograph_process_lost_total").values())


def ended(hub: Command) -> dict[str, Any]:
    """End a hub and return its last words."""
    hub.process.send_signal(signal.SIGTERM)
    said = hub.next()
    assert hub.end() == 0
    return said


def test_eight_side_by_side(tmp_path: Path) -> None:
    """Eight programs at once are eight processes: a gauge each, every count there, none lost, each ended well."""
    with command(tmp_path, "--quiet") as hub, ExitStack() as stack:
        programs = [stack.enter_context(start(tmp_path, hub, number, 150)) for number in range(8)]
        assert [each.wait(60) for each in programs] == [0] * 8
        page = ask(hub.url, "/metrics").body
        assert sorted(shown(page, "level").values()) == list(range(8))
        assert sum(shown(page, "step_duration_milliseconds_count").values()) == 8 * 150
        ids = [dict(labels)["service_instance_id"] for labels in shown(page, "target_info", dl_run_id="sweep")]
        assert sorted(each.partition("#")[2] for each in ids) == ["", "2", "3", "4", "5", "6", "7", "8"]
        assert len({each.partition("#")[0] for each in ids}) == 1
        assert lost(page) == 0
        assert ended(hub)["lost"] == []
    run = runs.open("sweep", tmp_path / "store")
    assert sorted(each.ended for each in run.processes()) == ["exit"] * 8


def test_a_restart_goes_on(tmp_path: Path) -> None:
    """What is killed and started again is one process, whose counts go on; the first start is the one that is lost."""
    with command(tmp_path, "--quiet") as hub, ExitStack() as stack:
        first = stack.enter_context(start(tmp_path, hub, -1, 50))
        deadline = time.monotonic() + 30
        while sum(shown(ask(hub.url, "/metrics").body, "step_duration_milliseconds_count").values()) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        second = stack.enter_context(start(tmp_path, hub, 2, 50))
        assert second.wait(60) == 0
        page = ask(hub.url, "/metrics").body
        assert list(shown(page, "level").values()) == [2]
        assert list(shown(page, "step_duration_milliseconds_count").values()) == [100]
        assert lost(page) == 1
