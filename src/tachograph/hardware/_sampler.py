"""A thread that reads what may block, so that nobody else does: collections see what it has read, and how old it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph.recording.gil_yield import Pace
from tachograph.recording.naming import Kind
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.values import Number

PATIENCE = 5.0  # seconds that one reading may take before the others go on without it

_CATCH_UP = 0.2

T = TypeVar("T")
Found = TypeVar("Found")


class Sampler(Generic[T]):
    """Reads each thing by its key, in turns, again and again.

    A reading that does not come back is left alone with its thread, and another thread goes on with the others; should
    it come back after all, it takes its turn again. What it has read last counts for as long as it is fresh.

    Args:
        name: of the thread.
        find: called once, in the thread, for what there is to read: a callable a key; None is nothing for now.
        every: seconds between two turns.
        failed: told of a key that failed, or blocks, and why; the empty key stands for ``find``.
        patience: seconds that a reading may take.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Mapping[str, Callable[[], T | None]]],
        *,
        every: float,
        failed: Callable[[str, Exception], None],
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._find, self._every = name, find, every
        self._failed, self._patience, self._clock = failed, patience, clock
        self._stop = threading.Event()
        self._readings: Mapping[str, Callable[[], T | None]] | None = None
        self._latest: dict[str, tuple[float, T]] = {}
        self._blocked: set[str] = set()
        self._busy: tuple[str, float] | None = None
        self._checking = threading.Lock()
        self._turned = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is about to end
            self._thread = None

    def latest(self) -> list[T]:
        """Return what is fresh: read within the last turn, and the time that a reading may take."""
        self._look_for_blocked()
        oldest = self._clock() - self._every - self._patience
        return [value for at, value in list(self._latest.values()) if at >= oldest]

    def wait(self, timeout: float) -> bool:
        """Wait for the first turn to be over; tell whether it is."""
        return self._turned.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Read no more; tell whether no reading was under way, or ended within ``timeout`` seconds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
        return not self._blocked and (self._thread is None or not self._thread.is_alive())

    def _look_for_blocked(self) -> None:
        with self._checking:
            busy = self._busy
            if busy is None or self._clock() - busy[1] <= self._patience:
                return
            self._busy = None
            key, since = busy
            self._blocked.add(key)
            again = bool(key) and not self._stop.is_set()
            if again:
                self._turned.clear()
                self.start()
        if again:
            self._turned.wait(_CATCH_UP)  # the others' readings have grown old meanwhile
        self._failed(key, TimeoutError(f"it has not answered for {self._clock() - since:.1f} s"))

    def _run(self) -> None:
        if self._readings is None:
            self._readings = self._read("", self._find) or {}
        pace = Pace()
        while self._readings and not self._stop.is_set():
            for key, read in self._readings.items():
                if key in self._blocked:
                    continue
                value = self._read(key, read)
                if threading.current_thread() is not self._thread:
                    return  # it did not come back in time, and another thread goes on
                if value is None:
                    self._latest.pop(key, None)
                else:
                    self._latest[key] = self._clock(), value
                pace()
            self._turned.set()
            self._stop.wait(self._every)
        self._turned.set()

    def _read(self, key: str, read: Callable[[], Found | None]) -> Found | None:
        self._busy = key, self._clock()
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - the border to drivers and file systems: it is counted and said
            self._failed(key, error)
            return None
        finally:
            with self._checking:
                self._blocked.discard(key)
                if threading.current_thread() is self._thread:
                    self._busy = None


SCOPE = "tachograph.hardware"

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
    """The reading of a sensor: its values, and attributes that all of them have beside their own."""

    row: Sensor[Any]
    values: list[tuple[Mapping[str, str], Number]]
    more: Mapping[str, str]


def read(row: Sensor[Source], source: Source, more: Mapping[str, str]) -> Reading:
    """Return a row's values, each with the attributes ``more``; what the row raises is raised."""
    return Reading(row, list(row.read(source)), more)


def tried(
    row: Sensor[Source], source: Source, more: Mapping[str, str], left_out: Callable[[str, Exception], None]
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
