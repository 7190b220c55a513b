"""The identity of the process, for a pipeline: looked up before each collection, as its rank may come late.

``elastic_launch`` sets RANK in workers that run already, and children of ``mp.spawn``, of a fork or of Lightning have
their rank by ``init_process_group(rank=…)`` alone: see :mod:`tachograph.identity.process_group`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from tachograph.identity.environment import text
from tachograph.identity.process_group import Membership, group_watch
from tachograph.identity.program import mark_start, program_name
from tachograph.identity.rank import OWNER, awaits_rank, owner_mark
from tachograph.identity.resource import announced, instance_id, is_beside, resource_attributes
from tachograph.pipeline._failure import FAILED, MOST_TYPE, failure_of, raised
from tachograph.pipeline._unheard import count_helper, has_recorded
from tachograph.pipeline.settings import Settings
from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording.logged_points import RUN_START
from tachograph.recording.points import AttributeValue

STARTED, ENDED = "tachograph.process.start", "tachograph.process.end"
UNMARKED = "-"  # in TACHOGRAPH__OWNER: no rank's mark
MOST_WAITING = 10_000  # events that wait for a rank which may never come
LONGEST_WAIT = 60.0  # seconds, the same

# The variables of the identity, which may appear while the process runs.
_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "TACHOGRAPH_RUN",
)


class Identity(Protocol):
    """The identity of the process, as far as it is known.

    Attributes:
        on_renamed: called whenever it has become another one.
    """

    on_renamed: Callable[[], object]

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

    def wait_no_longer(self, *, for_helpers: bool = True) -> None:
        """Take the identity as it is now: the program has asked for delivery.

        Args:
            for_helpers: in a process that is a mere helper unless it becomes a rank, too; False at the end, where that
                one has nothing to say.
        """

    def take_leave(self, deliver: Callable[[], object], *, dying: bool) -> None:
        """Log the last event of the process, after ``deliver`` has had the others log theirs."""


class GivenIdentity:
    """The identity of a pipeline that the program has started: as its settings say, and its rank once it has one.

    Hubs of ours are told when the pipeline begins and how it ends, as zero code tells them; no other destination is.

    Args:
        settings: of the pipeline.
        announces: tell it to the other ways out of the process; not for a pipeline beside another one.
        journal: where its events are logged.
    """

    def __init__(self, settings: Settings, *, announces: bool, journal: journals.Journal = journals.default) -> None:
        self._settings, self._announces, self._journal = settings, announces, journal
        self.on_renamed: Callable[[], object] = _nothing
        self._group: Membership | None = None
        self._used = False
        self.resource: Mapping[str, AttributeValue] = {}
        self.known = False

    def begin(self) -> None:
        """Look it up."""
        settings, self._group = self._settings, group_watch.joined()
        self.resource = resource_attributes(
            service_name=settings.service_name, run_id=settings.run_id, extra=dict(settings.resource)
        )
        if self._announces:
            announced.announce(self.resource, settings.resource_labels)
            _mark_rank()
            self._journal.tell(STARTED, {"interval": settings.interval, "run_start": RUN_START})

    def settle(self, deliver: Callable[[], object]) -> bool:
        """Return True: it is known. If the process has joined a process group meanwhile, look it up again."""
        if self.known and group_watch.joined() != self._group:
            if self._used:
                self._used = False
                if self._announces:
                    self._journal.tell(ENDED, {"reason": "renamed"})
                deliver()
                if self._announces:
                    _begin_streams(registries.default, self._journal)
            before = self.resource
            self.begin()
            if self.resource != before:
                self.on_renamed()
        self.known = True
        return True

    def use(self) -> None:
        """Remember that a delivery was made under it: events logged until it changes are of this one."""
        self._used = True

    def wait_no_longer(self, *, for_helpers: bool = True) -> None:
        """Do nothing: it waits for nothing."""

    def take_leave(self, _deliver: Callable[[], object], *, dying: bool) -> None:
        """Tell hubs of ours how it ends."""
        if self._announces:
            self._journal.tell(ENDED, _last_word(self._journal, dying=dying))


class AmbientIdentity:
    """The identity of a process under zero code, which may become a rank while it runs.

    Its first event is ``tachograph.process.start``, with the start of the run in nanoseconds; the last one, where the
    process ends in an orderly way, ``tachograph.process.end`` with its ``reason``: ``exit``, ``exception``,
    ``sigterm``, ``sigint``; ``renamed`` where the process goes on under another identity. Hubs of ours, and no other
    destination, get the exception's message, in ``tachograph.process.failure``.

    Args:
        settings: of the pipeline.
        waits: it is not known before its rank is there: a process that may become a rank, or be a mere helper. One that
            is no helper, and whose launcher leaves its rank to ``torch.distributed``, waits for that as well, but no
            longer than :data:`LONGEST_WAIT` and for :data:`MOST_WAITING` events.
        idles: it is not known before it has recorded something: a worker that is there before there is work for it.
        directly: the process was started by ``tachograph run`` itself; others without a rank have their program's name
            as their role, which tells them from it.
        journal: where its events are logged.
        registry: where the values of a helper are counted, which nothing delivers.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        waits: bool = False,
        idles: bool = False,
        directly: bool = True,
        journal: journals.Journal = journals.default,
        registry: registries.Registry = registries.default,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._waits, self._directly, self._journal = settings, waits, directly, journal
        self._idles = idles
        self._registry, self._clock = registry, clock
        self.on_renamed: Callable[[], object] = _nothing
        self._patient_until = clock() + LONGEST_WAIT
        self._identified: tuple[object, ...] | None = None
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
        self._announce(self._look())
        self._say_start()

    def _look(self) -> Mapping[str, AttributeValue]:
        # Not the settings' names: sys.argv is not there yet when the interpreter reads its sitecustomize.
        found = resource_attributes(extra=dict(self._settings.resource))
        if not ("dl.rank" in found or "dl.role" in found or self._directly):
            found["dl.role"] = program_name()
            helper = os.getpid() if is_beside(found, os.environ, os.getpid()) else None
            found = {**found, "service.instance.id": instance_id(found, helper=helper)}
        return found

    def _announce(self, found: Mapping[str, AttributeValue]) -> None:
        self.resource = found
        announced.announce(found, self._settings.resource_labels)

    def _say_start(self) -> None:
        said = {"interval": self._settings.interval, "run_start": RUN_START}
        self._journal.append(STARTED, time.time_ns(), said)

    def settle(self, deliver: Callable[[], object]) -> bool:
        """Look the identity up; False as long as it is not known. One thread at a time."""
        identified = (group_watch.joined(), *map(os.environ.get, _VARIABLES))
        if identified == self._identified:
            return True
        if identified[0] is None and not text(os.environ, "RANK"):
            if self._identified is None and (self._waits or self._is_patient() or self._is_idle()):
                return False
            if self._identified is not None and awaits_rank(os.environ):  # the rank follows: one change, not two
                return True
        found, first = self._look(), self._identified is None
        if found == self.resource and not first:
            self._identified = identified
            return True
        if self._used:
            self._used = False
            self._journal.append(ENDED, time.time_ns(), {"reason": "renamed"})
            deliver()
            _begin_streams(self._registry, self._journal)
            self._say_start()
        self._identified = identified
        self._announce(found)
        _mark_rank()
        if first:
            mark_start(os.environ, self.resource.get("dl.rank"), program_name())
        else:
            self.on_renamed()
        return True

    def _is_patient(self) -> bool:
        """Tell whether a rank is still to come to a process that is no helper."""
        if not awaits_rank(os.environ):
            return False
        return len(self._journal) < MOST_WAITING and self._clock() < self._patient_until

    def _is_idle(self) -> bool:
        self._idles = self._idles and not has_recorded(self._registry, self._journal, besides=1)
        return self._idles

    def use(self) -> None:
        """Remember that a delivery was made under it: a change from here on is the end of this one."""
        self._used = True

    def wait_no_longer(self, *, for_helpers: bool = True) -> None:
        """Wait for no rank: see :class:`Identity`."""
        self._patient_until = -inf
        self._waits = self._waits and not for_helpers

    def take_leave(self, deliver: Callable[[], object], *, dying: bool) -> None:
        """Log the end of the process, after ``deliver`` has had others log theirs."""
        if not self.known:
            count_helper(self._registry, self._journal)
            self._journal.keep(False)
            return
        deliver()
        self._journal.append(ENDED, time.time_ns(), _last_word(self._journal, dying=dying))


def _last_word(journal: journals.Journal, *, dying: bool) -> dict[str, AttributeValue]:
    """Return the attributes of the last event; hubs of ours are told of the exception that ends the process."""
    error = None if dying else raised()
    if error is None:
        return {"reason": "sigterm" if dying else "exit"}
    kind = type(error).__qualname__[:MOST_TYPE]
    if isinstance(error, KeyboardInterrupt):
        return {"reason": "sigint", "error.type": kind}
    journal.tell(FAILED, failure_of(error).attributes())
    return {"reason": "exception", "error.type": kind}


def _mark_rank() -> None:
    """Mark the environment as that of a rank, where this process is one: see :mod:`tachograph.identity.rank`."""
    mark = owner_mark(os.environ, os.getpid())
    if mark is not None and os.environ.get(OWNER) != mark:
        os.environ[OWNER] = mark


def _begin_streams(registry: registries.Registry, journal: journals.Journal) -> None:
    """Begin to number events anew: a stream belongs to one process, and this is another one from now on."""
    journal.begin_stream()
    registry.points.begin_stream()


def _nothing() -> None:
    """Do nothing."""
