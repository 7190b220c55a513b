"""What this process has running: one pipeline, and beside it what was configured to deliver by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tachograph.pipeline._point_routes import PointRoutes
from tachograph.recording import registry

if TYPE_CHECKING:
    from tachograph.pipeline._ambient import Ambient
    from tachograph.pipeline.destinations import Route
    from tachograph.pipeline.pipeline import Pipeline


class OwnProcess:
    """What runs.

    Attributes:
        lock: whoever changes any of it has it.
        pipeline: of ``start()``, of zero code, or of what delivers by itself; the last one, where none runs.
        ambient: the same, where zero code has begun it.
        begin: what began that, for a forked child.
        again: what starts the pipeline of ``start()`` again, for a forked child.
        by_itself: the pipeline is there only for what was configured, so that a ``start()`` takes over.
        configured: where ``configure(exporter)`` has a group's metrics delivered.
        points: where loggers have their points delivered.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pipeline: Pipeline | None = None
        self.ambient: Ambient | None = None
        self.begin: Callable[[], object] | None = None
        self.again: Callable[[], object] | None = None
        self.by_itself = False
        self.configured: dict[str | None, Route] = {}
        self.points = PointRoutes(registry.default)

    def guests(self) -> list[Pipeline]:
        """Return the pipelines that ``start()`` has added to that of zero code."""
        return [] if self.ambient is None else self.ambient.guests

    def by_themselves(self) -> list[Route]:
        """Return the destinations of what was configured."""
        return [*self.configured.values(), *self.points]


process = OwnProcess()
