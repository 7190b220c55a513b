"""A body as an OTLP request, from protobuf or JSON. Source: OpenTelemetry protocol specification, "OTLP/HTTP Request".

In JSON the identifiers of traces and spans are hexadecimal, and names that are not known are ignored ("JSON Protobuf
Encoding").
"""

from __future__ import annotations

import asyncio
import base64
import json
from http import HTTPStatus
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.json_format import ParseError as WrongShape
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph.hub._body import Refusal
from tachograph.hub._pieces import PIECE, pieces
from tachograph.identity.environment import clean

PROTOBUF, JSON = "application/x-protobuf", "application/json"
JSON_LIMIT = 8 * 2**20  # bytes: as Python objects, JSON takes up to thirty times its size
MOST_WAITING = 64 * 2**20  # bytes of JSON that waits to be decoded
_AT_ONCE = 16 * 2**10  # bytes of JSON that take a few milliseconds

Request = TypeVar("Request", bound=Message)

_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_DEPTH = 100  # as protobuf's own limit


class Decoder:
    """Decodes bodies on the event loop's thread, and lets nobody wait for large JSON: of that 8 MiB take seconds.

    JSON is decoded in the order in which it came, one body at a time: what one takes in memory is bounded, and two
    requests of one sender never overtake each other.

    Args:
        most_waiting: bytes of JSON that may wait, what is being decoded included.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._left = most_waiting
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def __call__(self, body: bytes, media_type: str, kind: type[Request]) -> Request:
        """Return a request: see :func:`decode`.

        Raises:
            ValueError: it is none; the message says why in one line.
            Refusal: 503, too much waits already.
        """
        if media_type == PROTOBUF or (len(body) <= _AT_ONCE and not self._waiting):
            return decode(body, media_type, kind)
        if len(body) > self._left:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too much JSON waits to be decoded", retry_after=1)
        self._left -= len(body)
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(decode, body, media_type, kind)
        finally:
            self._left += len(body)
            self._waiting -= 1


def decode(body: bytes, media_type: str, kind: type[Request]) -> Request:
    """Return a request.

    Args:
        body: what was sent, unpacked.
        media_type: :data:`PROTOBUF` or :data:`JSON`.
        kind: the class of the request.

    Raises:
        ValueError: it is none; the message says why in one line.
    """
    try:
        return _from_protobuf(body, kind) if media_type == PROTOBUF else _from_json(body, kind)
    except DecodeError:
        raise ValueError(f"the body is no {kind.DESCRIPTOR.name} in protobuf") from None
    except RecursionError:
        raise ValueError("the body is nested too deep") from None
    # json_format lets all of these pass; the last one is upb's for a name that is no UTF-8.
    except (WrongShape, ValueError, TypeError, AttributeError, KeyError, OverflowError, SystemError) as error:
        why = clean(str(error).strip())
        raise ValueError(f"the body is no {kind.DESCRIPTOR.name} in JSON: {why:.200}") from None


def encode(message: Message, media_type: str) -> bytes:
    """Return a message in the form in which the client spoke."""
    return message.SerializeToString() if media_type == PROTOBUF else MessageToJson(message, indent=None).encode()


def _from_protobuf(body: bytes, kind: type[Request]) -> Request:
    """Return a request; other threads run between the pieces of a large one."""
    if len(body) <= PIECE:
        return kind.FromString(body)
    request = kind()
    for piece in pieces(body, metrics=kind is ExportMetricsServiceRequest):
        request.MergeFromString(piece)
    return request


def _from_json(body: bytes, kind: type[Request]) -> Request:
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
