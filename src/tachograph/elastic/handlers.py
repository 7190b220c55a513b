"""Handlers of torchelastic's API, which take metric points one by one; and the types of their data."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Protocol


class MetricData(NamedTuple):
    """A recorded point. ``timestamp`` is in seconds since the epoch; the name and the value are exactly as recorded."""

    timestamp: float
    group_name: str
    name: str
    value: Any


class MetricsConfig:
    """Parameters for :func:`tachograph.elastic.initialize_metrics`; None becomes an empty dict."""

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params: dict[str, str] = {} if params is None else params


class Emits(Protocol):
    """Any object with ``emit(metric_data)``."""

    def emit(self, metric_data: MetricData) -> Any:
        """Take one point."""


class Exports(Protocol):
    """Any object with ``export(metrics_data)``, as the metric exporters of the OpenTelemetry SDK have it."""

    def export(self, metrics_data: Any, /) -> Any:
        """Take the metrics of one collection."""


class MetricHandler(abc.ABC):
    """Base class of handlers: implement ``emit`` and pass an instance to :func:`tachograph.elastic.configure`."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Handle one point, in the thread that recorded it."""


class ConsoleMetricHandler(MetricHandler):
    """A handler that prints each point to stdout as ``[timestamp][group]: name=value``."""

    def emit(self, metric_data: MetricData) -> None:
        """Print one point."""
        print(  # noqa: T201 - printing is what this handler is for
            f"[{metric_data.timestamp}][{metric_data.group_name}]: {metric_data.name}={metric_data.value}"
        )


class NullMetricHandler(MetricHandler):
    """A handler that discards its points. Configured explicitly, it silences its group for every destination."""

    def emit(self, metric_data: MetricData) -> None:
        """Discard one point."""


def forgets(handler: Emits) -> bool:
    """Tell whether a handler is a :class:`NullMetricHandler` that no subclass has given an ``emit`` of its own."""
    return isinstance(handler, NullMetricHandler) and type(handler).emit is NullMetricHandler.emit


def check_handler(handler: object) -> bool:
    """Tell whether ``handler`` takes points (True) or whole collections, as OpenTelemetry's exporters do (False).

    Raises:
        TypeError: it does neither, or is a class.
    """
    if isinstance(handler, type):
        raise TypeError(f"configure() takes an instance: pass {handler.__name__}(), not {handler.__name__}")
    if callable(getattr(handler, "emit", None)):
        return True
    if callable(getattr(handler, "export", None)):
        return False
    raise TypeError(
        "configure() takes a MetricHandler (an object with emit(metric_data)) or an OpenTelemetry MetricExporter "
        f"(an object with export(metrics_data)), not {type(handler).__name__}: {handler!r:.100}"
    )
