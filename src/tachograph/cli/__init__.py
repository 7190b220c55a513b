"""The command ``tachograph``: one module or package per command. Other packages use only :func:`main`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from tachograph.cli.command_line import Command, dispatch, group_parser
from tachograph.cli.runs import SUBCOMMANDS
from tachograph.exporters.standard_streams import encode_any_text, hold_descriptors
from tachograph.identity.program import interpreter
from tachograph.version import __version__

COMMANDS = {
    "run": Command("tachograph.cli.run", "Run a job and record all of its processes"),
    "studio": Command("tachograph.cli.studio", "Open the runs of a store in the browser"),
    "top": Command("tachograph.cli.top.command", "Watch a run in the terminal"),
    "runs": Command("tachograph.cli.runs", "List, show, export, import, share, edit, delete and prune runs"),
    "diagnose": Command("tachograph.cli.diagnose.command", "Explain why a run is slow or which rank hangs"),
    "doctor": Command("tachograph.cli.doctor.command", "Check the installation and every configured destination"),
    "init": Command("tachograph.cli.init", "Write configuration files for Prometheus, Grafana, Kubernetes, Slurm …"),
    "resend": Command("tachograph.cli.resend.command", "Send spooled telemetry and JSON lines again"),
    "hub": Command("tachograph.cli.hub", "Run a hub by itself: receive OTLP, store it, serve /metrics"),
}
_EXAMPLES = """\
examples:
  tachograph run -- torchrun --nproc-per-node 8 train.py    record a job and watch it live
  tachograph studio                                         see all runs in the browser
  tachograph top                                            watch the newest run in the terminal
  tachograph runs list --filter 'loss < 0.3 -state:failed'  find runs
  tachograph runs export RUN --output loss.csv              export a run's points as CSV
  tachograph init prometheus                                set up scraping, alerts and dashboards"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code of the process; 2 for wrong usage.

    Args:
        arguments: the command line after the program's name; by default that of this process.
    """
    if arguments is None and sys.getfilesystemencoding() == "ascii":
        _begin_in_utf8_mode()
    hold_descriptors()
    encode_any_text()
    words = list(sys.argv[1:] if arguments is None else arguments)
    of_runs = {name: f"runs {name}" for name in SUBCOMMANDS}
    return dispatch("tachograph", COMMANDS, words, _parser(), of_runs)


def _begin_in_utf8_mode() -> None:
    """Execute this command line again, in the UTF-8 mode of Python; go on without it if that cannot be had.

    In a C locale with PYTHONUTF8=0, the interpreter refuses the names of most paths and runs. The environment stays as
    it is, and with it the locale of a job.
    """
    with contextlib.suppress(RuntimeError, OSError):
        os.execv(interpreter(), [interpreter(), "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - no shell, on purpose


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the words and the parser of each command, a group before its commands; for the documentation."""
    for name, command in COMMANDS.items():
        module = import_module(command.module)
        yield f"tachograph {name}", module.build_parser()
        for subcommand, parser in getattr(module, "subcommand_parsers", dict)().items():
            yield f"tachograph {name} {subcommand}", parser


def _parser() -> argparse.ArgumentParser:
    description = "Record what training runs do, and export it as OpenTelemetry."
    parser = group_parser("tachograph", COMMANDS, description, _EXAMPLES)
    parser.add_argument("--version", action="version", version=f"tachograph {__version__}")
    return parser
