"""Read and write event files with TensorBoard's own reader, writer and messages.

TensorBoard stores single precision, whole steps and rounded times. An export therefore adds fields of its own to each
value, which hold what TensorBoard's fields cannot. Other readers skip fields that they do not know (Protocol Buffers,
"Language Guide", "Unknown Fields").
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from tachograph.exporters.otlp.values import varint
from tachograph.exporters.tensorboard import masked_crc
from tachograph.recording.points import Attributes

_LENGTH_AND_CRC, _CRC = 12, 4  # bytes before and after the content of a record
_SECOND = 10**9
_LATEST = 2**63 - 1  # nanoseconds
# The numbers of our fields in a value. TensorFlow's summary.proto is far from using numbers this high.
_EXACT_POINT, _CURVE = 70_003, 70_004
_LENGTH_DELIMITED = 2  # wire type
_POINT_LAYOUT = struct.Struct("<ddqq")


class ExactPoint(NamedTuple):
    """What an event cannot hold exactly of a point."""

    value: float
    x: float
    time_unix_nano: int
    branch: int


class CurveIdentity(NamedTuple):
    """Which curve a tag stands for; the first point of each tag has it."""

    group: str
    metric: str
    units: str
    attributes: Attributes
    execution: int | None


class EventFile:
    """The events of one file in their order; iterate over them once. A file that is still being written is fine.

    Attributes:
        path: of the file.
        size: of the file in bytes, when the iteration began.
        bytes_read: by the iteration so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[Any]:
        self.size = self.path.stat().st_size
        self.path.open("rb").close()  # raises OSError if it cannot be read; the reader's errors are its own
        for record in RawEventFileLoader(str(self.path)).Load():
            try:
                event = Event.FromString(record)
            except DecodeError:
                return
            self.bytes_read += _LENGTH_AND_CRC + len(record) + _CRC
            yield event

    @property
    def unread_bytes(self) -> int:
        """How much of the file follows the last event that could be read, after the iteration."""
        return max(0, self.size - self.bytes_read)

    def is_damaged(self) -> bool:
        """Tell whether the record after the last event is damaged, rather than not yet complete."""
        with self.path.open("rb") as file:
            file.seek(self.bytes_read)
            head = file.read(_LENGTH_AND_CRC)
        if len(head) < _LENGTH_AND_CRC:
            return False
        if masked_crc(head[:8]) != head[8:]:
            return True
        return _LENGTH_AND_CRC + int.from_bytes(head[:8], "little") + _CRC <= self.unread_bytes


def nanoseconds(seconds: float, default: int) -> int:
    """Return a time in nanoseconds, exactly; ``default`` if it is not a time after 1970."""
    if not 0 < seconds < _LATEST / _SECOND:
        return default
    fraction, whole = math.modf(seconds)
    return int(whole) * _SECOND + round(fraction * _SECOND)


def add_exact_point(value: Any, point: ExactPoint) -> None:
    """Add a point's exact numbers to the value of a summary."""
    _add_field(value, _EXACT_POINT, _POINT_LAYOUT.pack(*point))


def add_curve_identity(value: Any, curve: CurveIdentity) -> None:
    """Add the identity of its curve to the value of a summary."""
    _add_field(value, _CURVE, json.dumps(curve).encode())


def _add_field(value: Any, number: int, content: bytes) -> None:
    value.MergeFromString(varint(number << 3 | _LENGTH_DELIMITED) + varint(len(content)) + content)


def read_own_fields(value: Any) -> tuple[ExactPoint | None, CurveIdentity | None]:
    """Return what an export added to the value of a summary; None for what is not there.

    A field that has one of our numbers and other content belongs to somebody else.
    """
    point: ExactPoint | None = None
    curve: CurveIdentity | None = None
    for field in UnknownFieldSet(value):  # type: ignore[attr-defined] # the stubs know only __getitem__
        try:
            if field.field_number == _EXACT_POINT:
                point = ExactPoint(*_POINT_LAYOUT.unpack(field.data))
            elif field.field_number == _CURVE:
                group, metric, units, attributes, execution = json.loads(field.data)
                curve = CurveIdentity(group, metric, units, tuple((key, text) for key, text in attributes), execution)
        except (TypeError, ValueError, struct.error):
            continue
    return point, curve
