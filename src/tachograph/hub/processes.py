"""Processes that send, by their ``service.instance.id``: their starts one after the other, and those that are lost."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.hub._series import Labels, Shape
from tachograph.hub._stream_decoder import AHEAD, StreamDecoder
from tachograph.recording.own_metrics import PROCESS_LAST_EXPORT, PROCESS_LOST
from tachograph.recording.points import AttributeValue, MetricPoints, NumberPoint
from tachograph.runs.members import SECOND, longest_silence

_ONE_EXPORT = SECOND // 20  # requests that are closer belong to one export
_FORGET = 0.9  # how much of a longer interval is left after each shorter one
_STARTS = 64  # of one process that are remembered
_DIGITS = 18  # of a number in text: what SQLite's integers hold for certain

Attributes = Mapping[str, AttributeValue]
StreamKey = tuple[str, str, str, Shape]  # scope, name, unit, shape
MOST = 256  # of one id that are told apart


class StartNumber(NamedTuple):
    """The number of a process's start, by which the store knows it."""

    pid: int
    restart: int


class LostProcess(NamedTuple):
    """A process that stopped to export and did not say that it would.

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
        announced: it said that it began, so that it will say that it ends.
        ended: how it ended, or the empty string.
        lost: it was silent for too long, or another one took its place before it had ended.
        first_export: nanoseconds of the hub's clock.
        last_export: nanoseconds of the hub's clock.
        noted: this hub has noted that it has reported.
        resource: what it last said of itself; None where that is not known.
        said: when it began, as it said; 0 where this hub has not heard it say so.
    """

    __slots__ = (
        *("announced", "ended", "first_export", "interval", "key", "last_export", "lost", "noted", "resource", "said"),
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
        """Note that something came."""
        gap = now - self.last_export
        if gap > _ONE_EXPORT:
            self.interval = max(gap, int(self.interval * _FORGET))
        self.last_export = max(now, self.last_export)
        self.unsaved = True

    def begin(self, *, late: bool = False) -> None:
        """Begin, and anew where it had begun before: containers have the same pid in each job.

        Args:
            late: it is known already how it ended.
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
            since: when somebody began to listen.
        """
        return now - max(self.last_export, since) > longest_silence(self.interval)

    def is_over(self, now: int) -> bool:
        """Tell whether it has ended, is lost or has been silent for too long; ``now`` in nanoseconds."""
        return bool(self.ended) or self.lost or self.silent_for_too_long(now)


class LiveProcess:
    """All starts of one process: of a rank, say, that torchrun starts again and again.

    Args:
        instance: its ``service.instance.id``.
        attributes: those of its resource.
        labels: what is on each of its series.
        run: the run it belongs to, to which this class does nothing.

    Attributes:
        resource: the resource of its newest start.
        streams: its series, by scope, name, unit and shape.
        times_lost: how many of its starts were lost.
        row: its number in the store; 0 where it has none yet.
        heard: something came since the hub began.
        forgotten: the store may have series of it that are not in ``streams``.
    """

    def __init__(self, instance: str, attributes: Attributes, labels: Labels, run: Any) -> None:
        self.instance = instance
        self.resource = attributes
        self.labels = labels
        self.run = run
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
        """When something came last, in nanoseconds of the hub's clock."""
        return max((each.last_export for each in self.incarnations.values()), default=0)

    @property
    def interval(self) -> int:
        """The newest start's export interval in nanoseconds; 0 while it is not known."""
        return 0 if self.current is None else self.current.interval

    def is_unsaved(self) -> bool:
        """Tell whether the store lacks something of it or its series."""
        return self.unsaved or any(series.unsaved for stream in self.streams.values() for series in stream.series())

    def incarnation(self, attributes: Attributes, now: int) -> Incarnation:
        """Return the start that a resource belongs to; a new one takes the place of the one before.

        What was announced and had not ended by then is lost. Late data of an earlier start changes nothing of that:
        while a start lives, one with a lower restart count is an earlier one of the same job. After its end it is the
        next job's.
        """
        key = start_of(attributes)
        found = self.incarnations.get(key)
        if found is not None:
            found.resource = attributes
            return found
        found = self.incarnations[key] = Incarnation(key, now)
        found.resource = attributes
        if self.current is None or key.restart >= self.current.key.restart or self.current.is_over(now):
            self._follow(found)
        if len(self.incarnations) > _STARTS:
            del self.incarnations[next(iter(self.incarnations))]
        return found

    def _follow(self, incarnation: Incarnation) -> None:
        """Let a start take the place of the current one."""
        before, self.current = self.current, incarnation
        self.resource = incarnation.resource or self.resource
        self.unsaved = True
        if before is not None and before is not incarnation:
            self.lose(before)

    def began(self, incarnation: Incarnation, said: int, *, late: bool = False) -> None:
        """Note that a start has announced itself.

        Args:
            incarnation: the start.
            said: when it began, in nanoseconds of its own clock.
            late: it is known already how it ended.
        """
        incarnation.begin(late=late)
        # By a clock that is ahead it would seem later than the next one.
        incarnation.said = said if said <= incarnation.last_export + AHEAD else incarnation.last_export
        current = self.current
        if current is None or current is incarnation or (not late and _gives_way(current, incarnation)):
            self._follow(incarnation)
        else:
            self.lose(incarnation)

    def over(self, incarnation: Incarnation, reason: str) -> None:
        """Note that a start has ended in an orderly way, if it comes to be known late, too."""
        incarnation.end(reason)

    def lose(self, incarnation: Incarnation) -> None:
        """Count a start as lost, where it was to say that it ends and has not."""
        if incarnation.announced and not incarnation.ended and not incarnation.lost:
            incarnation.lost = incarnation.unsaved = True
            self.times_lost += 1
            self.unsaved = True

    def found(self, incarnation: Incarnation) -> None:
        """Take back that a start is lost. What was counted stays: a counter does not go back."""
        incarnation.lost = False

    def check(self, now: int, since: int = 0) -> None:
        """Count the newest start as lost where it was silent for too long; nobody listened before ``since``."""
        if self.current is not None and self.current.silent_for_too_long(now, since):
            self.lose(self.current)

    def lost(self, *, at_the_end: bool = False) -> list[LostProcess]:
        """Return the starts that are lost.

        Args:
            at_the_end: nothing more will come, so that whatever has not ended is lost.
        """
        rank, role = self.rank, str(self.resource.get("dl.role", ""))
        return [
            LostProcess(self.instance, each.key.pid, rank, role, each.last_export)
            for each in self.incarnations.values()
            if each.lost or (at_the_end and each.announced and not each.ended)
        ]


def life(processes: Iterable[LiveProcess]) -> list[MetricPoints]:
    """Return what the page says of processes: when each was heard last, and how often it was lost.

    ``tachograph.process.lost`` is there from 0 on for whoever announced itself, so that its first increase shows.
    """
    heard: list[NumberPoint] = []
    lost: list[NumberPoint] = []
    for process in processes:
        heard.append(NumberPoint(process.labels, process.last_export / SECOND, 0))
        if process.times_lost or any(each.announced for each in process.incarnations.values()):
            lost.append(NumberPoint(process.labels, process.times_lost, 0))
    both = (MetricPoints(*PROCESS_LAST_EXPORT[:5], heard), MetricPoints(*PROCESS_LOST[:5], lost))
    return [each for each in both if each.points]


def start_of(attributes: Attributes) -> StartNumber:
    """Return which start of its process a resource is of."""
    return StartNumber(_integer(attributes.get("process.pid")), _integer(attributes.get("dl.restart_count")))


def instance_of(attributes: Attributes) -> str:
    """Return the ``service.instance.id``, or else an id of what tells the process from others on its host."""
    given = attributes.get("service.instance.id")
    if given:
        return str(given)
    telling = ("service.namespace", "service.name", "host.name", "process.pid")
    found = [(key, str(attributes[key])) for key in telling if key in attributes]
    return str(uuid.uuid5(uuid.NAMESPACE_OID, repr(found or sorted((key, str(attributes[key])) for key in attributes))))


def _gives_way(current: Incarnation, later: Incarnation) -> bool:
    """Tell whether a start that says that it began is the next one, and not one before whose word comes late."""
    return current.is_over(later.last_export) or later.said > (current.said or current.first_export)


def _integer(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value[:_DIGITS])
    return value if isinstance(value, int) else 0


def free_instance(processes: Mapping[str, LiveProcess], instance: str, attributes: Attributes) -> str:
    """Return what a start is called: its id, and ``#2`` or more behind it where another one of that id is running.

    A restart, which begins when the one before is over, goes on under its name. That the one before is running can be
    told on the hub's own machine only; those with a rank, and those of another restart count, are their launcher's.

    Args:
        processes: those of the run, by what they are called.
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
    """Tell whether a process of this machine is there, and not only waits for its parent to take note of its end."""
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
