"""The runtime of this process: one pipeline, those beside it, and the destinations that were configured.

A pipeline is made here of an identity, a feed and routes: that of a ``start()``, that of zero code, which may learn
late which rank the process is, or one that only fulfils the wishes of the front doors (see
:mod:`tachograph.recording.wishes`). A ``start()`` beside zero code adds a pipeline that has its events from that one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.identity.environment import JOB_HUB, text
from tachograph.identity.process_group import group_watch
from tachograph.identity.rank import is_helper
from tachograph.pipeline._green_threads import PatchWatch, patched_by
from tachograph.pipeline._process_identity import AmbientIdentity
from tachograph.pipeline.destinations import CLOSING, Route, given, hub_otlp
from tachograph.pipeline.event_feed import GuestFeed
from tachograph.pipeline.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.pipeline.settings import Settings, read_settings
from tachograph.recording import journal as journals
from tachograph.recording import timer
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.wishes import wishes

if TYPE_CHECKING:
    from tachograph.logger.influx_target import InfluxTarget
    from tachograph.pipeline._own_hub import OwnHub

_log = logging.getLogger("tachograph")


class Runtime:
    """The pipeline of the process, and the destinations that it is given beside its own.

    It fulfils the wishes of the front doors: :class:`tachograph.recording.wishes.Fulfils`.

    Args:
        registry: is delivered, and counts losses.
        on_begun: called whenever a pipeline has begun, or knows the identity of the process: its end is to be prepared.
        is_ending: tells whether the interpreter ends, so that nothing is begun any more.

    Attributes:
        lock: held while any of this changes.
        pipeline: of ``start()``, of zero code, or of configured destinations; the last one, where none runs.
        ambient: zero code has begun it.
        by_itself: the pipeline is there only for configured destinations, so that a ``start()`` takes over.
        again: begins it again in a forked child, or in a helper that becomes a rank.
        waiting: nothing is delivered, as this process is a helper unless it becomes a rank.
    """

    def __init__(self, registry: Registry, *, on_begun: Callable[[], object], is_ending: Callable[[], bool]) -> None:
        self._registry, self._on_begun, self._is_ending = registry, on_begun, is_ending
        self.again: Callable[[], object] | None = None
        self.by_itself = self.ambient = self.waiting = False
        self.lock = threading.RLock()
        self.pipeline: Pipeline | None = None
        self._configured: dict[str | None, Route] = {}
        self._loggers = LoggerRoutes(registry)
        self._hub: OwnHub | None = None  # the last one
        self._patches: PatchWatch | None = None
        self._is_refused = False

    def run(self, settings: Settings, asked: frozenset[Signal], *, again: Callable[[], object]) -> Pipeline:
        """Begin to deliver, to the destinations of the settings and to configured ones; idle in a helper process.

        The values of a helper are kept until it becomes a rank.

        Args:
            settings: of the pipeline.
            asked: the signals whose destinations were named in the call.
            again: begins it again, in a forked child that records on its own account.
        """
        self.again, self.ambient = again, False
        if settings.disabled or not self._may_deliver():
            return Pipeline(settings, self._registry, idle=True)
        group_watch.begin()
        self.waiting = is_helper(os.environ, os.getpid())
        if self.waiting:
            return Pipeline(settings, self._registry, idle=True)
        if not switch.on:
            self._registry.reset()
        hub = self._hub_for(settings)
        try:
            self.pipeline = pipeline = Pipeline(
                settings, self._registry, asked=asked, unasked=self.by_itself, hub=hub, on_ended=self._go_on
            )
        except BaseException:
            if hub is not None:
                hub.end()
            raise
        for route in self._configured.values():
            pipeline.attach(route)
        self._deliver_configured(pipeline)
        self._on_begun()
        return pipeline

    def _may_deliver(self) -> bool:
        """Tell whether background threads can run in this program, and refuse later if the program patches them."""
        library = patched_by()
        if library is not None:
            self._refuse(library)
        elif self._patches is None:
            self._patches = PatchWatch(self._refuse)
        return not self._is_refused

    def _refuse(self, library: str) -> None:
        """Deliver and record nothing from now on: the program patches the standard library, or has done so."""
        if self._is_refused:
            return
        self._is_refused = True
        _log.warning(
            "%s is not supported: it patches the standard library, so Tachograph records nothing",
            library,
        )
        pipeline = self.pipeline
        if pipeline is not None:
            for ending in (*pipeline.guests, pipeline):
                ending.shutdown(EXIT_TIMEOUT)
        for route in self.configured():
            route.destination.close(CLOSING)
        switch.on = False
        timer.default.close(EXIT_TIMEOUT)

    def _hub_for(self, settings: Settings) -> OwnHub | None:
        if not settings.hub:
            return None
        from tachograph.pipeline._own_hub import hub_for  # few processes have one

        found = hub_for(settings, self._registry, self._hub)
        self._hub = found or self._hub
        return found

    def run_by_itself(self, settings: Settings | None = None) -> None:
        """Deliver without a ``start()``: to the program's own providers, and to configured destinations."""
        self.by_itself = True
        self.run(settings or settings_by_itself(), frozenset(), again=self.run_by_itself)

    def run_ambient(
        self, settings: Settings, *, waits: bool, idles: bool, directly: bool, again: Callable[[], object]
    ) -> None:
        """Deliver though the program does not ask for it, to its end: zero code.

        It sets no global provider. Those that the program sets, at any time, stay as they are, and are joined.
        """
        if not self._may_deliver():
            return
        if not switch.on:
            self._registry.reset()
        switch.begin()
        group_watch.begin()
        self.again, self.waiting = again, False
        self.pipeline = Pipeline(
            settings,
            self._registry,
            identity=AmbientIdentity(settings, waits=waits, idles=idles, directly=directly),
            asked=frozenset(SIGNALS),
            unasked=True,
            on_settled=self._on_begun,
        )
        self.ambient = True
        self._loggers.attach_to(self.pipeline)
        self._on_begun()

    def run_beside(self, host: Pipeline, asked: Settings, named: frozenset[Signal]) -> Pipeline:
        """Return a pipeline with the destinations that the one of zero code does not have yet.

        Args:
            host: the pipeline of zero code.
            asked: the settings of the call.
            named: the signals whose destinations were named in the call.
        """
        if asked.disabled:
            return Pipeline(asked, self._registry, idle=True)
        for guest in host.guests:
            if guest.running and guest.settings == asked and guest.started_again():
                return guest
        paged = _pages_alike(host.settings, asked) and host.metrics_url is not None
        wanted = replace(asked, metrics=tuple(name for name in asked.metrics if not (paged and name == "prometheus")))
        served = _served_alike(host.settings, asked)
        feed = GuestFeed(host, shared=bool(served))
        guest = Pipeline(wanted, self._registry, asked=named, feed=feed, served=served)
        if paged:
            guest.metrics_url = host.metrics_url
        if asked.hub:
            from tachograph.pipeline._own_hub import say_no_hub

            say_no_hub()
            guest.hub_url = text(os.environ, JOB_HUB) or None
        host.guests = [*(other for other in host.guests if other.running), guest]
        return guest

    def _go_on(self) -> None:
        """Deliver to configured destinations after the end of a ``start()``; it raises nothing."""
        if self._is_ending():
            return  # the rest is delivered at the end
        with self.lock:
            if not self.by_itself and (wishes.targets or wishes.exporters):
                try:
                    self._deliver()
                except Exception:  # noqa: BLE001 - a variable that an argument had overridden: shutdown() is no place for it
                    self._registry.count_error("start")
                    _log.exception("could not resume exporting to the configured destinations after shutdown()")

    def _deliver(self) -> None:
        """Deliver to configured destinations, with or without a ``start()`` before."""
        switch.begin()
        if self.pipeline is not None and self.pipeline.running:
            self._deliver_configured(self.pipeline)
        else:
            self.run_by_itself()

    def _deliver_configured(self, pipeline: Pipeline) -> None:
        for group, exporter in wishes.exporters.items():
            if group not in self._configured:
                groups = None if group is None else {group}
                self._configured[group] = given(exporter, self._registry, metrics=True, spans=False, groups=groups)
                pipeline.attach(self._configured[group])
        self._loggers.attach_to(pipeline)

    def export(self, group: str | None) -> None:
        """Deliver a group to the exporter that ``configure`` was given, and no longer to the one before."""
        with self.lock:
            pipeline = self.pipeline
            replaced = self._configured.pop(group, None)
            if replaced is not None:
                if pipeline is not None:
                    pipeline.flush(EXIT_TIMEOUT)
                    pipeline.detach(replaced)
                replaced.destination.close(EXIT_TIMEOUT)
            if wishes.exporters:
                self._deliver()

    def write(self, target: InfluxTarget) -> bool:
        """Deliver to the database of a logger; False where nothing here can write to it."""
        with self.lock:
            self._deliver()
            return target not in self._loggers.unreachable

    def release(self, target: InfluxTarget, timeout: float) -> None:
        """Deliver to a database its last points, and no more."""
        self._loggers.release(target, timeout)

    def flush(self, timeout: float) -> bool:
        """Deliver all logged points; False where some still wait after ``timeout`` seconds."""
        return self._loggers.flush(timeout)

    def configured(self) -> list[Route]:
        """Return the routes to configured destinations: they outlive a pipeline."""
        return [*self._configured.values(), *self._loggers]

    def reset_in_child(self) -> Pipeline | None:
        """Leave everything to the parent process, after a fork; return the pipeline that ran in it."""
        self.lock = threading.RLock()
        for route in self.configured():
            route.destination.reset_in_child()
        self._configured = {}
        self._loggers.forget()
        if self._hub is not None:
            self._hub.reset_in_child()
        inherited, self.pipeline, self.waiting = self.pipeline, None, False
        if inherited is None or not inherited.running:
            return None
        inherited.reset_in_child()
        return inherited


class LoggerRoutes:
    """The routes of the process's loggers, each to its InfluxDB; they outlive a pipeline.

    Args:
        registry: where losses are counted.

    Attributes:
        unreachable: databases for which there is nothing that writes to them.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._routes: dict[InfluxTarget, Route] = {}
        self._pipeline: Pipeline | None = None
        self._lock = threading.RLock()
        self.unreachable: set[InfluxTarget] = set()

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def attach_to(self, pipeline: Pipeline) -> None:
        """Deliver through this pipeline to every database, and from now on no more through another one."""
        with self._lock:
            if pipeline is not self._pipeline:
                self._pipeline = pipeline
                for route in list(self._routes.values()):
                    pipeline.attach(route)
            for target in list(wishes.targets):
                if target not in self._routes and target not in self.unreachable:
                    self._add(pipeline, target)

    def _add(self, pipeline: Pipeline, target: InfluxTarget) -> None:
        try:
            from tachograph.exporters.influxdb import InfluxDB

            made = InfluxDB(target, self._registry, only=True)
        except ImportError as error:
            self.unreachable.add(target)
            _log.error("could not start writing points to %s: %s", target.url, error)
            return
        self._routes[target] = route = Route(made, events=True, is_loading=made.is_loading, spools=made.spools)
        pipeline.attach(route)

    def release(self, target: InfluxTarget, timeout: float) -> None:
        """Deliver to a database its last points, within ``timeout`` seconds, and no more.

        Points that have not left the journal by then go on leaving, until the process ends.
        """
        deadline, pipeline = time.monotonic() + timeout, self._pipeline
        if pipeline is not None and pipeline.running and not pipeline.deliver_events(deadline):
            return
        with self._lock:
            route = self._routes.get(target)
            if route is None or target in wishes.targets:  # a new logger has it meanwhile
                return
            if self._pipeline is not None:
                self._pipeline.detach(route)
            del self._routes[target]
        route.destination.close(max(deadline - time.monotonic(), CLOSING))

    def flush(self, timeout: float) -> bool:
        """Deliver all logged points, within ``timeout`` seconds; False where some still wait."""
        if self._pipeline is None or not self._pipeline.running:
            return not len(journals.default)
        return self._pipeline.flush(timeout)

    def forget(self) -> None:
        """Leave the parent's routes to it, after a fork."""
        self._lock = threading.RLock()
        self._routes = {}
        self._pipeline = None


def settings_by_itself() -> Settings:
    """Return the settings of a pipeline that has no destination of its own.

    Raises:
        ValueError: a variable has a wrong value; the message names it.
    """
    return read_settings(os.environ, metrics="none", traces="none", logs="none")


def _pages_alike(there: Settings, asked: Settings) -> bool:
    """Tell whether the page that was asked for is the one that is there."""
    return "prometheus" in asked.metrics and all(
        getattr(there, name) == getattr(asked, name)
        for name in ("prometheus_host", "prometheus_port", "prometheus_registry", "resource_labels")
    )


def _served_alike(there: Settings, asked: Settings) -> frozenset[Signal]:
    """Return the signals whose OTLP goes already where it was asked to go: it shall not arrive twice."""
    served = {*there.otlp, *(hub_otlp(there.job_hub) if there.job_hub else ())}
    return frozenset(settings.signal for settings in asked.otlp if settings in served)
