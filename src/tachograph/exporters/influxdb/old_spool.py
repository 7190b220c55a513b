"""Files of a spool as earlier versions have left them: ``<n>.jsonl``, an OTLP request as JSON a line, read to be sent.

The first line of each says how far it has been delivered, and is written over in place; it is an OTLP request without
records. The earliest wrote none.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from tachograph.exporters.influxdb._line import encoded
from tachograph.exporters.otlp.json_text import events_of_json, records
from tachograph.exporters.spool_format import Lost, Position, SpoolRecord

SUFFIX = ".jsonl"
SIZE = 256  # bytes of the first line, its end included, whatever the numbers are
_AT_ONCE, _PIECE = 2**16, 2**20
_BYTES, _RECORDS = "tachograph.spool.delivered_bytes", "tachograph.spool.delivered_records"
_FOUND = re.compile(
    rf'\{{"resourceLogs".*"{_BYTES}","value":\{{"intValue":"(\d+)"\}}.*"{_RECORDS}","value":\{{"intValue":"(\d+)"\}}'.encode()
)


class Delivered(NamedTuple):
    """How much of a file has arrived.

    Attributes:
        offset: where a line begins; those before it have.
        records: how many records of that line have as well.
    """

    offset: int
    records: int


def first_line(delivered: Delivered) -> bytes:
    """Return the line that says so, ``SIZE`` bytes long."""
    pairs = zip((_BYTES, _RECORDS), delivered, strict=True)
    told = ",".join([f'{{"key":"{key}","value":{{"intValue":"{value}"}}}}' for key, value in pairs])
    text = f'{{"resourceLogs":[{{"resource":{{"attributes":[{told}]}},"scopeLogs":[]}}]}}'
    return text.ljust(SIZE - 1).encode() + b"\n"


def delivered(line: bytes, size: int) -> Delivered | None:
    """Return the place that the first line of a file of so many bytes names; None where it is another line."""
    found = _FOUND.match(line) if line[SIZE - 1 : SIZE] == b"\n" else None
    if found is None or not SIZE <= int(found[1]) <= size:
        return None
    return Delivered(int(found[1]), int(found[2]))


class PointLines:
    """A format of :mod:`tachograph.exporters.spool`: each line becomes lines for InfluxDB as it is read.

    Args:
        pace: called between slices of work.
    """

    def __init__(self, pace: Callable[[], None]) -> None:
        self._pace = pace
        self._arrived = Delivered(0, 0)

    def begin(self, file: int, size: int) -> Position | None:
        """Return how far it has been delivered; None where the file does not say that."""
        said = delivered(os.pread(file, SIZE, 0), size)
        self._arrived = said or Delivered(0, 0)
        return Position(said.offset, 0) if said is not None else None

    def header(self, position: Position) -> bytes:
        """Return the first bytes: whole lines alone, as one has other items than its records."""
        return first_line(Delivered(position.offset, 0))

    def read(self, file: int, place: Position, size: int) -> SpoolRecord | None:
        """Return the line at a place, as lines for InfluxDB."""
        offset = place.offset
        line = self._line(file, offset, size)
        if not line:
            return None
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the process died while writing it")  # noqa: TRY301 - the same end for both
            found = events_of_json(line)
        except ValueError as error:
            count = max(records(line), 1)
            lost = Lost(count, "damaged", f"cannot read a line of the spool: {error}")
            return SpoolRecord("", b"", count, len(line), (lost,))
        skipped = self._arrived.records if offset == self._arrived.offset else 0
        lines: list[bytes] = []
        losses: list[Lost] = []
        for part in found:
            events, skipped = part.events[skipped:], max(skipped - len(part.events), 0)
            made, lost_here = encoded(events, part.resource, self._pace)
            lines += made
            losses += lost_here
            if part.newer:
                losses.append(Lost(part.newer, "newer", "it was written by a newer version of tachograph"))
        return SpoolRecord("lines", b"\n".join(lines), len(lines), len(line), tuple(losses))

    def _line(self, file: int, offset: int, size: int) -> bytes:
        found = b""
        while b"\n" not in found and (piece := os.pread(file, min(_AT_ONCE, size - offset), offset + len(found))):
            found += piece
        return found[: found.find(b"\n") + 1] or found

    def count(self, file: int, place: Position, size: int, pace: Callable[[], None]) -> int:
        """Return how many records there are from a place on."""
        found, rest, offset = 0, b"", place.offset
        with contextlib.suppress(OSError):
            while piece := os.pread(file, min(_PIECE, size - offset), offset):
                offset += len(piece)
                whole, _, rest = (rest + piece).rpartition(b"\n")
                found += records(whole)
                pace()
        return found + records(rest)
