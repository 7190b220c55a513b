"""Makes docs/reliability.md of the results in ``results/``: ``python bench/attack/page.py`` (``--check``: compare)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import FOLDER, ROOT, Row

PAGE = ROOT / "docs" / "reliability.md"
TITLES = {
    "fuzz": "Bad input",
    "ends": "Programs that end in every way",
    "backends": "Backends that fail",
    "disks": "Disks that fail",
    "peers": "The same kills for other recorders",
}
_INTRODUCTION = """# Reliability: what was tried, how often, and what came of it

<!-- Made by `python bench/attack/page.py` of the results in bench/attack/results; do not edit it here. -->

Each attack is one command, seeded: a failure prints its seed, the commit and the command that repeats it.
A short piece of each is among what every change must pass, in `make test` and `make long`.
"""


def page(folder: Path = FOLDER) -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for name, title in TITLES.items():
        runs = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob(f"{name}*.json")]
        if runs:
            parts.append(_section(title, sorted(runs, key=lambda run: (run["date"], run["seed"]))))
    parts.append("On: [performance](performance.md) · [conformance](conformance.md) · [concepts](concepts.md)\n")
    return "\n".join(parts)


def _section(title: str, runs: Sequence[Mapping[str, Any]]) -> str:
    said = [
        (
            f"`{run['command']}`, seed {run['seed']}, at commit {run['commit']}, {run['date']}, "
            f"Python {run['python']}, {run['seconds']:,} s."
        )
        for run in runs
    ]
    if len(runs) > 1:
        said = [f"{len(runs)} runs, whose numbers are added up:", "", *(f"- {each}" for each in said)]
    rows = [_cells(attack, runs) for attack in dict.fromkeys(row["attack"] for run in runs for row in run["rows"])]
    lines = [f"## {title}", "", *said, "", "| attack | tried | failed | outcome |", "|---|--:|--:|---|"]
    return "\n".join(
        [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]
    )


def _cells(attack: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a row of all runs; its words are those of the last that failed, or else of the last.

    Where another run says something else, the commit of that run stands behind them.
    """
    whole, at, different = Row(attack), "", set[str]()
    found = [(run["commit"], Row(**row)) for run in runs for row in run["rows"] if row["attack"] == attack]
    for commit, row in found:
        if row.failed or not whole.failed:
            whole.outcome, at = row.outcome, commit
        different.add(row.outcome)
        whole.tried += row.tried
        whole.failed += row.failed
        whole.sums = {words: whole.sums.get(words, 0) + row.sums.get(words, 0) for words in {**whole.sums, **row.sums}}
        whole.most |= {words: max(number, whole.most.get(words, number)) for words, number in row.most.items()}
    if len(different) > 1:
        whole.outcome += f" (at {at})"
    return attack, f"{whole.tried:,}", f"{whole.failed:,}", whole.told()


def main() -> int:
    """Write the page, or compare it with ``--check``."""
    made = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
