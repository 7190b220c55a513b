"""The losses of a run: points that were recorded but are not in its file, by reason and destination."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from tachograph.recording.own_metrics import DROPPED, REASONS

MISSING = "missing"
_INSIDE = frozenset({"registry", "journal"})  # where a process keeps values before it sends them
_GAP = "Sent but never received, from gaps in numbering: a process was killed, or its connection was lost."
_WHY: dict[str, str] = {**{str(reason): words for reason, words in REASONS.items()}, MISSING: _GAP}
_RECORDED = frozenset({"attribute"})  # the value was recorded, without that attribute
# These losses happen before a point gets its number, so they leave no gap.
_WITHOUT_NUMBER = frozenset(
    {
        *("no_number", "negative", "nonfinite", "overflow", "max_samples", "throttled", "closed", "empty"),
        *("windows_full", "feedback", "replay_rate", "replay_late", "replay_negative", "replay_aggregated"),
        "helper",
    }
)


class Loss(NamedTuple):
    """Points that were lost for one reason.

    Attributes:
        reason: a reason of ``tachograph.dropped``, or ``missing`` for gaps in the numbers of received points that no
            process has counted as dropped.
        destination: the destination of the points; may be empty.
        points: the number of lost points.
    """

    reason: str
    destination: str
    points: int

    @property
    def why(self) -> str:
        """An explanation of the reason; empty if this version does not know the reason."""
        return _WHY.get(self.reason, "")


def read_losses(rows: Callable[..., Iterable[Sequence[Any]]]) -> list[Loss]:
    """Return the losses of a run, largest first.

    Args:
        rows: runs a query and returns its rows.
    """
    found: Counter[tuple[str, str]] = Counter()
    counted: Counter[int] = Counter()  # dropped points that had a number, by process
    for process, attributes, data in rows(
        "SELECT process, attributes, data FROM series JOIN state ON series.id = state.series"
        " WHERE scope = ? AND name = ? AND shape = 'counter'",
        *(DROPPED.group, DROPPED.name),
    ):
        try:
            labels = dict(json.loads(attributes))
            amount = _total(json.loads(data))
        except (ValueError, TypeError, LookupError, OverflowError):
            continue  # the series is damaged, which its other readers report
        reason = str(labels.get("reason", ""))
        destination = str(labels.get("destination", ""))
        if reason not in _RECORDED:
            found[reason, destination] += amount
        if reason not in _WITHOUT_NUMBER:
            counted[process] += amount
    # Streams whose numbers derive from their content have no gaps.
    for process, missing in rows(
        "SELECT process, sum(gap) FROM (SELECT process, max(last) - sum(last - first + 1) AS gap"
        " FROM arrived JOIN stream ON stream.id = stream WHERE name NOT LIKE 'content:%' GROUP BY stream.id)"
        " GROUP BY process"
    ):
        found[MISSING, ""] += max(0, missing - counted[process])
    return sort_losses(found)


def sort_losses(found: Mapping[tuple[str, str], int]) -> list[Loss]:
    """Return losses by reason and destination, largest first."""
    listed = [Loss(*named, points) for named, points in found.items() if points > 0]
    return sorted(listed, key=lambda loss: (-loss.points, loss.reason, loss.destination))


def describe_losses(found: Sequence[Loss]) -> str:
    """Return losses as ``1,234 points: queue_full 1,200, missing 34``; empty if nothing is lost."""
    if not found:
        return ""
    total = sum(loss.points for loss in found)
    parts = [f"{loss_name(loss.reason, loss.destination)} {loss.points:,}" for loss in found]
    return f"{total:,} point{'s' * (total != 1)}: {', '.join(parts)}"


def loss_name(reason: str, destination: str) -> str:
    """Return the reason and, if it is known and not a part of the process itself, the destination."""
    return f"{reason}, {destination}" if destination and destination not in _INSIDE else reason


def _total(state: Any) -> int:
    """Return the total in a counter's saved state: of the process's latest start plus all earlier ones."""
    amounts = [part for part in state[2:4] if isinstance(part, int | float) and isfinite(part)]
    return int(sum(amounts))
