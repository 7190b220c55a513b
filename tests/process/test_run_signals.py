"""Signals of a job under ``tachograph run``: each reaches it once, whomever it was sent to; and nothing abandons it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launches import RUN
from programs import environment, run, write
from tachograph.cli._job import run_job
from tachograph.pipeline.hub_process import HubProcess

NOWHERE = ("--no-hub", "--endpoint", "http://127.0.0.1:9")

COUNTING = """
    import os, signal, sys, time
    def note(number, frame):
        os.write(1, f"{int(number)}\\n".encode())
        if number == signal.SIGTERM:
            time.sleep(0.3)
            os._exit(9)
    for number in map(int, sys.argv[1:]):
        signal.signal(number, note)
    signal.signal(signal.SIGTERM, note)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.mark.usefixtures("untraced")
@pytest.mark.usefixtures("untraced")  # the tracer holds a lock in each call: a handler may wait for it for ever
def test_signals_are_passed_on_once(tmp_path: Path) -> None:
    """What is sent to ``tachograph run`` alone reaches the job, once each; what SIGTERM does is its decision."""
    numbers = [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH]
    command = [*RUN, "--quiet", *NOWHERE, "--", sys.executable, str(write(tmp_path, COUNTING))]
    with (
        subprocess.Popen(
            [*command, *(str(int(number)) for number in numbers)],
            env=environment(tmp_path, OTEL_SDK_DISABLED="true"),
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
        contextlib.ExitStack() as stack,
    ):
        assert job.stdout is not None
        stack.callback(job.kill)  # whatever fails below: nothing waits for it for ever
        assert job.stdout.readline() == "ready\n"
        for number in [*numbers, signal.SIGTERM]:
            job.send_signal(number)
            assert job.stdout.readline() == f"{int(number)}\n"
        assert job.stdout.read() == ""
        assert job.wait(30) == 9


@pytest.mark.usefixtures("untraced")
def test_what_the_terminal_sends_reaches_the_job_once(tmp_path: Path) -> None:
    """Ctrl-C in a terminal is for the whole foreground group: the job has it already, and gets no second one."""
    controlling = (
        "import fcntl,os,sys,termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execv(sys.argv[1], sys.argv[1:])"
    )
    job_command = [*RUN, "--quiet", *NOWHERE, "--", sys.executable, str(write(tmp_path, COUNTING)), "2"]
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", controlling, *job_command],
        env=environment(tmp_path, OTEL_SDK_DISABLED="true"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.write(ours, b"\x03")
        assert job.stdout.readline() == "2\n"
        time.sleep(0.3)  # a second one had its time
        job.terminate()
        assert job.stdout.read().split() == ["15"]
        assert job.wait(30) == 9
    os.close(ours)
    os.close(theirs)


@contextmanager
def counting(
    folder: Path, *, program: str = COUNTING, arguments: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a job that counts its signals, in a process group of its own."""
    command = [*RUN, "--quiet", *NOWHERE, "--", sys.executable, str(write(folder, program)), *arguments]
    with subprocess.Popen(
        command,
        env=environment(folder, OTEL_SDK_DISABLED="true"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        time.sleep(0.5)  # the reporting process is a Python that starts next to the job
        yield job


def until(condition: Callable[[], object], within: float = 10.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group(job: subprocess.Popen[str]) -> list[int]:
    """Return the processes in the group of a job."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError):  # what is no process, or has ended
            if os.getpgid(int(folder.name)) == job.pid:
                found.append(int(folder.name))
    return found


def reporter_of(job: subprocess.Popen[str]) -> int:
    """Return the process that stands in the group beside a job."""
    (found,) = (pid for pid in group(job) if b"\0-I\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def to_the_group(job: subprocess.Popen[str]) -> None:
    """As ``kill -TERM -- -GROUP`` and a shell's ``kill %1``."""
    os.killpg(job.pid, signal.SIGTERM)


def to_each(job: subprocess.Popen[str]) -> None:
    """As systemd and ``scancel``, which go through a control group."""
    for pid in group(job):
        os.kill(pid, signal.SIGTERM)


def assert_one_signal(job: subprocess.Popen[str]) -> None:
    """See the job end, which got SIGTERM once."""
    assert job.stdout is not None
    assert job.stdout.read().split() == ["15"]
    assert job.wait(30) == 9


def to_one_and_all(job: subprocess.Popen[str]) -> None:
    """As ``timeout``: first to the process that it has started, then to the whole group."""
    os.kill(job.pid, signal.SIGTERM)
    time.sleep(0.02)
    os.killpg(job.pid, signal.SIGTERM)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("send", [to_the_group, to_each, to_one_and_all])
def test_what_is_sent_to_the_group_reaches_the_job_once(
    tmp_path: Path, send: Callable[[subprocess.Popen[str]], None]
) -> None:
    """The job has it already, and gets no second one: torchrun's second one would interrupt its own end."""
    with counting(tmp_path) as job:
        send(job)
        assert_one_signal(job)


@pytest.mark.usefixtures("untraced")
def test_a_job_in_a_group_of_its_own_gets_what_ours_gets(tmp_path: Path) -> None:
    """A job that has left our process group did not get what was sent to that: it is passed on."""
    with counting(tmp_path, program="    import os\n    os.setpgid(0, 0)" + COUNTING) as job:
        to_the_group(job)
        assert_one_signal(job)


@pytest.mark.usefixtures("untraced")
def test_the_group_and_then_we_alone_are_two_signals(tmp_path: Path) -> None:
    """What was sent to all a while ago does not hide what is sent to us alone now; nobody is left in the group."""
    with counting(tmp_path, arguments=("10",)) as job:
        assert job.stdout is not None
        os.killpg(job.pid, signal.SIGUSR1)
        assert job.stdout.readline() == "10\n"
        time.sleep(0.4)  # a while
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.readline() == "10\n"
        job.terminate()
        assert job.stdout.read().split() == ["15"]
        assert job.wait(30) == 9
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


@pytest.mark.usefixtures("untraced")
def test_without_the_reporting_process_every_signal_is_forwarded(tmp_path: Path) -> None:
    """Where the process that tells is killed, the job rather gets a signal twice than never."""
    with counting(tmp_path) as job:
        os.kill(reporter_of(job), signal.SIGKILL)
        job.terminate()
        assert_one_signal(job)


def test_the_reporting_process_does_not_outlive_a_run_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL to ``tachograph run`` leaves no reporting process behind, and pkill -f does not find it by our name."""
    with counting(tmp_path) as job:
        reporter = reporter_of(job)
        assert b"tachograph" not in Path(f"/proc/{reporter}/cmdline").read_bytes().partition(b"\0")[2]
        job.kill()
        until(lambda: reporter not in group(job))
        os.killpg(job.pid, signal.SIGKILL)


def test_a_hub_that_cannot_be_looked_after_is_no_matter_for_the_job() -> None:
    """Where a process, a descriptor or memory is lacking the job goes on; it is said once, and tried again."""
    tried, said = [], []

    def look() -> None:
        tried.append(1)
        raise OSError(11, "no more processes")

    assert run_job(["sh", "-c", "sleep 1.3; exit 5"], os.environ, look, said.append) == 5
    assert len(tried) > 1
    assert said == ["cannot check on the hub, trying again while the job continues: [Errno 11] no more processes"]


FAKE_HUB = r"""
    import os, sys, time
    os.write(int(sys.argv[-1]), b'{"url": "http://127.0.0.1:9"}\n')
    time.sleep(60)
"""


def test_a_hub_that_could_not_be_started_again_is_tried_later(tmp_path: Path) -> None:
    """A fork that fails is no reason to do without a hub for ever, and leaves no descriptor open."""
    clock, refusals = [0.0], list[int]()

    def spawn(*arguments: Any, **more: Any) -> int:
        if refusals:
            refusals.pop()
            raise OSError(11, "no more processes")
        return os.posix_spawn(*arguments, **more)

    command = (sys.executable, str(write(tmp_path, FAKE_HUB)))
    hub = HubProcess([], os.environ, command=command, spawn=spawn, clock=lambda: clock[0])
    first = hub.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: hub.look_after() or hub.pid is None)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    refusals.append(1)
    clock[0] += 1
    with pytest.raises(OSError, match="no more processes"):
        hub.look_after()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    assert refusals == []
    hub.look_after()
    assert hub.pid is None
    clock[0] += 9
    hub.look_after()
    assert hub.pid not in (None, first)
    hub.end(0)


def test_where_sigchld_is_ignored_the_jobs_code_is_still_known(tmp_path: Path) -> None:
    """Who has started us may ignore SIGCHLD: we do not, and the job does, as it would without us."""
    program = """
        import os, signal, sys
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-m", "tachograph", "run", *sys.argv[1:]])
    """
    done = run(tmp_path, program, "--quiet", *NOWHERE, "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    done = run(tmp_path, program, "--quiet", *NOWHERE, "--", "grep", "SigIgn", "/proc/self/status")
    mask = int(done.stdout.split()[1], 16)
    assert mask >> signal.SIGCHLD - 1 & 1
    assert not mask >> signal.SIGPIPE - 1 & 1
    for command, code in (("there-is-no-such-program", 127), ("/", 126)):
        assert run(tmp_path, program, "--quiet", *NOWHERE, "--", command).returncode == code
    done = run(tmp_path, program, "--", "true")
    assert done.returncode == 0
    assert " points, none lost" in done.stderr


def test_a_job_that_may_not_be_signalled_goes_on(tmp_path: Path) -> None:
    """A job that has become another user's, as under sudo, cannot be told; it is waited for all the same."""
    program = """
        import os, signal, sys
        from tachograph.cli._job import run_job
        kill = os.kill
        def refused(pid, number):
            if number == signal.SIGUSR1:
                print("refused", flush=True)
                raise PermissionError(1, "Operation not permitted")
            kill(pid, number)
        os.kill = refused
        sys.exit(run_job(["sh", "-c", "kill -USR1 $PPID; sleep 1; exit 3"], os.environ))
    """
    done = run(tmp_path, program)
    assert (done.stdout, done.returncode) == ("refused\n", 3)
