"""Random programs that end in every way, held against a receiver that counts.

``python bench/attack/ends.py --programs 1000 --seed N --workers 2``; ``--only NUMBER …`` repeats some. Each program
records by every door, in threads, forks, spawned processes, DataLoaders and asyncio, and notes durably beside it what
it has recorded, and when. Then it ends. Held is:

- Everything that is missing is counted (``tachograph.dropped`` as received, or the line that says how much the end has
  cost), or was recorded less than an export interval of a second, and one second for a slow machine, before SIGKILL,
  ``os._exit`` or another end at which no code can run. Those programs log up to ten thousand events a second: beyond
  it, on a busy machine, what waits to be encoded grows, and a second is not enough.
- Nothing arrives twice, nothing arrives that never was, no counter goes back; a process that is to record nothing
  (a helper) delivers nothing.
- The exit status is the one without Tachograph; no traceback of ours is on stderr; the end takes fifteen seconds at
  most; an exception of the program's own reaches it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from counting_receiver import receiving
from random_programs import Program, write
from results import Results, arguments
from verdict import LONGEST_END, Observed, Verdict, judge

HERE = Path(__file__).resolve().parent
LIMIT = 90.0  # seconds for a program with all its processes
_WORKERS_END = 12.0  # seconds: twice the time in which a worker looks for its parent, and more
_PLAIN = ("OTEL_", "TACHOGRAPH_", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "INFLUXDB_")


class Outcome(NamedTuple):
    """The outcome of one program, and the folder where it is kept if an invariant broke."""

    program: Program
    verdict: Verdict
    kept: Path


def attack(seed: int, number: int, *, keep: Path | None, discards: str = "") -> Outcome:
    """Run one program and judge it; its source, output and notes stay in ``keep`` where an invariant broke."""
    program = write(seed, number)
    folder = Path(tempfile.mkdtemp(prefix=f"ends-{seed}-{number}-", dir=keep))
    (folder / "program.py").write_text(program.source)
    # To every other one as to a hub of ours: points leave packed.
    with receiving(refusals=program.refusals, discards=discards, reads=number % 2 == 1) as receiver:
        observed = run(program, folder, receiver.url)
        arrived = receiver.arrived()
    verdict = judge(program, observed, arrived, folder)
    if verdict.wrong:
        (folder / "verdict.txt").write_text("\n".join([program.title, repr(program.processes), *verdict.wrong]) + "\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(program, verdict, folder)


def run(program: Program, folder: Path, url: str) -> Observed:
    """Run a program to the end of its last process."""
    command = [sys.executable, str(folder / "program.py")]
    if program.zero_code:
        command = [sys.executable, "-m", "tachograph", "run", "--quiet", "--", *command]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PLAIN)}
    environment = {
        **kept,
        "LEDGER": str(folder),
        "PYTHONPATH": str(HERE),
        "PYTHONUNBUFFERED": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "TACHOGRAPH_STORE": str(folder / "store"),
        "TACHOGRAPH_SYSTEM_METRICS": "false",
        **program.environment,
    }
    deadline = time.monotonic() + LIMIT
    signalled, orphans = None, False
    with (folder / "stdout.txt").open("wb") as stdout, (folder / "stderr.txt").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
        with _ended_after(process):
            if program.outside is not None:
                signalled = _signal(program, process, folder, deadline)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            ended = time.time()
            while (left := _others(process.pid)) and time.monotonic() < deadline:
                # PyTorch's own: a worker whose parent is killed while it loads torch takes init for its parent
                # (torch/utils/data/_utils/worker.py, ManagerWatchdog), and waits for it for ever.
                if signalled is not None and "loader" in program.title and time.time() > ended + _WORKERS_END:
                    left, orphans = [], True
                    break
                time.sleep(0.05)
            status = None if left else process.poll()
    return Observed(status, (folder / "stderr.txt").read_text(errors="replace"), signalled, ended, orphans)


@contextmanager
def _ended_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _signal(program: Program, process: subprocess.Popen[bytes], folder: Path, deadline: float) -> float | None:
    """Send the program its signal from outside; return when, and None where it has ended before."""
    plan, note = program.outside, folder / "main.begun"
    if plan is None:
        return None
    while not (note.exists() and note.read_text().endswith("\n")):
        if process.poll() is not None or time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    time.sleep(plan.after)
    moment, pid = time.time(), int(note.read_text().split()[0])
    for number in range(plan.times):
        if number:
            time.sleep(plan.after / 10)
        with suppress(ProcessLookupError):
            os.kill(pid, plan.signal)
    return moment


def _others(group: int) -> list[int]:
    """Return the processes of a group that run (proc_pid_stat(5)): a zombie has ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def main() -> int:
    """Attack with as many programs as asked for; return the exit status."""
    parser = arguments("ends")
    parser.add_argument("--programs", type=int, default=100, help="how many; 100")
    parser.add_argument("--only", type=int, nargs="+", help="run these alone")
    parser.add_argument("--workers", type=int, default=2, help="programs at a time; 2")
    parser.add_argument("--keep", type=Path, help="a folder for what has failed; the system's temporary one")
    parser.add_argument("--discards", default="", help="metrics or logs: the receiver loses a request, which is found")
    options = parser.parse_args()
    for each in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(each) is signal.SIG_IGN:  # by nohup: programs inherit an ignored signal, but no handler
            signal.signal(each, lambda *_: None)
    results, began = Results("ends", options.seed), time.monotonic()
    numbers = options.only or range(options.programs)
    lost, counted = defaultdict[str, float](float), Counter[str]()
    values, ended = 0, 0.0
    with ThreadPoolExecutor(options.workers) as pool:
        tasks = [
            pool.submit(attack, options.seed, number, keep=options.keep, discards=options.discards)
            for number in numbers
        ]
        for task in as_completed(tasks):
            program, verdict, folder = task.result()
            row = results.row(f"ends by {program.ends}")
            row.tried += 1
            values += verdict.values
            ended = max(ended, verdict.end_seconds)
            lost[row.attack] = max(lost[row.attack], verdict.lost_seconds)
            counted[row.attack] += verdict.missing
            if verdict.wrong:
                again = f"python bench/attack/ends.py --seed {options.seed} --only {program.number}"
                why = "\n  ".join([f"program {program.number} ({program.title})", *verdict.wrong, f"kept in {folder}"])
                results.failure(
                    row.attack, why, again + (f" --discards {options.discards}" if options.discards else "")
                )
    for row in results.rows:
        row.outcome = "wrong" if row.failed else "nothing lost"
        row.most = {"but for the last {:.1f} s before a cut": lost[row.attack]} if lost[row.attack] else {}
        row.sums = {"{:,} values that are counted": counted[row.attack]} if counted[row.attack] else {}
    results.rows.sort(key=lambda row: row.attack)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(numbers)} programs, {values:,} values, {len(numbers) / minutes:.0f} programs a minute; "
        f"the longest end took {ended:.1f} of {LONGEST_END:g} s; seed {options.seed}"
    )
    return results.end(options.out)


if __name__ == "__main__":
    sys.exit(main())
