"""The registry in a MeterProvider that the program has set up itself: its views, readers and exporters apply.

Gauges and counters are observable instruments that read the registry and never reset it. Distributions, a ``Stat``'s
among them, are fed to the provider's readers: they join each collection, exact at any rate, in the reader's temporality
(:mod:`tachograph.exporters._fed_readers`). So their count, sum and buckets are those of our own ways out: negative
values are in them, hence the minimum and the sum may be below zero; the extremes of a delta are left out where they are
not known. For that the callable that a reader calls for its points is ours until :meth:`ExternalProvider.close`;
nothing else is changed.

If the provider, or one of its readers, is of a make that is not known, all readers are replayed into instead, from
then on and for good: the values of a distribution go, one by one, into a synchronous histogram. If not every value
can be (more than 2,000 a second, folded before it was joined, negative, added up by a ``Stat``), no value is invented:
the exact ``<name>.count`` and ``<name>.sum`` are published beside the histogram, and the values that it lacks are
counted as ``tachograph.dropped`` (``destination="sdk"``). The sum of a series that holds negative values may fall, so
it is ``<name>.signed.sum``, an up-down counter.

The SDK's limits: a gauge that is NaN or infinite has no point in that collection (``tachograph.nonfinite``
says so); upper case becomes lower case; other illegal characters of a name become ``_``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider, Observation, _internal, get_meter_provider

from tachograph.exporters._external_instruments import NO_SPAN, MetricKey, instruments_in
from tachograph.exporters._fed_readers import NOTHING_READ, FedReaders, RegistryReading, collection_began
from tachograph.exporters._reader_seam import late_readers_of, readers_of
from tachograph.exporters._value_replay import RATE, TappedDistribution, ValueReplay
from tachograph.recording import registry as registries
from tachograph.recording.accumulators import Distribution
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce, log
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.points import Attributes, HistogramPoint, MetricPoints, NumberPoint, identity
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.values import Number, as_float, fits_int64, is_finite

_BUSY_WAIT = 2.0
_UNREAD_AFTER = 10.0  # seconds without any reader, after which that is said

_log_once = LogOnce()


def external_meter_provider(*, load: bool = True) -> MeterProvider | None:
    """Return the meter provider that the program has set; None where there is none, or a no-op.

    Nothing is created: only where the program (or its user) named one in ``OTEL_PYTHON_METER_PROVIDER`` is that loaded.

    Args:
        load: else not even that one is, before the program itself has done so: it could set no other one any more.
    """
    # There is no public way to ask without loading it.
    if not load and "OTEL_PYTHON_METER_PROVIDER" in os.environ and getattr(_internal, "_METER_PROVIDER", None) is None:
        return None
    try:
        provider = get_meter_provider()
    except Exception as error:  # noqa: BLE001 - the border to the class that the variable names
        pass_on(error)
        registries.default.count_error("joined")
        named = os.environ.get("OTEL_PYTHON_METER_PROVIDER")
        _log_once(
            named,
            "cannot load OTEL_PYTHON_METER_PROVIDER=%s (further warnings are suppressed; see "
            "tachograph_errors_total on /metrics): %s",
            named,
            error,
        )
        return None
    # The proxy, whose class has no public name, stands in until a provider is set.
    if isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider":
        return None
    return provider


class ExternalProvider:
    """A meter provider of the program's own, through which the registry is published from construction on.

    Args:
        provider: the program's own.
        registry: its metrics are published.
        clock: seconds, monotonic.
        pace: called between slices of work of less than a millisecond, so that other threads may run.
    """

    def __init__(
        self,
        provider: MeterProvider,
        registry: Registry,
        *,
        clock: Callable[[], float] = time.monotonic,
        pace: Callable[[], None] | None = None,
    ) -> None:
        self._provider = provider
        self._registry = registry
        self._clock = clock
        self._pace = GilYield() if pace is None else pace
        self._instruments = instruments_in(provider)
        self._fed = FedReaders(
            provider,
            self._instruments,
            prepare=self._prepare,
            read=self._reading_since,
            guard=self._kept_away,
            unable=lambda wish: self._log_once(wish, "%s", wish),
        )
        self._reading = NOTHING_READ
        self._free_locks()
        self._closed = self._unread = False
        self._log_once = LogOnce()
        self._joined_at = clock()
        self._new: dict[int, TappedDistribution] = {}
        self._unknown: set[int] = set()
        if self._instruments.replayed:
            switch.on_distribution(self._tap)
        # Created first, hence called first in every collection: it brings the registry up to date for all others.
        own = registry.group(OWN_GROUP).own(DROPPED)
        self._first = MetricKey(OWN_GROUP, own.name, own.unit, own.kind)
        with self._kept_away():
            self._observe(self._first, "", own.description)
        registry.told = [*registry.told, self._know]
        for scope in list(registry.groups):
            self._know(scope)
        self.refresh()

    def _free_locks(self) -> None:
        self._creating, self._draining = threading.Lock(), threading.Lock()
        self._collecting, self._switching = threading.Lock(), threading.Lock()

    def _know(self, scope: str) -> None:
        """Make the meter of a group at once: a provider that is being shut down collects once more, but makes none."""
        with self._kept_away():
            self._instruments.meter(self._provider, scope)

    def refresh(self) -> None:
        """Create new instruments, find new readers, replay new values; never call it inside a callback."""
        self._refresh(None)

    def _prepare(self) -> None:
        """Create new instruments, so that the collection which is about to begin has them."""
        with self._kept_away():
            self.refresh()

    def drain(self, timeout: float) -> bool:
        """Replay everything that is left, for ``timeout`` seconds at most, at any rate.

        Returns:
            Whether all of it was replayed, or is fed to the next collection; what was not is counted.
        """
        return self._refresh(self._clock() + timeout)

    def force_flush(self, timeout: float) -> bool:
        """Make the provider's readers collect and export; True where they have, within ``timeout`` seconds.

        At the end of the interpreter no thread can be started any more, hence no bound be kept: False then. The
        provider's shutdown collects once more, so nothing is lost unless :meth:`close` was called before it.
        """
        force_flush = getattr(self._provider, "force_flush", None)
        if force_flush is None:
            return False
        late = [] if self._instruments.replayed else late_readers_of(self._provider)
        flushes = [force_flush, *(reader.force_flush for reader in late)]
        done: list[bool] = []

        def flush() -> None:
            for force_flush in flushes:
                with self._kept_away():
                    done.append(force_flush(timeout_millis=max(timeout, 0.001) * 1000) is not False)

        thread = threading.Thread(target=flush, name="tachograph flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        thread.join(timeout)
        return len(done) == len(flushes) and all(done)

    def close(self) -> None:
        """Leave the provider: the instruments stay in it, and yield nothing; readers and taps are as they were."""
        self._closed = True
        self._registry.told = [told for told in self._registry.told if told != self._know]
        self._fed.detach()
        switch.off_distribution(self._tap)
        for observable in list(self._instruments.observables.values()):
            observable.read = None
        for replay in list(self._instruments.replays.values()):
            replay.leave()
        for source in list(self._new.values()):
            source.leave()
        self._new, self._reading = {}, NOTHING_READ

    def reset_in_child(self) -> None:
        """Forget the parent process's values, after a fork; its locks may be held by threads that are gone."""
        self._free_locks()
        self._registry.told = [told for told in self._registry.told if told != self._know]  # the SDK's lock may be held
        self._new, self._reading = {}, NOTHING_READ
        self._fed.forget()
        self._instruments.unreplayed.clear()
        for replay in self._instruments.replays.values():
            replay.forget()

    @contextmanager
    def _kept_away(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the border to the program's provider, exporters and callbacks
            pass_on(error)
            self._registry.count_error("joined")
            self._log_once(
                "failed",
                "publishing through the program's MeterProvider failed (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)",
                exc_info=True,
            )

    def _refresh(self, deadline: float | None) -> bool:
        if self._closed or not switch.on or not self._creating.acquire(timeout=_BUSY_WAIT):
            return False
        lost = 0
        try:
            feeds = self._feeds()
            self._look_for_readers(at_once=deadline is not None)
            if not feeds:
                self._watch()
            found = self._read()
            for metric, points in found.items():
                with self._kept_away():
                    self._create(metric, points)
            if not feeds:
                with self._kept_away():
                    lost = self._drain(deadline)
                for metric, points in found.items():
                    with self._kept_away():
                        self._complete(metric, points)
        finally:
            self._creating.release()
        return not lost

    def _feeds(self) -> bool:
        """Tell whether distributions are fed. From the first reader on that cannot be, all are replayed, for good."""
        if not self._instruments.replayed and not self._fed.attach():
            with self._switching:
                if not self._instruments.replayed and not self._closed:
                    self._go_over()
        return not self._instruments.replayed

    def _go_over(self) -> None:
        """Replay from now on, apart from the values that every reader has been fed."""
        switch.on_distribution(self._tap)
        arrived = self._fed.detach()
        fed = bool(arrived)
        for metric, attributes, distribution in _distributions(self._registry):
            series = metric, identity(attributes)
            count = min(arrived[series], distribution.summary().count)
            arrived[series] -= count
            replay = self._instruments.replays.setdefault(metric, ValueReplay(self._clock))
            replay.watch(distribution, attributes, self._new.pop(id(distribution), None), arrived=count)
            replay.exact = replay.exact or count > 0
        self._instruments.unreplayed.update(+arrived)
        self._instruments.replayed = True
        log.log(
            logging.WARNING if fed else logging.INFO,
            "%s is not a provider or reader of a known OpenTelemetry SDK: distributions are replayed into the "
            "program's MeterProvider one value at a time, up to %d per second",
            self._fed.unknown,
            RATE,
        )

    def _look_for_readers(self, *, at_once: bool) -> None:
        """Say where the provider has no reader: nothing leaves through it."""
        if self._instruments.replayed or readers_of(self._provider):
            return
        if not self._unread and (at_once or self._clock() - self._joined_at >= _UNREAD_AFTER):
            self._unread = True
            self._registry.count_error("joined")
            log.warning("the program's MeterProvider has no reader, so it exports nothing; give it a MetricReader")

    def _collect(self) -> None:
        """Bring everything up to date at the start of a reader's collection, in the thread that collects."""
        if not self._feeds():
            self._watch()
            self._drain(None)
        if self._reading.begun < collection_began():  # else it was read before the collection, a moment ago
            self._read()

    def _tap(self, distribution: Distribution) -> None:
        """Tap a distribution before its first value, so that no fold is missed until the next tick finds it."""
        source = self._new[id(distribution)] = TappedDistribution(distribution)
        distribution.tap = source.tap

    def _watch(self) -> None:
        for metric, attributes, distribution in _distributions(self._registry):
            replay = self._instruments.replays.get(metric)
            if replay is None:
                replay = self._instruments.replays.setdefault(metric, ValueReplay(self._clock))
            replay.watch(distribution, attributes, self._new.pop(id(distribution), None))
        unknown = set(self._new)
        for key in unknown & self._unknown:  # not found twice: it belongs to another registry
            source = self._new.pop(key, None)
            if source is not None:
                source.leave()
        self._unknown = unknown

    def _read(self) -> Mapping[MetricKey, MetricPoints]:
        """Read the registry, one thread at a time: a later reading must not hold less."""
        if not self._collecting.acquire(timeout=_BUSY_WAIT):
            return self._reading.metrics
        try:
            begun = time.monotonic()
            found: dict[MetricKey, MetricPoints] = {}
            for points in self._registry.collect(self._pace):
                metric = MetricKey(points.scope, points.name, points.unit, points.kind)
                earlier = found.get(metric)
                found[metric] = points if earlier is None else points._replace(points=[*earlier.points, *points.points])
            self._reading = RegistryReading(found, begun, time.time_ns())
        finally:
            self._collecting.release()
        return found

    def _reading_since(self, begun: float) -> RegistryReading:
        """Return a reading for a collection that has begun then, each distribution of it with its instrument."""
        if self._reading.begun < begun:  # our first observable has not been called
            self._read()
        reading = self._reading
        new = [metric for metric, _ in reading.histograms() if metric not in self._instruments.histograms]
        if new and self._creating.acquire(timeout=_BUSY_WAIT):
            try:
                for metric in new:
                    with self._kept_away():
                        self._create(metric, reading.metrics[metric])
            finally:
                self._creating.release()
        return reading

    def _drain(self, deadline: float | None) -> int:
        """Replay new values; return how many could have been replayed, and were not."""
        lost = 0
        if not self._draining.acquire(timeout=_BUSY_WAIT):
            return lost
        try:
            for metric, replay in list(self._instruments.replays.items()):
                histogram = self._instruments.histograms.get(metric)
                if histogram is not None:
                    missing = replay.drain(histogram.record, self._pace, deadline)
                    lost += missing["replay_rate"]
                    for reason, count in missing.items():
                        if count:
                            self._registry.count_dropped(reason, "sdk", count)
        finally:
            self._draining.release()
        return lost

    def _create(self, metric: MetricKey, points: MetricPoints) -> None:
        if metric.kind == "histogram":
            bounds = next((point.boundaries for point in points.points if isinstance(point, HistogramPoint)), ())
            self._instruments.histogram(self._provider, metric, points.description, bounds)
        else:
            self._observe(metric, "", points.description)

    def _complete(self, metric: MetricKey, points: MetricPoints) -> None:
        """Publish the exact count and sum of a distribution beside the histogram where that lacks values."""
        if metric.kind != "histogram":
            return
        replay = self._instruments.replays.get(metric)
        histograms = [point for point in points.points if isinstance(point, HistogramPoint)]
        if replay is None:
            self._count_unreplayed(metric, histograms)
        elif not replay.exact:
            return
        self._observe(metric, ".count", points.description)
        self._observe(metric, ".sum", points.description)
        if any(point.summary.minimum < 0 for point in histograms):
            self._observe(metric, ".signed.sum", points.description)

    def _count_unreplayed(self, metric: MetricKey, points: Sequence[HistogramPoint]) -> None:
        """Count the values that came added up, as a ``Stat``'s do: there is none to be replayed."""
        counts: Counter[tuple[MetricKey, tuple[object, ...]]] = Counter()
        for point in points:
            counts[metric, identity(point.attributes)] += point.summary.count
        new = counts - self._instruments.unreplayed
        self._instruments.unreplayed |= counts
        if new:
            self._registry.count_dropped("replay_aggregated", "sdk", new.total())

    def _observe(self, metric: MetricKey, suffix: str, description: str) -> None:
        self._instruments.observe(self._provider, metric, suffix, description)
        observable = self._instruments.observables.get((metric, suffix))
        if observable is not None and observable.read is None:
            observable.read = self._reader(metric, suffix)

    def _reader(self, metric: MetricKey, suffix: str) -> Callable[[], list[Observation]]:
        def read() -> list[Observation]:
            with self._kept_away():
                if metric == self._first:
                    self._collect()
                points = self._reading.metrics.get(metric)
                return [
                    Observation(value, dict(point.attributes), NO_SPAN)
                    for point in (points.points if points is not None else ())
                    if (value := _observed(point, suffix)) is not None
                ]
            return []

        return read


def _distributions(registry: Registry) -> Iterator[tuple[MetricKey, Attributes, Distribution]]:
    for group in list(registry.groups.values()):
        for instrument in dict.fromkeys(list(group.instruments.values())):
            metric = MetricKey(group.name, instrument.name, instrument.unit, instrument.kind)
            for attributes, accumulator in instrument.all_series():
                if isinstance(accumulator, Distribution):
                    yield metric, attributes, accumulator
        durations = MetricKey(group.name, "function.duration", "s", "histogram")
        for function in list(group.functions.values()):
            for error_type, distribution in function.distributions():
                outcome = "failure" if error_type else "success"
                yield durations, (*function.attributes, ("outcome", outcome)), distribution


def _observed(point: NumberPoint | HistogramPoint, suffix: str) -> Number | None:
    value: Number
    if isinstance(point, NumberPoint):
        value = point.value
    elif suffix == ".count":
        value = point.summary.count
    elif (point.summary.minimum < 0) == (suffix == ".signed.sum"):
        value = point.summary.total.value()
    else:
        return None
    if not fits_int64(value):
        value = as_float(value)
    return value if is_finite(value) else None
