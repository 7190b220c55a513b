"""The events of a pipeline that the program starts where one runs already: they come from that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.pipeline.destinations import Route
from tachograph.pipeline.settings import Settings
from tachograph.recording.points import AttributeValue


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

    def waiting(self) -> bool:
        """Return False: the host looks after them."""
        return False

    def open(self, routes: Sequence[Route]) -> None:
        """Have events delivered to those routes that take them."""
        self._attached = [Route(route.destination, events=True) for route in routes if route.events]
        for route in self._attached:
            self._host.attach(route)

    def deliver(
        self, routes: Sequence[Route], _resource: Mapping[str, AttributeValue], deadline: float | None = None
    ) -> bool:
        """Have the host hand over what waits; False where the deadline came first."""
        return not any(route.events for route in routes) or self._host.deliver_events(deadline)

    def flush(self, timeout: float) -> bool:
        """Flush the host, where it delivers for the guest; False where ``timeout`` seconds were too short."""
        return not self._shared or self._host.flush(timeout)

    def hear_last_words(self, _timeout: float) -> None:
        """Do nothing: the host hears them, once."""

    def halt(self) -> None:
        """Do nothing: the host goes on, and the guest is detached from it."""

    def close(self, *, exiting: bool) -> None:  # noqa: ARG002 - what waits stays with the host
        """Have nothing delivered any more."""
        for route in self._attached:
            self._host.detach(route)
        self._attached = []


def pages_alike(there: Settings, asked: Settings) -> bool:
    """Tell whether the page that was asked for is the one that is there."""
    return "prometheus" in asked.metrics and all(
        getattr(there, name) == getattr(asked, name)
        for name in ("prometheus_host", "prometheus_port", "prometheus_registry", "resource_labels")
    )


def served_alike(there: Settings, asked: Settings) -> frozenset[Signal]:
    """Return the signals whose OTLP goes already where it was asked to go: it shall not arrive twice."""
    return frozenset(
        signal
        for signal in SIGNALS
        for found in [there.otlp_for(signal)]
        if found is not None and found == asked.otlp_for(signal)
    )
