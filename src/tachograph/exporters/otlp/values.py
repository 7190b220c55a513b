"""Text and attributes in the form that OTLP takes."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue, KeyValueList

from tachograph.recording.own_metrics import scope_origin
from tachograph.recording.values import fits_int64

OUT_OF_MEMORY = "out of memory"
_BYTE = [bytes((number,)) for number in range(128)]
_ROOM = 2**23  # bytes: for a request of a MiB, as messages, as bytes and compressed


class _KeyValues(Protocol):
    def add(self, *, key: str) -> KeyValue: ...


def has_memory() -> bool:
    """Tell whether there is memory for a request: where there is none, protobuf's C code ends the process (SIGSEGV)."""
    if not _is_strict() and _unlimited(resource.RLIMIT_AS) and _unlimited(resource.RLIMIT_DATA):
        return True  # address space is never refused: asking for it would cost five times as much
    try:
        # Address space alone, of which nothing is touched; shared memory would be a file, which takes far longer.
        mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def _unlimited(of: int) -> bool:
    return resource.getrlimit(of)[0] == resource.RLIM_INFINITY


@lru_cache(1)
def _is_strict() -> bool:
    """Tell whether the kernel gives no more address space than it has memory for; also where it does not say."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2"
    except OSError:
        return True


def text(value: str) -> str:
    """Return ``value`` as UTF-8 can carry it: a lone surrogate becomes a question mark."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def varint(number: int) -> bytes:
    """Return an integer from 0 on as protobuf has it: seven bits a byte, the lowest first."""
    if number < 0x80:  # noqa: PLR2004 - see above
        return _BYTE[number]
    if number < 0x4000:  # noqa: PLR2004 - most lengths
        return bytes((number & 0x7F | 0x80, number >> 7))
    found = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - see above
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def scope_and_schema(name: str) -> tuple[InstrumentationScope, str]:
    """Return an instrumentation scope, and the schema URL that stands beside it; the empty string for a user's."""
    version, schema_url = scope_origin(name)
    return InstrumentationScope(name=text(name), version=version or ""), schema_url or ""


def add_attributes(to: _KeyValues, attributes: Iterable[tuple[str, Any]]) -> None:
    """Append attributes to a message's repeated field."""
    add = to.add
    for key, value in attributes:
        message = add(key=key if key.isascii() else text(key)).value
        kind = value.__class__  # the plain types first: events hold little else, and there are many of them
        if kind is float:
            message.double_value = value
        elif kind is str:
            message.string_value = text(value)
        elif kind is int and fits_int64(value):
            message.int_value = value
        else:
            set_value(message, value)


def encoded_attributes(attributes: Iterable[tuple[str, Any]], tag: bytes) -> bytes:
    """Return attributes as a message's repeated field, by the field's tag."""
    held = KeyValueList()
    add_attributes(held.values, attributes)
    pairs = [pair.SerializeToString() for pair in held.values]
    return b"".join([part for pair in pairs for part in (tag, varint(len(pair)), pair)])


class ResourceBytes:
    """Attributes of a process as a ``Resource`` message's field, encoded once for as long as they are the same."""

    def __init__(self) -> None:
        self._last: tuple[list[tuple[str, Any, type]], bytes] | None = None

    def __call__(self, resource: Mapping[str, Any]) -> bytes:
        """Return them encoded."""
        last, same = self._last, [(key, value, value.__class__) for key, value in resource.items()]  # True is no 1
        if last is None or last[0] != same:
            last = self._last = same, encoded_attributes(resource.items(), b"\x0a")  # Resource.attributes, 1
        return last[1]


resource_bytes = ResourceBytes()  # of this process, by every exporter


def set_value(message: AnyValue, value: object) -> None:
    """Set an attribute's value; one that OTLP has no type for, integers beyond 64 bits included, becomes a string.

    None leaves the message empty, which is OTLP's null.
    """
    if value is None:
        return
    if isinstance(value, str):
        message.string_value = text(value)
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int) and fits_int64(value):
        message.int_value = int(value)
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, bytes):
        message.bytes_value = value
    elif isinstance(value, Sequence):
        values: MutableSequence[AnyValue] = message.array_value.values
        message.array_value.SetInParent()
        for part in value:
            element = AnyValue()
            set_value(element, part)
            values.append(element)
    elif isinstance(value, Mapping):
        message.kvlist_value.SetInParent()
        add_attributes(message.kvlist_value.values, ((str(key), part) for key, part in value.items()))
    else:
        message.string_value = text(str(value))
