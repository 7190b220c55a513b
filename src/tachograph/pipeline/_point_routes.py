"""The routes of the process's loggers, each to its InfluxDB; they outlive a pipeline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tachograph.pipeline._routes import CLOSING
from tachograph.pipeline.destinations import Route
from tachograph.recording import journal as journals
from tachograph.recording.registry import Registry
from tachograph.recording.wishes import wishes

if TYPE_CHECKING:
    from tachograph.logger.influx_target import InfluxTarget
    from tachograph.pipeline.pipeline import Pipeline

_log = logging.getLogger("tachograph")


class PointRoutes:
    """What loggers' points leave by.

    Args:
        registry: where losses are counted.

    Attributes:
        unreachable: databases for which there is nothing that writes to them.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._routes: dict[InfluxTarget, Route] = {}
        self._pipeline: Pipeline | None = None
        self._lock = threading.RLock()
        self.unreachable: set[InfluxTarget] = set()

    def attach_to(self, pipeline: Pipeline) -> None:
        """Deliver through this pipeline to every database, and from now on no more through another one."""
        with self._lock:
            if pipeline is not self._pipeline:
                self._pipeline = pipeline
                for route in list(self._routes.values()):
                    pipeline.attach(route)
            for target in list(wishes.targets):
                if target not in self._routes and target not in self.unreachable:
                    self._add(pipeline, target)

    def _add(self, pipeline: Pipeline, target: InfluxTarget) -> None:
        try:
            from tachograph.exporters.influxdb import InfluxDB

            made = InfluxDB(target, self._registry, only=True)
        except ImportError as error:
            self.unreachable.add(target)
            _log.error("no point goes to %s: pip install 'tachograph[influxdb]' (%s)", target.url, error)
            return
        self._routes[target] = route = Route(made, events=True, is_loading=made.is_loading)
        pipeline.attach(route)

    def release(self, target: InfluxTarget, timeout: float) -> None:
        """Deliver to a database what it has to get yet, within ``timeout`` seconds, and no more.

        What has not left the journal by then goes on leaving, until the process ends.
        """
        deadline, pipeline = time.monotonic() + timeout, self._pipeline
        if pipeline is not None and pipeline.running and not pipeline.deliver_events(deadline):
            return
        with self._lock:
            route = self._routes.get(target)
            if route is None or target in wishes.targets:  # a new logger has it meanwhile
                return
            if self._pipeline is not None:
                self._pipeline.detach(route)
            del self._routes[target]
        route.destination.close(max(deadline - time.monotonic(), CLOSING))

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def flush(self, timeout: float) -> bool:
        """Deliver what was logged, within ``timeout`` seconds; False where something still waits."""
        if self._pipeline is None or not self._pipeline.running:
            return not len(journals.default)
        return self._pipeline.flush(timeout)

    def forget(self) -> None:
        """Leave the parent's routes to it, after a fork."""
        self._lock = threading.RLock()
        self._routes = {}
        self._pipeline = None
