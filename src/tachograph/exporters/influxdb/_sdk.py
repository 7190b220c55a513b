"""An exporter for anybody's LoggerProvider: points of a MetricsLogger, or of a Metric, to InfluxDB."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

from tachograph.exporters.batch import Batch
from tachograph.exporters.influxdb._exporter import InfluxDB
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording import registry as registries
from tachograph.recording.journal import LogEvent
from tachograph.recording.registry import Registry


class InfluxDBLogExporter(LogRecordExporter):
    """Writes the log records that are points to InfluxDB; other records are left alone.

    It has a queue, threads and a spool of its own: put it behind a ``SimpleLogRecordProcessor`` or a
    ``BatchLogRecordProcessor``, it never waits.

    Args:
        target: where; by default what the ``INFLUXDB_*`` variables say.
        registry: where losses and durations are counted.
        store: the folder for what outlives the process.

    Raises:
        ValueError: neither a target nor INFLUXDB_HOST is given.
        ModuleNotFoundError: the extra ``influxdb`` is not installed.
    """

    def __init__(
        self, target: InfluxTarget | None = None, *, registry: Registry | None = None, store: Path | None = None
    ) -> None:
        where = target or InfluxTarget.read(os.environ)
        if where is None:
            raise ValueError("INFLUXDB_HOST is not set: it says where InfluxDB listens")
        self._destination = InfluxDB(where, registry or registries.default, store=store)
        self._ended = False

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Take records."""
        if self._ended:
            return LogRecordExportResult.FAILURE
        events: dict[int, tuple[Mapping[str, Any], list[LogEvent]]] = {}
        for record in batch:
            attributes = record.resource.attributes
            events.setdefault(id(record.resource), (attributes, []))[1].append(_event(record))
        for resource, found in events.values():
            self._destination(Batch([], None, [], resource, time.time_ns(), found))
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Deliver what was taken; False where that took too long."""
        return self._destination.flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """Deliver, and end, within 1 s."""
        self._ended = True
        self._destination.close(1.0)


def _event(record: ReadableLogRecord) -> LogEvent:
    log = record.log_record
    told: Mapping[str, Any] = log.attributes or {}
    attributes = {key: value for key, value in told.items() if not key.startswith("tachograph.s")}
    observed = log.observed_timestamp or log.timestamp or 0
    context = (log.trace_id or 0, log.span_id or 0, int(log.trace_flags or 0))
    return LogEvent(log.event_name or "", log.timestamp or observed, observed, attributes, 0, *context, "")
