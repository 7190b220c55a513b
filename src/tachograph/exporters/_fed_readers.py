"""Feeding the readers of a program's own MeterProvider: our distributions join each of their collections.

A reader of the Python SDK has no further producers (specification, "Metrics SDK", "MetricProducer"): it asks the one
callable that ``MetricReader._set_collect_callback`` gave it, and hands on what that returns. A :class:`Feed` stands in
its place, asks it first, and adds to the answer. Schedules and exports stay the reader's: nothing here makes it
collect. Only what is known is fed: a provider or a reader of another make has to be replayed into.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from tachograph.exporters._deltas import Deltas
from tachograph.exporters._foreign import ForeignInstruments, Metric
from tachograph.exporters._reader_seam import (
    Provider,
    Stream,
    StreamPoint,
    UnknownError,
    View,
    collect_of,
    is_enabled,
    preferences_of,
    provider_of,
    readers_of,
    set_collect,
    streams_of,
)
from tachograph.exporters.producer import encodable_number, histogram_data_point, into_scopes
from tachograph.recording.points import HistogramPoint, MetricPoints, identity
from tachograph.recording.switch import switch

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.export import Metric as SdkMetric
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

Series = tuple[Metric, tuple[object, ...]]


class Reading(NamedTuple):
    """A state of the registry; a later one never holds less.

    Attributes:
        begun: when it was begun, by ``time.monotonic``.
        time_unix_nano: when it was complete.
    """

    metrics: Mapping[Metric, MetricPoints]
    begun: float
    time_unix_nano: int

    def histograms(self) -> Iterator[tuple[Metric, list[HistogramPoint]]]:
        """Yield the points of every distribution that has values."""
        for metric, points in self.metrics.items():
            if metric.kind == "histogram":
                yield (
                    metric,
                    [point for point in points.points if isinstance(point, HistogramPoint) and point.summary.count],
                )

    def counts(self) -> Counter[Series]:
        """Return how many values each series of a distribution has."""
        return Counter(
            {
                (metric, identity(point.attributes)): point.summary.count
                for metric, points in self.histograms()
                for point in points
            }
        )


NOTHING_READ = Reading({}, -1.0, 0)


class Feed:
    """The callable that a reader calls for its points: that of before, and then ours on top. It outlives a join.

    Attributes:
        theirs: the callable that the reader had before.
        prepare: called before that, for what cannot be done inside of it: no callback may create an instrument.
        add: adds to what that returned; None while nobody feeds the reader.
        given: the points that the reader was fed last.
    """

    def __init__(self, theirs: Callable[..., MetricsData | None]) -> None:
        self.theirs = theirs
        self.prepare: Callable[[], None] | None = None
        self.add: Callable[[Feed, MetricReader, MetricsData | None, float], MetricsData | None] | None = None
        self.forget()

    def forget(self) -> None:
        """Forget the reader's last points, as a forked child does."""
        self.lock = threading.Lock()
        self.given = NOTHING_READ
        self.deltas = Deltas(frozenset({"histogram"}))
        self.streams: dict[Metric, list[Stream]] = {}

    def __call__(self, reader: MetricReader, *args: Any, **more: Any) -> MetricsData | None:
        """Collect, as the reader asks."""
        prepare, began = self.prepare, time.monotonic()
        _under_way.began = began
        try:
            if prepare is not None and switch.on:
                prepare()
            data = self.theirs(reader, *args, **more)
        finally:
            _under_way.began = math.inf
        add = self.add  # read afterwards: the collection itself may find a reader that ends the feeding
        return data if add is None or not switch.on else add(self, reader, data, began)


class _UnderWay(threading.local):
    began = math.inf


_under_way = _UnderWay()


def collection_began() -> float:
    """Return when the collection of a fed reader began that this thread is in; infinity where it is in none."""
    return _under_way.began


class FedReaders:
    """The readers of one provider, from :meth:`attach` until :meth:`detach`.

    Attributes:
        unknown: the name of the class that cannot be fed.

    Args:
        provider: the program's own.
        instruments: those that we have created in it.
        prepare: called before each collection, outside of the SDK's locks; it raises nothing.
        read: returns a reading that was begun no earlier than the time that it is given.
        guard: keeps errors away, and counts them.
        unable: told of each view and each reader's preference that buckets do not allow for.
    """

    def __init__(
        self,
        provider: Any,
        instruments: ForeignInstruments,
        *,
        prepare: Callable[[], None],
        read: Callable[[float], Reading],
        guard: Callable[[], AbstractContextManager[None]],
        unable: Callable[[str], object],
    ) -> None:
        self._provider = provider
        self._instruments = instruments
        self._feeds = _of_providers.setdefault(provider, WeakKeyDictionary())
        self._prepare, self._read = prepare, read
        self._guard = guard
        self._unable = unable
        self._attached = True
        self._seam: Provider | None = None
        self.unknown = ""

    def attach(self) -> bool:
        """Feed every reader that the provider has now; False where it, or one of them, is of an unknown make."""
        if not self._attached:
            return True
        try:
            seam = provider_of(self._provider, self._feeds.get)
        except UnknownError as error:
            self.unknown = str(error)
            return False
        self._seam = seam
        for reader in seam.readers:
            called = collect_of(reader)
            if called is None:  # it is being added
                continue
            feed = self._feeds.get(reader)
            if feed is None:
                feed = self._feeds.setdefault(reader, Feed(called))
            feed.prepare, feed.add = self._prepare, self._add
            if called is not feed:
                feed.theirs = called
                set_collect(reader, feed)
        return True

    def detach(self) -> Counter[Series]:
        """Give every reader its own callable back.

        Returns:
            How many values of each series all of the readers have been fed.
        """
        self._attached = False
        given: list[Counter[Series]] = []
        readers = readers_of(self._provider)
        for reader, feed in list(self._feeds.items()):
            with feed.lock:  # a collection that is under way has its points, or will get none
                if reader in readers and feed.given is not NOTHING_READ:
                    given.append(feed.given.counts())
            if feed.add == self._add:
                feed.prepare = feed.add = None
            if collect_of(reader) is feed:
                set_collect(reader, feed.theirs)
        least = given[0] if given else Counter()
        for counts in given[1:]:
            least &= counts
        return least

    def forget(self) -> None:
        """Forget the readers' last points, as a forked child does."""
        for feed in list(self._feeds.values()):
            feed.forget()

    def _add(self, feed: Feed, reader: MetricReader, data: MetricsData | None, began: float) -> MetricsData | None:
        """Return ``data`` with our distributions; as it is, where we have none or something goes wrong."""
        with self._guard():
            from opentelemetry.sdk.metrics.export import AggregationTemporality

            seam = self._seam
            reading = self._read(began)
            wanted = [] if seam is None else list(self._wanted(feed, reader, reading, seam.views))
            # Conversion asks the program's exemplar filter: that is done once the lock is free.
            found: list[tuple[Histogram, Stream, list[StreamPoint], bool]] = []
            with feed.lock:
                if not self._attached:
                    return data
                if reading.begun < feed.given.begun:  # another thread has collected for this reader meanwhile
                    reading = feed.given
                feed.given = reading
                for metric, instrument, streams in wanted:
                    is_delta = preferences_of(reader, instrument).temporality is AggregationTemporality.DELTA
                    points = _points(feed, reading, metric, is_delta=is_delta)
                    found += [(instrument, s, s.points(points, is_delta=is_delta), is_delta) for s in streams]
            scopes: dict[InstrumentationScope, list[SdkMetric]] = {}
            for instrument, stream, stream_points, is_delta in found:
                if stream_points:
                    made = self._metric(instrument, stream, stream_points, reading.time_unix_nano, is_delta=is_delta)
                    scopes.setdefault(instrument.instrumentation_scope, []).append(made)
            return into_scopes(data, seam.resource, scopes) if seam is not None and scopes else data
        return data

    def _wanted(
        self, feed: Feed, reader: MetricReader, reading: Reading, views: Sequence[View]
    ) -> Iterator[tuple[Metric, Histogram, list[Stream]]]:
        """Yield the distributions that the provider lets through, with the streams that its views make of them."""
        for metric, points in reading.histograms():
            made = self._instruments.histograms.get(metric)
            if not points or made is None or not is_enabled(made.instrument):
                continue
            instrument = cast("Histogram", made.instrument)
            streams = feed.streams.get(metric)
            if streams is None:
                found = streams_of(instrument, views, reader, points[0].boundaries, self._unable)
                streams = feed.streams.setdefault(metric, found)
            yield metric, instrument, streams

    def _metric(
        self, instrument: Histogram, stream: Stream, points: Sequence[StreamPoint], now: int, *, is_delta: bool
    ) -> SdkMetric:
        from opentelemetry.sdk.metrics.export import AggregationTemporality, NumberDataPoint, Sum
        from opentelemetry.sdk.metrics.export import Histogram as HistogramData
        from opentelemetry.sdk.metrics.export import Metric as SdkMetric

        temporality = AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
        data: HistogramData | Sum
        if stream.sums:
            sums: list[NumberDataPoint] = []
            for found in points:
                point, value = found.point, encodable_number(found.point.summary.total.value())
                attributes, exemplars = dict(point.attributes), self._exemplars(found)
                sums.append(NumberDataPoint(attributes, point.start_unix_nano, now, value, exemplars))
            data = Sum(sums, temporality, is_monotonic=False)
        else:
            data = HistogramData(
                [histogram_data_point(found.point, now, self._exemplars(found)) for found in points], temporality
            )
        return SdkMetric(stream.name, stream.description, instrument.unit, data)

    def _exemplars(self, found: StreamPoint) -> list[Any]:
        """Return the exemplars that the provider's filter lets through: each is of a sampled span."""
        if not found.exemplars or self._seam is None:
            return []
        from opentelemetry import trace
        from opentelemetry.sdk.metrics import Exemplar

        should_sample = self._seam.exemplar_filter.should_sample
        exemplars: list[Exemplar] = []
        with self._guard():
            for seen, dropped in found.exemplars:
                span = trace.SpanContext(seen.trace_id, seen.span_id, False, trace.TraceFlags(trace.TraceFlags.SAMPLED))
                context = trace.set_span_in_context(trace.NonRecordingSpan(span))
                attributes = {**dict(found.point.attributes), **dict(dropped)}
                if should_sample(seen.value, seen.time_unix_nano, attributes, context):
                    exemplars.append(
                        Exemplar(dict(dropped), seen.value, seen.time_unix_nano, seen.span_id, seen.trace_id)
                    )
        return exemplars


def _points(feed: Feed, reading: Reading, metric: Metric, *, is_delta: bool) -> list[HistogramPoint]:
    points = reading.metrics.get(metric)
    found: list[HistogramPoint] = []
    for point in points.points if points is not None else ():
        wanted = point
        if points is not None and is_delta:
            since = feed.deltas.since(points, point, reading.time_unix_nano)
            if since is None:
                continue
            wanted = since
        if isinstance(wanted, HistogramPoint) and wanted.summary.count:
            found.append(wanted)
    return found


# Per provider, since a feed refers to its provider's readers: here it lives no longer than they do.
_of_providers: WeakKeyDictionary[Any, WeakKeyDictionary[Any, Feed]] = WeakKeyDictionary()
