"""The decoder of metric requests: a metric that differs from an earlier one in its numbers alone is not parsed again.

Everything else of it is compared byte by byte, so that whatever protobuf has found valid once is valid. All that has no
known layout goes to protobuf; a metric's layout is stored when one of its name and length comes a second time. This is
four times as fast as protobuf alone. Its entry is :func:`read_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tachograph.hub._request import PROTOBUF, decode
from tachograph.hub._series import HubSeries
from tachograph.hub._stream_decoder import StreamDecoder, summable
from tachograph.recording.own_metrics import Reason
from tachograph.runs.buckets import Buckets

_MOST_BODY = 2**20  # bytes of a request: our own clients send no more at once
_LONGER = 0x80  # the bit of a varint's byte that says that another one follows
_FIXED = {1: 8, 5: 4}  # bytes, by wire type
_VARINT, _LENGTH = 0, 2  # wire types
_MISSES = 8  # messages one after the other that differ from a layout before another one takes its place
_SPARE = 64  # keys of a process, beside four for each stream
_LONGEST = 64 * 2**10  # bytes of a metric whose layout is stored
_RESOURCE = 0x0A  # tag of ResourceMetrics in a request
_INNER = 0x12  # tag of ScopeMetrics in ResourceMetrics, and of Metric in these

# By the tag of a metric's data, for each tag of its points' numbers the code of :mod:`struct`; of bytes that nobody
# reads (minimum and maximum) they are left out. Then the tags of what stays the same. A point with anything else, such
# as exemplars, is always parsed. Source: opentelemetry/proto/metrics/v1/metrics.proto.
_START, _TIME, _AS_DOUBLE, _AS_INT = 0x11, 0x19, 0x21, 0x31
_COUNT, _SUM, _COUNTS = 0x21, 0x29, 0x32
_POINT, _UNREAD = 0x0A, "8x"
_OF_NUMBER = {_START: "Q", _TIME: "Q", _AS_DOUBLE: "d", _AS_INT: "q"}, frozenset((0x3A,))
_OF_HISTOGRAM = (
    {_START: "Q", _TIME: "Q", _COUNT: "Q", _SUM: "d", _COUNTS: "", 0x59: _UNREAD, 0x61: _UNREAD},
    frozenset((0x3A, 0x4A)),
)
_DATA: dict[int, tuple[Mapping[int, str], AbstractSet[int]]] = {
    0x2A: _OF_NUMBER,
    0x3A: _OF_NUMBER,
    0x4A: _OF_HISTOGRAM,
}

Numbers = tuple[Any, ...]
_Key = tuple[bytes, int]


class _Places(NamedTuple):
    """The places of a message's numbers among the values that :mod:`struct` makes of it.

    Constant bytes come before each number and at the end, and nothing else does.

    Attributes:
        form: of the message.
        points: how many.
        stride: values of each point.
        constant: places of a point's constant bytes.
        number: place of a point's number by its tag; of the first one of several.
        counts: how many a point of a histogram has.
    """

    form: str
    points: int
    stride: int
    constant: tuple[int, ...]
    number: dict[int, int]
    counts: int


def _places(message: bytes) -> _Places | None:
    """Return the places of a metric's numbers; None where it is to be parsed each time.

    Args:
        message: one that protobuf has parsed.
    """
    data = [(message[begin], content, end) for begin, content, end in _fields(message) if message[begin] in _DATA]
    if len(data) != 1:
        return None
    kind, start, end = data[0]
    inside = message[start:end]
    form = "<"
    at = 0
    points = 0
    order: list[tuple[int, str]] = []
    for begin, first, last in _fields(inside):
        if inside[begin] != _POINT:
            continue
        numbers = _numbers(inside[first:last], *_DATA[kind])
        tags = [(tag, code) for tag, code, _, _ in numbers]
        if not tags or (points and tags != order):
            return None
        for _, code, before, after in numbers:
            form += f"{start + first + before - at}s{code}"
            at = start + first + after
        order = tags
        points += 1
    if not points:
        return None
    number: dict[int, int] = {}
    constant: list[int] = []
    place = 0
    for tag, code in order:
        constant.append(place)
        number[tag] = place + 1
        place += 1 + (0 if code == _UNREAD else int(code[:-1] or 1))
    counts = next((int(code[:-1]) for tag, code in order if code.endswith("Q") and tag == _COUNTS), 0)
    return _Places(f"{form}{len(message) - at}s", points, place, tuple(constant), number, counts)


def _numbers(point: bytes, codes: Mapping[int, str], constant: AbstractSet[int]) -> list[tuple[int, str, int, int]]:
    """Return a point's numbers: tag, code, and offsets of beginning and end; none where anything is unusual.

    Args:
        point: the message.
        codes: of :mod:`struct`, by the tags of numbers; empty for several of eight bytes.
        constant: the other tags.
    """
    numbers = []
    for begin, content, end in _fields(point):
        tag = point[begin]
        if tag in codes:
            numbers.append((tag, codes[tag] or f"{(end - content) // 8}Q", content, end))
        elif tag not in constant:
            return []
    tags = {tag for tag, _, _, _ in numbers}
    values = tags & {_SUM} if _SUM in codes else tags & {_AS_DOUBLE, _AS_INT}
    has_count = _SUM not in codes or _COUNT in tags
    return numbers if len(tags) == len(numbers) and _TIME in tags and len(values) == 1 and has_count else []


@lru_cache(1024)
def _unpacker(form: str) -> Callable[[bytes], Numbers]:
    return Struct(form).unpack


@lru_cache(1024)
def _picker(points: int, stride: int, constant: tuple[int, ...]) -> Callable[[Numbers], Numbers]:
    """Return a getter of the constant parts of a message's values: those of each point, and the end."""
    return itemgetter(*(point * stride + place for point in range(points) for place in constant), points * stride)


class Layout:
    """A metric's message of which only the numbers change.

    Args:
        message: it.
        places: where its numbers are.
        stream: takes its points.
        series: that of each point.
        metric: the message, parsed.
        data: the name of the field that holds its points, all of which ``stream`` has taken.

    Attributes:
        name: of the metric.
        is_delta: its points are differences.
        missed: messages one after the other that had its name and length, and differed.
    """

    __slots__ = (
        "_alone",
        "_bounds",
        "_constant",
        "_count",
        "_counts",
        "_fixed",
        "_start",
        "_stride",
        "_time",
        "_unpack",
        "_value",
        "is_delta",
        "missed",
        "name",
        "series",
        "stream",
    )

    def __init__(
        self,
        message: bytes,
        places: _Places,
        stream: StreamDecoder,
        series: list[HubSeries],
        *,
        metric: Metric,
        data: str,
    ) -> None:
        self.name = metric.name
        self.stream = stream
        self.series = series
        of_data = getattr(metric, data)
        self.is_delta = data != "gauge" and of_data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        self._unpack = _unpacker(places.form)
        self._constant = _picker(places.points, places.stride, places.constant)
        values = self._unpack(message)
        self._fixed = self._constant(values)
        number = places.number
        self._stride = places.stride
        self._counts = places.counts if places.counts > 1 else 0
        self._start, self._time = number.get(_START, 0), number[_TIME]
        self._bounds: list[tuple[float, ...]] | None = None
        if data == "histogram":
            self._value, self._count = number[_SUM], number[_COUNTS if self._counts else _COUNT]
            once: dict[tuple[float, ...], tuple[float, ...]] = {}
            of_points = (tuple(point.explicit_bounds[:]) for point in of_data.data_points)
            self._bounds = [once.setdefault(each, each) for each in of_points]
        else:
            self._value = self._count = number.get(_AS_INT) or number[_AS_DOUBLE]
        self._alone = series[0] if len(series) == 1 and data != "histogram" else None
        self.missed = 0

    def numbers(self, message: bytes) -> Numbers | None:
        """Return the numbers of a message of the same length; None where more than they differs."""
        values = self._unpack(message)
        if self._constant(values) != self._fixed:
            return None
        self.missed = 0
        return values

    def points(self, numbers: Numbers) -> Iterable[tuple[HubSeries, int, int, Any]]:
        """Return of each point the series, the start and the time in nanoseconds, and the value or why there is none.

        The same as :meth:`tachograph.hub._stream_decoder.StreamDecoder.take` reads from the parsed message.
        """
        shape, first = self.stream.shape, self._start
        if self._alone is not None:  # most metrics have one series, and then slices cost more than all the rest
            value = numbers[self._value]
            value = value if shape == "gauge" else summable(value, shape)
            return ((self._alone, numbers[first] if first else 0, numbers[self._time], value),)
        stride = self._stride
        values: Iterable[Any] = numbers[self._value :: stride]
        if self._bounds is not None:
            values = self._buckets(numbers, values, self._bounds)
        elif shape != "gauge":
            values = [summable(value, shape) for value in values]
        starts = numbers[first::stride] if first else repeat(0)
        return zip(self.series, starts, numbers[self._time :: stride], values, strict=False)

    def _buckets(
        self, numbers: Numbers, totals: Iterable[float], bounds: Iterable[tuple[float, ...]]
    ) -> Iterator[Buckets | Reason]:
        at, many = self._count, self._counts
        for total, of_point in zip(totals, bounds, strict=True):
            if total - total:
                yield "nonfinite"
            elif many:
                counts = numbers[at : at + many]
                yield Buckets(sum(counts), total, counts, of_point)
            else:
                yield Buckets(numbers[at], total, (), ())
            at += self._stride


class Layouts:
    """The layouts of a process's metrics, by scope: a few for each of its streams."""

    __slots__ = ("_by_scope", "_keys")

    def __init__(self) -> None:
        self._by_scope: dict[str, dict[_Key, Layout | None]] = {}
        self._keys = 0

    def of(self, scope: str) -> dict[_Key, Layout | None]:
        """Return those of a scope, by name and length; None for each that came once."""
        return self._by_scope.get(scope, {})

    def learn(
        self, scope: str, message: bytes, metric: Metric, data: str, stream: StreamDecoder, *, streams: int
    ) -> None:
        """Store the layout of a message that was parsed, if one of its name and length comes for the second time.

        Args:
            scope: its scope's name.
            message: it.
            metric: the same, parsed.
            data: the name of the field that holds its points, all of which were taken.
            stream: has taken them.
            streams: how many the process has.
        """
        layouts = self._by_scope.setdefault(scope, {})
        key = _key(message)
        before = layouts.get(key)
        if before is not None:
            before.missed += 1
            if before.missed < _MISSES:
                return
        elif key not in layouts:
            if self._keys >= 4 * streams + _SPARE:  # its messages change their lengths all the time
                self._by_scope = {}
                self._keys = 0
            else:
                layouts[key] = None
                self._keys += 1
            return
        places = _places(message) if len(message) <= _LONGEST else None
        series = None if places is None else stream.known(getattr(metric, data))
        if places is None or series is None:
            layouts[key] = None
        else:
            layouts[key] = Layout(message, places, stream, series, metric=metric, data=data)


# A metric of a request: its message (empty where the whole request was parsed), the layout that this has, and its
# numbers; no layout, and the parsed message.
Sent = tuple[bytes, Layout | None, Any]


def parsed(sent: Sent) -> Metric:
    """Return a metric of a request, parsed."""
    message, layout, content = sent
    return content if layout is None else Metric.FromString(message)


class SentResource(NamedTuple):
    """The metrics of one resource in a request.

    Attributes:
        resource: it.
        layouts: those by which the metrics were read; None where the sender is new.
        scopes: the name and the metrics of each scope.
    """

    resource: Resource
    layouts: Layouts | None
    scopes: Iterable[tuple[str, Iterable[Sent]]]


def decoded(resource: ResourceMetrics) -> SentResource:
    """Return the metrics of a resource that was parsed as a whole."""
    scopes = ((each.scope.name, ((b"", None, metric) for metric in each.metrics)) for each in resource.scope_metrics)
    return SentResource(resource.resource, None, scopes)


def read_metrics(body: bytes, layouts_of: Callable[[Resource], Layouts | None]) -> list[SentResource]:
    """Return the metrics of a request.

    Args:
        body: an ``ExportMetricsServiceRequest``.
        layouts_of: returns the layouts of a known sender.

    Raises:
        Refusal: it is no such request.
    """
    if len(body) <= _MOST_BODY:
        with suppress(ValueError, IndexError, DecodeError):
            others, resources = _split(body, _RESOURCE)
            if not others:
                return [_read_resource(message, layouts_of) for message in resources]
    return [decoded(resource) for resource in decode(body, PROTOBUF, ExportMetricsServiceRequest).resource_metrics]


def _read_resource(message: bytes, layouts_of: Callable[[Resource], Layouts | None]) -> SentResource:
    others, scopes = _split(message, _INNER)
    resource = ResourceMetrics.FromString(others).resource
    layouts = layouts_of(resource)
    return SentResource(resource, layouts, [_read_scope(scope, layouts) for scope in scopes])


def _read_scope(message: bytes, layouts: Layouts | None) -> tuple[str, list[Sent]]:
    others, metrics = _split(message, _INNER)
    name = ScopeMetrics.FromString(others).scope.name
    known = {} if layouts is None else layouts.of(name)
    sent: list[Sent] = []
    for metric in metrics:
        layout = known.get(_key(metric))
        numbers = None if layout is None else layout.numbers(metric)
        if numbers is None:
            sent.append((metric, None, Metric.FromString(metric)))
        else:
            sent.append((metric, layout, numbers))
    return name, sent


def _key(message: bytes) -> _Key:
    """Return a key that tells layouts apart: mostly the name, which comes first, and the length."""
    return message[: message[1] + 2], len(message)


def _fields(message: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message: the offsets of field, content and end. Source: "Protocol Buffers: Encoding".

    Raises:
        ValueError, IndexError: it cannot be parsed, or has fields that OTLP has not.
    """
    at, size = 0, len(message)
    while at < size:
        begin = at
        tag = message[at]
        at += 1
        kind = tag & 7
        if tag >= _LONGER or (kind not in _FIXED and kind not in (_VARINT, _LENGTH)):
            raise ValueError(tag)
        length = _FIXED.get(kind, 0)
        if not length:
            length = message[at]
            at += 1
            if length >= _LONGER:
                length, at = _long_varint(message, at)
        content = at
        at += length if kind != _VARINT else 0
        if at > size:
            raise ValueError(at)
        yield begin, content, at


def _split(message: bytes, tag: int) -> tuple[bytes, list[bytes]]:
    """Return the messages in a field, and all other fields together.

    Args:
        message: the one around them.
        tag: the tag of the field, of one byte.

    Raises:
        ValueError, IndexError: as :func:`_fields`.
    """
    at, size = 0, len(message)
    messages: list[bytes] = []
    others: list[bytes] = []
    while at < size:
        if message[at] == tag:
            length, content = message[at + 1], at + 2
            if length >= _LONGER:
                length, content = _long_varint(message, content)
            at = content + length
            if at > size:
                raise ValueError(at)
            messages.append(message[content:at])
        else:  # few: one after the other, they cost nothing
            _, _, end = next(_fields(message[at:]))
            others.append(message[at : at + end])
            at += end
    return b"".join(others), messages


def _long_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint of which one byte has been read, and the offset of its end."""
    value = message[at - 1] & ~_LONGER
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & ~_LONGER) << shift
        if byte < _LONGER:
            return value, at
    raise ValueError(at)
