"""TensorBoard's event files, read as a stream: each record that is whole, and the number of those that are not.

Sources: TensorFlow, ``core/lib/io/record_reader.cc`` (framing), ``core/util/event.proto``, ``core/framework/`` with
``summary.proto``, ``tensor.proto`` and ``histogram.proto``; TensorBoard, ``plugins/hparams/plugin_data.proto``. Their
messages are declared here as far as they are read: TensorBoard's own come with its whole package.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tachograph.exporters.tensorboard import masked_crc

MOST_BYTES = 64 * 2**20  # of a record: larger ones are skipped
HPARAMS = "hparams"  # TensorBoard's plugin, as are the next two
SCALARS, HISTOGRAMS = "scalars", "histograms"
SESSION_START, SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"  # tags
SUCCESS, FAILURE = 1, 2  # of a session
_HEAD, _CRC = 12, 4  # bytes
_READ = 2**20
_SECOND = 10**9
_LATEST = 2**63 - 1  # nanoseconds
# A place in a file at which a record may begin: its length has no more than 27 bits, and is not 0.
_BEGIN = re.compile(rb"(?=((?!\0{8})[\0-\xff]{3}[\0-\4]\0{4})[\0-\xff]{4})")
# Messages: the number, the name and the type of each field; * for many of them. Numbers above 70,000 are ours: readers
# skip fields that they do not know ("Protocol Buffers: Language Guide", "Unknown Fields").
_MESSAGES = {
    "Event": (
        "1 wall_time double, 2 step int64, 3 file_version bytes, 4 graph_def bytes, 5 summary Summary,"
        " 8 tagged_run_metadata bytes, 9 meta_graph_def bytes"
    ),
    "Summary": "1 value Value*",
    "Value": (
        "1 tag bytes, 2 simple_value float, 4 image bytes, 5 histo Histogram, 6 audio bytes, 8 tensor Tensor,"
        " 9 metadata Metadata, 70001 point ExactPoint, 70002 curve NamedCurve"
    ),
    "Metadata": "1 plugin_data PluginData",
    "PluginData": "1 plugin_name bytes, 2 content bytes",
    "Histogram": "1 min double, 2 max double, 3 num double, 4 sum double, 6 bucket_limit double*, 7 bucket double*",
    "Tensor": (
        "1 dtype int32, 4 tensor_content bytes, 5 float_val float*, 6 double_val double*, 7 int_val int32*,"
        " 10 int64_val int64*, 11 bool_val bool*, 13 half_val int32*, 16 uint32_val uint32*, 17 uint64_val uint64*"
    ),
    "HParams": "1 version int32, 3 session_start_info SessionStart, 4 session_end_info SessionEnd",
    "SessionStart": "1 hparams HParam*, 4 group_name bytes, 5 start_time_secs double",
    "SessionEnd": "1 status int32, 2 end_time_secs double",
    "HParam": "1 key bytes, 2 value Constant",
    "Constant": "2 number_value double, 3 string_value bytes, 4 bool_value bool",
    "ExactPoint": "1 value double, 2 x double, 3 time_unix_nano sfixed64, 4 branch int64",
    "NamedCurve": "1 group bytes, 2 metric bytes, 3 attributes bytes, 4 execution int64, 5 units bytes",
}
_TENSORS = {  # TensorFlow, core/framework/types.proto: the format of an element, and the field of its own
    1: ("f", "float_val"),
    2: ("d", "double_val"),
    3: ("i", "int_val"),
    4: ("B", "int_val"),
    5: ("h", "int_val"),
    6: ("b", "int_val"),
    9: ("q", "int64_val"),
    10: ("?", "bool_val"),
    14: ("H", "half_val"),
    17: ("H", "int_val"),
    19: ("e", "half_val"),
    22: ("I", "uint32_val"),
    23: ("Q", "uint64_val"),
}
_BFLOAT16, _HALF = 14, 19


def _declared(messages: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of messages."""
    file = FileDescriptorProto(name="tachograph/event_file.proto", package="tachograph.event_file", syntax="proto2")
    for name, fields in messages.items():
        declared: DescriptorProto = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, named, kind = field.split()
            is_many, kind = kind.endswith("*"), kind.rstrip("*")
            label = FieldDescriptorProto.LABEL_REPEATED if is_many else FieldDescriptorProto.LABEL_OPTIONAL
            made = declared.field.add(name=named, number=int(number), label=label)
            if kind in messages:
                made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                made.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in messages}


_CLASSES = _declared(_MESSAGES)
Event, HParams = _CLASSES["Event"], _CLASSES["HParams"]


class Unread(NamedTuple):
    """The parts of a file that could not be read.

    Attributes:
        damaged: the number of places at which records are not as they were written.
        too_large: the number of records above :data:`MOST_BYTES`.
        cut_off: bytes of a last record that is not whole: the file is still being written, or its writer was killed.
    """

    damaged: int = 0
    too_large: int = 0
    cut_off: int = 0


class EventFile:
    """The events of a file, in its order; iterate over them once. One record is held at a time.

    Behind a damaged record the next one is looked for. A file that is being written ends with its last whole record.

    Args:
        path: of the file.

    Attributes:
        unread: the parts that could not be read so far.
        place: bytes read so far.
        size: of the file, when it was opened.

    Raises:
        OSError: while it is iterated over: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unread = Unread()
        self.place = self.size = 0

    def __iter__(self) -> Iterator[Any]:
        with self.path.open("rb") as file:
            self.size = file.seek(0, 2)
            file.seek(0)
            while (data := self._next(file)) is not None:
                try:
                    event = Event.FromString(data)
                except DecodeError:
                    self._damaged()
                else:
                    yield event

    def _next(self, file: BinaryIO) -> bytes | None:
        """Return the content of the next record that is sound; None at the end."""
        while True:
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                self._end(len(head))
                return None
            if masked_crc(head[:8]) != head[8:]:
                self._damaged()
                if not self._found_again(file):
                    return None
                continue
            (length,) = struct.unpack("<Q", head[:8])
            left = self.size - self.place
            if _HEAD + length + _CRC > left:
                self._end(left)
                return None
            self.place += _HEAD + length + _CRC
            if length > MOST_BYTES:
                self.unread = self.unread._replace(too_large=self.unread.too_large + 1)
                file.seek(self.place)
                continue
            data = file.read(length + _CRC)
            if masked_crc(data[:-_CRC]) == data[-_CRC:]:
                return data[:-_CRC]
            self._damaged()

    def _end(self, left: int) -> None:
        self.unread = self.unread._replace(cut_off=left)

    def _damaged(self) -> None:
        self.unread = self.unread._replace(damaged=self.unread.damaged + 1)

    def _found_again(self, file: BinaryIO) -> bool:
        """Go to the next place at which a record begins; False where there is none."""
        start = self.place + 1
        while True:
            file.seek(start)
            some = file.read(_READ)
            for found in _BEGIN.finditer(some):
                at = found.start()
                if masked_crc(found[1]) == some[at + 8 : at + _HEAD]:
                    self.place = start + at
                    file.seek(self.place)
                    return True
            if len(some) < _READ:
                self.place = self.size
                return False
            start += _READ - _HEAD + 1


def numbers(tensor: Any) -> list[float]:
    """Return the elements of a tensor, as far as they are written; none where they are no numbers.

    A tensor whose elements are all alike may have one of them ("tensor.proto").
    """
    of = _TENSORS.get(tensor.dtype)
    if of is None:
        return []
    form, field = of
    content = tensor.tensor_content
    if content:
        size = struct.calcsize(f"<{form}")
        found = list(struct.unpack(f"<{len(content) // size}{form}", content[: len(content) // size * size]))
    else:
        found = list(getattr(tensor, field))
        if tensor.dtype == _HALF:
            found = [struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0] for bits in found]
    if tensor.dtype == _BFLOAT16:  # the upper half of a float32
        found = [struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0] for bits in found]
    return found


class Spread(NamedTuple):
    """The values of a histogram, as far as TensorBoard keeps them: by buckets.

    Attributes:
        counts: how many values lie around the middle of each bucket.
        total: their sum; where it is not written, as by TensorFlow 2, that of the middles.
        low: the end of the lowest bucket that has any, or the least value.
        high: the same of the highest.
    """

    counts: dict[float, int]
    total: float
    low: float
    high: float


def spread(value: Any) -> Spread:
    """Return the values of a histogram from its summary; empty where there are none that are finite."""
    found: list[tuple[float, float, float]] = []  # both ends and the count of each bucket
    if value.HasField("histo"):
        histo = value.histo
        left = histo.min if math.isfinite(histo.min) else min(histo.bucket_limit, default=0.0)
        for limit, count in zip(histo.bucket_limit, histo.bucket, strict=False):
            found.append((left, min(limit, histo.max), count))
            left = max(limit, histo.min)
    else:
        elements = iter(numbers(value.tensor))
        found = list(zip(elements, elements, elements, strict=False))
    counts: dict[float, int] = {}
    ends: list[float] = []
    for left, right, count in found:
        middle = left / 2 + right / 2
        if math.isfinite(middle) and 0.5 <= count < 2**53:  # noqa: PLR2004 - counts are floats there
            counts[middle] = counts.get(middle, 0) + round(count)
            ends += left, right
    total = value.histo.sum if value.HasField("histo") else math.nan
    if not math.isfinite(total):
        total = math.fsum(middle * count for middle, count in counts.items())
    return Spread(counts, total, min(ends, default=math.nan), max(ends, default=math.nan))


def nanoseconds(seconds: float, otherwise: int) -> int:
    """Return a time in nanoseconds, exactly; ``otherwise`` where it is none."""
    if not 0 < seconds < _LATEST / _SECOND:
        return otherwise
    rest, whole = math.modf(seconds)
    return int(whole) * _SECOND + round(rest * _SECOND)
