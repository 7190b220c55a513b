"""The pipeline of a program that did not ask for one: zero code.

It sets no global provider. What the program sets up itself, at any time, stays as it is, and is joined: what is
recorded leaves there as well. Who the process is may be known late (``elastic_launch`` sets RANK in workers that run
already), so that is looked up before each collection.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tachograph.exporters.otlp.settings import SIGNALS
from tachograph.identity.environment import text
from tachograph.identity.program import mark_start, program_name
from tachograph.identity.rank import OWNER, descends_from_rank, owner_mark
from tachograph.identity.resource import announced, instance_id, resource_attributes
from tachograph.pipeline._routes import LONGEST_EXIT
from tachograph.pipeline.destinations import Route, build_routes
from tachograph.pipeline.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.pipeline.settings import Settings
from tachograph.recording import journal as journals
from tachograph.recording.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from tachograph.exporters.batch import Batch
    from tachograph.recording.points import AttributeValue

STARTED, ENDED = "tachograph.process.start", "tachograph.process.end"
UNMARKED = "-"  # in TACHOGRAPH_OWNER: nobody's mark

# What says who the process is, and may appear while it runs.
_IDENTITY = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "TACHOGRAPH_RUN",
)

_log = logging.getLogger("tachograph")


class Ambient(Pipeline):
    """Delivers what is recorded, from the start of the interpreter to its end.

    Its first event is ``tachograph.process.start``; the last one, where the process ends in an orderly way,
    ``tachograph.process.end`` with its ``reason``: ``exit``, ``exception``, ``sigterm``; ``renamed`` where the process
    goes on under another identity.

    Args:
        settings: what it runs with.
        registry: what it delivers.
        journal: the events that it delivers.
        waits: deliver nothing before RANK is there: a process that may become a rank, or be a mere helper.
        directly: the process was started by ``tachograph run`` itself; others without a rank have their program's name
            as their role, which tells them from it.
        on_settled: called once it is known who the process is.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        journal: journals.Journal = journals.default,
        waits: bool = False,
        directly: bool = True,
        on_settled: Callable[[], object] = lambda: None,
    ) -> None:
        self._journal = journal
        self._waits = waits
        self._directly = directly
        self._on_settled = on_settled
        self._identified: tuple[str | None, ...] | None = None
        self._announced = False
        self._settling = threading.RLock()
        self.guests: list[Pipeline] = []
        super().__init__(settings, registry, journal=journal, asked=frozenset(SIGNALS), unasked=True)

    def _identity(self) -> Mapping[str, AttributeValue]:
        # Not the settings' names: sys.argv is not there yet when the interpreter reads its sitecustomize.
        found = resource_attributes(extra=dict(self.settings.resource))
        placed = "dl.rank" in found or "dl.role" in found
        if placed or self._directly:
            return found
        helper = os.getpid() if descends_from_rank(os.environ, os.getpid()) else None
        found["dl.role"] = program_name()
        return {**found, "service.instance.id": instance_id(found, helper=helper)}

    def _connect(self) -> None:
        # A new variable may move the environment under a thread of the program's that reads it in C; a changed one
        # does not. So it is made here, in the main thread.
        os.environ.setdefault(OWNER, UNMARKED)
        self._routes.own = build_routes(self.settings, self._registry, metrics=True, own_logs=True)
        self._routes.feed(self._read_for)
        self._events.open(self._routes.own)
        self._say_start()
        self._settle()
        self._ticker.start()

    def _say_start(self) -> None:
        self._journal.append(STARTED, time.time_ns(), {"interval": self.settings.interval})

    def _settle(self) -> bool:
        """Look who the process is; False as long as that is not known."""
        with self._settling:
            return self._settle_alone()

    def _settle_alone(self) -> bool:
        identified = tuple(os.environ.get(variable) for variable in _IDENTITY)
        if identified == self._identified:
            return True
        if self._waits and not text(os.environ, "RANK"):
            return False
        if self._announced:
            self._announced = False
            self._journal.append(ENDED, time.time_ns(), {"reason": "renamed"})
            self._events.deliver(list(self._routes), self._resource)
            self._say_start()
        first, self._identified = self._identified is None, identified
        self._resource = self._identity()
        announced.announce(self._resource, self.settings.resource_labels)
        mark = owner_mark(os.environ, os.getpid())
        if mark is not None and os.environ.get(OWNER) != mark:
            os.environ[OWNER] = mark
        if first:
            mark_start(os.environ, self._resource.get("dl.rank"), program_name())
            self._on_settled()
            self._observe()
            if "prometheus" in self.settings.metrics:
                self._serve()
        return True

    def _export(self, *, metrics: bool, wait: float = -1, ticked: bool = False) -> bool:
        if not self._settle():
            return True
        with self._settling:
            self._announced = True
        return super()._export(metrics=metrics, wait=wait, ticked=ticked)

    def look_for_providers(self) -> None:
        """Join the providers that the program has set, once it is known who the process is."""
        if self._identified is not None:
            super().look_for_providers()

    def _read_for(self, reader: MetricReader, timeout: float) -> Batch | None:
        return super()._read_for(reader, timeout) if self._settle() else None

    def attach(self, route: Route) -> None:
        """Deliver to one more destination: whoever asks for that does not want to wait for a rank."""
        self._waits = False
        super().attach(route)

    def wake(self) -> None:
        """Wait for no rank: the program has asked for delivery."""
        self._waits = False

    def _last_words(self, dying: bool) -> None:
        self._dying = dying  # before the guests' end: it is theirs, too
        if dying:
            self.last_moment = time.monotonic() + LONGEST_EXIT
        for guest in self.guests:
            if dying:
                guest.last_moment = self.last_moment
                guest.shutdown(EXIT_TIMEOUT / 2, exiting=True)
            else:
                guest.flush(EXIT_TIMEOUT / 2)
        super()._last_words(dying)

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        self._settling = threading.RLock()
        super().reset_in_child()

    def _take_leave(self) -> None:
        if not self._settle():
            self._journal.keep(False)  # a mere helper has nothing to lose
            return
        self._export(metrics=False, wait=EXIT_TIMEOUT / 4)  # first what others still log
        reason = "sigterm" if self._dying else "exit"
        raised = getattr(sys, "last_type", None)
        attributes: dict[str, AttributeValue] = {"reason": reason}
        if raised is not None and not self._dying:
            attributes = {"reason": "exception", "error.type": raised.__qualname__}
        self._journal.append(ENDED, time.time_ns(), attributes)
