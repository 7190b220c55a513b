"""The command ``tachograph``: one module a command, and this one, which hands over to it.

``run``, ``hub``, ``studio``, ``export``, ``diagnose``, ``doctor``, ``init`` and ``runs`` are files; ``checking``,
``replaying``, ``importing``, ``dashboards`` and ``top`` are folders, each with its ``command``. No other room uses
anything of this one but :func:`main`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from tachograph.cli._command_line import WRONG_USAGE
from tachograph.exporters.standard_streams import encode_any_text, hold_descriptors
from tachograph.identity.program import interpreter
from tachograph.version import __version__

# The module of each command, which has command(arguments) -> exit code, and its line in the help.
_COMMANDS = {
    "run": ("tachograph.cli.run", "run a job, and record all of its processes"),
    "hub": ("tachograph.cli.hub", "receive OTLP, keep it, and serve /metrics for a whole node"),
    "studio": ("tachograph.cli.studio", "show the runs of a store in the browser"),
    "check": ("tachograph.cli.checking.command", "send one test point to every destination that is configured"),
    "replay": ("tachograph.cli.replaying.command", "send what a spool or a JSON-lines file holds to an exporter"),
    "export": ("tachograph.cli.export", "write a run's points and events as CSV or JSON lines"),
    "import": ("tachograph.cli.importing.command", "take over runs that TensorBoard has recorded"),
    "init": ("tachograph.cli.init", "write files for Prometheus, Grafana, collectors, Compose, Kubernetes, Slurm …"),
    "dashboards": ("tachograph.cli.dashboards.command", "write dashboards for Grafana"),
    "top": ("tachograph.cli.top.command", "show a run in this terminal, live"),
    "doctor": ("tachograph.cli.doctor", "show who waits for whom in a job, and the stacks of its ranks"),
    "diagnose": ("tachograph.cli.diagnose", "say why a run is slow, and where its time went"),
    "runs": ("tachograph.cli.runs", "list, show, tag, note, name, delete and prune runs"),
}
_OF_RUNS = ("list", "show", "share", "prune", "delete", "tag", "note", "name")

_EXAMPLES = """\
six things that people do:
  tachograph run -- torchrun --nproc-per-node 8 train.py   record a job as it is, and draw it live
  tachograph studio                                        see all runs in the browser
  tachograph top                                           see the run in this terminal
  tachograph runs list --filter 'loss < 0.3 -state:failed' find runs again
  tachograph export RUN --format csv --output loss.csv     take a run's points along
  tachograph init prometheus --out prometheus              set up what scrapes, alerts and draws"""


def commands() -> dict[str, tuple[str, str]]:
    """Return the module of each command, and its line in the help."""
    return dict(_COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the process's exit code; 2 for wrong usage.

    Args:
        arguments: the command line behind the program's name; this process's own by default.
    """
    if arguments is None and sys.getfilesystemencoding() == "ascii":
        _begin_in_utf8_mode()
    hold_descriptors()
    encode_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _COMMANDS:
        module, _ = _COMMANDS[given[0]]
        return int(import_module(module).command(given[1:]))
    parser = _parser()
    if not given:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    if not given[0].startswith("-"):
        name = given[0].lower()
        near = [f"runs {name}"] if name in _OF_RUNS else difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_COMMANDS)}"
        sys.stderr.write(f"tachograph: there is no command {given[0]!r:.100}: {hint}\n")
        return WRONG_USAGE
    parser.parse_args(given[:1])
    return WRONG_USAGE


def _begin_in_utf8_mode() -> None:
    """Execute this command line again, in the UTF-8 mode of Python; go on without it if that cannot be had.

    In a C locale with PYTHONUTF8=0, the interpreter refuses the names of most paths and runs. The environment stays as
    it is, and with it the locale of a job.
    """
    with contextlib.suppress(RuntimeError, OSError):
        os.execv(interpreter(), [interpreter(), "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - no shell, on purpose


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:12}{line}" for name, (_, line) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="tachograph",
        usage="tachograph COMMAND [options]",
        description=f"Training telemetry on OpenTelemetry.\n\n{_EXAMPLES}\n\ncommands:\n{lines}",
        epilog="'tachograph COMMAND --help' says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tachograph {__version__}")
    return parser
