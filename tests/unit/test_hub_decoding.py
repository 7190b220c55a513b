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
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from hubs import JSON, PROTOBUF, Answer, Serving, ask, points, request, serving
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.hub._request import JSON_LIMIT, Decoder, Refusal, decode

LARGE = 20_000  # bytes


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Serving]:
    """Return a running hub."""
    with serving(tmp_path) as found:
        yield found


class Held:
    """Decoding beside the event loop that takes, for large JSON, until it is let go."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.let_go = self._done.set

    def __call__(self, body: bytes, media_type: str, kind: Any) -> Any:
        """Decode a body."""
        if len(body) > LARGE:
            assert self._done.wait(20)
        return decode(body, media_type, kind)


@pytest.fixture
def held() -> Iterator[Held]:
    """Yield such a decoding, which ends with the test."""
    found = Held()
    yield found
    found.let_go()


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
    with serving(tmp_path, decoder=Decoder(beside=held)) as hub:
        large = Posting(hub, as_json(*range(500)))
        time.sleep(0.2)
        small = Posting(hub, as_json(1.0))
        time.sleep(0.2)
        sent = request(1.0, 2.0, rank=1).SerializeToString()
        assert ask(hub.url, "/v1/metrics", sent, content_type=PROTOBUF).status == 200
        assert points(hub.url) == 2
        assert not large.answers
        assert not small.answers
        held.let_go()
        for each in (large, small):
            each.join(20)
            assert [answer.status for answer in each.answers] == [200]
        assert points(hub.url) == 503


def test_json_is_taken_in_its_order(held: Held) -> None:
    """Of what is sent while JSON is decoded nothing overtakes, however small it is."""
    order: list[int] = []

    async def take(decoder: Decoder, place: int, body: bytes) -> None:
        await decoder(body, JSON, ExportMetricsServiceRequest)
        order.append(place)

    async def all_at_once() -> None:
        decoder = Decoder(beside=held)
        bodies = [as_json(*range(500)), as_json(1.0), as_json(*range(400)), as_json(2.0)]
        taken = [asyncio.create_task(take(decoder, place, body)) for place, body in enumerate(bodies)]
        await asyncio.sleep(0.05)
        assert order == []
        held.let_go()
        await asyncio.gather(*taken)
        await take(decoder, 4, as_json(3.0))

    asyncio.run(all_at_once())
    assert order == [0, 1, 2, 3, 4]


def test_what_waits_is_bounded(held: Held) -> None:
    """Beyond so many bytes JSON is to come later; what was refused or no request leaves room for others."""
    body = as_json(*range(500))

    async def refused(decoder: Decoder) -> int | None:
        with pytest.raises(Refusal) as refusal:
            await decoder(body, JSON, ExportMetricsServiceRequest)
        assert refusal.value.status == 503
        return refusal.value.retry_after

    async def too_much() -> None:
        decoder = Decoder(most_waiting=2 * len(body), beside=held)
        waiting = [asyncio.create_task(decoder(body, JSON, ExportMetricsServiceRequest)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await refused(decoder) == 1
        held.let_go()
        await asyncio.gather(*waiting)
        for _ in range(4):
            with pytest.raises(ValueError, match="not a JSON ExportMetricsServiceRequest"):
                await decoder(b"[" + body, JSON, ExportMetricsServiceRequest)
        await decoder(body, JSON, ExportMetricsServiceRequest)

    asyncio.run(too_much())


@pytest.mark.timing
@pytest.mark.process
def test_the_largest_json_holds_nobody_up(hub: Serving) -> None:
    """While 8 MiB of JSON are decoded, which takes seconds, others are answered."""
    attribute = {"key": "k", "value": {"stringValue": "v"}}
    point = json.dumps({"timeUnixNano": "1", "asDouble": 1.5, "attributes": [attribute] * 3})
    head, tail = '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[', "]}}]}]}]}"
    body = f"{head}{','.join([point] * (JSON_LIMIT // (len(point) + 1) - 1))}{tail}".encode()
    assert JSON_LIMIT - 500 < len(body) <= JSON_LIMIT
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
