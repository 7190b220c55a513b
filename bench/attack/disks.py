"""Attacks the disk: ``python bench/attack/disks.py [--seed N] [--only FAULT] [--quick]``.

Under the real hub, and under programs that write to each destination that is on a disk, files fail in every way: the
file system is full or read-only, files may grow no more, no descriptor is left, they are deleted, locked by others, and
each single write, fsync, open and ftruncate fails once. Files of programs are also overwritten and cut. Of all of that:

- nothing crashes; the hub answers nothing but 200 and, with Retry-After, 503, and goes on as before once it is over;
- what it has acknowledged with 200 is in the store, once, but for what others have destroyed; that it says;
- its files are sound by ``PRAGMA integrity_check``, and the next hub begins on them;
- a program ends with its own exit status, no call that records waits, and whatever is not there is counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import disk_hub
import disk_job
from disk_faults import HUB, JOB, Unavailable
from results import Results, arguments

KINDS = ("jsonl", "tensorboard", "influxdb")
EACH = "each call once"
_AT_ONCE = 4  # calls that are tried side by side: they mostly wait
_MOST = 20_000  # calls of one run, beyond which something is wrong

NthCall = Callable[..., tuple[int, list[str]]]


def main() -> int:
    """Attack, and return the exit status: 1 where an invariant broke."""
    parser = arguments("disks")
    faults = sorted({*HUB, *JOB, EACH})
    parser.add_argument("--only", choices=faults, help="this fault alone")
    parser.add_argument("--target", choices=("hub", *KINDS), help="this one alone")
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault strikes (default %(default)s)")
    parser.add_argument("--first", type=int, help="of the calls that fail one by one: begin with this one")
    parser.add_argument("--quick", action="store_true", help="each fault once, and some of the calls: a minute or two")
    options = parser.parse_args()
    results = Results("disks", options.seed)
    for target in ("hub", *KINDS):
        if options.target in (None, target):
            _attack(target, options, results)
    return results.end(options.out)


def _attack(target: str, options: argparse.Namespace, results: Results) -> None:
    for name, fault in (HUB if target == "hub" else JOB).items():
        if options.only in (None, name):
            seen: Counter[str] = Counter()
            if target == "hub":
                strike = partial(disk_hub.struck, fault, seen=seen, quick=options.quick)
            else:
                strike = partial(disk_job.struck, target, fault, seen=seen)
            row = results.row(f"{target}: {name}")
            _rounds(row.attack, strike, options, results, f"--target {target} --only '{name}'")
            if not row.outcome:
                row.sums, row.most = _told(target, seen)
            print(f"{row.attack}: {row.tried} tried, {row.failed} failed", flush=True)
    if options.only in (None, EACH):
        for torn in (False, True):
            nth_call: NthCall = (
                partial(disk_hub.nth_call, quick=options.quick)
                if target == "hub"
                else partial(disk_job.nth_call, target)
            )
            _each_call(target, partial(nth_call, torn=torn), options, results, torn=torn)


def _rounds(
    attack: str, strike: Callable[..., Iterator[str]], options: argparse.Namespace, results: Results, replay: str
) -> None:
    row = results.row(attack)
    for number in range(1 if options.quick else options.rounds):
        row.tried += 1
        seed = options.seed + number
        try:
            broke = list(strike(seed=seed))
        except Unavailable as error:
            print(f"SKIPPED {attack}: {error}", flush=True)
            row.tried, row.outcome = row.tried - 1, f"NOT TRIED: {error}"
            return
        _fail(results, attack, broke, f"python bench/attack/disks.py --seed {seed} {replay} --rounds 1")


def _told(target: str, seen: Counter[str]) -> tuple[dict[str, int], dict[str, float]]:
    """Return the numbers that add up over runs, and those of which the largest counts, by their words."""
    if target == "hub":
        sums = {"{:,} times 200": seen["kept"], "{:,} times 503": seen["refused"]}
        return sums, {"/healthz: {:.0f} ms at most": seen["health_ms"]}
    sums = {"{:,} recorded": seen["recorded"], "{:,} lost and counted": seen["dropped"]}
    return sums, {"longest call {:.1f} ms": seen["longest_us"] / 1000}


def _each_call(target: str, nth_call: NthCall, options: argparse.Namespace, results: Results, *, torn: bool) -> None:
    step = (100 if target == "hub" else 5) if options.quick else 1
    which = f"{step}th call" if options.quick else "call"
    attack = f"{target}: each {which} fails once{', a write half done' if torn else ''}"
    row = results.row(attack)
    first = options.first or (random.Random(options.seed).randint(1, step) if options.quick else 1)
    last = 0
    try:
        with tempfile.TemporaryDirectory(prefix="tachograph-disks-") as base, ThreadPoolExecutor(_AT_ONCE) as pool:
            for numbers in _batches(first, step):
                tried = list(pool.map(partial(_tried, nth_call, Path(base)), numbers))
                for number, (hits, broke) in zip(numbers, tried, strict=True):
                    row.tried += hits > 0
                    last = max(last, number if hits else 0)
                    replay = f"--target {target} --only '{EACH}' --first {number}"
                    _fail(results, attack, broke, f"python bench/attack/disks.py --seed {options.seed} {replay}")
                if not all(hits for hits, _ in tried):
                    break
    except Unavailable as error:
        print(f"SKIPPED {attack}: {error}", flush=True)
        row.outcome = f"NOT TRIED: {error}"
        return
    row.outcome = f"write, fsync, open and ftruncate: calls {first} to {last}" + (
        f", every {step}th" if step > 1 else ""
    )


def _batches(first: int, step: int) -> Iterator[range]:
    return (range(at, at + step * _AT_ONCE, step) for at in range(first, _MOST, step * _AT_ONCE))


def _tried(nth_call: NthCall, base: Path, number: int) -> tuple[int, list[str]]:
    return nth_call(base, number)


def _fail(results: Results, attack: str, broke: Iterable[str], replay: str) -> None:
    for why in broke:
        results.failure(attack, why, replay)


if __name__ == "__main__":
    sys.exit(main())
