"""The format of a spool's files: records to be sent, and how much of them has arrived.

The first 128 bytes say how much has arrived and how many items were written, and are written over in place, so that
this works on a full disk, too. After them come records: a mark, a length, a number of items, how many items of the file
are before it, a kind, checksums of what is to be sent and of all these, and what is to be sent, byte for byte. So where
something is written over a record, the next one that is whole tells how many items are gone, and after the last one
the first bytes do. Nothing else is in it: no header of a request, no token, no address.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tachograph.recording.own_metrics import Reason

SUFFIX = ".spool"
_FIRST = 128  # bytes of the header
_VERSION = b"tachograph spool 2 "
_HEADER = "delivered={:012d} before={:010d} items={:010d} uncertain={:d} written={:->10} "
_FOUND = re.compile(
    rb"(delivered=(\d{12}) before=(\d{10}) items=(\d{10}) uncertain=([01]) written=(\d{10}|-{10}) )"
    rb"check=([0-9a-f]{8}) *\n"
)
_MARK = b"\xf5tsp"
_HEAD = struct.Struct(">4sIIIBI")  # the mark, length, items, items before it, kind, checksum of what is to be sent
_CHECK = struct.Struct(">I")  # of all these
_SIZE = _HEAD.size + _CHECK.size
_KINDS = ("metrics", "traces", "logs", "lines")
_GONE = len(_KINDS)  # what cannot be read any more, and is counted
_PIECE = 2**16  # bytes read at once in search of the next record


class Lost(NamedTuple):
    """So many items were lost, and why."""

    items: int
    reason: Reason
    why: str


class SpoolRecord(NamedTuple):
    """One request on the disk.

    Attributes:
        kind: which of the destination's ways it takes.
        payload: bytes to be sent; empty where nothing of it can be.
        items: points, records or spans in it.
        size: bytes that it takes in its segment.
        lost: losses of it already.
        own: this process has written it.
        uncertain: an attempt had no answer, so that it may have arrived.
        gone: items that were there, cannot be read any more and are counted.
    """

    kind: str
    payload: bytes
    items: int
    size: int = 0
    lost: tuple[Lost, ...] = ()
    own: bool = True
    uncertain: bool = False
    gone: int = 0


class Position(NamedTuple):
    """A place in a segment; everything before it has arrived.

    Attributes:
        offset: where a record begins.
        items: how many of its items have arrived as well.
        uncertain: it was on its way when that was noted, and may have arrived as a whole.
        before: items of all records before it.
        written: items of all records in the segment; None where the file does not say any of this: the place is that
            of its first whole record then, and any may have arrived.
    """

    offset: int
    items: int
    uncertain: bool = False
    before: int = 0
    written: int | None = 0


class _Head(NamedTuple):
    length: int
    items: int
    before: int
    kind: int
    checksum: int


class SpoolFormat(Protocol):
    """Layout of the records in a segment's file."""

    def begin(self, file: int, size: int) -> Position | None:
        """Return how far it has been delivered; None where the file does not say that."""

    def header(self, position: Position) -> bytes:
        """Return the first bytes, which say it."""

    def read(self, file: int, place: Position, size: int) -> SpoolRecord | None:
        """Return the record at a place in a file of so many bytes; None at its end.

        Raises:
            OSError: the file cannot be read.
        """

    def count(self, file: int, place: Position, size: int, pace: Callable[[], None]) -> int:
        """Return how many items there are from a place on, as far as the file can be read."""


class Framed:
    """Records with a head before them; one that cannot be read stands for the items that were written there.

    Attributes:
        begins_at: where the first record is.
    """

    begins_at = _FIRST

    def begin(self, file: int, size: int) -> Position | None:
        """Return how far it has been delivered; where that is overwritten, the place of the first whole record."""
        first = os.pread(file, _FIRST, 0)
        found = _FOUND.match(first, len(_VERSION)) if first.startswith(_VERSION) else None
        if found is not None and int(found[7], 16) == zlib.crc32(found[1]) and int(found[2]) >= _FIRST:
            offset, before, items, uncertain = (int(found[group]) for group in range(2, 6))
            return Position(offset, items, bool(uncertain), before, None if b"-" in found[6] else int(found[6]))
        if re.match(rb"tachograph spool \d+ ", first) and not first.startswith(_VERSION):
            return None  # another version wrote it
        offset, head = _next(file, 0, size, Position(0, 0))
        return Position(offset, 0, uncertain=True, before=head.before, written=None) if head is not None else None

    def header(self, position: Position) -> bytes:
        """Return the first bytes."""
        written = "" if position.written is None else f"{position.written:010d}"
        told = _HEADER.format(position.offset, position.before, position.items, position.uncertain, written).encode()
        return (_VERSION + told + b"check=%08x" % zlib.crc32(told)).ljust(_FIRST - 1) + b"\n"

    def record(self, record: SpoolRecord, before: int = 0) -> bytes:
        """Return a record as bytes, after so many items of the file."""
        kind = _KINDS.index(record.kind)
        return _head(len(record.payload), record.items, before, kind, zlib.crc32(record.payload)) + record.payload

    def gone(self, record: SpoolRecord, before: int) -> bytes:
        """Return a head for the place of a record that cannot be read, and is counted: it stands for nothing then."""
        return _head(record.size - _SIZE, record.items, before, _GONE, 0)

    def read(self, file: int, place: Position, size: int) -> SpoolRecord | None:
        """Return the record at a place."""
        if place.offset >= size:
            return None
        head = _read_head(file, place.offset, place)
        if head is None or head.before != place.before:
            end, following = _next(file, place.offset + 1, size, place)
            gone = following.before - place.before if following is not None else _rest(place, size)
            return _damaged(gone, end - place.offset, "it was overwritten")
        left = size - place.offset
        if head.kind == _GONE:
            return SpoolRecord("", b"", 0, min(_SIZE + head.length, left), gone=head.items)
        payload = os.pread(file, head.length, place.offset + _SIZE)
        if len(payload) < head.length:
            items = head.items if place.written is None else min(head.items, _rest(place, size))
            return _damaged(items, left, "the file is truncated")
        if zlib.crc32(payload) != head.checksum:
            why = "its checksum does not match"
            return _damaged(head.items, _SIZE + head.length, why)
        return SpoolRecord(_KINDS[head.kind], payload, head.items, _SIZE + head.length)

    def count(self, file: int, place: Position, size: int, pace: Callable[[], None]) -> int:
        """Return how many items there are from a place on."""
        begin, items, gone = place, 0, 0
        with contextlib.suppress(OSError):
            while (record := self.read(file, place, size)) is not None:
                items, gone = items + record.items, gone + record.gone
                place = after(place, record)
                pace()
        return items if begin.written is None else _rest(begin, size) - gone


def after(place: Position, record: SpoolRecord) -> Position:
    """Return the place after a record, of which nothing has arrived."""
    before = place.before + record.items + record.gone
    return place._replace(offset=place.offset + record.size, items=0, uncertain=False, before=before)


def _head(length: int, items: int, before: int, kind: int, checksum: int) -> bytes:
    head = _HEAD.pack(_MARK, length, items, before, kind, checksum)
    return head + _CHECK.pack(zlib.crc32(head))


def _read_head(file: int, offset: int, place: Position) -> _Head | None:
    """Return the head at an offset; None where there is none that can follow a place."""
    data = os.pread(file, _SIZE, offset)
    if len(data) < _SIZE or _CHECK.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
        return None
    mark, *rest = _HEAD.unpack_from(data)
    head = _Head(*rest)
    return head if mark == _MARK and head.kind <= _GONE and head.before >= place.before else None


def _next(file: int, offset: int, size: int, place: Position) -> tuple[int, _Head | None]:
    """Return the offset of the next head from one on; the end of the file where there is none."""
    while offset < size and (piece := os.pread(file, _PIECE, offset)):
        at = piece.find(_MARK)
        while at >= 0:
            if (head := _read_head(file, offset + at, place)) is not None:
                return offset + at, head
            at = piece.find(_MARK, at + 1)
        offset += max(len(piece) - len(_MARK) + 1, 1)
    return size, None


def _rest(place: Position, size: int) -> int:
    """Return how many items were written from a place on; at most, where the file does not say it: one a byte."""
    return max(size - place.offset - _SIZE, 1) if place.written is None else max(place.written - place.before, 0)


def _damaged(items: int, size: int, why: str) -> SpoolRecord:
    lost = (Lost(items, "damaged", f"cannot read a record of the spool: {why}"),) if items else ()
    return SpoolRecord("", b"", items, size, lost)
