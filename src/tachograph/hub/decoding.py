"""A body as an OTLP request, from protobuf or JSON. Source: OpenTelemetry protocol specification, "OTLP/HTTP Request".

In JSON the identifiers of traces and spans are hexadecimal, and names that are not known are ignored ("JSON Protobuf
Encoding").
"""

from __future__ import annotations

import base64
import json
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.json_format import ParseError as WrongShape
from google.protobuf.message import DecodeError, Message

PROTOBUF, JSON = "application/x-protobuf", "application/json"
JSON_LIMIT = 8 * 2**20  # bytes: as Python objects, JSON takes up to thirty times its size

Request = TypeVar("Request", bound=Message)

_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_DEPTH = 100  # as protobuf's own limit


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
        return kind.FromString(body) if media_type == PROTOBUF else _from_json(body, kind)
    except DecodeError:
        raise ValueError(f"the body is no {kind.DESCRIPTOR.name} in protobuf") from None
    except RecursionError:
        raise ValueError("the body is nested too deep") from None
    except (WrongShape, ValueError, TypeError, AttributeError, KeyError) as error:  # json_format lets all of these pass
        raise ValueError(f"the body is no {kind.DESCRIPTOR.name} in JSON: {str(error).strip():.200}") from None


def encode(message: Message, media_type: str) -> bytes:
    """Return a message in the form in which the client spoke."""
    return message.SerializeToString() if media_type == PROTOBUF else MessageToJson(message, indent=None).encode()


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
