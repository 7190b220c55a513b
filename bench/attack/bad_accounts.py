"""The items that a faulty backend has taken, so that nothing is there twice and nothing is missing uncounted."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

EVENT = "train.step"
COUNTER = "step.success"
GROUP = "train"
_NUMBER = re.compile(rb"[ ,]n=(\d+)i")


class Item(NamedTuple):
    """One point or event, by its identity.

    Attributes:
        kind: ``event``, ``point`` or ``line``.
        key: of an event its number in its stream; of a point its series and time; of a line its text.
        number: of an event or a line: the program's own count; else 0.
        start: of a point: the beginning of its interval.
        time: of a point.
        value: of a point of the counter; else 0.
    """

    kind: str
    key: object
    number: int = 0
    start: int = 0
    time: int = 0
    value: float = 0.0

    @property
    def counts(self) -> bool:
        """Tell whether it is a point of the program's counter."""
        return self.kind == "point" and isinstance(self.key, tuple) and self.key[:2] == (GROUP, COUNTER)


class Account:
    """The items that one backend has received; used by several threads.

    Attributes:
        acknowledged: items that the backend has taken, with an answer that the client must have read.
        unsure: items that it has taken, or may have, without the client knowing: they may come again.
        repeated: items that came although they were acknowledged before.
        texts: the lines that came, by the number of their point.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: set[Item] = set()
        self.unsure: set[Item] = set()
        self.repeated: list[Item] = []
        self.texts: dict[int, set[object]] = {}

    def see(self, items: Iterable[Item]) -> None:
        """Note the items of a request, whether they are taken or not."""
        with self._lock:
            for item in items:
                if item in self.acknowledged:
                    self.repeated.append(item)
                if item.kind == "line":
                    self.texts.setdefault(item.number, set()).add(item.key)

    def take(self, items: Iterable[Item]) -> None:
        """Take items, without an answer so far."""
        with self._lock:
            self.unsure.update(items)

    def acknowledge(self, items: Iterable[Item]) -> None:
        """Take items, and note that the client has the answer."""
        with self._lock:
            self.acknowledged.update(items)

    @property
    def taken(self) -> set[Item]:
        """All items that are there now, each once."""
        return self.acknowledged | self.unsure


def otlp_items(path: str, body: bytes) -> list[Item]:
    """Return the items of an OTLP request; none for a body that is no request."""
    if "logs" in path.lower():
        return [_event(each) for each in _log_records(ExportLogsServiceRequest.FromString(body))]
    request = ExportMetricsServiceRequest.FromString(body)
    return [
        _point(scope.scope.name, metric.name, point)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    ]


def _log_records(request: ExportLogsServiceRequest) -> Iterable[Any]:
    return (
        record for resource in request.resource_logs for scope in resource.scope_logs for record in scope.log_records
    )


def _event(record: Any) -> Item:
    found = {each.key: each.value for each in record.attributes}
    number = found["n"].int_value if record.event_name == EVENT else 0
    return Item("event", (found["tachograph.stream"].string_value, found["tachograph.seq"].int_value), number)


def _point(scope: str, name: str, point: Any) -> Item:
    attributes = tuple(sorted((each.key, each.value.SerializeToString()) for each in point.attributes))
    key = (scope, name, attributes, point.start_time_unix_nano, point.time_unix_nano)
    value = float(getattr(point, "as_int", 0) or getattr(point, "as_double", 0.0)) if name == COUNTER else 0.0
    return Item("point", key, 0, point.start_time_unix_nano, point.time_unix_nano, value)


def line_items(_path: str, body: bytes) -> list[Item]:
    """Return the points of a body of line protocol; a line without a number is left out: the program writes none."""
    found = ((line, _NUMBER.search(line)) for line in body.splitlines())
    return [Item("line", bytes(line), int(number[1])) for line, number in found if number]


def event_number(record: bytes) -> int:
    """Return the number of a stored event of ours."""
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    return _event(LogRecord.FromString(record)).number
