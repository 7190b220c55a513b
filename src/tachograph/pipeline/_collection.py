"""The collection of a pipeline: metrics, spans and events, read at each tick and handed to every route."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from tachograph.exporters.batch import Batch
from tachograph.pipeline._process_identity import Identity
from tachograph.pipeline._providers import Providers
from tachograph.pipeline.destinations import CLOSING, Route, Routes, Temporalities
from tachograph.pipeline.event_feed import Feed
from tachograph.pipeline.settings import Settings
from tachograph.recording import timer
from tachograph.recording.columns import Collected
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import free_within, pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

    from tachograph.recording.intervals import IntervalReader
    from tachograph.recording.points import MetricPoints

TICK = 1.0  # seconds between looks for ended spans, events, and providers to join
_NEAR = 1.5  # ticks: a collection that is due within these is the next one
_REST = 12  # of the time without news, the part by which the next tick comes later: a hub expects longer gaps, then
_LONGEST_REST = 10.0  # seconds
_OWN_EVERY = 10.0  # seconds
_SOME_ITEMS = 256  # events and spans that are delivered in no time
_FEW_SERIES = 100  # whose distributions leave with each collection; with more: see Collection._intervals
_SOME_SERIES = 1000  # that are collected and encoded in a few milliseconds


class Collection:
    """The collection of metrics, spans and events, by one thread at a time.

    It ticks from :meth:`begin` until :meth:`stop`; :meth:`export` delivers until the pipeline has closed its routes.

    Args:
        settings: of the pipeline: the interval, and whether it sets global providers.
        registry: the source of the metrics.
        identity: of the process: nothing is delivered before it is known.
        events: the source of the events.
        routes: the destinations.
        providers: of the process: the source of spans and of the metrics of other libraries.
        on_known: called once, as soon as the identity is known.

    Attributes:
        closed: the pipeline has ended, or never delivers.
        holds_back: asked before each batch of events; where it returns True, the rest waits in the journal.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        identity: Identity,
        events: Feed,
        routes: Routes,
        providers: Providers,
        on_known: Callable[[], object],
    ) -> None:
        self._settings, self._registry = settings, registry
        self._identity, self._events, self._routes, self._providers = identity, events, routes, providers
        self._on_known = on_known
        self._log_once = LogOnce()
        self._free_locks()
        self.closed = self._stopped = self._forking = False
        self.holds_back: Callable[[], bool] = lambda: False
        self._due, self._every = 0.0, TICK
        self._ended = self._own_asked = -inf
        self._collected = 0  # series, by the last collection
        self._task: timer.Task | None = None
        self._reader: IntervalReader | None = None

    def _free_locks(self) -> None:
        self._collecting, self._beginning, self._settling = threading.Lock(), threading.Lock(), threading.RLock()

    def settle(self) -> bool:
        """Look for the identity of the process; False as long as it is not known."""
        with self._settling:
            is_first = not self._identity.known
            if not self._identity.settle(lambda: self._events.deliver(list(self._routes), self._identity.resource)):
                return False
            if is_first:
                self._on_known()
            return True

    def look_for_rank(self) -> None:
        """Look for the identity between two collections; in the next one, where one hangs."""
        if self._collecting.acquire(timeout=CLOSING):
            try:
                self.settle()
            finally:
                self._collecting.release()

    def look_for_providers(self) -> None:
        """Join the providers that the program has set meanwhile, and read one that a ``start()`` of ours has made."""
        if self.closed or not self._identity.known:
            return
        self._providers.look(self._routes, self._identity.resource, self._add)
        if self._providers.external is not None:
            self.begin()

    def _add(self, route: Route) -> None:
        self._routes.own = [*self._routes.own, route]
        self._events.open(list(self._routes))

    def begin(self) -> None:
        """Tick from now on."""
        self._interval_takers()
        with self._beginning:
            if self._task is None and not self._stopped:
                self._due = time.monotonic() + self._settings.interval
                self._task = timer.default.every(
                    "pipeline", self._until_next, self._tick, beside=self._may_block, registry=self._registry
                )
                self._events.on_half_full(self._task.hurry)

    def _interval_takers(self) -> tuple[list[float], bool]:
        """Return the seconds between two of distributions' intervals, for each that takes them, and whether all do.

        As long as one has not answered, which may be a hub of ours, the first interval goes on.
        """
        wanted = [(route.intervals(), route.intervals_every) for route in self._routes if route.metrics]
        takers = [every for wants, every in wanted if wants]
        if not takers and all(wants is False for wants, _ in wanted):
            self._close_reader(goes_on=False)
        elif self._reader is None:
            self._reader = self._registry.intervals.open()
        return takers, len(takers) == len(wanted)

    def _intervals(self, *, ticked: bool) -> tuple[IntervalReader | None, bool]:
        """Return the reader whose intervals end now, and whether distributions can wait until one does.

        Ticks come more often than a hub of ours wants intervals. If there are many series, and all destinations are
        hubs, distributions leave with their intervals: else most of a tick would be theirs.
        """
        every, all_take = self._interval_takers()
        if not every:
            return None, False
        if ticked:
            now = time.monotonic()
            if now < self._ended + min(every):
                return None, all_take and self._collected > _FEW_SERIES
            self._ended = now
        return self._reader, False

    def _asks_own(self, *, ticked: bool) -> bool:
        """Tell whether our own metrics are asked, too: each export gives them new values, which would cost the next.

        Losses and errors are told by the next one.
        """
        now = time.monotonic()
        if ticked and now < self._own_asked + _OWN_EVERY and not self._registry.has_own_news:
            return False
        self._own_asked = now
        return True

    def _close_reader(self, *, goes_on: bool) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._registry.intervals.close(reader, goes_on=goes_on)

    def close(self) -> None:
        """Deliver no more; distributions go on for a later pipeline as they did for this one."""
        self.closed = True
        self._close_reader(goes_on=True)

    def stop(self) -> None:
        """Tick no more: the end has begun, and delivers the rest."""
        self._stopped = True
        if self._task is not None:
            self._task.close()

    def wait(self, timeout: float) -> bool:
        """Wait for a collection in another thread; False where it is still at work after ``timeout`` seconds."""
        return free_within(self._collecting, timeout)

    def _until_next(self) -> float:
        left = max(0.0, self._due - time.monotonic())
        return left if left < _NEAR * self._every else self._every  # with a collection there is no tick just before it

    def _may_block(self) -> bool:
        """Tell whether the next tick is long, or runs code that is not ours: callbacks, drivers, other providers."""
        return (
            (time.monotonic() >= self._due and self._is_long())
            or self._providers.joins()
            or self._events.count() + len(self._providers.spans or ()) > _SOME_ITEMS
        )

    def _is_long(self) -> bool:
        """Tell whether a collection is long, or runs code that is not ours."""
        return self._collected > _SOME_SERIES or self._registry.has_sources() or not self._providers.sdk.is_idle()

    def _tick(self) -> None:
        now = time.monotonic()
        metrics = now >= self._due
        if metrics:
            self._due = max(self._due + self._settings.interval, now)
        if metrics or len(self._providers.spans or ()) or self._events.waiting():
            self.export(metrics=metrics, ticked=True)
        else:
            self.look_for_providers()
            self._providers.refresh()
        self._every = self._until_news()
        if self._every > TICK and all(route.skips() for route in self._routes if route.metrics):
            self._due = max(self._due, now + self._every)

    def _until_news(self) -> float:
        """Return the seconds until the next tick: the longer there has been no news, the more of them."""
        newest = max((route.busy_at() for route in self._routes), default=inf)
        if self._providers.external is not None:
            newest = inf
        return max(TICK, min((time.monotonic() - newest) / _REST, _LONGEST_REST))

    def read(self) -> tuple[list[MetricPoints], MetricsData | None]:
        """Return the metrics as they are now, ours and those of other libraries: a page shows them."""
        return self._registry.collect(GilYield()), self._providers.sdk.read(None)

    def read_for(self, reader: MetricReader, timeout: float) -> Batch | None:
        """Return a batch for a reader, in its thread; None where ``timeout`` seconds were too short."""
        if not self.settle() or not free_within(self._collecting, max(timeout, 0.0)):
            return None
        with self._collecting:
            self.look_for_providers()
            points, sdk = self._registry.collect(GilYield()), self._providers.sdk.read_for(reader)
            return Batch(points, sdk, [], self._identity.resource, time.time_ns())

    def export(self, *, metrics: bool, wait: float = -1, ticked: bool = False) -> bool | None:
        """Collect, and hand batches to every destination.

        Args:
            metrics: collect metrics, too, beside spans and events.
            wait: seconds for another thread that collects, and for the events; without end by default.
            ticked: called by a tick, which leaves the rest to the end, once that has begun.

        Returns:
            False where ``wait`` seconds were too short for all events; None where another thread collected all the
            while, so that nothing was.
        """
        with self._settling:
            if not self.settle():
                return True
            self._identity.use()
        deadline = time.monotonic() + wait if wait >= 0 else None
        # A collection may hang in code that is not ours, and the timer waits for nothing: then the next tick delivers.
        if not free_within(self._collecting, CLOSING if ticked and timer.default.is_current() else wait):
            return None
        with self._collecting:
            if ticked and self._stopped:  # it waited for the last collection, and would come after the end
                return False
            self.look_for_providers()
            self._providers.refresh()
            if metrics and not self._settings.set_global:
                self._providers.say_waiting()
            now, resource = time.time_ns(), self._identity.resource
            metrics = metrics and any(route.metrics for route in self._routes)
            reader, wait_for_it = self._intervals(ticked=ticked) if metrics else (None, False)
            pace = GilYield()
            points = Collected((), ())
            if metrics:
                own = self._asks_own(ticked=ticked and reader is None)
                points = self._registry.columns(pace, reader, folds=not wait_for_it, own=own)
            pace()
            self._collected = points.series if metrics else self._collected
            if reader is not None:
                reader.finish()
            spans = self._providers.spans.drain() if self._providers.spans is not None else []
            read = self._providers.sdk.reading() if metrics else None
            self._hand_over_all(Batch(points, None, spans, resource, now), read, pace)

            def until() -> bool:  # a tick leaves the rest of the events to the end, once that begins
                return (ticked and self._stopped) or self.holds_back()

            return self._events.deliver(list(self._routes), resource, deadline, until=until)

    def _hand_over_all(
        self, all_: Batch, read: Callable[[Temporalities | None], MetricsData | None] | None, pace: GilYield
    ) -> None:
        for route in self._routes:
            spans = all_.spans if route.spans else []
            metrics: Sequence[MetricPoints] = all_.metrics if route.metrics else ()
            sdk = read(route.temporality) if route.metrics and read is not None else None
            if metrics or spans or sdk is not None:
                self._hand_over(route, Batch(metrics, sdk, spans, all_.resource, all_.time_unix_nano))
                pace()

    def _hand_over(self, route: Route, batch: Batch) -> None:
        try:
            route.destination(batch)
        except BaseException as error:  # one that fails shall cost neither the others nor the program's end
            name = type(route.destination).__name__
            lost = len(batch.spans) + sum(len(metric.points) for metric in batch.metrics)
            self._registry.count_dropped("encoding", name, lost)
            if not isinstance(error, Exception):
                raise
            pass_on(error)
            message = (
                "%s failed, dropped its metrics and spans: %r (further warnings are suppressed; see "
                "tachograph_dropped_total on /metrics)"
            )
            self._log_once(name, message, name, error, level=logging.ERROR)

    def before_fork(self, timeout: float) -> None:
        """Hold collections, once one at work has ended, for which this waits ``timeout`` seconds."""
        self._forking = self._collecting.acquire(timeout=timeout)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._forking:
            self._forking = False
            self._collecting.release()

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        self.closed, self._reader = True, None
        self._free_locks()
