"""Ctrl-C ends a program as it does without Tachograph, and signal handlers may record at any time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launches import RUN
from programs import environment, exported, number, run, write

INTERRUPTED = """
import signal, time
import tachograph
{records}
signal.raise_signal(signal.SIGINT)
time.sleep(20)
"""
DURING_THE_IMPORT = """
import signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "tachograph.recording.columns":
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(interrupt)
import tachograph
tachograph.put_metric("loss", 1.0)
"""


@pytest.mark.parametrize(
    "program",
    [
        INTERRUPTED.format(records="tachograph.put_metric('loss', 1.0)"),
        INTERRUPTED.format(records="tachograph.log({'loss': 1.0})"),
        INTERRUPTED.format(records="tachograph.configure(tachograph.elastic.ConsoleMetricHandler())"),
        DURING_THE_IMPORT,
    ],
    ids=["put_metric", "log", "configure", "during the import"],
)
def test_ctrl_c_ends_a_program_without_a_start_by_sigint(tmp_path: Path, program: str) -> None:
    """A shell that runs it in a loop stops, as it does without Tachograph."""
    done = run(tmp_path, program)
    assert done.returncode == -signal.SIGINT
    assert "\nKeyboardInterrupt\n" in done.stderr


def test_an_interrupt_that_the_program_has_handled_is_no_end(tmp_path: Path) -> None:
    """A program that goes on after Ctrl-C ends with its own status, even if a console has shown the exception."""
    program = """
import code, signal, sys
import tachograph
tachograph.put_metric("loss", 1.0)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass
def interrupted():
    signal.raise_signal(signal.SIGINT)
code.InteractiveInterpreter({"interrupted": interrupted}).runsource("interrupted()")
assert isinstance(sys.last_value, KeyboardInterrupt)
sys.exit(7)
"""
    assert run(tmp_path, program).returncode == 7


def test_ctrl_c_while_telemetry_begins_ends_the_job_by_sigint(tmp_path: Path) -> None:
    """Under ``tachograph run`` a program can be interrupted before its first line, which it never reaches."""
    program = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "tachograph.instrumentation._zero_code":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from tachograph.instrumentation.child_environment import BOOTSTRAP
sys.path.insert(0, str(BOOTSTRAP))
os.environ["TACHOGRAPH__INSTRUMENT"] = "1"
sys.modules.pop("sitecustomize", None)
import sitecustomize
print("goes on")
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")


def test_tachograph_run_passes_on_that_the_job_was_interrupted(tmp_path: Path) -> None:
    """Its status is that of a job that SIGINT has ended."""
    path = write(tmp_path, INTERRUPTED.format(records="tachograph.put_metric('loss', 1.0)"))
    command = [*RUN, "--quiet", "--no-hub", "--endpoint", "http://127.0.0.1:9", "--", sys.executable, str(path)]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=60, check=False)
    assert done.returncode in {-signal.SIGINT, 128 + signal.SIGINT}


HANDLED = """
import signal, sys
import tachograph
imports = []
def handle(*_):
    tachograph.put_metric("handled.success", 1)
    tachograph.log({"handled": 2.0})
def interrupt(event, arguments):
    if event == "import":
        imports.append(arguments[0])
        if len(imports) == int(sys.argv[1]):
            signal.raise_signal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, handle)
sys.addaudithook(interrupt)
tachograph.put_metric("loss", 1.0)
tachograph.start(metrics="jsonl", jsonl="out.jsonl").shutdown()
"""


@pytest.mark.parametrize("place", [1, 5, 30])
def test_a_signal_handler_may_record_during_the_very_first_put_metric(tmp_path: Path, place: int) -> None:
    """While the main thread loads the package, what a handler records is recorded as soon as it is loaded."""
    done = run(tmp_path, HANDLED, str(place))
    assert (done.returncode, done.stderr) == (0, "")
    values = exported(tmp_path / "out.jsonl")
    assert number(values["torchelastic", "handled.success"]) == 1
    assert [number(metric) for (_, name), metric in values.items() if name == "handled"] == [2.0]
