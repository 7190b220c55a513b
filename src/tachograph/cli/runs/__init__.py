"""``tachograph runs``: everything about stored runs, one module per subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from tachograph.cli.command_line import Command, dispatch, group_parser

SUBCOMMANDS = {
    "list": Command("tachograph.cli.runs.list", "List runs, newest first"),
    "show": Command("tachograph.cli.runs.show", "Show a run: state, configuration, processes, metrics, losses"),
    "export": Command(
        "tachograph.cli.runs.export", "Write the points of runs as CSV, JSON lines, Parquet or TensorBoard"
    ),
    "import": Command("tachograph.cli.runs.import_", "Import runs that TensorBoard recorded"),
    "share": Command("tachograph.cli.runs.share", "Write a run's page as one HTML file"),
    "edit": Command("tachograph.cli.runs.edit", "Set a run's name, notes and tags"),
    "delete": Command("tachograph.cli.runs.delete", "Delete runs"),
    "prune": Command("tachograph.cli.runs.prune", "Delete old runs by age, number or size"),
}


def command(arguments: Sequence[str]) -> int:
    """Run a subcommand, and return its exit code; 2 for wrong usage."""
    return dispatch("tachograph runs", SUBCOMMANDS, arguments, build_parser())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser whose help lists the subcommands."""
    return group_parser("tachograph runs", SUBCOMMANDS, "Work with the runs in a store.")


def subcommand_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand by its name."""
    return {name: import_module(command.module).build_parser() for name, command in SUBCOMMANDS.items()}
