"""``tachograph studio``: its command line."""

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

from tachograph.cli._command_line import WRONG_USAGE, fail, parser, port, reason
from tachograph.exporters.standard_streams import never_fail
from tachograph.identity.resource import store

_DESCRIPTION = "Show the runs of a store in the browser, live and finished; without --write they are only read."


def command(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code: 2 where it could not start."""
    never_fail()
    options = _parser().parse_args(arguments)
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
            _say(_shows(server.url, folder, token, write_token))
        await serving


def _shows(url: str, folder: Path, token: str | None, write_token: str | None) -> str:
    if write_token is None:
        return f"{url}/ shows the runs in {folder}; they are only read"
    if write_token == token:
        return f"{url}/ shows the runs in {folder}; with the token the page changes them"
    # A browser sends to no server what follows the #.
    return f"{url}/#token={write_token} shows the runs in {folder}; with this link the page changes them"


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"tachograph studio: {line}\n")
        sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    made = parser("studio", _DESCRIPTION)
    add = made.add_argument
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: TACHOGRAPH_STORE)")
    add("--port", type=port, metavar="N", help="0 for any free one (default: 4400, or the next free one)")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s); others need a token")
    add("--token-file", type=Path, metavar="FILE", help="a browser must give this token (else TACHOGRAPH_HUB_TOKEN)")
    write = "let the page tag, note, name and delete runs: with the link that is printed, or the token of --token-file"
    add("--write", action="store_true", help=write)
    return made
