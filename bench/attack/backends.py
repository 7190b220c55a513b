"""Backends that fail in every way: ``python bench/attack/backends.py --seed N [--only FAULT] [--rounds K] [--quick]``.

For each fault a real program trains for a while and delivers to a real server on the loopback that has it. Then:

- nothing is there twice: no point, event or line comes again after the backend has acknowledged it, and a real hub and
  a real InfluxDB have each once;
- nothing is missing uncounted: recorded = arrived + ``tachograph.dropped``, as the program's registry has it at its
  end, where only requests without an answer leave it open whether they arrived;
- the end takes a second more with a backend that takes nothing, ten with one that takes;
- no step of the training waits: ``backends_judge.LONGEST_CALL``;
- the program ends with status 0, no traceback, a dozen lines of log at most, and no secret of its headers in them.

What lasted too long is tried twice more, with nothing beside it, before it counts: the machine is shared.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import bad_grpc
import bad_influxdb
import bad_otlp_http
import bad_proxy
from backends_judge import Ran, Verdict, judge
from bad_accounts import Account
from bad_backends import Backend, Fault
from results import Results, Row, arguments

JOB = Path(__file__).with_name("backends_job.py")
SECONDS = 1.2  # that a program trains
TIME_LIMIT = 45.0
TRIES = 3
_PREFIXES = ("OTEL_", "TACHOGRAPH_", "INFLUXDB_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Tried(NamedTuple):
    """One try of a fault."""

    fault: Fault
    seed: int
    verdict: Verdict
    exit: float
    longest: float


def faults() -> Iterator[Fault]:
    """Yield every fault that can be put up here."""
    yield from (*bad_otlp_http.FAULTS, *bad_grpc.FAULTS, *bad_proxy.FAULTS, *bad_influxdb.FAULTS)
    for program, real in bad_influxdb.REAL.items():
        if shutil.which(program):
            yield from real
        else:
            print(f"not tried: {program} is not installed")


def run(asked: dict[str, Any], backend: Backend, folder: Path, name: str) -> Ran:
    """Run the program once."""
    report = folder / f"{name}.json"
    asked = {**asked, "report": str(report)}
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(_PREFIXES)}
    environ = {**kept, "TACHOGRAPH_STORE": str(folder / "store"), **asked["environ"], **backend.environ}
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(JOB), json.dumps(asked)], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        killer = threading.Timer(TIME_LIMIT, process.kill)
        killer.start()
        trained = process.stdout is not None and process.stdout.readline().strip() == b"trained"
        began = time.monotonic()
        if trained:
            backend.training_ended()
        status = process.wait()
        spent = time.monotonic() - began
        hung = not killer.is_alive()
        killer.cancel()
    told = json.loads(report.read_text()) if report.exists() else {}
    return Ran(told, (folder / f"{name}.log").read_text(errors="replace"), None if hung else status, spent)


def attempt(fault: Fault, seed: int) -> Tried:
    """Try one fault once."""
    chance = random.Random(f"{seed} {fault.title}")
    account = Account()
    asked: dict[str, Any] = {
        "door": fault.door,
        "seconds": SECONDS,
        "end": chance.choice(("exit", "shutdown")),
        "witness": chance.random() < 0.5,
        "temporality": chance.choice(("cumulative", "delta")),
        "environ": {},
    }
    with tempfile.TemporaryDirectory(prefix="backends-") as name, fault.put_up(account, Path(name)) as backend:
        folder, asked["settings"] = Path(name), backend.settings
        if fault.door == "otlp":
            asked["environ"] = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": asked["temporality"]}
            more = {"timeout": chance.choice((1.0, 10.0)), "compression": chance.choice(("none", "gzip"))}
            asked["settings"] = {**more, **backend.settings}
        runs = [run(asked, backend, folder, "trained")]
        spool = folder / "store" / "spool"
        if fault.door == "influxdb" and any(path.is_file() for path in spool.rglob("*")):
            backend.heal()
            runs.append(run({**asked, "seconds": 0.0, "waits": str(spool)}, backend, folder, "next"))
        verdict = judge(fault, backend, account, asked, runs)
    return Tried(fault, seed, verdict, runs[0].exit, float(runs[0].report.get("longest", 0.0)))


def note(results: Results, tries: Sequence[Tried]) -> None:
    """Add the tries of one fault and seed, the last of which counts, to the results."""
    tried = tries[-1]
    row = results.row(tried.fault.title)
    row.tried += 1
    wrong = [said for each in tries for said in each.verdict.wrong] + (
        tried.verdict.late if len(tries) == TRIES else []
    )
    if wrong:
        replay = f'python bench/attack/backends.py --seed {tried.seed} --only "{tried.fault.title}"'
        results.failure(tried.fault.title, "; ".join(wrong), replay)


def describe(row: Row, tries: Sequence[Tried]) -> None:
    """Describe the outcome in the row."""
    lost = [tried.verdict.lost for tried in tries]
    ends, longest = [tried.exit for tried in tries], max(tried.longest for tried in tries)
    kept = "nothing lost" if not any(lost) else f"{min(lost)} to {max(lost)} lost, all counted"
    if row.failed:
        kept = "see the failure"
    spent = f"end {statistics.median(ends):.1f} s, at most {max(ends):.1f}; longest call {longest * 1e3:.1f} ms"
    row.outcome = f"{kept}; {spent}"


def attack(results: Results, wanted: Sequence[Fault], *, rounds: int, side_by_side: int) -> None:
    """Try every fault in every round, some side by side; those that took too long again, by themselves."""
    work = [(fault, results.seed + number) for number in range(rounds) for fault in wanted]
    tries: dict[str, list[Tried]] = {}
    with ThreadPoolExecutor(side_by_side) as pool:
        all_tried = list(pool.map(lambda one: attempt(*one), work))
    for tried in all_tried:
        again = [tried]
        while again[-1].verdict.late and not again[-1].verdict.wrong and len(again) < TRIES:
            again.append(attempt(tried.fault, tried.seed))
        note(results, again)
        tries.setdefault(tried.fault.title, []).append(again[-1])
    for title, found in tries.items():
        describe(results.row(title), found)


def chosen(every: Sequence[Fault], only: str | None, *, quick: bool, seed: int) -> list[Fault]:
    """Return the faults that are asked for: those of a name, or a third, or all."""
    if only is None:
        return random.Random(seed).sample(every, len(every) // 3) if quick else list(every)
    named = [fault for fault in (*every, *bad_otlp_http.LIES) if fault.title == only]
    return named or [fault for fault in every if only in fault.title]


def main() -> int:
    """Attack, and print and write the results."""
    parser = arguments("backends")
    parser.add_argument("--only", help="the name of a fault, or a part of some names")
    parser.add_argument("--rounds", type=int, default=1, help="times that each is tried, with a seed of its own")
    parser.add_argument("--quick", action="store_true", help="a third of them, chosen by the seed")
    parser.add_argument("--side-by-side", type=int, default=4, help="programs at a time")
    options = parser.parse_args()
    results = Results("backends", options.seed)
    wanted = chosen(list(faults()), options.only, quick=options.quick, seed=options.seed)
    if not wanted:
        parser.error(f"no fault has {options.only!r} in its name")
    attack(results, wanted, rounds=options.rounds, side_by_side=options.side_by_side)
    return results.end(options.out)


if __name__ == "__main__":
    sys.exit(main())
