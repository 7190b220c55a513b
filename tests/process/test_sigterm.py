"""What becomes of SIGTERM once a pipeline has ended, in whichever thread that was."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from programs import exported, number, run

START = """
import os, signal, sys, threading, time, warnings
import tachograph

def start():
    return tachograph.start(metrics="jsonl", jsonl="out.jsonl")

def elsewhere(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

def counted():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))

def comes_to(threads, descriptors):
    deadline = time.monotonic() + 10
    while counted() != (threads, descriptors) and time.monotonic() < deadline:
        time.sleep(0.01)
    return counted() == (threads, descriptors)

def at_rest():
    \"\"\"Return how many threads and open descriptors there are, once every other thread has ended.\"\"\"
    while threading.active_count() > 1:
        time.sleep(0.01)
    return counted()

def die():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)
    print("still alive")
"""


@pytest.mark.parametrize("signals", ["SIGTERM", "SIGUSR1, then SIGTERM"])
def test_after_an_end_in_another_thread_sigterm_still_ends_the_process(tmp_path: Path, signals: str) -> None:
    """The process dies of the signal, without a word, and no byte comes into files that were opened meanwhile."""
    program = """
pipeline = start()
elsewhere(pipeline.shutdown)
time.sleep(0.3)
files = [open(f"opened.{number}", "wb") for number in range(8)]
signal.signal(signal.SIGUSR1, lambda *_: None)
if "SIGUSR1" in sys.argv[1]:
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.2)
die()
"""
    done = run(tmp_path, START + program, signals)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")
    assert [(tmp_path / f"opened.{number}").read_bytes() for number in range(8)] == [b""] * 8


def test_the_next_pipeline_of_the_main_thread_puts_everything_back(tmp_path: Path) -> None:
    """However many pipelines end in other threads: no thread or descriptor is left once the main thread ends one."""
    program = """
def found():
    woken = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(woken)
    return signal.getsignal(signal.SIGTERM), woken

start().shutdown()
threads, descriptors = at_rest()
for _ in range(10):
    elsewhere(start().shutdown)
    assert comes_to(threads + 1, descriptors + 2)
assert found()[0] is not signal.SIG_DFL
start().shutdown()
print(comes_to(threads, descriptors), found() == (signal.SIG_DFL, -1))
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


def test_closed_again_in_the_main_thread_everything_is_back(tmp_path: Path) -> None:
    """What was closed elsewhere can be closed once more, where handlers can be set."""
    program = """
from tachograph.pipeline._sigterm import SigtermFlush
before = at_rest()
made = SigtermFlush(print)
elsewhere(made.close)
made.close()
made.close()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1), comes_to(*before))
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True -1 True\n", "")


def test_a_start_in_another_thread_leaves_no_descriptors(tmp_path: Path) -> None:
    """There SIGTERM stays as it is, and nothing is left open for it."""
    program = """
start().shutdown()
before = at_rest()
for _ in range(3):
    elsewhere(lambda: start().shutdown())
print(comes_to(*before), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


def test_a_child_forked_after_such_an_end_dies_alone(tmp_path: Path) -> None:
    """SIGTERM ends the child, which holds its parent's pipe, and not the parent."""
    program = """
warnings.simplefilter("ignore")  # of the fork, from CPython 3.12 on: the thread that waits for signals is still there
elsewhere(start().shutdown)
child = os.fork()
if not child:
    time.sleep(20)
    os._exit(0)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1])
time.sleep(0.3)
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "15\n", "")


def test_a_handler_of_the_program_may_call_ours_after_the_end(tmp_path: Path) -> None:
    """A handler that was set meanwhile, and calls the one before it, writes into no file by that."""
    program = """
pipeline = start()
ours = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *arguments: ours(*arguments))
pipeline.shutdown()
time.sleep(0.3)
files = [open(f"opened.{number}", "wb") for number in range(8)]
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
print([os.path.getsize(file.name) for file in files])
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[0] * 8}\n", "")


def test_a_descriptor_that_passes_on_to_ours_finds_ours_open(tmp_path: Path) -> None:
    """Where a library has put its wake-up descriptor over ours, ours is not given away as long as that one is there."""
    program = """
from tachograph.pipeline._sigterm import SigtermFlush
before = at_rest()
made = SigtermFlush(print)
read, write = os.pipe()
os.set_blocking(write, False)
passed_on_to = signal.set_wakeup_fd(write)
made.close()
time.sleep(0.3)
files = [open(f"opened.{number}", "wb") for number in range(8)]
os.write(passed_on_to, b"x")
sizes = [os.path.getsize(file.name) for file in files]
for file in files:
    file.close()
print(sizes, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(passed_on_to) == write)
os.close(read); os.close(write)
SigtermFlush(print).close()
print(comes_to(*before), signal.set_wakeup_fd(-1))
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[0] * 8} True True\nTrue -1\n", "")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("when", ["last", "atexit", "shutdown"])
def test_in_the_moment_of_the_normal_end_it_ends_the_process(tmp_path: Path, when: str, busy: bool) -> None:
    """A signal in the last statement, in an exit handler or during ``shutdown()`` is the process's end, each time.

    What was recorded before has arrived; other threads that keep the interpreter busy change nothing.
    """
    program = """
import atexit

def send():
    os.kill(os.getpid(), signal.SIGTERM)

def spin():
    while True:
        pass

start()
tachograph.put_metric("step.success", 1)
if sys.argv[2] == "True":
    threading.Thread(target=spin, daemon=True).start()
if sys.argv[1] == "atexit":
    atexit.register(send)
elif sys.argv[1] == "last":
    send()
else:
    threading.Thread(target=send).start()
    tachograph.shutdown()
"""
    for _ in range(3):
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        done = run(tmp_path, START + program, when, str(busy))
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")
        assert number(exported(tmp_path / "out.jsonl")["torchelastic", "step.success"]) == 1


def test_a_signal_that_the_program_has_taken_ends_nothing_later(tmp_path: Path) -> None:
    """A handler of the program's that calls ours, survives, and puts ours back: the normal end is a normal one."""
    program = """
with start():
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *received: ours(*received))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    signal.signal(signal.SIGTERM, ours)
print("alive")
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


TRIO = """
import trio
async def main():
    await trio.sleep(0.05)
    print("ran", flush=True)
"""


@pytest.mark.parametrize("program", ["start()\n" + TRIO, TRIO + "start()\n"], ids=["imported later", "imported before"])
def test_trio_has_the_wake_up_descriptor_for_itself(tmp_path: Path, program: str) -> None:
    """Trio warns of no collision, and SIGTERM still delivers everything and ends the process."""
    pytest.importorskip("trio")
    program += """
warnings.simplefilter("error")
tachograph.put_metric("step.success", 1)
trio.run(main)
trio.run(main)
async def waits():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    await trio.sleep(20)
trio.run(waits)
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "ran\nran\n", "")
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "step.success"]) == 1


def test_a_descriptor_that_was_there_before_is_back_once_trio_is_imported(tmp_path: Path) -> None:
    """Signals reach the descriptor that the program has set before, once each."""
    pytest.importorskip("trio")
    program = """
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
pipeline = start()
import trio
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.raise_signal(signal.SIGUSR1)
time.sleep(0.2)
pipeline.shutdown()
print(os.read(read, 10) == bytes([signal.SIGUSR1]), signal.set_wakeup_fd(-1) == write)
"""
    done = run(tmp_path, START + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")
