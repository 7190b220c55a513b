"""How far a file of the spool has been delivered: its first line says so, and is written over in place.

A process that is killed thereby leaves to the next one only what the server has not acknowledged, and on a full disk
that still works. The line is an OTLP request without records, so whatever reads the file as OTLP may read it, too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BYTES, _RECORDS = "tachograph.spool.delivered_bytes", "tachograph.spool.delivered_records"
_FOUND = re.compile(
    rf'\{{"resourceLogs".*"{_BYTES}","value":\{{"intValue":"(\d+)"\}}.*"{_RECORDS}","value":\{{"intValue":"(\d+)"\}}'.encode()
)

SIZE = 256  # bytes of the line, its end included, whatever the numbers are


class Position(NamedTuple):
    """A place in a file; what is before it has arrived.

    Attributes:
        offset: where a line begins.
        records: how many records of that line have arrived as well.
    """

    offset: int
    records: int


def first_line(position: Position) -> bytes:
    """Return the line that says so, ``SIZE`` bytes long."""
    pairs = zip((_BYTES, _RECORDS), position, strict=True)
    told = ",".join([f'{{"key":"{key}","value":{{"intValue":"{value}"}}}}' for key, value in pairs])
    text = f'{{"resourceLogs":[{{"resource":{{"attributes":[{told}]}},"scopeLogs":[]}}]}}'
    return text.ljust(SIZE - 1).encode() + b"\n"


def position(line: bytes, size: int) -> Position | None:
    """Return what the first line of a file of so many bytes says.

    None where it is another line, as earlier versions wrote none.
    """
    found = _FOUND.match(line) if line[SIZE - 1 : SIZE] == b"\n" else None
    if found is None or not SIZE <= int(found[1]) <= size:
        return None
    return Position(int(found[1]), int(found[2]))
