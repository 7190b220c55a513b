"""``tachograph runs delete``, and the question that it shares with ``prune``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph.cli.command_line import FAILED, WRONG_USAGE, Parser, add_store, add_yes, fail, parser, reason
from tachograph.identity.environment import store
from tachograph.runs import delete_run_files, find_run, format_size, printable, run_files

IN_USE = "it is still being recorded"


def command(arguments: Sequence[str]) -> int:
    """Delete runs, and return the exit code: 1 if one could not be deleted, 2 for wrong usage.

    A run that cannot be deleted does not keep the others from being deleted.
    """
    options = build_parser().parse_args(arguments)
    folder = options.store or store(os.environ)
    paths: dict[str, Path] = {}
    code = 0
    for name in dict.fromkeys(options.runs):
        try:
            paths[name] = find_run(name, folder)
        except (LookupError, OSError) as error:
            code = fail("runs delete", reason(error), FAILED)
    sizes = {name: _size(path) for name, path in paths.items()}
    if not paths:
        return code
    if not options.yes and not confirm("runs delete", list(paths), sum(sizes.values())):
        return WRONG_USAGE
    for name, path in paths.items():
        if problem := delete_run(path):
            code = fail("runs delete", f"{name}: {problem}", FAILED)
        else:
            sys.stdout.write(f"deleted {printable(name)} ({format_size(sizes[name])})\n")
    return code


def confirm(command: str, names: Sequence[str], size: int) -> bool:
    """Ask on the terminal whether to delete runs; without a terminal, say that ``--yes`` is needed."""
    if not sys.stdin.isatty():
        fail(command, "cannot ask for confirmation without a terminal; use --yes", WRONG_USAGE)
        return False
    count = f"{len(names)} run{'s' * (len(names) > 1)} ({format_size(size)})"
    sys.stdout.write(f"Delete {printable(names[0]) if len(names) == 1 else count}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def delete_run(path: Path) -> str:
    """Delete a run's files, and return why that failed, or an empty string."""
    try:
        return "" if delete_run_files(path) else IN_USE
    except FileNotFoundError:  # somebody else has deleted it
        return ""
    except OSError as error:
        return str(error.strerror)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in run_files(path) if file.exists())


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs delete", "Delete runs. Runs that are still being recorded are never deleted.")
    built.add_argument("runs", nargs="+", metavar="RUN", help="The ids of the runs")
    add_yes(built)
    add_store(built)
    return built
