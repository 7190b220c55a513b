"""Cells that other branches of the same issue fill: each is a strict expected failure until it does.

Delete an entry once its item is merged: its cells are unexpected passes by then. ``"*"`` stands for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ways import WAYS, WayName

WINDOWS = "item 2, window gauges that stay, and each window a point"
IN_PROVIDERS = ("each aggregation", "percentiles", "count and sum of a window", "a stat that is destroyed")

PENDING: Mapping[tuple[str, WayName], str] = {
    **{("a window that closes on time", way): WINDOWS for way in WAYS if way != "handler"},
    **{("each window", way): WINDOWS for way in ("http", "grpc")},
    **{(row, "alone"): WINDOWS for row in IN_PROVIDERS},
}


def pending(row: str, way: WayName) -> str:
    """Return why a cell is not filled yet; empty where it is to be."""
    return PENDING.get((row, way)) or PENDING.get(("*", way), "")
