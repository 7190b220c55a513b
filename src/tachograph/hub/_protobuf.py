"""The fields of a message in protobuf, of which only lengths are read. Source: "Protocol Buffers: Encoding"."""

from __future__ import annotations

from collections.abc import Iterator

MORE = 0x80  # the bit of a varint's byte that says that another one follows
_FIXED = {1: 8, 5: 4}  # bytes, by wire type
_VARINT, _LENGTH = 0, 2  # wire types


def fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number (0 where it has no length), and offsets of field, content and end.

    Raises:
        ValueError, IndexError: it cannot be parsed, or has fields that OTLP has not.
    """
    at, size = 0, len(message)
    while at < size:
        begin = at
        tag = message[at]
        at += 1
        kind = tag & 7
        if tag >= MORE or (kind not in _FIXED and kind not in (_VARINT, _LENGTH)):
            raise ValueError(tag)
        length = _FIXED.get(kind, 0)
        if not length:
            length = message[at]
            at += 1
            if length >= MORE:
                length, at = _long(message, at)
        content = at
        at += length if kind != _VARINT else 0
        if at > size:
            raise ValueError(at)
        yield (tag >> 3 if kind == _LENGTH else 0), begin, content, at


def inner(message: bytes, wanted: int) -> tuple[bytes, list[bytes]]:
    """Return the messages in a field, and all other fields together.

    Args:
        message: the one around them.
        wanted: the tag of the field, of one byte.

    Raises:
        ValueError, IndexError: as :func:`fields`.
    """
    at, size = 0, len(message)
    found, others = [], []
    while at < size:
        if message[at] == wanted:
            length, content = message[at + 1], at + 2
            if length >= MORE:
                length, content = _long(message, content)
            at = content + length
            if at > size:
                raise ValueError(at)
            found.append(message[content:at])
        else:  # few: one after the other, they cost nothing
            _, _, _, end = next(fields(message[at:]))
            others.append(message[at : at + end])
            at += end
    return b"".join(others), found


def _long(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint of which one byte has been read, and the offset of its end."""
    value = message[at - 1] & ~MORE
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & ~MORE) << shift
        if byte < MORE:
            return value, at
    raise ValueError(at)
