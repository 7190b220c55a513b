"""``tachograph runs show``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Parser,
    add_run,
    add_store,
    fail,
    parser,
    reason,
    stop_output,
)
from tachograph.runs.catalogue import opened
from tachograph.runs.export import printable, shown


def command(arguments: Sequence[str]) -> int:
    """Print what a run is made of, and return the exit code: 1 if its file is damaged, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    try:
        run = opened(options.run, options.store)
        sys.stdout.write(shown(run))
        sys.stdout.flush()
    except BrokenPipeError:
        return stop_output()
    except (LookupError, ValueError, OSError) as error:
        return fail("runs show", printable(reason(error)), WRONG_USAGE)
    if run.damage:
        return fail("runs show", printable(f"{run.path} is damaged: {run.damage[0]}"), FAILED)
    return 0


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs show", "Show a run: state, configuration, processes, metrics, losses and events.")
    add_run(built)
    add_store(built)
    return built
