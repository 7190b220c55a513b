"""Write docs/reliability.md and its tables from ``results/``; with ``--check``, compare them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import FOLDER, ROOT, Row

PAGE = ROOT / "docs" / "reliability.md"
TABLES = ROOT / "docs" / "design" / "reliability-tables.md"


class Attack(NamedTuple):
    """One kind of attack: its heading, what was tried, and what must hold."""

    title: str
    tried: str
    promise: str


ATTACKS = {
    "fuzz": Attack(
        "Bad input",
        "mutated OTLP requests, odd HTTP, hostile names, settings, and command lines",
        "clear errors; the hub keeps answering; /metrics stays valid",
    ),
    "ends": Attack(
        "Programs that end in every way",
        "programs that end by exceptions, signals, `os._exit`, exit handlers, threads, or SIGKILL",
        "nothing recorded is lost, except for the last second before a kill",
    ),
    "backends": Attack(
        "Receivers that fail",
        "receivers that hang, reset, answer nonsense, or are down, over HTTP, gRPC, and InfluxDB",
        "every loss is counted; recording never waits; the end takes at most a second more",
    ),
    "disks": Attack(
        "Disks that fail",
        "full, slow, read-only, and failing disks under the hub and the exporters",
        "the job continues; every loss is counted; no file is damaged",
    ),
    "peers": Attack(
        "The same kills for other recorders",
        "TensorBoard, W&B, trackio, and Tachograph, killed in the same ways",
        "a comparison",
    ),
}
_INTRODUCTION = """# Reliability

<!-- Made by `python bench/attack/page.py` from the results in bench/attack/results; do not edit it here. -->

What we did to break Tachograph, how often, and what happened. Each attack is one seeded command, and a failure prints
how to repeat it. `make test` and `make long` run a part of each attack on every change.

| attack | what was tried | what must hold | tried | failed |
|---|---|---|--:|--:|
"""
_AFTER = """
"Failed" counts broken promises. Each of them is described in [the tables](design/reliability-tables.md), which have one
row per kind of fault with its outcome, and the commands, seeds, and commits.
"""
_KILLS = """
## Values lost when a process is killed

| recorder and end | tries | outcome |
|---|--:|---|
"""
_TABLES = """# Tables of the attacks

<!-- Made by `python bench/attack/page.py` from the results in bench/attack/results; do not edit it here. -->

One table per attack of the [reliability page](../reliability.md), with all commands that were run.
"""


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the text of the summary and of the tables."""
    summary = _INTRODUCTION
    tables = [_TABLES]
    kills = ""
    for name, attack in ATTACKS.items():
        runs = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob(f"{name}*.json")]
        if not runs:
            continue
        runs.sort(key=lambda run: (run["date"], run["seed"]))
        rows = [row for run in runs for row in run["rows"]]
        tried = sum(row["tried"] for row in rows)
        failed = sum(row["failed"] for row in rows)
        summary += f"| {attack.title} | {attack.tried} | {attack.promise} | {tried:,} | {failed:,} |\n"
        tables.append(_section(attack.title, runs))
        if name == "peers":
            cells = [_cells(each, runs) for each in dict.fromkeys(row["attack"] for row in rows)]
            kills = _KILLS + "".join(f"| {what} | {number} | {outcome} |\n" for what, number, _, outcome in cells)
    way_on = "\nNext: [performance](performance.md) · [conformance](conformance.md) · [concepts](concepts.md)\n"
    tables.append("Next: [reliability](../reliability.md)\n")
    return {PAGE: summary + _AFTER + kills + way_on, TABLES: "\n".join(tables)}


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
    """Write the pages, or compare them with ``--check``."""
    made = pages()
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
