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

from tachograph.cli.command_line import WRONG_USAGE, Parser, add_store, fail, parser, port, reason
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
        started = asyncio.Event()
        serving = asyncio.create_task(server.serve(started))
        starting = asyncio.create_task(started.wait())
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if started.is_set():
            _print_address(server.url, folder, token, write_token)
        await serving


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
    add = built.add_argument
    add_store(built)
    add(
        "--host",
        default="127.0.0.1",
        help="The address to listen on; any other than loopback needs a token (default: %(default)s)",
    )
    add(
        "--port",
        type=port,
        metavar="N",
        help="The port to listen on; 0 for any free one (default: 4400, or the next free one)",
    )
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="Require the bearer token in this file on every request (default: the token in TACHOGRAPH_HUB_TOKEN)",
    )
    add(
        "--write",
        action="store_true",
        help="Let the page tag, rename and delete runs, with the printed link or the token",
    )
    return built
