"""The providers that an instrumentor was given: what it records reaches them, without a ``start()``, and only them."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from tachograph import journal as journals
from tachograph import registry as registries
from tachograph.journal import Journal
from tachograph.registry import Registry

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

_CLOSING = 1.0

_open: WeakSet[Delivery] = WeakSet()


class Recording(NamedTuple):
    """Where an instrumentor records."""

    registry: Registry
    journal: Journal


EVERYWHERE = Recording(registries.default, journals.default)


class Delivery:
    """What an instrumentor records, on its way into the providers that it was given.

    A signal for which no provider was given takes the way of all that the process records: the program's global
    provider, and the destinations of :func:`tachograph.start`.

    Args:
        meter_provider: takes the metrics.
        logger_provider: takes the events.

    Attributes:
        recording: where the instrumentor is to record.
    """

    def __init__(self, meter_provider: MeterProvider | None, logger_provider: LoggerProvider | None) -> None:
        from tachograph.destinations import Route
        from tachograph.event_feed import EventFeed
        from tachograph.joined import Joined
        from tachograph.log_emitter import into_provider
        from tachograph.ticker import Ticker

        registry = registries.default if meter_provider is None else Registry()
        journal = journals.default if logger_provider is None else Journal(registry)
        self.recording = Recording(registry, journal)
        self._joined = None if meter_provider is None else Joined(meter_provider, registry)
        self._routes: list[Route] = []
        self._feed = EventFeed(journal, registry)
        if logger_provider is not None:
            self._routes = [Route(into_provider(logger_provider, registry), events=True)]
            self._feed.open(self._routes)
        self._ticker = Ticker(_CLOSING, lambda _metrics: self._deliver(None), registry)
        self._ticker.start()
        atexit.register(self.close)  # before the providers' own end: they were there first
        _open.add(self)

    def _deliver(self, deadline: float | None) -> None:
        if self._joined is not None:
            self._joined.refresh()
        self._feed.deliver(self._routes, {}, deadline)

    def close(self, timeout: float = _CLOSING) -> None:
        """Hand over what was recorded, within ``timeout`` seconds; the metrics stay in their provider as they are."""
        atexit.unregister(self.close)
        self._ticker.stop()
        deadline = time.monotonic() + timeout
        if self._routes:
            self._feed.hear_last_words(timeout / 2)
        self._deliver(deadline)
        if self._joined is not None:
            self._joined.drain(max(deadline - time.monotonic(), 0.0))
        for route in self._routes:
            route.destination.close(max(deadline - time.monotonic(), 0.0))
        if self._routes:
            self._feed.close(exiting=True)
        _open.discard(self)

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        self._ticker.stop()
        atexit.unregister(self.close)
        if self._joined is not None:
            self._joined.reset_in_child()
            self._joined.close()
        for route in self._routes:
            route.destination.reset_in_child()


def delivery_into(meter_provider: Any, logger_provider: Any, tracer_provider: Any) -> Delivery | None:
    """Return the delivery into the providers that were given; None where none was.

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
    if meter_provider is None and logger_provider is None:
        return None
    return Delivery(meter_provider, logger_provider)


def _after_fork_in_child() -> None:
    for delivery in list(_open):
        delivery.reset_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
