"""Points of curves as events of the journal: an event a point, or a table of those of one curve."""

from __future__ import annotations

import os
import time
from array import array
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import groupby
from typing import Any

from tachograph.recording.journal import Raw
from tachograph.recording.packed_points import PackedPoints
from tachograph.recording.points import AttributeValue
from tachograph.recording.throttle import CurvePoint

POINT = "tachograph.metric"
_WORTH_PACKING = 4  # points
_NANO = 1e9


def _run_start() -> int:
    found = os.environ.get("TACHOGRAPH__START_NS", "")
    return int(found) if found.isdecimal() else time.time_ns()


RUN_START = _run_start()  # nanoseconds since 1970


def elapsed(time_unix_nano: int) -> float:
    """Return the seconds from the start of the run to a time."""
    return (time_unix_nano - RUN_START) / _NANO


def events_of(points: Sequence[CurvePoint], labels: Mapping[str, AttributeValue], now: float) -> list[Raw]:
    """Return an event for each point.

    Args:
        points: of a curve.
        labels: the metric's own attributes, which each of them has.
        now: on the clock of the curve.
    """
    if not points:
        return []
    wall = time.time_ns()
    times = [wall if point.moment == now else wall - int((now - point.moment) * _NANO) for point in points]
    return [
        (POINT, at, wall, (_attributes, labels, point, at), 0, 0, 0) for at, point in zip(times, points, strict=True)
    ]


def _attributes(
    labels: Mapping[str, AttributeValue], point: CurvePoint, time_unix_nano: int
) -> Mapping[str, AttributeValue]:
    """Return a point as it leaves."""
    return {**labels, **point.attributes(), "elapsed": elapsed(time_unix_nano)}


def values_of(event: Raw) -> int:
    """Return how many values of a ``Metric`` an event stands for; 0 for any other event."""
    later: Any = event[3]
    return later[2].values if later.__class__ is tuple and later[0] is _attributes else 0


def packed(events: Sequence[Raw]) -> tuple[list[PackedPoints], list[Raw]]:
    """Return the points among events packed, a table a curve and branch, and the other events.

    All points of a curve are packed, or none, so that their numbers stay in order: none where they are few, or where
    one stands for several values, as its extremes have an x of their own.
    """
    curves: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    apart = set[tuple[str, int]]()
    for event in events:
        later: Any = event[3]
        if later.__class__ is tuple and later[0] is _attributes:
            curves[_named(later[1])].append(later)
            if later[2].values > 1:
                apart.add(_named(later[1]))
    apart.update(named for named, points in curves.items() if len(points) < _WORTH_PACKING)
    found = [
        _table(list(points))
        for named, of_curve in curves.items()
        if named not in apart
        for _, points in groupby(of_curve, lambda later: (id(later[1]), later[2].branch))
    ]
    return found, list(events) if not found else [event for event in events if not _is_packed(event[3], apart)]


def _named(labels: Mapping[str, Any]) -> tuple[str, int]:
    """Return the metric and its execution: a metric that gets its group later has other labels from then on."""
    return labels["metric"], labels.get("execution", 0)


def _is_packed(later: Any, apart: Container[tuple[str, int]]) -> bool:
    return later.__class__ is tuple and later[0] is _attributes and _named(later[1]) not in apart


def _table(laters: Sequence[Any]) -> PackedPoints:
    labels, points = laters[0][1], [later[2] for later in laters]
    times = array("q", [later[3] for later in laters])
    x, values = array("d", [point.x for point in points]), array("d", [point.value for point in points])
    group, execution = labels.get("group", ""), labels.get("execution", 0)
    return PackedPoints((labels["metric"],), group, (), "", points[0].branch, times, x, values, {}, execution)
