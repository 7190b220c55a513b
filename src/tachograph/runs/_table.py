"""Points as rows of a table."""

from __future__ import annotations

from typing import Any

from tachograph.runs.recorded import Point

# What points may say besides: of a throttled interval, and of a loop's progress.
MORE = ("min", "min_x", "max", "max_x", "count", "nonfinite", "elapsed", "rate", "total", "eta")
HEADER = (
    *("metric", "group", "units", "rank", "execution", "branch", "x", "time_unix_nano", "value"),
    *MORE,
    *("stream", "seq"),
)


def row(point: Point) -> list[Any]:
    """Return a point's cells, in the order of :data:`HEADER`; None where it says nothing."""
    more = point.more
    named = point.metric, point.group, point.units, point.rank, point.execution
    return [
        *named,
        point.branch,
        point.x,
        point.time_unix_nano,
        point.value,
        *[more.get(key) for key in MORE],
        point.stream,
        point.seq,
    ]
