"""Signals around a fork: one that is sent to a child reaches that child, and never reads as its parent's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launches import RUN
from programs import environment, exported, number, run, write

# The program's own fork hook holds up all children but the first, where they still have their parent's descriptor.
SLOW_FORKS = """
import os, time
forks = []
os.register_at_fork(before=lambda: forks.append(None), after_in_child=lambda: time.sleep(0.1 * (len(forks) % 4 != 1)))
"""
START = """
import signal, sys, warnings
warnings.simplefilter("ignore")  # of a fork beside other threads, from CPython 3.12 on
if "start" in sys.argv:
    import tachograph
    tachograph.start(metrics="jsonl", jsonl="out.jsonl")
"""

KILLED = """
for _ in range(4):
    child = os.fork()
    if not child:
        time.sleep(20)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
POOL = """
import multiprocessing
for _ in range(3):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(pool.map(abs, range(3)))
"""
EXECUTOR = """
import concurrent.futures, multiprocessing
for _ in range(3):
    executor = concurrent.futures.ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork"))
    futures = [executor.submit(time.sleep, 20) for _ in range(4)]
    workers = list(executor._processes.values())
    for worker in workers:
        worker.terminate()
    print([type(future.exception()).__name__ for future in futures])
    executor.shutdown()
    print([worker.exitcode for worker in workers])
"""
PROCESSES = """
import multiprocessing, threading
def start_and_terminate():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,))
    process.start()
    process.terminate()
    process.join()
    exits.append(process.exitcode)
exits = []
threads = [threading.Thread(target=start_and_terminate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(exits)
"""
LIVES = "\nimport time; time.sleep(0.3); print('lives')\n"


@pytest.mark.parametrize(
    "program",
    [KILLED, POOL, EXECUTOR, PROCESSES],
    ids=["os.fork", "Pool", "ProcessPoolExecutor", "Process, by eight threads"],
)
def test_sigterm_to_a_child_that_has_just_been_forked_ends_that_child_alone(tmp_path: Path, program: str) -> None:
    """Whatever forks and terminates: as without Tachograph, each child dies of SIGTERM and the program goes on."""
    wanted = run(tmp_path, SLOW_FORKS + START + program + LIVES)
    assert wanted.returncode == 0
    done = run(tmp_path, SLOW_FORKS + START + program + LIVES, "start")
    assert (done.returncode, done.stdout, done.stderr) == (0, wanted.stdout, wanted.stderr)


def test_a_pool_ends_no_job_of_tachograph_run(tmp_path: Path) -> None:
    """The same holds for a program that does not know about Tachograph."""
    path = write(tmp_path, SLOW_FORKS + "import signal\n" + POOL + LIVES)
    command = [
        *RUN,
        "--quiet",
        "--no-hub",
        "--endpoint",
        "http://127.0.0.1:9",
        "--",
        sys.executable,
        "-W",
        "ignore",
        str(path),
    ]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2]\n" * 3 + "lives\n")


MASKS = """
import subprocess, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
def print_mask(where):
    print(where, sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))), flush=True)
SHOWN = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
def print_masks():
    print_mask("before")
    child = os.fork()
    if not child:
        print_mask("fork")
        thread = threading.Thread(target=print_mask, args=("thread of the child",))
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-S", "-c", SHOWN])
        os._exit(0)
    os.waitpid(child, 0)
    command = [sys.executable, "-S", "-c", SHOWN]
    subprocess.run(command)
    subprocess.run(command, preexec_fn=lambda: print_mask("preexec_fn"))
    os.waitpid(os.posix_spawn(sys.executable, command, os.environ), 0)
    try:
        subprocess.run([os.devnull + "/nothing"], preexec_fn=os.getpid)
    except OSError:
        print_mask("after a fork whose program is missing")
    print_mask("after")
print_masks()
thread = threading.Thread(target=print_masks)
thread.start()
thread.join()
"""


def test_the_signal_mask_of_a_fork_does_not_leak(tmp_path: Path) -> None:
    """Children have the mask that they have without Tachograph, whatever starts them, and so has the program."""
    wanted = run(tmp_path, "import os\n" + START + MASKS)
    assert wanted.stdout.count("[12]\n") == 20 == wanted.stdout.count("\n")
    for helpers in ("", "1"):
        done = run(tmp_path, "import os\n" + START + MASKS, "start", TACHOGRAPH_HELPERS=helpers)
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted.stdout, wanted.stderr)


def test_a_signal_that_the_program_handles_is_handled_in_the_child_alone(tmp_path: Path) -> None:
    """A signal to a child that has just been forked calls the program's handler there, and not in the parent."""
    program = """
def handle(number, _):
    print(signal.Signals(number).name, "in the", "parent" if os.getpid() == parent else "child", flush=True)
parent = os.getpid()
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, handle)
    child = os.fork()
    if not child:
        time.sleep(0.1)
        os._exit(0)
    os.kill(child, number)
    os.waitpid(child, 0)
"""
    done = run(tmp_path, SLOW_FORKS + START + program + LIVES, "start")
    handled = "SIGTERM in the child\nSIGUSR1 in the child\nSIGINT in the child\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, handled + "lives\n", "")


def test_sigterm_ends_a_program_that_forks_all_the_time(tmp_path: Path) -> None:
    """It dies of the signal that is sent to itself, with its values delivered, however many children it starts."""
    program = """
tachograph.put_metric("before", 1)
print("ready", flush=True)
while True:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
"""
    path = write(tmp_path, "import os\n" + START + program)
    with subprocess.Popen(
        [sys.executable, str(path), "start"], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.terminate()
        try:
            assert process.wait(timeout=20) == -signal.SIGTERM
        finally:
            process.kill()
    assert number(exported(tmp_path / "out.jsonl")[("torchelastic", "before")]) == 1.0
