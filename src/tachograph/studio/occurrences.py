"""The events of a run, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from tachograph.diagnosis.incident import HANG, incident_of
from tachograph.runs.blocks import exact
from tachograph.runs.file import Look
from tachograph.runs.members import mapping, rank_of
from tachograph.runs.queries import EventRow, read_events
from tachograph.runs.recorded import event_of

_MOST_NEWS = 10_000  # of incidents
_OURS = ("tachograph.seq", "tachograph.stream", "tachograph.schema")


def events(look: Look, *, after: int, limit: int, names: Sequence[str] = ()) -> tuple[list[dict[str, Any]], bool]:
    """Return events in the order of their arrival, and whether there are more.

    Args:
        look: at the file.
        after: the number of the last one that is known.
        limit: so many at most.
        names: only events of these names; of all names where empty.
    """
    rows = list(read_events(look.rows, after=after, names=names, limit=limit + 1))
    return [event for row in rows[:limit] for event in _event(look, row)], len(rows) > limit


def events_for_a_browser(
    look: Look, *, after: int, limit: int, names: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], bool]:
    """Return :func:`events`, with attributes that a browser reads without rounding."""
    found, more = events(look, after=after, limit=limit, names=names)
    return [{**event, "attributes": exact(event["attributes"])} for event in found], more


def incidents(look: Look) -> list[dict[str, Any]]:
    """Return the hangs of a run, the newest last, each as its last event tells it."""
    found: dict[int, dict[str, Any]] = {}
    for each in events(look, after=0, limit=_MOST_NEWS, names=(HANG,))[0]:
        incident = incident_of(each["attributes"])
        found[incident["began"]] = incident
    return list(found.values())


def _event(look: Look, row: EventRow) -> list[dict[str, Any]]:
    try:
        event = event_of(row)
    except DecodeError as error:
        look.file.note(f"event {row.number}: {error}")
        return []
    attributes = {key: value for key, value in event.attributes.items() if key not in _OURS}
    named = {"number": event.number, "time": event.time_unix_nano, "name": event.name}
    return [{**named, "rank": rank_of(mapping(row.resource)), "attributes": attributes}]
