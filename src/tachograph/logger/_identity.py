"""Who logs: the tags of a logger's own, and the dice that choose among its points."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

_SCALARS = (str, int, float)


class Dice:
    """Chance of our own: that of the program stays as it has seeded it."""

    def __init__(self) -> None:
        self.throw_again()

    def throw_again(self) -> None:
        """Begin anew, as a forked child does: it would choose as its parent does."""
        self._random = random.Random(os.urandom(16)).random  # noqa: S311 - no secret

    def falls(self, rate: object) -> bool:
        """Tell whether something that happens at a rate from 0 to 1 happens now.

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


def random_id() -> str:
    """Return an id for a start of a process."""
    return os.urandom(8).hex()


def text(value: object) -> str:
    """Return a name as a string; "" where it is None."""
    return "" if value is None else str(value)


def identity_tags(  # noqa: PLR0917 - as in the constructor
    uid: object, prefix: str, version: object, runtime_id: object, named: Mapping[str, str], config: object
) -> dict[str, str]:
    """Return a logger's own tags, in their documented order; what is empty is left out.

    Raises:
        TypeError: the config has no attributes.
    """
    tags = {
        "uid": text(uid),
        "prefix": prefix,
        "version": text(version),
        "runtime_id": text(runtime_id) or random_id(),
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
        f"config_{name}": str(value)
        for name, value in attributes.items()
        if isinstance(value, _SCALARS) and isinstance(name, str) and not name.startswith("_")
    }
