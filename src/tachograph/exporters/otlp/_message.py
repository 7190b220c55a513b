"""The messages of a request to OTLP around the points: the constant parts of a metric's and of its scope's, as bytes.

Field numbers are those of ``opentelemetry/proto/metrics/v1/metrics.proto``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tachograph.exporters.otlp.values import scope_and_schema, text, varint

BYTES_PER_REQUEST = 2**20  # receivers take 4 MiB over gRPC: what is long shall not cost what is beside it

Lose = Callable[[int, str], None]

# The tags of a metric's data, by kind.
DATA = {"gauge": b"\x2a", "sum": b"\x3a", "histogram": b"\x4a", "exponential_histogram": b"\x52", "summary": b"\x5a"}
METRIC = b"\x12"  # ScopeMetrics.metrics, 2
_NAME, _DESCRIPTION, _UNIT = b"\x0a", b"\x12", b"\x1a"  # of a metric
_LENGTHS = 12  # bytes of a metric's tags and lengths, at most


class Form:
    """The constant parts of a metric's message around its points.

    Args:
        head: the message's fields before its data.
        data: the tag of its kind of data.
        end: the fields of the data after the points.
        metadata: the message's fields after its data.

    Attributes:
        end: the bytes after the points.
        size: the bytes around the points, at most.
    """

    __slots__ = ("_data", "_end", "_framed", "_head", "_length", "end", "size")

    def __init__(self, head: bytes, data: bytes, end: bytes = b"", metadata: bytes = b"") -> None:
        self._head, self._data, self._end = head, data, end
        self.end = end + metadata
        self.size = len(head) + len(self.end) + _LENGTHS
        self._length, self._framed = -1, b""

    def begin(self, length: int) -> bytes:
        """Return everything before points that take so many bytes; :attr:`end` comes after them."""
        if length != self._length:  # mostly it is that of the last export
            inside = length + len(self._end)
            head = self._head + self._data + varint(inside)
            self._framed = METRIC + varint(len(head) + length + len(self.end)) + head
            self._length = length
        return self._framed


class Whole:
    """The form of messages that are complete."""

    __slots__ = ()
    end, size = b"", 0

    def begin(self, _length: int) -> bytes:
        """Return nothing."""
        return b""


class Part(NamedTuple):
    """Some points of one instrument, or of several that are complete, encoded.

    Attributes:
        scope: the beginning of its message, with the instrumentation scope.
        content: the bytes of the points, in pieces; those of exponential buckets come with those of explicit ones.
        points: how many there are.
    """

    scope: bytes
    content: tuple[tuple[Form | Whole, list[bytes]], ...]
    points: int

    def complete(self) -> list[bytes]:
        """Return the messages, in pieces: no more points belong to them."""
        found: list[bytes] = []
        for form, pieces in self.content if self.points else ():
            if pieces:
                found += form.begin(sum(map(len, pieces))), *pieces, form.end
        return found

    def size(self) -> int:
        """Return the bytes that it takes at most."""
        return sum([form.size + sum(map(len, pieces)) for form, pieces in self.content])


@lru_cache(256)
def scope_head(name: str) -> bytes:
    """Return the beginning of a ``ScopeMetrics`` message: the scope, and the URL of its schema."""
    scope, schema_url = scope_and_schema(name)
    found = b""
    for tag, encoded in ((b"\x0a", scope.SerializeToString()), (b"\x1a", schema_url.encode())):
        found += tag + varint(len(encoded)) + encoded if encoded or tag == b"\x0a" else b""
    return found


def metric_head(name: str, description: str, unit: str) -> bytes:
    """Return the fields of a metric's message before its data."""
    head = b""
    for tag, value in ((_NAME, name), (_DESCRIPTION, description), (_UNIT, unit)):
        encoded = text(value).encode()
        head += tag + varint(len(encoded)) + encoded if encoded else b""
    return head
