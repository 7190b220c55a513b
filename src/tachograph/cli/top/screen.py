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
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from tachograph.cli.top.choice import SORTS, Choice, WrongFilter, compiled
from tachograph.cli.top.legible import count, lasting, printable, shortened
from tachograph.cli.top.picture import Json, Picture
from tachograph.cli.top.plots import plots
from tachograph.cli.top.sections import Section, fitted, sections
from tachograph.cli.top.source import Away, HubRefused, RunSource, keep_up

STATES = {
    "running": "green",
    "finished": "blue",
    **dict.fromkeys(("failed", "killed", "lost"), "red"),
    "unknown": "yellow",
}
KEYS = "q quit  ↑ ↓ PgUp PgDn scroll  Tab next table  r ranks  s sort  / filter  l runs"
_NANO = 1_000_000_000
_GRADES = ("waiting", "HANG")
_MOST_DAMAGE = 3
_WORDS = 400  # characters
_STANDING = 30  # the state and the time, which are to be seen behind a long name
# ECMA-48 and xterm's "PC-Style Function Keys": in application mode the arrows begin with SS3.
_NAMES = {
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
_ONE = re.compile(r"\x1b([\[O][0-9;]*[A-Za-z~])|(\x1b)$|([^\x1b])", re.DOTALL)
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
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
    if picture.hang is not None:
        loud, said = picture.hang["grade"] == "hang", printable(picture.hang["text"], 2 * _WORDS)
        lines += [
            Text(each, style="bold red" if loud else "yellow") for each in wrap(f"{_GRADES[loud]}: {said}", width)
        ]
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


def everything(picture: Picture, where: str, now: int, width: int, choice: Choice) -> Iterator[Text]:
    """Yield all lines, as ``--once`` prints them."""
    yield from header(picture, where, now, width)
    if found := sections(picture, choice):
        yield Text()
        yield from body(found, width)


class View(NamedTuple):
    """A part of a run's sections, as a terminal shows it.

    Attributes:
        size: columns and lines of the terminal.
        first: the line of the sections that was asked for; the nearest one that there is is taken.
        choice: among the rows.
        typed: a filter that is being typed; None while none is.
    """

    size: tuple[int, int]
    first: int
    choice: Choice
    typed: str | None = None


def seen(picture: Picture, where: str, now: int, view: View) -> tuple[list[Text], int]:
    """Return the lines that a terminal shows, and the line of the sections that its first one is.

    Args:
        picture: of the run.
        where: it is read from.
        now: nanoseconds since the epoch.
        view: of it.
    """
    width, lines = view.size
    choice = view.choice if view.typed is None else view.choice._replace(filter=view.typed)
    above = header(picture, where, now, width)
    found = sections(picture, choice)
    room = max(lines - len(above) - 3, 1)
    total = height(found)
    first = max(0, min(view.first, total - room))
    shown = [*above, Text(), *body(found, width, first=first, lines=room)]
    if total + 1 < room:
        shown += [Text(), *plots(choice.rows(picture.rows()), width, room - total - 1)]
    shown = shown[: lines - 2]
    shown += [Text()] * (lines - 1 - len(shown))
    place = f"lines {first + 1} to {min(first + room, total)} of {total}" if total > room else ""
    shown.append(_footer(choice, place, typing=view.typed is not None))
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown[-lines:], first


def _footer(choice: Choice, place: str, *, typing: bool) -> Text:
    """Return the last line: the keys, or the filter that is being typed, with a mark where it cannot be read."""
    if not typing:
        told = [f"sorted by {choice.sort}"] if choice.sort != SORTS[0] else []
        told += [f"filter {printable(choice.filter)}"] if choice.filter else []
        return Text("   ".join([*filter(None, [place, *told]), KEYS]), style="dim")
    line = Text.assemble(("/", "bold"), printable(choice.filter))
    try:
        compiled(choice.filter)
    except WrongFilter as error:
        at = 1 + len(printable(choice.filter[: error.place]))
        line.append(" ")
        line.stylize("bold reverse red", at, at + 1)
        line.append(f"  {error.why} at character {error.place + 1}", "red")
    else:
        line.append("   Enter takes it, Esc leaves it", "dim")
    return line


def listed(runs: Sequence[Json], chosen: int, size: tuple[int, int], trouble: str) -> list[Text]:
    """Return the lines of a list of runs of which one can be chosen.

    Args:
        runs: as the API lists them.
        chosen: the place of the one that is marked.
        size: columns and lines of the terminal.
        trouble: in words, why there is none.
    """
    width, lines = size
    room = max(lines - 3, 1)
    first = max(0, min(chosen - room // 2, len(runs) - room))
    shown = [Text(printable(trouble, _WORDS) or "RUNS", style="bold yellow" if trouble else "bold")]
    now = time.time_ns()
    for place, each in enumerate(runs[first : first + room], first):
        line = Text("> " if place == chosen else "  ", no_wrap=True)
        line.append(f"● {printable(each['state'], 9):<9} ", STATES.get(str(each["state"]), "default"))
        about = f"{lasting((now - each['started']) / _NANO)} ago, {_many(each['ranks'], 'rank')}"
        line.append(f"{shortened(printable(each['id']), max(width - 42, 12))}  ", "bold" if place == chosen else "")
        line.append(f"{about}, {count(each['points'])} points", "dim")
        shown.append(line)
    shown += [Text()] * (lines - 1 - len(shown))
    shown.append(Text(f"Enter shows it, Esc goes back   ↑ ↓   {len(runs)} in all", style="dim"))
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown[-lines:]


def keys(typed: bytes) -> list[str]:
    """Return the names of the keys that were pressed; other keys than ours are left out."""
    found = (match[1] or match[2] or match[3] for match in _ONE.finditer(typed.decode("latin-1")))
    return [_NAMES[key] for key in found if key in _NAMES]


def written(typed: bytes) -> list[str]:
    r"""Return the characters that were typed into a line; ``\n``, ``\b`` and ``\x1b`` for Enter, Backspace and Esc."""
    same = {"\r": "\n", "\x7f": "\b", "\x03": "\x1b"}
    text = _SEQUENCE.sub("", typed.decode(errors="ignore"))
    return [same.get(each, each) for each in text if each.isprintable() or each in "\r\n\b\x7f\x1b\x03\x15"]


class Screen:
    """The screen of one run, on this process's terminal.

    Args:
        source: of the run.
        picture: of the run so far.
        interval: seconds between two drawings.
        choice: among its rows, to begin with.
    """

    def __init__(self, source: RunSource, picture: Picture, *, interval: float, choice: Choice) -> None:
        self._source = source
        self._picture = picture
        self._interval = interval
        self._choice = choice
        self._typed: str | None = None
        self._first = 0
        self._page = 1
        self._ended = False
        self._runs: list[Json] | None = None  # while one of them is being chosen
        self._chosen = 0
        self._trouble = ""  # with them
        self._stop = threading.Event()
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._woken, self._wake = os.pipe()

    @property
    def refused(self) -> str:
        """In words, why the run will never be known; empty where it may."""
        return self._picture.refused

    def show(self) -> None:
        """Draw until ``q``, Ctrl-C or SIGTERM, or until the run is refused."""
        terminal = _Terminal()
        with self._signals():
            terminal.enter()
            try:
                self._read()
                self._loop(terminal)
            except OSError:  # the terminal is gone
                pass
            finally:
                self._stop.set()
                terminal.leave()

    def _read(self) -> None:
        """Keep the picture up to date in a thread of its own."""
        self._stop = threading.Event()
        given = self._source, self._picture, self._stop
        threading.Thread(target=keep_up, args=given, name="tachograph top", daemon=True).start()

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
                self._take(typed)

    def _state(self) -> tuple[Any, ...]:
        asked = None if self._runs is None else len(self._runs)
        return self._first, self._choice, self._typed, asked, self._chosen, self._trouble, self._picture.trouble

    def _take(self, typed: bytes) -> None:
        if self._typed is None:
            before, slash, typed = typed.partition(b"/") if self._runs is None else (typed, b"", b"")
            for key in keys(before + slash):
                self._pressed(key)
        if self._typed is not None:
            for letter in written(typed):
                self._written(letter)

    def _written(self, letter: str) -> None:
        if self._typed is None:
            return
        if letter == "\n":
            with contextlib.suppress(WrongFilter):  # it stays, marked
                compiled(self._typed)
                self._choice, self._typed = self._choice._replace(filter=self._typed), None
        elif letter == "\x1b":
            self._typed = None
        elif letter == "\x15":
            self._typed = ""
        else:
            self._typed = self._typed[:-1] if letter == "\b" else self._typed + letter
        self._first = 0

    def _list(self) -> None:
        """List the runs; they are asked for in a thread of its own, as the place may not answer."""

        def ask() -> None:
            try:
                runs = self._source.runs()
                if self._runs is None:  # the choice was left meanwhile
                    return
                self._trouble = "" if runs else "there is no run"
                self._chosen = next(
                    (place for place, each in enumerate(runs) if each["id"] == self._picture.about.get("id")), 0
                )
                self._runs = runs
            except (Away, HubRefused, OSError, LookupError, TypeError) as error:
                self._trouble = str(error)
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.write(self._wake, b"\0")

        self._runs, self._chosen, self._trouble = [], 0, "reading ..."
        threading.Thread(target=ask, name="tachograph runs", daemon=True).start()

    def _choose(self, key: str) -> None:
        """Take a key while a run is being chosen."""
        runs = self._runs or []
        step = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page, "home": -len(runs)}
        if key == "enter" and runs:
            self._stop.set()
            self._source = self._source.of(str(runs[self._chosen]["id"]))
            self._picture, self._first, self._runs = Picture(), 0, None
            self._read()
        elif key in {"quit", "escape", "runs"}:
            self._runs = None
        else:
            self._chosen = max(0, min(self._chosen + step.get(key, len(runs) * (key == "end")), len(runs) - 1))

    def _signalled(self, number: int, terminal: _Terminal) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._ended = True
        elif number == signal.SIGTSTP:
            terminal.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            terminal.enter()

    def _pressed(self, key: str) -> None:
        if self._runs is not None:
            self._choose(key)
        elif key == "quit":
            self._ended = True
        elif key == "ranks":
            self._choice = self._choice._replace(by_rank=not self._choice.by_rank)
        elif key == "sort":
            self._choice = self._choice.sorted_next()
        elif key == "filter":
            self._typed = self._choice.filter
        elif key == "runs":
            self._list()
        elif key == "next":
            with self._picture.lock:
                places = starts(sections(self._picture, self._choice))
            self._first = next((place for place in places if place > self._first), 0)
        else:
            step = {"up": -1, "down": 1, "enter": 1, "page up": -self._page, "page down": self._page}.get(key, 0)
            far = {"home": 0, "end": sys.maxsize}
            self._first = far.get(key, max(0, self._first + step))

    def _draw(self) -> None:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        size = (columns, rows) if columns and rows else _USUAL  # some that programs make do not know
        width, height = (max(pair) for pair in zip(size, _SMALLEST, strict=True))
        self._page = max(1, height - 6)
        if self._runs is not None:
            lines = listed(self._runs, self._chosen, (width, height), self._trouble)
        else:
            view = View((width, height), self._first, self._choice, self._typed)
            with self._picture.lock:
                lines, self._first = seen(self._picture, self._source.where, time.time_ns(), view)
        written = f"{_REST_OF_LINE}\r\n".join(self._encoded(lines))
        sys.stdout.write(f"{_HOME}{written}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def _encoded(self, lines: Sequence[Text]) -> Iterator[str]:
        system = None if self._console.no_color else _COLOURS.get(self._console.color_system or "")
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
