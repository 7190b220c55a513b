"""Results of the attacks: JSON files in ``results/``, from which ``page.py`` makes docs/reliability.md and its tables.

A run has a file of its own, whose name begins with its attack's: all of them together are its table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("results")


@dataclass
class Row:
    """One kind of attack: number of tries, number of broken invariants, and the outcome.

    Attributes:
        outcome: in words.
        sums: numbers that add up over runs, by their words, in which ``{}`` is the number's place.
        most: the same, of which the largest of all runs counts.
    """

    attack: str
    tried: int = 0
    failed: int = 0
    outcome: str = ""
    sums: dict[str, int] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)

    def told(self) -> str:
        """Return the outcome in words and numbers."""
        numbers = [words.format(found) for words, found in (*self.most.items(), *sorted(self.sums.items()))]
        return ", ".join([self.outcome, *numbers] if self.outcome else numbers)


@dataclass
class Results:
    """The findings of one run of one attack.

    Args:
        name: of the attack, as its file's.
        seed: that its random choices come from.
    """

    name: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def row(self, attack: str) -> Row:
        """Return the row of a kind of attack, a new one where there is none."""
        found = next((row for row in self.rows if row.attack == attack), None)
        if found is None:
            self.rows.append(found := Row(attack))
        return found

    def failure(self, attack: str, why: str, replay: str) -> None:
        """Count a broken invariant, and print the way to repeat it: seed, commit and command."""
        self.row(attack).failed += 1
        print(f"FAILED {attack}: {why}\n  seed {self.seed}, commit {commit()}, again: {replay}", flush=True)

    def end(self, out: Path | None = None) -> int:
        """Print the table, write it to ``out`` where that is given, and return the exit status."""
        for row in self.rows:
            print(f"{row.attack:<60} {row.tried:>9} tried {row.failed:>4} failed  {row.told()}")
        if out is not None:
            found = {
                "name": self.name,
                "seed": self.seed,
                "commit": commit(),
                "date": time.strftime("%Y-%m-%d", time.gmtime(self.started)),
                "seconds": round(time.time() - self.started),
                "python": platform.python_version(),
                "command": " ".join(["python", *sys.argv]),
                "rows": [{name: each for name, each in asdict(row).items() if each != {}} for row in self.rows],
            }
            out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return int(any(row.failed for row in self.rows))


def arguments(name: str) -> argparse.ArgumentParser:
    """Return a parser with every attack's options: ``--seed`` (by default random) and ``--out``."""
    parser = argparse.ArgumentParser(prog=f"bench/attack/{name}.py", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"), help="replays a run")
    parser.add_argument("--out", type=Path, help=f"where to write the results: bench/attack/results/{name}-SEED.json")
    return parser


def commit() -> str:
    """Return the commit that is attacked, short; "unknown" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
