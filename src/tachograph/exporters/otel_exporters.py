"""OpenTelemetry's own exporters: those that are installed as entry points, and the signals that an object fits."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tachograph.exporters.otlp.settings import SIGNALS, Signal

_BASES: dict[Signal, tuple[tuple[str, str], ...]] = {
    "metrics": (
        ("opentelemetry.sdk.metrics.export", "MetricExporter"),
        ("opentelemetry.sdk.metrics.export", "MetricReader"),
    ),
    "traces": (("opentelemetry.sdk.trace.export", "SpanExporter"),),
    "logs": (("opentelemetry.sdk._logs.export", "LogRecordExporter"),),
}


class EntryPointExporter(NamedTuple):
    """An installed exporter of one signal, by its name: the same name in another group is another exporter.

    Attributes:
        signal: the signal whose group has it.
        name: of the entry point.
    """

    signal: Signal
    name: str

    def entry_point(self) -> EntryPoint:
        """Return the entry point, the first one of that name."""
        return next(iter(entry_points(group=group_of(self.signal), name=self.name)))

    def make(self) -> Any:
        """Return a new exporter, or metric reader, made without arguments as the SDK's own configuration makes it.

        Raises:
            TypeError: it gives something else; loading and making it may raise anything.
        """
        made = self.entry_point().load()()
        if self.signal not in signals_of(made) and not callable(getattr(made, "export", None)):
            raise TypeError(f"it gives a {type(made).__name__}, which exports no {self.signal}")
        return made


def group_of(signal: Signal) -> str:
    """Return the group of entry points in which OpenTelemetry has the exporters of a signal."""
    return f"opentelemetry_{signal}_exporter"


def installed(signal: Signal) -> set[str]:
    """Return the names of the installed exporters of a signal."""
    return {entry_point.name for entry_point in entry_points(group=group_of(signal))}


def is_reader(value: object) -> bool:
    """Tell whether a value is a ``MetricReader`` of the SDK."""
    return _is_a(value, *_BASES["metrics"][1])


def signals_of(value: object) -> frozenset[Signal]:
    """Return the signals of which a value is an exporter by its base class; none where it has no base of the SDK."""
    return frozenset(signal for signal in SIGNALS if any(_is_a(value, *base) for base in _BASES[signal]))


def _is_a(value: object, module: str, name: str) -> bool:
    # Where nobody has loaded the module, nothing can be an instance of its classes: the SDK is not loaded for it.
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and isinstance(value, base)
