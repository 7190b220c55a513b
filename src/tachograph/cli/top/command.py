"""``tachograph top``."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Parser,
    add_run,
    add_url,
    duration,
    fail,
    parser,
    stop_output,
)
from tachograph.cli.top.choice import SORTS, Choice, WrongFilter, compiled
from tachograph.cli.top.picture import Picture
from tachograph.cli.top.source import TOKEN, Asking, Away, HubRefused, RunSource
from tachograph.identity.environment import JOB_HUB, clean, store, text
from tachograph.identity.extra import install_command

DEFAULT_HUB = "http://127.0.0.1:4318"
HUB = "TACHOGRAPH_HUB"
_WIDTH = 120  # of the text where there is no terminal
_LEAST, _MOST = 0.1, 3600.0


def command(arguments: Sequence[str]) -> int:
    """Show a run, and return the exit code: 1 where it cannot be read now, 2 for wrong usage and unknown runs."""
    options = build_parser().parse_args(arguments)
    try:
        from rich.text import Text  # noqa: F401 - it is there, or this is not for this machine
    except ModuleNotFoundError:
        return _fail(f"rich is not installed; run: {install_command('top')}", WRONG_USAGE)
    try:
        compiled(options.filter)
    except WrongFilter as error:
        return fail("top", str(error), WRONG_USAGE)
    try:
        source = _source(options)
    except ValueError as error:
        return _fail(str(error), WRONG_USAGE)
    return _shown(source, options)


def _source(options: argparse.Namespace) -> RunSource:
    run = clean(options.run or "") or None
    if options.store is not None:
        if options.url is not None:
            raise ValueError("use either --url or --store, not both")
        from tachograph.cli.top.stored import StoredRun

        return StoredRun(options.store, run, options.interval)
    from tachograph.cli.top.served import ServedRun

    return ServedRun(Asking(options.url or default_hub(), text(os.environ, TOKEN) or None), run)


def default_hub() -> str:
    """Return the address of the hub that the environment names, else that of the first one on a machine."""
    return text(os.environ, JOB_HUB, HUB) or DEFAULT_HUB


def _shown(source: RunSource, options: argparse.Namespace) -> int:
    choice = Choice(options.filter, options.sort, options.ranks)
    once = options.once or not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb"
    _never_fails(sys.stdout)
    picture = Picture()
    if not once:
        from tachograph.cli.top.screen import Screen

        screen = Screen(source, picture, interval=options.interval, choice=choice)
        screen.show()
        return _fail(screen.refused, WRONG_USAGE) if screen.refused else 0
    try:
        source.fill(picture)
    except HubRefused as error:
        return _fail(str(error), WRONG_USAGE)
    except Away as error:
        more = "" if options.store else f"; to watch a run that has ended, use --store {store(os.environ)}"
        return _fail(f"{error}{more}", FAILED)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # the border to another version's answers
        return _fail(f"unexpected response from {source.where}: {type(error).__name__}: {error}", FAILED)
    finally:
        source.close()
    return _print(source, picture, choice)


def _print(source: RunSource, picture: Picture, choice: Choice) -> int:
    from rich.console import Console

    from tachograph.cli.top.layout import everything

    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    try:
        for line in everything(picture, source.where, time.time_ns(), width, choice):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    except BrokenPipeError:
        return stop_output()
    return 0


def _never_fails(stream: object) -> None:
    """Let a stream write a question mark for a character that its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def _fail(why: str, code: int) -> int:
    from tachograph.cli.top.legible import printable

    return fail("top", printable(why, 1000), code)


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "top",
        "Watch a run in the terminal: faults, progress, metrics, functions, events and losses. Press q to quit.",
        f"{TOKEN} has the token of a hub on another machine.",
    )
    add = built.add_argument
    add_run(built, default="the hub's run, else the newest")
    add_url(built, f"The address of the hub (default: {HUB}, or {DEFAULT_HUB})")
    add("--store", type=Path, metavar="DIR", help="Read from this store instead of a hub")
    add("--ranks", action="store_true", help="Show one row per rank of a metric (toggle with r)")
    add(
        "--sort",
        choices=SORTS,
        default=SORTS[0],
        help="The order of the metrics (change it with s; default: %(default)s)",
    )
    add(
        "--filter",
        metavar="TEXT",
        default="",
        help="Only metrics and functions whose names match a text or regular expression (change it with /)",
    )
    add("--once", action="store_true", help="Print once and exit, as without a terminal")
    add(
        "--interval", type=_interval, default=2.0, metavar="DURATION", help="The time between two updates (default: 2s)"
    )
    return built


def _interval(value: str) -> float:
    seconds = duration(value)
    if not _LEAST <= seconds <= _MOST:
        raise argparse.ArgumentTypeError(f"expected a duration from {_LEAST:g}s to {_MOST:g}s, not {value!r:.100}")
    return seconds
