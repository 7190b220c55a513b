"""Forwarding of all that the hub receives to another OTLP/HTTP receiver; no sender waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.exporters.delivery import FIRST_BACK_OFF, Attempt, Clock, Request
from tachograph.exporters.delivery_queue import LIMIT_BYTES, DeliveryQueue
from tachograph.exporters.otlp.http import HttpSender, partial_success
from tachograph.exporters.otlp.settings import SIGNALS, Signal, read_otlp_settings
from tachograph.exporters.otlp.values import add_attributes
from tachograph.exporters.spool import Spool, spool_limit_of
from tachograph.hub._request import SENDER
from tachograph.hub._stream_decoder import is_beside, read_back
from tachograph.identity.resource import file_safe
from tachograph.identity.resource import store as default_store
from tachograph.recording.ids import random_hex
from tachograph.recording.journal import LOG, SCHEMA
from tachograph.recording.packed_points import PACKED
from tachograph.recording.pulse_source import PULSE
from tachograph.recording.registry import Registry
from tachograph.runs import CALLS, FAILURE, POINT, SCHEMA_KEY, SEQ, STREAM, PackedRecord, decode_curve_record

DESTINATION = "forward"
_PRIVATE = frozenset({CALLS, FAILURE, LOG, PULSE})  # texts of exceptions and of the program's own logging
_MANY = 5000  # records of a request: about 1.5 MB, where a Collector takes 4 MiB over gRPC


class Forwarding:
    """Posts requests to ``<url>/v1/<signal>``: gzip, in order, tried again for a minute, bounded while they wait.

    If TACHOGRAPH_SPOOL_LIMIT is set they wait on the disk, too, for as long as it takes: in
    ``<store>/spool/forward-<host>/<sender>``, from where this hub sends them. Those that it leaves there at its end no
    other hub takes: ``tachograph resend`` sends them.

    Args:
        url: base URL of the receiver. Headers, certificates and the time-out are those of OTEL_EXPORTER_OTLP_*.
        registry: where losses and durations are counted.
        environ: environment variables.
        store: the folder for files that outlive the process; by default TACHOGRAPH_STORE's.
        limit_bytes: that may wait in memory; beyond them the oldest is dropped.
        first_back_off: seconds between the first two attempts.
        clock: seconds, monotonic.

    Attributes:
        sender: identifies this hub's own requests, in the header :data:`~tachograph.hub._request.SENDER`.
        spool_folder: where requests wait; it need not exist.

    Raises:
        ValueError: the URL is none, or a variable is wrong.
    """

    def __init__(
        self,
        url: str,
        registry: Registry,
        environ: Mapping[str, str] = os.environ,
        *,
        store: Path | None = None,
        limit_bytes: int = LIMIT_BYTES,
        first_back_off: float = FIRST_BACK_OFF,
        clock: Clock | None = None,
    ) -> None:
        self.sender = random_hex()
        curves = environ.get("TACHOGRAPH_CURVES", "").strip().lower() or "hub"
        if curves not in ("hub", "all"):
            raise ValueError(f"TACHOGRAPH_CURVES must be hub or all, not {curves!r:.100}")
        self._every = curves == "all"
        self._senders: dict[Signal, HttpSender] = {}
        for signal in SIGNALS:
            settings = read_otlp_settings(signal, environ, endpoint=url, protocol="http/protobuf", compression="gzip")
            self._senders[signal] = HttpSender(replace(settings, headers=(*settings.headers, (SENDER, self.sender))))
        host = urlsplit(url).netloc.rpartition("@")[2]
        root = default_store(environ) if store is None else store
        self.spool_folder = root / "spool" / file_safe(f"{DESTINATION}-{host}") / self.sender
        spool_limit = spool_limit_of(environ)
        spool = partial(Spool, self.spool_folder, spool_limit, of="process") if spool_limit else None
        self._queue = DeliveryQueue(
            DESTINATION,
            registry,
            self._deliver,
            spool=spool,
            limit_bytes=limit_bytes,
            first_back_off=first_back_off,
            at_least_once=True,
            clock=clock,
        )

    def __call__(self, signal: Signal, body: bytes, request: Any) -> None:
        """Queue a request; never waits.

        Args:
            signal: of the request.
            body: it in protobuf.
            request: the same as a message: its items are counted where they are lost.
        """
        self._queue.put(body, len(body), items=items(signal, request), kind=signal)

    def adapt(self, signal: Signal, request: Any) -> bool:
        """Leave to a request the items that the receiver can read; True where that has changed it.

        A hub of ours, which says so in its answers, gets all as it is. For another receiver a ``Metric``'s packed
        points are a record each, those of gauges and of ``log()`` only where TACHOGRAPH_CURVES is ``all``, and
        exponential histograms that say again what an explicit one says are left out. Messages of exceptions and
        records of programs' own logging are for hubs of ours alone.
        """
        if any((sender.reads or 0) >= SCHEMA for sender in self._senders.values()):
            return False
        if signal == "logs":
            left_out = _leave_out_private(request)
            return _unpack_points(request, every=self._every) or left_out
        return signal == "metrics" and _leave_out_beside(request)

    def _deliver(self, requests: Sequence[Request], attempt: Attempt) -> None:
        for request in requests:
            signal = cast("Signal", request.kind)
            rejected, _ = partial_success(signal, attempt.call(self._senders[signal], request.payload))
            attempt.settled(
                request.items,
                lost=min(rejected, request.items),
                why="the receiver rejected part of the data",
                accepted=True,
            )

    def flush(self, timeout: float) -> bool:
        """Send everything queued; True where all of it arrived within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    def close(self, timeout: float) -> None:
        """Send everything queued, and end, within ``timeout`` seconds."""
        self._queue.close(timeout)
        for sender in self._senders.values():
            sender.close()


def readable_elsewhere(signal: Signal, body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield a stored request as requests that other receivers than our hub can read, each with its items.

    Every packed point is a record, some thousand a request, whatever TACHOGRAPH_CURVES says: the request was kept to be
    sent. Private records are left out. A request that any receiver can read, or none, stays as it is.
    """
    request: Any = ExportLogsServiceRequest() if signal == "logs" else ExportMetricsServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        yield body, 1
        return
    if signal == "metrics":
        yield request.SerializeToString() if _leave_out_beside(request) else body, items(signal, request)
        return
    _leave_out_private(request)
    _unpack_points(request, every=True)
    for one in request.resource_logs:
        for scope in one.scope_logs:
            for first in range(0, len(scope.log_records), _MANY):
                part = ExportLogsServiceRequest()
                resource = part.resource_logs.add(resource=one.resource, schema_url=one.schema_url)
                inner = resource.scope_logs.add(scope=scope.scope, schema_url=scope.schema_url)
                inner.log_records.extend(scope.log_records[first : first + _MANY])
                yield part.SerializeToString(), len(inner.log_records)


def _unpack_points(request: Any, *, every: bool) -> bool:
    has_packed = False
    for scope in _log_scopes(request):
        records = list(scope.log_records)
        if not any(record.event_name == PACKED for record in records):
            continue
        has_packed = True
        del scope.log_records[:]
        for record in records:
            scope.log_records.extend(_apart(record, every=every) if record.event_name == PACKED else [record])
    return has_packed


def _log_scopes(request: Any) -> list[Any]:
    return [scope for resource in request.resource_logs for scope in resource.scope_logs]


def _metric_scopes(request: Any) -> list[Any]:
    return [scope for resource in request.resource_metrics for scope in resource.scope_metrics]


def _leave_out_private(request: Any) -> bool:
    lists = [scope.log_records for scope in _log_scopes(request)]
    return _leave_out(lists, lambda record: record.event_name in _PRIVATE)


def _leave_out_beside(request: Any) -> bool:
    return _leave_out([scope.metrics for scope in _metric_scopes(request)], is_beside)


def _leave_out(lists: Iterable[Any], is_left_out: Callable[[Any], bool]) -> bool:
    """Remove items from lists of a message; return whether there were any."""
    has_changed = False
    for items in lists:
        kept = [item for item in items if not is_left_out(item)]
        if len(kept) < len(items):
            has_changed = True
            del items[:]
            items.extend(kept)
    return has_changed


def _apart(record: LogRecord, *, every: bool) -> Iterator[LogRecord]:
    """Yield a record for each point of a packed one; none of a broken one."""
    values = {each.key: each.value for each in record.attributes}
    stream = values.get(STREAM, AnyValue()).string_value
    first = values.get(SEQ, AnyValue()).int_value
    packed = decode_curve_record(record, values, first, record.time_unix_nano)
    if not isinstance(packed, PackedRecord) or not (every or packed.execution is not None):
        return
    labels: dict[str, Any] = {"attributes": dict(read_back(packed.attributes))}
    labels |= {"group": packed.group, "execution": packed.execution}
    about = {key: value for key, value in labels.items() if value}
    rows = len(packed.times)
    for place in range(len(packed.values)):
        if packed.left_out is not None and packed.left_out[place]:
            continue
        metric, row = divmod(place, rows)
        seq, at, x, value, more = packed.sample(first + place, row, metric * rows)
        unpacked = LogRecord(
            time_unix_nano=at, observed_time_unix_nano=record.observed_time_unix_nano, event_name=POINT
        )
        point = {"metric": packed.metrics[metric], **about, "x": x, "value": value, "branch": packed.branch, **more}
        add_attributes(unpacked.attributes, (point | {SCHEMA_KEY: 1, STREAM: stream, SEQ: seq}).items())
        yield unpacked


def _points(record: Any) -> int:
    """Return the number of points in a packed record: eight bytes a value."""
    return max(1, sum(len(each.value.bytes_value) // 8 for each in record.attributes if each.key == "value"))


def items(signal: Signal, request: Any) -> int:
    """Return how many data points, log records or spans a request holds; packed points count each."""
    if signal == "logs":
        records = [record for scope in _log_scopes(request) for record in scope.log_records]
        return sum(_points(record) if record.event_name == PACKED else 1 for record in records)
    if signal == "traces":
        return sum(len(scope.spans) for one in request.resource_spans for scope in one.scope_spans)
    metrics = (metric for scope in _metric_scopes(request) for metric in scope.metrics)
    return sum(len(getattr(metric, kind).data_points) for metric in metrics if (kind := metric.WhichOneof("data")))
