"""The hub of a job: started before it, again where it dies, and never in the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hubs import ask, serving
from launches import RUN, run_program
from programs import environment, write
from tachograph import runs
from tachograph.runs.losses import Loss

pytest.importorskip("uvicorn")

STEPS = """
    import sys, time, tachograph
    for step in range(int(sys.argv[1])):
        tachograph.put_metric("step", step, "train")
        print(step, flush=True)
        time.sleep(0.1)
"""


def page(url: str) -> str:
    """Return the hub's page; the empty string where it is not there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def eventually(condition: Callable[[], bool], within: float = 15.0) -> bool:
    """Wait for a condition; tell whether it came true."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def hubs_of(parent: int) -> list[int]:
    """Return the pids of the hubs that a process has started; not their own children, hubs too until they are git."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"hub" in words and b"--parent" in words and words[words.index(b"--parent") + 1] == str(parent).encode():
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid for pid, started_by in found.items() if started_by not in found]


def test_what_was_recorded_is_said_at_the_end(tmp_path: Path) -> None:
    """Points and events of a short job have all arrived when it has ended, and nobody was lost."""
    done = run_program(tmp_path, STEPS, "3")
    assert done.stdout == "0\n1\n2\n"
    last = done.stderr.splitlines()[-1]
    assert " and 2 events were recorded, none lost; tachograph studio shows it again" in last
    assert " was lost" not in last


LOSING = """
    import tachograph
    from tachograph import Metric

    loss = Metric("loss", throttle=None)
    for step in range(27):
        loss.record(0.5, at=step)
    for _ in range(4):
        tachograph.put_metric("rate", object(), "train")
"""


def test_lost_points_are_said_at_the_end(tmp_path: Path) -> None:
    """By reason and destination, in the number that the run's file, its list and its page say, too."""
    done = run_program(tmp_path, LOSING)
    assert done.returncode == 0, done.stderr
    (listed,) = runs.list(tmp_path / "store")
    said = f": 27 points and {listed.events} events were recorded, lost: 4 points: no_number (registry) 4; "
    assert said in done.stderr.splitlines()[-1]
    why = "tachograph: 4 points lost, no_number (registry): The recorded value is no number: its __float__ "
    assert done.stderr.splitlines()[-2].startswith(why)
    assert listed.points == 27
    assert runs.open(listed.id, tmp_path / "store").losses == [Loss("no_number", "registry", 4)]
    with serving(tmp_path / "store") as hub:
        told = json.loads(ask(hub.url, f"/api/runs/{listed.id}").body)
        assert told["run"]["points"] == 27
        (found,) = told["losses"]
        assert (found["reason"], found["destination"], found["points"]) == ("no_number", "registry", 4)
        assert found["why"]


def test_a_deleted_store_is_said_at_the_end(tmp_path: Path) -> None:
    """A job that deletes the files of its run, and goes on, is told so at its end; what it did after that is there."""
    deleting = """
        import glob, os, time, tachograph
        tachograph.put_metric("step", 1, "train")
        time.sleep(1.5)
        for each in glob.glob(os.environ["TACHOGRAPH_STORE"] + "/runs/*"):
            os.unlink(each)
        time.sleep(2)
        tachograph.put_metric("step", 2, "train")
    """
    done = run_program(tmp_path, deleting)
    assert done.returncode == 0, done.stderr
    assert ".db was deleted meanwhile" in done.stderr.splitlines()[-1]
    assert len(list((tmp_path / "store" / "runs").glob("*.db"))) == 1


def test_a_hub_that_is_killed_is_started_again_and_the_job_goes_on(tmp_path: Path) -> None:
    """The job neither ends nor waits; the hub is back on the same port, with the job's latest values."""
    command = [*RUN, "--", sys.executable, str(write(tmp_path, STEPS)), "60"]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        url = job.stderr.readline().split()[-1]
        assert eventually(lambda: "\nstep{" in page(url))
        (hub,) = hubs_of(job.pid)
        os.kill(hub, signal.SIGKILL)
        assert eventually(lambda: hubs_of(job.pid) not in ([], [hub]))
        assert eventually(lambda: "\nstep{" in page(url))
        out, err = job.communicate(timeout=60)
        assert out.split() == [str(number) for number in range(60)]
        assert job.returncode == 0
        assert "events were recorded" in err
    assert hubs_of(job.pid) == []


def test_a_hub_does_not_outlive_a_run_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL to ``tachograph run`` leaves no hub behind."""
    command = [*RUN, "--", "sleep", "3"]
    with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert "/metrics" in job.stderr.readline()
        (hub,) = hubs_of(job.pid)
        job.kill()
    assert eventually(lambda: not Path(f"/proc/{hub}").exists())
