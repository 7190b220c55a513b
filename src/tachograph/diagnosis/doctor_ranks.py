"""The history of a rank in the hub: its last pulses, and its process as the machine shows it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.diagnosis.doctor_processes import Processes, ProcessLook
from tachograph.diagnosis.doctor_stack import Stack, stack_of, stack_of_text
from tachograph.diagnosis.doctor_waits import RankGroups, members_of, operations_of
from tachograph.identity.masking import masked_message

_STACKS, _LOOKS = 60, 40  # that are kept
_MOST_FILE = 1 << 20  # bytes
_MOST_WORDS = 300  # characters of an exception
_WARM = 10  # operations, before which waits are those of the start


class SeenStack(NamedTuple):
    """The stack of the main thread at one time, the place in its code, and the wait for the GIL in seconds."""

    time: float
    place: int
    stack: Stack
    gil: float

    def stands(self, other: SeenStack) -> bool:
        """Tell whether nothing has moved since another one."""
        return self.place == other.place and self.stack == other.stack


class SeenProcess(NamedTuple):
    """A process at one time, with its children; of a process on another machine as it says itself."""

    time: float
    cpu: float
    moved: int | None
    state: str
    waits_in: str
    children: tuple[ProcessLook, ...] | None


class Usage(NamedTuple):
    """How a process has used the machine for some seconds.

    Attributes:
        cpu: share of one processor.
        moved: bytes a second that it has read and written, with its children; None where that may not be seen.
        children_cpu: share of one processor that its children have used.
        states: those that were seen.
        wants: share of the looks at which it ran, was ready to run, or waited for a disk.
    """

    cpu: float
    moved: float | None
    children_cpu: float
    states: frozenset[str]
    waits_in: str
    children: tuple[ProcessLook, ...]
    wants: float


class RankHistory:
    """A rank, from its first pulse on.

    Args:
        rank: its number.
        pid: of its process.
        local: its process is on this machine, and in the hub's own namespace of processes.

    Attributes:
        pulse: the last one.
        came: when that came, in seconds of the monotonic clock.
        heard: when anything came from the process last.
        changed: when its operations were seen to change last.
        gone: when its process was seen to have ended; None while it is there.
        ended: the reason of its end, as it has told; empty where it has told none.
        failure: the exception that ended it, and when, in nanoseconds since the epoch; empty and 0 where it told none.
        raised: the stack of that exception, where torchrun's error file has it.
        longest: seconds of the longest wait that has ended well.
        silence: seconds of the longest time without a sign that has ended.
        is_seen: its process can be seen.
        held: the stack that was read from outside since its last pulse; None for none.
    """

    def __init__(self, rank: int, pid: int, *, local: bool) -> None:
        self.rank, self.pid, self.local = rank, pid, local
        self.pulse: Mapping[str, Any] = {}
        self.came = self.heard = self.changed = 0.0
        self.stacks: deque[SeenStack] = deque(maxlen=_STACKS)
        self.looks: deque[SeenProcess] = deque(maxlen=_LOOKS)
        self.gone: float | None = None
        self.ended = ""
        self.failure = "", 0
        self.raised: Stack = ()
        self.longest = self.silence = 0.0
        self.is_seen = False
        self.held: Stack | None = None
        self._held_of = 0.0
        self._start = ""
        self._error_file: Path | None = None
        self._progress: object = None

    def take(self, pulse: Mapping[str, Any], now: float) -> None:
        """Take a pulse that has come."""
        progress = pulse.get("status"), {name: each["seq"] for name, each in pulse["groups"].items()}
        if progress != self._progress:
            if self.pulse and self._completed() > _WARM and self.is_waiting:
                self.longest = max(self.longest, now - self.changed)
            self._progress, self.changed = progress, now
        if self.pulse:
            self.silence = max(self.silence, now - max(self.came, self.heard))
        self.pulse, self.came, self.heard = pulse, now, now
        main = next((each for each in pulse.get("threads", ()) if each[0] == "main"), None)
        if main is not None:
            self.stacks.append(SeenStack(now, main[1], stack_of(main[2]), float(pulse.get("gil") or 0.0)))
        if not self.local:
            self.looks.append(SeenProcess(now, float(pulse.get("cpu", 0.0)), pulse.get("io"), "", "", None))

    def _completed(self) -> int:
        return sum(each[1] for each in (self.pulse.get("status") or {}).values())

    @property
    def is_waiting(self) -> bool:
        """Tell whether an operation has begun and not ended, as the last pulse says."""
        return any(each[0] > max(each[1], 0) for each in (self.pulse.get("status") or {}).values())

    @property
    def has_left(self) -> bool:
        """Tell whether it has left its process groups."""
        return not self.pulse.get("groups")

    @property
    def stack(self) -> Stack:
        """The stack of its main thread, by its last pulse; empty where that had none."""
        return self.stacks[-1].stack if self.stacks else ()

    def view(self) -> RankGroups:
        """Return its groups and operations, by its last pulse."""
        groups = self.pulse.get("groups", {})
        members = {name: members_of(each["ranks"]) for name, each in groups.items()}
        numbers = {name: int(each["seq"]) for name, each in groups.items()}
        return RankGroups(members, numbers, operations_of(self.pulse.get("entries", ())))

    def watch(self, processes: Processes, now: float, *, closely: bool) -> None:
        """Look at its process, where that is on this machine.

        Args:
            processes: of this machine.
            now: seconds of the monotonic clock.
            closely: what it uses, too, and its children.
        """
        if not self.local or self.gone is not None:
            return
        start = processes.start(self.pid)
        if not start or (self._start and start != self._start):
            if self.is_seen:  # else it may not be seen: hidepid
                self.gone = now
                self._look_for_failure()
            return
        if not self.is_seen:
            self._error_file = processes.error_file(self.pid)
        self._start, self.is_seen = start, True
        found = processes.look(self.pid) if closely else None
        if found is not None:
            children = tuple(processes.children(self.pid))
            seen = SeenProcess(now, found.cpu, found.moved, found.state, found.waits_in, children)
            self.looks.append(seen)

    def _look_for_failure(self) -> None:
        """Read the error file of torchrun that the process has left, if any."""
        told = None if self._error_file is None else _told_in(self._error_file)
        if told is not None:
            words, at, self.raised = told
            self.failure = self.failure if self.failure[1] else (words, at)

    def usage(self, now: float, seconds: float) -> Usage | None:
        """Return how it has used the machine for some seconds; None where that is not known yet."""
        seen = [each for each in self.looks if each.time >= now - seconds]
        if len(seen) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        first, last = seen[0], seen[-1]
        lasting = max(last.time - first.time, 0.1)
        before = {each.pid: each for each in first.children or ()}
        children = [(before[each.pid], each) for each in last.children or () if each.pid in before]
        moved = None
        if first.moved is not None and last.moved is not None:
            moved = max(0, last.moved - first.moved) + sum(
                max(0, (new.moved or 0) - (old.moved or 0)) for old, new in children
            )
        return Usage(
            (last.cpu - first.cpu) / lasting,
            None if moved is None else moved / lasting,
            sum(new.cpu - old.cpu for old, new in children) / lasting,
            frozenset(each.state for each in seen),
            last.waits_in,
            last.children or (),
            sum(each.state in ("R", "D") for each in seen) / len(seen),
        )

    def standing(self, now: float, seconds: float) -> list[SeenStack]:
        """Return the stacks of the last seconds."""
        return [each for each in self.stacks if each.time >= now - seconds]

    def stands_still(self, now: float, seconds: float, *, least: int) -> bool:
        """Tell whether its main thread has not moved for so many seconds, and at least so many pulses."""
        seen = self.standing(now, seconds)
        return len(seen) >= least and all(each.stands(seen[0]) for each in seen)

    def read_from_outside(self, stack: Stack | None) -> None:
        """Keep a stack that was read from outside, until the next pulse."""
        self.held, self._held_of = stack, self.came

    @property
    def was_read(self) -> bool:
        """Tell whether its stack was read from outside since the last pulse."""
        return self.held is not None and self._held_of == self.came


def _told_in(file: Path) -> tuple[str, int, Stack] | None:
    """Return the exception of an error file, when it was written, and its stack; None where there is none.

    The message is a text, or one with more beside it (torch/distributed/elastic/multiprocessing/errors).
    """
    try:
        found = file.stat()
        if not file.is_file() or found.st_size > _MOST_FILE:
            return None
        message = json.loads(file.read_text(encoding="utf-8", errors="replace"))["message"]
        more = message if isinstance(message, dict) else {"message": message}
        words = masked_message(str(more["message"]), 4 * _MOST_WORDS).partition("\n")[0][:_MOST_WORDS]
        return words, found.st_mtime_ns, stack_of_text(str(more.get("extraInfo", {}).get("py_callstack", "")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
