"""Forwarding of all that the hub receives to another OTLP/HTTP receiver; the sender never waits for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tachograph.exporters.delivery import Attempt, Request
from tachograph.exporters.delivery_queue import LIMIT_BYTES, DeliveryQueue
from tachograph.exporters.otlp.http import HttpSender, partial_success
from tachograph.exporters.otlp.settings import SIGNALS, Signal, read_otlp_settings
from tachograph.recording.ids import random_hex
from tachograph.recording.registry import Registry

DESTINATION = "forward"
SENDER = "tachograph-hub"  # header: which hub passed a request on, so that it does not take it for news


class Forwarding:
    """Posts requests to ``<url>/v1/<signal>``: gzip, in order, tried again for a minute, bounded while they wait.

    Args:
        url: base URL of the receiver. Headers, certificates and the time-out are those of OTEL_EXPORTER_OTLP_*.
        registry: where losses and durations are counted.
        environ: environment variables.
        limit_bytes: what may wait; beyond it the oldest is dropped.

    Attributes:
        sender: what identifies this hub's own requests, in the header :data:`SENDER`.

    Raises:
        ValueError: the URL is none, or a variable is wrong.
    """

    def __init__(
        self, url: str, registry: Registry, environ: Mapping[str, str] = os.environ, *, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.sender = random_hex()
        self._senders: dict[Signal, HttpSender] = {}
        for signal in SIGNALS:
            found = read_otlp_settings(signal, environ, endpoint=url, protocol="http/protobuf", compression="gzip")
            self._senders[signal] = HttpSender(replace(found, headers=(*found.headers, (SENDER, self.sender))))
        self._queue = DeliveryQueue(DESTINATION, registry, self._deliver, limit_bytes=limit_bytes, at_least_once=True)

    def __call__(self, signal: Signal, body: bytes, request: Any) -> None:
        """Queue a request; never waits.

        Args:
            signal: what it holds.
            body: it in protobuf.
            request: the same as a message: its items are counted where they are lost.
        """
        self._queue.put(body, len(body), items=items(signal, request), kind=signal)

    def _deliver(self, requests: Sequence[Request], attempt: Attempt) -> None:
        for request in requests:
            signal = cast("Signal", request.kind)
            rejected, _ = partial_success(signal, attempt.call(self._senders[signal], request.payload))
            attempt.settled(
                request.items, lost=min(rejected, request.items), why="the receiver rejected a part", accepted=True
            )

    def flush(self, timeout: float) -> bool:
        """Send what is queued; True where all of it arrived within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    def close(self, timeout: float) -> None:
        """Send what is queued, and end, within ``timeout`` seconds."""
        self._queue.close(timeout)
        for sender in self._senders.values():
            sender.close()


def items(signal: Signal, request: Any) -> int:
    """Return how many data points, log records or spans a request holds."""
    if signal == "logs":
        return sum(len(scope.log_records) for one in request.resource_logs for scope in one.scope_logs)
    if signal == "traces":
        return sum(len(scope.spans) for one in request.resource_spans for scope in one.scope_spans)
    metrics = (metric for one in request.resource_metrics for scope in one.scope_metrics for metric in scope.metrics)
    return sum(len(getattr(metric, kind).data_points) for metric in metrics if (kind := metric.WhichOneof("data")))
