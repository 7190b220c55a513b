"""A batch: everything that one collection found, of every signal, as an exporter gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tachograph.recording.journal import LogEvent
from tachograph.recording.points import AttributeValue, MetricPoints

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True)
class Batch:
    """One collection: metrics are cumulative, spans and events are those that came since the batch before.

    Attributes:
        metrics: those of the registry.
        sdk: those of other libraries' SDK instruments in this process; None where there are none.
        spans: ended spans, each in exactly one batch.
        resource: the attributes of the process that recorded it.
        time_unix_nano: when it was collected, in nanoseconds since the epoch.
        events: each in exactly one batch; they come in batches of their own.
    """

    metrics: Sequence[MetricPoints]
    sdk: MetricsData | None
    spans: Sequence[ReadableSpan]
    resource: Mapping[str, AttributeValue]
    time_unix_nano: int
    events: Sequence[LogEvent] = ()


# The seam of the entry-point group ``tachograph.exporters``; it raises where it could not take the batch.
Exporter = Callable[[Batch], None]
