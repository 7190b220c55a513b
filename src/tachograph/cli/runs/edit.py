"""``tachograph runs edit``: a run's name, notes and tags."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from tachograph.cli.command_line import Parser, add_run, add_store, parser, print_errors
from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.catalogue import opened
from tachograph.runs.export import printable
from tachograph.runs.run import Run


@print_errors("runs edit")
def command(arguments: Sequence[str]) -> int:
    """Change a run's name, notes or tags, print them, and return the exit code: 2 for wrong usage."""
    run = _edit(build_parser().parse_args(arguments))
    for label, value in (("name", run.name), ("tags", ", ".join(run.tags)), ("notes", run.notes)):
        lines = f"{label}: {value or '-'}".split("\n")
        sys.stdout.write("".join(f"{printable(line.expandtabs())}\n" for line in lines))
    return 0


def _edit(options: argparse.Namespace) -> Run:
    changes = {
        "name": options.name,
        "notes": options.notes,
        "add": options.add_tag or None,
        "remove": options.remove_tag or None,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    if not changes:
        raise ValueError("nothing to change: give --name, --notes, --add-tag or --remove-tag")
    try:
        change = change_of(**changes)
    except ValueError as error:
        raise ValueError(_with_option_names(str(error))) from None
    run = opened(options.run, options.store)
    for tag in change.remove:
        if tag not in run.tags:
            nearest = get_close_matches(tag, run.tags, n=1) or run.tags
            has = ", ".join(map(repr, nearest)) or "none"
            raise LookupError(f"run {run.id!r} does not have the tag {tag!r} (it has {has})")
    annotate(run.path, change)
    return run


def _with_option_names(message: str) -> str:
    """Return an error message about an argument of ``change_of`` with the name of its option."""
    message = re.sub(r"^(add|remove)=", r"--\1-tag", message)
    return re.sub(r"^(\w+)=", r"--\1", message)


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs edit", "Set a run's display name, notes and tags. Its id stays the same.")
    add_run(built)
    add = built.add_argument
    add("--name", metavar="NAME", help="Set the display name; '' removes it")
    add("--notes", metavar="TEXT", help="Replace the notes; '' removes them")
    add("--add-tag", action="append", default=[], metavar="NAME", help="Add a tag (may be repeated)")
    add("--remove-tag", action="append", default=[], metavar="NAME", help="Remove a tag (may be repeated)")
    add_store(built)
    return built
