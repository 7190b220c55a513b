"""Which tags may be labels of a series: those with few values, and none that counts up."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from tachograph.recording.instrument import creation
from tachograph.recording.registry import Registry

COUNTING = ("global_step", "step", "iteration", "batch", "window", "epoch")
"""Tags that count up by their name; the first of them that a point has is its x."""

LABEL_VALUES = 32

_log = logging.getLogger("tachograph")


class TagCensus:
    """The values that each tag of a measurement has had, as far as it matters: up to a limit."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], set[str] | None] = {}
        self._said: set[str] = set()

    def admits(self, measurement: str, tag: str, value: str) -> bool:
        """Tell whether a tag with this value may be a label; beyond the limit it is none any more, which is said."""
        with creation.lock:
            seen = self._seen.setdefault((measurement, tag), set())
            if seen is None:
                return False
            if value in seen or len(seen) < LABEL_VALUES:
                seen.add(value)
                return True
            self._seen[measurement, tag] = None
        _log.warning(
            "tag %r of %r has more than %d values: it is no label of the metrics any more, but stays in every event",
            tag,
            measurement,
            LABEL_VALUES,
        )
        return False

    def grown(self, measurement: str, tag: str) -> bool:
        """Tell whether a tag has had too many values to be a label."""
        return self._seen.get((measurement, tag), _NOTHING) is None

    def say_counting(self, tag: str, how: str) -> None:
        """Say once of a tag that it counts up by its name."""
        if tag not in self._said:
            self._said.add(tag)
            _log.info("tag %r counts up: it is no label of the metrics, a number is the point's x%s", tag, how)


_NOTHING: set[str] = set()
_by_registry: WeakKeyDictionary[Registry, TagCensus] = WeakKeyDictionary()


def census_of(registry: Registry) -> TagCensus:
    """Return the census of a registry: what several loggers record under one name is counted together."""
    return _by_registry.setdefault(registry, TagCensus())
