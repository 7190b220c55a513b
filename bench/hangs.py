"""Injected hangs: is the right rank named within ten seconds, with its operation and its line, and never a wrong one?

``python bench/hangs.py --runs 30 --seed 1``: each run is a job under ``tachograph run`` in which a random rank does one
of twelve things that stop all others; the world has 2, 4 or 8 ranks, every second one is on a loaded machine, and
py-spy may be there or not. ``--only KIND`` and ``--replay N`` repeat some. ``--harmless S`` has work in it that takes
long and is no hang. What counts is the first verdict *hang*; the seconds are from the injection on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

JOB = Path(__file__).parent / "hangs_job.py"
WITHIN = 10.0  # seconds
_BEGINS_WITHIN, _WATCHED = 300.0, 30.0
_NONE = "no hang was said"
_AFTER = 6  # looks after the first verdict
KINDS = {  # what the verdict has to say beside the rank: its cause, an operation, and the mark of its line
    "gil_sleep": ("GIL held", "all_reduce", "gil_sleep"),
    "gil_regex": ("GIL held", "all_reduce", "gil_regex"),
    "c_sleep": ("blocked", "all_reduce", "c_sleep"),
    "fifo": ("blocked", "all_reduce", "fifo"),
    "dataloader": ("DataLoader", "all_reduce", "dataloader"),
    "deadlock": ("blocked", "all_reduce", "deadlock"),
    "mismatch": ("mismatch", "broadcast", "mismatch"),
    "skip": ("mismatch", "barrier", "skip"),
    "stop": ("stopped", "all_reduce", ""),
    "kill": ("died", "", ""),  # gloo's other ranks raise at once: they wait in none
    "subgroup": ("blocked", "all_reduce", "c_sleep"),
    "crossed": ("crossed groups", "all_reduce", "crossed"),
}
MORE = {  # kinds beside the twelve: of the first one a verdict takes half a minute
    "spin": ("spinning", "all_reduce", "spin"),
    "receive": ("blocked", "all_reduce", "receive"),
    "send": ("blocked", "all_reduce", "c_sleep"),
}
HARMLESS = (
    *("checkpoint", "evaluate", "compiled", "collected", "slow", "paused", "forked", "dumped", "debugged", "served"),
    "all_evaluate",
)
_PAIRED = ("mismatch", "skip", "crossed")  # with two ranks both are named


class Case(NamedTuple):
    """One injection; all of it follows from the seed and its number."""

    number: int
    kind: str
    world: int
    guilty: int
    at: int
    loaded: bool
    pyspy: bool


class Outcome(NamedTuple):
    """The answers to one injection.

    Attributes:
        seconds: until a hang was said; None where none was.
        wrong: a rank is named that is not guilty.
        seen: the line is one at which the rank was "last seen", as the verdict says: its present one cannot be read.
        said: in the terminal of ``tachograph run``.
        page: ``/metrics`` of the hub.
        ranks, cause: of the verdict.
    """

    case: Case
    seconds: float | None
    rank: bool
    operation: bool
    line: bool
    wrong: bool
    text: str
    said: str = ""
    page: str = ""
    ranks: tuple[int, ...] = ()
    cause: str = ""
    seen: bool = False


def case(seed: int, number: int, kinds: tuple[str, ...] = tuple(KINDS), worlds: tuple[int, ...] = (2, 4, 8)) -> Case:
    """Return an injection."""
    dice = random.Random(f"{seed}/{number}")
    world = dice.choice(worlds)
    kind = kinds[number % len(kinds)]
    return Case(
        number, kind, world, dice.randrange(world), dice.randrange(25, 60), number % 2 == 1, dice.random() < 0.5
    )


def line_of(mark: str) -> int:
    """Return the line of the job with a mark."""
    return next(n for n, line in enumerate(JOB.read_text().splitlines(), 1) if line.endswith(f"# at {mark}"))


def inject(one: Case, *, seconds: float = _WATCHED, harmless: float = 0.0) -> Outcome:
    """Run a job, and return the first verdict on it."""
    with tempfile.TemporaryDirectory(prefix="hang-") as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        job = _start(one, folder, harmless)
        ending.callback(_end, job)
        if one.loaded:
            for _ in range(os.cpu_count() or 1):
                burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                ending.callback(burner.wait)
                ending.callback(burner.kill)
        return _watch(one, job, folder, seconds)


def _start(one: Case, folder: Path, harmless: float) -> subprocess.Popen[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TACHOGRAPH_"))}
    told = {"HANG_AT": str(one.at), "HANG_GUILTY": str(one.guilty), "HANG_MARK": str(folder / "mark")}
    more = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "HANG_SECONDS": str(harmless or 60.0)}
    if not one.pyspy:
        more["TACHOGRAPH_PYSPY"] = "none"
    store = {"TACHOGRAPH_STORE": str(folder / "store")}
    # So that torchrun does not end the others at once where one has died: it is the doctor who is to say so.
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(one.world), "--monitor-interval", "60"]
    command = [sys.executable, "-m", "tachograph", "run", "--port", "0", "--"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(  # noqa: S603 - our own
            [*command, sys.executable, *torchrun, *rendezvous, str(JOB), one.kind],
            env={**kept, **told, **more, **store},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(job: subprocess.Popen[bytes]) -> None:
    """End the job with all of its processes, also those that are stopped; ``run`` ends by itself, if it can."""
    left = _family(job.pid)
    _kill([pid for pid in left if pid != job.pid and str(JOB) in _command_line(pid)])
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(10)
    _kill(left)
    job.wait()


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _family(pid: int) -> list[int]:
    found, waiting = [pid], [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(each) for each in path.read_text().split()]
                found += children
                waiting += children
    return found


def _watch(one: Case, job: subprocess.Popen[bytes], folder: Path, seconds: float) -> Outcome:
    mark, begun = folder / "mark", time.time()
    while not (mark.exists() and mark.read_text()):
        if job.poll() is not None or time.time() - begun > _BEGINS_WITHIN:
            return Outcome(
                one, None, False, False, False, False, f"it did not begin: {(folder / 'said').read_text()[-2000:]}"
            )
        time.sleep(0.1)
    since = float(mark.read_text())
    found = re.search(r"live at (\S+)/#/run/(\S+) \(", (folder / "said").read_text())
    if found is None:
        raise RuntimeError((folder / "said").read_text())
    url = f"{found[1]}/api/runs/{quote(found[2], safe='')}/doctor"
    while time.time() < since + seconds and job.poll() is None:
        hang = _hang(url)
        if hang is not None:
            outcome = _judged(one, time.time() - since, hang)
            page = ""
            for _ in range(_AFTER):  # a later verdict may be wrong, too; the terminal is told twice a second
                time.sleep(0.5)
                page = page or _read(f"{found[1]}/metrics")
                hang = _hang(url)
                outcome = outcome._replace(wrong=outcome.wrong or (hang is not None and _judged(one, 0.0, hang).wrong))
            return outcome._replace(said=(folder / "said").read_text(), page=page)
        time.sleep(0.2)
    text = _NONE if job.poll() is None else f"it ended: {(folder / 'said').read_text()[-2000:]}"
    return Outcome(one, None, False, False, False, False, text)


def _read(url: str) -> str:
    with contextlib.suppress(OSError), urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own hub
        return str(answer.read().decode())
    return ""


def _hang(url: str) -> dict[str, Any] | None:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own hub
            live = json.load(answer)["live"] or {}
    except (OSError, ValueError):
        return None
    lasting = live.get("open") or next(iter(live.get("incidents", [])[-1:]), None)
    return lasting if lasting and lasting["grade"] in ("hang", "died") else None


def _judged(one: Case, seconds: float, hang: dict[str, Any]) -> Outcome:
    if one.kind not in KINDS | MORE:
        return Outcome(one, seconds, False, False, False, True, hang["text"])
    cause, operation, mark = (KINDS | MORE)[one.kind]
    named = set(hang["ranks"])
    allowed = {one.guilty}
    if one.kind == "crossed":
        allowed |= set(range(one.world))  # they wait for each other
    elif one.kind in _PAIRED and one.world == 2:
        allowed = {0, 1}
    right = one.guilty in named and hang["cause"] in (cause, *(["killed"] if one.kind == "kill" else []))
    text = hang["text"]
    at = re.search(r"hangs_job\.py:(\d+)", text)
    # Of a rank that was stopped or killed, or holds the GIL where there is no py-spy, it is that of the last pulse.
    seen = at is not None and f", last seen at {at[0]}" in text
    line = f"hangs_job.py:{line_of(mark)} " in text if mark else seen
    of = {"ranks": tuple(hang["ranks"]), "cause": hang["cause"], "seen": seen}
    return Outcome(one, seconds, right, operation in text, line, not named <= allowed, text, **of)


def _keep(file: Path, seed: int, outcome: Outcome) -> None:
    """Add an outcome to a file of JSON lines, with the load of the machine."""
    kept = {"seed": seed, **outcome.case._asdict(), **outcome._asdict(), "load": os.getloadavg()[0]}
    for name in ("case", "said", "page"):
        del kept[name]
    with file.open("a") as lines:
        lines.write(json.dumps(kept) + "\n")


def main() -> int:
    """Inject, and say how it went; the exit code is 1 where a wrong rank was called a hang, or harmless work one."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--runs", type=int, default=30)
    made.add_argument("--first", type=int, default=0, help="the number of the first one")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--only", action="append", choices=[*KINDS, *MORE, *HARMLESS])
    made.add_argument("--replay", type=int, help="only the one of this number")
    made.add_argument("--worlds", default="2,4,8")
    made.add_argument("--pyspy", choices=["there", "none"], help="in all of them")
    made.add_argument("--results", type=Path, metavar="FILE", help="a JSON line for each run is added to it at once")
    made.add_argument("--harmless", type=float, default=0.0, metavar="S", help="work of S seconds that is no hang")
    options = made.parse_args()
    kinds = tuple(options.only or (HARMLESS if options.harmless else KINDS))
    worlds = tuple(map(int, options.worlds.split(",")))
    numbers = [options.replay] if options.replay is not None else range(options.first, options.first + options.runs)
    found = []
    for number in numbers:
        one = case(options.seed, number, kinds, worlds)
        if options.harmless:
            one = one._replace(loaded=False)
        if options.pyspy:
            one = one._replace(pyspy=options.pyspy == "there")
        watched = options.harmless + 30.0 if options.harmless else _WATCHED + (15.0 if one.kind == "spin" else 0.0)
        outcome = inject(one, seconds=watched, harmless=options.harmless)
        found.append(outcome)
        if options.results:
            _keep(options.results, options.seed, outcome)
        after = "never" if outcome.seconds is None else f"{outcome.seconds:.1f} s"
        marks = "".join(letter if ok else "-" for letter, ok in zip("rol", outcome[2:5], strict=True))
        marks += "s" if outcome.seen else ""
        print(f"{one} {after} {marks}{' WRONG' if outcome.wrong else ''}\n    {outcome.text}", flush=True)
    if options.harmless:
        hung, ended = sum(each.wrong for each in found), sum(each.text != _NONE for each in found if not each.wrong)
        print(f"\n{len(found)} harmless runs of {options.harmless:g} s: hangs {hung}, ended before {ended}")
        return int(hung or ended)
    quick = [each for each in found if each.seconds is not None and each.seconds <= WITHIN]
    right = [each for each in quick if each.rank]
    seen = sum(each.seen and not each.line for each in right)
    told = (
        f"operation {sum(each.operation for each in right)}, line {sum(each.line for each in right)}, seen last {seen}"
    )
    wrong = sum(each.wrong for each in found)
    print(f"\n{len(found)} runs: within {WITHIN:g} s {len(quick)}, right rank {len(right)}, {told}, wrong {wrong}")
    return int(any(each.wrong for each in found))


if __name__ == "__main__":
    sys.exit(main())
