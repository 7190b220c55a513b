"""The lines of ``top``'s screen: a head, the sections of the run or a list of runs, and a foot."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from tachograph.cli.top.choice import SORTS, Choice, PatternError, compile_filter
from tachograph.cli.top.legible import count, lasting, printable, shortened
from tachograph.cli.top.plots import draw_plots
from tachograph.cli.top.sections import sections_of
from tachograph.cli.top.state import RunView
from tachograph.cli.top.tables import draw_sections, height_of
from tachograph.studio.snapshot import Json, ProcessStatus, RunSnapshot

SMALLEST = (20, 4)  # columns and lines of a terminal
_STATE_STYLES = {
    "running": "green",
    "finished": "blue",
    **dict.fromkeys(("failed", "killed", "lost"), "red"),
    "unknown": "yellow",
}
_KEYS = "q quit  ↑ ↓ PgUp PgDn scroll  Tab next table  r ranks  s sort  / filter  l runs"
_SECOND = 1_000_000_000  # nanoseconds
_MOST_DAMAGE = 3
_WORDS = 800  # characters of a sentence
_STATE_AND_TIME = 30  # cells that are kept free for them behind a long name


def draw_header(view: RunView, now: int, width: int) -> list[Text]:
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
        words = f"{'HANG' if is_hang else 'waiting'}: {snapshot.hang.text}"
        lines += _wrapped(words, width, "bold red" if is_hang else "yellow")
    lines += _wrapped(view.trouble, width, "bold yellow")
    for damage in snapshot.damage[:_MOST_DAMAGE] if snapshot is not None else ():
        lines += _wrapped(f"damaged: {damage}", width, "red")
    return lines


def _wrapped(words: str, width: int, style: str) -> list[Text]:
    return [Text(line, style=style) for line in wrap(printable(words, _WORDS), width)]


def _status(snapshot: RunSnapshot, now: int, width: int, *, is_stale: bool) -> Text:
    """Return the first line: the run, its state, its time, and the counts of its parts."""
    run = snapshot.run
    name = shortened(printable(run.id), max(width - _STATE_AND_TIME, SMALLEST[0]))
    state = f"● {printable(run.brief)}", _STATE_STYLES.get(run.state, "default")
    line = Text.assemble((name, "bold"), "   ", state, "   ")
    if is_stale and run.state == "running":
        line.append("last known   ", style="yellow")
    until = run.last if is_stale or run.state != "running" else now
    facts = [lasting((until - run.started) / _SECOND), _many(run.ranks, "rank")]
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


def draw_everything(view: RunView, now: int, width: int, choice: Choice) -> Iterator[Text]:
    """Yield all lines, as ``--once`` prints them."""
    yield from draw_header(view, now, width)
    if sections := sections_of(view, choice):
        yield Text()
        yield from draw_sections(sections, width)


class Viewport(NamedTuple):
    """The part of a run's sections that a terminal shows.

    Attributes:
        size: columns and lines of the terminal.
        first: the line of the sections to begin with; the nearest possible one is shown.
        choice: among the rows.
        typed: a filter that is being typed; None if none is.
    """

    size: tuple[int, int]
    first: int
    choice: Choice
    typed: str | None = None


def draw_screen(view: RunView, now: int, port: Viewport) -> tuple[list[Text], int]:
    """Return the lines of a terminal, and which line of the sections is the first one.

    Args:
        view: of the run.
        now: nanoseconds since the epoch.
        port: the part of it.
    """
    width, lines = port.size
    choice = port.choice if port.typed is None else port.choice._replace(filter=port.typed)
    header = draw_header(view, now, width)
    sections = sections_of(view, choice)
    room = max(lines - len(header) - 3, 1)
    height = height_of(sections)
    first = max(0, min(port.first, height - room))
    screen = [*header, Text(), *draw_sections(sections, width, first=first, lines=room)]
    if height + 1 < room:
        screen += [Text(), *draw_plots(choice.rows(view.rows), width, room - height - 1)]
    place = f"lines {first + 1} to {min(first + room, height)} of {height}" if height > room else ""
    footer = _draw_footer(choice, place) if port.typed is None else _draw_typed_filter(port.typed)
    return _filled(screen[: lines - 2], footer, port.size), first


def _filled(screen: list[Text], footer: Text, size: tuple[int, int]) -> list[Text]:
    """Return lines and a footer on the last line of a terminal, none of them longer than its width."""
    width, lines = size
    filled = [*screen, *([Text()] * (lines - 1 - len(screen))), footer]
    for line in filled:
        line.truncate(width, overflow="ellipsis")
    return filled[-lines:]


def _draw_footer(choice: Choice, place: str) -> Text:
    parts = [place] if place else []
    if choice.sort != SORTS[0]:
        parts.append(f"sorted by {choice.sort}")
    if choice.filter:
        parts.append(f"filter {printable(choice.filter)}")
    return Text("   ".join([*parts, _KEYS]), style="dim")


def _draw_typed_filter(typed: str) -> Text:
    """Return a filter that is being typed, with a mark on the first wrong character."""
    line = Text.assemble(("/", "bold"), printable(typed))
    try:
        compile_filter(typed)
    except PatternError as error:
        place = 1 + len(printable(typed[: error.place]))
        line.append(" ")
        line.stylize("bold reverse red", place, place + 1)
        line.append(f"  {error.why} at character {error.place + 1}", "red")
    else:
        line.append("   Enter applies it, Esc cancels", "dim")
    return line


def draw_run_list(runs: Sequence[Json], chosen: int, size: tuple[int, int], trouble: str) -> list[Text]:
    """Return the lines of a list of runs of which one is marked.

    Args:
        runs: as the API lists them.
        chosen: the place of the marked one.
        size: columns and lines of the terminal.
        trouble: in words, why there is no run; empty if there is one.
    """
    width, lines = size
    room = max(lines - 3, 1)
    first = max(0, min(chosen - room // 2, len(runs) - room))
    screen = [Text(printable(trouble, _WORDS) or "RUNS", style="bold yellow" if trouble else "bold")]
    now = time.time_ns()
    for place, run in enumerate(runs[first : first + room], first):
        is_chosen = place == chosen
        line = Text("> " if is_chosen else "  ", no_wrap=True)
        line.append(f"● {printable(run['state'], 9):<9} ", _STATE_STYLES.get(str(run["state"]), "default"))
        line.append(f"{shortened(printable(run['id']), max(width - 42, 12))}  ", "bold" if is_chosen else "")
        age = lasting((now - run["started"]) / _SECOND)
        line.append(f"{age} ago, {_many(run['ranks'], 'rank')}, {count(run['points'])} points", "dim")
        screen.append(line)
    footer = Text(f"Enter open  Esc back  ↑ ↓ select   {_many(len(runs), 'run')}", style="dim")
    return _filled(screen, footer, size)
