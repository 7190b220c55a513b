"""``tachograph runs show``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tachograph.cli.command_line import FAILED, Parser, add_run, add_store, fail, parser, print_errors
from tachograph.runs.catalogue import opened
from tachograph.runs.export import shown


@print_errors("runs show")
def command(arguments: Sequence[str]) -> int:
    """Print what a run is made of, and return the exit code: 1 if its file is damaged, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    run = opened(options.run, options.store)
    sys.stdout.write(shown(run))
    sys.stdout.flush()
    return fail("runs show", f"{run.path} is damaged: {run.damage[0]}", FAILED) if run.damage else 0


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs show", "Show a run: state, configuration, processes, metrics, losses and events.")
    add_run(built)
    add_store(built)
    return built
