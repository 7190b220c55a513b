"""Windows for any program with the OpenTelemetry SDK: a metric reader that collects at the wall clock's multiples.

Collecting is done on time in the reader's own thread; exporting waits in a queue with a thread of its own, so that a
slow destination delays no window.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter, _Gauge
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from tachograph.exporters.console import series_name
from tachograph.exporters.handler_exporter import each_point, summary
from tachograph.exporters.producer import SdkExporter, with_metrics
from tachograph.monitor.event import Event, made
from tachograph.monitor.stat import window_nanoseconds
from tachograph.monitor.stat_window import STAT_EVENT
from tachograph.recording import journal
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork, unblock_signals
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name
from tachograph.recording.registry import Registry
from tachograph.recording.values import as_float


class StatEvents:
    """An exporter that calls a function with an event for each series of a window.

    Args:
        callback: takes the event; an error of it is counted, and logged once.
        registry: where its errors are counted.
    """

    def __init__(self, callback: Callable[[Event], Any], registry: Registry) -> None:
        self._callback = callback
        self._registry = registry
        self._log_once = LogOnce()

    def export(self, metrics_data: MetricsData, **_: Any) -> MetricExportResult:
        """Call it with every event."""
        for _scope, metric, point in each_point(metrics_data):
            end = point.time_unix_nano
            timestamp = datetime.fromtimestamp(end / 1e9)  # noqa: DTZ006 - local, as torch.monitor's
            try:
                self._callback(made(STAT_EVENT, end, timestamp, _event_data(metric, point)))
            except Exception:  # noqa: BLE001 - the border to the user's function
                self._registry.count_error("handler")
                self._log_once(
                    "raised",
                    "%r raised (further warnings are suppressed; see tachograph_errors_total on /metrics)",
                    self._callback,
                    exc_info=True,
                )
        return MetricExportResult.SUCCESS


def _event_data(metric: Metric, point: Any) -> dict[str, Any]:
    attributes = dict(point.attributes or {})
    if hasattr(point, "value"):
        delta = getattr(metric.data, "aggregation_temporality", None) is AggregationTemporality.DELTA
        found = [(".sum" if delta else ".value", point.value)]
    else:
        found = list(summary(point))
        if point.count:
            found.append((".mean", as_float(point.sum) / point.count))
    return {series_name(metric.name + suffix, attributes): as_float(value) for suffix, value in found}


_NANO = 1_000_000_000
_LONGEST_SLEEP = 1.0  # seconds: the wall clock may be set meanwhile
_FORK_WAIT = 0.05  # seconds that a fork waits for a collection, and a child until it has forgotten its parent's window
_EXIT_PATIENCE = 0.5  # seconds for which the destination may take nothing at the end of the process
_EXIT_CLOSING = 0.25
_LONGEST_EXIT = 10.0

# The specification's "delta" preference (OTLP exporter, "Additional environment variable configuration"), and gauges,
# whose last value is one of the window then. A sum that goes up and down says how much there is: it stays cumulative.
_DELTA: tuple[type, ...] = (Counter, Histogram, ObservableCounter, _Gauge)
_MEASURING: tuple[type[Any], ...] = (Counter, Histogram, _Gauge)
_PATTERN = frozenset("*?[")


def stat_views(*names: str) -> list[View]:
    """Return the views under which instruments have exactly the count, sum, minimum and maximum of a window.

    They are for histograms, counters and synchronous gauges, each of whose values counts as one; it is a histogram
    without bucket boundaries, so that no bucket is searched or exported. Up-down counters and observable instruments
    stay as they are. The SDK drops NaN, infinities and a histogram's negative values; a gauge takes negative ones.

    Args:
        *names: instruments' names, as :class:`opentelemetry.sdk.metrics.view.View` takes them: ``*`` stands for any
            characters, ``?`` for one; case does not matter. A name that a pattern of the same call covers has no view
            of its own; two patterns that cover one instrument would export it twice.

    Raises:
        TypeError: a name is not a string.
        ValueError: there is no name, or an empty one.
    """
    if not names:
        raise ValueError("stat_views() needs names of instruments: use '*' for all")
    wanted = list(dict.fromkeys(check_name(name).lower() for name in names))
    patterns = [name for name in wanted if not _PATTERN.isdisjoint(name)]
    plain = [name for name in wanted if name not in patterns]
    wanted = patterns + [name for name in plain if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    aggregation = ExplicitBucketHistogramAggregation(boundaries=(), record_min_max=True)
    return [
        View(instrument_type=kind, instrument_name=name, aggregation=aggregation)
        for name in wanted
        for kind in _MEASURING
    ]


class WindowedMetricReader(MetricReader):
    """A metric reader of the OpenTelemetry SDK whose collections are windows, as those of a ``Stat``.

    A window closes at the wall clock's multiples of its size, so that those of all processes line up, whether values
    come or not, in a thread of the reader's own. Histograms, counters and gauges are of that window alone; with
    :func:`stat_views` each has exactly its count, sum, minimum and maximum. The start and end time of each data point
    are the window's. An empty window exports nothing, one that is overdue is closed late, as one with those it has
    run into. An up-down counter has its present value in each window, from its first one on.

    ``force_flush()`` and ``shutdown()`` close the open window before its time; the provider calls ``shutdown()`` at
    the end of the process. A destination that is slow, dead or raises delays no window: up to 64 MiB wait for it, and
    what is lost is counted (``tachograph.dropped``) and said once. A forked child begins with an empty window.

    A clock that is set back by up to a window keeps the window open; farther back it goes on as the one that it is now.

    Attributes:
        makes_events: its windows leave as events.

    Args:
        exporter: a ``MetricExporter`` of the SDK, to which each window goes; or a function, which is called with an
            event ``torch.monitor.Stat`` for each series of each window, such as a handler of torch.monitor or
            ``tachograph.monitor.log_event``: ``<name>.count``, ``.sum``, ``.min``, ``.max`` and ``.mean`` of a
            histogram, ``.sum`` of a counter, ``.value`` of a gauge or an up-down counter. Never called twice at once.
        window: at least 1 ms, in whole milliseconds; a float is seconds.
        clock: nanoseconds since 1970.
        registry: where losses are counted.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the window is below 1 ms, or not finite.
    """

    def __init__(
        self,
        exporter: MetricExporter | Callable[[Event], Any],
        window: timedelta | float,
        *,
        clock: Callable[[], int] = time.time_ns,
        registry: Registry = registries.default,
    ) -> None:
        destination = _destination(exporter, registry)
        self._size = window_nanoseconds("WindowedMetricReader", window)
        super().__init__(
            preferred_temporality=dict.fromkeys(_DELTA, AggregationTemporality.DELTA),
            # As the SDK's own periodic reader asks; there is no public name for it.
            preferred_aggregation=getattr(destination, "_preferred_aggregation", None),
        )
        self._clock = clock
        self._registry = registry
        self._queue = SdkExporter(destination, registry)
        self.makes_events = isinstance(destination, StatEvents)
        self._slot = clock() // self._size
        self._began = self._first = self._slot * self._size
        self._ended = False
        self._inherited = False  # the open window holds what a parent process has recorded
        self._start()
        _readers.add(self)

    def _start(self) -> None:
        self._closing = threading.RLock()
        self._forking = False
        self._under_way: int | None = None  # when the collection began that is this reader's own
        self._forgotten = threading.Event()
        self._log_once = LogOnce()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tachograph windowed reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._inherited:
            self._guarded(self._close_open)
            self._forgotten.set()
        while not self._stop.wait(self._until_next()):
            self._guarded(self.tick)
        self._guarded(self._close_open)

    def _until_next(self) -> float:
        return min(_LONGEST_SLEEP, (self._size - self._clock() % self._size) / _NANO)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the one guard around background work: it is counted and said
            self._registry.count_error("windows")
            message = (
                "closing a window failed, it is closed with the next one (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)"
            )
            self._log_once(type(error).__name__, message, level=logging.ERROR, exc_info=True)

    def tick(self) -> None:
        """Close the window if its time is over; the reader's thread does it on time by the wall clock.

        For a program, such as a test, that sets a ``clock`` of its own.
        """
        with self._closing:
            now = self._clock()
            slot = now // self._size
            if slot > self._slot:
                self._close(now)
            elif slot < self._slot - 1:  # set back, by more than to the window before
                self._slot, self._began = slot, slot * self._size

    def _close_open(self) -> None:
        with self._closing:
            self._close(self._clock())

    def _close(self, now: int) -> None:
        """Collect, and begin the next window; where that raises, the window stays open."""
        if getattr(self, "_collect", self) is None:  # not the reader of a provider yet, or not any more
            self._begin(now)
            return
        self._under_way = now
        try:
            self.collect()
        finally:
            self._under_way = None
        self._begin(now)

    def _begin(self, now: int) -> None:
        self._began = self._end(now)
        self._slot = max(self._slot, now // self._size)
        self._inherited = False

    def _end(self, now: int) -> int:
        """Return the end of the open window: a multiple of its size, or now where it is closed before its time."""
        slot = now // self._size
        return slot * self._size if slot > self._slot else max(now, self._began)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        """Queue a window; one that is collected from elsewhere closes before its time."""
        del timeout_millis, kwargs
        with self._closing:
            now = self._clock() if self._under_way is None else self._under_way
            if not self._inherited:
                points = sum(1 for _ in each_point(metrics_data))
                self._queue.put(partial(_windowed, metrics_data, self._first, self._began, self._end(now)), points)
            if self._under_way is None:
                self._begin(now)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Close the open window and export all that are closed; True where all of it was taken in time."""
        deadline = time.monotonic() + timeout_millis / 1000
        if self._ended or not self._closing.acquire(timeout=timeout_millis / 1000):
            return self._ended
        try:
            self._close(self._clock())
        finally:
            self._closing.release()
        return self._queue.flush(_left(deadline))

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the open window, export all that are closed and shut the exporter down; later calls do nothing.

        At the end of the process a destination that takes nothing adds at most a second.
        """
        del kwargs
        if self._ended:
            return
        self._ended = True
        deadline = time.monotonic() + timeout_millis / 1000
        exiting = not threading.main_thread().is_alive()
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(min(_left(deadline), _EXIT_CLOSING) if exiting else _left(deadline))
        while exiting:
            before, patience = self._queue.delivered, min(_EXIT_PATIENCE, _left(deadline))
            taken = self._queue.flush(patience)
            if taken or self._queue.delivered == before:
                deadline = min(deadline, time.monotonic() + _EXIT_CLOSING)
                break
            deadline = min(deadline, time.monotonic() + _LONGEST_EXIT)
        self._queue.close(_left(deadline))

    def before_fork(self) -> None:
        """Let no fork happen in the middle of a collection: the child could never free the SDK's locks."""
        self._forking = self._closing.acquire(timeout=_FORK_WAIT)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._forking:
            self._forking = False
            self._closing.release()

    def reset_in_child(self) -> None:
        """Forget the parent's window, which it exports itself, and go on with one of the child's own."""
        self._queue.reset_in_child()
        if not self._ended:
            self._inherited = True
            unblock_signals()
            self._start()
            self._forgotten.wait(_FORK_WAIT)


def _destination(exporter: Any, registry: Registry) -> Any:
    if isinstance(exporter, type):
        raise TypeError(f"WindowedMetricReader needs an instance: write {exporter.__name__}(), not {exporter.__name__}")
    if callable(getattr(exporter, "export", None)):
        return exporter
    if callable(exporter):
        return StatEvents(exporter, registry)
    found = f"{type(exporter).__name__}: {exporter!r:.100}"
    if callable(getattr(exporter, "emit", None)):
        raise TypeError(
            f"WindowedMetricReader needs tachograph.otel.HandlerExporter(handler), not the handler itself: {found}"
        )
    raise TypeError(
        "WindowedMetricReader needs an OpenTelemetry MetricExporter (an object with export(metrics_data)), "
        f"or a function that is called with events, not {found}"
    )


def _windowed(metrics_data: MetricsData, first: int, began: int, end: int) -> MetricsData:
    """Return a collection with the times of its window, and of all windows since ``first`` where it is cumulative."""
    pace = GilYield()

    def windowed(metric: Metric) -> Metric:
        data: Any = metric.data
        temporality = getattr(data, "aggregation_temporality", None)
        start = first if temporality is AggregationTemporality.CUMULATIVE else began
        points = []
        for point in data.data_points:
            points.append(replace(point, start_time_unix_nano=start, time_unix_nano=end))
            pace()
        return replace(metric, data=replace(data, data_points=points))

    return with_metrics(metrics_data, windowed)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_readers: weakref.WeakSet[WindowedMetricReader] = weakref.WeakSet()


def _at_exit() -> None:
    """Shut down those that no provider does: its own shutdown does not reach a reader that was added late."""
    for reader in list(_readers):
        reader.shutdown()


def _close_windows(timeout: float) -> None:
    """Close the windows that leave as events: those that are logged later would come after the last delivery."""
    deadline = time.monotonic() + timeout
    for reader in list(_readers):
        if reader.makes_events:
            reader.force_flush(_left(deadline) * 1000)


def _before_fork() -> None:
    for reader in list(_readers):
        reader.before_fork()


def _after_fork_in_parent() -> None:
    for reader in list(_readers):
        reader.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for reader in list(_readers):
        reader.reset_in_child()


atexit.register(_at_exit)
journal.default.last_words.append(_close_windows)
journal.default.window_closers.append(_close_windows)
at_fork("windowed_readers", before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)
