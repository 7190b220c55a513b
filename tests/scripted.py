"""A receiver of OTLP over HTTP or of InfluxDB's lines that follows a script; a request holds one number a line."""

from __future__ import annotations

import gzip
import http.server
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from tachograph.exporters.delivery import Clock
from tachograph.recording.registry import Registry

Answer = Literal["takes", "busy", "away", "refuses", "too large", "partly", "reset", "silent"]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        numbers = [int(line.split()[-1]) for line in body.splitlines()]
        is_otlp = self.path.startswith("/v1/")
        answer = self.server.next_answer()
        self.server.asked += 1
        if answer in ("takes", "reset", "silent"):
            self.server.take(numbers, answered=answer == "takes")
        if answer == "takes":
            self._say(200 if is_otlp else 204)
        elif answer == "partly":
            self.server.take(numbers[1:], answered=True)
            response = ExportLogsServiceResponse()
            response.partial_success.rejected_log_records = 1
            told = response.SerializeToString(), b'{"error":"partial write: field type conflict dropped=1"}'
            self._say(200, told[0]) if is_otlp else self._say(400, told[1])
        elif answer == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif answer == "silent":
            self.server.ends.wait(30)
            self.close_connection = True
        else:
            self._say({"busy": 429, "away": 503, "refuses": 400, "too large": 413}[answer], b'{"message":"no"}')

    def _say(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Scripted(http.server.ThreadingHTTPServer):
    """The receiver.

    Attributes:
        numbers: that it took, in their order, as often as it took them.
        unanswered: those whose sender was not told.
        asked: requests that came.
        ends: lets go of whoever is kept waiting.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: Sequence[Answer] = (), port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._answers = list(answers)
        self.numbers: list[int] = []
        self.unanswered: set[int] = set()
        self.asked = 0
        self.ends = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Say nothing: connections are reset here."""

    def next_answer(self) -> Answer:
        """Return what to do with this request."""
        return self._answers.pop(0) if self._answers else "takes"

    def take(self, numbers: list[int], *, answered: bool) -> None:
        """Keep numbers."""
        self.numbers += numbers
        if not answered:
            self.unanswered.update(numbers)

    @property
    def again(self) -> set[int]:
        """Return the numbers that were taken more than once."""
        return {number for number, times in Counter(self.numbers).items() if times > 1}


@contextmanager
def scripted(answers: Sequence[Answer] = (), port: int = 0) -> Iterator[Scripted]:
    """Run such a receiver."""
    with Scripted(answers, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.ends.set()
            server.shutdown()
            thread.join()


class Fast(Clock):
    """A clock that runs so many times as fast as time does."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def __call__(self) -> float:
        """Return its seconds."""
        return super().__call__() * self._speed

    def wait(self, change: threading.Lock, seconds: float) -> bool:
        """Wait as long as it takes for so many of its seconds to pass."""
        return super().wait(change, seconds / self._speed)


def counts(registry: Registry, metric: str) -> dict[str, int]:
    """Return what was counted, by reason, or by destination where there is none."""
    found: dict[str, int] = {}
    for each in registry.collect():
        if each.name == f"tachograph.{metric}":
            for point in each.points:
                attributes: dict[str, Any] = dict(point.attributes)
                key = attributes.get("reason", attributes["destination"])
                found[key] = found.get(key, 0) + int(getattr(point, "value", 0))
    return found
