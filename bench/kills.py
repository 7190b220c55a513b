"""Random kills of a torchrun job under ``tachograph run``: nothing hangs, little is lost, nothing is there twice.

``python bench/kills.py`` kills a hundred jobs one by one, each at a moment that its seed chooses: the agent or one of
its two ranks, by SIGKILL or SIGTERM. Of each process:

- killed by SIGKILL, or left alone by an agent that was: the values up to a second (one export interval) and the time to
  send them before that have arrived;
- otherwise: everything, but for values that it went on to record at its end, during the last export;
- each event once, none missing in between, and the counters of a hub on the same store say the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

JOB = Path(__file__).parent / "kill_job.py"
RANKS = 2
SECONDS = 5.0  # that a worker records
TIME_LIMIT = 90.0
BOUND = 1.0  # the export interval under `tachograph run`
SLACK = 1.0  # of a machine with few cores, for sending
ENDING = 0.2  # seconds between SIGTERM and the end, in which a worker goes on


class Kill(NamedTuple):
    """A kill: its victim, its signal, and the seconds after every rank has begun."""

    victim: str
    signal: int
    after: float

    @classmethod
    def chosen(cls, seed: int) -> Kill:
        """Return the kill of a seed."""
        chance = random.Random(seed)
        victim = chance.choice(["agent", *(f"rank {rank}" for rank in range(RANKS))])
        return cls(victim, chance.choice([signal.SIGKILL, signal.SIGTERM]), chance.uniform(0.3, 3.5))


class Wrong(Exception):  # noqa: N818 - a finding
    """A promise was not kept."""


class Worker(NamedTuple):
    """One start of a rank, as its notes have it."""

    who: str
    rank: int
    pid: int
    noted: list[float]  # when each value had been recorded; the first is number 1
    done: bool  # it came to its end

    @classmethod
    def read(cls, path: Path) -> Worker:
        """Read the notes of one process; a line that was being written does not count."""
        rank, _, pid = path.stem.split("-")
        lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return cls(
            path.stem, int(rank), int(pid), [float(line[1]) for line in lines if len(line) > 1], ["done"] in lines
        )

    def least(self, plan: Kill, moment: float) -> int:
        """Return the least number of values that must have arrived."""
        if self.done:
            return len(self.noted)
        first = "-0-" in self.who
        if first and plan.signal == signal.SIGKILL and plan.victim in ("agent", f"rank {self.rank}"):
            return self.recorded_by(moment - BOUND - SLACK)
        return self.recorded_by(self.noted[-1] - ENDING) if self.noted else 0

    def recorded_by(self, moment: float) -> int:
        """Return the number of values that it had recorded by then."""
        return sum(noted <= moment for noted in self.noted)


def wait_for_workers(folder: Path, job: subprocess.Popen[bytes]) -> list[Worker]:
    """Wait until every rank has recorded a value."""
    deadline = time.monotonic() + TIME_LIMIT / 2
    while time.monotonic() < deadline and job.poll() is None:
        found = [Worker.read(path) for path in folder.glob("*.notes")]
        if len({worker.rank for worker in found if worker.noted}) == RANKS:
            return found
        time.sleep(0.02)
    raise Wrong(f"the job did not begin: exit code {job.poll()}")


def parent_of(pid: int) -> int:
    """Return the pid of the parent of a process (proc_pid_stat(5))."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(plan: Kill, folder: Path) -> tuple[float, int]:
    """Run a job and kill as planned; return when, and the exit code."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1"]
    job = [sys.executable, *torchrun, str(JOB), str(folder), str(SECONDS)]
    command = [sys.executable, "-m", "tachograph", "run", "--port", "0", "--run-id", "kills", "--store", str(folder)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
    with (folder / "output.txt").open("wb") as output:
        started = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--", *job], env=kept, stdout=output, stderr=output, start_new_session=True
        )
        workers: list[Worker] = []
        try:
            workers = wait_for_workers(folder, started)
            time.sleep(plan.after)
            agent = parent_of(workers[0].pid)
            victim = (
                agent if plan.victim == "agent" else next(w.pid for w in workers if f"rank {w.rank}" == plan.victim)
            )
            moment = time.time()
            os.kill(victim, plan.signal)
            if plan.victim == "agent" and plan.signal == signal.SIGKILL:
                for worker in workers:  # they would run on, otherwise
                    os.kill(worker.pid, signal.SIGKILL)
            return moment, started.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the job hangs: more than {TIME_LIMIT:g} s after {plan}") from None
        finally:
            for path in folder.glob("*.notes"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.stem.split("-")[2]), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def arrived(folder: Path) -> dict[str, list[int]]:
    """Return the numbers in the store, by process."""
    found: dict[str, list[int]] = defaultdict(list)
    (path,) = (folder / "runs").glob("*.db")
    with contextlib.closing(sqlite3.connect(path)) as store:
        if store.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise Wrong("the store is damaged")
        for (data,) in store.execute("SELECT record FROM event WHERE name = 'tick' ORDER BY rowid"):
            attributes = {each.key: each.value for each in LogRecord.FromString(data).attributes}
            found[attributes["who"].string_value].append(attributes["number"].int_value)
    return found


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve the store again, as a user would, and give its address."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--run-id", "kills", "--store", str(folder)]
    with subprocess.Popen([*command, "--announce", str(write)], pass_fds=[write], stderr=subprocess.DEVNULL) as process:  # noqa: S603 - ours
        os.close(write)
        with os.fdopen(read) as lines:
            said = json.loads(lines.readline())
            try:
                yield said["url"]
            finally:
                process.terminate()
                process.wait(30)


def counters(folder: Path) -> dict[int, float]:
    """Return each rank's counter on the page of a hub on the same store."""
    with hub(folder) as url, urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310 - our own hub
        page = answer.read().decode()
    found = {}
    for line in page.splitlines():
        if line.startswith("tick_success_total{"):
            (rank,) = re.findall(r'dl_rank="(\d+)"', line)
            found[int(rank)] = float(line.rpartition("}")[2].split()[0])
    return found


def judge(plan: Kill, moment: float, folder: Path) -> str:
    """Compare recorded and stored values; return a line about it."""
    there = arrived(folder)
    lost = 0
    for worker in map(Worker.read, sorted(folder.glob("*.notes"))):
        numbers = there.pop(worker.who, [])
        if numbers != list(range(1, len(numbers) + 1)):
            raise Wrong(f"{worker.who}: not each event once, in order: {numbers}")
        least = worker.least(plan, moment)
        if len(numbers) < least:
            raise Wrong(f"{worker.who}: {len(numbers)} events arrived of {len(worker.noted)}, {least} at least should")
        lost += max(0, len(worker.noted) - len(numbers))
    if there:
        raise Wrong(f"events of processes that never were: {sorted(there)}")
    return f"{lost} lost"


def judge_counters(plan: Kill, moment: float, folder: Path) -> None:
    """Compare the counters with the recorded values."""
    page = counters(folder)
    for rank in range(RANKS):
        workers = [Worker.read(path) for path in folder.glob(f"{rank}-*.notes")]
        most = sum(len(worker.noted) + 1 for worker in workers)  # an interrupt may come before the note
        least = sum(worker.least(plan, moment) for worker in workers)
        if not least <= page.get(rank, 0.0) <= most:
            raise Wrong(f"rank {rank}: the counter is {page.get(rank)}, and should be from {least} to {most}")


def one(seed: int) -> str:
    """Kill one job; return its outcome."""
    plan = Kill.chosen(seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        try:
            moment, code = kill(plan, folder)
            said = judge(plan, moment, folder)
            judge_counters(plan, moment, folder)
        except Wrong as error:
            output = (folder / "output.txt").read_text(errors="replace")[-4000:]
            return f"WRONG {plan}: {error}\n{output}"
    return (
        f"ok    {plan.victim} by {signal.Signals(plan.signal).name} after {plan.after:.1f} s: exit code {code}, {said}"
    )


def main() -> None:
    """Kill as many as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=range(100))
    options = parser.parse_args()
    wrong = 0
    for seed in options.seeds:
        said = one(seed)
        wrong += said.startswith("WRONG")
        print(f"seed {seed:3} {said}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
