"""The pulses of this process on their way: one a second to hubs of ours, elsewhere where that is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from tachograph.exporters.batch import Batch
from tachograph.pipeline.destinations import Route
from tachograph.recording import timer
from tachograph.recording.journal import Journal, LogEvent
from tachograph.recording.points import AttributeValue
from tachograph.recording.pulse_source import PULSE, Beat, pulse_source
from tachograph.recording.registry import Registry

PERIOD = 1.0  # seconds
_LOOK_AGAIN = 12.0  # seconds, as long as there is none to send: a rank that joins a group asks for it
_EARLY, _LOOK_EARLY = 0.75, 8.0  # seconds by which both may come sooner, with another task


class PulseTask:
    """Sends pulses until it is closed, past the collection: that may hang in code of the program's.

    Args:
        routes: returns the destinations.
        resource: returns the attributes of the process.
        everywhere: to every destination of events, not to hubs of ours alone.
        journal: its stream names that of the pulses.
        registry: counts errors.
    """

    def __init__(
        self,
        routes: Callable[[], Iterable[Route]],
        resource: Callable[[], Mapping[str, AttributeValue]],
        *,
        everywhere: bool,
        journal: Journal,
        registry: Registry,
    ) -> None:
        self._routes, self._resource, self._everywhere, self._journal = routes, resource, everywhere, journal
        self._beat: Beat | None = pulse_source.begin()
        self._number, self._every, self._early = 0, PERIOD, _EARLY
        self._task = timer.default.every(
            "pulse", lambda: self._every, self.send, early=lambda: self._early, registry=registry
        )

    def send(self) -> None:
        """Send one, where there is a destination for it and the process has one to give."""
        reads = [(route, route.reads()) for route in self._routes() if route.events]
        takers = [route for route, schema in reads if self._everywhere or schema]
        said = self._beat() if self._beat is not None and takers else None
        is_known = all(schema is not None for _, schema in reads)
        rests = said is None and is_known
        self._every, self._early = (_LOOK_AGAIN, _LOOK_EARLY) if rests else (PERIOD, _EARLY)
        if said is None:
            return
        self._number += 1
        now, stream = time.time_ns(), f"{self._journal.stream}.pulse"
        event = LogEvent(PULSE, now, now, {PULSE: said}, self._number, 0, 0, 0, stream)
        for route in takers:
            route.destination(Batch([], None, [], self._resource(), now, [event]))

    def wake(self) -> None:
        """Send the next one now: the process has joined a group."""
        self._task.wake()

    def close(self) -> None:
        """Send no more."""
        self._task.close()
