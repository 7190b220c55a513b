"""``tachograph runs prune``."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Parser,
    add_store,
    add_yes,
    duration,
    fail,
    number,
    parser,
    print_errors,
)
from tachograph.cli.runs.delete import confirm, delete_run
from tachograph.runs import format_overview, format_size, list_runs, runs_to_prune

_BYTES_IN = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@print_errors("runs prune")
def command(arguments: Sequence[str]) -> int:
    """Delete old runs, and return the exit code: 1 if one could not be deleted, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    if options.older_than is options.keep is options.max_size is None:
        raise ValueError("choose what to delete: --older-than, --keep or --max-size")
    rules = {"older": options.older_than, "keep": options.keep, "size": options.max_size}
    runs = runs_to_prune(list_runs(options.store), time.time_ns(), **rules)
    if not runs:
        sys.stdout.write("no runs to delete\n")
        return 0
    sys.stdout.write(format_overview(runs[::-1]))
    size = sum(run.size for run in runs)
    if not options.yes and not confirm("runs prune", [run.id for run in runs], size):
        return WRONG_USAGE
    problems = {run.path: problem for run in runs if (problem := delete_run(run.path))}
    for path, problem in problems.items():
        fail("runs prune", f"{path}: {problem}", FAILED)
    deleted = [run for run in runs if run.path not in problems]
    sys.stdout.write(f"deleted {len(deleted)} ({format_size(sum(run.size for run in deleted))})\n")
    return FAILED if problems else 0


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "runs prune", "Delete runs by age, number or size. Runs that are still being recorded are never deleted."
    )
    add = built.add_argument
    add(
        "--older-than",
        type=duration,
        metavar="AGE",
        help="Delete runs that have received nothing for AGE (for example 30d or 12h)",
    )
    add("--keep", type=_count, metavar="N", help="Delete all but the N newest runs")
    add(
        "--max-size",
        type=_size,
        metavar="SIZE",
        help="Delete the oldest runs until the store is smaller than SIZE (for example 10G or 500M)",
    )
    add_yes(built)
    add_store(built)
    return built


def _count(value: str) -> int:
    return number(value, "a number of runs")


def _size(value: str) -> int:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)(?:i?B)?", value)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 10G, not {value!r:.100}")
    return int(float(match[1]) * _BYTES_IN[match[2]])
