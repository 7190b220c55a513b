"""Hubs for tests: one served by a thread of this process, or the command in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from places import ROOT
from programs import environment
from tachograph.hub._connections import ClientTimeouts
from tachograph.hub._request import RequestLimits
from tachograph.hub.forwarding import Forwarding
from tachograph.hub.hub import Hub
from tachograph.hub.server import HubServer, listen

PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(url: str, path: str, body: bytes | None = None, *, timeout: float = 30, **headers: str) -> Answer:
    """Send one request, a POST where it has a body; ``content_type`` is the header ``Content-Type``."""
    method = headers.pop("method", "GET" if body is None else "POST")
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=timeout)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def descriptors(soft: int, hard: int) -> list[str]:
    """Return a wrapper that limits the descriptors of a command."""
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]


def points(url: str) -> int:
    """Return how many data points a hub says that it has received."""
    return int(json.loads(ask(url, "/healthz").body)["data_points"])


def request(*values: float, rank: int = 0, name: str = "loss") -> ExportMetricsServiceRequest:
    """Return a request with one gauge of rank ``rank``: a data point a value, told apart by attribute ``i``."""
    made = ExportMetricsServiceRequest()
    one = made.resource_metrics.add()
    who = {"service.instance.id": f"instance-{rank}", "dl.rank": str(rank), "dl.run.id": "a-run", "dl.role": "trainer"}
    for key, value in who.items():
        one.resource.attributes.add(key=key).value.string_value = value
    scope = one.scope_metrics.add()
    scope.scope.name = "g"
    metric = scope.metrics.add(name=name)
    for i, number in enumerate(values):
        point = metric.gauge.data_points.add(as_double=number, time_unix_nano=time.time_ns())
        point.attributes.add(key="i").value.int_value = i
    return made


@dataclass
class Serving:
    """A hub in this process."""

    url: str
    hub: Hub
    server: HubServer


def scraping(url: str) -> str:
    """Return the shipped configuration of Prometheus, with the address of one hub in place of the target files."""
    config = (ROOT / "deploy" / "prometheus" / "hub.yml").read_text()
    files = 'file_sd_configs:\n      - files: ["targets/*.json"]'
    assert files in config
    return config.replace(files, f"http_sd_configs:\n      - url: {url}/sd")


@contextmanager
def serving(
    store: Path,
    *,
    token: str | None = None,
    forwarding: Forwarding | None = None,
    limits: RequestLimits | None = None,
    timeouts: ClientTimeouts | None = None,
    kind: Callable[[Path], Hub] = Hub,
    port: int = 0,
) -> Iterator[Serving]:
    """Serve a hub on a free port, unless one is given, from a thread that owns it, as the command's main one does."""
    found: list[Serving] = []
    ready = threading.Event()

    async def serve() -> None:
        hub = kind(store)
        bounds: dict[str, Any] = {"limits": limits, "timeouts": timeouts}
        server = HubServer(hub, listen("127.0.0.1", port), token=token, forwarding=forwarding, **bounds)
        started = asyncio.Event()
        task = asyncio.create_task(server.serve(started))
        await started.wait()
        found.append(Serving(server.url, hub, server))
        ready.set()
        await task
        hub.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield found[0]
    finally:
        if found:
            found[0].server.stop()
        thread.join(30)


@dataclass
class Command:
    """A running ``tachograph hub``: its process, what it announced, and how it ended."""

    process: subprocess.Popen[str]
    announced: Any
    first: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return str(self.first["url"])

    def next(self) -> dict[str, Any]:
        """Return the next line that it announces; empty where there is none any more."""
        line = self.announced.readline()
        return dict(json.loads(line)) if line else {}

    def end(self, timeout: float = 20) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(timeout)


@contextmanager
def command(
    folder: Path,
    *arguments: str,
    parent: bool = False,
    stderr: int = subprocess.PIPE,
    wrapper: Sequence[str] = (),
    **more: str,
) -> Iterator[Command]:
    """Run ``python -m tachograph hub`` with its store in ``folder``, on a free port unless the arguments name one.

    The ``wrapper`` is a command that runs the one behind it.
    """
    reading, writing = os.pipe()
    line = [*wrapper, sys.executable, "-m", "tachograph", "hub", "--announce", str(writing), *arguments]
    line += [] if "--port" in arguments else ["--port", "0"]
    line += ["--parent", str(os.getpid())] if parent else []
    process = subprocess.Popen(
        line,
        env=environment(folder, **more),
        pass_fds=[writing],
        stderr=stderr,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    with process, os.fdopen(reading) as announced:
        try:
            started = Command(process, announced)
            started.first = started.next()
            yield started
        finally:
            if process.poll() is None:
                process.kill()
