"""``tachograph studio``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from secrets import token_urlsafe

from tachograph.cli._serving import serve
from tachograph.cli.command_line import (
    WRONG_USAGE,
    Parser,
    add_host_and_port,
    add_store,
    add_token_file,
    fail,
    parser,
    reason,
)
from tachograph.exporters.standard_streams import never_fail
from tachograph.identity.environment import store


def command(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code: 2 if it could not start."""
    never_fail()
    options = build_parser().parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except (OSError, ValueError) as error:
        return fail("studio", reason(error), WRONG_USAGE)
    return 0


async def _serve(options: argparse.Namespace) -> None:
    from tachograph.hub.guard import is_loopback, read_token
    from tachograph.hub.server import address_of, listen
    from tachograph.hub.studio_server import PORT, StudioServer
    from tachograph.runs.catalogue import existing_store

    folder = existing_store(options.store or store(os.environ))
    with listen(options.host, options.port, usual=PORT) as listener:
        token = read_token(options.token_file, os.environ, loopback=is_loopback(address_of(listener)[0]))
        write_token = (token or token_urlsafe()) if options.write else None
        server = StudioServer(folder, listener, token=token, write_token=write_token)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, server.stop)
        await serve(server.serve, lambda: _print_address(server.url, folder, token, write_token))


def _print_address(url: str, folder: Path, token: str | None, write_token: str | None) -> None:
    address = f"{url}/"
    access = "read-only"
    if write_token is not None and write_token == token:
        access = "with the token, the page can change runs"
    elif write_token is not None:
        address = f"{url}/#token={write_token}"  # a browser sends no server what follows the #
        access = "this link can change runs"
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"tachograph: Studio at {address} shows the runs in {folder} ({access})\n")
        sys.stderr.flush()


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("studio", "Open the runs of a store in the browser, live and finished ones. Press Ctrl-C to stop.")
    add_store(built)
    add_host_and_port(built, 4400)
    add_token_file(built)
    built.add_argument(
        "--write",
        action="store_true",
        help="Let the page tag, rename and delete runs, with the printed link or the token",
    )
    return built
