"""The command line of ``tachograph run``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tachograph.cli.command_line import seconds
from tachograph.exporters.otlp.settings import read_otlp_settings
from tachograph.identity.environment import Setting

INTERVAL = 1.0
_OF_THE_HUB = ("port", "store", "linger", "forward")


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, and in ``command`` what is to be run: what follows ``--``, or the first word.

    Raises:
        SystemExit: wrong usage (2), said on stderr; or ``--help`` (0).
    """
    parser = _parser()
    own, command = _split(parser, arguments)
    options = parser.parse_args(own)
    options.command = command
    if not command:
        parser.error("what shall be run? tachograph run -- torchrun … train.py")
    _check(parser, options)
    return options


def _split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    flags = {word for action in parser._actions if action.nargs == 0 for word in action.option_strings}  # noqa: SLF001
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if argument == "--":
            return list(arguments[:place]), list(arguments[place + 1 :])
        if not argument.startswith("-"):
            break
        place += 1 if "=" in argument or argument in flags else 2
    return list(arguments[:place]), list(arguments[place:])


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.endpoint is not None:
        for name in _OF_THE_HUB:
            if getattr(options, name) is not None:
                parser.error(f"--{name} is for the hub, and there is none with --endpoint")
        try:
            read_otlp_settings("metrics", {}, endpoint=options.endpoint)
        except ValueError as error:
            parser.error(str(error).replace("endpoint=", "--endpoint", 1))
    if options.run_id is not None and not options.run_id.strip():
        parser.error("--run-id must not be empty")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tachograph run",
        usage="tachograph run [options] -- command …",
        description="Run a job with telemetry in each of its Python processes, and with no change to its code.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--endpoint", metavar="URL", help="send OTLP there, and start no hub; or set OTEL_EXPORTER_OTLP_ENDPOINT")
    add("--run-id", metavar="ID", help="the run's id; by default the launcher's or scheduler's, or a new one")
    add("--port", type=_port, metavar="N", help="the hub's port; by default 4318, or the next free one")
    add("--store", type=Path, metavar="DIR", help="the folder where the hub stores runs")
    add("--linger", type=seconds, metavar="S", help="seconds that the hub stays after the job")
    add("--forward", metavar="URL", help="have the hub send everything on to this OTLP endpoint")
    add("--interval", type=_interval, metavar="S", help="seconds between two exports of a process; 1")
    profile = "profile functions: package.module:Class.method, with wildcards; may be repeated"
    add("--prof", type=_pattern, action="append", default=[], metavar="PATTERN", help=profile)
    add("--instrument", choices=("own", "all"), default="own", help="all: load other installed instrumentors, too")
    add("--wait-counters", action="store_true", help="measure torch's WaitCounters, too")
    add("--quiet", action="store_true", help="print nothing")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what was wrong in one line, and exit."""
        self.exit(2, f"tachograph run: {message}\n")


def _pattern(value: str) -> str:
    from tachograph.instrumentation.profiles import parse

    try:
        return str(parse(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--prof is ")) from None


def _port(value: str) -> int:
    try:
        return Setting("--port=", int(value)).port()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _interval(value: str) -> float:
    try:
        return Setting("--interval=", float(value)).seconds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
