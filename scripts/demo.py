"""Run examples/digits_ddp.py on two processes with torchrun, the way a user would, and end with it.

torchrun and its workers do not see the terminal's Ctrl-C: it comes here, and torchrun is asked to end its workers.
"""
# ruff: noqa: INP001, T201, S603 - a script that prints and that starts the demo

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits_ddp.py"
# torchrun kills workers that ignore it after 30 s by itself.
ENDS_WITHIN = 40.0


class Stopped(BaseException):
    """The demo was asked to end, by the signal with this number."""


def stop(number: int, _frame: object) -> None:
    """Turn a signal into an exception, once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped(number)


def torchrun(arguments: Iterable[str]) -> subprocess.Popen[str]:
    """Start the training; one thread a process, for it shares the machine with the reader of this."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(DEMO)]
    return subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def main() -> int:
    """Return the training's exit status, or 128 + n after signal n."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        return subprocess.call([sys.executable, str(DEMO), "--help"])
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    began = time.monotonic()
    print("torchrun starts two processes (importing PyTorch takes some seconds) …", flush=True)
    job = torchrun(arguments)
    quiet = threading.Event()

    def show() -> None:
        for line in job.stdout or ():
            if not quiet.is_set():
                print(line, end="", flush=True)

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
    return status


if __name__ == "__main__":
    sys.exit(main())
