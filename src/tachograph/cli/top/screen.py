"""The screen of ``top``: header, sections and footer on a terminal, until a key ends it."""

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
from textwrap import wrap
from types import FrameType
from typing import Any

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from tachograph.cli.top.legible import count, lasting, printable, shortened
from tachograph.cli.top.picture import Picture
from tachograph.cli.top.sections import Section, fitted, sections
from tachograph.cli.top.source import RunSource, keep_up

STATES = {
    "running": "green",
    "finished": "blue",
    **dict.fromkeys(("failed", "killed", "lost"), "red"),
    "unknown": "yellow",
}
KEYS = "q quit   ↑ ↓ PgUp PgDn scroll   Tab next table   r ranks"
_NANO = 1_000_000_000
_MOST_DAMAGE = 3
_WORDS = 400  # characters
_STANDING = 30  # the state and the time, which are to be seen behind a long name
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
# xterm, "Control Sequences": the alternate screen, the cursor, and the rest of the line.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SOON = 0.2  # seconds, while nothing is known yet
_SMALLEST, _USUAL = (20, 4), (80, 24)
_COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}


def header(picture: Picture, where: str, now: int, width: int) -> list[Text]:
    """Return the head above all sections.

    Args:
        picture: of the run.
        where: it is read from.
        now: nanoseconds since the epoch.
        width: of the terminal, in cells.
    """
    about = picture.about
    unknown = Text("no run" if picture.trouble else "reading ...", style="bold")
    lines = [_standing(picture, now, width) if about else unknown]
    program = f"{shortened(printable(about['program']), width // 2)}   " if about and about["program"] else ""
    place = printable(where, _WORDS)
    lines.append(Text(f"{program}{shortened(place, max(width - cell_len(program), _SMALLEST[0]))}", style="dim"))
    if about and about.get("ended", {}).get("failure"):
        lines += [Text(each, style="red") for each in wrap(printable(about["ended"]["words"], _WORDS), width)]
    lines += [Text(each, style="bold yellow") for each in wrap(printable(picture.trouble, _WORDS), width)]
    for each in picture.damage[:_MOST_DAMAGE]:
        lines += [Text(part, style="red") for part in wrap(f"damaged: {printable(each, _WORDS)}", width)]
    return lines


def _standing(picture: Picture, now: int, width: int) -> Text:
    about = picture.about
    state = str(about["state"])
    name = shortened(printable(about["id"]), max(width - _STANDING, _SMALLEST[0]))
    brief = about.get("ended", {}).get("brief", state)  # a hub of an earlier version does not say it
    line = Text.assemble((name, "bold"), "   ", (f"● {printable(brief)}", STATES.get(state, "default")), "   ")
    if picture.trouble and state == "running":
        line.append("when last heard   ", style="yellow")
    until = about["last"] if picture.trouble or state != "running" else now
    facts = [lasting((until - about["started"]) / _NANO), _many(about["ranks"], "rank")]
    facts += [_many(about["processes"], "process", "processes"), f"{count(about['points'])} points"]
    line.append("   ".join(facts))
    if about["restarts"]:
        line.append(f"   {_many(about['restarts'], 'restart')}", style="yellow")
    if lost := sum(bool(each["lost"]) for each in picture.processes):
        line.append(f"   {lost} lost: {_who_is_lost(picture)}", style="bold red")
    if points := sum(points for _, _, points in picture.losses()):
        line.append(f"   {count(points)} {'point' if points == 1 else 'points'} lost", style="yellow")
    return line


def _who_is_lost(picture: Picture) -> str:
    lost = [each for each in picture.processes if each["lost"]]
    named = [
        f"rank {each['rank']}" if each["rank"] is not None else printable(each["role"] or "?") for each in lost[:4]
    ]
    return ", ".join(named) + (" …" if len(lost) > len(named) else "")


def _many(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def height(found: Sequence[Section]) -> int:
    """Return how many lines sections take: of each a title and its rows, with an empty line between two."""
    return sum(len(section.rows) + 2 for section in found) - 1 if found else 0


def starts(found: Sequence[Section]) -> list[int]:
    """Return the line in which each section begins."""
    return [height(found[:place]) + (place > 0) for place in range(len(found))]


def body(found: Sequence[Section], width: int, *, first: int = 0, lines: int | None = None) -> Iterator[Text]:
    """Yield the lines of sections from ``first`` on; rows that are not seen are not made.

    Args:
        found: the sections.
        width: of the terminal, in cells.
        first: of the lines.
        lines: so many; None for all.
    """
    end = height(found) if lines is None else first + lines
    at = 0
    for section in found:
        size = len(section.rows) + 2
        if at < end and at + size > first:
            columns = fitted(section.columns, width)
            for place in range(max(0, first - at), min(size, end - at)):
                if place == 0:
                    yield _row([Text(each.title, "bold") for each in section.columns], section, columns)
                elif place <= len(section.rows):
                    yield _row(section.rows[place - 1](), section, columns)
                elif section is not found[-1]:
                    yield Text()
        at += size


def _row(cells: Sequence[Text | str], section: Section, columns: Sequence[tuple[int, int]]) -> Text:
    line = Text(no_wrap=True)
    for number, (place, width) in enumerate(columns):
        cell = cells[place]
        text = cell if isinstance(cell, Text) else Text(cell)
        if cell_len(text.plain) > width:
            text = text.copy()
            text.truncate(width, overflow="ellipsis")
        blank = " " * (width - cell_len(text.plain))
        right = section.columns[place].right
        if number:
            line.append(" ")
        if right:
            line.append(blank)
        line.append_text(text)
        if not right:
            line.append(blank)
    line.rstrip()
    return line


def everything(picture: Picture, where: str, now: int, width: int, *, by_rank: bool) -> Iterator[Text]:
    """Yield all lines, as ``--once`` prints them."""
    yield from header(picture, where, now, width)
    if found := sections(picture, by_rank=by_rank):
        yield Text()
        yield from body(found, width)


def seen(
    picture: Picture, where: str, now: int, size: tuple[int, int], first: int, *, by_rank: bool
) -> tuple[list[Text], int]:
    """Return the lines that a terminal shows, and the line of the sections that its first one is.

    Args:
        picture: of the run.
        where: it is read from.
        now: nanoseconds since the epoch.
        size: columns and lines of the terminal.
        first: the line of the sections that was asked for; the nearest one that there is is taken.
        by_rank: a row for each rank of a metric.
    """
    width, lines = size
    above = header(picture, where, now, width)
    found = sections(picture, by_rank=by_rank)
    room = max(lines - len(above) - 3, 1)
    total = height(found)
    first = max(0, min(first, total - room))
    shown = [*above, Text(), *body(found, width, first=first, lines=room)]
    shown = shown[: lines - 2]
    shown += [Text()] * (lines - 1 - len(shown))
    place = f"   lines {first + 1} to {min(first + room, total)} of {total}" if total > room else ""
    shown.append(Text(KEYS + place, style="dim"))
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown[-lines:], first


def keys(typed: bytes) -> list[str]:
    """Return the names of the keys that were pressed; other keys than ours are left out."""
    found = (match[1] or match[2] for match in _ONE.finditer(typed.decode("latin-1")))
    return [_NAMES[key] for key in found if key in _NAMES]


class Screen:
    """The screen of one run, on this process's terminal.

    Args:
        source: of the run.
        picture: of the run so far.
        interval: seconds between two drawings.
        by_rank: a row for each rank of a metric, to begin with.
    """

    def __init__(self, source: RunSource, picture: Picture, *, interval: float, by_rank: bool) -> None:
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
