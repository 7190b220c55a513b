"""What ``MetricsLogger.log`` is given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.logger._readings import TAGS, get_gpu_metrics, get_system_metrics

_LATEST = 2**63  # nanoseconds: beyond what InfluxDB has for a time


def mapping(what: str, given: object) -> dict[Any, Any]:
    """Return tags or fields as a dict.

    Raises:
        TypeError: they are no mapping.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a mapping of names to values, not {type(given).__name__}: {given!r:.100}")
    return dict(given)


def unix_nano(given: Any) -> int:
    """Return a timestamp, in nanoseconds since 1970.

    Raises:
        TypeError: it is no int.
        ValueError: it is before 1970, or beyond what InfluxDB can hold.
    """
    try:
        when = given.__index__()
    except AttributeError:
        raise TypeError(f"timestamp must be an int, nanoseconds since 1970, not {type(given).__name__}") from None
    if not 0 < when < _LATEST:
        raise ValueError(f"timestamp must be nanoseconds since 1970, below 2**63: {given!r:.100}")
    return int(when)


def at_least_1(what: str, given: object) -> int:
    """Return a size.

    Raises:
        TypeError: it is no int.
        ValueError: it is below 1.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{what} must be an int, not {type(given).__name__}: {given!r:.100}")
    if given < 1:
        raise ValueError(f"{what} must be at least 1: {given}")
    return given


def with_readings(fields: Mapping[str, object], *, system: bool, gpu: bool) -> tuple[dict[str, object], dict[str, str]]:
    """Return a point's fields with the machine's, of which the program's own win, and the tags of the device."""
    found: dict[str, object] = {f"sys_{name}": value for name, value in get_system_metrics().items()} if system else {}
    tags: dict[str, str] = {}
    if gpu:
        device = get_gpu_metrics()
        tags = {name: str(device.pop(name)) for name in TAGS if name in device}
        found.update(device)
    return {**fields, **{name: value for name, value in found.items() if name not in fields}}, tags
