"""``tachograph runs list``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tachograph.cli.command_line import WRONG_USAGE, Parser, add_json, add_store, fail, parser, print_errors
from tachograph.identity.environment import store
from tachograph.runs import (
    RUN_FACTS,
    FilterError,
    choose_runs,
    columns_as_json,
    format_columns,
    format_overview,
    list_runs,
    printable,
    write_jsonl,
)


@print_errors("runs list")
def command(arguments: Sequence[str]) -> int:
    """Print the runs of a store, and return the exit code: 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    try:
        return _print_runs(options)
    except FilterError as error:
        code = fail("runs list", f"--filter: {error}", WRONG_USAGE)
        sys.stderr.write(f"  {printable(options.filter)}\n  {' ' * error.position}^\n")
        return code


def _print_runs(options: argparse.Namespace) -> int:
    required_tags = set(options.tag)
    stored = list_runs(options.store)[::-1]
    tagged = [run for run in stored if required_tags <= set(run.tags)]
    columns = options.columns or (RUN_FACTS if options.json else ())
    rows = choose_runs(tagged, columns, wanted=options.filter, sort=options.sort, reverse=options.reverse)
    if options.json:
        write_jsonl((columns_as_json(row) for _, row in rows), sys.stdout)
    elif not rows:
        folder = printable(str(options.store or store(os.environ)))
        none = f"none of the {len(stored):,} runs in {folder} matches" if stored else f"no runs in {folder}"
        sys.stdout.write(f"{none}\n")
    elif columns:
        sys.stdout.write(format_columns([row for _, row in rows]))
    else:
        sys.stdout.write(format_overview([run for run, _ in rows]))
    sys.stdout.flush()
    return 0


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs list", "List the runs of a store, newest first.")
    add = built.add_argument
    add(
        "--filter",
        metavar="FILTER",
        default="",
        help="Only runs that match, for example 'loss < 0.3 tag:sweep -state:failed' (see docs/runs.md)",
    )
    add(
        "--tag",
        action="append",
        default=[],
        metavar="NAME",
        help="Only runs with this tag (repeat it to require several)",
    )
    of = (
        f"Columns to show: {', '.join(RUN_FACTS)}, a metric, or a key of the configuration, results or program. "
        "in_use: a hub is recording the run; problem: why its file cannot be read "
        "(default: name, state, start, duration, last loss, and the configuration keys that differ)"
    )
    add("--columns", type=_columns, metavar="COLUMN,...", help=of)
    add(
        "--sort",
        metavar="COLUMN",
        help="Sort by this column, shown or not; runs without a value come last (default: start, newest first)",
    )
    add("--reverse", action="store_true", help="Reverse the order")
    add_json(built, "Print one JSON object per line")
    add_store(built)
    return built


def _columns(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected column names separated by commas, not {value!r:.100}")
    return list(dict.fromkeys(names))
