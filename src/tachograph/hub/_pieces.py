"""A large body in pieces: while protobuf decodes a message no other thread runs, so that none may be large.

The requests of all signals are nested in the same way: resources, scopes, items; a metric's points lie two levels
deeper. Only lengths are looked at (Protocol Buffers, "Encoding").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

PIECE = 64 * 2**10  # bytes: at worst a few milliseconds
# By level the numbers of the fields in which there is more: opentelemetry/proto/{metrics,logs,trace}/v1.
_DATA = frozenset((5, 7, 9, 10, 11))  # of a metric: what holds its points, one of them
_ITEMS = (frozenset((1,)), frozenset((2,)), frozenset((2,)))
_POINTS = (*_ITEMS, _DATA, frozenset((1,)))
_MORE = 0x80  # the bit of a varint's byte that says that another one follows
_FIXED = {1: 8, 5: 4}  # bytes, by wire type
_VARINT, _LENGTH = 0, 2  # wire types


def pieces(body: bytes, *, metrics: bool, size: int = PIECE) -> Iterator[bytes]:
    """Yield messages that, decoded one into the other, say what the body says.

    Where a resource, a scope or a metric is split, each piece says anew which one it is. What cannot be split is one
    piece: a record that is larger, what is no message, and what would become half as long again.

    Args:
        body: a request in protobuf.
        metrics: it is one for metrics.
        size: bytes of a piece; what it says anew comes to that.
    """
    return _split(body, _POINTS if metrics else _ITEMS, size, 0)


def _split(message: bytes, levels: Sequence[frozenset[int]], size: int, anew: int) -> Iterator[bytes]:
    """Yield pieces of a message; ``anew`` is how many bytes are put before each of them."""
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
    """Return the fields of a message that are not wanted, and stretches of it that are, none where it is not legible.

    A stretch is where it begins, where the content of its field begins, and where it ends; of one that has several
    fields, or a small one, the content is 0.
    """
    common, stretches = bytearray(), []
    first = last = 0  # of a stretch of small fields
    try:
        for number, begin, content, end in _fields(message):
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
            if len(common) > size:  # where there is more than one piece, it is too long to be said anew
                return None
    except (ValueError, IndexError):
        return None
    if first < last:
        stretches.append((first, 0, last))
    return (bytes(common), stretches) if stretches else None


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: its number, 0 where it has no length, and where it, its content and its end are.

    Raises:
        ValueError, IndexError: it is not legible, or has fields that OTLP has not.
    """
    at, size = 0, len(message)
    while at < size:
        begin = at
        tag = message[at]
        at += 1
        kind = tag & 7
        if tag >= _MORE or (kind not in _FIXED and kind not in (_VARINT, _LENGTH)):
            raise ValueError(tag)
        length = _FIXED.get(kind, 0)
        if not length:
            length = message[at]
            at += 1
            if length >= _MORE:
                length, at = _long(message, at)
        content = at
        at += length if kind != _VARINT else 0
        if at > size:
            raise ValueError(at)
        yield (tag >> 3 if kind == _LENGTH else 0), begin, content, at


def _long(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint of which one byte has been read, and where it ends."""
    value = message[at - 1] & ~_MORE
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, at
    raise ValueError(at)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    return bytes((*found, value))
