"""Events as OTLP log records. Source: OpenTelemetry specification, "Logs Data Model", "Event Name"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs

from tachograph.exporters.otlp._points import BYTES_PER_REQUEST, Lose
from tachograph.exporters.otlp.values import OUT_OF_MEMORY, add_attributes, has_memory, scope_and_schema, text
from tachograph.recording.journal import SCOPE, LogEvent
from tachograph.recording.points import AttributeValue
from tachograph.recording.values import UINT64_MAX

EVENTS_PER_REQUEST = 500
_SLICE = 8


def log_requests(
    events: Sequence[LogEvent], resource: Mapping[str, AttributeValue], lose: Lose, pace: Callable[[], None]
) -> Iterator[tuple[ExportLogsServiceRequest, int]]:
    """Yield the requests that carry the events, each with its number of events; packed points count each.

    Args:
        events: as they were logged.
        resource: the attributes of the process that logged it.
        lose: called with a number of events that cannot be encoded, and the reason.
        pace: called between slices.
    """
    if not has_memory():
        lose(sum(event.points for event in events), OUT_OF_MEMORY)
        return
    request, records = _empty(resource)
    size = points = 0
    for number, event in enumerate(events, 1):
        if number % _SLICE == 0:
            pace()
        try:
            record = _record(event)
        except Exception as error:  # noqa: BLE001 - whatever one event holds, the others leave
            lose(event.points, f"{event.name!r:.100}: {type(error).__name__}: {error}")
            continue
        added = record.ByteSize()
        if records.log_records and (size + added > BYTES_PER_REQUEST or len(records.log_records) >= EVENTS_PER_REQUEST):
            yield request, points
            if not has_memory():
                lose(sum(left.points for left in events[number - 1 :]), OUT_OF_MEMORY)
                return
            request, records = _empty(resource)
            size = points = 0
        records.log_records.append(record)
        size, points = size + added, points + event.points
    if records.log_records:
        yield request, points


def _empty(resource: Mapping[str, AttributeValue]) -> tuple[ExportLogsServiceRequest, ScopeLogs]:
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    add_attributes(logs.resource.attributes, resource.items())
    scope, schema_url = scope_and_schema(SCOPE)
    return request, logs.scope_logs.add(scope=scope, schema_url=schema_url)


def _record(event: LogEvent) -> LogRecord:
    record = LogRecord(
        time_unix_nano=min(max(event.time_unix_nano, 0), UINT64_MAX),  # 0, unknown, for what was before 1970
        observed_time_unix_nano=event.observed_unix_nano,
        event_name=text(event.name),
    )
    if event.trace_id:
        record.trace_id = event.trace_id.to_bytes(16, "big")
        record.span_id = event.span_id.to_bytes(8, "big")
        record.flags = event.trace_flags
    add_attributes(record.attributes, event.record_attributes().items())
    return record
