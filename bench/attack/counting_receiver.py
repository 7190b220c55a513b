"""An OTLP receiver over HTTP on a free loopback port that keeps its requests, and adds them up."""

from __future__ import annotations

import gzip
import http.server
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric

from tachograph.exporters.otlp.http import READS
from tachograph.recording.journal import SCHEMA
from tachograph.recording.packed_points import PACKED


class _Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        time.sleep(self.server.delay)
        status = self.server.take(self.path.rpartition("/")[2], body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if self.server.reads and status == HTTPStatus.OK:
            self.send_header(READS, str(SCHEMA))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps each request that it answers with 200: all but the first ones.

    Args:
        refusals: so many requests are answered with 503 first.
        delay: seconds before each answer.
        discards: a signal whose first request that is answered with 200 is not kept: a loss, which is to be found.
        reads: answer as a hub of ours, to which points leave packed.
    """

    daemon_threads = True

    def __init__(self, *, refusals: int = 0, delay: float = 0.0, discards: str = "", reads: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.reads = reads
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.delay = delay
        self._refusals, self._discards = refusals, discards
        self._taking = threading.Lock()
        self._kept: list[tuple[str, bytes]] = []

    def take(self, signal: str, body: bytes) -> int:
        """Keep a request; return the status of the answer."""
        with self._taking:
            if self._refusals:
                self._refusals -= 1
                return 503
            if signal == self._discards:
                self._discards = ""
            else:
                self._kept.append((signal, body))
            return 200

    def handle_error(self, *_: Any) -> None:
        """Log nothing: a process that is killed leaves its connection in the middle of a request."""

    def arrived(self) -> Arrived:
        """Return the arrivals so far."""
        with self._taking:
            kept = list(self._kept)
        return Arrived(kept)


@contextmanager
def receiving(**behaviour: Any) -> Iterator[Receiver]:
    """Run a receiver."""
    with Receiver(**behaviour) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Last(NamedTuple):
    """The latest point of a series."""

    nano: int
    value: float
    total: float  # of a histogram: its sum


class Arrived:
    """The totals of requests.

    Attributes:
        windows: the number of values in the closed windows of a Stat, by its name.
        wrong: items that no honest sender sends: a counter that goes back, an event that comes twice.
    """

    def __init__(self, requests: list[tuple[str, bytes]]) -> None:
        self.windows: Counter[str] = Counter()
        self.wrong: list[str] = []
        # By name and attributes, then by the rest of a series' identity: its resource and its start.
        self._series: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[Any, Last]] = defaultdict(dict)
        self._numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._seen: Counter[tuple[str, int]] = Counter()
        for signal, body in requests:
            if signal == "metrics":
                self._add_metrics(ExportMetricsServiceRequest.FromString(body))
            elif signal == "logs":
                self._add_logs(ExportLogsServiceRequest.FromString(body))
        twice = [found for found, times in self._seen.items() if times > 1]
        if twice:
            self.wrong.append(f"{len(twice)} events came more than once, such as {twice[0]}")

    def _add_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            process = tuple(sorted((key, str(value)) for key, value in _plain(resource.resource.attributes).items()))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._add_metric((process, scope.scope.name), metric)

    def _add_metric(self, owner: object, metric: Metric) -> None:
        kind = metric.WhichOneof("data")
        if kind == "exponential_histogram":  # beside an explicit one, which has all of its values
            return
        data = getattr(metric, kind or "gauge")
        delta = kind != "gauge" and data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        for point in data.data_points:
            attributes = tuple(sorted(_plain(point.attributes).items()))
            if kind == "histogram":
                value, total = point.count, point.sum
            else:
                value = total = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            series = self._series[metric.name, attributes]
            key = owner, 0 if delta or kind == "gauge" else point.start_time_unix_nano
            before = series.get(key)
            if before is not None and delta:
                value, total = before.value + value, before.total + total
            elif (
                before is not None
                and kind != "gauge"
                and (point.time_unix_nano - before.nano) * (value - before.value) < 0
            ):
                self.wrong.append(f"{metric.name} {attributes} goes back from {before.value} to {value}")
            if before is None or delta or point.time_unix_nano >= before.nano:
                series[key] = Last(point.time_unix_nano, value, total)

    def _add_logs(self, request: ExportLogsServiceRequest) -> None:
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    attributes = _plain(record.attributes)
                    if record.event_name == PACKED:
                        self._add_packed(attributes)
                        continue
                    self._seen[attributes["tachograph.stream"], attributes["tachograph.seq"]] += 1
                    self._add_record(record.event_name, attributes)

    def _add_packed(self, attributes: dict[str, Any]) -> None:
        """Add packed points: each has a number of its own; those of a ``Metric`` are points like single ones."""
        (metric, *_), first, stream = (attributes[key] for key in ("metric", "tachograph.seq", "tachograph.stream"))
        for seq in range(first, first + len(attributes["value"]) // 8):
            self._seen[stream, seq] += 1
        if "execution" in attributes:
            for (x,) in struct.iter_unpack("<d", attributes["x"]):
                self._add_record("tachograph.metric", {"metric": metric, "x": x})

    def _add_record(self, name: str, attributes: dict[str, Any]) -> None:
        if name == "attack.event":
            self._numbers["event", attributes["who"]].append(attributes["number"])
        elif name == "tachograph.point":
            number = attributes["tachograph.fields"]["number"]
            self._numbers["point", attributes["tachograph.tags"]["who"]].append(number)
        elif name == "tachograph.metric":
            door, _, who = attributes["metric"].partition(" ")
            self._numbers[door, who].append(int(attributes["x"]))
        elif name == "torch.monitor.Stat":
            for key, value in attributes.items():
                if key.startswith("stat ") and key.endswith(".count"):
                    self.windows[key.removesuffix(".count")] += int(value)

    def sums(self, name: str, **attributes: str) -> tuple[float, float]:
        """Return a counter's value, or a histogram's count, and its sum: of all processes and starts, by attributes."""
        found = list(self._matching(name, attributes))
        return sum(last.value for last in found), sum(last.total for last in found)

    def last(self, name: str, **attributes: str) -> float | None:
        """Return a gauge's latest value; None where there is none."""
        return max(((last.nano, last.value) for last in self._matching(name, attributes)), default=(0, None))[1]

    def numbers(self, door: str, who: str) -> list[int]:
        """Return the numbers of the events of a recorder: of ``event``, ``point``, ``curve`` or ``throttled``."""
        return self._numbers.get((door, who), [])

    def dropped(self) -> dict[str, float]:
        """Return the numbers of dropped items, by reason."""
        found: dict[str, float] = defaultdict(float)
        for (name, attributes), series in self._series.items():
            if name == "tachograph.dropped":
                found[dict(attributes)["reason"]] += sum(last.value for last in series.values())
        return dict(found)

    def _matching(self, name: str, attributes: dict[str, str]) -> Iterator[Last]:
        for (found, its), series in self._series.items():
            if found == name and attributes.items() <= dict(its).items():
                yield from series.values()


def _plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return _plain(value.kvlist_value.values)
    if kind == "array_value":
        return tuple(map(_value, value.array_value.values))
    return getattr(value, kind) if kind else None
