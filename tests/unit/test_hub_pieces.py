"""Large bodies are decoded in pieces: they say the same, and no piece is large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from examples import examples
from hub_requests import START, histogram, logs, metrics, number, only, rank, shown
from hubs import PROTOBUF, ask, serving
from tachograph.hub._request import PIECE, decode, pieces

KINDS = (ExportMetricsServiceRequest, ExportLogsServiceRequest, ExportTraceServiceRequest)
DATA = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


@st.composite
def requests(draw: st.DrawFn) -> tuple[type[Message], bytes]:
    """Return a kind of request, and one in protobuf: some resources with some scopes, items and points."""
    count, text = st.integers(0, 3), st.text(max_size=20)
    kind = draw(st.sampled_from(KINDS))
    request: Any = kind()
    resources, scopes, items = fields_of(kind)
    for _ in range(draw(count)):
        resource = getattr(request, resources).add(schema_url=draw(text))
        resource.resource.attributes.add(key=draw(text)).value.string_value = draw(text)
        for _ in range(draw(count)):
            scope = getattr(resource, scopes).add()
            scope.scope.name = draw(text)
            for _ in range(draw(count)):
                fill(draw, getattr(scope, items).add())
    return kind, request.SerializeToString()


def fill(draw: st.DrawFn, item: Any) -> None:
    """Give a metric some points, a log record a body and a span a name, and what else they hold."""
    if not isinstance(item, Metric):
        setattr(item, "severity_text" if hasattr(item, "severity_text") else "name", draw(st.text(max_size=40)))
        item.trace_id = draw(st.binary(max_size=16))
        if hasattr(item, "body"):
            item.body.string_value = draw(st.text(max_size=40))
        item.attributes.add(key="key").value.string_value = draw(st.text(max_size=40))
        return
    item.name, item.unit = draw(st.text(max_size=20)), draw(st.text(max_size=2))
    data = getattr(item, draw(st.sampled_from(DATA)))
    data.SetInParent()
    if hasattr(data, "aggregation_temporality"):
        data.aggregation_temporality = draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 4))):
        point = data.data_points.add(time_unix_nano=draw(st.integers(0, 2**64 - 1)))
        point.attributes.add(key="key").value.int_value = draw(st.integers(0, 9))


def fields_of(kind: type[Message]) -> tuple[str, str, str]:
    """Return what a request of a kind calls its resources, their scopes and the items of those."""
    (resources,) = kind.DESCRIPTOR.fields
    scopes = resources.message_type.fields_by_number[2]
    return resources.name, scopes.name, scopes.message_type.fields_by_number[2].name


def said(request: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the items of a request, of metrics the points, each with all that it belongs to."""
    resources, scopes, items = fields_of(type(request))
    for resource in getattr(request, resources):
        for scope in getattr(resource, scopes):
            whose = resource.schema_url, bytes_of(resource.resource), scope.schema_url, bytes_of(scope.scope)
            for item in getattr(scope, items):
                data = item.WhichOneof("data") if isinstance(item, Metric) else None
                points = [bytes_of(point) for point in getattr(item, data).data_points] if data else []
                if data:
                    del getattr(item, data).data_points[:]
                yield from ((*whose, bytes_of(item), point) for point in points or [b""])


def bytes_of(message: Message) -> bytes:
    """Return a message as bytes that are the same for the same message."""
    return message.SerializeToString(deterministic=True)


def together(body: bytes, kind: type[Message], size: int) -> Message:
    """Return what the pieces of a body say."""
    request = kind()
    for piece in pieces(body, metrics=kind is ExportMetricsServiceRequest, size=size):
        request.MergeFromString(piece)
    return request


@settings(max_examples=examples(150))
@given(request=requests(), size=st.integers(2, 200))
def test_pieces_say_what_the_body_says(request: tuple[type[Message], bytes], size: int) -> None:
    """Each item and point is there once and in its order, with its resource, scope and metric, in every kind."""
    kind, body = request
    assert [*said(together(body, kind, size))] == [*said(kind.FromString(body))]


@settings(max_examples=examples(400))
@given(
    request=requests(),
    size=st.integers(2, 200),
    changes=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=3), st.integers(0, 3)), max_size=4),
)
def test_broken_bodies_stay_as_they_are(
    request: tuple[type[Message], bytes], size: int, changes: list[tuple[int, bytes, int]]
) -> None:
    """Whatever is changed in a body, its pieces are refused where it is, and say the same where it is not."""
    kind, body = request
    for place, new, gone in changes:
        body = body[:place] + new + body[place + gone :]
    try:
        expected = kind.FromString(body)
    except DecodeError:
        with pytest.raises(DecodeError):
            together(body, kind, size)
    else:
        assert [*said(together(body, kind, size))] == [*said(expected)]


def test_no_piece_is_large() -> None:
    """Many resources, metrics, points and records are in pieces of 64 KiB and what each says anew."""
    many = ExportMetricsServiceRequest()
    for place in range(5000):
        many.MergeFrom(metrics(rank(place), number("a", 1.0)))
    wide = metrics(rank(0), *(number(f"n{place}", 1.0) for place in range(5000)))
    deep = metrics(rank(0), histogram("a", [1, 2, 3]))
    deep.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points.extend(
        histogram("a", [1, 2, 3]).histogram.data_points[0] for _ in range(5000)
    )
    records = logs(rank(0), *[("event", {"text": "x" * 50})] * 5000)
    for request in (many, wide, deep, records):
        body = request.SerializeToString()
        found = [len(piece) for piece in pieces(body, metrics=request is not records)]
        assert max(found) < PIECE + 1000
        assert len(found) < 2 * len(body) // PIECE + 2
        assert [*said(decode(body, PROTOBUF, type(request)))] == [*said(request)]


def test_what_cannot_be_split_is_one_piece() -> None:
    """A record of a megabyte, and metrics of a resource that is too large to be said again and again."""
    record = logs(rank(0), ("event", {"text": "x" * 2**20})).SerializeToString()
    assert [*pieces(record, metrics=False)] == [record]
    large = metrics(rank(0, text="x" * PIECE), *(number(f"n{place}", 1.0) for place in range(5000)))
    body = large.SerializeToString()
    assert [*pieces(body, metrics=True)] == [body]


def test_of_two_kinds_of_points_the_last_one_counts() -> None:
    """A metric that is sent as a gauge and then as a sum is a sum, as protobuf has it, and so it stays."""
    gauge, total = number("m", 1.0), number("m", 1, kind="counter")
    for metric in (gauge, total):
        data = metric.gauge if metric is gauge else metric.sum
        data.data_points.extend([data.data_points[0]] * 20)
    both = gauge.SerializeToString() + total.SerializeToString()
    body = both
    for tag in (b"\x12", b"\x12", b"\x0a"):  # of a metric, of a scope, of a resource
        body = tag + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body
    for size in (50, 100, 1000):
        found = together(body, ExportMetricsServiceRequest, size)
        assert [*said(found)] == [*said(ExportMetricsServiceRequest.FromString(body))]


def test_tiny_parts_take_no_memory() -> None:
    """Where each part has two bytes, of which there are half a million, a piece is made at a time."""
    body = b"\n\0" * 500_000
    found = pieces(body, metrics=True)
    assert next(found) == body[:PIECE]
    assert sum(map(len, found)) == len(body) - PIECE


def test_pieces_are_not_much_longer_than_the_body() -> None:
    """What would have to be said in front of many small pieces does not make them many times as long."""
    own, other = b"\x12\0", b"\x7a\0"  # an empty scope, and a field that is not known
    for others in (own + other, own * 100 + other, own * 10_000 + other * 10):
        resource = others * (200_000 // len(others))
        length = bytes(((len(resource) >> 7 * place) & 0x7F | 0x80 * (place < 2)) for place in range(3))
        body = (b"\x0a" + length + resource + other * 100) * 2
        assert sum(map(len, pieces(body, metrics=True))) <= 2 * len(body)
        together(body, ExportMetricsServiceRequest, PIECE)


@pytest.mark.process
def test_a_large_body_arrives(tmp_path: Path) -> None:
    """Of a body of many pieces the hub takes every point once, deltas and all attributes included."""
    sent = metrics(rank(0), number("level", 1.0), number("sent", 1, kind="counter", delta=True, start=START - 1))
    level, total = sent.resource_metrics[0].scope_metrics[0].metrics
    for place in range(1, 4_000):
        point = level.gauge.data_points.add(time_unix_nano=START, as_double=place)
        point.attributes.add(key="place").value.int_value = place
        end = START + place
        total.sum.data_points.add(start_time_unix_nano=end - 1, time_unix_nano=end, as_int=1)
    body = sent.SerializeToString()
    assert len(body) > 3 * PIECE
    with serving(tmp_path) as hub:
        answer = ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF)
        assert (answer.status, answer.body) == (200, b"")
        page = ask(hub.url, "/metrics").body
        assert sorted(shown(page, "level").values()) == [1, *range(1, 4_000)]
        assert only(page, "sent_total") == 4_000
