"""A row of a table: one metric, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph.recording.naming import Kind
from tachograph.recording.pace import Pace
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.values import Number

SCOPE = "tachograph.hardware"

Source = TypeVar("Source")
Values = Iterable[tuple[Mapping[str, str], Number]]


@dataclass(frozen=True, slots=True, eq=False)
class Row(Generic[Source]):
    """One metric; two rows may have one name, and then differ in their attributes.

    Args:
        name: of the instrument.
        unit: UCUM.
        kind: a counter's values begin with the machine, the driver or the process, not with us.
        description: becomes HELP.
        read: returns attributes and value of each series; what it raises leaves the row out.
        slices: a MIG slice has it, too.
        every: turns of a sampler between two readings.
    """

    name: str
    unit: str
    kind: Kind
    description: str
    read: Callable[[Source], Values]
    slices: bool = False
    every: int = 1


class Reading(NamedTuple):
    """What a row has given: its values, and attributes that all of them have beside their own."""

    row: Row[Any]
    values: list[tuple[Mapping[str, str], Number]]
    more: Mapping[str, str]


def read(row: Row[Source], source: Source, more: Mapping[str, str]) -> Reading:
    """Return a row's values, each with the attributes ``more``; what the row raises is raised."""
    return Reading(row, list(row.read(source)), more)


def tried(
    row: Row[Source], source: Source, more: Mapping[str, str], left_out: Callable[[str, Exception], None]
) -> list[Reading]:
    """Return a row's reading; where the row raises, none, and ``left_out`` is told its name and why."""
    try:
        return [read(row, source, more)]
    except Exception as error:  # noqa: BLE001 - the border to the system: a file of /proc may be missing or forbidden
        left_out(row.name, error)
        return []


def metrics(readings: Iterable[Reading], start_unix_nano: int) -> Iterator[MetricPoints]:
    """Yield the readings as metrics, those of one name together, all cumulative since ``start_unix_nano``.

    Rests between them: it runs in a background thread.
    """
    named: dict[str, list[Reading]] = {}
    pace = Pace()
    for reading in readings:
        if reading.values:
            named.setdefault(reading.row.name, []).append(reading)
        pace()
    for name, listed in named.items():
        points = [
            NumberPoint(tuple(sorted({**more, **attributes}.items())), value, start_unix_nano)
            for _, values, more in listed
            for attributes, value in values
        ]
        row = listed[0].row
        pace()
        yield MetricPoints(SCOPE, name, row.unit, row.kind, row.description, points)
