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
from functools import partial
from typing import TYPE_CHECKING, Any

from tachograph.exporters.external_provider import external_meter_provider
from tachograph.exporters.log_emitter import external_logger_provider
from tachograph.exporters.otlp.settings import Signal
from tachograph.exporters.prometheus.client import ClientRegistry
from tachograph.exporters.prometheus.page import Page
from tachograph.hardware import Closer, observe
from tachograph.identity.environment import JOB_HUB, Setting, text
from tachograph.identity.program import note_undelivered, program_name
from tachograph.identity.rank import speaks_for_node
from tachograph.identity.resource import series_labels
from tachograph.pipeline._collection import Collection
from tachograph.pipeline._process_identity import GivenIdentity, Identity
from tachograph.pipeline._providers import Providers, owns_meter_provider
from tachograph.pipeline._pulse import PulseTask
from tachograph.pipeline._sigterm import SigtermFlush, send_missed
from tachograph.pipeline.destinations import CLOSING, LONGEST_EXIT, Route, Routes, build_routes, to_hub
from tachograph.pipeline.event_feed import EventFeed, Feed
from tachograph.pipeline.settings import Settings
from tachograph.recording import journal as journals
from tachograph.recording.interrupts import pass_on
from tachograph.recording.registry import Registry
from tachograph.recording.table import table_html

if TYPE_CHECKING:
    from tachograph.exporters.prometheus.endpoint import Endpoint
    from tachograph.pipeline._own_hub import OwnHub

EXIT_TIMEOUT = 1.0  # seconds that dead destinations may add to the end of the process, all together
_STUCK_TIMEOUT = EXIT_TIMEOUT / 4  # the rest of it, once no receiver has taken anything

_log = logging.getLogger("tachograph")


class Pipeline:
    """The delivery from :func:`tachograph.start` until :meth:`shutdown` or the end of the process.

    A context manager: leaving it shuts it down, unless it is still another ``start()``'s, too: of several ``with``
    statements the last one out ends it, and none does where a ``start()`` has none.

    Attributes:
        metrics_url: the address of the page for Prometheus; None where none is served.
        hub_url: the address of the hub that draws the run, where ``start(hub=True)`` has asked for it; None for none.
        settings: of this pipeline.
        last_moment: when its end is to be over at the latest, on the monotonic clock, however much is still taken; None
            as long as that is not near. At the end of the process all of its pipelines share one.
        guests: those that the program has started beside it; they end with the process, and before it.

    Args:
        settings: of this pipeline.
        registry: the source of its metrics.
        asked: the signals whose destinations were named in the call, so they are served even where the program has a
            provider of its own.
        idle: deliver nothing: in a helper process, or with ``OTEL_SDK_DISABLED=true``.
        journal: the events that it delivers.
        feed: where its events come from, beside a pipeline that has the journal, the program's own providers and the
            signals already; by default it has them itself.
        served: the signals whose OTLP that other pipeline delivers.
        hub: of this process: it gets everything but spans, and ends with the pipeline.
        identity: of the process, where that may be known late: zero code. Then it makes no provider, and joins
            those of the program once it is known; by default the identity is that of the settings.
        unasked: the program did not ask for it, so the readers of the program's own provider are not made to collect,
            unless SIGTERM is about to end the process: nothing of theirs would be called any more.
        on_settled: called once the identity of the process is known.
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
        hub: OwnHub | None = None,
        identity: Identity | None = None,
        unasked: bool = False,
        on_settled: Callable[[], object] | None = None,
        on_ended: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings
        self._asked, self._served, self._unasked = asked, served, unasked
        self._on_settled, self._on_ended = on_settled, on_ended
        self.metrics_url: str | None = None
        self.hub_url: str | None = None if hub is None else hub.url
        self.last_moment: float | None = None
        self.guests: list[Pipeline] = []
        self._registry, self._journal = registry, journal
        self._leads, self._ambient = feed is None, identity is not None
        self._identity: Identity = identity or GivenIdentity(settings, announces=self._leads, journal=journal)
        self._identity.on_renamed = self._renamed
        self._events: Feed = EventFeed(journal, registry) if feed is None else feed
        self._routes = Routes()
        joins_logs = settings.join and self._leads and "logs" not in asked
        self._providers = Providers(settings, registry, joins=self._leads, joins_logs=joins_logs)
        self._pid = os.getpid()
        self._endpoint: Endpoint | None = None
        self._page: Page | None = None
        self._hardware: Closer | None = None
        self._pulse: PulseTask | None = None
        self._hub = hub
        self._sigterm: SigtermFlush | None = None
        self._collection = Collection(
            settings,
            registry,
            identity=self._identity,
            events=self._events,
            routes=self._routes,
            providers=self._providers,
            on_known=self._known,
        )
        self._collection.closed = idle
        self._free_locks()
        self._serves = self._dying = self._collected_last = self._takes = False
        self._taken: Mapping[int, int] = {}  # by each receiver, when the end began to hold back events
        self._held_back = False
        self._started, self._entered, self._left_by_all = 1, 0, False
        if not idle:
            self._open()

    def _free_locks(self) -> None:
        self._ending, self._users = threading.Lock(), threading.Lock()

    def _open(self) -> None:
        self._identity.begin()
        self._connect()
        if self._leads:
            # A ValueError: not the main thread, where SIGTERM stays as it is.
            with self._spared("the flush at SIGTERM"), contextlib.suppress(ValueError):
                self._sigterm = SigtermFlush(self._last_words)

    @contextlib.contextmanager
    def _spared(self, part: str) -> Iterator[None]:
        """Go on without a part of it, where no descriptor is left for that: the program needs them."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._registry.count_error("start")
            _log.warning("out of file descriptors, continuing without %s: raise the limit (ulimit -n)", part)

    def _connect(self) -> None:
        settings, providers = self.settings, self._providers
        external = None if self._ambient or owns_meter_provider() else external_meter_provider()
        ours = external is None or "metrics" in self._asked or not settings.join
        awaits_logs = providers.joins_logs
        own = build_routes(
            settings,
            self._registry,
            metrics=ours,
            own_logs=not awaits_logs,
            served=self._served,
            hurries=self._events.is_half_full,
        )
        hub_url = settings.job_hub if self._hub is None else self._hub.url
        if hub_url:
            own.append(to_hub(hub_url, settings, self._registry, hurries=self._events.is_half_full))
        providers.joins_logs = awaits_logs and external_logger_provider() is None  # else it is among the routes
        self._routes.own = own
        self._serves = ours and "prometheus" in settings.metrics
        if self._serves or own or self._ambient:
            self._events.open(own)
        if not self._ambient:
            providers.connect(external, own, self._identity.resource, serves=self._serves)
        self._routes.feed(self._collection.read_for)
        self._collection.settle()
        if own or providers.external or self._ambient:
            self._collection.begin()

    def _known(self) -> None:
        """Serve and observe, once the identity of the process is known."""
        if self._on_settled is not None:
            self._on_settled()
        if self._serves:
            with self._spared("/metrics"):
                self._serve()
        if self.settings.system_metrics:
            node = self._hub is None and speaks_for_node(self._identity.resource, os.environ, os.getpid())
            self._hardware = observe(self._registry, node=node, process=True)
        if self._leads and self.settings.doctor != "false" and any(route.events for route in self._routes.own):
            self._pulse = PulseTask(
                lambda: self._routes.own,
                lambda: self._identity.resource,
                everywhere=self.settings.doctor == "all",
                journal=self._journal,
                registry=self._registry,
            )

    def _serve(self) -> None:
        from tachograph.exporters.prometheus.endpoint import Endpoint  # an HTTP server: not for those that only send

        settings, resource = self.settings, self._identity.resource
        labels = series_labels(resource, settings.resource_labels)
        client = ClientRegistry(self._registry) if settings.prometheus_registry else None
        self._page = page = Page(labels, resource, self._registry, client=client)
        where = settings.prometheus_host, settings.prometheus_port
        # The hub's page has this process, too: a target of its own would double its series.
        store = None if self._hub is not None or text(os.environ, JOB_HUB) else settings.store
        try:
            self._endpoint = Endpoint(self._collection.read, page, *where, self._registry, store=store)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            host = Setting("OTEL_EXPORTER_PROMETHEUS_HOST or prometheus_host=", settings.prometheus_host)
            raise host.wrong("expected an address of this machine") from None
        self.metrics_url = self._endpoint.url

    def _renamed(self) -> None:
        if self._page is not None:
            resource = self._identity.resource
            self._page.name(series_labels(resource, self.settings.resource_labels), resource)

    def look_for_rank(self) -> None:
        """Take the identity of the process as it is now: it has joined a process group."""
        if self.running and os.getpid() == self._pid:
            self._collection.look_for_rank()
            if self._pulse is not None:
                self._pulse.wake()
            for guest in self.guests:
                guest.look_for_rank()

    def look_for_providers(self) -> None:
        """Join the providers that the program has set meanwhile, and read one that a ``start()`` of ours has made."""
        self._collection.look_for_providers()

    def attach(self, route: Route) -> None:
        """Deliver to one more destination from the next collection on.

        Its owner closes it, if the process goes on when the pipeline ends.
        """
        self.wait_no_longer()
        if not self.running:
            return
        self._providers.sdk.attach(route.temporality)
        self._routes.attach(route)
        self._collection.begin()

    def lend_providers(self) -> dict[str, Any]:
        """Return providers for instrumentors, by the names of their arguments: the records leave as ours do."""
        return self._providers.lend(self._routes.own, self._identity.resource, self._journal, serves=self._serves)

    def detach(self, route: Route) -> None:
        """Deliver to an attached destination no longer."""
        self._routes.detach(route)

    def wait_no_longer(self) -> None:
        """Deliver even as long as it is not known whether the process becomes a rank: the program has asked for it."""
        self._identity.wait_no_longer()

    def flush(self, timeout: float = 5.0) -> bool:
        """Export everything recorded so far.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether every destination accepted the data in time.
        """
        return all(self._flush(timeout)) if self.running and os.getpid() == self._pid else True

    def _flush(self, timeout: float) -> tuple[bool, bool]:
        """Deliver everything; return whether all has been handed over, and whether that has arrived."""
        deadline = time.monotonic() + timeout
        self._held_back = False
        collected = bool(self._collection.export(metrics=not self._collected_last, wait=timeout))
        if not collected and self._held_back and self._routes.await_taker(self._taken, deadline):
            seconds = max(_left(deadline), EXIT_TIMEOUT / 4)  # for what was held back
            collected = bool(self._collection.export(metrics=False, wait=seconds))
        arrived = self._routes.flush(deadline)
        if arrived and self._events.undecided():  # by now the answers have told which of them is a hub of ours
            collected = bool(self._collection.export(metrics=False, wait=_left(deadline))) and collected
            arrived = self._routes.flush(deadline)
        arrived = self._events.flush(_left(deadline)) and arrived
        collect = self._dying or not self._unasked
        return collected, self._providers.flush(_left(deadline), collect=collect) and arrived

    def deliver_events(self, deadline: float | None) -> bool:
        """Hand the events that wait to every destination; False where the deadline came first."""
        return bool(self._collection.export(metrics=False, wait=-1 if deadline is None else _left(deadline)))

    def hand_on(self, longest: float = LONGEST_EXIT, *, metrics: bool = False) -> float:
        """Deliver the events that wait, while any receiver takes them: the end is near.

        Args:
            longest: seconds that it may take.
            metrics: collect and deliver metrics, too.

        Returns:
            The seconds that the rest of the end may take: few, where no receiver has taken anything.
        """
        if not self.running or os.getpid() != self._pid:
            return EXIT_TIMEOUT
        self._identity.wait_no_longer(for_helpers=False)
        if self.last_moment is None:
            self.last_moment = time.monotonic() + LONGEST_EXIT
        longest = min(longest, _left(self.last_moment))
        wanted = metrics  # once: a second collection would only be more to deliver

        def export(seconds: float) -> bool | None:
            nonlocal wanted
            found = self._collection.export(metrics=wanted, wait=seconds)
            wanted = wanted and found is None
            return found

        before = self._hold_back()
        arrived = self._routes.hand_on(export, longest)
        self._takes = arrived and self._routes.delivered() != before
        return EXIT_TIMEOUT if arrived else _STUCK_TIMEOUT

    def _hold_back(self) -> Mapping[int, int]:
        """Hold events back from now on, in ticks as well, until a receiver takes more; return how much has arrived.

        Else a full journal would be encoded for dead ones, for seconds on a busy machine.
        """
        self._taken = before = self._routes.delivered()

        def holds_back() -> bool:
            if not self._routes.hold_back(before):
                return False
            self._held_back = True
            return True

        self._collection.holds_back = holds_back
        return before

    def hand_over(self, timeout: float) -> None:
        """Deliver into the provider of the program's own for the last time, within ``timeout`` seconds: it ends now."""
        if self._providers.external is None or not self.running or os.getpid() != self._pid:
            return
        deadline = time.monotonic() + timeout
        self._collection.export(metrics=False, wait=timeout)
        self._providers.flush(_left(deadline), collect=self._dying or not self._unasked, last=True)

    def _last_words(self, dying: bool) -> None:
        self._dying = dying  # before the guests' end: it is theirs, too
        if dying and self.last_moment is None:
            self.last_moment = time.monotonic() + LONGEST_EXIT
        if dying:
            self.end_guests()
            self.shutdown(self.hand_on(), exiting=True)
            return
        for guest in self.guests:
            guest.flush(EXIT_TIMEOUT / 2)
        self.flush(EXIT_TIMEOUT)

    def end_guests(self) -> None:
        """End those that the program has started beside it, with the process.

        All collect before the first one ends, and this one as well where that takes long: a slow receiver takes nothing
        from the others' time.
        """
        if not self.guests or os.getpid() != self._pid:
            return
        last_moment = self.last_moment or time.monotonic() + LONGEST_EXIT
        arrived = [guest.collect_last(last_moment) for guest in self.guests]
        if not all(arrived) and self.running:
            self._collection.export(metrics=True, wait=EXIT_TIMEOUT / 2)
        for guest in self.guests:
            guest.shutdown(EXIT_TIMEOUT / 2, exiting=True)

    def collect_last(self, last_moment: float) -> bool:
        """Collect metrics for the last time, for an end by ``last_moment``; False where they do not arrive at once."""
        self.last_moment = last_moment
        if not self.running or not self._ending.acquire(blocking=False):  # another thread is at it
            return True
        try:
            self._collected_last = self._collection.export(metrics=True, wait=EXIT_TIMEOUT / 2) is not None
            return self._routes.flush(time.monotonic() + CLOSING)
        except Exception as error:  # noqa: BLE001 - its end tries once more, and logs the reason
            pass_on(error)
            return False
        finally:
            self._ending.release()

    def shutdown(self, timeout: float | None = None, *, exiting: bool = False) -> None:
        """Export everything recorded so far and stop. Recording continues in memory for a later ``start()``.

        This takes as long as at the end of the process: at most one second if no destination accepts data, and at most
        ten seconds while one keeps accepting it. The rest is dropped and counted.

        Args:
            timeout: a shorter limit, in seconds.
            exiting: whether the process ends right after this call; the program's own provider then collects once more.
        """
        if (not self.running and not self._ending.locked()) or os.getpid() != self._pid:
            if exiting and os.getpid() == self._pid:
                self._events.close(exiting=True)  # events logged since its end are lost
            return
        longest = LONGEST_EXIT if timeout is None else timeout
        deadline = time.monotonic() + longest
        if not self._ending.acquire(timeout=longest):  # another thread is at it
            return
        try:
            if self.running:
                self._end(deadline, exiting=exiting)
        except Exception as error:  # noqa: BLE001 - out of memory, say: the program's own error matters more
            pass_on(error)
            self._registry.count_error("end")
            _log.error("could not export all recorded data at shutdown: %r", error)
        finally:
            self._ending.release()
        if self._on_ended is not None and not exiting:
            self._on_ended()
        send_missed()

    def _end(self, deadline: float, *, exiting: bool) -> None:
        last_moment = time.monotonic() + (LONGEST_EXIT if exiting else _left(deadline))
        self._log_final_events(deadline, exiting=exiting)
        self._identity.wait_no_longer(for_helpers=False)
        self._collection.settle()
        self._hold_back()
        deliver = partial(self._collection.export, metrics=False, wait=EXIT_TIMEOUT / 4)
        self._identity.take_leave(deliver, dying=self._dying)
        self._collection.stop()
        if self._pulse is not None:
            self._pulse.close()
        began = time.monotonic()
        patience = max(_left(self.last_moment or last_moment), EXIT_TIMEOUT)
        if not self._collection.wait(patience):  # a tick is at work
            self._registry.count_error("end")
            _log.error(
                "lost the last recorded data because a collection did not finish: check the callbacks of "
                "your observable instruments"
            )
        deadline += time.monotonic() - began
        if not exiting:
            deadline = min(deadline, time.monotonic() + self.hand_on(_left(deadline), metrics=True))
        taken = self._hold_back()
        collected, arrived = self._flush(max(0.0, _left(deadline) - CLOSING))
        if not (collected and arrived) and (self._takes or self._routes.moves_on(taken)):
            self.hand_on(_left(last_moment))  # it takes by now, or has taken all that was there before
        self._collection.close()
        self._events.halt()
        self._collection.wait(_STUCK_TIMEOUT)  # the batch that a thread has in its hand still arrives
        self._routes.close(deadline, exiting=exiting)
        self._providers.leave(exiting=exiting)
        if self._endpoint is not None:
            self._endpoint.close(max(_left(deadline), CLOSING))
        if self._hardware is not None:
            self._hardware.close(max(_left(deadline), CLOSING))
        self._providers.sdk.close(max(_left(deadline), CLOSING))
        if self._hub is not None:
            self._hub.end(exiting=exiting)
        lost = self._events.close(exiting=exiting)
        self._note_undelivered(lost, exiting=exiting)
        if self._sigterm is not None:
            self._sigterm.close()

    def _note_undelivered(self, lost_events: int, *, exiting: bool) -> None:
        """Note for ``tachograph run`` how much did not reach the job's hub, which cannot be told any more."""
        to_job_hub = [route for route in self._routes.own if route.is_job_hub]
        if not exiting or not to_job_hub:
            return
        given_up = lost_events
        unanswered = 0
        for route in to_job_hub:
            undelivered, without_answer = route.left_over()
            given_up += undelivered
            unanswered += without_answer
        if given_up or unanswered:
            rank = self._identity.resource.get("dl.rank")
            note_undelivered(os.environ, rank, program_name(), given_up, unanswered)

    def _log_final_events(self, deadline: float, *, exiting: bool) -> None:
        """Have everything logged that is still held; where the process goes on, only the windows that are open."""
        if exiting:
            self._events.hear_last_words(_left(deadline) / 2)
        elif deadline > time.monotonic():  # else a start() takes over at once
            for close_windows in self._journal.window_closers:
                close_windows(_left(deadline) / 2)

    def await_signal(self) -> None:
        """If SIGTERM is about to end the process, let it: a program that ends in that moment has not ended well."""
        if self._sigterm is None or os.getpid() != self._pid:
            return
        if self._sigterm.dying and self._ending.acquire(timeout=LONGEST_EXIT):  # its thread delivers the rest
            self._ending.release()
        self._sigterm.close()
        send_missed()

    @property
    def exports_metrics(self) -> bool:
        """Tell whether metrics leave by anything but a page, which shows them only when it is asked for."""
        return self._providers.external is not None or any(
            route.metrics or route.reader is not None for route in self._routes
        )

    @property
    def running(self) -> bool:
        """Whether the pipeline is still exporting."""
        return not self._collection.closed

    def before_fork(self) -> None:
        """Wait a second for a collection to end: the child of a fork in its middle could never free the SDK's locks."""
        self._collection.before_fork(EXIT_TIMEOUT)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._collection.after_fork_in_parent()

    def reset_in_child(self) -> None:
        """Leave everything to the parent process: its sockets and its queues."""
        self._collection.reset_in_child()
        self._free_locks()
        self._routes.reset_in_child()
        self._providers.reset_in_child()
        for part in (self._endpoint, *self.guests):
            if part is not None:
                part.reset_in_child()

    def started_again(self) -> bool:
        """Count one more ``start()`` that returns it; False where the last one out is about to end it."""
        with self._users:
            if not self._left_by_all:
                self._started += 1
            return not self._left_by_all

    def _repr_html_(self) -> str:
        """Return a table of where it delivers, which a notebook shows."""
        about = {"run": self.settings.run_id, "page": self.hub_url, "metrics": self.metrics_url}
        return table_html({**about, "state": "running" if self.running else "ended"})

    def __enter__(self) -> Pipeline:  # noqa: PYI034 - there are no subclasses, and typing.Self needs CPython 3.11
        """Return itself."""
        with self._users:
            self._started = max(self._started - 1, 0)  # the one that this statement leaves
            self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Shut it down, if it was not started elsewhere, and no other statement is in it."""
        with self._users:
            self._entered -= 1
            last = self._left_by_all = not self._started and not self._entered
        if last:
            self.shutdown()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
