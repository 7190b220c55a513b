"""The screen of ``top`` on a terminal: drawn again and again, until a key ends it."""

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

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from tachograph.cli.hub_client import RefusedError, UnavailableError
from tachograph.cli.top.choice import Choice, PatternError, compile_filter
from tachograph.cli.top.layout import SMALLEST, Viewport, draw_run_list, draw_screen
from tachograph.cli.top.sections import sections_of
from tachograph.cli.top.source import RunSource
from tachograph.cli.top.state import RunFollower
from tachograph.cli.top.tables import first_lines
from tachograph.studio.snapshot import Json

# ECMA-48 and xterm's "PC-Style Function Keys": in application mode the arrows begin with SS3.
_KEY_NAMES = {
    **dict.fromkeys(("[A", "OA", "k"), "up"),
    **dict.fromkeys(("[B", "OB", "j"), "down"),
    **dict.fromkeys(("\r", "\n"), "enter"),
    "\x1b": "escape",
    **dict.fromkeys(("[5~", "b", "\x02"), "page up"),
    **dict.fromkeys(("[6~", " ", "\x06"), "page down"),
    **dict.fromkeys(("[H", "OH", "[1~", "g"), "home"),
    **dict.fromkeys(("[F", "OF", "[4~", "G"), "end"),
    **dict.fromkeys(("q", "Q", "\x03", "\x04"), "quit"),
    **dict.fromkeys(("r", "R"), "ranks"),
    **dict.fromkeys(("s", "S"), "sort"),
    **dict.fromkeys(("l", "L"), "runs"),
    "/": "filter",
    "\t": "next",
    "\x0c": "redraw",
}
_KEY = re.compile(r"\x1b([\[O][0-9;]*[A-Za-z~])|(\x1b)$|([^\x1b])", re.DOTALL)
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
_CLEAR_LINE = "\x15"  # Ctrl-U
# xterm, "Control Sequences": the alternate screen, the cursor, and the rest of the line.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_USUAL_SIZE = (80, 24)
_COLORS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}


def keys(typed: bytes) -> list[str]:
    """Return the names of the keys that were pressed; unknown keys are left out."""
    pressed = (match[1] or match[2] or match[3] for match in _KEY.finditer(typed.decode("latin-1")))
    return [_KEY_NAMES[key] for key in pressed if key in _KEY_NAMES]


def letters(typed: bytes) -> list[str]:
    r"""Return the characters that were typed into a line; ``\n``, ``\b`` and ``\x1b`` for Enter, Backspace and Esc."""
    same = {"\r": "\n", "\x7f": "\b", "\x03": "\x1b"}
    text = _SEQUENCE.sub("", typed.decode(errors="ignore"))
    return [same.get(each, each) for each in text if each.isprintable() or each in f"\r\n\b\x7f\x1b\x03{_CLEAR_LINE}"]


class Screen:
    """The screen of one run, on this process's terminal.

    Args:
        source: of the run.
        run: its id; None for the one that the source would choose.
        interval: seconds between two updates.
        choice: among its rows, to begin with.
    """

    def __init__(self, source: RunSource, run: str | None, *, interval: float, choice: Choice) -> None:
        self._source = source
        self._follower = RunFollower(source, run)
        self._interval = interval
        self._choice = choice
        self._typed: str | None = None
        self._first = 0
        self._page = 1
        self._ended = False
        self._runs: list[Json] | None = None  # while one of them is being chosen
        self._chosen = 0
        self._list_trouble = ""
        self._stop = threading.Event()
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        # Never closed: the thread that follows the run may write to it until the process ends.
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    @property
    def refused(self) -> str:
        """In words, why the run cannot be shown; empty if it may be."""
        return self._follower.view.refused

    def show(self) -> None:
        """Draw until ``q``, Ctrl-C or SIGTERM, or until the run is refused."""
        terminal = _Terminal()
        with self._signals():
            terminal.enter()
            try:
                self._follow()
                self._loop(terminal)
            except OSError:  # the terminal is gone
                pass
            finally:
                self._stop.set()
                terminal.leave()

    def _follow(self) -> None:
        """Keep the view of the run up to date in a thread of its own."""
        self._stop = threading.Event()
        arguments = self._interval, self._stop, self._wake_up
        threading.Thread(target=self._follower.follow, args=arguments, name="tachograph top", daemon=True).start()

    def _wake_up(self) -> None:
        """Let the loop draw again; from any thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the screen is going to be drawn anyway
            os.write(self._wake, b"\0")

    def _loop(self, terminal: _Terminal) -> None:
        while not self._ended and not self.refused:
            self._draw()
            ready, _, _ = select.select([sys.stdin, self._woken], [], [], self._interval)
            if self._woken in ready:
                for number in os.read(self._woken, 64):
                    self._handle_signal(number, terminal)
            if sys.stdin in ready:
                typed = os.read(sys.stdin.fileno(), 1024)
                if not typed:  # the terminal is gone
                    return
                self._handle_input(typed)

    def _handle_input(self, typed: bytes) -> None:
        if self._typed is None:
            before, slash, typed = typed.partition(b"/") if self._runs is None else (typed, b"", b"")
            for key in keys(before + slash):
                self._handle_key(key)
        for letter in letters(typed):
            if self._typed is not None:
                self._edit_filter(self._typed, letter)

    def _edit_filter(self, text: str, letter: str) -> None:
        if letter == "\n":
            with contextlib.suppress(PatternError):  # it stays on the screen, marked
                compile_filter(text)
                self._choice = self._choice._replace(filter=text)
                self._typed = None
        elif letter == "\x1b":
            self._typed = None
        elif letter == _CLEAR_LINE:
            self._typed = ""
        else:
            self._typed = text[:-1] if letter == "\b" else text + letter
        self._first = 0

    def _list_runs(self) -> None:
        """List the runs; a thread of its own asks for them, as the source may not answer."""

        def ask() -> None:
            try:
                runs = self._source.ask("/runs")["runs"]
                if self._runs is None:  # the choice was left meanwhile
                    return
                self._list_trouble = "" if runs else "there is no run"
                shown = self._follower.view.snapshot
                ids = [run["id"] for run in runs]
                self._chosen = ids.index(shown.run.id) if shown is not None and shown.run.id in ids else 0
                self._runs = runs
            except (UnavailableError, RefusedError, LookupError, TypeError) as error:
                self._list_trouble = str(error)
            self._wake_up()

        self._runs = []
        self._chosen = 0
        self._list_trouble = "reading ..."
        threading.Thread(target=ask, name="tachograph runs", daemon=True).start()

    def _choose_run(self, key: str) -> None:
        """Handle a key while a run is being chosen."""
        runs = self._runs or []
        step = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page, "home": -len(runs)}
        if key == "enter" and runs:
            self._stop.set()
            self._follower = RunFollower(self._source, str(runs[self._chosen]["id"]))
            self._first = 0
            self._runs = None
            self._follow()
        elif key in {"quit", "escape", "runs"}:
            self._runs = None
        else:
            self._chosen = max(0, min(self._chosen + step.get(key, len(runs) * (key == "end")), len(runs) - 1))

    def _handle_signal(self, number: int, terminal: _Terminal) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._ended = True
        elif number == signal.SIGTSTP:
            terminal.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            terminal.enter()

    def _handle_key(self, key: str) -> None:
        if self._runs is not None:
            self._choose_run(key)
        elif key == "quit":
            self._ended = True
        elif key == "ranks":
            self._choice = self._choice._replace(by_rank=not self._choice.by_rank)
        elif key == "sort":
            self._choice = self._choice.with_next_sort()
        elif key == "filter":
            self._typed = self._choice.filter
        elif key == "runs":
            self._list_runs()
        elif key == "next":
            places = first_lines(sections_of(self._follower.view, self._choice))
            self._first = next((place for place in places if place > self._first), 0)
        else:
            step = {"up": -1, "down": 1, "enter": 1, "page up": -self._page, "page down": self._page}.get(key, 0)
            far = {"home": 0, "end": sys.maxsize}
            self._first = far.get(key, max(0, self._first + step))

    def _draw(self) -> None:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        size = (columns, rows) if columns and rows else _USUAL_SIZE  # a terminal that a program made may not know it
        width, height = (max(pair) for pair in zip(size, SMALLEST, strict=True))
        self._page = max(1, height - 6)
        if self._runs is not None:
            lines = draw_run_list(self._runs, self._chosen, (width, height), self._list_trouble)
        else:
            port = Viewport((width, height), self._first, self._choice, self._typed)
            lines, self._first = draw_screen(self._follower.view, time.time_ns(), port)
        written = f"{_REST_OF_LINE}\r\n".join(self._encoded(lines))
        sys.stdout.write(f"{_HOME}{written}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def _encoded(self, lines: Sequence[Text]) -> Iterator[str]:
        system = None if self._console.no_color else _COLORS.get(self._console.color_system or "")
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

        caught = (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)
        before = {number: signal.signal(number, wake) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Terminal:
    """The alternate screen without echo, and the terminal as it was before."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(sys.stdin)

    def enter(self) -> None:
        """Switch to the alternate screen."""
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def leave(self) -> None:
        """Restore the terminal, if it still exists."""
        with contextlib.suppress(OSError, termios.error):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
