"""Run examples/digits_ddp.py on two processes with `tachograph run -- torchrun`, as a user would, and show its page.

In a terminal the page is served when the training has ended, until Ctrl-C; elsewhere the last line says how to see it.
torchrun and its workers do not see the terminal's Ctrl-C: it comes here, and torchrun is asked to end its workers.
With --kill-a-worker one of them is killed while it trains, and torchrun starts both again.
"""
# ruff: noqa: INP001, T201, S603 - a script that prints and that starts the demo and its page

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits_ddp.py"
KILL = "--kill-a-worker"
RESTARTS = 3  # gloo may fail by itself on a small machine
KILLED_AFTER = "epoch  3"
PAGE = "tachograph: live at "
RUN = "tachograph: run "
HUB = "tachograph hub: live at "
TABLE_ENDS = "step_duration_seconds_sum"
MARK = f"DEMO_STARTED_BY={os.getpid()}"
# torchrun kills workers that ignore it after 30 s by itself.
ENDS_WITHIN = 40.0


class Stopped(BaseException):
    """The demo was asked to end, by the signal with this number."""


def stop(number: int, _frame: object) -> None:
    """Turn a signal into an exception, once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped(number)


def torchrun(arguments: Iterable[str], *, restarts: int) -> subprocess.Popen[str]:
    """Start the training; one thread a process, for it shares the machine with the reader of this."""
    command = [sys.executable, "-m", "tachograph", "run", "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts), str(DEMO)]
    return subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, **dict([MARK.split("=")]), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_a_worker() -> bool:
    """Kill rank 1 of the job; tell whether it was found."""
    mark = MARK.encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables and b"RANK=1" in variables and str(DEMO).encode() in words:
            os.kill(int(process.name), signal.SIGKILL)
            return True
    return False


def node(url: str) -> str:
    """Return what the page of the whole node says of its processes, in two lines."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the hub's own address
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    except OSError as error:
        return f"{url}: {error}"
    told = {line.rpartition(" ")[0] for line in lines if line.startswith("target_info{")}
    processes = sum('dl_role="node"' not in each for each in told)  # that is the machine, and not one of the job's
    restarts = [line.rpartition(" ")[2] for line in lines if line.startswith("torchrun_restarts_total{")]
    restarted = f"{float(restarts[0]):.0f}" if restarts else "an unknown number of"
    return (
        f"{url} has {len(lines)} series of {processes} processes, torchrun's own among them;\n"
        f"torchrun has restarted its workers {restarted} times"
    )


def main() -> int:
    """Return the training's exit status, or 128 + n after signal n."""
    kills = KILL in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != KILL]
    if {"-h", "--help"} & set(arguments):
        status = subprocess.call([sys.executable, str(DEMO), "--help"])
        print(f"  {KILL:21} kill a worker while it trains: torchrun starts both again")
        return status
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    print("torchrun starts two processes (importing PyTorch takes some seconds) …", flush=True)
    with tempfile.TemporaryDirectory(prefix="tachograph-demo-") as meet:
        return run([*arguments, "--meet", meet] if kills else arguments, kills=kills)


def run(arguments: list[str], *, kills: bool) -> int:
    """Run the training and show what it prints; return as ``main`` does."""
    began = time.monotonic()
    job = torchrun(arguments, restarts=RESTARTS if kills else 0)
    quiet = threading.Event()
    runs: list[str] = []

    def show() -> None:
        page, to_kill = "", kills
        for line in job.stdout or ():
            if quiet.is_set():
                continue
            print(line, end="", flush=True)
            page = line.split()[-1].rstrip(")") if line.startswith(PAGE) else page
            if line.startswith(RUN):
                runs.append(line.removeprefix(RUN).partition(", stored in ")[0])
            if to_kill and line.startswith(KILLED_AFTER) and kill_a_worker():
                to_kill = False
                print("a worker was killed …", flush=True)
            elif page and line.startswith(TABLE_ENDS):
                print(f"\n{node(page)}", flush=True)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        status = job.wait()
        shown.join(ENDS_WITHIN)
    except Stopped as reason:
        quiet.set()
        print("\nending …", flush=True)
        job.terminate()
        try:
            job.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            job.kill()
        print("ended", flush=True)
        return 128 + int(reason.args[0])
    print(f"\nthe demo took {time.monotonic() - began:.0f} s", flush=True)
    if runs and status == 0:
        draw(runs[-1])
    return status


def draw(run: str) -> None:
    """Serve the run's page until Ctrl-C, where there is a terminal; say how to do so where there is none."""
    command = ["tachograph", "hub", "--run-id", run]
    if sys.stdout.isatty():
        with suppress(Stopped):
            serve(command, run)
    else:
        print(f"{shlex.join(command)} draws it at http://127.0.0.1:4318/{fragment(run)}", flush=True)


def serve(command: list[str], run: str) -> None:
    """Run a hub, and say where it draws a run."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, **dict([MARK.split("=")]), "TACHOGRAPH_SYSTEM_METRICS": "false"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C comes here alone
    ) as hub:
        try:
            for line in hub.stderr or ():
                if line.startswith(HUB):
                    address = line.removeprefix(HUB).partition(" ")[0]
                    print(f"\nlive at {address}{fragment(run)} until Ctrl-C", flush=True)
        finally:
            hub.terminate()


def fragment(run: str) -> str:
    """Return what the address of a run's page ends with."""
    return f"#/run/{quote(run, safe='')}"


if __name__ == "__main__":
    sys.exit(main())
