"""Wishes: deliveries that the front doors ask for without a ``start()``.

The doors write them here, and the pipeline reads them; so no door knows the pipeline. It is loaded for the first wish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Fulfils(Protocol):
    """The pipeline of the process, as the doors see it."""

    def export(self, group: str | None) -> object:
        """Deliver to the exporter of a group, or to that of all (None); or to none any more."""

    def write(self, target: Any) -> bool:
        """Deliver to a database; False where nothing here can write to it, which was said."""

    def release(self, target: Any, timeout: float) -> object:
        """Deliver to a database its last points, within ``timeout`` seconds, and no more."""

    def flush(self, timeout: float) -> bool:
        """Deliver the logged events, within ``timeout`` seconds; False where something still waits."""


class Wishes:
    """The wishes of this process.

    Attributes:
        exporters: those given to ``configure()``, by group (None: for all groups).
        targets: the databases of loggers, and how many loggers write to each.
        fulfils: the pipeline that delivers; None before the first wish.
    """

    def __init__(self) -> None:
        self.exporters: dict[str | None, Any] = {}
        self.targets: dict[Any, int] = {}
        self.fulfils: Fulfils | None = None
        self._load: Callable[[], object] | None = None

    def loaded_by(self, load: Callable[[], object]) -> None:
        """Have ``load`` called for the first wish: it imports the module that calls :meth:`fulfilled_by`."""
        self._load = load

    def fulfilled_by(self, fulfils: Fulfils) -> None:
        """Deliver by this from now on."""
        self.fulfils = fulfils

    def wanted(self) -> Fulfils | None:
        """Return the pipeline that delivers, loaded now where it was not; None in a program without one."""
        if self.fulfils is None and self._load is not None:
            self._load()
        return self.fulfils


wishes = Wishes()
