"""The switch that turns recording off in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Switch:
    """The switch: off in a forked child that records nothing, where every fold throws away its values."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "made",
        "on",
    )  # read at each recorded value: a class's attribute takes twice as long

    def __init__(self) -> None:
        self.on = True
        self.made: Callable[[Any], None] | None = None  # see on_distribution()
        self._begun: Callable[[], object] | None = None

    def on_begin(self, begun: Callable[[], object]) -> None:
        """Have ``begun`` called once: with the first metric group of the process, or with its first ``start()``."""
        self._begun = begun

    def begin(self) -> None:
        """Call the functions that :meth:`on_begin` was given."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun()

    def on_distribution(self, made: Callable[[Any], None]) -> None:
        """Have ``made`` called with each new distribution before its first value, instead of an earlier callable."""
        self.made = made

    def off_distribution(self, made: Callable[[Any], None]) -> None:
        """Call ``made`` no more, where it is the one."""
        if self.made == made:
            self.made = None


switch = _Switch()
