"""The OTLP destination: encodes batches, and sends them over HTTP or gRPC."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError, Message
from opentelemetry import context
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp._spans import span_requests
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.otlp.settings import OtlpSettings, Signal, Temporality
from tachograph.exporters.outbox import Outbox
from tachograph.recording.gil_yield import Pace
from tachograph.recording.registry import Registry

NAME = "otlp"

_log = logging.getLogger("tachograph")

# A channel that was open at a fork is never touched in the child, not even to free it: gRPC may hang there.
_left_to_the_parent: list[object] = []


class Sender(Protocol):
    """Carries one encoded request to its receiver, and the answer back."""

    def __call__(self, body: bytes, timeout: float) -> bytes:
        """Send; raises :class:`tachograph.exporters.outbox.Retry` where another attempt may succeed."""

    def close(self) -> None:
        """Close the connections."""


class OtlpExporter:
    """Sends metrics, spans and events as OTLP.

    Args:
        settings: how each signal leaves; a signal that is missing does not.
        registry: where losses and durations are counted.
        pace: called between slices of encoding; by default a :class:`tachograph.recording.gil_yield.Pace`.

    Attributes:
        temporality: how SDK instruments are to be collected for it, by their class; None for the SDK's default.
    """

    def __init__(
        self, settings: Mapping[Signal, OtlpSettings], registry: Registry, *, pace: Callable[[], None] | None = None
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._pace = pace or Pace()
        self._said: set[str] = set()
        preference: Temporality = settings["metrics"].temporality if "metrics" in settings else "cumulative"
        self.temporality = _sdk_temporality(preference)
        self._encoder = MetricsEncoder(
            NAME,
            registry,
            windows="metrics" in settings,
            temporality=preference,
            receiver=settings["metrics"].endpoint if "metrics" in settings else "",
            pace=self._pace,
        )
        # One queue a receiver, so that a dead one holds up no other.
        self._outboxes = {where: Outbox(NAME, registry) for where in dict.fromkeys(map(_receiver, settings.values()))}
        self._senders = self._connect()

    def _connect(self) -> dict[Signal, Sender]:
        return {signal: _sender(settings) for signal, settings in self._settings.items()}

    def __call__(self, batch: Batch) -> None:
        """Encode a batch and queue it; never waits for the receiver."""
        if "metrics" in self._settings:
            for metrics, points in self._encoder.requests(batch):
                self._queue("metrics", metrics, points)
        if "traces" in self._settings:
            for spans, count in span_requests(batch.spans, self._lose, self._pace):
                self._queue("traces", spans, count)
        if "logs" in self._settings:
            for logs, count in log_requests(batch.events, batch.resource, self._lose, self._pace):
                self._queue("logs", logs, count)

    def flush(self, timeout: float) -> bool:
        """Send what is queued; True where all of it arrived within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        arrived = [outbox.flush(_left(deadline)) for outbox in self._outboxes.values()]
        return all(arrived)

    def retry_now(self, longest: float) -> None:
        """Make the next attempts now, even where a receiver has asked for time, and further ones soon."""
        for outbox in self._outboxes.values():
            outbox.retry_now(longest)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return sum(outbox.delivered for outbox in self._outboxes.values())

    @property
    def queues(self) -> tuple[Outbox, ...]:
        """What waits for each receiver: signals may have several, of which one is dead."""
        return tuple(self._outboxes.values())

    def close(self, timeout: float) -> None:
        """Send what is queued, and end, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._encoder.close()
        for outbox in self._outboxes.values():
            outbox.flush(0)  # all of them hurry at once
        for outbox in self._outboxes.values():
            outbox.close(_left(deadline))
        for sender in self._senders.values():
            sender.close()

    def reset_in_child(self) -> None:
        """Forget queues, connections and deltas, after a fork."""
        for outbox in self._outboxes.values():
            outbox.reset_in_child()
        _left_to_the_parent.append(self._senders)
        self._senders = self._connect()
        self._encoder.forget()

    def _queue(self, signal: Signal, request: Message, items: int) -> None:
        body = request.SerializeToString()

        def send(timeout: float) -> None:
            # Instrumented HTTP and gRPC libraries would trace our own requests, and each export make the next one.
            token = context.attach(context.set_value("suppress_instrumentation", True))
            try:
                answer = self._senders[signal](body, timeout)
            finally:
                context.detach(token)
            self._read(signal, answer, items)

        self._outboxes[_receiver(self._settings[signal])].put(send, len(body), items=items)

    def _read(self, signal: Signal, answer: bytes, items: int) -> None:
        """Count what the receiver took a request without, all of it at most (OTLP specification, "Partial Success")."""
        try:
            if signal == "metrics":
                metrics = ExportMetricsServiceResponse.FromString(answer).partial_success
                rejected, why = metrics.rejected_data_points, metrics.error_message
            elif signal == "logs":
                logs = ExportLogsServiceResponse.FromString(answer).partial_success
                rejected, why = logs.rejected_log_records, logs.error_message
            else:
                spans = ExportTraceServiceResponse.FromString(answer).partial_success
                rejected, why = spans.rejected_spans, spans.error_message
        except DecodeError:  # a server that answers 200 with something of its own
            return
        if rejected > 0:
            self._registry.count_dropped("rejected", NAME, min(rejected, items))
            why = self._settings[signal].without_secrets(why)
            self._say_once("partial", f"the receiver rejected a part (further ones are counted): {why:.300}")

    def _lose(self, items: int, why: str) -> None:
        self._registry.count_dropped("encoding", NAME, items)
        self._say_once("encoding", f"something could not be encoded (further ones are counted): {why}")

    def _say_once(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s: %s", NAME, message)


def _receiver(settings: OtlpSettings) -> tuple[str, str]:
    return settings.protocol, urlsplit(settings.endpoint).netloc or settings.endpoint


def _sender(settings: OtlpSettings) -> Sender:
    if settings.protocol == "grpc":
        from tachograph.exporters.otlp.grpc import GrpcSender

        return GrpcSender(settings)
    from tachograph.exporters.otlp.http import HttpSender

    return HttpSender(settings)


def _sdk_temporality(preference: Temporality) -> Mapping[type, Any] | None:
    """Return what OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE means for instruments of the SDK."""
    if preference == "cumulative":
        return None
    from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    kinds = (Counter, Histogram) if preference == "lowmemory" else (Counter, Histogram, ObservableCounter)
    return dict.fromkeys(kinds, AggregationTemporality.DELTA)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
