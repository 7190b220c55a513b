"""The pipeline: from the registry to every destination, in the background, until the process ends.

One thread collects; each destination has a queue and a thread of its own, so that one that is dead holds up no other.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tachograph.exporters.batch import Batch
from tachograph.exporters.joined import Joined, foreign_provider
from tachograph.exporters.log_emitter import foreign_logger_provider, into_provider
from tachograph.exporters.otlp.settings import Signal
from tachograph.exporters.prometheus.client import ClientRegistry
from tachograph.exporters.prometheus.endpoint import Endpoint
from tachograph.exporters.prometheus.page import Page
from tachograph.exporters.spans import SpanQueue
from tachograph.hardware import Closer, observe
from tachograph.identity.rank import speaks_for_node
from tachograph.identity.resource import announced, resource_attributes, series_labels
from tachograph.pipeline._providers import own_meter_provider, owns_meter_provider, tap_spans, untap_spans
from tachograph.pipeline._routes import CLOSING, LONGEST_EXIT, Routes
from tachograph.pipeline._sigterm import SigtermFlush, send_missed
from tachograph.pipeline.destinations import Route, SdkInstruments, build_routes
from tachograph.pipeline.event_feed import EventFeed, Feed
from tachograph.pipeline.provider_watch import waiting_instruments
from tachograph.pipeline.settings import Settings
from tachograph.pipeline.ticker import Ticker
from tachograph.recording import journal as journals
from tachograph.recording.gil_yield import Pace
from tachograph.recording.interrupts import pass_on
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

    from tachograph.recording.points import AttributeValue, MetricPoints

EXIT_TIMEOUT = 1.0  # seconds that dead destinations may add to the end of the process, all together
_STUCK_TIMEOUT = EXIT_TIMEOUT / 4  # what is left of it, once nobody has taken anything

_log = logging.getLogger("tachograph")


class Pipeline:
    """Delivers what is recorded, from :func:`tachograph.start` until :meth:`shutdown` or the end of the process.

    A context manager: leaving it shuts it down, unless it is still another ``start()``'s, too: of several ``with``
    statements the last one out ends it, and none does where a ``start()`` has none.

    Attributes:
        metrics_url: where Prometheus finds the metrics; None where no page is served.
        settings: what it runs with.
        last_moment: when its end is to be over at the latest, on the monotonic clock, however much is still taken; None
            as long as that is not near. At the end of the process all of its pipelines share one.

    Args:
        settings: what it runs with.
        registry: what it delivers.
        asked: the signals whose destinations were named in the call, so they are served even where the program has a
            provider of its own.
        idle: deliver nothing: in a helper process, or with ``OTEL_SDK_DISABLED=true``.
        journal: the events that it delivers.
        feed: where its events come from, beside a pipeline that has the journal, the program's own providers and the
            signals already; by default it has them itself.
        served: the signals whose OTLP that other pipeline delivers.
        unasked: the program did not ask for it, so the readers of the program's own provider are not made to collect,
            unless SIGTERM is about to end the process: nothing of theirs would be called any more.
        on_ended: called after its end, if the process goes on.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        asked: frozenset[Signal] = frozenset(),
        idle: bool = False,
        journal: journals.Journal = journals.default,
        feed: Feed | None = None,
        served: frozenset[Signal] = frozenset(),
        unasked: bool = False,
        on_ended: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings
        self._asked, self._served, self._unasked, self._on_ended = asked, served, unasked, on_ended
        self.metrics_url: str | None = None
        self._registry = registry
        self._leads = feed is None
        self._events: Feed = EventFeed(journal, registry) if feed is None else feed
        self._pid = os.getpid()
        self._resource: Mapping[str, AttributeValue] = {}
        self._routes = Routes()
        self._sdk = SdkInstruments(None)
        self._spans: SpanQueue | None = None
        self._endpoint: Endpoint | None = None
        self._joined: Joined | None = None
        self._joins_logs = settings.join and self._leads and "logs" not in asked
        self._looking = threading.Lock()
        self._failed: set[str] = set()
        self._forking = self._said_waiting = self._dying = self._handed_over = False
        self._sigterm: SigtermFlush | None = None
        self._hardware: Closer | None = None
        self._collecting = threading.Lock()
        self._ending = threading.Lock()
        self.last_moment: float | None = None
        self._users = threading.Lock()
        self._started, self._entered, self._left_by_all = 1, 0, False
        self._closed = idle
        self._ticker = Ticker(settings.interval, self._tick, registry)
        if not idle:
            self._open()

    def _open(self) -> None:
        self._resource = self._identity()
        if self._leads:
            announced.announce(self._resource, self.settings.resource_labels)
        self._connect()
        if self._leads:
            # A ValueError: not the main thread, where SIGTERM stays as it is.
            with self._spared("the flush at SIGTERM"), contextlib.suppress(ValueError):
                self._sigterm = SigtermFlush(self._last_words)

    @contextlib.contextmanager
    def _spared(self, part: str) -> Iterator[None]:
        """Go on without a part of it, where no descriptor is left for that: the program is what they are for."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._registry.count_error("start")
            _log.warning("no file descriptor is left: the program goes on without %s", part)

    def _identity(self) -> Mapping[str, AttributeValue]:
        settings = self.settings
        return resource_attributes(
            service_name=settings.service_name, run_id=settings.run_id, extra=dict(settings.resource)
        )

    def _connect(self) -> None:
        settings, registry = self.settings, self._registry
        foreign = None if owns_meter_provider() else foreign_provider()
        ours = foreign is None or "metrics" in self._asked or not settings.join
        own = build_routes(settings, registry, metrics=ours, own_logs=not self._joins_logs, served=self._served)
        self._joins_logs = self._joins_logs and foreign_logger_provider() is None  # else it is among the routes
        self._routes.own = own
        serves = ours and "prometheus" in settings.metrics
        if serves or own:
            self._events.open(own)
        if foreign is not None and settings.join:
            self._joined = Joined(foreign, registry) if self._leads else None
        elif serves or any(route.metrics or route.reader for route in own):
            make = settings.set_global and foreign is None
            self._sdk = SdkInstruments(own_meter_provider(self._resource, make=make))
            if serves:
                self._sdk.attach(None)
            self._sdk.attach_all(own)
        self._routes.feed(self._read_for)
        if any(route.spans for route in own):
            self._spans = SpanQueue(registry)
            tap_spans(self._spans, self._resource, set_global=settings.set_global)
        if serves:
            with self._spared("/metrics"):
                self._serve()
        if own or self._joined:
            self._ticker.start()
        self._observe()

    @property
    def _looks(self) -> bool:
        """Tell whether a provider that the program sets later is to be joined."""
        return self._leads and self.settings.join and self._joined is None and not self._sdk.reads

    def look_for_providers(self) -> None:
        """Join the providers that the program has set meanwhile, and read one that a ``start()`` of ours has made."""
        if self._closed or not self._looking.acquire(blocking=False):
            return
        try:
            if self._looks:
                self._look_for_meter_provider()
            theirs = foreign_logger_provider() if self._joins_logs else None
            if theirs is not None:
                self._joins_logs = False
                self._routes.own = [*self._routes.own, Route(into_provider(theirs, self._registry), events=True)]
                self._events.open(list(self._routes))
        finally:
            self._looking.release()

    def _look_for_meter_provider(self) -> None:
        if owns_meter_provider():
            self._sdk = SdkInstruments(own_meter_provider(self._resource))
            self._sdk.attach_all(self._routes)
            return
        theirs = foreign_provider(load=False)
        if theirs is not None:
            self._joined = Joined(theirs, self._registry)
            self._ticker.start()

    def _observe(self) -> None:
        if self.settings.system_metrics:
            node = speaks_for_node(self._resource, os.environ, os.getpid())
            self._hardware = observe(self._registry, node=node, process=True)

    def _serve(self) -> None:
        settings = self.settings
        labels = series_labels(self._resource, settings.resource_labels)
        client = ClientRegistry(self._registry) if settings.prometheus_registry else None
        page = Page(labels, self._resource, self._registry, client=client)
        where = settings.prometheus_host, settings.prometheus_port
        self._endpoint = Endpoint(self._read, page, *where, self._registry, store=settings.store)
        self.metrics_url = self._endpoint.url

    def _read(self) -> tuple[list[MetricPoints], MetricsData | None]:
        return self._registry.collect(Pace()), self._sdk.read(None)

    def _read_for(self, reader: MetricReader, timeout: float) -> Batch | None:
        """Return what a reader collects, in its thread; None where ``timeout`` seconds were too short."""
        if not self._collecting.acquire(timeout=max(timeout, 0.0)):
            return None
        try:
            self.look_for_providers()
            return Batch(self._registry.collect(Pace()), self._sdk.read_for(reader), [], self._resource, time.time_ns())
        finally:
            self._collecting.release()

    def _tick(self, metrics: bool) -> None:
        self.look_for_providers()
        if self._joined is not None and not metrics:
            self._joined.refresh()
        if metrics or (self._spans is not None and len(self._spans)) or self._events.waiting():
            self._export(metrics=metrics, ticked=True)

    def _export(self, *, metrics: bool, wait: float = -1, ticked: bool = False) -> bool:
        """Collect, and hand batches to every destination; False where ``wait`` seconds were too short for that."""
        deadline = time.monotonic() + wait if wait >= 0 else None
        if not self._collecting.acquire(timeout=wait):
            return False
        try:
            if ticked and self._ticker.stopped:  # it waited for the last collection, and would come after the end
                return False
            self.look_for_providers()
            if self._joined is not None:
                self._joined.refresh()
            if metrics and not self.settings.set_global:
                self._say_waiting()
            now = time.time_ns()
            points = self._registry.collect(Pace()) if metrics and any(route.metrics for route in self._routes) else []
            spans = self._spans.drain() if self._spans is not None else []
            read = self._sdk.reading()
            for route in self._routes:
                wanted = spans if route.spans else []
                found = points if route.metrics else []
                if found or wanted:
                    sdk = read(route.temporality) if found else None
                    self._hand_over(route, Batch(found, sdk, wanted, self._resource, now))
            return self._events.deliver(list(self._routes), self._resource, deadline)
        finally:
            self._collecting.release()

    def _hand_over(self, route: Route, batch: Batch) -> None:
        try:
            route.destination(batch)
        except Exception as error:  # noqa: BLE001 - one that fails shall cost neither the others nor the program's end
            pass_on(error)
            name = type(route.destination).__name__
            lost = len(batch.spans) + sum(len(metric.points) for metric in batch.metrics)
            self._registry.count_dropped("encoding", name, lost)
            if name not in self._failed:
                self._failed.add(name)
                _log.error("%s took no metrics or spans (further losses are counted): %r", name, error)

    def _say_waiting(self) -> None:
        """Say once that other libraries measure, and nobody has set a provider that would hear them."""
        waiting = 0 if self._said_waiting or self._joined is not None else waiting_instruments()
        if waiting:
            self._said_waiting = True
            _log.warning(
                "%d instruments of OpenTelemetry's API have no MeterProvider, so that what they measure goes nowhere: "
                "set one, or leave set_global=False out of start()",
                waiting,
            )

    def attach(self, route: Route) -> None:
        """Deliver to one more destination from the next collection on.

        Whoever attached it closes it, if the process goes on when the pipeline ends.
        """
        if self._closed:
            return
        self._sdk.attach(route.temporality)
        self._routes.attach(route)
        self._ticker.start()

    def detach(self, route: Route) -> None:
        """Deliver to an attached destination no longer."""
        self._routes.detach(route)

    def flush(self, timeout: float = 5.0) -> bool:
        """Deliver everything recorded so far.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether every destination has taken it.
        """
        if self._closed or os.getpid() != self._pid:
            return True
        deadline = time.monotonic() + timeout
        collected = self._export(metrics=True, wait=timeout)
        arrived = self._routes.flush(deadline)
        arrived = self._events.flush(_left(deadline)) and arrived
        return self._flush_joined(deadline) and collected and arrived

    def deliver_events(self, deadline: float | None) -> bool:
        """Hand the events that wait to every destination; False where the deadline came first."""
        return self._export(metrics=False, wait=-1 if deadline is None else _left(deadline))

    def hand_on(self, longest: float = LONGEST_EXIT, *, metrics: bool = False) -> float:
        """Deliver the events that wait, while somebody takes them: the end is near.

        Args:
            longest: seconds that it may take.
            metrics: collect and deliver metrics, too.

        Returns:
            The seconds that the rest of the end may take: few, where nobody has taken anything.
        """
        if self._closed or os.getpid() != self._pid:
            return EXIT_TIMEOUT
        if self.last_moment is None:
            self.last_moment = time.monotonic() + LONGEST_EXIT
        longest = min(longest, _left(self.last_moment))
        wanted = [metrics]  # once: what is collected again would only be more to deliver
        arrived = self._routes.hand_on(
            lambda seconds: self._export(metrics=bool(wanted and wanted.pop()), wait=seconds), longest
        )
        return EXIT_TIMEOUT if arrived else _STUCK_TIMEOUT

    def hand_over(self, timeout: float) -> None:
        """Deliver into the provider of the program's own for the last time, within ``timeout`` seconds: it ends now."""
        if self._joined is None or self._closed or os.getpid() != self._pid:
            return
        deadline = time.monotonic() + timeout
        self._export(metrics=False, wait=timeout)
        self._flush_joined(deadline)
        self._handed_over = True

    def _flush_joined(self, deadline: float) -> bool:
        if self._joined is None or self._handed_over:
            return True
        drained = self._joined.drain(_left(deadline))
        if self._unasked and not self._dying:
            return drained
        return self._joined.force_flush(_left(deadline)) and drained

    def _last_words(self, dying: bool) -> None:
        self._dying = dying
        if dying:
            self.shutdown(self.hand_on(), exiting=True)
        else:
            self.flush(EXIT_TIMEOUT)

    def shutdown(self, timeout: float | None = None, *, exiting: bool = False) -> None:
        """Deliver everything recorded so far, and end; recording goes on in memory, for a later ``start()``.

        It takes as long as the end of the process does: a second where no destination takes anything, and up to ten
        where one goes on taking what comes. What has not arrived by then is counted as dropped.

        Args:
            timeout: seconds that it may take at most, if that is less.
            exiting: the process ends right after it; a provider of the program's own collects once more, then.
        """
        if (self._closed and not self._ending.locked()) or os.getpid() != self._pid:
            if exiting and os.getpid() == self._pid:
                self._events.close(exiting=True)  # what was logged since its end is lost
            return
        longest = LONGEST_EXIT if timeout is None else timeout
        deadline = time.monotonic() + longest
        if not self._ending.acquire(timeout=longest):  # another thread is at it
            return
        try:
            if not self._closed:
                self._end(deadline, exiting=exiting)
        except Exception as error:  # noqa: BLE001 - out of memory, say: the program's own error matters more
            pass_on(error)
            self._registry.count_error("end")
            _log.error("not everything could be delivered at the end: %r", error)
        finally:
            self._ending.release()
        if self._on_ended is not None and not exiting:
            self._on_ended()
        send_missed()

    def _end(self, deadline: float, *, exiting: bool) -> None:
        longest = LONGEST_EXIT if exiting else _left(deadline)
        last_moment = time.monotonic() + longest
        if exiting:
            self._events.hear_last_words(_left(deadline) / 2)
        self._take_leave()
        self._ticker.stop()
        if not exiting:
            deadline = min(deadline, time.monotonic() + self.hand_on(_left(deadline), metrics=True))
        taken = self._routes.delivered()
        if not self.flush(max(0.0, _left(deadline) - CLOSING)) and self._routes.goes_on(taken):
            self.hand_on(_left(last_moment))  # it takes by now
        self._closed = True
        self._events.halt()
        if self._collecting.acquire(timeout=_STUCK_TIMEOUT):  # the batch that a thread has in its hand still arrives
            self._collecting.release()
        self._routes.close(deadline, exiting=exiting)
        if self._spans is not None:
            untap_spans(self._spans)
        if self._joined is not None and not exiting:
            self._joined.close()
        if self._endpoint is not None:
            self._endpoint.close(max(_left(deadline), CLOSING))
        if self._hardware is not None:
            self._hardware.close(max(_left(deadline), CLOSING))
        self._sdk.close()
        self._events.close(exiting=exiting)
        if self._sigterm is not None:
            self._sigterm.close()

    def _take_leave(self) -> None:
        """Log what is to be the last event."""

    def await_signal(self) -> None:
        """Where SIGTERM is about to end the process, let it: a program that ends in that moment has not ended well."""
        if self._sigterm is None or os.getpid() != self._pid:
            return
        if self._sigterm.dying and self._ending.acquire(timeout=LONGEST_EXIT):  # its thread delivers what there is
            self._ending.release()
        self._sigterm.close()
        send_missed()

    @property
    def exports_metrics(self) -> bool:
        """Tell whether metrics leave by anything but a page, which shows them only while somebody asks for it."""
        return self._joined is not None or any(route.metrics or route.reader is not None for route in self._routes)

    @property
    def running(self) -> bool:
        """Tell whether it still delivers."""
        return not self._closed

    def before_fork(self) -> None:
        """Let no fork happen in the middle of a collection: the child could never free the SDK's locks."""
        self._forking = self._collecting.acquire(timeout=CLOSING)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._forking:
            self._collecting.release()

    def reset_in_child(self) -> None:
        """Leave everything to the parent process: its sockets, its queues, its signals."""
        self._closed = True
        self._collecting = threading.Lock()
        self._ending = threading.Lock()
        self._looking = threading.Lock()
        self._users = threading.Lock()
        self._routes.reset_in_child()
        for part in (self._joined, self._endpoint, self._sigterm):
            if part is not None:
                part.reset_in_child()

    def started_again(self) -> bool:
        """Count one more ``start()`` that returns it; False where the last one out is about to end it."""
        with self._users:
            if not self._left_by_all:
                self._started += 1
            return not self._left_by_all

    def __enter__(self) -> Pipeline:  # noqa: PYI034 - there are no subclasses, and typing.Self needs CPython 3.11
        """Return itself."""
        with self._users:
            self._started = max(self._started - 1, 0)  # the one that this statement leaves
            self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Shut it down, if nobody else has started it or is in it."""
        with self._users:
            self._entered -= 1
            last = self._left_by_all = not self._started and not self._entered
        if last:
            self.shutdown()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
