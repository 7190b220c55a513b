"""The hub of a job: started before it, again where it dies, and never in the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hubs import ask, serving
from launches import RUN, run, run_program
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
    """Points of a short job have all arrived when it has ended, and no process was lost."""
    done = run_program(tmp_path, STEPS, "3")
    assert done.stdout == "0\n1\n2\n"
    last = done.stderr.splitlines()[-1]
    assert " recorded 3 points, none lost; see it again with 'tachograph studio'" in last
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
    said = ": recorded 27 points, lost: 4 points: no_number 4; "
    assert said in done.stderr.splitlines()[-1]
    why = "tachograph: lost 4 points (no_number): the value is not a number: __float__ "
    assert done.stderr.splitlines()[-2].startswith(why)
    assert listed.points == 27
    assert runs.open(listed.id, tmp_path / "store").losses == [Loss("no_number", "registry", 4)]
    with serving(tmp_path / "store") as hub:
        told = json.loads(ask(hub.url, f"/api/runs/{listed.id}").body)
        assert told["run"]["points"] == 27
        (found,) = told["losses"]
        assert (found["reason"], found["destination"], found["points"]) == ("no_number", "registry", 4)
        assert found["why"]


SIGNALING = """
    import os, signal, subprocess, sys, time
    import tachograph

    def signal_hub(number):
        words = ["pgrep", "-P", str(os.getppid()), "-f", "hub --run-id"]
        hub = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        os.kill(hub, number)
        return hub

    def stop_hub(seconds):
        hub = signal_hub(signal.SIGSTOP)
        again = f"sleep {seconds}; kill -CONT {hub}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(["/bin/sh", "-c", again], start_new_session=True, **quiet)

    def record(count, offset):
        for step in range(count):
            tachograph.put_metric("batches.success", 1)
            tachograph.log({"loss": float(step)}, step=offset + step)
"""
SLOW_HUB = (
    SIGNALING
    + """
    record(751, 0)
    time.sleep(1.5)
    record(249, 751)
    stop_hub(sys.argv[1])
    if sys.argv[2] == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
"""
)


@pytest.mark.parametrize(
    ("seconds", "end", "code"),
    [
        pytest.param("1.2", "exit", 0, id="1.2 s"),
        pytest.param("3", "exit", 0, id="3 s", marks=pytest.mark.long),
        pytest.param("1.5", "sigterm", 128 + signal.SIGTERM, id="at SIGTERM"),
    ],
)
def test_a_hub_that_is_slow_when_a_process_ends_costs_nothing(
    tmp_path: Path, seconds: str, end: str, code: int
) -> None:
    """The job's own hub, alive and connected, is waited for up to ten seconds: what it gets late is not lost."""
    done = run_program(tmp_path, SLOW_HUB, seconds, end)
    assert done.returncode == code, done.stderr
    assert ", none lost; see it again with 'tachograph studio'" in done.stderr.splitlines()[-1]
    assert "was lost" not in done.stderr
    (listed,) = runs.list(tmp_path / "store")
    run = runs.open(listed.id, tmp_path / "store")
    (counter,) = run.series("batches.success")
    assert (counter.value, listed.points) == (1000, 1000)


@pytest.mark.long
def test_many_processes_that_end_at_once_lose_nothing(tmp_path: Path) -> None:
    """The hub of forty children that keep all CPUs busy takes the points of each."""
    children = """
        import os, subprocess, sys
        child = "import tachograph\\nfor step in range(100): tachograph.log({'loss': float(step)}, step=step)"
        started = [
            subprocess.Popen([sys.executable, "-c", child], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "40"})
            for rank in range(40)
        ]
        assert [each.wait() for each in started] == [0] * 40
    """
    done = run_program(tmp_path, children, timeout=400)
    assert done.returncode == 0, done.stderr
    (listed,) = runs.list(tmp_path / "store")
    assert listed.points == 4000
    assert ", none lost; see it again with 'tachograph studio'" in done.stderr.splitlines()[-1]


def test_what_could_not_be_delivered_is_said_at_the_end(tmp_path: Path) -> None:
    """The hub dies with the process: the last line names the process, and how much did not reach the hub."""
    dying = (
        SIGNALING
        + """
    time.sleep(1.5)
    record(249, 0)
    signal_hub(signal.SIGKILL)
"""
    )
    done = run_program(tmp_path, dying)
    assert done.returncode == 0, done.stderr
    line = r"tachograph: finished: .*; program \(pid \d+\) ended with 25\d undelivered items; see it again"
    assert re.match(line, done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.long
def test_what_a_stopped_hub_may_still_get_is_not_lost(tmp_path: Path) -> None:
    """After ten seconds the process ends; what it has sent is not counted as lost, and the hub stores it."""
    stopping = (
        SIGNALING
        + """
    time.sleep(1.5)
    record(249, 0)
    stop_hub(13)
"""
    )
    done = run_program(tmp_path, stopping)
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tachograph: finished: recorded 249 points; ")
    found = re.search(r"ended with (\d+) undelivered items and 249 items that the hub did not acknowledge", last)
    assert found is not None, last
    assert int(found[1]) < 249
    assert "249 records" not in done.stderr.partition("data was lost")[2]


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
    assert ".db was deleted during the run" in done.stderr.splitlines()[-1]
    assert len(list((tmp_path / "store" / "runs").glob("*.db"))) == 1


def test_a_hub_that_is_killed_is_started_again_and_the_job_goes_on(tmp_path: Path) -> None:
    """The job neither ends nor waits; the hub is back on the same port, with the job's latest values."""
    command = [*RUN, "--", sys.executable, str(write(tmp_path, STEPS)), "60"]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        url = job.stderr.readline().split()[-1].rstrip(")")
        assert eventually(lambda: "\nstep{" in page(url))
        (hub,) = hubs_of(job.pid)
        os.kill(hub, signal.SIGKILL)
        assert eventually(lambda: hubs_of(job.pid) not in ([], [hub]))
        assert eventually(lambda: "\nstep{" in page(url))
        out, err = job.communicate(timeout=60)
        assert out.split() == [str(number) for number in range(60)]
        assert job.returncode == 0
        assert ": recorded " in err
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


@pytest.mark.parametrize("port", ["taken", "not permitted"])
def test_a_port_that_is_not_free_costs_no_telemetry(tmp_path: Path, port: str) -> None:
    """``--port N``: the hub takes the next port that it can have, and the first line says so."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = other.getsockname()[1] if port == "taken" else 1
        if port != "taken" and _can_listen_on(taken):
            pytest.skip("this user may listen on any port")
        done = run_program(tmp_path, STEPS, "3", options=("--port", str(taken)))
    assert done.returncode == 0, done.stderr
    first, page_line, *_, last = done.stderr.splitlines()
    said = re.fullmatch(rf"tachograph: port {taken} is in use, so the hub listens on port (\d+)", first)
    assert said is not None, done.stderr
    assert f"http://127.0.0.1:{said[1]}/" in page_line
    assert "so the hub listens" not in last
    (listed,) = runs.list(tmp_path / "store")
    assert [each.name for each in runs.open(listed.id, tmp_path / "store").metrics()] == ["step"]


SCRAPED = """
    import os, sys, urllib.request
    request = urllib.request.Request(os.environ["TACHOGRAPH__HUB"] + "/metrics")
    request.add_header("User-Agent", "Prometheus/3.15.0")
    urllib.request.urlopen(request, timeout=10).read()
    os.execvp(sys.argv[1], sys.argv[1:]) if sys.argv[1:] else None
"""
LINGERS = "tachograph: the job has ended; serving its last values to Prometheus for up to "


def test_ctrl_c_ends_the_wait_for_a_last_scrape(tmp_path: Path) -> None:
    """A hub that Prometheus scrapes stays after the job, and says so; Ctrl-C ends it, and the summary is complete."""
    command = [*RUN, "--port", "0", "--", sys.executable, str(write(tmp_path, SCRAPED))]
    with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        lines = []
        for line in job.stderr:
            lines.append(line)
            if line.startswith(LINGERS):
                job.send_signal(signal.SIGINT)
        assert job.wait(20) == 0
    assert lines[-2] == f"{LINGERS}30 s (press Ctrl-C to stop now; --linger 0 turns this off)\n"
    assert lines[-1].startswith("tachograph: finished: recorded 0 points, none lost; ")


def test_the_hub_stays_as_long_as_asked(tmp_path: Path) -> None:
    """``--linger`` sets how long; 0 turns it off, and nothing is said."""
    for linger, count in (("0", 0), ("0.2", 1)):
        done = run_program(tmp_path, SCRAPED, options=("--port", "0", "--linger", linger))
        assert done.stderr.count(f"{LINGERS}0.2 s") == count
        assert done.stderr.count(LINGERS) == count


def test_no_hub_stays_for_a_command_that_was_not_found(tmp_path: Path) -> None:
    """There is nothing to scrape, even with ``--linger``."""
    began = time.monotonic()
    done = run(tmp_path, "there-is-no-such-program", options=("--port", "0", "--linger", "60"))
    assert done.returncode == 127
    assert time.monotonic() - began < 30
    assert LINGERS not in done.stderr
    assert "tachograph: failed (exit code 127): recorded 0 points, none lost; " in done.stderr


def _can_listen_on(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except PermissionError:
        return False
    except OSError:
        return True
    return True
