"""What a block's throttled intervals say besides their last values: extremes, and values that were not finite."""

from __future__ import annotations

import json
from typing import Any

from tachograph.runs._thinning import Raw
from tachograph.runs.blocks import PAIR, Block, unpack

_HEAD = [("seq", "<i8"), ("time", "<i8"), ("there", "<u8")]
_UNUSUAL = frozenset({"qmin", "qmax", "qmin_x", "qmax_x", "dnonfinite"})  # extremes are floats, counts are not
_TYPES = {"d": "<f8", "q": "<i8"}


def add_intervals(raw: Raw, block: Block, *, among: bool = False) -> None:
    """Add a block: its points, and what they say besides their own value, as :meth:`Raw.add` does, and faster.

    Args:
        raw: what it is added to.
        block: with columns beside x and value.
        among: put the extremes among the points, each before its own: then they need not be sorted, nor counted.

    Raises:
        ValueError: the block is damaged; of it only x and value were added.
    """
    before = len(raw.pairs)
    raw.pairs.append(block.pairs)
    try:
        import numpy as np
    except ImportError:
        raw.add(unpack(block))
        return
    columns = _columns(block.form)
    if not _UNUSUAL.isdisjoint(columns):
        raw.add(unpack(block))
        return
    row = np.dtype([*_HEAD, *((f"c{place}", _TYPES[each[0]]) for place, each in enumerate(columns))])
    points = np.frombuffer(block.pairs, dtype="<f8").reshape(-1, 2)
    if len(block.rest) != len(points) * row.itemsize:
        raise ValueError(f"a block of {len(block.pairs) // PAIR.size} points has {len(block.rest)} bytes for the rest")
    rest = np.frombuffer(block.rest, dtype=row)
    xs, values = points[:, 0], points[:, 1]

    def column(name: str, default: Any) -> tuple[Any, Any]:
        """Return a column's values, ``default`` where it has none, and where it has some."""
        if name not in columns:
            return default, np.zeros(len(xs), dtype=bool)
        place = columns.index(name)
        there = (rest["there"] >> np.uint64(place)) & np.uint64(1) != 0
        return np.where(there, rest[f"c{place}"], default), there

    (low, has_low), (high, has_high) = column("dmin", values), column("dmax", values)
    (low_x, _), (high_x, _) = column("dmin_x", xs), column("dmax_x", xs)
    both = has_low & has_high
    if among:
        turned = (high_x < low_x)[:, None]
        lows, highs = np.stack([low_x, low], axis=1), np.stack([high_x, high], axis=1)
        rows = np.stack([np.where(turned, highs, lows), np.where(turned, lows, highs), points], axis=1)
        raw.pairs[before] = rows[np.stack([both, both, np.ones_like(both)], axis=1)].tobytes()
    else:
        raw.extremes.extend(np.stack([low_x, low, high_x, high], axis=1)[both].ravel().tolist())
    lost, told = column("qnonfinite", 0)
    others = np.where(told, lost, 0) - ~np.isfinite(values)
    raw.hidden.extend(np.stack([xs, others], axis=1)[others > 0].ravel().tolist())


def _columns(form: str) -> list[str]:
    try:
        found = json.loads(form)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a block's columns are not legible: {form!r:.100}") from error
    if not isinstance(found, list) or not all(isinstance(each, str) and each[:1] in _TYPES for each in found):
        raise ValueError(f"a block's columns are not legible: {form!r:.100}")
    return found
