"""What a page leaves out: counted once, and the first of each name said."""

from __future__ import annotations

import logging

from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

_MOST_KEPT = 10_000

_log = logging.getLogger("tachograph")


class Conflicts:
    """What one page has left out so far, so that a scrape each second counts nothing twice.

    Args:
        registry: where it is counted.
        destination: the label under which it is.
        page: the page's name in the log.
    """

    def __init__(self, registry: Registry, destination: str, page: str) -> None:
        self._registry = registry
        self._destination = destination
        self._page = page
        self._counted: set[object] = set()
        self._said: set[str] = set()

    def __call__(self, name: str, why: str, count: int = 1, which: object = None) -> None:
        """Count series of a family that clash with another one; ``which`` tells them from all others."""
        if self._is_new(which or (name, why)):
            self._registry.count_dropped("name_conflict", self._destination, count)
            if name not in self._said:
                self._said.add(name)
                _log.warning("%s: %s %s; the later one is left out (further ones are counted)", self._page, name, why)

    def left_out(self, reason: Reason, metric: str, count: int = 1) -> None:
        """Count a metric that cannot be written; ``metric`` says which one, as the log does."""
        if self._is_new((metric, reason)):
            self._registry.count_dropped(reason, self._destination, count)
            _log.warning("%s: %s is left out: %s", self._page, metric, reason.replace("_", " "))

    def duplicate(self, name: str, labels: str, which: object) -> None:
        """Count a series that has the name and the labels of another one; ``which`` tells it from all others."""
        self(name, f"has two series with the labels {{{labels}}}", which=which)

    def _is_new(self, key: object) -> bool:
        if key in self._counted or len(self._counted) >= _MOST_KEPT:
            return False
        self._counted.add(key)
        return True
