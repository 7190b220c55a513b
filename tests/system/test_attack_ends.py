"""The attack of ends: random programs that end in every way lose nothing uncounted; and its judge sees a loss."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

ATTACK = ROOT / "bench" / "attack" / "ends.py"
SEED = 14

pytestmark = pytest.mark.usefixtures("untraced")  # signal handlers that record or raise, and forks
ORDERLY = 12  # a program of this seed that ends in an orderly way, and sends counters as differences


def attack(folder: Path, *arguments: object, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """Run the attack; what fails is kept in ``folder``."""
    command = [sys.executable, str(ATTACK), "--keep", str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.timeout(420)
def test_thirty_programs_lose_nothing_uncounted(tmp_path: Path) -> None:
    """Thirty programs of a fixed seed: nothing is missing uncounted, nothing twice, no status is another one."""
    out = tmp_path / "ends.json"
    done = attack(tmp_path, "--programs", 30, "--seed", SEED, "--workers", 3, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert (found["name"], found["seed"]) == ("ends", SEED)
    assert sum(row["tried"] for row in found["rows"]) == 30
    assert len(found["rows"]) >= 10
    assert [row["failed"] for row in found["rows"]] == [0] * len(found["rows"])


@pytest.mark.timeout(420)
@pytest.mark.parametrize("lost", ["logs", pytest.param("metrics", marks=pytest.mark.long)])
def test_a_lost_request_is_found_and_replays(tmp_path: Path, lost: str) -> None:
    """A receiver that discards a request makes the attack fail, with all that repeats it, and keeps the program."""
    done = attack(tmp_path, "--only", ORDERLY, "--seed", SEED, "--discards", lost)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"missing: \d+ of [\w.]+ by \w+", done.stdout)
    command = f"again: python bench/attack/ends.py --seed {SEED} --only {ORDERLY} --discards {lost}"
    assert command in done.stdout
    (kept,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert f"kept in {kept}" in done.stdout
    assert (kept / "program.py").read_text().startswith('"""')
    assert (kept / "stderr.txt").exists()


def test_a_program_is_made_of_its_seed_and_number() -> None:
    """The same program each time, another one for another number, and each compiles."""
    code = (
        "from random_programs import write\n"
        "made = [write(14, number) for number in range(200)]\n"
        "assert [write(14, number) for number in range(200)] == made\n"
        "assert len({program.source for program in made}) == 200\n"
        "for program in made: compile(program.source, 'program.py', 'exec')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ATTACK.parent, check=True, timeout=60)


_BARE = """
import resource, sys

def nested():
    found = []
    for _ in range(4000):
        found = [found]
    return found

sys.setrecursionlimit(20_000)
one, other = nested(), nested()
if sys.argv[1] == "limited":
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 2**25
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    kept = []
    for step in (2**16, 2**12, 512, 64):
        try:
            while True:
                kept.append(bytearray(step))
        except MemoryError:
            pass
assert one == other
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="NOT TESTED: a newer CPython bounds the stack of C code itself")
def test_cpython_alone_may_end_by_sigsegv_without_memory() -> None:
    """Within RLIMIT_AS the system cannot let a stack grow (setrlimit(2)): a comparison ends the program, and no error.

    docs/reliability.md says so where a program under attack has ended by SIGSEGV.
    """
    ended = [
        subprocess.run([sys.executable, "-I", "-c", _BARE, how], timeout=60, check=False) for how in ("", "limited")
    ]
    assert [each.returncode for each in ended] == [0, -signal.SIGSEGV]
