"""A ``MetricReader`` of the SDK as a destination: it collects when it does, and gets everything recorded by then.

The SDK's provider feeds a reader by a callback that it sets in it; there is no public way to do so. The same is done
here, with the registry in place of the SDK's storage, so that gauges, counters and distributions are exact at any rate.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, MetricReader, MetricsData

from tachograph.exporters._deltas import Deltas
from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.producer import delta_kinds, merge, point_count, sdk_metrics, with_metrics
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

_FINAL_COLLECTION = 0.8  # share of the time for its end that a reader gets; the rest is ours, to say what was lost
_ABORTING = 0.1  # seconds for a shutdown() beside a call that does not return


class ReaderFeed:
    """Feeds a reader that the program has handed over, from :meth:`open` to :meth:`close`, which shuts it down.

    A periodic reader keeps its own interval, and collects once more at its end; one that is asked, for Prometheus or in
    a test, collects whenever it is asked, after the end nothing. Points of other libraries' SDK instruments in our
    own provider come with it. In a forked child the reader collects nothing.

    Args:
        reader: one that no provider has.
        registry: where losses and errors are counted.
        name: of the destination, in logs and counts; by default the name of the reader's class.

    Attributes:
        reader: the one that is fed.
        delivered: how many flushes have succeeded that had been given up: each flush of an idle reader succeeds.
        pid: of the process that it is fed in.
        closed: it is fed no more.

    Raises:
        ValueError: it is registered with a provider already, or was shut down.
    """

    def __init__(self, reader: MetricReader, registry: Registry, *, name: str | None = None) -> None:
        refused = unfit(reader) or ("another pipeline uses it" if _feed_of(reader) is not None else None)
        if refused and not _is_the_parents(reader):
            raise ValueError(f"a {type(reader).__name__}: {refused}")
        self.reader = reader
        self._registry = registry
        self._name = name or type(reader).__name__
        self._deltas = Deltas(delta_kinds(reader))
        self._queue = DeliveryQueue(self._name, registry)
        self._source: Callable[[MetricReader, float], Batch | None] | None = None
        self._points = 0
        self._hurried = self._waiting = self._late = self._is_shut = False
        self._log_once = LogOnce()
        self._lock, self._collecting = threading.Lock(), threading.Lock()
        self.delivered = 0
        self.pid = os.getpid()
        self.closed = False
        # The seam by which the SDK's provider does it; its annotation is not what it is called with.
        reader._set_collect_callback(cast("Any", self._collect))  # noqa: SLF001

    def open(self, source: Callable[[MetricReader, float], Batch | None]) -> None:
        """Begin.

        Args:
            source: returns what is there, within so many seconds; None where that is not known. It may be called in
                any thread, by one at a time.
        """
        self._source = source

    def _collect(self, _reader: MetricReader, timeout_millis: float = 10_000) -> MetricsData | None:
        """Return the points for one collection of the reader; None leaves it without one."""
        if self._source is None or self.closed or os.getpid() != self.pid:
            return None
        deadline = time.monotonic() + timeout_millis / 1000
        if not self._collecting.acquire(timeout=max(timeout_millis / 1000, 0.0)):
            return None
        try:
            batch = self._source(self.reader, max(deadline - time.monotonic(), 0.0))
            if batch is None:
                return None
            ours = sdk_metrics(
                batch.metrics, batch.resource, batch.time_unix_nano, deltas=self._deltas, pace=GilYield()
            )
            data = merge(ours, batch.sdk)
        except Exception as error:  # noqa: BLE001 - the border to the SDK's callbacks; a thread of the reader's would end
            self._count(f"collection failed: {error!r}")
            return None
        finally:
            self._collecting.release()
        if not data.resource_metrics:
            return None
        self._points = point_count(data)
        return _with_even_keys(data) if _is_for_prometheus(self.reader) else data

    def __call__(self, batch: Batch) -> None:
        """Do nothing: a reader collects by itself."""

    def flush(self, timeout: float) -> bool:
        """Have the reader collect and export; True where that was done within ``timeout`` seconds.

        One that only answers keeps nothing back, so there is nothing to do: a collection that nobody has asked for
        would take a difference away from the next one, or be on the next page beside it.
        """
        if self._answers_only():
            return True
        with self._lock:
            begun, self._hurried = self._hurried and timeout > 0, timeout <= 0
            wanted = not begun and not self._waiting
            self._waiting = self._waiting or wanted
        if wanted:
            self._queue.put(self._force_flush, 0, items=max(self._points, 1), kind="metrics")
        flushed = self._queue.flush(timeout)
        self._late = not flushed and timeout > 0
        return flushed

    def _force_flush(self, timeout: float) -> None:
        with self._lock:
            self._waiting = False
        if self.reader.force_flush(timeout_millis=timeout * 1000) is False:
            raise RuntimeError(f"{type(self.reader).__name__} could not flush")
        self.delivered += self._late
        self._late = False

    def _answers_only(self) -> bool:
        return isinstance(self.reader, InMemoryMetricReader) or _is_for_prometheus(self.reader)

    def close(self, timeout: float) -> None:
        """Shut the reader down, within ``timeout`` seconds, and feed it no more."""
        if _feed_of(self.reader) is not self:
            self._count("another MeterProvider uses this reader now, so it receives nothing more from tachograph")
            self.closed = True
        self._queue.put(
            lambda left: self._shut_down(min(left, timeout) * _FINAL_COLLECTION),
            0,
            items=max(self._points, 1),
            kind="metrics",
        )
        self._queue.close(timeout)
        self.closed = True
        if not self._is_shut:
            with contextlib.suppress(RuntimeError):  # since CPython 3.12 no thread starts at the end of the process
                threading.Thread(target=self._abort, name=f"tachograph {self._name} end", daemon=True).start()

    def _abort(self) -> None:
        try:
            self._shut_down(_ABORTING)
        except Exception as error:  # noqa: BLE001 - the border to readers and their libraries
            self._count(f"shutdown() failed: {error!r}")

    def _shut_down(self, timeout: float) -> None:
        with self._lock:
            if self._is_shut:
                return
            self._is_shut = True
        if isinstance(self.reader, InMemoryMetricReader):
            self.reader.collect(timeout_millis=timeout * 1000)  # for a get_metrics_data() after the end
        self.reader.shutdown(timeout_millis=timeout * 1000)

    def reset_in_child(self) -> None:
        """Leave the reader to the parent process, after a fork: here it gets nothing."""
        self._queue.reset_in_child()
        self._lock, self._collecting = threading.Lock(), threading.Lock()

    def _count(self, why: str) -> None:
        self._registry.count_error("exporter")
        self._log_once(
            "failed",
            "%s: %s (further warnings are suppressed; see tachograph_errors_total on /metrics)",
            self._name,
            why,
        )


def unfit(reader: MetricReader) -> str | None:
    """Return why a reader cannot be fed; None where it can be, or is."""
    feed = _feed_of(reader)
    if feed is not None:
        return "it was shut down with its pipeline: create a new one" if feed.closed else None
    if reader._collect is not None:  # noqa: SLF001 - there is no public way to ask
        return (
            "it is already registered with a MeterProvider: create another one for start(), or pass none, because the "
            "readers of the program's own provider also export everything recorded"
        )
    return None


def _feed_of(reader: MetricReader) -> ReaderFeed | None:
    feed = getattr(reader._collect, "__self__", None)  # noqa: SLF001 - as above
    return feed if isinstance(feed, ReaderFeed) else None


def _is_the_parents(reader: MetricReader) -> bool:
    feed = _feed_of(reader)
    return feed is not None and feed.pid != os.getpid()


def _is_for_prometheus(reader: MetricReader) -> bool:
    # Loaded by whoever has made such a reader.
    module = sys.modules.get("opentelemetry.exporter.prometheus")
    return module is not None and isinstance(reader, module.PrometheusMetricReader)


def _with_even_keys(data: MetricsData) -> MetricsData:
    """Return data in which metrics of one name have the same attribute keys in every scope, empty where there is none.

    ``PrometheusMetricReader`` makes one family of them, and would put the values of one scope under the keys of another
    one. To Prometheus a label that is empty is a label that is not there.
    """
    keys: dict[tuple[str, str | None, str | None], dict[str, None]] = {}
    uneven: set[tuple[str, str | None, str | None]] = set()
    for metric in _metrics(data):
        family = (metric.name, metric.description, metric.unit)
        own = {key: None for point in metric.data.data_points for key in point.attributes or {}}
        if family in keys and set(own) != set(keys[family]):
            uneven.add(family)
        keys.setdefault(family, {}).update(own)
    if not uneven:
        return data

    def evened(metric: Metric) -> Metric:
        family = (metric.name, metric.description, metric.unit)
        if family not in uneven:
            return metric
        empty = dict.fromkeys(keys[family], "")
        points = [replace(point, attributes={**empty, **(point.attributes or {})}) for point in metric.data.data_points]
        return replace(metric, data=replace(cast("Any", metric.data), data_points=points))

    return with_metrics(data, evened)


def _metrics(data: MetricsData) -> Iterator[Metric]:
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics
