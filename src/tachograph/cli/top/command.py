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
from tachograph.cli.hub_client import (
    DEFAULT_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    HubClient,
    OtherServerError,
    RefusedError,
    UnavailableError,
)
from tachograph.cli.top.choice import SORTS, Choice, PatternError, compile_filter
from tachograph.cli.top.source import RunSource, ServedRuns, StoredRuns
from tachograph.cli.top.state import MALFORMED, RunFollower, RunView
from tachograph.identity.environment import JOB_HUB, clean, store, text
from tachograph.identity.extra import install_command

_WIDTH = 120  # of the text where there is no terminal
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 3600.0  # seconds


def command(arguments: Sequence[str]) -> int:
    """Show a run, and return the exit code: 1 if it cannot be read now, 2 for wrong usage and unknown runs."""
    options = build_parser().parse_args(arguments)
    try:
        from rich.text import Text  # noqa: F401 - it is there, or this is not for this machine
    except ModuleNotFoundError:
        return _fail(f"rich is not installed; run: {install_command('top')}", WRONG_USAGE)
    try:
        compile_filter(options.filter)
    except PatternError as error:
        return fail("top", str(error), WRONG_USAGE, more_lines=error.marked)
    try:
        source = _source(options)
    except ValueError as error:
        return _fail(str(error), WRONG_USAGE)
    run = clean(options.run or "") or None
    choice = Choice(options.filter, options.sort, options.ranks)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a question mark for a character that its encoding lacks
    is_screen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if options.once or not is_screen:
        return _print_once(source, run, choice, is_store=options.store is not None)
    from tachograph.cli.top.screen import Screen

    screen = Screen(source, run, interval=options.interval, choice=choice)
    screen.show()
    return _fail(screen.refused, WRONG_USAGE) if screen.refused else 0


def _source(options: argparse.Namespace) -> RunSource:
    """Return what the command line or the environment names; else the hub, or the store if none answers."""
    if options.store is not None:
        if options.url is not None:
            raise ValueError("use either --url or --store, not both")
        return StoredRuns(options.store)
    hub = HubClient(options.url)
    is_named = options.url is not None or text(os.environ, JOB_HUB, URL_VARIABLE)
    if is_named or _is_there(hub):
        return ServedRuns(hub)
    hub.close()
    return StoredRuns(store(os.environ))  # the job has ended, and its hub with it


def _is_there(hub: HubClient) -> bool:
    """Tell whether a hub answers; a collector may listen on the same port."""
    try:
        hub.get("/api/runs")
    except (UnavailableError, OtherServerError):
        return False
    except RefusedError:
        return True  # it requires a token
    return True


def _print_once(source: RunSource, run: str | None, choice: Choice, *, is_store: bool) -> int:
    follower = RunFollower(source, run)
    try:
        follower.update()
    except RefusedError as error:
        return _fail(str(error), WRONG_USAGE)
    except UnavailableError as error:
        more = "" if is_store else f"; to watch a run that has ended, use --store {store(os.environ)}"
        return _fail(f"{error}{more}", FAILED)
    except MALFORMED as error:
        return _fail(f"unexpected response from {source.where}: {type(error).__name__}: {error}", FAILED)
    return _print(follower.view, choice)


def _print(view: RunView, choice: Choice) -> int:
    from rich.console import Console

    from tachograph.cli.top.layout import draw_everything

    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    try:
        for line in draw_everything(view, time.time_ns(), width, choice):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    except BrokenPipeError:
        return stop_output()
    return 0


def _fail(why: str, code: int) -> int:
    from tachograph.cli.top.legible import printable

    return fail("top", printable(why, 1000), code)


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "top",
        "Watch a run in the terminal: faults, progress, metrics, functions, events and losses. Press q to quit.",
        f"{TOKEN_VARIABLE} has the token of a hub on another machine.",
    )
    add = built.add_argument
    add_run(built, default="the hub's run, else the newest of the store")
    add_url(built, f"The address of the hub (default: {URL_VARIABLE}, or {DEFAULT_URL})")
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
    if not _SHORTEST_INTERVAL <= seconds <= _LONGEST_INTERVAL:
        limits = f"from {_SHORTEST_INTERVAL:g}s to {_LONGEST_INTERVAL:g}s"
        raise argparse.ArgumentTypeError(f"expected a duration {limits}, not {value!r:.100}")
    return seconds
