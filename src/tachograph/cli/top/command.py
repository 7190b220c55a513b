"""``tachograph top``: its command line."""

from __future__ import annotations

import argparse
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser
from tachograph.cli.top.choice import SORTS, Choice, WrongFilter, compiled
from tachograph.cli.top.picture import Picture
from tachograph.cli.top.source import TOKEN, Asking, Away, HubRefused, RunSource
from tachograph.identity.environment import clean, text
from tachograph.identity.extra import install_command
from tachograph.identity.resource import store

DEFAULT_HUB = "http://127.0.0.1:4318"
HUB = "TACHOGRAPH_HUB"
_WIDTH = 120  # of the text where there is no terminal
_LEAST, _MOST = 0.1, 3600.0


def command(arguments: Sequence[str]) -> int:
    """Show a run, and return the exit code: 1 where it cannot be read now, 2 for wrong usage and unknown runs."""
    options = _parser().parse_args(arguments)
    try:
        from rich.text import Text  # noqa: F401 - it is there, or this is not for this machine
    except ModuleNotFoundError:
        return _fail(f"rich is missing: {install_command('top')}", WRONG_USAGE)
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
            raise ValueError("give a hub's address or --store, not both")
        from tachograph.cli.top.stored import StoredRun

        return StoredRun(options.store, run, options.interval)
    from tachograph.cli.top.served import ServedRun

    return ServedRun(Asking(options.url or default_hub(), text(os.environ, TOKEN) or None), run)


def default_hub() -> str:
    """Return the address of the hub that the environment names, else that of the first one on a machine."""
    # Within `tachograph run` the variable says only that the endpoint is a hub: see tachograph.cli._job.
    named = text(os.environ, HUB)
    return (text(os.environ, "TACHOGRAPH_ENDPOINT") if named == "1" else named) or DEFAULT_HUB


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
        more = "" if options.store else f"; --store {store(os.environ)} shows a run that has ended"
        return _fail(f"{error}{more}", FAILED)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # the border to another version's answers
        return _fail(f"what {source.where} says is not understood: {type(error).__name__}: {error}", FAILED)
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
    except BrokenPipeError:  # the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return 0


def _never_fails(stream: object) -> None:
    """Let a stream write a question mark for a character that its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def _fail(why: str, code: int) -> int:
    from tachograph.cli.top.legible import printable

    return fail("top", printable(why, 1000), code)


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "top",
        "Show a run in this terminal, live: progress, metrics, functions, events, and what was lost.",
        f"Beyond loopback a hub wants its token: set {TOKEN}.",
    )
    add = made.add_argument
    add("url", nargs="?", metavar="URL", help=f"of the hub (default: {HUB}, else {DEFAULT_HUB})")
    add("--run", metavar="ID", help="the run's id (default: the hub's own, else the newest)")
    add("--store", type=Path, metavar="DIR", help="read from this store instead: no hub is needed")
    add("--ranks", action="store_true", help="a row for each rank of a metric (r changes it)")
    add("--sort", choices=SORTS, default=SORTS[0], help="order of the metrics (s changes it; default: as charted)")
    add(
        "--filter",
        metavar="TEXT",
        default="",
        help="only metrics and functions with this in their names: a text, or a regular expression (/ changes it)",
    )
    add("--once", action="store_true", help="print it once, as where there is no terminal")
    add(
        "--interval", type=_seconds, default=2.0, metavar="S", help="seconds between two drawings (default %(default)g)"
    )
    return made


def _seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not _LEAST <= found <= _MOST:
        raise argparse.ArgumentTypeError(f"seconds are a number from {_LEAST:g} to {_MOST:g}, not {given!r:.100}")
    return found
