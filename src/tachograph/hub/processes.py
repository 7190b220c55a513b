"""Sending processes, by their ``service.instance.id``: their starts one after the other, and lost ones."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.hub._layouts import Layouts
from tachograph.hub._series import Labels, Shape
from tachograph.hub._stream_decoder import AHEAD, StreamDecoder
from tachograph.identity.resource import instance_id
from tachograph.recording.own_metrics import PROCESS_LAST_EXPORT, PROCESS_LOST
from tachograph.recording.points import AttributeValue, MetricPoints, NumberPoint
from tachograph.runs.members import NODE, SECOND, longest_silence

_ONE_EXPORT = SECOND // 20  # nanoseconds: requests that are closer belong to one export
_FORGET = 0.9  # the share of a longer interval that is left after each shorter one
_STARTS = 64  # of one process that are remembered
_DIGITS = 18  # of a number in text: SQLite's integers hold any of these

Attributes = Mapping[str, AttributeValue]
StreamKey = tuple[str, str, str, Shape]  # scope, name, unit, shape
MOST = 256  # processes with one id that are distinguished


class StartNumber(NamedTuple):
    """The identity of a process's start in the store."""

    pid: int
    restart: int


class LostProcess(NamedTuple):
    """A process that stopped exporting without announcing its end.

    Attributes:
        rank: its rank, or None.
        role: its role, or the empty string.
        last_export: nanoseconds since the epoch.
    """

    instance: str
    pid: int
    rank: int | None
    role: str
    last_export: int


class Incarnation:
    """One start of a process.

    Attributes:
        announced: its begin was announced, so its end is expected to be.
        ended: how it ended, or the empty string.
        lost: it was silent for too long, or another one took its place before it had ended.
        first_export: nanoseconds of the hub's clock.
        last_export: nanoseconds of the hub's clock.
        noted: this hub has noted that it has reported.
        resource: its latest resource attributes; None where unknown.
        said: the announced time of its begin; 0 where this hub has not received it.
    """

    __slots__ = (
        "announced",
        "ended",
        "first_export",
        "interval",
        "key",
        "last_export",
        "lost",
        "noted",
        "resource",
        "said",
        "unsaved",
    )

    def __init__(self, key: StartNumber, now: int) -> None:
        self.key = key
        self.announced = False
        self.resource: Attributes | None = None
        self.said = 0
        self.ended = ""
        self.lost = False
        self.first_export = now
        self.last_export = now
        self.interval = 0
        self.unsaved = True
        self.noted = False

    def heard(self, now: int) -> None:
        """Note that something was received from it."""
        gap = now - self.last_export
        if gap > _ONE_EXPORT:
            self.interval = max(gap, int(self.interval * _FORGET))
        self.last_export = max(now, self.last_export)
        self.unsaved = True

    def begin(self, *, late: bool = False) -> None:
        """Begin, and anew where it had begun before: containers have the same pid in each job.

        Args:
            late: its end is known already.
        """
        if not late and (self.announced or self.ended or self.lost):
            self.ended = ""
            self.lost = False
            self.first_export = self.last_export
            self.interval = 0
        self.announced = self.unsaved = True

    def end(self, reason: str) -> None:
        """End in an orderly way."""
        self.ended = reason or "exit"
        self.lost = False
        self.unsaved = True

    def silent_for_too_long(self, now: int, since: int = 0) -> bool:
        """Tell whether more than five of its intervals have passed without an export, and more than five seconds.

        Args:
            now: nanoseconds of the hub's clock.
            since: the time from which exports could arrive, the same.
        """
        return now - max(self.last_export, since) > longest_silence(self.interval)

    def is_over(self, now: int) -> bool:
        """Tell whether it has ended, is lost or has been silent for too long; ``now`` in nanoseconds."""
        return bool(self.ended) or self.lost or self.silent_for_too_long(now)


class LiveProcess:
    """All starts of one process: for example of a rank that torchrun restarts.

    Args:
        instance: its ``service.instance.id``.
        attributes: those of its resource.
        labels: those on each of its series.
        run: the run it belongs to, to which this class does nothing.

    Attributes:
        layouts: those of its metrics; new ones, without any, whenever a series is gone.
        resource: the resource of its newest start.
        streams: its series, by scope, name, unit and shape.
        times_lost: number of its starts that were lost.
        row: its number in the store; 0 where it has none yet.
        heard: something was received since the hub began.
        forgotten: the store may have series of it that are not in ``streams``.
    """

    def __init__(self, instance: str, attributes: Attributes, labels: Labels, run: Any) -> None:
        self.instance = instance
        self.resource = attributes
        self.labels = labels
        self.run = run
        self.layouts = Layouts()
        self.streams: dict[StreamKey, StreamDecoder] = {}
        self.incarnations: dict[StartNumber, Incarnation] = {}
        self.current: Incarnation | None = None
        self.times_lost = 0
        self.row = 0
        self.heard = False
        self.forgotten = False
        self.unsaved = True

    @property
    def rank(self) -> int | None:
        """Its rank, where it has one."""
        rank = self.resource.get("dl.rank")
        if isinstance(rank, str) and rank.isdecimal() and len(rank) <= _DIGITS:
            return int(rank)
        return rank if isinstance(rank, int) else None

    @property
    def last_export(self) -> int:
        """The time of its last export, in nanoseconds of the hub's clock."""
        return max((each.last_export for each in self.incarnations.values()), default=0)

    def ended_before(self, time: int) -> bool:
        """Tell whether its newest start has ended in an orderly way, and nothing came since a time in nanoseconds."""
        return self.current is not None and bool(self.current.ended) and self.last_export < time

    @property
    def interval(self) -> int:
        """The newest start's export interval in nanoseconds; 0 while unknown."""
        return 0 if self.current is None else self.current.interval

    def is_unsaved(self) -> bool:
        """Tell whether changes of the process or its series are not in the store yet."""
        return self.unsaved or any(series.unsaved for stream in self.streams.values() for series in stream.series())

    def incarnation(self, attributes: Attributes, now: int) -> Incarnation:
        """Return the start that a resource belongs to; a new one takes the place of the one before.

        An announced start that has not ended by then is lost. Late data of an earlier start do not change that: while
        a start lives, one with a lower restart count is an earlier one of the same job. After its end it is the next
        job's.
        """
        key = start_of(attributes)
        incarnation = self.incarnations.get(key)
        if incarnation is not None:
            incarnation.resource = attributes
            return incarnation
        incarnation = self.incarnations[key] = Incarnation(key, now)
        incarnation.resource = attributes
        if self.current is None or key.restart >= self.current.key.restart or self.current.is_over(now):
            self._follow(incarnation)
        if len(self.incarnations) > _STARTS:
            del self.incarnations[next(iter(self.incarnations))]
        return incarnation

    def _follow(self, incarnation: Incarnation) -> None:
        """Let a start take the place of the current one."""
        before, self.current = self.current, incarnation
        self.resource = incarnation.resource or self.resource
        self.unsaved = True
        if before is not None and before is not incarnation:
            self.lose(before)

    def began(self, incarnation: Incarnation, said: int, *, late: bool) -> None:
        """Note that a start has announced itself.

        Args:
            incarnation: the start.
            said: the time of its begin, in nanoseconds of its own clock.
            late: its end is known already.
        """
        incarnation.begin(late=late)
        # With a clock that is ahead it would seem later than the next start.
        incarnation.said = said if said <= incarnation.last_export + AHEAD else incarnation.last_export
        current = self.current
        if current is None or current is incarnation or (not late and _gives_way(current, incarnation)):
            self._follow(incarnation)
        else:
            self.lose(incarnation)

    def lose(self, incarnation: Incarnation) -> None:
        """Count a start as lost, where its end was to be announced and was not."""
        if incarnation.announced and not incarnation.ended and not incarnation.lost:
            incarnation.lost = incarnation.unsaved = True
            self.times_lost += 1
            self.unsaved = True

    def check(self, now: int, since: int = 0) -> None:
        """Count the newest start as lost where it was silent for too long; exports could arrive from ``since`` on."""
        if self.current is not None and self.current.silent_for_too_long(now, since):
            self.lose(self.current)

    def lost(self, *, at_the_end: bool = False) -> list[LostProcess]:
        """Return the starts that are lost.

        Args:
            at_the_end: nothing more will be received: every start that has not ended is lost.
        """
        incarnations = [
            each
            for each in self.incarnations.values()
            if each.lost or (at_the_end and each.announced and not each.ended)
        ]
        if not incarnations:
            return []
        rank, role = self.rank, str(self.resource.get("dl.role", ""))
        return [LostProcess(self.instance, each.key.pid, rank, role, each.last_export) for each in incarnations]


def life(processes: Iterable[LiveProcess]) -> list[MetricPoints]:
    """Return the page's metrics of processes: the time of the last export of each, and the number of its losses.

    ``tachograph.process.lost`` begins at 0 for each announced process, so that its first increase shows.
    """
    heard: list[NumberPoint] = []
    lost: list[NumberPoint] = []
    for process in processes:
        heard.append(NumberPoint(process.labels, process.last_export / SECOND, 0))
        if process.times_lost or any(each.announced for each in process.incarnations.values()):
            lost.append(NumberPoint(process.labels, process.times_lost, 0))
    both = (MetricPoints(*PROCESS_LAST_EXPORT[:5], heard), MetricPoints(*PROCESS_LOST[:5], lost))
    return [each for each in both if each.points]


def node_resource(run: str | None) -> dict[str, AttributeValue]:
    """Return the resource of this machine in a run, or in none: it is stored like a process."""
    attributes: dict[str, AttributeValue] = {
        "service.name": "tachograph",
        "host.name": socket.gethostname(),
        "dl.role": NODE,
    }
    if run is not None:
        attributes["dl.run.id"] = run
    return {**attributes, "service.instance.id": instance_id(attributes)}


def start_of(attributes: Attributes) -> StartNumber:
    """Return the identity of the start that a resource belongs to."""
    return StartNumber(_integer(attributes.get("process.pid")), _integer(attributes.get("dl.restart_count")))


def instance_of(attributes: Attributes) -> str:
    """Return the ``service.instance.id``, or else an id of the attributes that identify a process on its host."""
    instance = attributes.get("service.instance.id")
    if instance:
        return str(instance)
    keys = ("service.namespace", "service.name", "host.name", "process.pid")
    identity = [(key, str(attributes[key])) for key in keys if key in attributes]
    return str(
        uuid.uuid5(uuid.NAMESPACE_OID, repr(identity or sorted((key, str(attributes[key])) for key in attributes)))
    )


def _gives_way(current: Incarnation, later: Incarnation) -> bool:
    """Tell whether a newly announced start is the next one, and not an earlier one whose record arrives late."""
    return current.is_over(later.last_export) or later.said > (current.said or current.first_export)


def _integer(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value[:_DIGITS])
    return value if isinstance(value, int) else 0


def free_instance(processes: Mapping[str, LiveProcess], instance: str, attributes: Attributes) -> str:
    """Return the name of a start: its id, and ``#2`` or more behind it where another one of that id is running.

    A restart, which begins after the end of the previous start, keeps its name. Whether that one is running is known on
    the hub's own machine only; starts with a rank, and those of another restart count, are left to their launcher.

    Args:
        processes: those of the run, by name.
        instance: the id.
        attributes: the resource of the start.
    """
    start = start_of(attributes)
    if instance not in processes or "dl.rank" in attributes:
        return instance
    names = [instance, *(f"{instance}#{number}" for number in range(2, MOST + 1))]
    for name in names:
        process = processes.get(name)
        if process is not None and start in process.incarnations:
            return name
    if attributes.get("host.name") != socket.gethostname():
        return instance
    for name in names:
        process = processes.get(name)
        current = None if process is None else process.current
        if current is None or current.ended or current.key.restart != start.restart or not is_running(current.key.pid):
            return name
    return instance


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine exists, and is no zombie."""
    if pid <= 0:
        return False
    with contextlib.suppress(OSError, IndexError):  # proc(5): the state comes after the name, which may hold anything
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
