"""The OTLP destination: encodes batches, and sends them over HTTP or gRPC."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery import FIRST_BACK_OFF, Attempt, Clock, LossReport, Request
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.otlp._spans import span_requests
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.http import partial_success
from tachograph.exporters.otlp.logs import log_bodies
from tachograph.exporters.otlp.settings import AGGREGATIONS, OtlpSettings, Signal, Temporality
from tachograph.exporters.spool import Spool
from tachograph.identity.resource import file_safe
from tachograph.identity.resource import store as default_store
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.journal import SCHEMA
from tachograph.recording.registry import Registry

NAME = "otlp"
_SPREADS_EVERY = 5.0  # seconds: our own hub keeps two of these in a sample of its history, and shows none sooner

# A channel that was open at a fork is never touched in the child, not even to free it: gRPC may hang there.
_left_to_the_parent: list[object] = []


class Sender(Protocol):
    """Carries one encoded request to its receiver, and the answer back."""

    reads: int | None  # the newest schema of ours that the receiver reads, by its last answer; None before the first
    repeat: int  # seconds for which the receiver does without a series that has not changed, by its last answer

    @property
    def connected(self) -> int | None:
        """How many connections were made so far; None where that is not known."""

    def __call__(self, body: bytes, timeout: float) -> bytes:
        """Send; raises :class:`tachograph.exporters.delivery.Retry` where another attempt may succeed."""

    def close(self) -> None:
        """Close the connections."""


class OtlpExporter:
    """Sends metrics, spans and events as OTLP.

    Args:
        settings: how each signal leaves; a signal that is missing does not.
        registry: where losses and durations are counted.
        pace: called between slices of encoding; by default a :class:`tachograph.recording.gil_yield.GilYield`.
        store: the folder for files that outlive the process; by default TACHOGRAPH_STORE's.
        run_id: of the run. Requests that a process of it leaves on the disk are sent by a later one of the same run, or
            by ``tachograph resend``, and by no other run.
        spool_limit: bytes on the disk for each receiver; 0 for none.
        reads: the newest schema of ours that the receiver is known to read; None where its answers shall tell.
        first_back_off: seconds between the first two attempts.
        clock: seconds, monotonic.

    Attributes:
        temporality: how SDK instruments are to be collected for it, by their class; None for the SDK's default.
        intervals_every: seconds between two intervals of its exponential histograms; 0 for one with each collection.
    """

    def __init__(
        self,
        settings: Mapping[Signal, OtlpSettings],
        registry: Registry,
        *,
        pace: Callable[[], None] | None = None,
        store: Path | None = None,
        run_id: str = "",
        spool_limit: int = 0,
        reads: int | None = None,
        first_back_off: float = FIRST_BACK_OFF,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._receivers = {signal: _receiver(found) for signal, found in settings.items()}
        self._reads = reads
        self._registry = registry
        self._pace = pace or GilYield()
        self._losses = LossReport(NAME, registry)
        self._senders = self._connect()
        preference: Temporality = settings["metrics"].temporality if "metrics" in settings else "cumulative"
        self.temporality = _sdk_temporality(preference)
        is_exponential = "metrics" in settings and settings["metrics"].aggregation != AGGREGATIONS[0]
        self._given, self._in_place = reads, is_exponential and not reads  # our own hub gets both
        self.intervals_every = 0.0 if self._in_place else _SPREADS_EVERY
        self._encoder = MetricsEncoder(
            NAME,
            registry,
            windows="metrics" in settings,
            temporality=preference,
            aggregation=settings["metrics"].aggregation if self._in_place else AGGREGATIONS[0],
            beside=None if self._in_place else lambda: bool(self.wants_intervals()),
            receiver=settings["metrics"].endpoint if "metrics" in settings else "",
            is_whole=self._is_whole,
            pace=self._pace,
        )
        self._clock = clock or Clock()
        self._busy_at = self._clock()
        self._whole: tuple[int | None, int] | None = None
        self._repeat_at = 0.0

        def spool(folder: Path) -> Callable[[Callable[..., None]], Spool]:
            return lambda lose: Spool(folder, spool_limit, lose, GilYield(), of="run")

        # One queue a receiver, so that a dead one holds up no other.
        self._queues = {
            where: DeliveryQueue(
                NAME,
                registry,
                self._deliver,
                losses=self._losses,
                spool=spool(spool_folder(where, run_id, store)) if spool_limit else None,
                first_back_off=first_back_off,
                at_least_once=True,
                reads_late=bool(reads),
                pace=self._pace,
                clock=clock,
            )
            for where in dict.fromkeys(self._receivers.values())
        }

    def _connect(self) -> dict[Signal, Sender]:
        return {signal: _sender(settings) for signal, settings in self._settings.items()}

    def __call__(self, batch: Batch) -> None:
        """Encode a batch and queue it; never waits for the receiver."""
        has_news = bool(batch.spans or batch.events)
        if "metrics" in self._settings and (batch.metrics or batch.sdk is not None):
            for metrics, points in self._encoder.requests(batch):
                self.put("metrics", metrics, points)
            has_news = has_news or bool(self._encoder.had_news)
        if "traces" in self._settings:
            for spans, count in span_requests(batch.spans, self._lose, self._pace):
                self.put("traces", spans.SerializeToString(), count)
        if "logs" in self._settings and batch.events:
            for logs, count in log_bodies(batch.events, batch.resource, self._lose, self._pace):
                self.put("logs", logs, count)
        if has_news:
            self._busy_at = self._clock()

    def busy_at(self) -> float:
        """Return when the last batch came that had anything which the program has recorded.

        Metrics count only for a receiver that does without those that have not changed.
        """
        return self._busy_at

    def skips(self) -> bool:
        """Tell whether a collection can wait as long as there is no news: for a hub of ours."""
        return self._encoder.had_news is not None

    def reads(self) -> int | None:
        """Return the newest schema of ours that the receiver of events reads; None as long as it has not answered."""
        if self._reads is None and "logs" in self._settings:
            self._reads = self._read_by("logs")
        return self._reads

    def _read_by(self, signal: Signal) -> int | None:
        """Return the newest schema that a signal's receiver reads, by its last answer to any signal."""
        receiver, found = self._receivers[signal], None
        for other, sender in self._senders.items():
            if self._receivers[other] == receiver and sender.reads is not None:
                found = sender.reads if found is None else max(found, sender.reads)
        return found

    def wants_intervals(self) -> bool | None:
        """Tell whether the receiver of metrics gets exponential histograms; None as long as it has not answered."""
        if "metrics" not in self._settings:
            return False
        reads = self._given
        if not self._in_place and reads is None:
            reads = self._read_by("metrics")
        return self._in_place or (None if reads is None else reads >= SCHEMA)

    def _is_whole(self) -> bool | None:
        """Tell whether the next collection is sent as a whole, else only its news; None where each one is.

        Only a hub of ours does without the rest, for as long as it says, unless something may not have reached it: its
        connection broke, or a request was lost. At the end, too, all is sent, so that each series ends with the job.
        """
        sender, now = self._senders["metrics"], self._clock()
        state = sender.connected, self._queues[self._receivers["metrics"]].lost
        if not sender.repeat or sender.connected is None:
            self._whole = None
            return None
        if state == self._whole and now < self._repeat_at:
            return False
        self._whole, self._repeat_at = state, now + sender.repeat
        return True

    def flush(self, timeout: float) -> bool:
        """Send everything queued; True where all of it arrived within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        arrived = [queue.flush(_left(deadline)) for queue in self._queues.values()]
        return all(arrived)

    def retry_now(self, longest: float) -> None:
        """Make the next attempts now, even where a receiver has asked for time, and further ones soon."""
        self._whole = None
        for queue in self._queues.values():
            queue.retry_now(longest)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return sum(queue.delivered for queue in self._queues.values())

    @property
    def queues(self) -> tuple[DeliveryQueue, ...]:
        """Queues of the receivers: signals may have several, of which one is dead."""
        return tuple(self._queues.values())

    def is_awaited(self) -> bool:
        """Tell whether something waits for a hub of this job that is alive: its queue moves on, however slowly."""
        return bool(self._given) and any(
            queue.is_answering and not queue.is_through() for queue in self._queues.values()
        )

    def left_over(self) -> tuple[int, int]:
        """Return how many items :meth:`close` has given up, and how many were sent but not answered by then."""
        queues = self._queues.values()
        return sum(queue.undelivered for queue in queues), sum(queue.unanswered for queue in queues)

    def close(self, timeout: float) -> None:
        """Send everything queued, and end, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._encoder.close()
        for queue in self._queues.values():
            queue.flush(0)  # all of them hurry at once
        for queue in self._queues.values():
            queue.close(_left(deadline))
        for sender in self._senders.values():
            sender.close()

    def reset_in_child(self) -> None:
        """Forget queues, connections and deltas, after a fork."""
        for queue in self._queues.values():
            queue.reset_in_child()
        _left_to_the_parent.append(self._senders)
        self._senders = self._connect()
        self._whole = None
        self._encoder.forget()

    def put(self, signal: Signal, body: bytes, items: int) -> None:
        """Queue an encoded request; never waits for the receiver.

        Args:
            signal: of the request.
            body: it in protobuf.
            items: points, spans or records in it.
        """
        self._queues[self._receivers[signal]].put(body, len(body), items=items, kind=signal)

    def _deliver(self, requests: Sequence[Request], attempt: Attempt) -> None:
        for request in requests:
            signal: Signal = request.kind  # type: ignore[assignment] # put() has it from there
            answer = attempt.call(self._senders[signal], request.payload)
            rejected, why = partial_success(signal, answer)
            if why:
                why = self._settings[signal].without_secrets(why)
            why = f"the receiver rejected part of the data: {why:.300}"
            attempt.settled(request.items, lost=min(rejected, request.items), why=why, accepted=True)

    def _lose(self, items: int, why: str) -> None:
        self._losses.lose(items, "encoding", why)


def spool_folder(receiver: tuple[str, str], run_id: str, store: Path | None = None) -> Path:
    """Return the folder in which requests wait for a protocol and a place; it need not exist, and names no user."""
    protocol, where = receiver
    name = file_safe(f"otlp-{protocol.partition('/')[0]}-{where.rpartition('@')[2]}")
    return (default_store(os.environ) if store is None else store) / "spool" / name / file_safe(run_id)


def _receiver(settings: OtlpSettings) -> tuple[str, str]:
    return settings.protocol, urlsplit(settings.endpoint).netloc or settings.endpoint


def _sender(settings: OtlpSettings) -> Sender:
    if settings.protocol == "grpc":
        from tachograph.exporters.otlp.grpc import GrpcSender

        return GrpcSender(settings)
    from tachograph.exporters.otlp.http import HttpSender

    return HttpSender(settings)


def _sdk_temporality(preference: Temporality) -> Mapping[type, Any] | None:
    """Return the temporality of SDK instruments: OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE."""
    if preference == "cumulative":
        return None
    from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    kinds = (Counter, Histogram) if preference == "lowmemory" else (Counter, Histogram, ObservableCounter)
    return dict.fromkeys(kinds, AggregationTemporality.DELTA)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
