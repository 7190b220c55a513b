"""Destinations that the settings name: built-in ones, those of entry points, and objects."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from math import inf
from typing import Any, NamedTuple, Protocol

from opentelemetry.sdk.metrics.export import MetricReader

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.log_emitter import external_logger_provider, into_provider, to_exporter
from tachograph.exporters.otel_exporters import EntryPointExporter, ItemExporter
from tachograph.exporters.otlp.settings import SIGNALS, OtlpSettings, Signal, read_otlp_settings
from tachograph.exporters.reader_feed import ReaderFeed
from tachograph.pipeline.settings import GROUP, Settings
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import SCHEMA
from tachograph.recording.registry import Registry

_TAKES: Mapping[Signal, str] = {"metrics": "metrics", "traces": "spans", "logs": "events"}  # fields of a route
_POINT_BYTES = 500  # kept alive by a queued point, roughly

PATIENCE = 0.5  # seconds for which a destination may take nothing at the end of the process
_LOOK_AGAIN = 0.02
CLOSING = 0.05  # seconds that the end of any part has at least
LONGEST_EXIT = 10.0  # seconds that destinations may add to it which take their batches, but slowly

Temporalities = Mapping[type, Any]

_log = logging.getLogger("tachograph")


class Queue(Protocol):
    """The queue of one receiver."""

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the receiver takes anything."""

    def flush(self, timeout: float) -> bool:
        """Deliver all batches taken so far, within ``timeout`` seconds."""


class Destination(Queue, Protocol):
    """A destination of batches: an exporter behind its queue, or behind one for each of its receivers."""

    def __call__(self, batch: Batch) -> None:
        """Take a batch; never waits."""

    def close(self, timeout: float) -> None:
        """Deliver and end, within ``timeout`` seconds."""

    def reset_in_child(self) -> None:
        """Forget everything, after a fork."""


class Route(NamedTuple):
    """A destination, which signals it takes, and how SDK instruments are to be aggregated for it.

    Attributes:
        reader: the destination, where that is a reader: it takes no batches, it collects by itself.
        retry_now: makes its next attempt now, even where the receiver has asked for time, and further ones soon, for so
            many seconds: the end is near.
        is_loading: tells whether it still loads its library, and can deliver nothing yet.
        is_awaited: tells whether the end waits for it as long as it may, though it takes nothing at the moment: the
            job's own hub, alive and connected.
        reads: returns the newest schema of our records that its receiver reads: our own hub says so in its answers; 0
            for every other receiver, None as long as it has not answered. It takes the points of curves, packed.
        intervals: tells whether it takes the exponential histograms of intervals; None as long as its receiver has not
            answered, which may be a hub of ours.
        intervals_every: seconds between two of these; 0 for one with each collection.
        apart: it takes the points of curves, a record each, where it is no hub of ours: TACHOGRAPH_CURVES.
        records: it takes the records of the program's own logging, where it is no hub of ours: logs were asked for by
            name.
        left_over: returns, once it is closed, how many items it has given up, and how many it has sent to the job's own
            hub without an answer.
        queues: those of its receivers, where it may have several.
        is_job_hub: it is the hub of the ``tachograph run`` around this process.
        spools: what it has not delivered by the end waits on the disk, for the next process.
        busy_at: returns when it had news last, in seconds of the monotonic clock; infinity where it does not tell.
        skips: tells whether it does without a collection that has no news.
    """

    destination: Destination
    metrics: bool = False
    spans: bool = False
    events: bool = False
    temporality: Temporalities | None = None
    reader: ReaderFeed | None = None
    retry_now: Callable[[float], None] = lambda _longest: None
    is_loading: Callable[[], bool] = lambda: False
    is_awaited: Callable[[], bool] = lambda: False
    reads: Callable[[], int | None] = lambda: 0
    intervals: Callable[[], bool | None] = lambda: False
    intervals_every: float = 0.0
    apart: bool = False
    records: bool = False
    left_over: Callable[[], tuple[int, int]] = lambda: (0, 0)
    queues: Sequence[Queue] = ()
    is_job_hub: bool = False
    spools: bool = False
    busy_at: Callable[[], float] = lambda: inf
    skips: Callable[[], bool] = lambda: False


class Routes:
    """The routes of a pipeline.

    Attributes:
        own: those of its settings, which end with it; an attached one is closed by its owner, if the process goes
            on.
    """

    def __init__(self) -> None:
        self.own: list[Route] = []
        self._attached: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter([*self.own, *self._attached])

    def attach(self, route: Route) -> None:
        """Deliver to one more."""
        self._attached = [*self._attached, route]

    def detach(self, route: Route) -> None:
        """Deliver to an attached one no longer."""
        self._attached = [other for other in self._attached if other is not route]

    def feed(self, source: Callable[[MetricReader, float], Batch | None]) -> None:
        """Let the pipeline's own readers collect: :meth:`tachograph.exporters.reader_feed.ReaderFeed.open`."""
        for route in self.own:
            if route.reader is not None:
                route.reader.open(source)

    def flush(self, deadline: float) -> bool:
        """Deliver all batches taken so far; True where they arrived before ``deadline``, monotonic."""
        for route in self:
            route.destination.flush(0)  # all of them hurry, not only the one that is waited for
        arrived = [route.destination.flush(max(0.0, deadline - time.monotonic())) for route in self]
        return all(arrived)

    def hand_on(self, export: Callable[[float], bool | None], longest: float = LONGEST_EXIT) -> bool:
        """Deliver waiting batches, while any receiver takes them.

        Args:
            export: hands over waiting batches, within so many seconds; False where there was more, None where another
                thread was at it, which is about to be done.
            longest: seconds that it may take.

        Returns:
            False where no receiver has taken anything for half a second, or for a whole one if it has taken some
            before, and none is awaited; or where it took too long. Batches are encoded meanwhile, for half of the time
            at most: requests of this process are slow then, and a receiver is silent only if it takes nothing in the
            other half.
        """
        end = time.monotonic() + longest
        for route in self:
            route.retry_now(longest)
        at_first = self.delivered()
        while time.monotonic() < end:
            before, began = self.delivered(), time.monotonic()
            handed_over = export(PATIENCE / 2)
            patience = PATIENCE if self.delivered() == at_first else 2 * PATIENCE
            silent = min(max(began + patience, time.monotonic() + patience / 2), end)
            if handed_over:
                arrived, goes_on = self.flush(silent), self.goes_on(before)
                if arrived:
                    return True
            else:  # where there is more to hand over, all of them may still get it
                goes_on = handed_over is None or self._await_progress(before, silent)
            if not goes_on and not any(route.is_loading() or route.is_awaited() for route in self):
                break
        return False

    def moves_on(self, before: Mapping[int, int]) -> bool:
        """Tell whether a receiver goes on, as :meth:`goes_on` has it, or is awaited: see :attr:`Route.is_awaited`."""
        return self.goes_on(before) or any(route.is_awaited() for route in self)

    def _await_progress(self, before: Mapping[int, int], until: float) -> bool:
        """Wait for a receiver to take something since ``before``, or for nothing to wait; False where none has."""
        while self.delivered() == before and not self.flush(min(time.monotonic() + _LOOK_AGAIN, until)):
            if time.monotonic() >= until:
                return False
        return True

    def delivered(self) -> dict[int, int]:
        """Return how much has arrived so far, by the id of the queue that it waited in."""
        return {id(queue): queue.delivered for queue in self._queues()}

    def goes_on(self, before: Mapping[int, int]) -> bool:
        """Tell whether a receiver that has not got everything has taken some of it since :meth:`delivered`.

        One that has got everything says nothing of the others: it takes each further collection at once.
        """
        return any(queue.delivered > before.get(id(queue), 0) and not queue.flush(0) for queue in self._queues())

    def hold_back(self, before: Mapping[int, int]) -> bool:
        """Tell whether no receiver has taken anything since :meth:`delivered`, and each one of events has some waiting.

        More events would be encoded for nothing, where they are dead; where they are slow, these keep them busy. If
        a disk keeps what waits, none is for nothing.
        """
        routes = [route for route in self if route.events]
        if not routes or any(route.spools for route in routes) or self.delivered() != before:
            return False
        return not any(queue.flush(0) for route in routes for queue in _queues_of(route))

    def await_taker(self, before: Mapping[int, int], until: float) -> bool:
        """Wait until events are not held back any more; False where that has not come ``until`` then."""
        while self.hold_back(before):
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_AGAIN)
        return True

    def _queues(self) -> Iterator[Queue]:
        for route in self:
            yield from _queues_of(route)

    def close(self, deadline: float, *, exiting: bool) -> None:
        """End the pipeline's own before ``deadline``; at the process's end all."""
        for route in self if exiting else self.own:
            route.destination.close(max(deadline - time.monotonic(), CLOSING))

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        for route in self:
            route.destination.reset_in_child()


def _queues_of(route: Route) -> Sequence[Queue]:
    return route.queues or (route.destination,)


class Queued:
    """A plain exporter, a callable that takes a batch, behind a queue of its own.

    Args:
        exporter: called in a thread of ours; it raises where it could not take the batch.
        name: of the destination, in logs and counts.
        registry: where losses are counted.
    """

    def __init__(self, exporter: Any, name: str, registry: Registry) -> None:
        self._exporter = exporter
        self._queue = DeliveryQueue(name, registry)
        self.flush = self._queue.flush
        self.close = self._queue.close
        self.reset_in_child = self._queue.reset_in_child

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def __call__(self, batch: Batch) -> None:
        """Queue the batch."""
        items = sum(len(metric.points) for metric in batch.metrics) + len(batch.spans) + len(batch.events)
        self._queue.put(lambda _timeout: self._exporter(batch), items * _POINT_BYTES, items=items)


def build_routes(
    settings: Settings,
    registry: Registry,
    *,
    metrics: bool,
    own_logs: bool,
    served: frozenset[Signal] = frozenset(),
    hurries: Callable[[], bool] = lambda: False,
) -> list[Route]:
    """Return a route for everything that the settings name, the Prometheus page apart.

    Args:
        settings: of the pipeline.
        registry: where losses are counted.
        metrics: deliver metrics; not where they leave through the program's own provider.
        own_logs: deliver events even where the program has a logger provider of its own; else they leave through that.
        served: the signals whose OTLP another pipeline delivers already.
        hurries: tells whether events are dropped soon, unless encoding them rests less often.
    """
    asked: dict[Signal, Sequence[object]] = {
        "metrics": settings.metrics if metrics else (),
        "traces": settings.traces,
        "logs": settings.logs,
    }
    for signal in served:
        asked[signal] = [exporter for exporter in asked[signal] if exporter != "otlp"]
    routes: list[Route] = []
    external = None if own_logs else external_logger_provider()
    if external is not None:
        routes.append(Route(into_provider(external, registry), events=True))
        asked["logs"] = ()
    for exporter in dict.fromkeys([*asked["metrics"], *asked["traces"], *asked["logs"]]):
        taken = [signal for signal in SIGNALS if exporter in asked[signal]]
        if exporter == "otlp":
            routes.append(_otlp(settings, registry, taken, hurries))
        elif exporter != "prometheus":
            built_in = _built_in(exporter, settings, registry, taken)
            routes.extend(_to(exporter, registry, taken) if built_in is None else [built_in])
    every = settings.curves == "all"
    return [
        route._replace(apart=route.events and every, records=route.events and settings.named_logs and external is None)
        for route in routes
    ]


def _takes(signals: Sequence[Signal]) -> Any:
    return {_TAKES[signal]: True for signal in signals}


def _to(wanted: object, registry: Registry, signals: Sequence[Signal]) -> list[Route]:
    """Return the routes to an exporter that is not ours; none, counted and said, where it cannot be had."""
    exporter, name = wanted, wanted.name if isinstance(wanted, EntryPointExporter) else None
    try:
        if isinstance(wanted, EntryPointExporter):
            exporter = wanted.make()
        elif isinstance(wanted, str):
            name = wanted
            exporter = next(iter(entry_points(group=GROUP, name=wanted))).load()
        if hasattr(exporter, "export"):  # with several bases it is an exporter of each signal by itself
            return [given(exporter, registry, name=name, **_takes([signal])) for signal in signals]
        return [given(exporter, registry, name=name, **_takes(signals))]
    except Exception as error:  # noqa: BLE001 - the border to exporters and their libraries
        pass_on(error)
        registry.count_error("exporter")
        what = name or type(exporter).__name__
        _log.warning(
            "could not start the exporter %s for %s, continuing without it: %r", what, ", ".join(signals), error
        )
        return []


def _built_in(name: object, settings: Settings, registry: Registry, signals: Sequence[Signal]) -> Route | None:
    takes = _takes(signals)
    if name == "jsonl":
        from tachograph.exporters.jsonl import JsonLines

        return Route(JsonLines(settings.jsonl_path(), registry, metrics="metrics" in signals, pace=GilYield()), **takes)
    if name == "console":
        from tachograph.exporters.console import Console

        return Route(Console(registry, pace=GilYield()), **takes)
    if name == "influxdb" and settings.influx is not None:
        from tachograph.exporters.influxdb import InfluxDB

        made = InfluxDB(settings.influx, registry, store=settings.store, spool_limit=settings.spool_limit)
        return Route(made, retry_now=made.retry_now, is_loading=made.is_loading, spools=made.spools, **takes)
    if name == "tensorboard":
        from tachograph.exporters.tensorboard import TensorBoard

        return Route(TensorBoard(settings.tensorboard_folder(), registry), **takes)
    return None


def _otlp(settings: Settings, registry: Registry, signals: Sequence[Signal], hurries: Callable[[], bool]) -> Route:
    from tachograph.exporters.otlp.exporter import OtlpExporter

    by_signal: dict[Signal, OtlpSettings] = {
        signal: found for signal in signals if (found := settings.otlp_for(signal)) is not None
    }
    exporter = OtlpExporter(
        by_signal,
        registry,
        pace=GilYield(hurries=hurries),
        store=settings.store,
        run_id=settings.run_id,
        spool_limit=settings.spool_limit or 0,  # only where it was asked for
        reads=SCHEMA if settings.own_hub else None,
    )
    return Route(
        exporter,
        temporality=exporter.temporality,
        retry_now=exporter.retry_now,
        is_awaited=exporter.is_awaited,
        left_over=exporter.left_over,
        queues=exporter.queues,
        is_job_hub=settings.own_hub,
        spools=bool(settings.spool_limit),
        reads=exporter.reads,
        intervals=exporter.wants_intervals,
        intervals_every=exporter.intervals_every,
        busy_at=exporter.busy_at,
        skips=exporter.skips,
        **_takes(signals),
    )


def hub_otlp(url: str, signals: Sequence[Signal] = SIGNALS) -> tuple[OtlpSettings, ...]:
    """Return how signals leave for a hub of ours; settings of the user's own OTLP endpoint do not apply to it."""
    return tuple(read_otlp_settings(signal, {}, endpoint=url) for signal in signals)


def to_hub(url: str, settings: Settings, registry: Registry, *, hurries: Callable[[], bool]) -> Route:
    """Return the route to a hub of ours: metrics and logs, and the spans that a job's hub counts and forwards.

    Args:
        url: its base URL. Settings of the user's own OTLP endpoint do not apply to it.
        settings: of the pipeline.
        registry: where losses are counted.
        hurries: as for :func:`build_routes`.
    """
    signals: tuple[Signal, ...] = SIGNALS if settings.job_hub and settings.traces else ("metrics", "logs")
    otlp = hub_otlp(url, signals)
    return _otlp(replace(settings, otlp=otlp, own_hub=True, spool_limit=None), registry, signals, hurries)


def given(
    exporter: Any,
    registry: Registry,
    *,
    metrics: bool = False,
    spans: bool = False,
    events: bool = False,
    groups: set[str] | None = None,
    name: str | None = None,
) -> Route:
    """Return a route for an exporter object: one of the SDK's, a metric reader, or a callable that takes a batch.

    Args:
        exporter: the object; one with ``export`` is for one signal.
        registry: where losses are counted.
        metrics: it takes metrics.
        spans: it takes spans.
        events: it takes events.
        groups: the metric groups that an exporter of the SDK gets; None for all.
        name: of the destination, in logs and counts; by default that of the function or class.

    Raises:
        ValueError: a reader belongs to another provider, or was shut down.
    """
    from tachograph.exporters.producer import SdkExporter

    if isinstance(exporter, MetricReader):
        feed = ReaderFeed(exporter, registry, name=name)
        return Route(feed, reader=feed)
    if metrics and hasattr(exporter, "export"):
        made = SdkExporter(exporter, registry, groups=groups, name=name, pace=GilYield())
        # The SDK's own periodic reader asks for it; there is no public name.
        return Route(made, metrics=True, temporality=getattr(exporter, "_preferred_temporality", None))
    if spans and hasattr(exporter, "export"):
        return Route(ItemExporter(exporter, registry, items=lambda batch: batch.spans, name=name), spans=True)
    if events and hasattr(exporter, "export"):
        return Route(to_exporter(exporter, registry, name=name), events=True)
    called = name or str(getattr(exporter, "__name__", type(exporter).__name__))
    return Route(Queued(exporter, called, registry), metrics=metrics, spans=spans, events=events)
