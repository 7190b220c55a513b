"""The evidence against a rank that others wait for: is it dead, stopped, blocked, or busy and only late?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tachograph.diagnosis.doctor_ranks import RankHistory, SeenStack, Usage
from tachograph.diagnosis.doctor_stack import (
    DEBUGGERS,
    LOADER,
    NETWORK,
    SERVERS,
    PySpy,
    Stack,
    is_in,
    place_of,
    stack_of,
)
from tachograph.diagnosis.doctor_waits import Wait
from tachograph.diagnosis.incident import Grade, HangVerdict
from tachograph.identity.extra import install_command

WAIT, WINDOW = 3.0, 4.0  # seconds without progress before anything is asked; of evidence
_CALM, _CALM_BYTES = 0.05, 200_000  # share of a processor, and bytes a second, below which nothing is done
_PATIENCE = 3.0  # times the longest wait that ended well
_OUTSIDE_LIMIT, _UNSEEN_LIMIT, _SPIN = 60.0, 30.0, 30.0  # seconds; the first of a network, a disk or a child
_HELD = 6.0  # seconds of silence that are a hang without a stack from outside, too
# Share of the looks at which a rank is ready to run, or waits for a disk, and seconds of the processor that it has to
# get, then: a collection of garbage that takes half a second takes ten on a machine that has twenty others to run.
_WANTS, _COMPUTES = 0.5, 1.0
_NO_WORKERS = ("/multiprocessing/resource_tracker.py", "/multiprocessing/forkserver.py")
_SWITCHES = 0.003  # seconds of waiting for the GIL, from which on another thread runs Python
# Share of the pulses: on a busy machine the other thread often waits for a processor, and then not for the GIL.
_SWITCHED = 0.3
# A thread that runs Python gives up the GIL after 5 ms of the processor. Longer waits are those for C code
# that holds it: a collection of garbage, again and again from one line, is no spinning.
_C_HOLDS, _C_SHARE = 0.03, 0.2  # seconds of the processor; share of the pulses


class Findings(NamedTuple):
    """The state of all ranks at one moment: for how long the longest one waits, and has waited at most before."""

    now: float
    longest: float
    before: float
    waits: Mapping[int, Wait]

    @property
    def limit(self) -> float:
        """Seconds, from which on a rank that does nothing hangs."""
        return max(WAIT + 2.0, _PATIENCE * self.before)


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words, such as ``ranks 0, 2 and 3``; of many the first ones."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:8]]
    last = f"{len(ranks) - 8} more" if len(ranks) > 8 else shown.pop()  # noqa: PLR2004 - as many as are shown
    return f"ranks {', '.join(shown)} and {last}"


def spoken(text: str) -> str:
    """Return a sentence with a capital letter."""
    return f"{text[:1].upper()}{text[1:]}"


class Evidence:
    """Judges one rank.

    Args:
        pyspy: reads stacks from outside.
    """

    def __init__(self, pyspy: PySpy) -> None:
        self._pyspy = pyspy

    def of(self, rank: RankHistory, found: Findings) -> HangVerdict | None:
        """Return the verdict on a rank; None where it is too early."""
        if rank.gone is not None or rank.has_left:
            return self._gone(rank, found)
        usage = rank.usage(found.now, WINDOW)
        if usage is None and rank.local and rank.is_seen:
            return None
        states = usage.states if usage is not None else frozenset()
        silent = found.now - max(rank.came, rank.heard)
        if states & {"T", "t"}:
            return _said(rank, "hang", "stopped", f"was stopped by a signal {silent:.0f} s ago", seen_last=True)
        if states == {"D"} and usage is not None:
            what = f"is in an uninterruptible kernel call ({usage.waits_in or 'the kernel hides which one'})"
            # A disk that writes back what others have written takes ten seconds and more.
            lasting: Grade = "hang" if found.longest >= max(_OUTSIDE_LIMIT, found.limit) else "late"
            return _said(rank, lasting, "disk sleep", what)
        if silent >= WAIT:
            return self._held(rank, usage, silent, found)
        return self._judged(rank, usage, found)

    @staticmethod
    def _gone(rank: RankHistory, found: Findings) -> HangVerdict:
        ago = found.now - (rank.gone if rank.gone is not None else rank.came)
        if rank.has_left or rank.ended in ("exit", "renamed"):
            return _said(rank, "hang", "ended", f"exited {ago:.0f} s ago while others wait for it", seen_last=True)
        failure = f": {rank.failure[0]}" if rank.failure[0] else " without an exception"
        why = f" ({rank.ended})" if rank.ended else failure
        return _said(rank, "hang", "killed", f"died {ago:.0f} s ago{why}", seen_last=True)

    def _held(self, rank: RankHistory, usage: Usage | None, silent: float, found: Findings) -> HangVerdict:
        """Judge a rank that is there and is not let run: a thread holds the GIL in C.

        One that computes may collect garbage, or sort: it has longer, and still longer on a busy machine.
        """
        if usage is None and not (rank.local and rank.is_seen):
            notes = (_unseen(rank, usage),) if rank.local else ()
            grade: Grade = "hang" if silent > _HELD else "late"
            return _said(rank, grade, "silent", f"has not responded for {silent:.0f} s", seen_last=True, notes=notes)
        if not rank.was_read and rank.local:
            rank.read_from_outside(self._pyspy.stack(rank.pid))
        stack = rank.held if rank.was_read else None
        busy = "" if usage is None else f", CPU {usage.cpu:.0%}"
        if usage is not None and usage.cpu < _CALM:
            limit = 0.0 if stack is not None else _HELD
        else:
            limit = max(_HELD, _PATIENCE * max(found.before, rank.silence))
        if usage is not None and usage.wants > _WANTS:
            limit = max(limit, min(_OUTSIDE_LIMIT, _COMPUTES / max(usage.cpu, _COMPUTES / _OUTSIDE_LIMIT)))
        grade = "hang" if silent > limit else "late"
        how = f"has held the GIL in C code for {silent:.0f} s{busy}"
        return _said(rank, grade, "GIL held", how, stack, seen_last=stack is None, notes=self._blind(stack))

    def _blind(self, stack: Stack | None) -> tuple[str, ...]:
        if stack is not None:
            return ()
        if not self._pyspy.is_there:
            return (f"To see its current line, install py-spy: {install_command('hangs')}.",)
        return (f"py-spy could not read its stack: {self._pyspy.refused}.",) if self._pyspy.refused else ()

    def _judged(self, rank: RankHistory, usage: Usage | None, found: Findings) -> HangVerdict | None:
        """Judge a rank that gives signs, and that others wait for."""
        if len(rank.standing(found.now, WINDOW + 1.0)) < 4 or found.now - rank.changed < WAIT + 2.0:  # noqa: PLR2004
            return None
        if rank.stands_still(found.now, WINDOW + 1.0, least=4) and _is_calm(usage):
            return self._blocked(rank, usage, found)
        recent = rank.standing(found.now, max(2 * WINDOW, min(_SPIN, found.longest - WINDOW)))
        if _spins(recent, 1.0 if usage is None else usage.cpu) and _is_alone(usage):
            lines = len({each.stack[0][:2] for each in recent})
            count = f"{lines} line{'s' if lines > 1 else ''}"
            what = f"has looped over {count} of Python for {found.longest:.0f} s without a call"
            return _said(rank, "hang" if found.longest >= max(_SPIN, found.limit) else "late", "spinning", what)
        life = "" if usage is None else f", CPU {usage.cpu:.0%}"
        if usage is not None and usage.children:
            life += f", child processes {usage.children_cpu:.0%}"
        if usage is not None and usage.moved:
            life += f", I/O {usage.moved / 1e6:.1f} MB/s"
        return _said(rank, "late", "busy", f"is late but alive{life},")

    def _blocked(self, rank: RankHistory, usage: Usage | None, found: Findings) -> HangVerdict:
        stack, limit, seconds = rank.stack, found.limit, found.now - rank.changed
        notes: tuple[str, ...] = ()
        if is_in(stack, DEBUGGERS):
            return _said(rank, "late", "debugger", f"has been in a debugger for {seconds:.0f} s")
        if is_in(stack, SERVERS, 8):
            return _said(rank, "late", "idle", f"has been idle in its event loop for {seconds:.0f} s")
        if usage is None or usage.moved is None:
            limit, notes = max(limit, _UNSEEN_LIMIT), (_unseen(rank, usage),)
        # A compiler, say, that gets no processor, or no disk.
        wants = usage is not None and any(child.state in ("R", "D") for child in usage.children)
        if wants or is_in(stack, NETWORK, 3):
            limit = max(limit, _OUTSIDE_LIMIT)
        grade: Grade = "hang" if found.longest >= limit else "late"
        if is_in(stack, (LOADER,)):
            worker, more = self._worker(usage)
            text = f"has been blocked for {seconds:.0f} s in DataLoader"
            return _said(rank, grade, "DataLoader", text, after=worker, notes=(*notes, *more))
        return _said(rank, grade, "blocked", f"has been blocked for {seconds:.0f} s{self._others(rank)}", notes=notes)

    def _worker(self, usage: Usage | None) -> tuple[str, tuple[str, ...]]:
        """Return the places of a data loader's workers in words, and notes on those that could not be seen."""
        children = usage.children if usage is not None else ()
        told, first = [], None
        for child in children[:8]:
            first = first or child
            stack = self._pyspy.stack(child.pid)
            if stack and not is_in(stack, _NO_WORKERS, 3):
                told.append(f"its worker {child.pid} is at {place_of(stack)}")
        if told:
            return f"; {', '.join(told[:3])}", ()
        if first is None:
            return "", ()
        state = f"; its worker {first.pid} is in state {first.state}{f' ({first.waits_in})' if first.waits_in else ''}"
        return state, self._blind(None)

    @staticmethod
    def _others(rank: RankHistory) -> str:
        """Return where the program's other threads stand: two that wait for each other are both named."""
        others = [each for each in rank.pulse.get("threads", ()) if each[0] != "main"]
        named_ones = [f"thread {name} at {place_of(stack_of(frames))}" for name, _, frames in others[:3] if frames]
        return f" ({'; '.join(named_ones)})" if named_ones else ""


def _is_calm(usage: Usage | None) -> bool:
    if usage is None:
        return True
    return usage.cpu < _CALM and usage.children_cpu < _CALM and (usage.moved or 0) < _CALM_BYTES


def _is_alone(usage: Usage | None) -> bool:
    return usage is None or ((usage.moved or 0) < _CALM_BYTES and usage.children_cpu < _CALM)


def _spins(recent: Sequence[SeenStack], cpu: float) -> bool:
    """Tell whether the main thread runs Python at a line or three, in one function, and calls nothing.

    Args:
        recent: its stacks.
        cpu: the share of a processor that it gets: on a busy machine each wait for the GIL is longer.
    """
    if len(recent) < 5 or not all(each.stack for each in recent):  # noqa: PLR2004 - pulses that show it
        return False
    lines, outer = {each.stack[0][:2] for each in recent}, {each.stack[1:] for each in recent}
    python = sum(each.gil > _SWITCHES for each in recent) >= _SWITCHED * len(recent)
    held = sum(each.gil > _C_HOLDS / min(1.0, max(cpu, _C_HOLDS)) for each in recent) > _C_SHARE * len(recent)
    return len(outer) == 1 and len(lines) <= 3 and python and not held  # noqa: PLR2004


def _unseen(rank: RankHistory, usage: Usage | None) -> str:
    if usage is None:
        return f"The hub cannot see the process of rank {rank.rank}: it belongs to another user, or /proc hides it."
    return f"The hub cannot see the reads and writes of rank {rank.rank}."


def _said(
    rank: RankHistory,
    grade: Grade,
    cause: str,
    what: str,
    stack: Stack | None = None,
    *,
    seen_last: bool = False,
    after: str = "",
    notes: tuple[str, ...] = (),
) -> HangVerdict:
    where = f"{'last seen ' if seen_last else ''}at {place_of(stack if stack is not None else rank.stack)}"
    comma = "," if seen_last else ""
    text = f"rank {rank.rank} (pid {rank.pid}) {what}{comma} {where}{after}."
    return HangVerdict(grade, cause, (rank.rank,), spoken(text), notes)
