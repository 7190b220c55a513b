"""One line about a long import, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from tachograph.exporters.event_file import EventFile
from tachograph.runs.export import printable

_REPORT_EVERY = 0.2  # seconds


class Progress:
    """A line that is written anew now and then, and cleared in the end; nothing where there is no terminal.

    Args:
        name: of the folder that is imported.
        terminal: where the line is written (default: standard error).
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, terminal: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = printable(name)
        self._out = sys.stderr if terminal is None else terminal
        self._shown, self._clock = self._out.isatty(), clock
        self._reported, self._width = clock(), 0

    def __call__(self, file: EventFile, points: int) -> None:
        """Report the file that is read, and the points of the run so far."""
        now = self._clock()
        if not self._shown or now - self._reported < _REPORT_EVERY:
            return
        self._reported = now
        part = 100 * file.place // max(file.size, 1)
        line = f"{self._name}: {points:,} points, {part} % of {printable(file.path.name)}"
        self._out.write(f"\r{line.ljust(self._width)}")
        self._out.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Clear the line."""
        if self._width:
            self._out.write(f"\r{' ' * self._width}\r")
            self._out.flush()
