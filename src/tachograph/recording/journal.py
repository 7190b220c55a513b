"""The journal: exact events on their way to a destination, bounded, the oldest going first.

Each process start has a stream of its own, and numbers its events from 1: a reader that finds both inserts an event
once, however often it was sent, and a gap is a counted loss.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.holders import Holders
from tachograph.recording.ids import NumberSequence, random_hex
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.packed_points import PACKED, PackedPoints, PlainPoints
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch

LIMIT = 65_536
_MOST_TOLD, _MOST_RECORDS = 16, 256
SCHEMA = 1  # of the records: a reader skips, and counts, newer ones than it knows
CONFIG, SUMMARY = "tachograph.config", "tachograph.summary"  # events, and the map in them
RUN = "tachograph.run"  # an event with a run's tags and notes
LOG = "tachograph.log"  # a record of the program's own logging: private, as its texts may be
RECORD_FIELDS = ("severity_number", "severity_text", "body")  # its attributes that are fields of a log record
_SCHEMA, _STREAM, _SEQ = RECORD_KEYS = ("tachograph.schema", "tachograph.stream", "tachograph.seq")
SCOPE = "tachograph"  # the instrumentation scope of every record
# A function that returns the attributes, and its arguments: called when the event leaves.
Later = tuple[Any, ...]
# As it waits: an event gets its number and its stream when it leaves, as logging one shall be quick.
Raw = tuple[str, int, int, Mapping[str, AttributeValue] | Later, int, int, int]
# Returns points of those events packed, and the other ones.
Pack = Callable[[Sequence[Raw]], tuple[list[PackedPoints], list[Raw]]]
# Returns the attributes of an event as they leave.
Finish = Callable[[Mapping[str, AttributeValue]], Mapping[str, AttributeValue]]
_AT_ONCE = 1024


class LogEvent(NamedTuple):
    """One event: an OpenTelemetry log record with an ``event_name``.

    ``time_unix_nano`` is when it happened, ``observed_unix_nano`` when it was logged; ids are 0 outside a sampled span.
    ``points`` is how much it counts if it is lost.
    """

    name: str
    time_unix_nano: int
    observed_unix_nano: int
    attributes: Mapping[str, AttributeValue]
    seq: int
    trace_id: int
    span_id: int
    trace_flags: int
    stream: str
    points: int = 1

    def record_attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes as they leave: those by which a reader knows it again come with them."""
        return {**self.attributes, **self.record_keys()}

    def record_keys(self) -> dict[str, AttributeValue]:
        """Return those by which a reader knows it again."""
        return {_SCHEMA: SCHEMA, _STREAM: self.stream, _SEQ: self.seq}


def packed_event(points: PackedPoints | PlainPoints, first: int, stream: str) -> LogEvent:
    """Return points as one event, as it leaves to our own hub; ``first`` is the number of the first one."""
    now, record = time.time_ns(), points.record()
    return LogEvent(PACKED, points.newest, now, record, first, 0, 0, 0, stream, points.size)


class Append(Protocol):
    """A function that logs one event; it never waits, and never raises.

    The attributes are kept, not copied: do not change them. A tuple of a function and its arguments stands for
    attributes that are made when the event leaves.
    """

    def __call__(  # noqa: D102 - see above
        self,
        name: str,
        time_unix_nano: int,
        attributes: Mapping[str, AttributeValue] | Later,
        *,
        trace_id: int = 0,
        span_id: int = 0,
        trace_flags: int = 0,
    ) -> None: ...


class Journal:
    """Events in the order in which they were logged, until they are taken out.

    Args:
        registry: where events are counted that were dropped.
        limit: how many events it holds; beyond it the oldest is dropped.

    Attributes:
        append: logs one event, as :class:`Append` says. Look it up at each call: :meth:`keep` changes it.
        taking: the events that wait, for a door that appends a :data:`Raw` itself, as a call takes as long as the rest
            of it; it calls :meth:`make_room` where there are ``half``. None where none is kept.
        half: see ``taking``.
        stream: random for each process start; see :meth:`LogEvent.record_attributes`.
        last_words: called before the last events of the process leave, with the seconds that each may take, for events
            that are logged at the end alone, such as those of open windows.
        window_closers: called where a pipeline ends and the process goes on, with the seconds that each may take: they
            close the windows that are open, and log their events while something still delivers them.
        holders: asked before events are taken out, for events that are not logged yet.
        told: events for hubs of ours alone, until a receiver has said whether it is one; see :meth:`tell`.
        records: of the program's own logging, until then; see :meth:`record`.
        on_half_full: called where an event is logged while the journal is half full or more: it must cost next to
            nothing, take no lock and never raise; a signal handler may be what logs. A forked child has none.
    """

    append: Append
    taking: deque[Raw] | None
    _uncounted: int

    def __init__(self, registry: Registry, *, limit: int = LIMIT) -> None:
        self._registry = registry
        self._wanted, self._pinned = True, False
        self._log_once = LogOnce()
        self.last_words: list[Callable[[float], object]] = []
        self.window_closers: list[Callable[[float], object]] = []
        self.holders = Holders()
        self._limit = limit
        # Resolved once: an overflowing journal drops at every event, wherever that comes from.
        dropped = registry.group(OWN_GROUP).own(DROPPED)
        self._count = dropped.bind(reason="queue_full", destination="journal")
        self.reset()

    def _appender(self) -> Append:
        """Return :attr:`append`: variables of the function around it are read faster than attributes."""
        events, half, state = self._events, self._limit // 2, switch
        make_room, now = self.make_room, time.time_ns

        def append(  # noqa: PLR0917 - as keywords alone they would cost a call 40 ns for their defaults, in CPython 3.11
            name: str,
            time_unix_nano: int,
            attributes: Mapping[str, AttributeValue] | Later,
            trace_id: int = 0,
            span_id: int = 0,
            trace_flags: int = 0,
        ) -> None:
            if not state.on:
                return
            if len(events) >= half:
                make_room(1)
            events.append((name, time_unix_nano, now(), attributes, trace_id, span_id, trace_flags))

        return append

    def make_room(self, wanted: int) -> None:
        """Say that events wait for too long, and drop the oldest where there is no room for so many."""
        events = self._events
        while events and len(events) + wanted > self._limit:
            self._drop_oldest()
        self.on_half_full()

    def _drop_oldest(self) -> None:
        try:
            self._events.popleft()
        except IndexError:  # another thread has just taken them all
            return
        try:
            self._numbers.next()
            self._count(1)
        except MemoryError:
            self._uncounted += 1

    def take_over(self, waiting: list[Raw]) -> None:
        """Log the events of a list, and take them out of it: each once, wherever an interrupt comes."""
        events, half = self._events, self._limit // 2
        if self.append is _nothing or not switch.on:
            waiting.clear()
        while waiting:
            some = waiting[:_AT_ONCE]
            if len(events) + len(some) > half:
                self.make_room(len(some))
            before = len(events)
            # No call in between, so that they are in one place or the other: see interrupts.ATOMIC.
            del waiting[:_AT_ONCE]
            try:
                events.extend(some)
            except MemoryError:  # the first ones are in
                self._uncounted += len(some) - min(max(len(events) - before, 0), len(some))
                raise

    def keep(self, wanted: bool) -> None:
        """Keep events from now on; or hold none, where no destination takes events: that is no loss."""
        self._wanted = wanted
        self._open()
        if not self.kept:
            self._events.clear()

    def pin(self, pinned: bool) -> None:
        """Keep events in spite of :meth:`keep`: the program has a destination of its own for them."""
        self._pinned = pinned
        self._open()

    @property
    def kept(self) -> bool:
        """Tell whether events are taken by anything."""
        return self._wanted or self._pinned

    @property
    def pinned(self) -> bool:
        """Tell whether the program has a destination of its own for events."""
        return self._pinned

    def widen(self, limit: int) -> None:
        """Hold ``limit`` events at least."""
        if limit > self._limit:
            self._limit = limit
            self._open()

    def _open(self) -> None:
        keeps = self.kept and self._registry.enabled
        self.append = self._appender() if keeps else _nothing
        self.taking, self.half = self._events if keeps else None, self._limit // 2

    def drain(
        self,
        limit: int | None = None,
        *,
        pack: Pack | None = None,
        into: list[LogEvent] | None = None,
        pace: Callable[[], object] | None = None,
    ) -> list[LogEvent]:
        """Take events out, the oldest first; each leaves once.

        Args:
            limit: so many at most.
            pack: packs points among them: a record of them takes as many numbers as it has points.
            into: gets them, also those that were made before an exception; by default a new list.
            pace: called between events that are not packed.

        Raises:
            MemoryError: the other events wait for the next time.
        """
        events, found = self._events, [] if into is None else into
        left = len(events) if limit is None else limit
        try:
            self._count_rest()
            if pack is not None:
                self._drain_packed(left, pack, found, pace or _nothing)
                return found
            with contextlib.suppress(IndexError):  # another thread takes some out, too
                for _ in range(left):
                    event = events.popleft()
                    try:
                        self._make(event, found)
                    except BaseException:  # in the block that it has just left: without a new one
                        events.appendleft(event)
                        raise
        except MemoryError:  # those that are made leave, the others wait for the next time
            if into is not None or not found:
                raise
        return found

    def _drain_packed(self, limit: int, pack: Pack, found: list[LogEvent], pace: Callable[[], object]) -> None:
        events, taken, packed = self._events, list[Raw](), list[PackedPoints]()
        oldest = itertools.islice(iter(events.popleft, None), limit)
        others, turned = taken, False
        try:
            try:
                with contextlib.suppress(IndexError):
                    taken.extend(oldest)  # one step, whatever interrupts it
            except MemoryError:  # for the list: the event on its way into it is gone
                self._uncounted += 1
            with contextlib.suppress(MemoryError):  # then each leaves for itself
                packed, others = pack(taken)
            packed.reverse()
            others.reverse()
            turned = True
            while packed:  # nothing here needs memory, so that nothing is in between where there is none
                self._make_packed(packed[-1], found)
                packed.pop()
            while others:
                self._make(others[-1], found)
                others.pop()
                pace()
        except BaseException:
            if not turned:
                others.reverse()
            self._put_back(others)
            self._uncounted += sum(points.size for points in packed)
            raise

    def _put_back(self, events: list[Raw]) -> None:
        """Let events wait again, the oldest of which is the last one here."""
        back = 0
        try:
            for event in events:
                self._events.appendleft(event)
                back += 1
        except MemoryError:
            self._uncounted += len(events) - back

    def _make(self, event: Raw, found: list[LogEvent]) -> None:
        """Append an event as it leaves; one whose attributes cannot be made costs itself alone.

        Raises:
            MemoryError: there is none for the event itself, which is to wait for the next time.
        """
        name, at, observed, attributes, trace_id, span_id, flags = event
        try:
            if isinstance(attributes, tuple):
                attributes = attributes[0](*attributes[1:])
        except Exception as error:  # noqa: BLE001 - a value of the program's, or no memory
            pass_on(error)
            self._fail(name, error)
            return
        number = self._numbers.next()
        found.append(LogEvent(name, at, observed, attributes, number, trace_id, span_id, flags, self.stream))

    def _make_packed(self, points: PackedPoints, found: list[LogEvent]) -> None:
        try:
            found.append(packed_event(points, self._numbers.take(points.size), self.stream))
        except MemoryError as error:
            self._fail(PACKED, error, points.size)

    def _fail(self, name: str, error: Exception, points: int = 1) -> None:
        """Count lost points, and say it once: now, or where there is no memory for that the next time."""
        self._uncounted += points
        try:
            self._numbers.next()
            self._count_rest()
            message = "lost an event %r: %r (further warnings are suppressed; see tachograph_dropped_total on /metrics)"
            self._log_once("lost", message, name, error, level=logging.ERROR)
        except MemoryError:
            return

    def _count_rest(self) -> None:
        if self._uncounted:
            self._registry.count_dropped("encoding", "journal", self._uncounted)
            self._uncounted = 0

    def give_up(self) -> int:
        """Forget the events that were not taken out, and return how many they are: it takes next to no time."""
        lost, self._uncounted = self._uncounted, 0
        with contextlib.suppress(IndexError):  # another thread takes some out, too
            while True:
                self._events.popleft()
                self._numbers.next()
                lost += 1
        return lost

    def __len__(self) -> int:
        return len(self._events)

    def tell(self, name: str, attributes: Mapping[str, AttributeValue]) -> None:
        """Log an event for hubs of ours alone: no other destination gets it. Of those that wait the newest few stay.

        These events are a stream of their own, so that none of the others seems missing.
        """
        if switch.on and self._registry.enabled:
            now, number = time.time_ns(), self._told_numbers.next()
            self.told.append(LogEvent(name, now, now, attributes, number, 0, 0, 0, f"{self.stream}.life"))

    def record(
        self,
        attributes: Mapping[str, AttributeValue],
        time_unix_nano: int,
        *,
        finish: Finish,
        trace_id: int = 0,
        span_id: int = 0,
        trace_flags: int = 0,
    ) -> None:
        """Log a record of the program's own logging: for hubs of ours, and where logs are asked for by name.

        They are a stream of their own. The newest 256 wait; those before are dropped and counted.

        Args:
            attributes: among them the fields of a log record, :data:`RECORD_FIELDS`.
            time_unix_nano: when it was logged.
            finish: returns the attributes as they leave; called when they do, in another thread.
            trace_id: of the current span, as all that follows; 0 outside a sampled one.
            span_id: see above.
            trace_flags: see above.
        """
        if not (switch.on and self.kept and self._registry.enabled):
            return
        if len(self.records) >= _MOST_RECORDS:
            self._count(1)
        number, stream, now = self._record_numbers.next(), f"{self.stream}.log", time.time_ns()
        event = LogEvent(LOG, time_unix_nano, now, attributes, number, trace_id, span_id, trace_flags, stream)
        self.records.append((event, finish))

    def drain_records(self) -> list[LogEvent]:
        """Take out the records of the program's logging; one whose attributes cannot be made costs itself alone."""
        found: list[LogEvent] = []
        with contextlib.suppress(IndexError):  # another thread takes some out, too
            while True:
                event, finish = self.records.popleft()
                try:
                    found.append(event._replace(attributes=finish(event.attributes)))
                except Exception as error:  # noqa: BLE001 - as for any event
                    pass_on(error)
                    self._uncounted += 1
                    message = (
                        "lost an event %r: %r (further warnings are suppressed; see tachograph_dropped_total on "
                        "/metrics)"
                    )
                    self._log_once("lost", message, LOG, error)
        return found

    def waiting(self) -> list[Raw]:
        """Return the events that wait, and leave them there."""
        return list(self._events)

    def is_half_full(self) -> bool:
        """Tell whether events are to leave at once, so that none is dropped."""
        return len(self._events) >= self._limit // 2

    def begin_stream(self) -> None:
        """Begin a new stream: the events that wait are its first ones."""
        self._numbers, self._told_numbers, self._record_numbers = NumberSequence(), NumberSequence(), NumberSequence()
        self.stream = random_hex()

    def reset(self) -> None:
        """Forget every event and begin a new stream, as a forked child does."""
        self._events: deque[Raw] = deque()
        self.told: deque[LogEvent] = deque(maxlen=_MOST_TOLD)
        self.records: deque[tuple[LogEvent, Finish]] = deque(maxlen=_MOST_RECORDS)
        self._uncounted = 0  # lost, while there was no memory to count it
        self.on_half_full: Callable[[], object] = _nothing
        self.begin_stream()
        self._open()


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


default = Journal(registries.default)

at_fork("journal", in_child=default.reset)
