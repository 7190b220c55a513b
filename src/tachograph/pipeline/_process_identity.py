"""The identity of the process, for a pipeline: looked up once, or before each collection, where it may come late.

``elastic_launch`` sets RANK in workers that run already, so zero code cannot know at the start of the interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tachograph.identity.environment import text
from tachograph.identity.program import mark_start, program_name
from tachograph.identity.rank import OWNER, descends_from_rank, owner_mark
from tachograph.identity.resource import announced, instance_id, resource_attributes
from tachograph.pipeline.settings import Settings
from tachograph.recording import journal as journals
from tachograph.recording.curve import RUN_START
from tachograph.recording.points import AttributeValue

STARTED, ENDED = "tachograph.process.start", "tachograph.process.end"
UNMARKED = "-"  # in TACHOGRAPH_OWNER: no rank's mark

# The variables of the identity, which may appear while the process runs.
_VARIABLES = (
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


class Identity(Protocol):
    """The identity of the process, as far as it is known."""

    @property
    def resource(self) -> Mapping[str, AttributeValue]:
        """Its resource attributes, as far as they are known."""

    @property
    def known(self) -> bool:
        """Whether it is known by now."""

    def begin(self) -> None:
        """Look for the first time."""

    def settle(self, deliver: Callable[[], object]) -> bool:
        """Look again.

        Args:
            deliver: called before it changes: delivers the events logged up to now.

        Returns:
            Whether it is known.
        """

    def use(self) -> None:
        """Remember that a delivery was made under it."""

    def wait_no_longer(self) -> None:
        """Take the identity as it is now: the program has asked for delivery."""

    def take_leave(self, deliver: Callable[[], object], *, dying: bool) -> None:
        """Log the last event of the process, after ``deliver`` has had the others log theirs."""


class GivenIdentity:
    """The identity of a pipeline that the program has started: as its settings say, from then on.

    Args:
        settings: of the pipeline.
        announces: tell it to the other ways out of the process; not for a pipeline beside another one.
    """

    def __init__(self, settings: Settings, *, announces: bool) -> None:
        self._settings, self._announces = settings, announces
        self.resource: Mapping[str, AttributeValue] = {}
        self.known = False

    def begin(self) -> None:
        """Look it up."""
        settings = self._settings
        self.resource = resource_attributes(
            service_name=settings.service_name, run_id=settings.run_id, extra=dict(settings.resource)
        )
        if self._announces:
            announced.announce(self.resource, settings.resource_labels)

    def settle(self, _deliver: Callable[[], object]) -> bool:
        """Return True: it stays as it is."""
        self.known = True
        return True

    def use(self) -> None:
        """Do nothing: it never changes."""

    def wait_no_longer(self) -> None:
        """Do nothing: it waits for nothing."""

    def take_leave(self, _deliver: Callable[[], object], *, dying: bool) -> None:
        """Log nothing."""


class AmbientIdentity:
    """The identity of a process under zero code, which may become a rank while it runs.

    Its first event is ``tachograph.process.start``, with the start of the run in nanoseconds; the last one, where the
    process ends in an orderly way, ``tachograph.process.end`` with its ``reason``: ``exit``, ``exception``,
    ``sigterm``; ``renamed`` where the process goes on under another identity.

    Args:
        settings: of the pipeline.
        waits: it is not known before RANK is there: a process that may become a rank, or be a mere helper.
        directly: the process was started by ``tachograph run`` itself; others without a rank have their program's name
            as their role, which tells them from it.
        journal: where its events are logged.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        waits: bool = False,
        directly: bool = True,
        journal: journals.Journal = journals.default,
    ) -> None:
        self._settings, self._waits, self._directly, self._journal = settings, waits, directly, journal
        self._identified: tuple[str | None, ...] | None = None
        self._used = False
        self.resource: Mapping[str, AttributeValue] = {}

    @property
    def known(self) -> bool:
        """Tell whether it is known by now."""
        return self._identified is not None

    def begin(self) -> None:
        """Look for the first time, in the main thread."""
        # A new variable may move the environment under a thread of the program's that reads it in C; a changed one
        # does not. So it is made here.
        os.environ.setdefault(OWNER, UNMARKED)
        self._announce()
        self._say_start()

    def _announce(self) -> None:
        # Not the settings' names: sys.argv is not there yet when the interpreter reads its sitecustomize.
        found = resource_attributes(extra=dict(self._settings.resource))
        if not ("dl.rank" in found or "dl.role" in found or self._directly):
            helper = os.getpid() if descends_from_rank(os.environ, os.getpid()) else None
            found["dl.role"] = program_name()
            found = {**found, "service.instance.id": instance_id(found, helper=helper)}
        self.resource = found
        announced.announce(found, self._settings.resource_labels)

    def _say_start(self) -> None:
        said = {"interval": self._settings.interval, "run_start": RUN_START}
        self._journal.append(STARTED, time.time_ns(), said)

    def settle(self, deliver: Callable[[], object]) -> bool:
        """Look the identity up; False as long as it is not known. One thread at a time."""
        identified = tuple(os.environ.get(variable) for variable in _VARIABLES)
        if identified == self._identified:
            return True
        if self._waits and not text(os.environ, "RANK"):
            return False
        if self._used:
            self._used = False
            self._journal.append(ENDED, time.time_ns(), {"reason": "renamed"})
            deliver()
            self._say_start()
        first, self._identified = self._identified is None, identified
        self._announce()
        mark = owner_mark(os.environ, os.getpid())
        if mark is not None and os.environ.get(OWNER) != mark:
            os.environ[OWNER] = mark
        if first:
            mark_start(os.environ, self.resource.get("dl.rank"), program_name())
        return True

    def use(self) -> None:
        """Remember that a delivery was made under it: a change from here on is the end of this one."""
        self._used = True

    def wait_no_longer(self) -> None:
        """Wait for no rank: the program has asked for delivery."""
        self._waits = False

    def take_leave(self, deliver: Callable[[], object], *, dying: bool) -> None:
        """Log the end of the process, after ``deliver`` has had others log theirs."""
        if not self.known:
            self._journal.keep(False)  # a mere helper has nothing to lose
            return
        deliver()
        reason = "sigterm" if dying else "exit"
        raised = getattr(sys, "last_type", None)
        attributes: dict[str, AttributeValue] = {"reason": reason}
        if raised is not None and not dying:
            attributes = {"reason": "exception", "error.type": raised.__qualname__}
        self._journal.append(ENDED, time.time_ns(), attributes)
