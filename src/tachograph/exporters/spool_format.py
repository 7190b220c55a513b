"""The format of a spool's files: records to be sent, and how much of them has arrived.

The first 128 bytes say how much has arrived, and are written over in place, so that this works on a full disk, too;
after them come records: a length, a number of items, a checksum, a kind and what is to be sent, byte for byte. Nothing
else is in it: no header, no token, no address.
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
_HEADER = "tachograph spool 1 delivered={:020d} items={:010d} uncertain={:d}"
_FOUND = re.compile(rb"tachograph spool 1 delivered=(\d{20}) items=(\d{10}) uncertain=([01]) *\n")
_RECORD = struct.Struct(">IIIB")
_KINDS = ("metrics", "traces", "logs", "lines")
_LONGEST = 2**24  # bytes: no destination takes a longer request


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
    """

    kind: str
    payload: bytes
    items: int
    size: int = 0
    lost: tuple[Lost, ...] = ()
    own: bool = True
    uncertain: bool = False


class Position(NamedTuple):
    """A place in a segment; everything before it has arrived.

    Attributes:
        offset: where a record begins.
        items: how many of its items have arrived as well.
        uncertain: it was on its way when that was noted, and may have arrived as a whole.
    """

    offset: int
    items: int
    uncertain: bool = False


class SpoolFormat(Protocol):
    """Layout of the records in a segment's file."""

    def begin(self, file: int, size: int) -> Position | None:
        """Return how far it has been delivered; None where the file does not say that."""

    def header(self, position: Position) -> bytes:
        """Return the first bytes, which say it."""

    def read(self, file: int, offset: int, size: int) -> SpoolRecord | None:
        """Return the record at a place in a file of so many bytes; None at its end.

        Raises:
            OSError: the file cannot be read.
        """

    def count(self, file: int, offset: int, size: int, pace: Callable[[], None]) -> int:
        """Return how many items there are from a place on, as far as the file can be read."""


class Framed:
    """Records with their length before them; a torn or damaged one stands for the items that it says it has.

    Attributes:
        begins_at: where the first record is.
    """

    begins_at = _FIRST

    def begin(self, file: int, size: int) -> Position | None:
        """Return how far it has been delivered."""
        found = _FOUND.match(os.pread(file, _FIRST, 0))
        if found is None or not _FIRST <= int(found[1]) <= size:
            return None
        return Position(int(found[1]), int(found[2]), found[3] == b"1")

    def header(self, position: Position) -> bytes:
        """Return the first bytes."""
        return _HEADER.format(*position).ljust(_FIRST - 1).encode() + b"\n"

    def record(self, record: SpoolRecord) -> bytes:
        """Return a record as bytes."""
        kind = _KINDS.index(record.kind)
        length = len(record.payload)
        return _RECORD.pack(length, record.items, _checksum(record.payload, record.items, kind), kind) + record.payload

    def read(self, file: int, offset: int, size: int) -> SpoolRecord | None:
        """Return the record at a place."""
        head = os.pread(file, _RECORD.size, offset)
        if not head:
            return None
        if len(head) < _RECORD.size:
            return _damaged(1, size - offset, "the process that wrote its last record died")
        length, items, checksum, kind = _RECORD.unpack(head)
        whole = _RECORD.size + length
        if offset + whole > size or kind >= len(_KINDS):
            left = size - offset
            why = "the process that wrote its last record died"
            return _damaged(_plausible(items, length, kind, left), left, why)
        payload = os.pread(file, length, offset + _RECORD.size)
        if len(payload) < length or _checksum(payload, items, kind) != checksum:
            return _damaged(_plausible(items, length, kind, whole), whole, "a record has another checksum than it says")
        return SpoolRecord(_KINDS[kind], payload, items, whole)

    def count(self, file: int, offset: int, size: int, pace: Callable[[], None]) -> int:
        """Return how many items there are from a place on."""
        items = 0
        with contextlib.suppress(OSError):
            while len(head := os.pread(file, _RECORD.size, offset)) == _RECORD.size:
                length, found, _, kind = _RECORD.unpack(head)
                items += _plausible(found, length, kind, size - offset)
                offset += _RECORD.size + length
                if offset > size or kind >= len(_KINDS):
                    break
                pace()
        return items


def _checksum(payload: bytes, items: int, kind: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_RECORD.pack(len(payload), items, 0, kind)))


def _plausible(items: int, length: int, kind: int, left: int) -> int:
    """Return the items of a record whose head may be damaged: none takes less than a byte.

    A record that was torn says how many there were; what has been written over it says nothing, but for its own length.
    """
    return max(min(items, length, _LONGEST if kind < len(_KINDS) else left), 1)


def _damaged(items: int, size: int, why: str) -> SpoolRecord:
    return SpoolRecord("", b"", items, size, (Lost(items, "damaged", f"a record of the spool cannot be read: {why}"),))
