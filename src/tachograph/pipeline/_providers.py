"""The OpenTelemetry providers of the process: the program's own where it has made them, else ours, one of each.

A global provider cannot be replaced, so ours stay for the life of the process; a pipeline attaches its
readers and its queue of spans, and takes them off again. Its :class:`Providers` do that, and join the program's own.
"""

from __future__ import annotations

# In a forked child the SDK's providers use a thread pool (``_handle_fork``, to detect the resource anew). Fork hooks
# run in the order of their registration: that of this module, which frees the pool's lock, has to come before theirs,
# or a program that imports it later, as torch does, has children that hang.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    ExemplarFilter,
    MeterProvider,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from tachograph.exporters.external_provider import ExternalProvider, external_meter_provider
from tachograph.exporters.log_emitter import external_logger_provider, into_journal, into_provider
from tachograph.exporters.spans import IdGenerator, SpanQueue
from tachograph.identity.environment import text
from tachograph.pipeline.destinations import Route, Temporalities
from tachograph.pipeline.provider_watch import SCOPE as WATCH
from tachograph.pipeline.provider_watch import waiting_instruments
from tachograph.pipeline.settings import EXEMPLAR_FILTER, Settings
from tachograph.profiling import tracing
from tachograph.recording.journal import Journal
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from tachograph.recording.points import AttributeValue


class SpanTap(SpanProcessor):
    """The span processor of our tracer provider: hands spans to the queue of the pipeline that runs, if one does."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        self.queue: SpanQueue | None = None
        self.provider = TracerProvider(
            resource=Resource(dict(resource)), id_generator=IdGenerator(), shutdown_on_exit=False
        )
        self.provider.add_span_processor(self)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on a span that has ended."""
        if self.queue is not None:
            self.queue.on_end(span)


class _OwnMeterProvider(MeterProvider):
    """A meter provider of ours, which is not read before a library has asked it for a meter.

    Attributes:
        is_used: whether one has.
    """

    is_used = False

    def get_meter(self, name: str, *arguments: Any, **more: Any) -> metrics.Meter:
        """Return a meter: see the SDK."""
        self.is_used = self.is_used or name != WATCH
        return super().get_meter(name, *arguments, **more)


class _Made:
    """Our providers, as far as this process has made them."""

    meter_provider: MeterProvider | None = None
    span_tap: SpanTap | None = None


class _Refusal(logging.Filter):
    """An explanation, once, of OpenTelemetry's own warning that it has refused a provider because ours is there.

    The warning is all that tells of it: ``set_meter_provider`` returns nothing and raises nothing.
    """

    def __init__(self, setter: str) -> None:
        super().__init__()
        self._setter = setter
        self._log_once = LogOnce()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: the warning itself stays."""
        if "Overriding of current" in str(record.msg):
            self._log_once(
                "refused",
                "%s() had no effect because tachograph.start() had already set a provider: call it before start(), "
                "or call start(set_global=False), so that Tachograph uses yours",
                self._setter,
            )
        return True


def own_meter_provider(resource: Mapping[str, Any], *, make: bool = True) -> MeterProvider | None:
    """Return the meter provider that we made, making it where the program has none; None where it has its own.

    Args:
        resource: attributes of the process.
        make: else None, too, where none was made before.
    """
    if _Made.meter_provider is not None or not make:
        return _Made.meter_provider
    made = _OwnMeterProvider(
        resource=Resource(dict(resource)), exemplar_filter=_exemplar_filter(), shutdown_on_exit=False
    )
    _Made.meter_provider = made  # before it is set, so that it is not taken for the program's
    metrics.set_meter_provider(made)
    if metrics.get_meter_provider() is not made:
        _Made.meter_provider = None
        return None
    logging.getLogger("opentelemetry.metrics._internal").addFilter(_Refusal("set_meter_provider"))
    return made


def _exemplar_filter() -> ExemplarFilter:
    """Return the filter that the user asks for; else that of none: exemplars draw from the program's random numbers."""
    asked = text(os.environ, EXEMPLAR_FILTER).lower()
    return {"always_on": AlwaysOnExemplarFilter, "trace_based": TraceBasedExemplarFilter}.get(
        asked, AlwaysOffExemplarFilter
    )()


def owns_meter_provider() -> bool:
    """Tell whether the process's meter provider is ours."""
    return _Made.meter_provider is not None


def tap_spans(queue: SpanQueue, resource: Mapping[str, Any], *, set_global: bool = True) -> bool:
    """Have spans put into ``queue``; False where the program traces on its own, which stays as it is.

    Args:
        queue: of the pipeline that runs.
        resource: attributes of the process.
        set_global: have every tracer of the process make such spans; else only the spans of ``@prof`` are.
    """
    tap = _Made.span_tap
    if tap is None:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return False
        tap = SpanTap(resource)
    if set_global and trace.get_tracer_provider() is not tap.provider:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return False
        trace.set_tracer_provider(tap.provider)
        if trace.get_tracer_provider() is not tap.provider:
            return False
        logging.getLogger("opentelemetry.trace").addFilter(_Refusal("set_tracer_provider"))
    _Made.span_tap = tap
    tap.queue = queue
    tracing.known.idle = None
    tracing.known.own = tap.provider  # looked at only where there is no global one
    return True


def untap_spans(queue: SpanQueue) -> None:
    """Put spans into ``queue`` no longer."""
    if _Made.span_tap is not None and _Made.span_tap.queue is queue:
        _Made.span_tap.queue = None
        tracing.known.idle = _Made.span_tap.provider
        tracing.known.own = None


class SdkInstruments:
    """The SDK instruments of other libraries in our own meter providers, read in each temporality that is asked for.

    A reader sees the values recorded after it was attached.

    Args:
        *providers: to read; more can be added.
    """

    def __init__(self, *providers: MeterProvider) -> None:
        self._providers = list(providers)
        self._lock = threading.Lock()
        self._readers: dict[tuple[MeterProvider, _Key | MetricReader], InMemoryMetricReader] = {}

    def add(self, provider: MeterProvider | None) -> None:
        """Add one more provider, for the readers that are attached from now on."""
        if provider is not None:
            self._providers = [*self._providers, provider]

    def attach_all(self, routes: Iterable[Route]) -> None:
        """Begin to read as each of the routes wants it."""
        for route in routes:
            if route.metrics:
                self.attach(route.temporality)
            elif route.reader is not None:
                self._mirror(route.reader.reader)

    def _mirror(self, reader: MetricReader) -> None:
        """Begin to read as a reader prefers, for it alone: when it collects is its own affair."""

        def mirror() -> InMemoryMetricReader:
            made = InMemoryMetricReader()
            # A provider asks its readers for these; there are no public names for them.
            for preferred in ("temporality", "aggregation", "cardinality_limit"):
                name = f"_instrument_class_{preferred}"
                setattr(made, name, getattr(reader, name, getattr(made, name, None)))
            return made

        self._attach(reader, mirror)

    def read_for(self, reader: MetricReader) -> MetricsData | None:
        """Collect as a reader prefers; None where nothing was recorded."""
        return self._read(reader)

    def attach(self, temporality: Temporalities | None) -> None:
        """Begin to read with a temporality."""
        key = _key(temporality)
        self._attach(key, lambda: InMemoryMetricReader(preferred_temporality=dict(key)))

    def _attach(self, key: _Key | MetricReader, make: Callable[[], InMemoryMetricReader]) -> None:
        with self._lock:
            for provider in self._providers:
                if (provider, key) not in self._readers:
                    self._readers[provider, key] = made = make()
                    provider.add_metric_reader(made)

    def is_idle(self) -> bool:
        """Tell whether there is nothing to collect: no library has asked any of the providers for a meter."""
        return not any(getattr(provider, "is_used", True) for provider in self._providers)

    def read(self, temporality: Temporalities | None) -> MetricsData | None:
        """Collect; None where nothing was recorded."""
        if self.is_idle():
            return None
        with self._lock:
            return self._read(_key(temporality))

    def _read(self, key: _Key | MetricReader) -> MetricsData | None:
        readers = [reader for (_, wanted), reader in list(self._readers.items()) if wanted == key]
        found = [data for data in [reader.get_metrics_data() for reader in readers] if data is not None]
        return MetricsData([resource for data in found for resource in data.resource_metrics]) if found else None

    def reading(self) -> Callable[[Temporalities | None], MetricsData | None] | None:
        """Return a function that reads each temporality once, however often it is called: a second delta is empty.

        None where there is nothing to read.
        """
        if self.is_idle():
            return None
        found: dict[_Key, MetricsData | None] = {}

        def read(temporality: Temporalities | None) -> MetricsData | None:
            key = _key(temporality)
            if key not in found:
                found[key] = self.read(temporality)
            return found[key]

        return read

    def close(self, timeout: float) -> None:
        """Take our readers off the provider; they stay where one is still read after ``timeout`` seconds."""
        if not self._lock.acquire(timeout=timeout):
            return
        try:
            for (provider, _), reader in self._readers.items():
                provider.remove_metric_reader(reader)
            self._readers = {}
        finally:
            self._lock.release()


_Key = tuple[tuple[type, Any], ...]  # a temporality


def _key(temporality: Temporalities | None) -> _Key:
    return tuple(sorted((temporality or {}).items(), key=repr))


class Providers:
    """The providers of the process, for one pipeline.

    Args:
        settings: of the pipeline: whether it joins the program's own, and sets ours as the global ones.
        registry: published through the program's own.
        joins: publish through them; not beside a pipeline that does so already.
        joins_logs: deliver events through the program's logger provider, whenever it has one.

    Attributes:
        external: the program's own meter provider, through which the registry is published; None where it has none.
        joins_logs: a logger provider of the program's is still waited for.
        sdk: the instruments of other libraries in our meter providers.
        spans: those that have ended; None where no destination takes spans.
    """

    def __init__(self, settings: Settings, registry: Registry, *, joins: bool, joins_logs: bool) -> None:
        self._settings, self._registry, self._joins = settings, registry, joins
        self.external: ExternalProvider | None = None
        self.joins_logs = joins_logs
        self.sdk = SdkInstruments()
        self.spans: SpanQueue | None = None
        self._looking = threading.Lock()
        self._reads_global = self._handed_over = False
        self._log_once = LogOnce()

    def connect(
        self,
        external: Any | None,
        routes: Iterable[Route],
        resource: Mapping[str, AttributeValue],
        *,
        serves: bool,
    ) -> None:
        """Join the program's own meter provider, or read ours, made where there is none; and take spans.

        Args:
            external: the program's own meter provider, where it has one.
            routes: the destinations, which say what is read.
            resource: attributes of the process.
            serves: a page of metrics wants them, too.
        """
        routes = list(routes)
        if external is not None and self._settings.join:
            self.external = ExternalProvider(external, self._registry) if self._joins else None
        elif serves or any(route.metrics or route.reader for route in routes):
            make = self._settings.set_global and external is None
            own = own_meter_provider(resource, make=make)
            self._reads_global = own is not None
            self._begin_reading(own, routes, serves=serves)
        if any(route.spans for route in routes):
            self.spans = SpanQueue(self._registry)
            tap_spans(self.spans, resource, set_global=self._settings.set_global)

    def look(
        self, routes: Iterable[Route], resource: Mapping[str, AttributeValue], add: Callable[[Route], object]
    ) -> None:
        """Join the providers that the program has set meanwhile, and read the one that a ``start()`` of ours has made.

        Args:
            routes: the destinations.
            resource: attributes of the process.
            add: takes the route into a logger provider, the first time that there is one.
        """
        if not self._looking.acquire(blocking=False):
            return
        try:
            if self._looks():
                external = None if owns_meter_provider() else external_meter_provider(load=False)
                if owns_meter_provider():
                    self._reads_global = True
                    self._begin_reading(own_meter_provider(resource), routes)
                elif external is not None:
                    self.external = ExternalProvider(external, self._registry)
            loggers = external_logger_provider(load=False) if self.joins_logs else None
            if loggers is not None:
                self.joins_logs = False
                add(Route(into_provider(loggers, self._registry), events=True))
        finally:
            self._looking.release()

    def _looks(self) -> bool:
        return self._joins and self._settings.join and self.external is None and not self._reads_global

    def _begin_reading(self, provider: MeterProvider | None, routes: Iterable[Route], *, serves: bool = False) -> None:
        self.sdk.add(provider)
        if serves:
            self.sdk.attach(None)
        self.sdk.attach_all(routes)

    def lend(
        self, routes: Iterable[Route], resource: Mapping[str, AttributeValue], journal: Journal, *, serves: bool
    ) -> dict[str, Any]:
        """Return providers for instrumentors, by the names of their arguments: the records leave as ours do.

        They are no global ones. A signal that no destination takes has none.

        Args:
            routes: the destinations.
            resource: attributes of the process.
            journal: takes the log records.
            serves: a page of metrics wants them, too.
        """
        routes, said = list(routes), Resource(dict(resource))
        lent: dict[str, Any] = {}
        if serves or any(route.metrics or route.reader for route in routes):
            lent["meter_provider"] = meters = _OwnMeterProvider(
                resource=said, exemplar_filter=_exemplar_filter(), shutdown_on_exit=False
            )
            self._begin_reading(meters, routes, serves=serves)
        if any(route.spans for route in routes):
            self.spans = self.spans or SpanQueue(self._registry)
            lent["tracer_provider"] = tracers = TracerProvider(
                resource=said, id_generator=IdGenerator(), shutdown_on_exit=False
            )
            tracers.add_span_processor(self.spans)
        if any(route.events for route in routes):
            lent["logger_provider"] = into_journal(journal, said, self._registry)
        return lent

    def joins(self) -> bool:
        """Tell whether the program's own meter provider is joined, or is there to be."""
        if self.external is not None:
            return True
        return self._looks() and not owns_meter_provider() and external_meter_provider(load=False) is not None

    def refresh(self) -> None:
        """Bring the program's own meter provider up to date."""
        if self.external is not None:
            self.external.refresh()

    def say_waiting(self) -> None:
        """Log once that other libraries measure, and that no provider is set which would hear them."""
        waiting = 0 if self.external is not None else waiting_instruments()
        if waiting:
            self._log_once(
                "waiting",
                "%d OpenTelemetry instruments have no MeterProvider, so their measurements are not exported: set a "
                "MeterProvider, or remove set_global=False from start()",
                waiting,
            )

    def flush(self, timeout: float, *, collect: bool, last: bool = False) -> bool:
        """Deliver into the program's own meter provider; False where ``timeout`` seconds were too short.

        Args:
            timeout: seconds that it may take.
            collect: make its readers collect, too.
            last: its end comes now, so that nothing is delivered into it any more.
        """
        if self.external is None or self._handed_over:
            return True
        deadline = time.monotonic() + timeout
        arrived = self.external.drain(timeout)
        if collect:
            arrived = self.external.force_flush(max(0.0, deadline - time.monotonic())) and arrived
        self._handed_over = last
        return arrived

    def leave(self, *, exiting: bool) -> None:
        """Leave the providers as they were found; at the end of the process one of the program's own reads on."""
        if self.spans is not None:
            untap_spans(self.spans)
        if self.external is not None and not exiting:
            self.external.close()

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        self._looking = threading.Lock()
        if self.external is not None:
            self.external.reset_in_child()
