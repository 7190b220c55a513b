"""Events through OpenTelemetry's own Logs API: into the program's LoggerProvider, to an SDK exporter, or out of one.

The API has an underscore in its name still: nothing else here knows it. One record that the SDK's encoder
refuses makes it give up the whole batch, so values that OTLP cannot carry are rewritten before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry._logs import (
    LoggerProvider,
    LogRecord,
    NoOpLoggerProvider,
    SeverityNumber,
    _internal,
    get_logger_provider,
)
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.otel_exporters import ItemExporter
from tachograph.recording import registry as registries
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import LOG, RECORD_FIELDS, SCOPE, Journal, LogEvent
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import scope_origin
from tachograph.recording.points import encodable
from tachograph.recording.registry import Registry
from tachograph.recording.values import UINT64_MAX, fits_int64

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

NAME = "sdk"
_EVENT_BYTES = 500  # kept alive by a queued event, roughly
_REST_AFTER = 8
# Not empty, since an empty context is taken for none: the one that is current in the thread would be looked up.
_NO_SPAN = Context({"tachograph.event": True})

_log_once = LogOnce()


def external_logger_provider(*, load: bool = True) -> LoggerProvider | None:
    """Return the logger provider that the program has set; None where there is none, or a no-op.

    Args:
        load: load the one that ``OTEL_PYTHON_LOGGER_PROVIDER`` names, too.
    """
    # There is no public way to ask without loading it.
    if not load and getattr(_internal, "_LOGGER_PROVIDER", _internal) is None:
        return None
    try:
        provider = get_logger_provider()
    except Exception as error:  # noqa: BLE001 - the border to the class that the variable names
        pass_on(error)
        registries.default.count_error("logs")
        named = os.environ.get("OTEL_PYTHON_LOGGER_PROVIDER")
        _log_once(
            named,
            "cannot load OTEL_PYTHON_LOGGER_PROVIDER=%s (further warnings are suppressed; see "
            "tachograph_errors_total on /metrics): %s",
            named,
            error,
        )
        return None
    # The proxy, whose class is not public, stands in until a provider is set.
    if type(provider).__name__ == "ProxyLoggerProvider" or isinstance(provider, NoOpLoggerProvider):
        return None
    return provider


class LogEmitter:
    """A queue of log records, and the thread that hands them over.

    Args:
        deliver: takes a batch of events, in that thread; raises where it could not.
        registry: where losses are counted.
        name: of the destination, in logs and counts.
        force_flush: called, with milliseconds, after the queued events; False, or an error, where that was too short.

    Attributes:
        delivered: how many batches were handed over. Flushing is none: it succeeds where nothing waits.
    """

    def __init__(
        self,
        deliver: Callable[[Batch], None],
        registry: Registry,
        *,
        name: str = NAME,
        force_flush: Callable[[int], object] | None = None,
    ) -> None:
        self._deliver = deliver
        self._force_flush = force_flush
        self._queue = DeliveryQueue(name, registry)
        self.delivered = 0

    def __call__(self, batch: Batch) -> None:
        """Queue the events of one batch; never waits."""
        count = len(batch.events)
        if count:
            self._queue.put(lambda _timeout: self._hand_over(batch), count * _EVENT_BYTES, items=count)

    def _hand_over(self, batch: Batch) -> None:
        self._deliver(batch)
        self.delivered += 1

    def flush(self, timeout: float) -> bool:
        """Hand over all queued events and flush them there; True where both were done within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        delivered = self._queue.flush(timeout)
        if time.monotonic() >= deadline:
            return delivered
        self._queue.put(lambda _timeout: self._flush_there(deadline), 0, items=0)
        return self._queue.flush(max(deadline - time.monotonic(), 0.0)) and delivered

    def _flush_there(self, deadline: float) -> None:
        left = int((deadline - time.monotonic()) * 1000)
        if self._force_flush is not None and left > 0 and self._force_flush(left) is False:
            raise RuntimeError("the flush timed out")

    def close(self, timeout: float) -> None:
        """Hand over all queued events, and end, within ``timeout`` seconds."""
        self._queue.close(timeout)

    def reset_in_child(self) -> None:
        """Forget the events of the parent process, after a fork."""
        self._queue.reset_in_child()


def into_provider(
    provider: LoggerProvider, registry: Registry, *, pace: Callable[[], None] | None = None
) -> LogEmitter:
    """Return an emitter into a LoggerProvider: its processors and exporters apply; it is never shut down.

    Args:
        provider: the program's own.
        registry: where losses are counted; a processor that raises costs one event.
        pace: called between slices of the work; by default a :class:`tachograph.recording.gil_yield.GilYield`.
    """
    logger, rest = provider.get_logger(SCOPE, *scope_origin(SCOPE)), pace or GilYield()
    log_once = LogOnce()

    def emit(batch: Batch) -> None:
        for number, event in enumerate(batch.events):
            if number % _REST_AFTER == 0:
                rest()
            try:
                logger.emit(log_record(event))
            except Exception as error:  # noqa: BLE001 - the border to the program's processors
                pass_on(error)
                registry.count_dropped("rejected", NAME)
                message = (
                    "the program's LoggerProvider rejected an event (further warnings are suppressed; see "
                    "tachograph_dropped_total on /metrics): %s"
                )
                log_once("refused", message, error)

    return LogEmitter(emit, registry, force_flush=getattr(provider, "force_flush", None))


def to_exporter(
    exporter: Any, registry: Registry, *, name: str | None = None, pace: Callable[[], None] | None = None
) -> ItemExporter:
    """Return an exporter of events by a ``LogRecordExporter`` of the SDK, which it shuts down at the end.

    Args:
        exporter: any exporter of log records.
        registry: where losses are counted.
        name: of the destination, in logs and counts; by default the name of the exporter's class.
        pace: called between slices of the conversion; by default a :class:`tachograph.recording.gil_yield.GilYield`.
    """
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope, rest = InstrumentationScope(SCOPE, *scope_origin(SCOPE)), pace or GilYield()

    def records(batch: Batch, events: Sequence[LogEvent]) -> list[ReadableLogRecord]:
        resource = Resource(dict(batch.resource))
        converted = []
        for number, event in enumerate(events):
            if number % _REST_AFTER == 0:
                rest()
            converted.append(ReadableLogRecord(log_record(event), resource, scope))
        return converted

    return ItemExporter(exporter, registry, items=lambda batch: batch.events, convert=records, name=name)


def into_journal(journal: Journal, resource: Resource, registry: Registry) -> LoggerProvider:
    """Return a LoggerProvider whose records become events of a journal: one without a name is ``log``, with its text.

    Args:
        journal: takes the events.
        resource: of the process.
        registry: where records are counted that cannot be read.
    """
    from opentelemetry.sdk._logs import LoggerProvider as SdkProvider
    from opentelemetry.sdk._logs import LogRecordProcessor, ReadWriteLogRecord

    class IntoJournal(LogRecordProcessor):
        def on_emit(self, log_record: ReadWriteLogRecord) -> None:
            try:
                self._append(log_record.log_record)
            except Exception as error:  # noqa: BLE001 - the border to their values, inside of the program's call
                pass_on(error)
                registry.count_dropped("rejected", NAME)

        def _append(self, record: LogRecord) -> None:
            said = {str(key): _plain(value) for key, value in (record.attributes or {}).items()}
            if record.severity_text:
                said.setdefault("severity_text", record.severity_text)
            if record.body is not None:
                said.setdefault("body", _plain(record.body))
            journal.append(
                record.event_name or "log",
                record.timestamp or record.observed_timestamp or time.time_ns(),
                said,
                trace_id=record.trace_id or 0,
                span_id=record.span_id or 0,
                trace_flags=int(record.trace_flags or 0),
            )

        def shutdown(self) -> None:
            """Do nothing: the journal goes on."""

        def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002 - the API's
            """Return True: the event is in the journal."""
            return True

    provider = SdkProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(IntoJournal())
    return provider


def log_record(event: LogEvent) -> LogRecord:
    """Return an event as a record of the Logs API."""
    context = _NO_SPAN
    if event.trace_id:
        seen = SpanContext(event.trace_id, event.span_id, is_remote=False, trace_flags=TraceFlags(event.trace_flags))
        context = set_span_in_context(NonRecordingSpan(seen), _NO_SPAN)
    attributes = {encodable(str(key)): _plain(value) for key, value in event.record_attributes().items()}
    fields: dict[str, Any] = {}
    if event.name == LOG:
        fields = {key: attributes.pop(key) for key in RECORD_FIELDS}
        fields["severity_number"] = SeverityNumber(fields["severity_number"])
    return LogRecord(
        timestamp=min(max(event.time_unix_nano, 0), UINT64_MAX),
        observed_timestamp=event.observed_unix_nano,
        context=context,
        attributes=attributes,
        event_name=encodable(event.name),
        **fields,
    )


def _plain(value: object) -> Any:
    """Return a value as OTLP can carry it; one without a type there, such as an integer beyond 64 bits, as text."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, int) and fits_int64(value):
        return int(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return encodable(str(value))
