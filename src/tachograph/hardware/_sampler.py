"""Samples of sources that may block: collections see the latest reading, as long as it is fresh."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph.hardware import _calls as calls
from tachograph.hardware._calls import BlockingCalls, Call
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.naming import Kind
from tachograph.recording.own_metrics import HARDWARE_GROUP
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.values import Number

PATIENCE = 5.0  # seconds that one reading may take before the others go on without it

T = TypeVar("T")
Found = TypeVar("Found")


class Sampler(Generic[T]):
    """Reads each source, in turns, again and again.

    Sources are read in the thread of :mod:`tachograph.hardware._calls`. A reading that does not return keeps its
    thread, and the others are made in another one; if it returns after all, it takes its turn again. Its latest result
    counts as long as it is fresh.

    Args:
        find: called once, in that thread; returns the sources by key: callables, whose None stands for no reading now.
        every: seconds between two turns.
        failed: called with the key of a source that failed, or blocks, and the error; the key of ``find`` is empty.
        patience: seconds that a reading may take.
        clock: seconds, monotonic.
        calls: makes the readings.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Callable[[], T | None]]],
        *,
        every: float,
        failed: Callable[[str, Exception], None],
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        calls: BlockingCalls = calls.default,
    ) -> None:
        self._find, self._every = find, every
        self._failed, self._patience, self._clock, self._calls = failed, patience, clock, calls
        self._call: Call | None = None
        self._stopped = False
        self._readings: Mapping[str, Callable[[], T | None]] | None = None
        self._latest: dict[str, tuple[float, T]] = {}
        self._blocked: set[str] = set()
        self._reading = ""
        self._reader: threading.Thread | None = None
        self._turned = threading.Event()

    def start(self) -> None:
        """Begin reading."""
        self._call = self._calls.every(self._every, self._turn, patience=self._patience, blocked=self._give_up)

    def latest(self) -> list[T]:
        """Return the fresh readings: those within the last turn and the time that a reading may take."""
        self._calls.look()
        oldest = self._clock() - self._every - self._patience
        return [value for at, value in list(self._latest.values()) if at >= oldest]

    def wait(self, timeout: float) -> bool:
        """Wait for the first turn to be over; tell whether it is."""
        return self._turned.wait(timeout)

    def close(self, timeout: float) -> bool:
        """End reading; tell whether no reading was under way, or it ended within ``timeout`` seconds."""
        self._stopped = True
        return (self._call is None or self._calls.close(self._call, timeout)) and not self._blocked

    def _give_up(self, seconds: float) -> bool:
        """Leave out the source that has not answered; tell whether there are others to read."""
        key = self._reading
        self._blocked.add(key)
        self._failed(key, TimeoutError(f"no answer for {seconds:.1f} s"))
        return bool(key) and not self._stopped

    def _turn(self) -> None:
        me = self._reader = threading.current_thread()
        if self._readings is None:
            found = self._read("", self._find)
            if self._reader is not me:
                return
            self._readings = found or {}
        pace = GilYield()
        for key, read in self._readings.items():
            if key in self._blocked or self._stopped:
                continue
            value = self._read(key, read)
            if self._reader is not me:
                return  # it did not come back in time, and another thread goes on
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = self._clock(), value
            pace()
        self._turned.set()
        if not self._readings and self._call is not None:  # there is nothing to read
            self._calls.close(self._call, 0.0)

    def _read(self, key: str, read: Callable[[], Found | None]) -> Found | None:
        self._reading = key
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - the border to drivers and file systems: it is counted and said
            self._failed(key, error)
            return None
        finally:
            self._blocked.discard(key)


SCOPE = HARDWARE_GROUP

Source = TypeVar("Source")
Values = Iterable[tuple[Mapping[str, str], Number]]


@dataclass(frozen=True, slots=True, eq=False)
class Sensor(Generic[Source]):
    """One metric; two rows may have one name, and then differ in their attributes.

    Args:
        name: of the instrument.
        unit: UCUM.
        kind: a counter's values begin with the machine, the driver or the process, not with us.
        description: becomes HELP.
        read: returns attributes and value of each series; an exception leaves the row out.
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
    """The reading of a sensor: its values, and attributes that all of them have beside their own.

    ``since`` is the time from which its counters count, where that is not their source's: nanoseconds since the epoch.
    """

    row: Sensor[Any]
    values: list[tuple[Mapping[str, str], Number]]
    more: Mapping[str, str]
    since: int = 0


def read(row: Sensor[Source], source: Source, more: Mapping[str, str]) -> Reading:
    """Return a row's values, each with the attributes ``more``; exceptions of the row pass."""
    return Reading(row, list(row.read(source)), more)


def tried(
    row: Sensor[Source], source: Source, more: Mapping[str, str], left_out: Callable[[str, Exception], None]
) -> list[Reading]:
    """Return a row's reading; none where the row raises: then ``left_out`` gets its name and the error."""
    try:
        return [read(row, source, more)]
    except Exception as error:  # noqa: BLE001 - the border to the system: a file of /proc may be missing or forbidden
        left_out(row.name, error)
        return []


def metrics(readings: Iterable[Reading], start_unix_nano: int) -> Iterator[MetricPoints]:
    """Yield the readings as metrics, those of one name together, cumulative.

    They count since ``start_unix_nano``, unless they say another time.

    Rests between them: it runs in a background thread.
    """
    named: dict[str, list[Reading]] = {}
    pace = GilYield()
    for reading in readings:
        if reading.values:
            named.setdefault(reading.row.name, []).append(reading)
        pace()
    for name, listed in named.items():
        points = [
            NumberPoint(tuple(sorted({**more, **attributes}.items())), value, since or start_unix_nano)
            for _, values, more, since in listed
            for attributes, value in values
        ]
        row = listed[0].row
        pace()
        yield MetricPoints(SCOPE, name, row.unit, row.kind, row.description, points)
