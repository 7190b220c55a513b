"""What the terminal shows: a header, as much of the sections as fits, a footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.text import Text

from tachograph.cli.top.legible import count, lasting, legible
from tachograph.cli.top.picture import Picture
from tachograph.cli.top.section import Section, fitted
from tachograph.cli.top.sections import sections

STATES = {"live": "green", "finished": "blue", "failed": "red", "lost": "red", "unknown": "yellow"}
KEYS = "q quit   ↑ ↓ PgUp PgDn scroll   Tab next table   r ranks"
_NANO = 1_000_000_000
_MOST_DAMAGE = 3
_WORDS = 400  # characters


def header(picture: Picture, where: str, now: int, width: int) -> list[Text]:
    """Return what stands above all sections.

    Args:
        picture: of the run.
        where: it is read from.
        now: nanoseconds since the epoch.
        width: of the terminal, in cells.
    """
    about = picture.about
    unknown = Text("no run" if picture.trouble else "reading ...", style="bold")
    lines = [_standing(picture, now) if about else unknown]
    program = f"{legible(about['program'])}   " if about and about["program"] else ""
    lines.append(Text(f"{program}{legible(where)}", style="dim"))
    lines += [Text(each, style="bold yellow") for each in wrap(legible(picture.trouble, _WORDS), width)]
    for each in picture.damage[:_MOST_DAMAGE]:
        lines += [Text(part, style="red") for part in wrap(f"damaged: {legible(each, _WORDS)}", width)]
    return lines


def _standing(picture: Picture, now: int) -> Text:
    about = picture.about
    state = str(about["state"])
    line = Text.assemble(
        (legible(about["id"]), "bold"), "   ", (f"● {legible(state)}", STATES.get(state, "default")), "   "
    )
    if picture.trouble and state == "live":
        line.append("when last heard   ", style="yellow")
    until = about["last"] if picture.trouble or state != "live" else now
    facts = [lasting((until - about["started"]) / _NANO), _many(about["ranks"], "rank")]
    facts += [_many(about["processes"], "process", "processes"), f"{count(about['points'])} points"]
    line.append("   ".join(facts))
    if about["restarts"]:
        line.append(f"   {_many(about['restarts'], 'restart')}", style="yellow")
    if lost := sum(bool(each["lost"]) for each in picture.processes):
        line.append(f"   {lost} lost: {_who_is_lost(picture)}", style="bold red")
    if dropped := sum(amount for name, _, amount in picture.losses() if name == "dropped"):
        line.append(f"   {count(dropped)} dropped", style="yellow")
    return line


def _who_is_lost(picture: Picture) -> str:
    lost = [each for each in picture.processes if each["lost"]]
    named = [f"rank {each['rank']}" if each["rank"] is not None else legible(each["role"] or "?") for each in lost[:4]]
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
