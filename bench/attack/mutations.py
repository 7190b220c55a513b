"""Changes that make a valid body an invalid one: to its bytes, to its JSON, to its gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from hostile import plain

_LONGEST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^64 - 1 as a varint
_DEEPEST = 3000
_BOMB = zlib.compress(bytes(24 * 2**20), 9, wbits=31)  # more than a hub unpacks
_WORDS = (b"NaN", b"Infinity", b"-0", b"1e999", b"1" * 5000, b"null", b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b"\xff")


def of_bytes(random: Random, body: bytes) -> bytes:
    """Return the body with one to three changes of its bytes."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if body:
            body = random.choice(_CHANGES)(random, body)
    return body


def _flip(random: Random, body: bytes) -> bytes:
    at = random.randrange(len(body))
    return body[:at] + bytes([body[at] ^ 1 << random.randrange(8)]) + body[at + 1 :]


def _cut(random: Random, body: bytes) -> bytes:
    return body[: random.randrange(len(body))]


def _remove(random: Random, body: bytes) -> bytes:
    at = random.randrange(len(body))
    return body[:at] + body[at + random.choice((1, 2, 8, 64)) :]


def _repeat(random: Random, body: bytes) -> bytes:
    at = random.randrange(len(body))
    return body[:at] + body[at : at + 64] * random.choice((2, 3, 50)) + body[at:]


def _insert(random: Random, body: bytes) -> bytes:
    at = random.randrange(len(body) + 1)
    return body[:at] + random.choice((random.randbytes(3), _LONGEST, bytes(9), b"\xff" * 4)) + body[at:]


def _replace(random: Random, body: bytes) -> bytes:
    at = random.randrange(len(body))
    return body[:at] + random.choice((b"\0", b"\x7f", b"\x80", b"\xff", _LONGEST)) + body[at + 1 :]


def _swap(random: Random, body: bytes) -> bytes:
    first, second = sorted((random.randrange(len(body)), random.randrange(len(body))))
    return body[second:] + body[first:second] + body[:first]


_CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip,
    _flip,
    _cut,
    _remove,
    _repeat,
    _insert,
    _replace,
    _swap,
)


def nested(random: Random) -> bytes:
    """Return a protobuf message in a message in a message, far deeper than it may be."""
    body, field = b"", random.choice((b"\x0a", b"\x12", b"\x2a", b"\x32"))
    for _ in range(random.choice((90, 99, 100, 101, 500, _DEEPEST))):
        body = field + _varint(len(body)) + body
    return body


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def as_json(random: Random, message: Message) -> bytes:
    """Return a message in JSON, of which half has another type, key or value somewhere, or is no JSON any more."""
    chosen = random.random()
    if chosen < 0.01:
        return _deep_json(random)
    found = MessageToDict(message)
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        _change(random, found)
    body = json.dumps(found, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    if chosen < 0.85:
        return body
    if chosen < 0.92 and len(body) > 2:
        at = random.randrange(len(body))
        return body[:at] + random.choice(_WORDS) + body[at + random.randrange(4) :]
    return of_bytes(random, body)


def _deep_json(random: Random) -> bytes:
    depth = random.choice((99, 101, 990, 2_000, 20_000)) if random.random() < 0.97 else 500_000
    before, after = random.choice(((b"[", b"]"), (b'{"resourceMetrics":[', b"]}"), (b'{"a":', b"}")))
    return before * depth + (b"" if random.random() < 0.5 else b"1" + after * depth)


def _change(random: Random, found: Any) -> None:
    """Change one part of a JSON value, somewhere."""
    while True:
        keys = list(found) if isinstance(found, dict) else range(len(found))
        if not keys:
            return
        key = random.choice(keys)
        if isinstance(found[key], dict | list) and found[key] and random.random() < 0.8:
            found = found[key]
            continue
        chosen = random.random()
        if chosen < 0.6:
            found[key] = plain(random)
        elif chosen < 0.8:
            del found[key]
        elif isinstance(found, dict):
            found[random.choice(("value", "asInt", "as_double", "traceId", "@type", "\ud800", "timeUnixNano"))] = found[
                key
            ]
        else:
            found.append(found[key])
        return


def as_gzip(random: Random, body: bytes) -> bytes:
    """Return a body packed: whole, cut, changed, in several members, with trailing bytes, or as a bomb."""
    chosen = random.random()
    if chosen < 0.003:
        return _BOMB
    packed, half = gzip.compress(body, compresslevel=1, mtime=0), len(body) // 2
    if chosen < 0.4:
        return packed
    if chosen < 0.7:
        return of_bytes(random, packed)
    return random.choice(
        (
            gzip.compress(body[:half], 1, mtime=0) + gzip.compress(body[half:], 1, mtime=0),
            gzip.compress(b"", 1, mtime=0) * random.choice((2, 63, 64, 65, 500)) + packed,
            packed + random.choice((b"\0", b"garbage", packed[:9])),
            *(b"", body, zlib.compress(body), gzip.compress(packed, 1, mtime=0)),
        )
    )
