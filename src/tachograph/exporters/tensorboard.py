"""The ``tensorboard`` exporter: points of Stats and Metrics as scalars in an event file that TensorBoard reads.

The file is written here and not by a library: torch's writer imports torch (and TensorFlow where it is installed) into
a program that may have neither, and tensorboardX's ``flush`` leaves behind what is still in its queue.
Sources: TensorFlow, ``core/lib/io/record_writer.cc`` (framing) and ``core/util/event.proto`` (what a record holds).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tachograph.exporters._append_file import AppendFile
from tachograph.exporters._workers import FILES
from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.journal import LogEvent
from tachograph.recording.log import LogOnce
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.recording.values import as_float

NAME = "tensorboard"
STAT, POINT = "torch.monitor.Stat", "tachograph.metric"
VERSION = b"\x1a\x0dbrain.Event:2"
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_REST_AFTER = 8  # events
_MOST_CHANGES = 3  # files that are left for their time: after that the file system sets it late


class TensorBoard:
    """Appends scalars to one event file a process: each aggregation of a Stat, each point of a Metric; no other event.

    A Stat's scalar has no step, only its time, as in torch.monitor; a point's step is the whole part of its x.

    Args:
        folder: of the run; a rank has a folder of its own in it, which TensorBoard shows as a run of its own.
        registry: where losses are counted.
        pace: called between slices of the encoding; by default a :class:`tachograph.recording.gil_yield.GilYield`.
    """

    def __init__(self, folder: Path, registry: Registry, *, pace: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._pace = pace or GilYield()
        self._queue = DeliveryQueue(NAME, registry, workers=FILES)
        self._file: AppendFile | None = None
        self._changes = 0
        self._log_once = LogOnce()

    def __call__(self, batch: Batch) -> None:
        """Queue the scalars of one batch; never waits for the disk."""
        role, rank = batch.resource.get("dl.role"), batch.resource.get("dl.rank")
        records: list[bytes] = []
        for number, event in enumerate(batch.events):
            if number % _REST_AFTER == 0:
                self._pace()
            records += [record(event.time_unix_nano / 1e9, part) for part in _summaries(event)]
        if records:
            piece = b"".join(records)
            self._queue.put(lambda _timeout: self._append(piece, role, rank), len(piece), items=len(records))

    def _append(self, piece: bytes, role: AttributeValue | None, rank: AttributeValue | None) -> None:
        """Append to the file, or to a new one where it was deleted or changed: behind a torn record none is read."""
        file = self._file
        fate = "" if file is None else file.fate()
        if fate == "changed":
            self._changes += 1
            fate = "" if self._changes > _MOST_CHANGES else fate
        if file is not None and fate:
            message = "%s: %s was %s while being written; continuing in a new file"
            self._log_once("anew", message, NAME, file.path, fate)
            file.close()
            file = None
        if file is None:
            file = self._file = AppendFile(self._path(role, rank))
        file.append(record(time.time(), VERSION) + piece if file.is_new() else piece)

    def _path(self, role: AttributeValue | None, rank: AttributeValue | None) -> Path:
        folder = self._folder if rank is None else self._folder / f"rank{rank}"
        if role == "agent":
            folder = self._folder / "agent"
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        return folder / f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.{time.monotonic_ns()}"

    def flush(self, timeout: float) -> bool:
        """Write everything queued; True where all of it was written within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def close(self, timeout: float) -> None:
        """Write everything queued, and close the file, within ``timeout`` seconds."""
        if self._queue.flush(timeout) and self._file is not None:
            self._file.close()
        self._queue.close(0)

    def reset_in_child(self) -> None:
        """Leave the file to the parent process, after a fork."""
        self._file = None
        self._queue.reset_in_child()


def _summaries(event: LogEvent) -> Iterator[bytes]:
    if event.name == STAT:
        values = [(key, value) for key, value in event.attributes.items() if isinstance(value, int | float)]
        if values:
            yield summary(values)
    elif event.name == POINT:
        found, x = event.attributes.get("value"), event.attributes.get("x")
        if isinstance(found, int | float):
            name = "/".join(str(event.attributes[key]) for key in ("group", "metric") if event.attributes.get(key))
            step = int(x) if isinstance(x, int | float) and x - x == 0 else None
            yield summary([(name, found)], step)


def summary(values: Sequence[tuple[str, float]], step: int | None = None) -> bytes:
    """Return the fields of an event that holds scalars; they have single precision, as TensorBoard's own."""
    parts = b""
    for tag, value in values:
        name = tag.encode("utf-8", "replace")
        scalar = b"\x0a" + _varint(len(name)) + name + b"\x15" + _float32(value)
        parts += b"\x0a" + _varint(len(scalar)) + scalar
    at = b"" if step is None else b"\x10" + _varint(step % 2**64)
    return at + b"\x2a" + _varint(len(parts)) + parts


def record(seconds: float, fields: bytes) -> bytes:
    """Return one record of an event file: an event at a time since the epoch, with the other fields that it has."""
    return framed(b"\x09" + struct.pack("<d", seconds) + fields)


def framed(event: bytes) -> bytes:
    """Return an event as a record: with its length, and a checksum of both."""
    length = struct.pack("<Q", len(event))
    return length + masked_crc(length) + event + masked_crc(event)


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", as_float(value) * float("inf"))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ _POLYNOMIAL * (byte & 1)  # noqa: PLW2901 - a register that is shifted out
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> bytes:
    """Return the checksum of bytes in an event file: their CRC-32C, masked."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
