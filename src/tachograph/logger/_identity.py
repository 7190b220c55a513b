"""The identity of a logger: its own tags, the census of all tags, and the dice that choose among its points."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from tachograph.recording.ids import random_hex
from tachograph.recording.instrument import creation
from tachograph.recording.log import LogOnce, log
from tachograph.recording.registry import Registry

CONFIG = "config_"  # begins the name of each tag from a logger's configuration
_SCALARS = (str, int, float)


class Dice:
    """Random numbers of our own: the program's stay as it has seeded them."""

    def __init__(self) -> None:
        self.throw_again()

    def throw_again(self) -> None:
        """Begin anew, as a forked child does: it would choose as its parent does."""
        self._random = random.Random(os.urandom(16)).random  # noqa: S311 - no secret

    def falls(self, rate: object) -> bool:
        """Tell whether an event at a rate from 0 to 1 happens now.

        Raises:
            TypeError: the rate is no number.
            ValueError: it is none from 0 to 1.
        """
        try:
            share = float(rate)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise TypeError(f"sample_rate must be a number from 0 to 1: {rate!r:.100}") from None
        if not 0 <= share <= 1:
            raise ValueError(f"sample_rate must be from 0 to 1: {rate!r:.100}")
        return self._random() < share


def name_text(value: object) -> str:
    """Return a name as a string; "" where it is None."""
    return "" if value is None else str(value)


def identity_tags(  # noqa: PLR0917 - as in the constructor
    uid: object, prefix: str, version: object, runtime_id: object, named: Mapping[str, str], config: object
) -> dict[str, str]:
    """Return a logger's own tags, in their documented order; an empty one is left out.

    Raises:
        TypeError: the config has no attributes.
    """
    tags = {
        "uid": name_text(uid),
        "prefix": prefix,
        "version": name_text(version),
        "runtime_id": name_text(runtime_id) or random_hex(8),
        **named,
    }
    return {**{name: value for name, value in tags.items() if value}, **_config_tags(config)}


def _config_tags(config: object) -> dict[str, str]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        attributes: Mapping[object, object] = config
    else:
        try:
            attributes = dict(vars(config).items())
        except TypeError:
            wrong = f"not {type(config).__name__}: {config!r:.100}"
            raise TypeError(f"config must be a mapping, or an object with attributes, {wrong}") from None
    return {
        f"{CONFIG}{name}": str(value)
        for name, value in attributes.items()
        if isinstance(value, _SCALARS) and isinstance(name, str) and not name.startswith("_")
    }


COUNTING = ("global_step", "step", "iteration", "batch", "window", "epoch")
"""Tags that count up by their name; the first of them that a point has is its x."""

LABEL_VALUES = 32


class TagCensus:
    """The values that each tag of a measurement has had, as far as it matters: up to a limit."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], set[str] | None] = {}
        self._log_once = LogOnce()

    def admits(self, measurement: str, tag: str, value: str) -> bool:
        """Tell whether a tag with this value may be a label; beyond the limit it is none any more, which is logged."""
        with creation.lock:
            seen = self._seen.setdefault((measurement, tag), set())
            if seen is None:
                return False
            if value in seen or len(seen) < LABEL_VALUES:
                seen.add(value)
                return True
            self._seen[measurement, tag] = None
        log.warning(
            "tag %r of %r has more than %d values: it is no longer a metric label, but stays in every event",
            tag,
            measurement,
            LABEL_VALUES,
        )
        return False

    def grown(self, measurement: str, tag: str) -> bool:
        """Tell whether a tag has had too many values to be a label."""
        return self._seen.get((measurement, tag), _NOTHING) is None

    def say_counting(self, tag: str, how: str) -> None:
        """Log once of a tag that it counts up by its name."""
        message = "tag %r is a counter: using it as the point's x if it is a number, and not as a metric label%s"
        self._log_once(tag, message, tag, how, level=logging.INFO)


_NOTHING: set[str] = set()
_by_registry: WeakKeyDictionary[Registry, TagCensus] = WeakKeyDictionary()


def census_of(registry: Registry) -> TagCensus:
    """Return the census of a registry: the tags of several loggers under one name are counted together."""
    return _by_registry.setdefault(registry, TagCensus())
