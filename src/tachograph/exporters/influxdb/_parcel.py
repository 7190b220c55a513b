"""Events as they wait in memory: packed, because 600,000 of them may wait."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tachograph.recording.journal import LogEvent

# In a parcel, and so in a line of the spool, at most: one is packed, written and read back without holding the
# interpreter for long.
EVENTS = 32


class Parcel(NamedTuple):
    """Some events in a row.

    Attributes:
        data: the events; :func:`unpacked` returns them.
        resource: the attributes of the process that logged them.
        points: how many they are.
        since: when they came, in seconds of the monotonic clock.
    """

    data: bytes
    resource: Mapping[str, Any]
    points: int
    since: float


def packed(
    events: Sequence[LogEvent],
    resource: Mapping[str, Any],
    since: float,
    lose: Callable[[int, str], None],
    size: int = EVENTS,
) -> Iterator[Parcel]:
    """Yield events as parcels.

    Args:
        events: with attributes of plain types.
        resource: the attributes of the process that logged them.
        since: when they came.
        lose: called with a number of events and a reason, for what cannot be packed.
        size: events in a parcel, at most.
    """
    for start in range(0, len(events), size):
        some = events[start : start + size]
        try:
            parcel = Parcel(marshal.dumps([_plain(event) for event in some]), resource, len(some), since)
        except ValueError:  # something in one of them
            yield from _one_by_one(some, resource, since, lose)
        else:
            yield parcel


def _one_by_one(
    events: Sequence[LogEvent], resource: Mapping[str, Any], since: float, lose: Callable[[int, str], None]
) -> Iterator[Parcel]:
    for event in events:
        try:
            yield Parcel(marshal.dumps([_plain(event)]), resource, 1, since)
        except ValueError as error:  # noqa: PERF203 - each by itself
            lose(1, f"{event.name!r:.100}: {error}")


def unpacked(parcel: Parcel) -> list[LogEvent]:
    """Return the events of a parcel."""
    return [LogEvent(*event) for event in marshal.loads(parcel.data)]  # noqa: S302 - our own, never out of the process


def after(parcels: Sequence[Parcel], points: int) -> list[Parcel]:
    """Return parcels without their first so many points."""
    left: list[Parcel] = []
    for parcel in parcels:
        if points <= 0:
            left.append(parcel)
        elif parcel.points > points:
            events = [_plain(event) for event in unpacked(parcel)[points:]]
            left.append(parcel._replace(data=marshal.dumps(events), points=len(events)))
        points -= parcel.points
    return left


def _plain(event: LogEvent) -> tuple[Any, ...]:
    return (*event[:3], _plain_mapping(event.attributes), *event[4:])


def _plain_mapping(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain_mapping(value) if isinstance(value, Mapping) else value for key, value in attributes.items()}
