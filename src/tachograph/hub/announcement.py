"""The hub's announcement to the process that started it: JSON lines on an inherited descriptor, words on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from tachograph.runs import Loss, describe_losses

_MOST_HANGS, _MOST_WORDS = 30, 1500  # lines, and characters of one: a pipe holds 64 KiB


class Announcement:
    """Lines of JSON, one when the hub listens, one a hang, and one at its end; the same in words on stderr.

    Args:
        descriptor: for the JSON; None for none.
        quiet: on stderr, only the error of a failed start.

    Raises:
        OSError: the descriptor is not open.
    """

    def __init__(self, descriptor: int | None, *, quiet: bool) -> None:
        if descriptor is not None:
            os.fstat(descriptor)
        self._descriptor = descriptor
        self._quiet = quiet
        self._hangs = 0

    def started(self, url: str, summary: Mapping[str, Any], *, owns: bool) -> bool:
        """Announce the hub's address, and its store; return False where the process that has started it hears nothing.

        Args:
            url: its address.
            summary: of the hub.
            owns: it has a run of its own.
        """
        heard = self._write({"url": url, "pid": os.getpid(), "store": summary["store"], "run": summary["run"]})
        if not self._quiet:
            _say(f"live at {url}/ (metrics at {url}/metrics), send OTLP over HTTP to {url}")
            _say(f"{'run ' + summary['run'] + ',' if owns else 'runs are'} stored in {summary['store']}")
        return heard

    def hang(self, line: str) -> None:
        """Announce a hang, or its end: a few of them, so that a pipe without a reader is never full."""
        self._hangs += 1
        if self._hangs <= _MOST_HANGS:
            self._write({"hang": line[:_MOST_WORDS]})
        if not self._quiet:
            _say(line)

    def lingers(self, seconds: float) -> None:
        """Announce that the page stays for a last scrape."""
        self._write({"lingers": seconds})
        if not self._quiet:
            _say(f"still serving the last values for up to {seconds:g} s (signal again to stop now)")

    def ended(self, summary: Mapping[str, Any]) -> None:
        """Announce the end, with the points and events that are kept, and those that are lost."""
        self._write(summary)
        if not self._quiet:
            lost = f"; {len(summary['lost'])} processes lost" if summary["lost"] else ""
            losses = [Loss(each["reason"], each["destination"], each["points"]) for each in summary["losses"]]
            kept = f"stored {summary['points']:,} points and {summary['events']:,} events"
            _say(f"{kept}, {f'lost: {describe_losses(losses)}' if losses else 'none lost'}{lost}")

    def failed(self, why: str, *, lacks: str = "") -> None:
        """Announce why there is no hub; ``lacks`` is the package without which there can be none."""
        self._write({"error": why, "lacks": lacks} if lacks else {"error": why})
        _say(why)

    def _write(self, record: Mapping[str, Any]) -> bool:
        try:
            if self._descriptor is not None:
                os.write(self._descriptor, json.dumps(record).encode() + b"\n")
        except OSError:  # the reader is gone
            return False
        return True


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"tachograph hub: {line}\n")
        sys.stderr.flush()
