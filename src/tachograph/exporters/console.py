"""The ``console`` exporter: a readable line for each series that has changed, each span and each event."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from tachograph.exporters._workers import FILES
from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.recording.journal import SCOPE, LogEvent
from tachograph.recording.points import HistogramPoint, identity
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_000_000  # microseconds until the end of the year 9999, where datetime ends
_LINE_BYTES = 300
_PACE_EVERY = 64


class Console:
    """Writes the series that have changed since the collection before, the spans that have ended, and the events.

    A line is ``time [group] name{attributes}`` with ``value unit``, or with the count, sum, minimum and maximum of a
    histogram: of all that was recorded so far, as metrics are cumulative. The time of an event is its own.

    Args:
        registry: where losses are counted, a closed stream or pipe for one.
        stream: where to write; None for whatever ``sys.stdout`` is at that time.
        pace: called between slices of the formatting.
    """

    def __init__(
        self, registry: Registry, stream: TextIO | None = None, *, pace: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._pace = pace
        self._queue = DeliveryQueue("console", registry, workers=FILES)
        self._shown: dict[tuple[object, ...], str] = {}

    def __call__(self, batch: Batch) -> None:
        """Queue the lines of one collection."""
        changed: list[str] = []
        for number, (key, line) in enumerate(_metric_lines(batch)):
            if self._pace is not None and number % _PACE_EVERY == 0:
                self._pace()
            if self._shown.get(key) != line:
                self._shown[key] = line
                changed.append(line)
        changed += [_span_line(span) for span in batch.spans]
        stamp = _stamp(batch.time_unix_nano)
        lines = [f"{stamp} {_one_line(line)}\n" for line in changed]
        for number, event in enumerate(batch.events):
            if self._pace is not None and number % _PACE_EVERY == 0:
                self._pace()
            lines.append(f"{_stamp(event.time_unix_nano)} {_one_line(_event_line(event))}\n")
        if lines:
            text = "".join(lines)
            self._queue.put(lambda _timeout: self._write(text), _LINE_BYTES * len(lines), items=len(lines))

    def _write(self, text: str) -> None:
        stream = sys.stdout if self._stream is None else self._stream
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    def flush(self, timeout: float) -> bool:
        """Write everything queued; True where that was done within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def close(self, timeout: float) -> None:
        """Write everything queued, and end, within ``timeout`` seconds. The stream stays open."""
        self._queue.close(timeout)

    def reset_in_child(self) -> None:
        """Forget the parent process's queue and lines, after a fork."""
        self._shown = {}
        self._queue.reset_in_child()


def series_name(name: str, attributes: Mapping[str, Any]) -> str:
    """Return a metric's name with its attributes: ``loss{rank=0,split="train"}``."""
    if not attributes:
        return name
    inside = ",".join(
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        for key, value in sorted(attributes.items())
    )
    return f"{name}{{{inside}}}"


def _metric_lines(batch: Batch) -> Iterator[tuple[tuple[object, ...], str]]:
    for metric in batch.metrics:
        for point in metric.points:
            if isinstance(point, HistogramPoint):
                spread = point.summary
                value = _histogram(spread.count, spread.total.value(), spread.minimum, spread.maximum)
                value += f" nonfinite={spread.nonfinite}" if spread.nonfinite else ""
            else:
                value = f"{point.value}"
            name = series_name(metric.name, dict(point.attributes))
            key = (metric.scope, metric.name, metric.unit, metric.kind, identity(point.attributes))
            yield key, _line(metric.scope, name, value, metric.unit)
    if batch.sdk is not None:
        yield from _sdk_lines(batch.sdk)


def _sdk_lines(sdk: MetricsData) -> Iterator[tuple[tuple[object, ...], str]]:
    for resource in sdk.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    name = series_name(metric.name, attributes)
                    found: Any = point
                    if hasattr(found, "value"):
                        value = f"{found.value}"
                    else:
                        value = _histogram(found.count, found.sum, found.min, found.max)
                    key = (scope.scope.name, scope.scope.version, metric.name, metric.unit, name)
                    yield key, _line(scope.scope.name, name, value, metric.unit or "")


def _histogram(count: int, total: float, minimum: float, maximum: float) -> str:
    return f"count={count} sum={total} min={minimum} max={maximum}" if count else "count=0"


def _line(scope: str, name: str, value: str, unit: str) -> str:
    return f"[{scope}] {name} {value}{' ' + unit if unit and unit != '1' else ''}"


def _stamp(time_unix_nano: int) -> str:
    time = _EPOCH + timedelta(microseconds=min(max(time_unix_nano // 1000, 0), _LATEST))
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event_line(event: LogEvent) -> str:
    trace = f" trace={event.trace_id:032x} span={event.span_id:016x}" if event.trace_id else ""
    return f"[{SCOPE}] event {series_name(event.name, event.attributes)}{trace}"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


def _span_line(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
    context = span.get_span_context()
    trace = f" trace={context.trace_id:032x} span={context.span_id:016x}" if context else ""
    return f"[{scope}] span {span.name} {milliseconds:.3f} ms {span.status.status_code.name}{trace}"
