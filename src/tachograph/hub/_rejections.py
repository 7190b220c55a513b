"""The rejected parts of requests: each is counted, and said once a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import REASONS, Reason
from tachograph.recording.registry import Registry


class Rejected(NamedTuple):
    """The rejected part of a request: the number of items, and the reason in words, empty where none."""

    items: int = 0
    why: str = ""


class Rejections:
    """The rejected items of all requests.

    Args:
        registry: where they are counted.

    Attributes:
        total: how many there were.
        by_reason: how many of each reason.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._log_once = LogOnce()
        self.total = 0
        self.by_reason: Counter[Reason] = Counter()

    def take(self, rejected: Counter[Reason], named: Mapping[Reason, str]) -> Rejected:
        """Count the items that one request has of each reason, and return them in words.

        Args:
            rejected: how many.
            named: which ones, in words.
        """
        for reason, count in rejected.items():
            self.total += count
            self.by_reason[reason] += count
            self._registry.count_dropped(reason, "hub", count)
            message = (
                "the hub rejected data (further warnings are suppressed; see tachograph_dropped_total on /metrics): %s"
            )
            self._log_once(reason, message, reason.replace("_", " "))
        why = [f"{count} {reason}, {named[reason]}: {REASONS[reason]}" for reason, count in rejected.items()]
        return Rejected(sum(rejected.values()), " ".join(why))
