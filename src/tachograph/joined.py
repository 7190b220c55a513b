"""Joining a MeterProvider that the program has set up itself: its views, readers, intervals and exporters apply.

Gauges and counters are observable instruments that read the registry and never reset it. The values of a distribution
are replayed, one by one, into a synchronous histogram. Where not every value can be (more than 2,000 a second, folded
before we joined, negative), no value is invented: the exact ``<name>.count`` and ``<name>.sum`` are published beside
the histogram, and what it lacks is counted as ``tachograph.dropped`` (``destination="sdk"``). The sum of a series that
holds negative values may fall, so it is ``<name>.signed.sum``, an up-down counter.

What the SDK does not take: a gauge that is NaN or infinite has no point in that collection (``tachograph.nonfinite``
says so); upper case becomes lower case; other illegal characters of a name become ``_``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider, Observation, _internal, get_meter_provider

from tachograph.accumulators import Distribution
from tachograph.foreign import NO_SPAN, Metric, instruments_in
from tachograph.own_metrics import DROPPED, OWN_GROUP
from tachograph.pace import Pace
from tachograph.points import Attributes, HistogramPoint, MetricPoints, NumberPoint
from tachograph.registry import Registry
from tachograph.replay import Replay, Source
from tachograph.switch import switch
from tachograph.values import Number, as_float, fits_int64, is_finite

_BUSY_WAIT = 2.0

_log = logging.getLogger("tachograph")


def foreign_provider(*, load: bool = True) -> MeterProvider | None:
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
    except Exception as error:  # noqa: BLE001 - the border to whatever the variable names
        _log.warning("OTEL_PYTHON_METER_PROVIDER=%s: %s", os.environ.get("OTEL_PYTHON_METER_PROVIDER"), error)
        return None
    # The proxy, whose class has no public name, stands in until somebody sets a provider.
    if isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider":
        return None
    return provider


class Joined:
    """The registry, published through somebody else's provider. It has joined when this returns.

    Args:
        provider: the program's own; nothing of it is changed.
        registry: what is published.
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
        self._pace = Pace() if pace is None else pace
        self._theirs = instruments_in(provider)
        self._points: dict[Metric, Sequence[NumberPoint | HistogramPoint]] = {}
        self._creating, self._draining = threading.Lock(), threading.Lock()
        self._closed = self._said = False
        self._new: dict[int, Source] = {}
        self._unknown: set[int] = set()
        switch.made = self._tap
        # Created first, hence called first in every collection: it brings the registry up to date for all others.
        own = registry.group(OWN_GROUP).own(DROPPED)
        self._first = Metric(OWN_GROUP, own.name, own.unit, own.kind)
        with self._kept_away():
            self._observe(self._first, "", own.description)
        self.refresh()

    def refresh(self) -> None:
        """Create the instruments of what is new, and replay what has come; never call it inside a callback."""
        self._refresh(None)

    def drain(self, timeout: float) -> bool:
        """Replay everything that is left, for ``timeout`` seconds at most, whatever the rate.

        Returns:
            Whether all of it was replayed; what was not is counted.
        """
        return self._refresh(self._clock() + timeout)

    def force_flush(self, timeout: float) -> bool:
        """Make their readers collect and export; True where they have, within ``timeout`` seconds.

        At the end of the interpreter no thread can be started any more, hence no bound be kept: False then. Their own
        shutdown collects once more, which is why nothing is lost as long as nobody has called :meth:`close` before it.
        """
        force_flush = getattr(self._provider, "force_flush", None)
        if force_flush is None:
            return False
        done: list[bool] = []

        def flush() -> None:
            with self._kept_away():
                done.append(force_flush(timeout_millis=max(timeout, 0.001) * 1000) is not False)

        thread = threading.Thread(target=flush, name="tachograph flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        thread.join(timeout)
        return done == [True]

    def close(self) -> None:
        """Leave the provider: the instruments stay in it, and yield nothing; the taps are taken off."""
        self._closed = True
        if switch.made == self._tap:
            switch.made = None
        for observable in list(self._theirs.observables.values()):
            observable.read = None
        for replay in list(self._theirs.replays.values()):
            replay.leave()
        for source in list(self._new.values()):
            source.leave()
        self._new, self._points = {}, {}

    def reset_in_child(self) -> None:
        """Forget what the parent process recorded, after a fork; its locks may be held by threads that are gone."""
        self._creating, self._draining = threading.Lock(), threading.Lock()
        self._new, self._points = {}, {}
        for replay in self._theirs.replays.values():
            replay.forget()

    @contextmanager
    def _kept_away(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - the border to their provider, exporters and callbacks
            self._registry.count_error("joined")
            if not self._said:
                self._said = True
                _log.warning(
                    "publishing through the program's MeterProvider failed (further ones are counted)", exc_info=True
                )

    def _refresh(self, deadline: float | None) -> bool:
        if self._closed or not switch.on or not self._creating.acquire(timeout=_BUSY_WAIT):
            return False
        lost = 0
        try:
            self._watch()
            found = self._read()
            for metric, points in found.items():
                with self._kept_away():
                    self._create(metric, points)
            with self._kept_away():
                lost = self._drain(deadline)
            for metric, replay in list(self._theirs.replays.items()):
                if replay.exact and metric in found:
                    with self._kept_away():
                        self._observe_exactly(metric, found[metric])
        finally:
            self._creating.release()
        return not lost

    def _collect(self) -> None:
        """Bring everything up to date at the start of a collection of theirs, in the thread that collects."""
        self._watch()
        self._drain(None)
        self._read()

    def _tap(self, distribution: Distribution) -> None:
        """Tap a distribution before its first value, so that no fold is missed until the next tick finds it."""
        source = self._new[id(distribution)] = Source(distribution)
        distribution.tap = source.tap

    def _watch(self) -> None:
        for metric, attributes, distribution in _distributions(self._registry):
            replay = self._theirs.replays.get(metric)
            if replay is None:
                replay = self._theirs.replays.setdefault(metric, Replay(self._clock))
            replay.watch(distribution, attributes, self._new.pop(id(distribution), None))
        unknown = set(self._new)
        for key in unknown & self._unknown:  # not found twice: it belongs to another registry
            source = self._new.pop(key, None)
            if source is not None:
                source.leave()
        self._unknown = unknown

    def _read(self) -> dict[Metric, MetricPoints]:
        found: dict[Metric, MetricPoints] = {}
        for points in self._registry.collect(self._pace):
            metric = Metric(points.scope, points.name, points.unit, points.kind)
            earlier = found.get(metric)
            found[metric] = points if earlier is None else points._replace(points=[*earlier.points, *points.points])
        self._points = {metric: points.points for metric, points in found.items()}
        return found

    def _drain(self, deadline: float | None) -> int:
        """Replay what has come; return how many values could have been replayed, and were not."""
        lost = 0
        if not self._draining.acquire(timeout=_BUSY_WAIT):
            return lost
        try:
            for metric, replay in list(self._theirs.replays.items()):
                record = self._theirs.histograms.get(metric)
                if record is not None:
                    missing = replay.drain(record, self._pace, deadline)
                    lost += missing["replay_rate"]
                    for reason, count in missing.items():
                        if count:
                            self._registry.count_dropped(reason, "sdk", count)
        finally:
            self._draining.release()
        return lost

    def _create(self, metric: Metric, points: MetricPoints) -> None:
        if metric.kind == "histogram":
            bounds = next((point.boundaries for point in points.points if isinstance(point, HistogramPoint)), ())
            self._theirs.histogram(self._provider, metric, points.description, bounds)
        else:
            self._observe(metric, "", points.description)

    def _observe_exactly(self, metric: Metric, points: MetricPoints) -> None:
        self._observe(metric, ".count", points.description)
        self._observe(metric, ".sum", points.description)
        if any(isinstance(point, HistogramPoint) and point.spread.minimum < 0 for point in points.points):
            self._observe(metric, ".signed.sum", points.description)

    def _observe(self, metric: Metric, suffix: str, description: str) -> None:
        self._theirs.observe(self._provider, metric, suffix, description)
        observable = self._theirs.observables.get((metric, suffix))
        if observable is not None and observable.read is None:
            observable.read = self._reader(metric, suffix)

    def _reader(self, metric: Metric, suffix: str) -> Callable[[], list[Observation]]:
        def read() -> list[Observation]:
            with self._kept_away():
                if metric == self._first:
                    self._collect()
                return [
                    Observation(value, dict(point.attributes), NO_SPAN)
                    for point in self._points.get(metric, ())
                    if (value := _observed(point, suffix)) is not None
                ]
            return []

        return read


def _distributions(registry: Registry) -> Iterator[tuple[Metric, Attributes, Distribution]]:
    for group in list(registry.groups.values()):
        for instrument in dict.fromkeys(list(group.instruments.values())):
            metric = Metric(group.name, instrument.name, instrument.unit, instrument.kind)
            for attributes, accumulator in instrument.all_series():
                if isinstance(accumulator, Distribution):
                    yield metric, attributes, accumulator
        durations = Metric(group.name, "function.duration", "s", "histogram")
        for function in list(group.functions.values()):
            for error_type, distribution in function.distributions():
                outcome = "failure" if error_type else "success"
                yield durations, (*function.attributes, ("outcome", outcome)), distribution


def _observed(point: NumberPoint | HistogramPoint, suffix: str) -> Number | None:
    value: Number
    if isinstance(point, NumberPoint):
        value = point.value
    elif suffix == ".count":
        value = point.spread.count
    elif (point.spread.minimum < 0) == (suffix == ".signed.sum"):
        value = point.spread.total.value()
    else:
        return None
    if not fits_int64(value):
        value = as_float(value)
    return value if is_finite(value) else None
