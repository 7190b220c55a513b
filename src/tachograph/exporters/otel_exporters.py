"""OpenTelemetry's own exporters: those that are installed as entry points, and each behind a queue of its own."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.recording.registry import Registry

EXPORTED_AT_ONCE = 512  # items: the default of OTEL_BSP_MAX_EXPORT_BATCH_SIZE and OTEL_BLRP_MAX_EXPORT_BATCH_SIZE
_ITEM_BYTES = 500  # what a queued item keeps alive, roughly
_ABORTING = 0.1  # seconds for a shutdown() beside an export that does not return

_log = logging.getLogger("tachograph")

# An exporter that was open at a fork is never touched in the child, not even to free it: gRPC may hang there.
_left_to_the_parent: list[object] = []


class ExporterQueue:
    """Calls an exporter in one thread, one call at a time, and keeps its own requests out of the telemetry.

    Only where the end comes while a call does not return, ``shutdown()`` is called beside it: the official exporters
    give up their retries on it, so that nothing of theirs goes on after our end.

    Args:
        exporter: of the SDK, or an object with ``export``; ``force_flush`` and ``shutdown`` may be missing.
        registry: where losses are counted.
        name: of the destination, in logs and counts; by default the name of the exporter's class.
        timed_shutdown: its ``shutdown`` takes milliseconds, as that of a metric exporter does.

    Attributes:
        delivered: how many exports have succeeded. Flushing is none: it succeeds where nothing waits.
    """

    def __init__(
        self, exporter: Any, registry: Registry, *, name: str | None = None, timed_shutdown: bool = False
    ) -> None:
        self._exporter = exporter
        self._registry = registry
        self._name = name or type(exporter).__name__
        self._timed_shutdown = timed_shutdown
        self._queue = DeliveryQueue(self._name, registry)
        self._is_shut, self._shutting = False, threading.Lock()
        self.delivered = 0

    def put(self, export: Callable[[float], object], size: int, *, items: int, kind: str = "") -> None:
        """Queue one call; never waits.

        Args:
            export: called with the seconds that it may take; it raises, or returns ``FAILURE``, where what it was to
                export is lost.
            size: bytes that it keeps in memory.
            items: how many points, spans or records are lost then.
            kind: the signal, where it is known.
        """

        def send(timeout: float) -> None:
            result = export(timeout)
            if getattr(result, "name", None) == "FAILURE":  # the three signals' results have no base in common
                raise RuntimeError(f"{type(self._exporter).__name__} could not export")
            self.delivered += 1

        self._queue.put(send, size, items=items, kind=kind)

    def flush(self, timeout: float) -> bool:
        """Export everything queued, and ask the exporter to flush; True where both were done in time."""
        deadline = time.monotonic() + timeout
        flushed = self._queue.flush(timeout)
        if time.monotonic() >= deadline:
            return flushed
        self._queue.put(lambda left: self._force_flush(min(left, max(deadline - time.monotonic(), 0.001))), 0, items=0)
        return self._queue.flush(max(deadline - time.monotonic(), 0.0)) and flushed

    def _force_flush(self, timeout: float) -> None:
        force_flush = getattr(self._exporter, "force_flush", None)
        # SpanExporter's own returns None, whatever it declares.
        if force_flush is not None and force_flush(max(int(timeout * 1000), 1)) is False:
            raise RuntimeError(f"{type(self._exporter).__name__} could not flush")

    def close(self, timeout: float) -> None:
        """Export everything queued and shut the exporter down, within ``timeout`` seconds."""
        self._queue.put(lambda left: self._shut_down(min(left, timeout)), 0, items=0)
        self._queue.close(timeout)
        if not self._is_shut:
            with contextlib.suppress(RuntimeError):  # since CPython 3.12 no thread starts at the end of the process
                threading.Thread(target=self._abort, name=f"tachograph {self._name} end", daemon=True).start()

    def _abort(self) -> None:
        try:
            self._shut_down(_ABORTING)
        except Exception as error:  # noqa: BLE001 - the border to exporters and their libraries
            self._registry.count_error("exporter")
            _log.warning("%s: shutdown() failed: %r", self._name, error)

    def _shut_down(self, timeout: float) -> None:
        with self._shutting:
            if self._is_shut:
                return
            self._is_shut = True
        shutdown = getattr(self._exporter, "shutdown", None)
        if shutdown is not None and self._timed_shutdown:
            shutdown(timeout_millis=timeout * 1000)
        elif shutdown is not None:
            shutdown()

    def reset_in_child(self) -> None:
        """Leave the queue and the exporter to the parent process, after a fork."""
        self._queue.reset_in_child()
        self._shutting = threading.Lock()
        _left_to_the_parent.append(self._exporter)


class ItemExporter:
    """Hands the spans or the events of each batch to an exporter, 512 at a time, as the SDK's batch processors do.

    Args:
        exporter: of spans or log records; this destination shuts it down at the end.
        registry: where losses are counted.
        items: returns those of a batch.
        convert: returns some of them as the exporter takes them; called in the exporter's thread.
        name: of the destination, in logs and counts; by default the name of the exporter's class.
    """

    def __init__(
        self,
        exporter: Any,
        registry: Registry,
        *,
        items: Callable[[Batch], Sequence[Any]],
        convert: Callable[[Batch, Sequence[Any]], Sequence[Any]] = lambda _batch, items: items,
        name: str | None = None,
    ) -> None:
        self._exporter = exporter
        self._items = items
        self._convert = convert
        self._queue = ExporterQueue(exporter, registry, name=name)
        self.flush = self._queue.flush
        self.close = self._queue.close
        self.reset_in_child = self._queue.reset_in_child

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def __call__(self, batch: Batch) -> None:
        """Queue the items of one batch; never waits."""
        found = self._items(batch)
        for first in range(0, len(found), EXPORTED_AT_ONCE):
            self._queue_some(batch, found[first : first + EXPORTED_AT_ONCE])

    def _queue_some(self, batch: Batch, items: Sequence[Any]) -> None:
        def export(_timeout: float) -> object:
            return self._exporter.export(self._convert(batch, items))

        self._queue.put(export, len(items) * _ITEM_BYTES, items=len(items))


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
            raise TypeError(f"it returns a {type(made).__name__}, which does not export {self.signal}")
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
    # If nobody has loaded the module, nothing can be an instance of its classes: the SDK is not loaded for it.
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and isinstance(value, base)
