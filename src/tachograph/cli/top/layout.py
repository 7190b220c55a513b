"""The lines of ``top``'s screen: a head, the sections of the run or a list of runs, and a foot."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from tachograph.cli.top.choice import SORTS, Choice, WrongFilter, compiled
from tachograph.cli.top.legible import count, lasting, printable, shortened
from tachograph.cli.top.plots import plots
from tachograph.cli.top.sections import Section, fitted, sections
from tachograph.cli.top.state import RunView
from tachograph.studio.snapshot import Json, ProcessStatus, RunSnapshot

STATES = {
    "running": "green",
    "finished": "blue",
    **dict.fromkeys(("failed", "killed", "lost"), "red"),
    "unknown": "yellow",
}
KEYS = "q quit  ↑ ↓ PgUp PgDn scroll  Tab next table  r ranks  s sort  / filter  l runs"
_NANO = 1_000_000_000
_MOST_DAMAGE = 3
_WORDS = 400  # characters
_STANDING = 30  # the state and the time, which are to be seen behind a long name
SMALLEST = (20, 4)  # columns and lines of a terminal


def header(view: RunView, now: int, width: int) -> list[Text]:
    """Return the head above all sections.

    Args:
        view: of the run.
        now: nanoseconds since the epoch.
        width: of the terminal, in cells.
    """
    snapshot = view.snapshot
    if snapshot is None:
        lines = [Text("no run" if view.trouble else "reading ...", style="bold")]
        program = ""
    else:
        lines = [_status(snapshot, now, width, is_stale=bool(view.trouble))]
        program = f"{shortened(printable(snapshot.run.program), width // 2)}   " if snapshot.run.program else ""
    place = shortened(printable(view.where, _WORDS), max(width - cell_len(program), SMALLEST[0]))
    lines.append(Text(f"{program}{place}", style="dim"))
    if snapshot is not None and snapshot.run.failure:
        lines += _wrapped(snapshot.run.failure, width, "red")
    if snapshot is not None and snapshot.hang is not None:
        is_hang = snapshot.hang.grade == "hang"
        words = f"{'HANG' if is_hang else 'waiting'}: {printable(snapshot.hang.text, 2 * _WORDS)}"
        lines += _wrapped(words, width, "bold red" if is_hang else "yellow")
    lines += _wrapped(view.trouble, width, "bold yellow")
    for damage in snapshot.damage[:_MOST_DAMAGE] if snapshot is not None else ():
        lines += _wrapped(f"damaged: {damage}", width, "red")
    return lines


def _wrapped(words: str, width: int, style: str) -> list[Text]:
    return [Text(line, style=style) for line in wrap(printable(words, 2 * _WORDS), width)]


def _status(snapshot: RunSnapshot, now: int, width: int, *, is_stale: bool) -> Text:
    """Return the first line: the run, its state, its time, and the counts of its parts."""
    run = snapshot.run
    name = shortened(printable(run.id), max(width - _STANDING, SMALLEST[0]))
    state = f"● {printable(run.brief)}", STATES.get(run.state, "default")
    line = Text.assemble((name, "bold"), "   ", state, "   ")
    if is_stale and run.state == "running":
        line.append("last known   ", style="yellow")
    until = run.last if is_stale or run.state != "running" else now
    facts = [lasting((until - run.started) / _NANO), _many(run.ranks, "rank")]
    facts += [_many(run.processes, "process", "processes"), f"{count(run.points)} points"]
    line.append("   ".join(facts))
    if run.restarts:
        line.append(f"   {_many(run.restarts, 'restart')}", style="yellow")
    if lost := [process for process in snapshot.processes if process.lost]:
        line.append(f"   {len(lost)} lost: {_names_of(lost)}", style="bold red")
    if points := sum(loss.points for loss in snapshot.losses):
        line.append(f"   {count(points)} {'point' if points == 1 else 'points'} lost", style="yellow")
    return line


def _names_of(processes: Sequence[ProcessStatus]) -> str:
    names = [printable(each.role or "?") if each.rank is None else f"rank {each.rank}" for each in processes[:4]]
    return ", ".join(names) + (" …" if len(processes) > len(names) else "")


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


def everything(view: RunView, now: int, width: int, choice: Choice) -> Iterator[Text]:
    """Yield all lines, as ``--once`` prints them."""
    yield from header(view, now, width)
    if found := sections(view, choice):
        yield Text()
        yield from body(found, width)


class Viewport(NamedTuple):
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


def seen(view: RunView, now: int, port: Viewport) -> tuple[list[Text], int]:
    """Return the lines that a terminal shows, and the line of the sections that its first one is.

    Args:
        view: of the run.
        now: nanoseconds since the epoch.
        port: the part of it.
    """
    width, lines = port.size
    choice = port.choice if port.typed is None else port.choice._replace(filter=port.typed)
    above = header(view, now, width)
    found = sections(view, choice)
    room = max(lines - len(above) - 3, 1)
    total = height(found)
    first = max(0, min(port.first, total - room))
    shown = [*above, Text(), *body(found, width, first=first, lines=room)]
    if total + 1 < room:
        shown += [Text(), *plots(choice.rows(view.rows), width, room - total - 1)]
    shown = shown[: lines - 2]
    shown += [Text()] * (lines - 1 - len(shown))
    place = f"lines {first + 1} to {min(first + room, total)} of {total}" if total > room else ""
    shown.append(_footer(choice, place, typing=port.typed is not None))
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
        line.append("   Enter applies it, Esc cancels", "dim")
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
    shown.append(
        Text(f"Enter open  Esc back  ↑ ↓ select   {len(runs)} {'run' if len(runs) == 1 else 'runs'}", style="dim")
    )
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown[-lines:]
