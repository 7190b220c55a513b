"""An event: a name, a time, and data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tachograph.recording.values import shown, unwrapped

data_value_t = str | float | int | bool

_EXACTLY = frozenset((str, float, int, bool))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Event:
    """An event to pass to :func:`~tachograph.monitor.log_event`; each handler receives it.

    As in the original, ``data`` returns a copy: to change an event's data, assign to ``data``.

    Args:
        name: the kind of event, such as ``torch.monitor.Stat``; it becomes the log record's ``event_name``.
        timestamp: the time of the event, in local time if it has no time zone.
        data: strings, floats, ints and bools by name; NumPy and torch scalars are converted.

    Raises:
        TypeError: an argument, or a key or value of the data, has the wrong type.
    """

    __slots__ = ("_data", "_name", "_timestamp", "_unix_nano")

    def __init__(self, name: str, timestamp: datetime, data: Mapping[str, data_value_t]) -> None:
        self._name: str = _checked(name, str, "name", "a string")
        self._timestamp: datetime = _checked(timestamp, datetime, "timestamp", "a datetime")
        self._unix_nano: int | None = None  # until it is asked for
        self._data = _checked_data(data)

    @property
    def name(self) -> str:
        """The name of the event."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = _checked(name, str, "name", "a string")

    @property
    def timestamp(self) -> datetime:
        """The time of the event, as passed."""
        return self._timestamp

    @timestamp.setter
    def timestamp(self, timestamp: datetime) -> None:
        self._timestamp = _checked(timestamp, datetime, "timestamp", "a datetime")
        self._unix_nano = None

    @property
    def data(self) -> dict[str, data_value_t]:
        """A copy of the data."""
        return self._data.copy()

    @data.setter
    def data(self, data: Mapping[str, data_value_t]) -> None:
        self._data = _checked_data(data)

    def __repr__(self) -> str:
        return f"Event(name={self._name!r}, timestamp={self._timestamp!r}, data={self._data!r})"


def made(name: str, unix_nano: int, timestamp: datetime, data: dict[str, data_value_t]) -> Event:
    """Return an event of Tachograph's own, whose parts are valid; the data is not copied."""
    event = Event.__new__(Event)
    event._name, event._timestamp, event._unix_nano, event._data = name, timestamp, unix_nano, data  # noqa: SLF001
    return event


def unix_nano(event: Event) -> int:
    """Return the time of the event in nanoseconds since 1970; 0 for an earlier time, which OTLP cannot carry."""
    found = event._unix_nano  # noqa: SLF001 - worked out once for an event
    if found is None:
        found = event._unix_nano = _since_1970(event.timestamp)  # noqa: SLF001
    return found


def _since_1970(timestamp: datetime) -> int:
    if timestamp.tzinfo is None:
        with contextlib.suppress(OverflowError, ValueError, OSError):  # years that the platform's C library cannot do
            return max(0, round(timestamp.timestamp() * 1e6) * 1000)
        return 0
    return max(0, (timestamp - _EPOCH) // _MICROSECOND * 1000)


def _checked(value: object, kind: type, what: str, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"an event's {what} must be {wanted}, not {type(value).__name__}: {value!r:.100}")
    return value


def _checked_data(data: Any) -> dict[str, data_value_t]:
    if data.__class__ is not dict and not isinstance(data, Mapping):
        raise TypeError(f"an event's data must be a mapping, not {type(data).__name__}: {data!r:.100}")
    found: dict[str, data_value_t] = {}
    for key, value in data.items():
        name = key if key.__class__ is str else str(_checked(key, str, "keys", "strings"))
        plain: Any = value if value.__class__ in _EXACTLY else _plain(name, value)
        found[name] = plain
    return found


def _plain(key: str, value: object) -> Any:
    if isinstance(value, str):  # a subclass, whose own str() may return another text
        return str.__str__(value)
    if isinstance(value, int | float):
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if isinstance(value, bytes):  # the original takes them, too
        return bytes.decode(value, "utf-8", "replace")
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if hasattr(value, "item") and device == "cpu" and math.prod(getattr(value, "shape", ())) == 1:
        return _plain(key, unwrapped(value))
    raise TypeError(
        f"{key!r} of an event's data must be a str, float, int or bool, not {type(value).__name__}: {shown(value)}"
    )
