"""Progress: how far the loops of a run are, and metrics whose scale says that they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tachograph.runs.blocks import Block, Sample, unpack
from tachograph.runs.look import Look
from tachograph.studio.charts import Drawn, finite, newest

MOST_BARS = 3  # of one loop in one process: it may be nested in itself
_ENDS = "SELECT form, pairs, rest, seq0, seq1 FROM block WHERE curve = ? ORDER BY {} LIMIT 1"


def progress(look: Look, drawn: Iterable[Drawn]) -> list[dict[str, Any]]:
    """Return each bar: items done, of how many, how many a second, and seconds to go.

    Of loops that are repeated it is the newest few. A loop says all that itself. For a metric whose scale has
    ``progress`` the total is the scale's upper bound, and the rate is that since its first point.
    """
    bars = newest((each for each in drawn if each.number and each.about.get("progress")), MOST_BARS)
    return [bar for each in bars for bar in _bar(look, each)]


def _bar(look: Look, each: Drawn) -> list[dict[str, Any]]:
    last = _sample(look, each.number, "seq0 DESC", -1)
    if last is None:
        return []
    more = last.more
    total = finite(more.get("total", each.about.get("upper")))
    rate, eta = finite(more.get("rate")), finite(more.get("eta"))
    if rate is None:
        rate = _rate(_sample(look, each.number, "seq0", 0), last)
    left = None if total is None else max(total - last.value, 0)
    if eta is None and left is not None and rate:
        eta = finite(left / rate)
    named = {"metric": each.metric, "group": each.group, "rank": each.rank, "execution": each.execution}
    numbers = {"count": last.value, "total": total, "rate": rate, "eta": eta}
    done = left is not None and left <= 0
    return [{**named, "curve": each.number, "task": each.about.get("task"), **numbers, "done": done}]


def _sample(look: Look, curve: int, order: str, place: int) -> Sample | None:
    row = next(look.rows(_ENDS.format(order), curve), None)
    if row is None:
        return None
    form, pairs, rest, seq0, seq1 = row
    try:
        return list(unpack(Block(form, pairs, rest)))[place]
    except (ValueError, LookupError) as error:
        look.file.note(f"points {seq0} to {seq1} of a stream: {error}")
        return None


def _rate(first: Sample | None, last: Sample) -> float | None:
    if first is None or last.time_unix_nano <= first.time_unix_nano:
        return None
    rate = finite((last.value - first.value) / ((last.time_unix_nano - first.time_unix_nano) / 1e9))
    return rate if rate is not None and rate > 0 else None
