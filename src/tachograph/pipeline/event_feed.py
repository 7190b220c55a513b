"""From the journal to the destinations that take events, a bounded batch at a time."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tachograph.exporters.batch import Batch
from tachograph.pipeline._calls import CallsFeed
from tachograph.pipeline.destinations import Route
from tachograph.recording import timer
from tachograph.recording.gil_yield import SLICE, GilYield
from tachograph.recording.holders import Holder, no_rest
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import SCHEMA, Journal, LogEvent, packed_event
from tachograph.recording.logged_points import POINT, packed
from tachograph.recording.packed_points import PackedPoints, PlainPoints
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry

EVENTS_PER_BATCH = 2048
POINTS_PER_BATCH = 65_536
_SLICE, _PACKED_SLICE = 256, 1024  # events that are taken out at once, at most
_FEWEST = 32
_GATHERING = 0.5  # seconds for the events that are not in the journal yet
_POLL = 0.001

_log = logging.getLogger("tachograph")


class Feed(Protocol):
    """The source of a pipeline's events; see :class:`EventFeed`."""

    def count(self) -> int:
        """Return how many events there are to deliver."""

    def waiting(self) -> bool:
        """Tell whether there are events to deliver, or some may come from elsewhere."""

    def deliver(
        self,
        routes: Sequence[Route],
        resource: Mapping[str, AttributeValue],
        deadline: float | None = None,
        *,
        until: Callable[[], bool] | None = None,
    ) -> bool:
        """Hand over the events that wait at the call.

        Args:
            routes: to every one of them that takes events.
            resource: of the events.
            deadline: on the monotonic clock.
            until: asked before each batch; where it returns True, the rest is left to the next call.

        Returns:
            False where something is left.
        """

    def undecided(self) -> bool:
        """Tell whether something waits for the first answer of a receiver, which says whether it takes that."""

    def open(self, routes: Sequence[Route]) -> None:
        """Begin."""

    def on_half_full(self, call: Callable[[], object]) -> None:
        """Call something where so many events wait that they are to leave at once: see :class:`Journal`."""

    def is_half_full(self) -> bool:
        """Tell whether so many wait."""

    def flush(self, timeout: float) -> bool:
        """Deliver the events that leave by another pipeline; False where ``timeout`` seconds were too short."""

    def hear_last_words(self, timeout: float) -> None:
        """Have everything logged that is still held: the process ends."""

    def halt(self) -> None:
        """Hand over no more, in any thread: the destinations are about to close."""

    def close(self, *, exiting: bool) -> int:
        """End; return how many events are lost by that."""


class EventFeed:
    """Takes events out of a journal, each once, and hands them to every route that wants them.

    Args:
        journal: where they wait.
        registry: where losses are counted.
    """

    def __init__(self, journal: Journal, registry: Registry) -> None:
        self._journal = journal
        self._registry = registry
        self._calls = CallsFeed(journal, registry)
        self._failed: set[str] = set()
        self._taken: list[LogEvent] | None = None  # out of the journal, and not handed over yet
        self._uncounted: dict[str, int] = {}  # lost, while there was no memory to count it
        self._takes = self._halted = False
        self._takers: Sequence[Route] = ()
        self._slice = _SLICE

    def count(self) -> int:
        """Return how many events there are to deliver."""
        return len(self._journal) + len(self._taken or ()) + len(self._journal.records)

    def waiting(self) -> bool:
        """Tell whether there are events to deliver, or a holder or a curve may have some."""
        return self.count() > 0 or bool(self._journal.holders) or self._registry.points.waiting()

    def deliver(
        self,
        routes: Sequence[Route],
        resource: Mapping[str, AttributeValue],
        deadline: float | None = None,
        *,
        until: Callable[[], bool] | None = None,
    ) -> bool:
        """Hand over the events that wait at the call: see :class:`Feed`; False where the end came first, too."""
        takers = self._takers = [route for route in routes if route.events]
        if self._uncounted:
            self._count_rest()
        if not takers:
            self._registry.points.wanted = False
            return True
        self._takes = True
        everything = not timer.default.is_at_work()  # in a task of the timer nothing is waited for: what is due leaves
        self._deliver_told(takers, resource, everything=everything)
        self._deliver_records(takers, resource)
        if self._journal.holders:
            self._gather(_GATHERING, everything=everything)
        left = len(self._journal) + len(self._taken or ())
        packs = left > 0 and all((route.reads() or 0) >= SCHEMA for route in takers)
        while left > 0:
            if self._halted or (deadline is not None and time.monotonic() >= deadline) or (until and until()):
                return False
            events = self._drained(min(left, EVENTS_PER_BATCH), packs=packs)
            if not events:
                break
            left -= sum(event.points for event in events)
            batch = Batch([], None, [], resource, time.time_ns(), events)
            self._taken = None  # they have left, or are counted
            for route in takers:
                self._hand_over(route, batch)
        return self._deliver_points(takers, resource, deadline, everything=everything)

    def _deliver_told(
        self, takers: Sequence[Route], resource: Mapping[str, AttributeValue], *, everything: bool
    ) -> None:
        """Hand over the events for hubs of ours; nothing where there is none, once all receivers have said so."""
        said = [route.reads() for route in takers]
        if any(said):
            self._calls.tell(everything=everything)
        if not self._journal.told or (None in said and not any(said)):
            return
        events: list[LogEvent] = []
        with contextlib.suppress(IndexError):  # another thread takes some out, too
            while True:
                events.append(self._journal.told.popleft())
        for route, reads in zip(takers, said, strict=True):
            if reads and events:
                self._hand_over(route, Batch([], None, [], resource, time.time_ns(), events))

    def _deliver_records(self, takers: Sequence[Route], resource: Mapping[str, AttributeValue]) -> None:
        """Hand over the records of the program's logging: to hubs of ours, and where logs were asked for by name."""
        if not self._journal.records or _takes_records(takers) is None:
            return
        events = self._journal.drain_records()
        for route in takers:
            if events and (route.records or route.reads()):
                self._hand_over(route, Batch([], None, [], resource, time.time_ns(), events))

    def _deliver_points(
        self,
        takers: Sequence[Route],
        resource: Mapping[str, AttributeValue],
        deadline: float | None,
        *,
        everything: bool,
    ) -> bool:
        """Hand over the points of curves: packed to our own hub, elsewhere apart, where that is asked for."""
        points = self._registry.points
        points.wanted = _takes_points(takers)
        if not points.wanted:
            return True
        if self._halted or (deadline is not None and time.monotonic() >= deadline):
            return False
        if not points.waiting():
            return True
        packed: list[LogEvent] = []
        alone: list[LogEvent] = []
        waiting, pace = 0, GilYield()
        stream = f"{self._journal.stream}.{points.stream}"  # by its name, a reader sees that it is of the same start
        is_apart = any(route.apart and not route.reads() for route in takers)
        for first, found in points.drain(everything=everything):  # to its end: they leave once
            try:
                event = packed_event(found, first, stream)
                packed.append(event)
            except MemoryError:
                self._lose("journal", found.size)
                continue
            try:
                alone += apart(found, event) if is_apart else ()
            except MemoryError:
                self._lose("journal", found.size)
            pace()
            waiting += event.points
            if waiting < POINTS_PER_BATCH:
                continue
            self._hand_over_points(takers, resource, packed, alone)
            packed, alone, waiting = [], [], 0
        self._hand_over_points(takers, resource, packed, alone)
        return True

    def _hand_over_points(
        self,
        takers: Sequence[Route],
        resource: Mapping[str, AttributeValue],
        packed: Sequence[LogEvent],
        alone: Sequence[LogEvent],
    ) -> None:
        for route in takers:
            events = packed if route.reads() else alone if route.apart else ()
            if events:
                self._hand_over(route, Batch([], None, [], resource, time.time_ns(), events))

    def undecided(self) -> bool:
        """Tell whether something waits until a receiver has said whether it is a hub of ours."""
        points = self._registry.points
        if self._takes and (self._journal.told or self._journal.records):
            return True
        return self._takes and points.wanted is None and points.waiting()

    def open(self, routes: Sequence[Route]) -> None:
        """Begin: where none of the routes takes events, the journal keeps none."""
        self._takes, self._halted = any(route.events for route in routes), False
        self._journal.keep(self._takes)
        self._registry.points.wanted = _takes_points([route for route in routes if route.events])

    def on_half_full(self, call: Callable[[], object]) -> None:
        """Have the journal call something where it is half full, until the end."""
        self._journal.on_half_full = lambda: self._takes and call()

    def is_half_full(self) -> bool:
        """Tell whether the journal is."""
        return self._journal.is_half_full()

    def flush(self, _timeout: float) -> bool:
        """Return True: nothing leaves by another pipeline."""
        return True

    def hear_last_words(self, timeout: float) -> None:
        """Have everything logged that is still held, for ``timeout`` seconds at most: the process ends."""
        deadline = time.monotonic() + timeout
        for log_last in list(self._journal.last_words):
            self._guarded(log_last, max(deadline - time.monotonic(), 0.0))
        for holder in self._gather(max(deadline - time.monotonic(), 0.0), everything=True):
            holder.give_up("shutdown")

    def _gather(self, timeout: float, *, everything: bool) -> list[Holder]:
        """Have the holders log their due points, or all; return those that have more to come."""
        asked = list(self._journal.holders)
        if not asked:
            return asked
        deadline = time.monotonic() + timeout
        pace = no_rest if everything else GilYield()
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            asked = [
                holder
                for holder in asked
                if self._guarded(holder.hand_in, left, everything=everything, pace=pace) is False
            ]
            if not everything or not asked or time.monotonic() >= deadline:
                return asked
            time.sleep(_POLL)

    def _guarded(self, call: Callable[..., object], *arguments: Any, **more: Any) -> object:
        try:
            return call(*arguments, **more)
        except Exception as error:  # noqa: BLE001 - each has its turn
            pass_on(error)
            self._registry.count_error("journal")
            _log.exception("lost events that were not logged yet")
            return None

    def halt(self) -> None:
        """Hand over no more: waiting events stay in the journal, as a closed destination would only count them out."""
        self._halted = True

    def close(self, *, exiting: bool) -> int:
        """End: events that could not leave wait for a later start, or are lost where the process ends.

        Returns:
            How many are lost; they are counted.
        """
        self._journal.on_half_full = lambda: None
        self._journal.keep(True)
        points, lost = self._registry.points, 0
        # Also where no receiver has ever answered; but not where the first answer, at the end, said that it is no hub.
        if exiting and self._takes and _takes_points(self._takers) is not False:
            lost = sum(found.size for _, found in points.drain(everything=True))
        points.wanted = None
        if exiting and (self._takes or self._journal.pinned):
            lost += self._journal.give_up() + sum(event.points for event in self._taken or ())
            if _takes_records(self._takers) is not False:
                lost += len(self._journal.drain_records())
            self._taken = None
        if lost:
            self._registry.count_dropped("shutdown", "journal", lost)
            what = "1 event" if lost == 1 else f"{lost} events"
            _log.warning("journal: lost %s because the process ended before they were exported", what)
        return lost

    def _drained(self, limit: int, *, packs: bool) -> list[LogEvent]:
        if self._taken is None:
            self._taken = []
        pace, events = GilYield(hurries=self.is_half_full), self._taken
        left = limit - sum(event.points for event in events)
        most, pack = (_PACKED_SLICE, packed) if packs else (_SLICE, None)
        while left > 0 and len(self._journal):  # a slice may be empty: of events that cannot be made
            pace()
            before, began = len(events), time.thread_time()
            try:
                self._journal.drain(min(self._slice, most, left), pack=pack, into=events, pace=pace)
            except MemoryError:  # those before it still leave
                break
            left -= sum(event.points for event in events[before:])
            self._fit(time.thread_time() - began)
        pace()
        return events

    def _fit(self, took: float) -> None:
        """Have the next slice take as long as one between two rests: a thousand curves take ten times one's time."""
        if took > SLICE:
            self._slice = max(self._slice // 2, _FEWEST)
        elif took < SLICE / 4:
            self._slice = min(self._slice * 2, _PACKED_SLICE)

    def _hand_over(self, route: Route, batch: Batch) -> None:
        name = type(route.destination).__name__
        try:
            route.destination(batch)
        except BaseException as error:  # one destination that fails shall cost the others nothing
            self._lose(
                name, sum(event.points for event in batch.events)
            )  # also where an interrupt comes: what has left already is not known
            if not isinstance(error, Exception):
                raise
            pass_on(error)
            if name not in self._failed:
                self._failed.add(name)
                message = (
                    "%s failed, dropped its events: %r (further warnings are suppressed; see "
                    "tachograph_dropped_total on /metrics)"
                )
                _log.error(message, name, error)

    def _lose(self, destination: str, points: int) -> None:
        """Count lost points: now, or where there is no memory for that at the next delivery."""
        self._uncounted[destination] = self._uncounted.get(destination, 0) + points
        try:
            self._count_rest()
        except MemoryError:
            return

    def _count_rest(self) -> None:
        for destination, points in self._uncounted.items():
            if points:
                self._registry.count_dropped("encoding", destination, points)
                self._uncounted[destination] = 0


def apart(points: PackedPoints | PlainPoints, packed: LogEvent) -> Iterator[LogEvent]:
    """Yield an event of each point, for destinations that do not know packed ones."""
    for place, at, attributes in points.apart():
        yield LogEvent(POINT, at, packed.observed_unix_nano, attributes, packed.seq + place, 0, 0, 0, packed.stream)


def _takes_points(takers: Sequence[Route]) -> bool | None:
    """Tell whether any destination takes the points of curves; None as long as one has not said."""
    return _wanted([True if route.apart else route.reads() for route in takers])


def _takes_records(takers: Sequence[Route]) -> bool | None:
    """Tell whether any destination takes the records of the program's logging; None as long as one has not said."""
    return _wanted([True if route.records else route.reads() for route in takers])


def _wanted(said: Sequence[int | None]) -> bool | None:
    return True if any(said) else None if None in said else False


class Host(Protocol):
    """The pipeline that runs already."""

    def attach(self, route: Route) -> None:
        """Deliver to one more destination."""

    def detach(self, route: Route) -> None:
        """Deliver to it no longer."""

    def flush(self, timeout: float) -> bool:
        """Deliver everything recorded so far; False where ``timeout`` seconds were too short."""

    def deliver_events(self, deadline: float | None) -> bool:
        """Hand over the events that wait, to every destination."""


class GuestFeed:
    """A :class:`tachograph.pipeline.event_feed.Feed` out of another pipeline, whose journal gives each event once.

    Args:
        host: that pipeline; it delivers events to the destinations here from :meth:`open` to :meth:`close`.
        shared: whether the host delivers what the program asked for, too: then it is flushed with the guest.
    """

    def __init__(self, host: Host, *, shared: bool = False) -> None:
        self._host = host
        self._shared = shared
        self._attached: list[Route] = []

    def count(self) -> int:
        """Return 0: the host looks after them."""
        return 0

    def waiting(self) -> bool:
        """Return False: the host looks after them."""
        return False

    def undecided(self) -> bool:
        """Return False: the host looks after them."""
        return False

    def open(self, routes: Sequence[Route]) -> None:
        """Have events delivered to those routes that take them."""
        self._attached = [
            Route(
                route.destination,
                events=True,
                reads=route.reads,
                apart=route.apart,
                records=route.records,
                spools=route.spools,
                busy_at=route.busy_at,
            )
            for route in routes
            if route.events
        ]
        for route in self._attached:
            self._host.attach(route)

    def on_half_full(self, call: Callable[[], object]) -> None:
        """Do nothing: the host's journal calls the host."""

    def is_half_full(self) -> bool:
        """Return False: the host's journal is asked by the host."""
        return False

    def deliver(
        self,
        routes: Sequence[Route],
        resource: Mapping[str, AttributeValue],  # noqa: ARG002 - the host has its own
        deadline: float | None = None,
        *,
        until: Callable[[], bool] | None = None,  # noqa: ARG002 - the host goes on
    ) -> bool:
        """Have the host hand over the waiting events; False where the deadline came first."""
        return not any(route.events for route in routes) or self._host.deliver_events(deadline)

    def flush(self, timeout: float) -> bool:
        """Flush the host, where it delivers for the guest; False where ``timeout`` seconds were too short."""
        return not self._shared or self._host.flush(timeout)

    def hear_last_words(self, _timeout: float) -> None:
        """Do nothing: the host hears them, once."""

    def halt(self) -> None:
        """Do nothing: the host goes on, and the guest is detached from it."""

    def close(self, *, exiting: bool) -> int:  # noqa: ARG002 - what waits stays with the host
        """Have nothing delivered any more; nothing is lost by that."""
        for route in self._attached:
            self._host.detach(route)
        self._attached = []
        return 0
