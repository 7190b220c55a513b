"""Decoding: large JSON takes seconds, and nobody but its sender waits for it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from hubs import JSON, PROTOBUF, Answer, Serving, ask, points, request, serving
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.hub import _receiver
from tachograph.hub._receiver import Receiver
from tachograph.hub._request import RequestLimits, decode
from tachograph.hub.hub import Hub

LARGE = 20_000  # bytes


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Serving]:
    """Return a running hub."""
    with serving(tmp_path) as found:
        yield found


class Held:
    """Decoding that takes, for large JSON, until it is released."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.release = self._done.set

    def __call__(self, body: bytes, media_type: str, kind: Any) -> Any:
        """Decode a body."""
        if media_type == JSON and len(body) > LARGE:
            assert self._done.wait(20)
        return decode(body, media_type, kind)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Hold the decoding of large JSON, at most until the end of the test."""
    found = Held()
    monkeypatch.setattr(_receiver, "decode", found)
    yield found
    found.release()


def as_json(*values: float) -> bytes:
    """Return a request as JSON."""
    return JsonText(lambda: None).line(request(*values))


class Posting(threading.Thread):
    """Posts JSON in a thread of its own."""

    def __init__(self, hub: Serving, body: bytes) -> None:
        super().__init__()
        self._hub = hub
        self._body = body
        self.answers: list[Answer] = []
        self.start()

    def run(self) -> None:
        """Post it, and keep the answer."""
        self.answers.append(ask(self._hub.url, "/v1/metrics", self._body, content_type=JSON))


@pytest.mark.process
def test_nobody_waits_for_large_json(tmp_path: Path, held: Held) -> None:
    """While it is decoded the hub answers others, and takes what ranks send; other JSON comes after it."""
    with serving(tmp_path) as hub:
        large = Posting(hub, as_json(*range(500)))
        time.sleep(0.2)
        small = Posting(hub, as_json(1.0))
        time.sleep(0.2)
        sent = request(1.0, 2.0, rank=1).SerializeToString()
        assert ask(hub.url, "/v1/metrics", sent, content_type=PROTOBUF).status == 200
        assert points(hub.url) == 2
        assert not large.answers
        assert not small.answers
        held.release()
        for each in (large, small):
            each.join(20)
            assert [answer.status for answer in each.answers] == [200]
        assert points(hub.url) == 503


class Receiving:
    """A receiver without a network: a request is begun as soon as it is posted, in the order of the calls.

    Attributes:
        taken: the values of the first points of all requests, in the order in which the hub took them.
    """

    def __init__(self, folder: Path, limits: RequestLimits | None = None) -> None:
        self._hub = Hub(folder)
        self.taken: list[float] = []
        receive = self._hub.receive_metrics

        def take(sent: Any, *, own: bool = False) -> Any:
            if not isinstance(sent, list):
                self.taken.append(sent.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].as_double)
            return receive(sent, own=own)

        self._hub.receive_metrics = take  # type: ignore[method-assign]
        self._receiver = Receiver(self._hub, limits=limits)
        self._app = Starlette(routes=list(self._receiver.routes()))

    def post(self, body: bytes) -> asyncio.Task[tuple[int, dict[bytes, bytes]]]:
        """Post JSON; the task returns the status and the headers of the answer."""
        return asyncio.create_task(self._post(body))

    async def _post(self, body: bytes) -> tuple[int, dict[bytes, bytes]]:
        started: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            started.append(message)

        headers = [(b"content-type", JSON.encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/metrics", "headers": headers, "query_string": b""}
        await self._app(scope, receive, send)
        return started[0]["status"], dict(started[0]["headers"])

    def close(self) -> None:
        """End the threads, and close the store."""
        self._receiver.close()
        self._hub.close()


def test_json_is_taken_in_its_order(tmp_path: Path, held: Held) -> None:
    """Nothing that is sent while JSON is decoded overtakes it, however small it is."""
    receiving = Receiving(tmp_path)

    async def all_at_once() -> None:
        bodies = [as_json(0.0, *range(500)), as_json(1.0), as_json(2.0, *range(400)), as_json(3.0)]
        posted = [receiving.post(body) for body in bodies]
        await asyncio.sleep(0.05)
        assert receiving.taken == []
        held.release()
        assert [status for status, _ in await asyncio.gather(*posted)] == [200] * 4
        await receiving.post(as_json(4.0))

    asyncio.run(all_at_once())
    receiving.close()
    assert receiving.taken == [0, 1, 2, 3, 4]


def test_what_waits_is_bounded(tmp_path: Path, held: Held) -> None:
    """Beyond so many bytes JSON is to come later; what was refused or no request leaves room for others."""
    body = as_json(*range(500))
    receiving = Receiving(tmp_path, RequestLimits(under_way=2 * len(body) + 1))

    async def too_much() -> None:
        waiting = [receiving.post(body) for _ in range(2)]
        await asyncio.sleep(0.05)
        status, headers = await receiving.post(body)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        held.release()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 2
        for _ in range(4):
            assert (await receiving.post(b"[" + body))[0] == 400
        assert (await receiving.post(body))[0] == 200

    asyncio.run(too_much())
    receiving.close()


@pytest.mark.timing
@pytest.mark.process
def test_the_largest_json_holds_nobody_up(hub: Serving) -> None:
    """While 8 MiB of JSON are decoded, which takes seconds, others are answered."""
    attribute = {"key": "k", "value": {"stringValue": "v"}}
    point = json.dumps({"timeUnixNano": "1", "asDouble": 1.5, "attributes": [attribute] * 3})
    head, tail = '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[', "]}}]}]}]}"
    body = f"{head}{','.join([point] * (RequestLimits().json // (len(point) + 1) - 1))}{tail}".encode()
    assert RequestLimits().json - 500 < len(body) <= RequestLimits().json
    began = time.monotonic()
    large = Posting(hub, body)
    slowest = 0.0
    while not large.answers:
        asked = time.monotonic()
        assert ask(hub.url, "/v1/metrics", request(1.0).SerializeToString(), content_type=PROTOBUF).status == 200
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.05)
    assert [answer.status for answer in large.answers] == [200]
    assert slowest < (time.monotonic() - began) / 3
