"""A hub in a process of its own, and an honest sender, which repeats requests that are not acknowledged."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from tachograph.exporters.otlp.values import add_attributes

_STARTS_WITHIN = 60.0
_ENDS_WITHIN = 60.0
_EVENTS, _POINTS = 3, 3  # of one request
_TEXT = "x" * 300
_PATIENCE = 20.0  # seconds for an answer: the hub waits five of them for a lock
_OPENER = "http://"


class HubProcess:
    """A running ``tachograph hub``, until :meth:`end`, or until this process is gone.

    Args:
        log: the file for its output, which is appended to.
        store: its store.
        environment: more of it.
        port: to listen on; 0 for any.

    Attributes:
        first, last: the JSON lines in which it announced its start and its end; empty where it did not.
        serves: whether it listens.
        status: its exit status; None while it runs.
    """

    def __init__(self, log: Path, store: Path, environment: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TACHOGRAPH_"))}
        kept |= {"TACHOGRAPH_SYSTEM_METRICS": "false", **(environment or {})}
        self.store, self._log = store, log
        reading, writing = os.pipe()
        line = [
            sys.executable,
            "-m",
            "tachograph",
            "hub",
            "--port",
            str(port),
            "--store",
            str(store),
            "--parent",
            str(os.getpid()),
        ]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*line, "--announce", str(writing)], env=kept, pass_fds=[writing], stderr=output, stdout=output
            )
        os.close(writing)
        self.pid = self._process.pid
        self._announced = os.fdopen(reading)
        self.first = self._next(_STARTS_WITHIN)
        self.last: dict[str, Any] = {}
        self.status: int | None = None
        self.serves = "url" in self.first

    def _next(self, seconds: float) -> dict[str, Any]:
        killer = threading.Timer(seconds, self._process.kill)
        killer.start()
        try:
            line = self._announced.readline()
        finally:
            killer.cancel()
        return dict(json.loads(line)) if line else {}

    @property
    def address(self) -> str:
        """Return host and port.

        Raises:
            RuntimeError: it does not serve.
        """
        if not self.serves:
            raise RuntimeError(f"the hub did not start: {self.log[-500:]}")
        return str(self.first["url"]).removeprefix(_OPENER).rstrip("/")

    @property
    def port(self) -> int:
        """Return its port."""
        return int(self.address.rpartition(":")[2])

    @property
    def log(self) -> str:
        """Return its log so far."""
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.poll() is None

    def page(self) -> str:
        """Return ``/metrics``."""
        connection = http.client.HTTPConnection(self.address, timeout=_PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.serves and self.is_running():
            self._process.send_signal(signal.SIGTERM)
        if self.serves:
            self.last = self._next(_ENDS_WITHIN)
        self._announced.close()
        try:
            self.status = self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()


class Sender:
    """A process that sends events, points of a curve, and a counter; each request again until it is acknowledged.

    Args:
        address: of the hub.
        run: its run's id.
        patience: seconds that it waits for an answer.

    Attributes:
        kept: when each number of an event or point was acknowledged: seconds, monotonic.
        total: the counter's last value that was acknowledged.
        statuses: number of answers by status; 0 for none at all.
        without_time: number of 503 without Retry-After.
    """

    def __init__(self, address: str, run: str = "job", *, patience: float = _PATIENCE) -> None:
        self.run, self._patience = run, patience
        self.kept: dict[int, float] = {}
        self.total = 0
        self.statuses: dict[int, int] = {}
        self.without_time = 0
        self._address = address
        self._connection: http.client.HTTPConnection | None = None
        self._waiting: list[tuple[str, bytes, list[int]]] = []
        self._next = 1
        self._sent = 0
        self._resource = {"service.instance.id": f"i-{run}", "dl.run.id": run, "dl.role": "trainer", "dl.rank": 0}

    def step(self) -> bool:
        """Send the requests that wait, or else new ones; True where all were acknowledged."""
        if not self._waiting:
            self._waiting = [("/v1/logs", *self._logs()), ("/v1/metrics", self._metrics(), [])]
        while self._waiting:
            path, body, numbers = self._waiting[0]
            if self._post(path, body) != http.HTTPStatus.OK:
                return False
            del self._waiting[0]
            now = time.monotonic()
            self.kept.update(dict.fromkeys(numbers, now))
            if not numbers:
                self.total = self._sent
        return True

    def run_for(self, seconds: float) -> None:
        """Send for some seconds, fifty times a second."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.step()
            time.sleep(0.02)

    def goes_on(self, within: float) -> bool:
        """Tell whether a new request is acknowledged within some seconds."""
        until = time.monotonic() + within
        self.step()
        while not self.step():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, path: str, body: bytes) -> int:
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._address, timeout=self._patience)
            self._connection.request("POST", path, body, {"Content-Type": "application/x-protobuf"})
            answer = self._connection.getresponse()
            answer.read()
            status = answer.status
            self.without_time += status == http.HTTPStatus.SERVICE_UNAVAILABLE and not answer.getheader("Retry-After")
        except (OSError, http.client.HTTPException):
            self.close()
            status = 0
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    def _logs(self) -> tuple[bytes, list[int]]:
        request = ExportLogsServiceRequest()
        resource = request.resource_logs.add()
        add_attributes(resource.resource.attributes, self._resource.items())
        numbers = list(range(self._next, self._next + _EVENTS + _POINTS))
        self._next = numbers[-1] + 1
        records = resource.scope_logs.add().log_records
        for number in numbers:
            is_point = number % (_EVENTS + _POINTS) < _POINTS
            name = "tachograph.metric" if is_point else "e"
            said = {"metric": "loss", "x": float(number), "value": 1 / number} if is_point else {"text": _TEXT}
            now = time.time_ns()
            record = records.add(time_unix_nano=now, observed_time_unix_nano=now, event_name=name)
            ours = {"tachograph.schema": 1, "tachograph.stream": f"s-{self.run}", "tachograph.seq": number}
            add_attributes(record.attributes, {**said, **ours}.items())
        return request.SerializeToString(), numbers

    def _metrics(self) -> bytes:
        self._sent += 1
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        add_attributes(resource.resource.attributes, self._resource.items())
        metric = resource.scope_metrics.add().metrics.add(name="steps")
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.sum.data_points.add(start_time_unix_nano=1, time_unix_nano=time.time_ns(), as_int=self._sent)
        return request.SerializeToString()


class Health(threading.Thread):
    """Asks a hub for ``/healthz`` again and again, on a connection of its own.

    Args:
        address: of the hub.

    Attributes:
        longest: seconds of the slowest answer.
        failed: questions that were not answered with 200.
        asked: number of questions.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.longest, self.failed, self.asked = 0.0, 0, 0
        self._address = address
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Ask until :meth:`end`."""
        with contextlib.closing(http.client.HTTPConnection(self._address, timeout=_PATIENCE)) as connection:
            while not self._over.wait(0.05):
                began = time.monotonic()
                try:
                    connection.request("GET", "/healthz")
                    answer = connection.getresponse()
                    answer.read()
                    self.failed += answer.status != http.HTTPStatus.OK
                except (OSError, http.client.HTTPException):
                    connection.close()
                    self.failed += 1
                self.asked += 1
                self.longest = max(self.longest, time.monotonic() - began)

    def end(self) -> None:
        """Ask no more."""
        self._over.set()
        self.join(_PATIENCE)
