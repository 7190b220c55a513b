"""``tachograph hub``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tachograph.cli._serving import serve
from tachograph.cli.command_line import (
    WRONG_USAGE,
    Parser,
    add_host_and_port,
    add_store,
    add_token_file,
    duration,
    number,
    parser,
    port,
    reason,
)
from tachograph.exporters.standard_streams import never_fail
from tachograph.hub import Announcement
from tachograph.identity.environment import clean, setting, store, text
from tachograph.identity.launch import GIT_TIMEOUT, handed_launch
from tachograph.runs import StoreError, raise_descriptor_limit

DEFAULT_RUN = "default"
_TURN = 0.001  # seconds: an answer takes the interpreter four times from the threads that keep, save and render


def command(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM, SIGINT or the parent's end, and return the exit code: 2 where it could not start."""
    never_fail()
    options = build_parser().parse_args(arguments)
    if options.parent is not None:
        for number in (signal.SIGINT, signal.SIGHUP):  # they reach the whole process group; the parent decides
            signal.signal(number, signal.SIG_IGN)
    try:
        announcement = Announcement(options.announce, quiet=options.quiet)
    except OSError as error:
        Announcement(None, quiet=True).failed(f"--announce {options.announce}: {error.strerror}")
        return WRONG_USAGE
    raise_descriptor_limit()
    sys.setswitchinterval(_TURN)
    try:
        asyncio.run(_serve(options, announcement))
    except ImportError as error:
        missing = (error.name or "tachograph").partition(".")[0]
        if missing == "tachograph":
            raise
        announcement.failed(f"{missing}, a dependency of tachograph, cannot be imported: {error}", lacks=missing)
        return WRONG_USAGE
    except StoreError as error:
        announcement.failed(f"{reason(error)}; use --store to choose another folder")
        return WRONG_USAGE
    except (OSError, ValueError) as error:
        announcement.failed(reason(error))
        return WRONG_USAGE
    return 0


async def _serve(options: argparse.Namespace, announcement: Announcement) -> None:
    from tachograph.exporters.prometheus.target_file import TargetFile
    from tachograph.hub import HUB_PORT, Hub, HubServer, Lifetime, Node, address_of, is_loopback, listen, read_token
    from tachograph.identity.program import StartMarks

    asked = setting(os.environ, "", None, "TACHOGRAPH_SYSTEM_METRICS")
    launch = handed_launch(os.environ)
    with listen(
        options.host, options.port, usual=options.first_port or HUB_PORT, avoided=options.avoid_port
    ) as listener:
        host, url = address_of(listener)
        token = read_token(options.token_file, os.environ, loopback=is_loopback(host))
        name = clean(options.run_id or "") or text(os.environ, "TACHOGRAPH_RUN") or DEFAULT_RUN
        own = None if options.parent is None else name  # the run of the parent's job; a hub that stands alone has none
        marks = None if options.started is None else StartMarks(options.started)
        kept_in = options.store or store(os.environ)
        hub = Hub(kept_in, run=own, nameless=name, started=marks)
        target = TargetFile(kept_in, listener.getsockname(), hub.registry)
        completing: threading.Thread | None = None
        try:
            if launch is not None:
                hub.launched(launch)
                known = launch
                # Neither the job nor those who post to the hub wait for git.
                completing = threading.Thread(target=lambda: hub.launched(known.completed(os.environ)), daemon=True)
                completing.start()
            forwarding = None
            if options.forward is not None:
                from tachograph.hub import Forwarding

                forwarding = Forwarding(options.forward, hub.registry, store=kept_in)
            hub.doctors.tell = announcement.hang
            server = HubServer(hub, listener, token=token, forwarding=forwarding)
            observes = find_spec("psutil") is not None if asked is None else asked.boolean()
            node = Node(own, hub.folder) if observes else None
            lifetime = Lifetime(
                hub,
                server,
                forwarding,
                node=node,
                parent=options.parent,
                linger=options.linger,
                on_linger=announcement.lingers,
            )

            def announce() -> None:
                heard = announcement.started(url, hub.summary(), owns=own is not None)
                if not heard and options.parent is not None:  # it was interrupted, and will never ask it to end
                    lifetime.end()

            await serve(lifetime.live, announce)
            # The parent ends the hub when all processes have ended: one that has not said so by now never will.
            summary = {**hub.summary(at_the_end=options.parent is not None), **hub.kept()}
        finally:
            if completing is not None:
                completing.join(GIT_TIMEOUT + 1)
            target.remove()
            hub.close()
            if marks is not None and os.getppid() != options.parent:  # which else does it
                marks.close()
    announcement.ended(summary)


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "hub", "Run a hub by itself: receive OTLP over HTTP, store it, and serve /metrics for all processes."
    )
    add = built.add_argument
    add_host_and_port(built, 4318)
    add_store(built, "The folder to store runs in")
    run = f"The run id for telemetry that carries none (default: TACHOGRAPH_RUN, or {DEFAULT_RUN!r})"
    add("--run-id", metavar="ID", help=run)
    add_token_file(built)
    add("--forward", metavar="URL", help="Also send everything on to this OTLP/HTTP endpoint")
    linger = "How long to keep serving after Ctrl-C or SIGTERM (default: 0s, or 30s if Prometheus scrapes the hub)"
    add("--linger", type=duration, metavar="DURATION", help=linger)
    add("--quiet", action="store_true", help="Print nothing")
    # Set by `tachograph run` and by `start(hub=True)`.
    add("--parent", type=_pid, help=argparse.SUPPRESS)  # end with this process, and show only its run on /metrics
    add("--started", type=Path, help=argparse.SUPPRESS)  # the folder in which processes of the job mark their start
    add("--first-port", type=port, help=argparse.SUPPRESS)  # listen on this port, or the next free one
    add("--avoid-port", type=port, action="append", default=[], help=argparse.SUPPRESS)  # never listen on this port
    add("--announce", type=_descriptor, help=argparse.SUPPRESS)  # write JSON lines about start and end to it
    return built


def _pid(value: str) -> int:
    return number(value, "a process id")


def _descriptor(value: str) -> int:
    return number(value, "a file descriptor")
