"""OTLP requests: limits of their bodies, and their two encodings.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Request". In JSON the identifiers of traces and spans are
hexadecimal, and unknown names are ignored ("JSON Protobuf Encoding").
"""

from __future__ import annotations

import base64
import json
import zlib
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.json_format import ParseError as WrongShape
from google.protobuf.message import DecodeError, Message

from tachograph.identity.environment import clean

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SENDER = "tachograph-hub"  # header: which hub passed a request on, so that it does not store its own data again

_MIB = 2**20
_MOST_STREAMS = 64  # of gzip in one body: each costs a copy of the rest
_DEPTH = 100  # as protobuf's own limit
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
Kind = TypeVar("Kind", bound=Message)


class RequestLimits(NamedTuple):
    """The limits of requests, in bytes.

    Attributes:
        sent: of one body as it is sent.
        protobuf: of one body unpacked, as in the OpenTelemetry Collector; empty messages take thirty times as much
            once they are decoded. A body of this size takes a tenth of a second to decode, in which no other thread
            runs; half a second if it consists of empty messages.
        json: the same of JSON, which takes up to thirty times its size as Python objects.
        under_way: of all bodies together, as they are sent, from their arrival until they are stored.
        seconds: that one body may take to arrive.
    """

    sent: int = 16 * _MIB
    protobuf: int = 20 * _MIB
    json: int = 8 * _MIB
    under_way: int = 128 * _MIB
    seconds: float = 30.0


class Refusal(Exception):  # noqa: N818 - an answer to the client, not a fault
    """The refusal of a request.

    Args:
        status: of the answer.
        why: one line for the client's log.
        retry_after: seconds after which it may be sent again; None if that makes no sense.
    """

    def __init__(self, status: HTTPStatus, why: str, *, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


def too_large(limit: int) -> Refusal:
    """Return the refusal of a body of more than ``limit`` bytes."""
    size = f"{limit // _MIB} MiB" if limit >= _MIB else f"{limit} bytes"
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {size}; send smaller batches")


def unpack_gzip(body: bytes, limit: int) -> bytes:
    """Return a body unpacked. RFC 1952: it is one or more streams, one after another.

    Raises:
        Refusal: 400 for invalid gzip, 413 for more than ``limit`` bytes.
    """
    parts: list[bytes] = []
    left = limit
    while body:
        if len(parts) == _MOST_STREAMS:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"more than {_MOST_STREAMS} gzip streams in one body")
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(body, left + 1)
        except zlib.error as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is not valid gzip: {error}") from None
        left -= len(part)
        if left < 0:
            raise too_large(limit)
        if not stream.eof:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the gzip body is truncated")
        parts.append(part)
        body = stream.unused_data
    return b"".join(parts)


def decode(body: bytes, media_type: str, kind: type[Kind]) -> Kind:
    """Return a request.

    Args:
        body: of the HTTP request, unpacked.
        media_type: :data:`PROTOBUF` or :data:`JSON`.
        kind: the class of the request.

    Raises:
        Refusal: the body is no such request; the message says why in one line.
    """
    try:
        return kind.FromString(body) if media_type == PROTOBUF else _from_json(body, kind)
    except DecodeError:
        why = f"the body is not a protobuf {kind.DESCRIPTOR.name}"
    except RecursionError:
        why = "the body is nested too deep"
    # Exceptions that json_format lets pass; the last one is upb's for a name that is no UTF-8.
    except (WrongShape, ValueError, TypeError, AttributeError, KeyError, OverflowError, SystemError) as error:
        why = f"the body is not a JSON {kind.DESCRIPTOR.name}: {clean(str(error).strip()):.200}"
    raise Refusal(HTTPStatus.BAD_REQUEST, why)


def encode(message: Message, media_type: str) -> bytes:
    """Return a message encoded in the client's media type."""
    return message.SerializeToString() if media_type == PROTOBUF else MessageToJson(message, indent=None).encode()


def _from_json(body: bytes, kind: type[Kind]) -> Kind:
    content = json.loads(body, object_hook=_with_ids)
    if not isinstance(content, dict):  # ParseDict would accept an empty list
        raise TypeError("it must be an object")
    return ParseDict(content, kind(), ignore_unknown_fields=True, max_recursion_depth=_DEPTH)


def _with_ids(fields: dict[str, Any]) -> dict[str, Any]:
    for name in _IDS:
        value = fields.get(name)
        if isinstance(value, str):
            fields[name] = base64.b64encode(bytes.fromhex(value)).decode()
    return fields
