"""A terminal that shows a run until somebody has seen enough."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from tachograph.cli.top.picture import Picture
from tachograph.cli.top.sections import sections
from tachograph.cli.top.sheet import seen, starts
from tachograph.cli.top.source import Source, keep_up

# ECMA-48 and xterm's "PC-Style Function Keys": in application mode the arrows begin with SS3.
_NAMES = {
    **dict.fromkeys(("[A", "OA", "k"), "up"),
    **dict.fromkeys(("[B", "OB", "j", "\r", "\n"), "down"),
    **dict.fromkeys(("[5~", "b", "\x02"), "page up"),
    **dict.fromkeys(("[6~", " ", "\x06"), "page down"),
    **dict.fromkeys(("[H", "OH", "[1~", "g"), "home"),
    **dict.fromkeys(("[F", "OF", "[4~", "G"), "end"),
    **dict.fromkeys(("q", "Q", "\x03", "\x04"), "quit"),
    **dict.fromkeys(("r", "R"), "ranks"),
    "\t": "next",
    "\x0c": "redraw",
}
_ONE = re.compile(r"\x1b([\[O][0-9;]*[A-Za-z~])|([^\x1b])", re.DOTALL)


def keys(typed: bytes) -> list[str]:
    """Return the names of the keys that were pressed; what is no key of ours is left out."""
    found = (match[1] or match[2] for match in _ONE.finditer(typed.decode("latin-1")))
    return [_NAMES[key] for key in found if key in _NAMES]


# xterm, "Control Sequences": the alternate screen, the cursor, and what is behind the cursor.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SOON = 0.2  # seconds, while nothing is known yet
_SMALLEST, _USUAL = (20, 4), (80, 24)
_COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}


class Screen:
    """Shows a run on this process's terminal.

    Args:
        source: of the run.
        picture: what is known already.
        interval: seconds between two drawings.
        by_rank: a row for each rank of a metric, to begin with.
    """

    def __init__(self, source: Source, picture: Picture, *, interval: float, by_rank: bool) -> None:
        self._source = source
        self._picture = picture
        self._interval = interval
        self._by_rank = by_rank
        self._first = 0
        self._page = 1
        self._ended = False
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._woken, self._wake = os.pipe()

    def show(self) -> None:
        """Draw until ``q``, Ctrl-C or SIGTERM, or until the run is refused."""
        stop = threading.Event()
        reading = threading.Thread(
            target=keep_up, args=(self._source, self._picture, stop), name="tachograph top", daemon=True
        )
        terminal = _Terminal()
        with self._signals():
            terminal.enter()
            try:
                reading.start()
                self._loop(terminal)
            except OSError:  # the terminal is gone
                pass
            finally:
                stop.set()
                terminal.leave()

    def _loop(self, terminal: _Terminal) -> None:
        drawn, due = None, 0.0
        while not self._ended and not self._picture.refused:
            state = self._state()
            now = time.monotonic()
            if state != drawn or now >= due:
                self._draw()
                drawn, due = self._state(), now + (self._interval if self._picture.about else _SOON)
            ready, _, _ = select.select([sys.stdin, self._woken], [], [], max(0.0, due - time.monotonic()))
            if self._woken in ready:
                for number in os.read(self._woken, 64):
                    self._signalled(number, terminal)
                drawn = None
            if sys.stdin in ready:
                typed = os.read(sys.stdin.fileno(), 1024)
                if not typed:  # the terminal is gone
                    return
                for key in keys(typed):
                    self._pressed(key)

    def _state(self) -> tuple[Any, ...]:
        return self._first, self._by_rank, self._picture.trouble

    def _signalled(self, number: int, terminal: _Terminal) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._ended = True
        elif number == signal.SIGTSTP:
            terminal.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            terminal.enter()

    def _pressed(self, key: str) -> None:
        if key == "quit":
            self._ended = True
        elif key == "ranks":
            self._by_rank = not self._by_rank
        elif key == "next":
            with self._picture.lock:
                places = starts(sections(self._picture, by_rank=self._by_rank))
            self._first = next((place for place in places if place > self._first), 0)
        else:
            step = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}.get(key, 0)
            far = {"home": 0, "end": sys.maxsize}
            self._first = far.get(key, max(0, self._first + step))

    def _draw(self) -> None:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        size = (columns, rows) if columns and rows else _USUAL  # some that programs make do not know
        width, height = (max(pair) for pair in zip(size, _SMALLEST, strict=True))
        self._page = max(1, height - 6)
        with self._picture.lock:
            lines, self._first = seen(
                self._picture, self._source.where, time.time_ns(), (width, height), self._first, by_rank=self._by_rank
            )
        written = f"{_REST_OF_LINE}\r\n".join(self._encoded(lines))
        sys.stdout.write(f"{_HOME}{written}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def _encoded(self, lines: Sequence[Text]) -> Iterator[str]:
        system = _COLOURS.get(self._console.color_system or "")
        for line in lines:
            yield "".join(
                segment.style.render(segment.text, color_system=system) if segment.style else segment.text
                for segment in line.render(self._console)
            )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes on a pipe: nothing is drawn or read in a handler."""

        def wake(number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, bytes([number]))

        os.set_blocking(self._wake, False)
        caught = (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)
        before = {number: signal.signal(number, wake) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(self._woken)


class _Terminal:
    """The alternate screen without echo, and the terminal as it was before."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(sys.stdin)

    def enter(self) -> None:
        """Take the terminal."""
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def leave(self) -> None:
        """Give it back, where it is still there."""
        with contextlib.suppress(OSError, termios.error):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
