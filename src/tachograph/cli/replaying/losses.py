"""What a destination did not take of what was replayed."""

from __future__ import annotations

from collections import Counter

from tachograph.recording.own_metrics import DROPPED, OWN_GROUP, Reason
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

_FOR_WHAT_THEY_ARE: frozenset[Reason] = frozenset({"rejected", "encoding"})  # the points beside them may arrive
_HARMLESS: frozenset[Reason] = frozenset({"nonfinite", "empty"})  # of a point that arrives, or that is none


class Losses:
    """Reads a registry's counts.

    Args:
        registry: where the destination counts.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told: Counter[str] = Counter()

    def refused(self) -> str:
        """Return how many were lost for what they are, since the last call, by reason; empty where none was."""
        refused: Counter[str] = Counter()
        refused.update({reason: n for reason, n in self._counts().items() if reason in _FOR_WHAT_THEY_ARE})
        since, self._told = refused - self._told, refused
        return _text(since)

    def others(self) -> str:
        """Return how many were lost though nothing is wrong with them, by reason; empty where none was."""
        return _text(Counter({reason: n for reason, n in self._counts().items() if reason not in _FOR_WHAT_THEY_ARE}))

    def _counts(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in self._registry.collect():
            if (metric.scope, metric.name) == (OWN_GROUP, DROPPED.name):
                for point in metric.points:
                    reason = str(dict(point.attributes).get("reason"))
                    if isinstance(point, NumberPoint) and reason not in _HARMLESS:
                        found[reason] += int(point.value)
        return found


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
