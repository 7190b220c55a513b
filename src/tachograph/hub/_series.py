"""The last state of one series, in any order of its points."""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable
from typing import Any, NamedTuple

from tachograph.hub._dedup import APART, DeltaIntervals
from tachograph.hub._spread import HubSpread, Packing
from tachograph.recording.naming import Kind
from tachograph.recording.summary import Exemplar
from tachograph.runs import queries
from tachograph.runs.buckets import Buckets

Labels = tuple[tuple[str, str], ...]
Shape = queries.Shape

_LATE = 10**9  # nanoseconds: points that are not as late are out of order
PAST = 32  # sequences of a series that late points may still add to
MOST_NAME = 1024  # characters of a name, a unit, a scope and a key: as many as our own API takes
MOST_BOUNDS = 1000  # of a histogram
MOST_RESOURCE = 64 * 2**10  # bytes of one resource
_SERIES = 2000  # bytes of one series beside its text, measured
_TEXT = 6  # times that a label's text is held: in labels, attributes, and in the rows of three formats
_BOUND = 300  # bytes of one bucket: counts now and before, and its line in each format; of a spread's, its parts


class HubInstrument:
    """An instrument as the page shows it: name, unit, kind and description of its series.

    Attributes:
        kind: as Prometheus has it: a sum that may fall is a gauge there.
        series: those of all processes, in the order in which they came.
    """

    __slots__ = ("description", "kind", "name", "scope", "series", "unit")

    def __init__(self, scope: str, name: str, unit: str, kind: Kind, description: str) -> None:
        self.scope = scope
        self.name = name
        self.unit = unit
        self.kind: Kind = kind
        self.description = description
        self.series: dict[HubSeries, None] = {}


class HubSeries:
    """One series: the value that is shown, and all that is needed to take its next point.

    A counter's or histogram's points come in sequences, one for each start time. The value shown is the sum of the
    sequences' last points, so that it goes on where a process starts anew, and points that come late, out of order or
    twice change nothing that they should not. Amounts are numbers, or :class:`Buckets`.

    Attributes:
        owner: the process that sends it, to which this class does nothing.
        attributes: its attributes in canonical JSON, by which the store knows it again.
        labels: all labels but the scope's, as text.
        seen: when a point came last, in nanoseconds of the hub's clock.
        unsaved: it has changed since the store had it.
        restarted: a sequence ended since the store had it: the value shown cannot be had from the sender again.
        row: its number in the store; 0 where it has none yet.
        sampled: the time, and for histograms the count and sum, of its last sample in the history.
        bounds: of a histogram: for how many of them it has room.
        buckets: of its spread: the same.
        spread: of a histogram of which exponential histograms came; None of others.
        late: of a gauge: the time of the last point that was too old, and when that came by the hub's clock.
    """

    __slots__ = (
        "attributes",
        "before",
        "bounds",
        "buckets",
        "covered",
        "exemplars",
        "instrument",
        "labels",
        "late",
        "owner",
        "past",
        "restarted",
        "row",
        "sampled",
        "seen",
        "shape",
        "spread",
        "start",
        "time",
        "unsaved",
        "until",
        "value",
    )

    def __init__(
        self, instrument: HubInstrument, shape: Shape, labels: Labels, *, owner: Any = None, attributes: str = "[]"
    ) -> None:
        self.instrument = instrument
        self.shape: Shape = shape
        self.labels = labels
        self.owner = owner
        self.attributes = attributes
        self.start = 0
        self.time = 0  # of the newest sequence's last point
        self.until = 0  # where the last delta ends
        self.value: Any = None
        self.before: Any = None
        self.past: dict[int, Any] | None = None
        self.covered: DeltaIntervals | None = None
        self.exemplars: tuple[Exemplar, ...] = ()
        self.seen = 0
        self.unsaved = True
        self.restarted = False
        self.row = 0
        self.sampled: tuple[int, int, float] = (0, 0, 0.0)
        self.bounds = 0
        self.buckets = 0
        self.spread: HubSpread | None = None
        self.late = (0, 0)

    def text(self) -> int:
        """Return how many characters of text are its own: for :class:`MemoryBudget`."""
        return len(self.attributes) + sum(len(key) + len(value) for key, value in self.labels)

    def newest(self) -> int:
        """Return the time of its newest point, in nanoseconds."""
        return max(self.time, self.until)

    @property
    def unsampled(self) -> bool:
        """Whether its newest point came after its last sample."""
        return self.newest() > self.sampled[0]

    def shown(self) -> Any:
        """Return the value on the page; None where there is nothing yet."""
        if self.before is None:
            return self.value
        return self.before if self.value is None else self.before + self.value

    def sums(self) -> tuple[int, float]:
        """Return the count and the sum that a histogram shows."""
        parts = [part for part in (self.before, self.value) if part is not None]
        return sum(part.count for part in parts), sum(part.total for part in parts)

    def latest(self, time: int, value: Any, now: int = 0) -> None:
        """Take a value that stands for itself: that of a gauge, or of a sum that may fall.

        One that is older than the newest is late, and changes nothing. If another one follows that is later by about
        as much as the hub's clock has gone on meanwhile, the sender's clock was set back: then it counts.

        Args:
            time: of the value, in nanoseconds.
            value: it.
            now: nanoseconds of the hub's clock; 0 where that is not known.
        """
        if time < self.time:
            gone, since = time - self.late[0], now - self.late[1]
            is_live = self.late[1] > 0 and self.time - time > _LATE and since // 2 < gone < since * 2
            self.late = time, now
            if not is_live:
                return
        self.time = time
        self.value = value
        self.unsaved = True

    def cumulative(self, start: int, time: int, value: Any) -> None:
        """Take a counter's or histogram's state since ``start``; times in nanoseconds."""
        if start == self.start and self.value is not None:
            if time <= self.time:
                if not self.value < value:
                    return
                time = self.time  # more than before cannot have come before: the sender's clock was set back
            elif value < self.value:  # it began anew without saying so
                self._close()
        elif start < self.start:
            self._late(start, value)
            return
        elif self.value is not None:
            self._remember(self.start, self.value)
            self._close()
        self.start = start
        self.time = time
        self.value = value
        self.unsaved = True

    def _close(self) -> None:
        self.before = self.value if self.before is None else self.before + self.value
        self.restarted = True

    def _late(self, start: int, value: Any) -> None:
        """Take a point that comes late, from a sequence that another one has followed."""
        past = self.past or {}
        known = past.get(start)
        if known is None:
            if len(past) >= PAST and start < min(past):
                return
            more = value
        elif known < value:
            more = value - known
        else:
            return
        self._remember(start, value)
        # Buckets are added in those of the later one, which are not these.
        if self.before is None:
            self.before = more
        elif isinstance(more, Buckets):
            self.before = more.rebucketed(self.before.bounds) + self.before
        else:
            self.before += more
        self.unsaved = self.restarted = True

    def _remember(self, start: int, value: Any) -> None:
        if self.past is None:
            self.past = {}
        self.past[start] = value
        if len(self.past) > PAST:
            del self.past[min(self.past)]

    def delta(self, writer: Hashable, start: int, time: int, value: Any, now: int | None = None) -> None:
        """Add the difference between ``start`` and ``time``, unless it was added before.

        A sum that may fall is the newest process's alone: a queue ends with the process that has it.

        Args:
            writer: the process that sent it: deltas of two that follow each other may overlap.
            start: nanoseconds; 0 where it is not known.
            time: nanoseconds.
            value: the difference.
            now: nanoseconds of the hub's clock, where ``time`` is ahead of it; None else.
        """
        if now is not None:  # known again if it is sent again, and apart from points that come when it is that time
            start, time = start - APART, time - APART
        if self.covered is None:
            self.covered = DeltaIntervals()
        is_new = writer not in self.covered.writers
        if not self.covered.add(writer, start, time):
            return
        if self.shape == "sum":
            if is_new:
                self.before = None
            elif writer != next(reversed(self.covered.writers)):
                return
        if now is not None:
            time = now
        if self.before is not None and time < self.until and isinstance(value, Buckets):
            self.before = value.rebucketed(self.before.bounds) + self.before
        else:
            self.before = value if self.before is None else self.before + value
        self.until = max(self.until, time)
        self.unsaved = True

    def snapshot(self) -> list[Any]:
        """Return everything that :meth:`restore` needs; later points do not change it.

        The last element is the whole spread, of a series that has one; beside the last sample there is its rest.
        """
        past = None if self.past is None else list(self.past.items())
        covered = None if self.covered is None else self.covered.copy()
        state: list[Any] = [self.start, self.time, self.value, self.before, past, covered]
        if self.spread is None:
            return [*state, self.sampled, self.until]
        whole, rest = self.spread.snapshot()
        return [*state, (*self.sampled, rest), self.until, whole]

    def restore(self, state: str, *, row: int = 0, seen: int = 0) -> None:
        """Take over a snapshot's JSON, see :func:`as_json`; where that is not legible nothing changes.

        Raises:
            ValueError, TypeError, LookupError: it is not legible.
        """
        start, time, value, before, past, covered, (at, count, total, *rest), until, *whole = json.loads(state)
        amounts = _amount(value), _amount(before)
        sequences = None if past is None else {start: _amount(amount) for start, amount in past}
        intervals = None if covered is None else DeltaIntervals.restored(covered)
        spread = HubSpread.restored(whole[0], rest[0]) if whole and whole[0] is not None else None
        self.start, self.time, self.until, self.sampled = start, time, until, (at, count, total)
        (self.value, self.before), self.past, self.covered, self.spread = amounts, sequences, intervals, spread
        self.row = row
        self.seen = seen
        self.unsaved = False


def as_json(snapshot: list[Any]) -> str:
    """Return a snapshot as text, numbers exactly, and exponential histograms packed, in base64."""
    return json.dumps(snapshot, default=_parts, separators=(",", ":"))


def _parts(amount: Buckets | Packing) -> Any:
    if isinstance(amount, Packing):
        return base64.b64encode(amount.packed()).decode()
    return [amount.count, amount.total, amount.counts, amount.bounds]


def _amount(parts: Any) -> Any:
    if isinstance(parts, list):
        return Buckets(parts[0], parts[1], tuple(parts[2]), tuple(parts[3]))
    return parts


class Limits(NamedTuple):
    """The limits of a hub's memory.

    Attributes:
        series: how many.
        memory: bytes that they take, as far as that is known.
        processes: how many; those that ended first make room.
        page: bytes.
    """

    series: int = 200_000
    memory: int = 2 * 2**30
    processes: int = 20_000
    page: int = 256 * 2**20


class MemoryBudget:
    """The memory that series take, as far as that is known.

    Args:
        limits: how much there is.
    """

    def __init__(self, limits: Limits) -> None:
        self._most_series = limits.series
        self._most_memory = limits.memory
        self._series = 0
        self._taken = 0

    def add(self, text: int) -> bool:
        """Reserve memory for a series with so many characters of labels and name; False if there is none left."""
        if self._series >= self._most_series or not self._take(_SERIES + _TEXT * text):
            return False
        self._series += 1
        return True

    def add_buckets(self, count: int) -> bool:
        """Reserve memory for so many further buckets of a series; False if there is none left."""
        return self._take(_BOUND * count)

    def _take(self, size: int) -> bool:
        if self._taken + size > self._most_memory:
            return False
        self._taken += size
        return True

    def remove(self, text: int, buckets: int) -> None:
        """Give back the memory of a series with so many characters and buckets."""
        self._series -= 1
        self._taken -= _SERIES + _TEXT * text + _BOUND * buckets
