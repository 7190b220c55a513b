"""The switch that turns recording off in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Switch:
    """Off in a forked child that shall record nothing: every fold then throws away what it finds."""

    on = True
    made: Callable[[Any], None] | None = None  # told of each distribution before its first value
    begun: Callable[[], object] | None = None  # see begin()

    def begin(self) -> None:
        """Begin whatever begins with the first metric group of the process, or with its first ``start()``."""
        begun, self.begun = self.begun, None
        if begun is not None:
            begun()


switch = _Switch()
