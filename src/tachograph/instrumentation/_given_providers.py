"""The providers that instrumentors were given: the instrumentors' records reach these alone, without a ``start()``."""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording import timer
from tachograph.recording.forking import at_fork
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from tachograph.exporters.external_provider import ExternalProvider
    from tachograph.pipeline import EventFeed, Route

_EVERY = 1.0  # seconds
_CLOSING = 1.0


class Recording(NamedTuple):
    """The registry and the journal of an instrumentor."""

    registry: Registry
    journal: Journal


EVERYWHERE = Recording(registries.default, journals.default)


class _Meters(NamedTuple):
    """A meter provider, and the registry that is published through it."""

    provider: Any
    registry: Registry
    external: ExternalProvider


class _Loggers(NamedTuple):
    """A logger provider, and the journal that is emptied into it."""

    provider: Any
    journal: Journal
    feed: EventFeed
    routes: list[Route]


class GivenProviders:
    """All providers that instrumentors were given, each once, and the delivery to them.

    Delivery goes on until the process ends, also after an instrumentor's end.
    """

    def __init__(self) -> None:
        self._meters: list[_Meters] = []
        self._loggers: list[_Loggers] = []
        self._task: timer.Task | None = None

    def recording(self, *, meter_provider: Any, logger_provider: Any, tracer_provider: Any) -> Recording:
        """Return the registry and journal of an instrumentor that was given these.

        A signal without a provider, or with the global one, goes where all values of the process go: into the global
        provider, and to the destinations of :func:`tachograph.start`.

        Raises:
            TypeError: one of them is no provider of its signal; the message names the argument.
        """
        wanted = (
            ("meter_provider", meter_provider, "get_meter"),
            ("logger_provider", logger_provider, "get_logger"),
            ("tracer_provider", tracer_provider, "get_tracer"),
        )
        for name, provider, getter in wanted:
            if provider is not None and (isinstance(provider, type) or not callable(getattr(provider, getter, None))):
                raise TypeError(f"{name} must have {getter}(), not {type(provider).__name__}: {provider!r:.100}")
        registry, journal = EVERYWHERE
        if meter_provider is not None:
            registry = self._registry_into(meter_provider)
        if logger_provider is not None:
            journal = self._journal_into(logger_provider, registry)
        return Recording(registry, journal)

    def _registry_into(self, provider: Any) -> Registry:
        from tachograph.exporters.external_provider import ExternalProvider, external_meter_provider

        if provider is external_meter_provider(load=False):
            return EVERYWHERE.registry
        for found in self._meters:
            if found.provider is provider:
                return found.registry
        registry = Registry()
        registry.points.wanted = False  # a provider takes no curves; a feed of a journal beside it asks anew
        self._meters = [*self._meters, _Meters(provider, registry, ExternalProvider(provider, registry))]
        self._begin()
        return registry

    def _journal_into(self, provider: Any, registry: Registry) -> Journal:
        from tachograph.exporters.log_emitter import external_logger_provider, into_provider
        from tachograph.pipeline import EventFeed, Route

        if provider is external_logger_provider():
            return EVERYWHERE.journal
        for found in self._loggers:
            if found.provider is provider:
                return found.journal
        journal = Journal(registry)
        feed = EventFeed(journal, registry)
        routes = [Route(into_provider(provider, registry), events=True, records=True)]
        feed.open(routes)
        self._loggers = [*self._loggers, _Loggers(provider, journal, feed, routes)]
        self._begin()
        return journal

    def _begin(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)  # before the end of the providers, which were there first
        if self._task is None:
            self._task = timer.default.every("given_providers", _EVERY, lambda: self.deliver(None), beside=True)

    def deliver(self, deadline: float | None) -> None:
        """Hand over all recorded values and events, until ``deadline``, monotonic."""
        for meters in self._meters:
            meters.external.refresh()
        for loggers in self._loggers:
            loggers.feed.deliver(loggers.routes, {}, deadline)

    def close(self, timeout: float = _CLOSING) -> None:
        """Hand over the rest, within ``timeout`` seconds: the process ends. The providers collect once more."""
        deadline = time.monotonic() + timeout
        if self._task is not None:
            self._task.close()
        for loggers in self._loggers:
            loggers.feed.hear_last_words(timeout / 4)
        self.deliver(deadline)
        for meters in self._meters:
            meters.external.drain(max(deadline - time.monotonic(), 0.0))
        for loggers in self._loggers:
            for route in loggers.routes:
                route.destination.close(max(deadline - time.monotonic(), 0.0))
            loggers.feed.close(exiting=True)

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        atexit.unregister(self.close)
        for meters in self._meters:
            meters.external.reset_in_child()
            meters.external.close()
        for loggers in self._loggers:
            for route in loggers.routes:
                route.destination.reset_in_child()


given_providers = GivenProviders()

at_fork("given_providers", in_child=given_providers.reset_in_child)
