"""Requests: a body, unpacked within bounds while it arrives, and decoded in pieces.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Request".

In JSON the identifiers of traces and spans are hexadecimal, and unknown names are ignored ("JSON Protobuf Encoding").
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.json_format import ParseError as WrongShape
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from starlette.requests import Request

from tachograph.hub._protobuf import MORE, fields
from tachograph.identity.environment import clean

COMPRESSED_LIMIT = 16 * 2**20
LIMIT = 20 * 2**20  # as in the OpenTelemetry Collector: empty messages take thirty times as much once they are parsed
MOST_BYTES = 128 * 2**20
MOST_REQUESTS = 256
SECONDS = 30.0

_MIB = 2**20
_SLICE = 256 * 2**10  # bytes that are unpacked before others get their turn
_MOST_MEMBERS = 64  # gzip streams in one body: each costs a copy of the rest
PIECE = 64 * 2**10  # bytes: at worst a few milliseconds
# While protobuf decodes a message no other thread runs, so that no message may be large. The requests of all signals
# are nested in the same way: resources, scopes, items; a metric's points lie two levels deeper. Only lengths are read.
# By level, the numbers of the fields that hold the next level: opentelemetry/proto/{metrics,logs,trace}/v1.
_DATA = frozenset((5, 7, 9, 10, 11))  # of a metric: one of these fields holds its points
_ITEMS = (frozenset((1,)), frozenset((2,)), frozenset((2,)))
_POINTS = (*_ITEMS, _DATA, frozenset((1,)))
PROTOBUF, JSON = "application/x-protobuf", "application/json"
SENDER = "tachograph-hub"  # header: which hub passed a request on, so that it does not take it for news
JSON_LIMIT = 8 * 2**20  # bytes: as Python objects, JSON takes up to thirty times its size
MOST_WAITING = 64 * 2**20  # bytes of JSON that waits to be decoded
_AT_ONCE = 16 * 2**10  # bytes of JSON that take a few milliseconds
Kind = TypeVar("Kind", bound=Message)
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_DEPTH = 100  # as protobuf's own limit


class Refusal(Exception):  # noqa: N818 - an answer to the client, not a fault
    """The refusal of a request.

    Args:
        status: of the answer.
        why: one line for the client's log.
        retry_after: seconds after which it may be sent again; None where that makes no sense.
    """

    def __init__(self, status: HTTPStatus, why: str, *, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


class Intake:
    """Reads bodies, and bounds the memory of all requests under way together.

    Args:
        compressed_limit: bytes of one body as it is sent.
        limit: bytes of one body unpacked.
        most_bytes: bytes of all bodies under way, unpacked.
        most_requests: requests under way.
        seconds: that one body may take to arrive.
    """

    def __init__(
        self,
        *,
        compressed_limit: int = COMPRESSED_LIMIT,
        limit: int = LIMIT,
        most_bytes: int = MOST_BYTES,
        most_requests: int = MOST_REQUESTS,
        seconds: float = SECONDS,
    ) -> None:
        self._compressed_limit = compressed_limit
        self._limit = limit
        self._bytes_left = most_bytes
        self._requests_left = most_requests
        self._seconds = seconds

    async def read(self, request: Request, limit: int = LIMIT) -> bytes:
        """Return a request's body, unpacked.

        Args:
            request: its ``Content-Encoding`` may be gzip.
            limit: bytes unpacked, where fewer than usual are allowed.

        Raises:
            Refusal: 400 for invalid gzip, 408, 413, 415 for another encoding, 503 where too much is under way.
        """
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip or identity")
        if int(request.headers.get("content-length", 0)) > self._compressed_limit:
            raise _too_large(self._compressed_limit)
        if not self._requests_left:
            raise _busy()
        self._requests_left -= 1
        parts: list[bytes] = []
        unpack = _Gzip() if encoding.endswith("gzip") else None
        try:
            await asyncio.wait_for(self._fill(parts, request, unpack, min(limit, self._limit)), self._seconds)
        except TimeoutError:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the body took longer than {self._seconds:g} s") from None
        finally:
            self._requests_left += 1
            self._bytes_left += sum(map(len, parts))
        if unpack is not None and not unpack.complete:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the gzip body is truncated")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _fill(self, parts: list[bytes], request: Request, unpack: _Gzip | None, limit: int) -> None:
        sent = unpacked = 0
        async for chunk in request.stream():
            sent += len(chunk)
            if sent > self._compressed_limit:
                raise _too_large(self._compressed_limit)
            for part in (chunk,) if unpack is None else unpack(chunk):
                unpacked += len(part)
                if unpacked > limit:
                    raise _too_large(limit)
                if len(part) > self._bytes_left:
                    raise _busy()
                self._bytes_left -= len(part)
                parts.append(part)
                if unpacked > _SLICE:
                    await asyncio.sleep(0)


class _Gzip:
    """Unpacks a body while it arrives, in slices. RFC 1952: a file is one or more streams, one after another."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._members = 1
        self._begun = False

    @property
    def complete(self) -> bool:
        """True where the last stream has ended, and for an empty body."""
        return self._stream.eof or not self._begun

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            self._begun = True
            if self._stream.eof:
                self._members += 1
                self._stream = zlib.decompressobj(wbits=31)
            if self._members > _MOST_MEMBERS:
                raise Refusal(HTTPStatus.BAD_REQUEST, f"more than {_MOST_MEMBERS} gzip streams in one body")
            try:
                yield from self._member(data)
            except zlib.error as error:
                raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is not valid gzip: {error}") from None
            data = self._stream.unused_data

    def _member(self, data: bytes) -> Iterator[bytes]:
        full = True
        while data or full:
            part = self._stream.decompress(data, _SLICE)
            data = self._stream.unconsumed_tail
            full = len(part) == _SLICE  # more may wait in zlib
            if part:
                yield part
            if self._stream.eof:
                return


def _too_large(limit: int) -> Refusal:
    size = f"{limit // _MIB} MiB" if limit >= _MIB else f"{limit} bytes"
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {size}; send smaller batches")


def _busy() -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", retry_after=1)


def pieces(body: bytes, *, metrics: bool, size: int = PIECE) -> Iterator[bytes]:
    """Yield messages that, decoded one into the other, give the whole request.

    If a resource, a scope or a metric is split, each piece repeats its fields. Parts that cannot be split are one
    piece: a record that is larger, bytes that are no message, and a message that would grow by half.

    Args:
        body: a request in protobuf.
        metrics: it is one for metrics.
        size: bytes of a piece, without the repeated fields.
    """
    return _split(body, _POINTS if metrics else _ITEMS, size, 0)


def _split(message: bytes, levels: Sequence[frozenset[int]], size: int, anew: int) -> Iterator[bytes]:
    """Yield pieces of a message; ``anew`` is the number of bytes that are put before each of them."""
    found = _stretches(message, levels[0], size) if levels and len(message) > size else None
    # Of two fields with a metric's points only the last one counts.
    if found is None or (levels[0] is _DATA and (len(found[1]) != 1 or not found[1][0][1])):
        yield message
        return
    common, stretches = found
    anew += len(common)
    if anew * len(stretches) > len(message) // 2:
        yield message
        return
    for first, content, end in stretches:
        if not content:
            yield common + message[first:end]
            continue
        for piece in _split(message[content:end], levels[1:], size, anew):
            yield b"".join((common, message[first : first + 1], _varint(len(piece)), piece))


def _stretches(message: bytes, wanted: frozenset[int], size: int) -> tuple[bytes, list[tuple[int, int, int]]] | None:
    """Return the other fields of a message, and stretches of the wanted ones; None where it cannot be parsed.

    A stretch is three offsets: its beginning, the beginning of its field's content, and its end; the content of a
    stretch of several fields, or of a small one, is 0.
    """
    common, stretches = bytearray(), []
    first = last = 0  # of a stretch of small fields
    try:
        for number, begin, content, end in fields(message):
            if number in wanted and end - begin <= size and begin == last and end - first <= size:
                last = end
                continue
            if first < last:
                stretches.append((first, 0, last))
            first = last = end
            if number not in wanted:
                common += message[begin:end]
            elif end - begin > size:
                stretches.append((begin, content, end))
            else:
                first = begin
            if len(common) > size:  # too long to be repeated in each of several pieces
                return None
    except (ValueError, IndexError):
        return None
    if first < last:
        stretches.append((first, 0, last))
    return (bytes(common), stretches) if stretches else None


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= MORE:
        found.append(value & 0x7F | MORE)
        value >>= 7
    return bytes((*found, value))


class Decoder:
    """Decodes bodies on the event loop's thread, but large JSON on another one: 8 MiB of it take seconds.

    JSON is decoded in the order of its arrival, one body at a time: so its memory is bounded, and two requests of one
    sender never overtake each other.

    Args:
        most_waiting: bytes of JSON that may wait, those under decoding included.
        beside: decodes on the other thread; by default :func:`decode`.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING, beside: Callable[..., Any] | None = None) -> None:
        self._beside = beside or decode
        self._left = most_waiting
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def __call__(self, body: bytes, media_type: str, kind: type[Kind]) -> Kind:
        """Return a request: see :func:`decode`.

        Raises:
            ValueError: the body is no such request; the message says why in one line.
            Refusal: 503, too much waits already.
        """
        if media_type == PROTOBUF or (len(body) <= _AT_ONCE and not self._waiting):
            return decode(body, media_type, kind)
        if len(body) > self._left:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too much JSON is waiting to be decoded", retry_after=1)
        self._left -= len(body)
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(self._beside, body, media_type, kind)
        finally:
            self._left += len(body)
            self._waiting -= 1


def decode(body: bytes, media_type: str, kind: type[Kind]) -> Kind:
    """Return a request.

    Args:
        body: of the HTTP request, unpacked.
        media_type: :data:`PROTOBUF` or :data:`JSON`.
        kind: the class of the request.

    Raises:
        ValueError: the body is no such request; the message says why in one line.
    """
    try:
        return _from_protobuf(body, kind) if media_type == PROTOBUF else _from_json(body, kind)
    except DecodeError:
        raise ValueError(f"the body is not a protobuf {kind.DESCRIPTOR.name}") from None
    except RecursionError:
        raise ValueError("the body is nested too deep") from None
    # Exceptions that json_format lets pass; the last one is upb's for a name that is no UTF-8.
    except (WrongShape, ValueError, TypeError, AttributeError, KeyError, OverflowError, SystemError) as error:
        why = clean(str(error).strip())
        raise ValueError(f"the body is not a JSON {kind.DESCRIPTOR.name}: {why:.200}") from None


def encode(message: Message, media_type: str) -> bytes:
    """Return a message encoded in the client's media type."""
    return message.SerializeToString() if media_type == PROTOBUF else MessageToJson(message, indent=None).encode()


def _from_protobuf(body: bytes, kind: type[Kind]) -> Kind:
    """Return a request; other threads run between the pieces of a large one."""
    if len(body) <= PIECE:
        return kind.FromString(body)
    request = kind()
    for piece in pieces(body, metrics=kind is ExportMetricsServiceRequest):
        request.MergeFromString(piece)
    return request


def _from_json(body: bytes, kind: type[Kind]) -> Kind:
    found = json.loads(body, object_hook=_with_ids)
    if not isinstance(found, dict):  # ParseDict would take an empty list
        raise TypeError("it must be an object")
    return ParseDict(found, kind(), ignore_unknown_fields=True, max_recursion_depth=_DEPTH)


def _with_ids(found: dict[str, Any]) -> dict[str, Any]:
    for name in _IDS:
        value = found.get(name)
        if isinstance(value, str):
            found[name] = base64.b64encode(bytes.fromhex(value)).decode()
    return found
